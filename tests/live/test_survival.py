"""Whatever process dies, the reported state is correct or `lost`."""

import contextlib
import functools
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcp_server.backends.local import supervisor_argv
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import now
from mcp_server.record.state import Run
from tests.support.sandbox import Agent, Sandbox, until, until_async

pytestmark = pytest.mark.anyio

PRINTS = "for i in $(seq 1 60); do echo line $i; sleep 0.05; done; exit 6"


async def test_a_server_killed_at_any_point_of_a_launch_leaves_the_truth(sandbox: Sandbox) -> None:
    dice = random.Random(7)
    command = f"echo ran >> {sandbox.path}/effects; sleep 0.3; exit 5"
    async with sandbox.agent_in_process() as agent:
        await agent.end(await agent.launch("true"))  # tmux runs
    for trial in range(6):
        server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server"], env=sandbox.environ)
        with contextlib.suppress(Exception):  # however the client takes its server's death
            async with Client(stdio_client(server)) as client, anyio.create_task_group() as tasks:
                await client.list_tools()
                tasks.start_soon(_launch, client, command, f"trial-{trial}")
                await anyio.sleep(dice.uniform(0, 0.08))  # the point of the launch, not a wait for it
                _kill_servers(sandbox)
    started = 0
    for run in sandbox.store.list_runs():
        if run.spec.name != "trial":
            continue
        if run.state == "starting":  # aborted before its supervisor started: after 15 s its state is lost
            spec = json.loads(sandbox.rundir(run.run_id).spec.read_text())
            sandbox.rundir(run.run_id).spec.write_text(json.dumps({**spec, "created_at": "2026-01-01T00:00:00Z"}))
        end = await until_async(functools.partial(_ended, sandbox, run.run_id))
        assert (end.state, end.exit_code) in {("failed", 5), ("failed", None), ("lost", None)}
        started += end.exit_code == 5
    effects = sandbox.path / "effects"
    assert len(effects.read_text().splitlines() if effects.exists() else []) == started
    # What was cut off can be launched again with its key, what ran is not.
    async with sandbox.agent_in_process() as agent:
        for trial in range(6):
            await agent.end(await agent.launch(command, idempotency_key=f"trial-{trial}"))
    assert effects.read_text().splitlines() == ["ran"] * 6


def _ended(sandbox: Sandbox, run_id: str) -> Run | None:
    run = sandbox.run(run_id)
    return run if run.ended else None


async def _launch(client: Client, command: str, key: str) -> None:
    arguments = {"command": command, "name": "trial", "idempotency_key": key}
    await client.call_tool("launch_run", arguments)


def _kill_servers(sandbox: Sandbox) -> None:
    for p in sandbox.own_processes():
        if p.command.endswith("-m mcp_server"):
            os.kill(p.pid, signal.SIGKILL)


async def test_the_death_of_tmux_does_not_end_a_run(sandbox: Sandbox) -> None:
    gate = sandbox.path / "go"
    half = "for i in $(seq {} {}); do echo line $i; done"
    command = f"{half.format(1, 30)}; until test -e {gate}; do sleep 0.02; done; {half.format(31, 60)}; exit 6"
    async with sandbox.agent() as agent:
        run_id = await agent.launch(command)
        pid = int(sandbox.tmux("display-message", "-p", "#{pid}"))
        os.kill(pid, signal.SIGKILL)
        await until_async(lambda: "screen_lost" in [e["kind"] for e in sandbox.run(run_id).events], "the news of it")
        gate.touch()
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("failed", 6)
    assert sandbox.log(run_id).splitlines() == [f"line {i}" for i in range(1, 61)]


@pytest.mark.slow
async def test_a_frozen_tmux_is_reported_and_starts_nothing_later(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        await agent.end(await agent.launch("true"))
        pid = int(sandbox.tmux("display-message", "-p", "#{pid}"))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert "tmux does not answer" in await agent.refusal("launch_run", command=f"touch {sandbox.path}/late")
            assert "tmux does not answer" in await agent.refusal("list_runs", others=True)
            assert (await agent.call("list_runs"))["total"] == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        await agent.end(await agent.launch("true"))
    assert not (sandbox.path / "late").exists()


async def test_a_frozen_tmux_holds_nothing_up(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("for i in $(seq 1 60000); do echo a line of some length, number $i; done; exit 6")
        pid = int(sandbox.tmux("display-message", "-p", "#{pid}"))
        os.kill(pid, signal.SIGSTOP)
        try:
            status = await agent.end(run_id)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert status["exit_code"] == 6
    assert len(sandbox.log(run_id).splitlines()) == 60000


@pytest.mark.slow
async def test_a_session_closed_by_a_person_ends_its_run_also_when_it_is_the_last(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        for _ in range(2):
            run_id = await agent.launch("sleep 300")
            sandbox.tmux("kill-session", "-t", f"={run_id}")
            status = await agent.end(run_id)
            assert status["state"] == "killed"
            assert "session was closed" in status["events"][-1]["text"]


@pytest.mark.slow
async def test_a_session_is_closed_while_its_run_prints_without_a_pause(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        for _ in range(4):  # whether the supervisor writes into the closed pane first is chance
            run_id = await agent.launch("while :; do echo one line after the other; done")
            sandbox.tmux("kill-session", "-t", f"={run_id}")
            assert (await agent.end(run_id))["state"] == "killed"


async def test_a_stopped_tmux_server_does_not_end_a_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(PRINTS)
        sandbox.tmux("kill-server")
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("failed", 6)


async def test_a_tmux_that_ends_while_a_client_hangs_does_not_end_a_run(sandbox: Sandbox) -> None:
    """tmux closes all panes at once, and is gone only when its last client is."""
    async with sandbox.agent_in_process() as agent:
        command = "until test -e go; do sleep 0.05; done; exit 6"
        run_id = await agent.launch(command, cwd=str(sandbox.path))
        client, master = _attach(sandbox, run_id)
        try:
            await until_async(lambda: bool(sandbox.tmux("list-clients", "-F", "#{client_pid}")))
            os.kill(client, signal.SIGSTOP)
            pid = int(sandbox.tmux("display-message", "-p", "#{pid}"))
            os.kill(pid, signal.SIGTERM)
            await until_async(lambda: "screen_lost" in [e["kind"] for e in sandbox.run(run_id).events])
            (sandbox.path / "go").touch()
            status = await agent.end(run_id)
        finally:
            _end_client(client, master)
    assert (status["state"], status["exit_code"]) == ("failed", 6)


async def test_a_person_closes_a_session_that_others_share_a_server_with(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        other = await agent.launch("sleep 300")
        run_id = await agent.launch("sleep 300")
        sandbox.tmux("kill-session", "-t", f"={run_id}")
        status = await agent.end(run_id)
        assert (status["state"], sandbox.run(other).state) == ("killed", "running")


def _attach(sandbox: Sandbox, run_id: str) -> tuple[int, int]:
    """Return the pid of a tmux client of the run's session, and the other end of its terminal."""
    client, master = pty.fork()
    if client == 0:
        words = ["tmux", "-L", sandbox.socket, "attach", "-t", f"={run_id}"]
        os.execvpe("tmux", words, {**sandbox.environ, "TERM": "xterm"})
    return client, master


def _end_client(client: int, master: int) -> None:
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    os.close(master)


async def test_a_killed_supervisor_ends_the_waits_for_its_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        command = "touch ready; until test -e go; do sleep 0.02; done; exit 6"
        run_id = await agent.launch(command, cwd=str(sandbox.path))
        await until_async((sandbox.path / "ready").exists, "the command, which begins after the launch is recorded")
        answers = []

        async def wait() -> None:
            answers.append(await agent.call("wait_run", run_ids=run_id, timeout_s=60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await agent.call("wait_run", run_ids=run_id, timeout_s=0)
            os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
    status = answers[0]["runs"][0]
    assert (answers[0]["reason"], status["state"]) == ("ended", "lost")
    assert answers[0]["waited_s"] < 30
    assert "exit_code" not in status
    assert "signal" not in status
    # The command goes on, and its guard sees the end.
    assert status["leftovers"]
    (sandbox.path / "go").touch()
    await until_async(lambda: "ended with exit code 6 at" in str(sandbox.run(run_id).reason), "the guard's record")
    assert (sandbox.run(run_id).state, sandbox.run(run_id).exit_code) == ("lost", None)


async def test_a_killed_guard_changes_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        command = "trap '' HUP; touch ready; until test -e go; do sleep 0.02; done; exit 6"
        run_id = await agent.launch(command, cwd=str(sandbox.path))
        await until_async((sandbox.path / "ready").exists)
        os.kill(sandbox.run(run_id).at_start["guard_pid"], signal.SIGKILL)
        (sandbox.path / "go").touch()
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("failed", 6)


@pytest.mark.slow
async def test_a_run_whose_lock_was_removed_still_runs_and_is_stopped(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        killed, ends = (
            await agent.launch("sleep 600"),
            await agent.launch("until test -e go; do sleep 0.02; done; exit 6"),
        )
        for run_id in (killed, ends):
            sandbox.rundir(run_id).lock.unlink()
            assert sandbox.run(run_id).state == "running"
        answer = await agent.kill(killed)
        assert (answer["status"], answer["state"]) == ("killed", "killed")
        (sandbox.path / "go").touch()
        status = await agent.end(ends)
        assert (status["state"], status["exit_code"]) == ("failed", 6)
        lost = await agent.launch("sleep 600")
        sandbox.rundir(lost).lock.unlink()
        os.kill(sandbox.supervisor(lost), signal.SIGKILL)
        assert (await agent.end(lost))["state"] == "lost"


async def test_another_server_knows_everything(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("sleep 0.5; exit 6")
    async with sandbox.agent() as agent:
        assert (await agent.end(run_id))["exit_code"] == 6
        assert (await agent.call("list_runs"))["runs"][0]["run_id"] == run_id


@pytest.fixture
def small_disk(sandbox: Sandbox) -> Iterator[Path]:
    """A state directory of two megabytes."""
    state = sandbox.path / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(state)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk takes root")
    yield state
    sandbox.close()
    subprocess.run(["umount", "-l", str(state)], check=True)


async def test_a_full_disk_loses_output_but_not_the_end(sandbox: Sandbox, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 1_000_000)
    command = (
        f"for i in $(seq 1 40000); do echo a line of some length, number $i; done; touch {sandbox.path}/full;"
        f"until test -e {sandbox.path}/go; do sleep 0.05; done; echo after; sleep 0.2; echo last; exit 6"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command)
        await until_async((sandbox.path / "full").exists)
        (small_disk / "ballast").unlink()
        (sandbox.path / "go").touch()
        status = await agent.end(run_id)
        # What the terminal still held when there was space again may be between the note and the end.
        note = await agent.text("read_log", run_id=run_id, grep="bytes of output were lost here")
        tail = await agent.text("read_log", run_id=run_id)
    assert (status["state"], status["exit_code"]) == ("failed", 6)
    assert "bytes of output were lost here: No space left on device]" in note
    assert tail.splitlines()[-2] == "last"
    assert "log_lost" in [e["kind"] for e in sandbox.run(run_id).events]


@pytest.mark.slow
async def test_a_disk_that_stays_full_still_takes_the_end(sandbox: Sandbox, small_disk: Path) -> None:
    command = "for i in $(seq 1 60000); do echo a line of some length, number $i; done; exit 6"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command)
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("failed", 6)


async def test_a_home_behind_a_link_is_the_same_home(sandbox: Sandbox) -> None:
    (sandbox.path / "elsewhere").symlink_to(sandbox.path / "state")
    async with sandbox.agent() as agent:
        run_id = await agent.launch("sleep 300")
    async with sandbox.agent(RUNWARD_HOME=str(sandbox.path / "elsewhere")) as agent:
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["signals_sent"]) == ("killed", "killed", ["SIGINT"])


@pytest.mark.slow
async def test_left_overs_of_a_supervisor_killed_after_the_end_can_be_stopped(sandbox: Sandbox) -> None:
    command = (
        "setsid bash -c \"trap '' TERM HUP; touch ready; exec sleep 301\" &"
        "until test -e ready; do sleep 0.02; done; exit 6"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, cwd=str(sandbox.path))
        await until_async(sandbox.rundir(run_id).exit(1).exists)
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        status = await agent.end(run_id)
        assert (status["state"], status["exit_code"]) == ("failed", 6)
        assert [p["command"] for p in status["leftovers"]] == ["sleep"]
        done = await agent.kill(run_id)
    assert (done["status"], done["survivors"]) == ("killed", [])


async def test_after_a_reboot_a_run_is_lost(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        copy = sandbox.path / "state" / "runs" / "copy-aaaa"
        # A power cut leaves a lock file that is not held, and another boot's id.
        shutil.copytree(sandbox.rundir(run_id).path, copy)
        spec = json.loads((copy / "spec.json").read_text())
        (copy / "spec.json").write_text(json.dumps({**spec, "run_id": "copy-aaaa", "boot_id": "another"}))
        status = (await agent.call("wait_run", run_ids="copy-aaaa"))["runs"][0]
    assert status["state"] == "lost"
    assert "rebooted" in status["reason"]
    assert "exit_code" not in status


LAYOUTS = Path(__file__).parents[1] / "data" / "layouts"


@pytest.mark.parametrize("layout", sorted(p.name for p in LAYOUTS.iterdir()))
async def test_directories_of_every_layout_stay_readable(sandbox: Sandbox, layout: str) -> None:
    shutil.copytree(LAYOUTS / layout, sandbox.path / "state" / "runs")
    expected = json.loads((sandbox.path / "state" / "runs" / "expected.json").read_text())
    (sandbox.path / "state" / "runs" / "expected.json").unlink()
    async with sandbox.agent_in_process() as agent:
        listed = {run["run_id"]: run for run in (await agent.call("list_runs"))["runs"]}
        assert {run_id: run["state"] for run_id, run in listed.items()} == {
            run_id: facts["state"] for run_id, facts in expected.items()
        }
        for run_id, facts in expected.items():
            status = (await agent.call("wait_run", run_ids=run_id))["runs"][0]
            assert {name: status.get(name) for name in facts} == facts
            assert "step 2" in await agent.text("read_log", run_id=run_id)


@pytest.mark.slow
async def test_what_is_not_a_run_neither_shows_nor_harms(sandbox: Sandbox) -> None:
    runs = sandbox.path / "state" / "runs"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3")
        await agent.end(run_id)
        (runs / "stray-file").write_text("x")
        (runs / "empty").mkdir()
        for name, content in (("garbage", b"\xff{"), ("listed", b"[]"), ("odd", b'{"name": 3, "created_at": "soon"}')):
            (runs / name).mkdir()
            (runs / name / "spec.json").write_bytes(content)
            (runs / name / "events.jsonl").write_bytes(b'{"seq": "x"}\n[]\nnonsense\n{"seq": 1}\n{"seq": 2')
        (runs / "pipe").mkdir()
        os.mkfifo(runs / "pipe" / "spec.json")
        listed = {run["run_id"]: run["state"] for run in (await agent.call("list_runs"))["runs"]}
        assert listed.pop(run_id) == "failed"
        assert set(listed) <= {"garbage", "listed", "odd"}
        assert set(listed.values()) <= {"lost", "starting"}
        for bad in ("pipe", "empty", "../runs/" + run_id, "", "/etc", "x" * 5000):
            assert "Run not found" in await agent.refusal("wait_run", run_ids=bad)
            assert "Run not found" in await agent.refusal("read_log", run_id=bad)


async def test_two_servers_with_one_key_start_one_run(sandbox: Sandbox) -> None:
    command = f"echo ran >> {sandbox.path}/effects; sleep 300"
    ids: list[str] = []

    async def launch(agent: Agent) -> None:
        ids.append(await agent.launch(command, idempotency_key="k"))

    async with sandbox.agent() as one, sandbox.agent() as two, anyio.create_task_group() as tasks:
        for agent in (one, two, one, two):
            tasks.start_soon(launch, agent)
    assert len(set(ids)) == 1
    until((sandbox.path / "effects").exists)
    assert (sandbox.path / "effects").read_text() == "ran\n"


async def test_a_time_limit_of_months_is_possible(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 0.3; exit 5", time_limit_s=90 * 86400)
        assert (await agent.end(run_id))["exit_code"] == 5


async def test_a_paused_run_still_reaches_its_limit_and_its_end(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        limited = await agent.launch("sleep 300", time_limit_s=1)
        os.killpg(sandbox.run(limited).at_start["guard_pid"], signal.SIGSTOP)
        assert (await agent.end(limited))["state"] == "timed_out"
        ends = await agent.launch("until test -e go; do sleep 0.02; done; exit 5", cwd=str(sandbox.path))
        os.kill(sandbox.run(ends).at_start["guard_pid"], signal.SIGSTOP)
        (sandbox.path / "go").touch()
        assert (await agent.end(ends))["exit_code"] == 5


async def test_a_tmux_server_that_a_run_started_stays(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            f"tmux -L {sandbox.socket}-inner new-session -d -s theirs 'sleep 300'; sleep 300 & exit 5"
        )
        try:
            assert (await agent.end(run_id))["exit_code"] == 5
            inner = subprocess.run(
                ["tmux", "-L", f"{sandbox.socket}-inner", "list-sessions", "-F", "#{session_name}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert inner.stdout == "theirs\n"
            assert [p["command"] for p in sandbox.run(run_id).events[-1]["leftovers"]] != []
        finally:
            subprocess.run(["tmux", "-L", f"{sandbox.socket}-inner", "kill-server"], check=False)
            Path(f"/tmp/tmux-{os.getuid()}/{sandbox.socket}-inner").unlink(missing_ok=True)


@pytest.mark.parametrize("setting", ["set -g destroy-unattached on", "set -g exit-empty on", "set -g base-index 1"])
async def test_a_tmux_that_a_person_set_up_serves_as_well(sandbox: Sandbox, setting: str) -> None:
    (sandbox.path / ".tmux.conf").write_text(setting + "\n")
    environ = {**sandbox.environ, "TERM": "xterm-256color"}
    subprocess.run(
        ["tmux", "-L", sandbox.socket, "new-session", "-d", "-s", "mine", "sleep 300"], env=environ, check=True
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        sandbox.tmux("kill-session", "-t", "=mine")
        sandbox.tmux("kill-session", "-t", f"={run_id}")
        assert (await agent.end(run_id))["state"] == "killed"


async def test_another_hosts_run_is_shown_and_left_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        copy = sandbox.path / "state" / "runs" / "copy-aaaa"
        shutil.copytree(sandbox.rundir(run_id).path, copy)
        spec = json.loads((copy / "spec.json").read_text())
        (copy / "spec.json").write_text(json.dumps({**spec, "boot_id": "another", "host": "elsewhere"}))
        status = (await agent.call("wait_run", run_ids="copy-aaaa", timeout_s=0))["runs"][0]
        assert (status["state"], "elsewhere" in status["reason"]) == ("running", True)
        assert "Stop it there" in await agent.refusal("kill_run", run_id="copy-aaaa")
        assert sandbox.run(run_id).state == "running"
    assert not (copy / "stop.json").exists()


async def test_one_corrupt_directory_hides_no_other_run(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        good = await agent.launch("exit 5")
        await agent.end(good)
        spec = {"layout": 1, "created_at": "2026-11-01T00:00:00Z", "command": "x"}
        event = {"seq": 1, "at": "2026-11-01T00:00:00Z", "kind": "started", "text": "x"}
        bad: dict[str, dict[str, str]] = {
            "bad-time": {"spec.json": json.dumps({**spec, "created_at": "yesterday"})},
            "bad-event": {"events.jsonl": json.dumps({**event, "at": 5, "text": []}) + "\n"},
            "bad-start": {"events.jsonl": json.dumps({**event, "at_start": [1]}) + "\n"},
            "bad-kind": {"events.jsonl": json.dumps({**event, "kind": []}) + "\n"},
            "bad-end": {"events.jsonl": json.dumps({**event, "kind": "ended", "state": ["finished"]}) + "\n"},
            "bad-exit": {"attempts/1/exit.json": '{"exit_code": "three", "state": [], "ended_at": 5}'},
            "deep": {"events.jsonl": "[" * 200_000 + "\n", "attempts/1/exit.json": "[" * 200_000},
        }
        for name, files in bad.items():
            path = sandbox.path / "state" / "runs" / name
            (path / "attempts" / "1").mkdir(parents=True)
            for file, text in {"spec.json": json.dumps(spec), **files}.items():
                (path / file).write_text(text)
        pipes = sandbox.path / "state" / "runs" / "pipes"
        (pipes / "attempts" / "1").mkdir(parents=True)
        (pipes / "spec.json").write_text(json.dumps(spec))
        for file in ("events.jsonl", "stop.json", "supervisor.lock", "attempts/1/exit.json", "attempts/1/output.log"):
            os.mkfifo(pipes / file)
        listed = {run["run_id"]: run["state"] for run in (await agent.call("list_runs"))["runs"]}
        assert listed.pop(good) == "failed"
        assert set(listed) == {*bad, "pipes"}
        for name in listed:
            status = (await agent.call("wait_run", run_ids=name, timeout_s=0))["runs"][0]
            assert status["state"] in {"lost", "failed", "starting"}, name
            await agent.client.call_tool("read_log", {"run_id": name}, read_timeout_seconds=10)


def test_a_supervisor_that_comes_after_a_stop_starts_nothing(sandbox: Sandbox) -> None:
    path = sandbox.path / "state" / "runs" / "late-aaaa"
    path.mkdir(parents=True)
    (path / "spec.json").write_text(json.dumps({"layout": 1, "created_at": now()}))
    (path / "run.sh").write_text(f"touch {sandbox.path}/late\n")
    (path / "stop.json").write_text('{"by": "launch_run", "reason": "it did not start in time"}')
    os.mkfifo(path / "handover", 0o600)
    launcher = os.open(path / "handover", os.O_RDWR)
    os.write(launcher, Handover({"PATH": os.defpath}, {}).encode())
    done = subprocess.run(supervisor_argv(sys.executable, path), capture_output=True, check=False, timeout=30)
    os.close(launcher)
    assert done.stderr == b""
    assert (sandbox.run("late-aaaa").state, sandbox.run("late-aaaa").started_at) == ("killed", None)
    assert not (sandbox.path / "late").exists()


async def test_what_a_removed_log_does_not_hold_is_said_to_be_missing(sandbox: Sandbox) -> None:
    go = sandbox.path / "go"
    command = (
        f"echo first; until test -e {go}; do sleep 0.05; done; echo second; until test -e {go}2; do sleep 0.05; done"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command)
        log = sandbox.rundir(run_id).log(1)
        await until_async(lambda: log.is_file() and b"first" in log.read_bytes(), "the first line")
        log.unlink()
        gone = await agent.refusal("read_log", run_id=run_id)
        go.touch()
        await until_async(lambda: log.is_file() and b"second" in log.read_bytes(), "the second line")
        whole = await agent.text("read_log", run_id=run_id, tail=1)
        (sandbox.path / "go2").touch()
        assert (await agent.end(run_id))["state"] == "finished"
    assert f"{run_id} (running), attempt 1: the file of its output is missing: somebody removed it." in gone
    assert "Somebody removed or replaced its file: 6 bytes of output are missing in the log." in whole
    assert "first" not in whole
    assert "second" in whole
