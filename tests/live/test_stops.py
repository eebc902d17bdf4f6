"""Who stopped a run is recorded, what it prints meanwhile proves nothing, and the answers agree with each other."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server.system import processes
from tests.support.ports import free_port
from tests.support.sandbox import Agent, Sandbox, until, until_async

pytestmark = pytest.mark.anyio

# Steps, then silence. Stopped, it prints what would be news, and a step.
STALLS = """
import time
for step in range(1, 4):
    print(f"step {step}/9 loss {1 / step:.4f}", flush=True)
try:
    time.sleep(600)
finally:
    print("RuntimeError: DataLoader worker (pid 7) is killed by signal: Interrupt.", flush=True)
    for step in range(4, 9):
        print(f"step {step}/9 loss 0.1", flush=True)
"""
# No step, and its one line long before a first step is due, also on a busy machine: no interpreter starts first.
SILENT = "echo 'loading the model'; exec sleep 600"


def script(sandbox: Sandbox, code: str) -> str:
    (sandbox.path / "train.py").write_text(code)
    return "python3 train.py"


def kinds(sandbox: Sandbox, run_id: str) -> list[str]:
    return [event["kind"] for event in sandbox.run(run_id).events]


async def stalled_end(sandbox: Sandbox, recovery: Any) -> tuple[str, dict[str, Any]]:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, STALLS), recovery=recovery, stall_timeout_s=1, cwd=str(sandbox.path)
        )
        return run_id, await agent.end(run_id)


async def test_a_run_that_the_policy_stopped_says_so_with_the_policys_reason(sandbox: Sandbox) -> None:
    run_id, end = await stalled_end(sandbox, {"on_stall": "stop"})
    assert (end["state"], end["stopped_by"]) == ("killed", "policy")
    assert end["failure"]["kind"] == "stall"
    proof = r"No progress for \d+ s after step 3 of 9\. Last line: step 3/9 loss 0\.3333"
    assert re.fullmatch(proof, end["failure"]["line"])
    assert (end["failure"]["retryable"], end["failure"]["action"]) == (False, "stop")
    assert "KeyboardInterrupt" in sandbox.log(run_id)
    assert "KeyboardInterrupt" not in json.dumps(end)
    happened = kinds(sandbox, run_id)
    assert happened[happened.index("stopping") :] == ["stopping", "ended"]
    assert json.loads(sandbox.rundir(run_id).exit(1).read_text())["stopped_by"] == "policy"


async def test_an_attempt_that_the_policy_stopped_is_retried_as_before(sandbox: Sandbox) -> None:
    run_id, end = await stalled_end(sandbox, {"stall": {"do": "retry", "wait_s": 0, "times": 1}, "on_stall": "stop"})
    retrying = next(e for e in sandbox.run(run_id).events if e["kind"] == "retrying")
    assert (retrying["failure"]["retryable"], retrying["failure"]["action"]) == (True, "retry")
    assert (end["state"], end["stopped_by"], end["attempt"]) == ("killed", "policy", 2)
    assert (end["failure"]["retryable"], end["failure"]["action"]) == (False, "stop")
    assert "was tried" in end["failure"]["advice"]


async def test_a_missing_first_step_says_what_happens_next(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(SILENT, first_step_timeout_s=0.5)
        news = await agent.call("wait_run", run_ids=run_id, timeout_s=60)
        assert news["reason"] == "first_step_timeout"
        (event,) = [e for e in news["runs"][0]["events"] if e["kind"] == "first_step_timeout"]
        assert "The run goes on: " in event["text"]
        assert "It uses no processor time now." in event["text"]
        assert event["text"].endswith("read_log shows what it does.")
        assert (await agent.kill(run_id))["status"] == "killed"
        stopped = await agent.launch(SILENT, first_step_timeout_s=1, recovery={"on_first_step_timeout": "stop"})
        end = await agent.end(stopped)
    assert sandbox.run(run_id).stopped_by == "agent"
    assert (end["state"], end["stopped_by"], end["failure"]["kind"]) == ("killed", "policy", "timeout")
    assert end["failure"]["line"] == "Last line: loading the model"
    assert "first_step_timeout_s" in end["failure"]["advice"]
    timeout = next(e for e in sandbox.run(stopped).events if e["kind"] == "first_step_timeout")
    assert timeout["text"].endswith("The recovery policy stops it now.")


async def test_a_missing_first_step_is_reported_however_soon_the_policy_stops_the_silence(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        limits = {"first_step_timeout_s": 1.6, "stall_timeout_s": 2}
        run_id = await agent.launch(SILENT, **limits, recovery={"on_stall": "stop"})
        assert (await agent.end(run_id))["failure"]["kind"] == "stall"
    happened = kinds(sandbox, run_id)
    assert happened.index("first_step_timeout") < happened.index("stalled")
    overdue = next(e for e in sandbox.run(run_id).events if e["kind"] == "first_step_timeout")
    assert re.search(r"; after \d+ s more of silence the recovery policy stops it\.$", overdue["text"])


async def test_a_time_limit_and_a_closed_session_are_told_apart(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        limited = await agent.end(await agent.launch("sleep 60", time_limit_s=0.3))
        assert (limited["state"], limited["stopped_by"]) == ("timed_out", "time_limit")
        run_id = await agent.launch("sleep 60")
        sandbox.tmux("kill-session", "-t", f"={run_id}")
        closed = await agent.end(run_id)
        assert (closed["state"], closed["stopped_by"]) == ("killed", "person")
        finished = await agent.end(await agent.launch("true"))
        assert "stopped_by" not in finished


async def test_a_scheduler_that_takes_the_machine_away_is_named(sandbox: Sandbox) -> None:
    line = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO PREEMPTION ***"
    async with sandbox.agent_in_process() as agent:
        end = await agent.end(await agent.launch(f"echo '{line}'; exit 143"))
    assert (end["state"], end["stopped_by"], end["failure"]["kind"]) == ("failed", "scheduler", "killed")


# --- ssh


@dataclass(frozen=True)
class FarSide:
    """A real sshd on this host. ``ssh`` begins a command line that reaches it; ``mark`` names its processes."""

    ssh: str
    mark: str

    def living(self, sandbox: Sandbox) -> list[processes.Process]:
        return [p for p in sandbox.own_processes() if p.command.startswith(self.mark)]


@pytest.fixture
def far_side(sandbox: Sandbox) -> Iterator[FarSide]:
    sshd, keygen = "/usr/sbin/sshd", shutil.which("ssh-keygen")
    if not (Path(sshd).exists() and keygen and shutil.which("ssh")):
        pytest.skip("needs OpenSSH's client and server")
    home, port = sandbox.path / "sshd", free_port()
    home.mkdir(mode=0o700)
    for name in ("host", "id"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    (home / "authorized_keys").write_text((home / "id.pub").read_text())
    (home / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {home}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {home}/authorized_keys\nPasswordAuthentication no\n"
        f"SetEnv HOME={home}\n"  # the shells of this sshd read no start-up file of the user's
    )
    (home / "config").write_text(
        f"Host lab\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {home}/id\n"
        " IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n BatchMode yes\n"
        " LogLevel ERROR\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([sshd, "-D", "-f", home / "sshd_config", "-E", home / "log"]) as server:
        try:
            probe = ["ssh", "-F", str(home / "config"), "lab", "true"]
            until(lambda: server.poll() is not None or subprocess.run(probe, check=False).returncode == 0, "sshd")
            if server.poll() is not None:
                pytest.skip(f"sshd does not start: {(home / 'log').read_text()[-300:]}")
            yield FarSide(f"ssh -F {home}/config", f"{sandbox.path}/far")
        finally:
            server.terminate()


async def launch_far(agent: Agent, sandbox: Sandbox, far_side: FarSide, ssh: str, **arguments: Any) -> str:
    """Start a command on the far side, and wait until it runs there."""
    command = f"{ssh} lab 'echo begun; exec -a {far_side.mark} sleep 600'"
    run_id = await agent.launch(command, **arguments)
    await until_async(lambda: far_side.living(sandbox), "the command on the far side")
    return run_id


@pytest.mark.slow
async def test_the_far_side_of_a_stopped_ssh_without_a_terminal_is_unknown(sandbox: Sandbox, far_side: FarSide) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await launch_far(agent, sandbox, far_side, far_side.ssh)
        killed = await agent.kill(run_id)
        assert (killed["status"], killed["state"]) == ("killed", "lost")
        assert "survivors" not in killed
        assert "whether it goes on there is unknown" in killed["message"]
        status = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
        assert (status["state"], status["stopped_by"]) == ("lost", "agent")
        assert "Whether the command on lab goes on is unknown" in status["reason"]
        assert far_side.living(sandbox), "this is why"
        limited = await agent.end(await launch_far(agent, sandbox, far_side, far_side.ssh, time_limit_s=3))
        assert (limited["state"], limited["stopped_by"]) == ("lost", "time_limit")


async def test_the_far_side_of_a_stopped_ssh_with_a_terminal_is_stopped(sandbox: Sandbox, far_side: FarSide) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await launch_far(agent, sandbox, far_side, f"{far_side.ssh} -tt")
        killed = await agent.kill(run_id)
        assert (killed["state"], killed["survivors"]) == ("killed", [])
        await until_async(lambda: not far_side.living(sandbox), "the end on the far side")


async def test_a_lost_connection_is_no_preemption_and_starts_no_second_training(
    sandbox: Sandbox, far_side: FarSide
) -> None:
    async with sandbox.agent_in_process() as agent:
        command = f"{far_side.ssh} -tt lab 'echo step 1 loss 0.5; kill -9 $PPID; sleep 600'"
        run_id = await agent.launch(command, recovery={"any": {"do": "retry", "wait_s": 0}})
        end = await agent.end(run_id)
    assert (end["state"], end["failure"]["kind"]) == ("lost", "network_error"), sandbox.log(run_id)
    assert (end["failure"]["retryable"], end["failure"]["action"]) == (False, "stop")
    assert "goes on is unknown" in end["reason"]
    assert "exit_code" not in end
    assert kinds(sandbox, run_id).count("started") == 1


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh is installed")
async def test_a_refused_connection_began_nothing_and_may_be_retried(sandbox: Sandbox) -> None:
    port = free_port()
    async with sandbox.agent_in_process() as agent:
        end = await agent.end(await agent.launch(f"ssh -p {port} -o BatchMode=yes 127.0.0.1 python train.py"))
    assert (end["state"], end["failure"]["kind"]) == ("failed", "network_error")
    assert end["failure"]["retryable"]
