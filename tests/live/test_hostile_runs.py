"""Runs that attack their own record, log and results: answers stay true, come, and need little memory."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends import local
from mcp_server.record.run_directory import now
from mcp_server.record.spec import RunSpec
from tests.support.event_records import header, points
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

TAKES_THE_NAME_OF_TMUX = """
import ctypes, os, signal, time
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    ctypes.CDLL(None).prctl(15, b"tmux: server")
    open("child", "w").write(str(os.getpid()))
time.sleep(300)
"""


def write_end(sandbox: Sandbox, run_id: str, **facts: Any) -> None:
    """Append an end to the record of a run, as its command can."""
    event = {"seq": 50, "kind": "ended", "text": "finished: exit code 0.", "state": "finished", **facts}
    with sandbox.rundir(run_id).events.open("a") as file:
        file.write(json.dumps(event) + "\n")


@pytest.mark.parametrize("at", ["2026-11-21T10:00:00Z", "2099-01-01T00:00:00Z", None])
async def test_a_run_that_writes_its_own_end_still_runs_and_can_be_stopped(sandbox: Sandbox, at: str | None) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        write_end(sandbox, run_id, **({"at": at} if at else {}))
        (seen,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert (seen["state"], "exit_code" in seen) == ("running", False)
        assert seen["reason"].startswith("Its record says finished, but its supervisor lives")
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])


async def test_an_end_of_now_that_a_run_writes_itself_is_never_believed(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        write_end(sandbox, run_id, at=now())
        (seen,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert seen["state"] == "running"
        assert (await agent.kill(run_id))["status"] == "killed"


async def test_a_process_with_the_name_of_a_tmux_server_does_not_outlive_its_run(sandbox: Sandbox) -> None:
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.25\n")
    (sandbox.path / "train.py").write_text(TAKES_THE_NAME_OF_TMUX)
    child = sandbox.path / "child"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "train.py"], cwd=str(sandbox.path))
        await until_async(lambda: child.exists() and child.read_text())
        done = await agent.kill(run_id)
    assert (done["status"], done["survivors"]) == ("killed", [])
    assert int(child.read_text()) not in [p.pid for p in sandbox.own_processes()]


@pytest.mark.parametrize("what", ["fifo", "zero", "directory"])
async def test_a_log_that_became_something_else_holds_no_answer_up(sandbox: Sandbox, what: str) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            "echo step 1/10 loss 0.5; touch ready; while [ ! -e go ]; do sleep 0.05; done; exit 3"
        )
        await until_async((sandbox.path / "ready").exists)
        log = sandbox.rundir(run_id).log(1)
        log.unlink()
        makers: dict[str, Callable[[], object]] = {
            "fifo": lambda: os.mkfifo(log),
            "zero": lambda: log.symlink_to("/dev/zero"),
            "directory": log.mkdir,
        }
        makers[what]()
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["exit_code"] == 3
        out = sandbox.path / "out"
        finished = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(out))
        assert (finished["status"], finished["state"]) == ("written", "failed")
        compared = await agent.call("compare_runs", run_ids=[run_id])
        assert compared["rows"][0].startswith(f"{run_id}|failed|")
        assert "Somebody removed or replaced its file" in await agent.refusal("read_log", run_id=run_id)
        assert run_id in await agent.text("list_runs")


@pytest.mark.slow
async def test_huge_results_take_little_memory_and_links_out_of_them_are_not_followed(sandbox: Sandbox) -> None:
    out, secret = sandbox.path / "out", sandbox.path / "outside.json"
    out.mkdir()
    secret.write_text('{"password_of_the_lab": 4711}')
    for name in ("eval_predictions.json", "results.jsonl", "eval.md", "evaluations.npz", "metrics.txt", "config.yaml"):
        (out / name).write_bytes(b'{"accuracy": 0.5}\n')
        os.truncate(out / name, 4 * 2**30)
    code = (
        f"import os; os.symlink({str(secret)!r}, 'config.json'); os.symlink({str(secret)!r}, 'eval_results.json'); "
        "open('progress.csv', 'w').write('step,loss\\n1,0.5\\n'); print('step 1/1 loss 0.5')"
    )
    async with sandbox.agent(cold=True) as agent:
        run_id = await agent.launch([sys.executable, "-c", code], cwd=str(out))
        await agent.end(run_id)
        shown = [p for p in sandbox.own_processes() if p.command.endswith("-m mcp_server")]
        (server,) = [p for p in shown if p.parent in {one.pid for one in shown}]  # the other one is its keeper
        before_kib = peak_kib(server.pid)
        await agent.call("finish_blueprint", run_id=run_id, result_dir=str(out))
        await agent.call("compare_runs", run_ids=[run_id])
        assert peak_kib(server.pid) - before_kib < 150 * 1024
    text = (out / "results.md").read_text()
    assert "loss" in text
    assert "password_of_the_lab" not in text
    assert "4711" not in text


def peak_kib(pid: int) -> int:
    """The most memory that a process has used so far."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.slow
async def test_half_a_million_events_are_read_at_both_ends_alone(sandbox: Sandbox) -> None:
    line = '{"seq": %d, "at": "2026-11-21T10:00:00Z", "kind": "error_seen", "text": "Diverged."}\n'
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        with sandbox.rundir(run_id).events.open("a") as file:
            file.writelines(line % seq for seq in range(10, 500_000))
        (seen,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert (seen["state"], seen["events"][-1]["seq"]) == ("running", 499_999)
        run = sandbox.run(run_id)
        assert len(run.events) < 60_000
        assert (run.events[0]["kind"], run.at_start["supervisor_pid"]) == ("started", sandbox.supervisor(run_id))
        assert (await agent.kill(run_id))["status"] == "killed"


async def test_event_files_with_holes_longer_than_the_disk_are_read(sandbox: Sandbox) -> None:
    for number in range(4):
        path = sandbox.path / "tb" / f"events.out.tfevents.170000000{number}.host.1.0"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(header() + points(range(50)))
        os.truncate(path, 20 * 2**30)
        with path.open("ab") as file:
            file.write(points(range(50, 60)))
    async with sandbox.agent_in_process() as agent:
        found = await agent.text("read_tb", logdir=str(sandbox.path / "tb"))
    assert "loss" in found
    assert "59" in found


async def test_a_broken_configuration_prevents_no_stop(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = \n")
        assert "config.toml" in await agent.refusal("launch_run", command="true")
        assert (await agent.kill(run_id))["status"] == "killed"
        (sandbox.path / "state" / "config.toml").unlink()
        run_id = await agent.launch("sleep 300")
        (sandbox.path / "state" / "config.toml").write_text('kill_policy = "human"\n[[\n')
        assert f"runward kill {run_id}" in (await agent.call("kill_run", run_id=run_id))["message"]
        (sandbox.path / "state" / "config.toml").unlink()
        assert (await agent.kill(run_id))["status"] == "killed"


async def test_a_session_that_something_closed_at_once_is_named(sandbox: Sandbox) -> None:
    sandbox.tmux("new-session", "-d", "-s", "kept")
    specs = [RunSpec(session=session, tmux_socket=sandbox.socket) for session in ("kept", "closed")]
    assert await local._explain_silence(specs[0], [], is_made=True) == "perhaps the machine is overloaded"
    slow = await local._explain_silence(specs[0], [], is_made=True, file_s=0.62)
    assert slow.startswith("its state directory is slow (0.6 s to open one file)")
    gone = ["/nonexistent/python", "-I", "/nonexistent/supervisor", "RUN_DIR"]
    assert await local._explain_silence(specs[0], gone, is_made=True) == "its program /nonexistent/python is missing"
    gone[0] = sys.executable
    assert (
        await local._explain_silence(specs[0], gone, is_made=True) == "its program /nonexistent/supervisor is missing"
    )
    assert "perhaps by a hook in tmux.conf" in await local._explain_silence(specs[1], [], is_made=True)
    assert await local._explain_silence(specs[1], [], is_made=False) == "perhaps the machine is overloaded"
