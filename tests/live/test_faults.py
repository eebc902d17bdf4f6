"""Deaths, pauses and shortages at the worst moments. The whole campaign is `python -m tests.benchmarks deaths`."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from mcp_server.errors import StopUnknown
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, now
from mcp_server.recovery.policy import normalize_policy
from mcp_server.runs.stop import stop_run as stop
from mcp_server.runs.stop.stop_run import stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.system import processes
from tests.support.sandbox import Sandbox, until, until_async

pytestmark = pytest.mark.anyio

# The supervisor's program, with one line of its own at the event of the given kind.
SUPERVISOR = """
import errno, os, signal, sys
from pathlib import Path
from mcp_server.record.events import EventLog
from mcp_server.supervisor.supervise import supervise

append = EventLog.append

def act(self, kind, text, **facts):
    if kind == "started":
        {line}
    append(self, kind, text, **facts)

EventLog.append = act
sys.exit(supervise(Path(sys.argv[1])))
"""


def _supervise(sandbox: Sandbox, command: str, line: str, **more: Any) -> RunDir:
    """Supervise a command in this process's session, and return the run's directory once the supervisor has ended."""
    path = sandbox.path / "state" / "runs" / "odd-aaaa"
    path.mkdir(parents=True)
    spec = {"layout": 3, "run_id": "odd-aaaa", "created_at": now(), "command": command, "cwd": str(sandbox.path)}
    spec |= more
    (path / "spec.json").write_text(json.dumps(spec))
    os.mkfifo(path / "handover", 0o600)
    launcher = os.open(path / "handover", os.O_RDWR)
    os.write(launcher, Handover({"PATH": os.environ["PATH"]}, {}).encode())
    argv = [sys.executable, "-c", SUPERVISOR.format(line=line), str(path)]
    subprocess.run(argv, check=False, timeout=60, env={**os.environ, **sandbox.environ}, capture_output=True)
    os.close(launcher)
    return RunDir(path)


def test_a_supervisor_killed_before_it_records_the_start_leaves_no_effect(sandbox: Sandbox) -> None:
    """The command ran without a record: launched again with its key, it ran twice."""
    directory = _supervise(sandbox, "touch effect", "os.kill(os.getpid(), signal.SIGKILL)")
    until(lambda: not processes.find_by_variable("RUNWARD_RUN_ID", directory.run_id), "the end of the command")
    until(lambda: not any(p.command.endswith(str(directory.path)) for p in sandbox.own_processes()), "the guard's end")
    assert sandbox.run(directory.run_id).state in ("starting", "lost")
    assert not (sandbox.path / "effect").exists()


SHORTAGE = (
    "import resource, threading; soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); "
    "spare = os.dup(0); os.close(spare); resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard)); "
    "back = threading.Timer(1.0, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))); back.start()"
)


def test_a_supervisor_without_a_free_descriptor_records_start_and_end(sandbox: Sandbox) -> None:
    directory = _supervise(sandbox, "sleep 0.3; exit 6", SHORTAGE)
    run = sandbox.run(directory.run_id)
    assert (run.state, run.exit_code, run.attempt) == ("failed", 6, 1)
    kinds = [event["kind"] for event in run.events]
    assert kinds[0] == "started"
    assert "refused" not in kinds
    assert any("Too many open files" in event["text"] for event in run.events)


LOOK = """
import os, resource, sys
from mcp_server.system import processes

spare = os.dup(0)
os.close(spare)
resource.setrlimit(resource.RLIMIT_NOFILE, (spare, spare))
looks = [lambda: processes.find_process(os.getppid()), lambda: processes.find_by_variable("HOME", "/"),
         lambda: processes.descendants(1)]
for look in looks:
    try:
        print("found", look())
    except OSError as error:
        print(error.strerror)
"""


def test_without_a_free_descriptor_no_process_is_called_gone() -> None:
    """A stop that found nobody said that nobody survived."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Too many open files"] * 3


async def test_a_stop_in_a_shortage_goes_on_when_it_is_over(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not over in time, the answer says what is exhausted, and nothing of survivors."""
    find = processes.list_processes
    left = [3]  # so often nobody can look

    def list_processes() -> list[processes.Process]:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return find()

    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        await until_async(lambda: any(p.command == "sleep 300" for p in sandbox.own_processes()), "the command")
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        await until_async(lambda: sandbox.run(run_id).state == "lost")
        request = partial(
            stop_run, sandbox.run(run_id), sandbox.store, FileWatch(), by="a", reason="", stopped_by="agent"
        )
        monkeypatch.setattr(processes, "list_processes", list_processes)
        monkeypatch.setattr(stop, "_SHORTAGE_S", 0)
        with pytest.raises(StopUnknown, match="Too many open files"):
            await request()
        monkeypatch.setattr(stop, "_SHORTAGE_S", 10)
        result = await request()
        assert left[0] < 0
        assert (result.run.state, result.survivors) == ("killed", ())


# From the start on, until the file `mended` is there, a file system fails what is asked of it: `broken` names how.
FAILING = """
import errno as e, threading
home, mended = str(Path(sys.argv[1])), Path(sys.argv[1]).parents[2] / "mended"
def fail(name):
    real = getattr(os, name)
    def act(what, *rest, **more):
        path = what
        if isinstance(what, int):
            try: path = os.readlink("/proc/self/fd/%d" % what)
            except OSError: path = ""
        if str(path).startswith(home) and not mended.exists():
            raise OSError(e.{code}, os.strerror(e.{code}))
        return real(what, *rest, **more)
    setattr(os, name, act)
for name in {calls}:
    fail(name)
""".strip()


def _break(code: str, *calls: str) -> str:
    lines = FAILING.replace("{code}", code).replace("{calls}", repr(calls))
    return f"exec({lines!r}, globals())"


EVERYTHING = ("fstat", "stat", "open", "read", "pread", "write", "pwrite", "fsync", "ftruncate", "rename", "replace")


@pytest.mark.parametrize("calls", [("fstat",), EVERYTHING])
def test_a_supervisor_outlives_a_file_system_that_fails_for_a_moment(sandbox: Sandbox, calls: tuple[str, ...]) -> None:
    """A handler of errors that met the same error ended it: the run was lost, and its command went on alone."""
    command = f"echo step 1; sleep 0.5; echo step 2; touch {sandbox.path}/mended; sleep 0.5; echo step 3; exit 7"
    directory = _supervise(sandbox, command, _break("EIO", *calls))
    run = sandbox.run(directory.run_id)
    assert (run.state, run.exit_code) == ("failed", 7)
    assert sandbox.log(directory.run_id).rstrip().endswith("step 3")


@pytest.mark.parametrize("code", ["EIO", "EROFS", "ENOSPC"])
def test_an_end_while_the_disk_takes_no_writes_is_recorded_once_it_does(sandbox: Sandbox, code: str) -> None:
    """The run had failed with 7, its pane said so, and its record said `lost`."""
    seen: list[str] = []

    def mend() -> None:
        until((sandbox.path / "ending").exists, "the last command")
        until(lambda: not processes.find_by_variable("RUNWARD_RUN_ID", "odd-aaaa"), "the end of the command")
        seen.append(sandbox.run("odd-aaaa").state)
        (sandbox.path / "mended").touch()

    with ThreadPoolExecutor() as pool:
        mending = pool.submit(mend)
        line = _break(code, "open", "write", "pwrite", "fsync", "ftruncate", "rename", "replace")
        directory = _supervise(sandbox, f"touch {sandbox.path}/ending; exit 7", line)
        mending.result()
    run = sandbox.run(directory.run_id)
    assert (run.state, run.exit_code, run.reason) == ("failed", 7, None)
    assert seen in (["running"], ["starting"])  # as nothing of it was written


@pytest.mark.slow
def test_a_retry_that_meets_a_full_disk_is_made_up_when_there_is_room(sandbox: Sandbox) -> None:
    begun, mended = sandbox.path / "begun", sandbox.path / "mended"
    second = sandbox.path / "state" / "runs" / "odd-aaaa" / "attempts" / "2"

    def mend() -> None:
        until(second.is_dir, "the start of the retry")
        mended.touch()

    line = "if facts['attempt'] == 1: " + _break("ENOSPC", "write", "pwrite")
    recovery = normalize_policy({"any": "retry"})
    with ThreadPoolExecutor() as pool:
        mending = pool.submit(mend)
        directory = _supervise(sandbox, f"test -e {begun} && exit 0; touch {begun}; exit 3", line, recovery=recovery)
        mending.result()
    run = sandbox.run(directory.run_id)
    assert (run.state, run.exit_code, run.attempt) == ("finished", 0, 2)
