"""Supervisors on this host: alive by their lock, identified by number and start time."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.base import backend_of, load_backend
from mcp_server.backends.local import LocalBackend, tmux_socket
from mcp_server.errors import BadArgument, RunElsewhere
from mcp_server.record import run_processes
from mcp_server.record.run_directory import RunDir, boot_id
from mcp_server.record.run_processes import Reaping, ThisHost, supervisor_of
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import STARTING_S, Liveness, Run
from mcp_server.system import processes
from mcp_server.system.lock_files import take_lock
from tests.support.sandbox import until

RUN = Run(RunSpec(run_id="cfm-7kqz"), "running")


def test_the_tmux_server_is_the_users_own_unless_another_is_named() -> None:
    assert tmux_socket({}) == tmux_socket({"RUNWARD_TMUX_SOCKET": ""}) == "default"
    assert tmux_socket({"RUNWARD_TMUX_SOCKET": "test"}) == "test"


def test_a_path_does_not_name_a_tmux_server() -> None:
    with pytest.raises(BadArgument, match="RUNWARD_TMUX_SOCKET"):
        tmux_socket({"RUNWARD_TMUX_SOCKET": "/tmp/socket"})


@pytest.mark.parametrize("at_start", [{}, {"supervisor_pid": None}, {"supervisor_pid": "1"}, {"supervisor_pid": 2**22}])
def test_without_the_number_of_a_living_process_there_is_no_supervisor(at_start: dict[str, Any]) -> None:
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), replace(RUN, at_start=at_start)) is None


def test_a_process_that_reused_the_number_is_not_the_supervisor() -> None:
    run = replace(RUN, at_start={"supervisor_pid": os.getpid()})
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), run) is None


# --- liveness


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    (tmp_path / "cfm-7kqz").mkdir()
    return RunDir(tmp_path / "cfm-7kqz")


def spec(age_s: float = 0) -> RunSpec:
    created_at = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat()
    return replace(RUN.spec, created_at=created_at, host=socket.gethostname(), boot_id=boot_id())


ELSEWHERE: dict[str, Any] = {"host": "node7", "boot_id": "another"}
REBOOTED: dict[str, Any] = {"boot_id": "another"}


@pytest.mark.parametrize(
    ("age_s", "facts", "has_events", "liveness"),
    [
        (0, {}, False, Liveness.PENDING),
        (0, {}, True, Liveness.DEAD),
        (STARTING_S + 1, {}, False, Liveness.DEAD),
        (-3, {}, False, Liveness.PENDING),
        (-7200, {}, False, Liveness.DEAD),
        (0, REBOOTED, False, Liveness.DEAD),
        (900, REBOOTED, True, Liveness.DEAD),
        (0, ELSEWHERE, False, Liveness.UNKNOWN),
        (900, ELSEWHERE, True, Liveness.UNKNOWN),
        (900, {"host": "", "boot_id": ""}, True, Liveness.DEAD),
    ],
)
def test_without_the_lock_age_events_boot_and_host_decide(
    directory: RunDir, age_s: float, facts: dict[str, Any], has_events: bool, liveness: Liveness
) -> None:
    if has_events:
        directory.events.touch()
    assert LocalBackend().liveness(directory, replace(spec(age_s), **facts)).liveness is liveness


@pytest.mark.parametrize("facts", [{}, REBOOTED, ELSEWHERE])
def test_a_supervisor_that_holds_its_lock_is_alive(directory: RunDir, facts: dict[str, Any]) -> None:
    lock = take_lock(directory.lock)
    assert lock is not None
    assert LocalBackend().liveness(directory, replace(spec(900), **facts)).liveness is Liveness.ALIVE
    os.close(lock)


def test_a_reboot_and_another_host_are_named_as_reasons(directory: RunDir) -> None:
    backend = LocalBackend()
    assert backend.liveness(directory, replace(spec(), boot_id="x")).reason == "The machine was rebooted while it ran."
    assert backend.liveness(directory, replace(spec(), **ELSEWHERE)).reason == (
        "Supervised on node7: only that host can say whether it still lives."
    )


def test_a_run_of_another_host_is_not_stopped_here() -> None:
    LocalBackend().check_stoppable(spec())
    LocalBackend().check_stoppable(replace(spec(), **REBOOTED))
    with pytest.raises(RunElsewhere, match="supervised on 'node7'; nothing was signalled"):
        LocalBackend().check_stoppable(replace(spec(), **ELSEWHERE))


def test_a_spec_gets_its_session_and_the_tmux_server() -> None:
    completed = LocalBackend().complete_spec(RUN.spec, {"RUNWARD_TMUX_SOCKET": "test"})
    assert (completed.session, completed.tmux_socket) == ("cfm-7kqz", "test")


def test_a_spec_that_names_no_backend_is_local() -> None:
    assert isinstance(backend_of(RUN.spec), LocalBackend)
    assert backend_of(RUN.spec) is load_backend("tmux")


# --- left-overs of a lost run


@pytest.fixture
def session() -> Iterator[tuple[int, int]]:
    """The number of a session without its leader, and the pid of its only process, which has a clean environment."""
    with subprocess.Popen(
        ["setsid", "--fork", "bash", "-c", "env -i sleep 60 & echo $$ $!"], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        leader, member = map(int, starter.stdout.readline().split())
    until(lambda: processes.find_process(leader) is None)
    yield leader, member
    with contextlib.suppress(ProcessLookupError):
        os.kill(member, signal.SIGKILL)


def lost_run(leader: int, *, heard_s: float, **at_start: int) -> Run:
    """Return a run whose command started a minute before its last event."""
    begun, heard = at(heard_s - 60), at(heard_s)
    events: tuple[Any, ...] = ({"seq": 1, "kind": "started", "at": begun}, {"seq": 2, "kind": "stalled", "at": heard})
    begun_up_s = processes.up_s() + heard_s - 60 - time.time()
    at_start = {"guard_pid": leader, "pid_started": round(begun_up_s * os.sysconf("SC_CLK_TCK")), **at_start}
    return replace(RUN, state="lost", abandoned=True, started_at=begun, at_start=at_start, events=events)


def test_a_session_that_is_older_than_the_last_event_is_the_runs(session: tuple[int, int]) -> None:
    leader, member = session
    run = lost_run(leader, heard_s=time.time() + 1)
    assert [p.pid for p in LocalBackend().find_leftovers(run)] == [member]


def test_a_session_that_began_after_the_last_event_is_a_strangers(session: tuple[int, int]) -> None:
    """Its number was the guard's once, and was used again."""
    assert LocalBackend().find_leftovers(lost_run(session[0], heard_s=time.time() - 3600)) == []


def test_a_session_that_is_older_than_the_guards_last_word_is_the_runs(session: tuple[int, int]) -> None:
    leader, member = session
    run = lost_run(leader, heard_s=time.time() - 3600)
    for guard_s, expected in ((-1800, []), (1, [member])):
        heard = replace(run, guard_ended_at=at(time.time() + guard_s))
        assert [p.pid for p in LocalBackend().find_leftovers(heard)] == expected


@pytest.mark.slow
def test_the_last_word_of_a_guard_that_ended_after_the_run_was_read_is_heard(
    session: tuple[int, int], directory: RunDir
) -> None:
    leader, member = session
    run = lost_run(leader, heard_s=time.time() - 3600)
    directory.guard_exit(run.attempt).parent.mkdir(parents=True, exist_ok=True)
    directory.guard_exit(run.attempt).write_text(json.dumps({"exit_code": 0, "ended_at": at(time.time() + 1)}))
    reaping = Reaping(ThisHost(), directory.path, run)
    result = until(reaping.step)
    assert processes.find_process(member) is None
    assert result.survivors == ()


def test_a_killed_supervisor_is_gone_once_its_lock_is(directory: RunDir) -> None:
    """Its first thread may have ended while others still hold it."""
    supervisor = subprocess.Popen(["sleep", "60"], start_new_session=True)
    process = processes.find_process(supervisor.pid)
    assert process is not None
    run = replace(RUN, at_start={"supervisor_pid": process.pid, "supervisor_started": process.started})
    lock = take_lock(directory.lock)
    assert lock is not None
    try:
        reaping = Reaping(ThisHost(), directory.path, run)
        until(lambda: reaping.step() is None and processes.find_process(process.pid) is None)
        assert reaping.step() is None
    finally:
        os.close(lock)
        supervisor.wait()
    result = until(reaping.step)
    assert (result.signals_sent, result.survivors) == (("SIGKILL",), ())


def test_a_leader_with_another_start_than_the_guard_is_a_stranger() -> None:
    stranger = subprocess.Popen(["bash", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        until(lambda: [processes.program_name(p) for p in processes.descendants(stranger.pid)] == ["sleep"])
        leader = processes.find_process(stranger.pid)
        assert leader is not None
        backend, heard_s = LocalBackend(), time.time() + 1
        assert backend.find_leftovers(lost_run(stranger.pid, heard_s=heard_s, guard_started=leader.started - 1)) == []
        own = backend.find_leftovers(lost_run(stranger.pid, heard_s=heard_s, guard_started=leader.started))
        assert [p.program for p in own] == ["sleep"]
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait()


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 7200.0])
def test_a_clock_that_was_set_gives_a_lost_run_no_stranger(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """Older than its last event a process can be of the run, younger it is another session of the same number."""
    ticks = os.sysconf("SC_CLK_TCK")
    begun_s, up_s = time.time(), processes.up_s()
    events = [
        {"seq": 1, "kind": "started", "at": at(begun_s - 100)},
        {"seq": 2, "kind": "first_step", "at": at(begun_s - 90)},
    ]
    run = replace(RUN, events=tuple(events), at_start={})  # type: ignore[arg-type]
    monkeypatch.setattr(time, "time", lambda: begun_s + jump_s)
    heard_s = run_processes._last_event_up_s(run, round((up_s - 100) * ticks))
    assert heard_s <= up_s - 89
    if jump_s <= 0:  # after a jump ahead it takes fewer for its own
        assert heard_s == pytest.approx(up_s - 90, abs=1)


def at(posix_s: float) -> str:
    return datetime.fromtimestamp(posix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_nothing_is_started_where_proc_shows_the_processes_of_another_namespace() -> None:
    """A stop would find strangers by the numbers of the run's processes, and its own never."""
    code = "from mcp_server.backends.local import LocalBackend; LocalBackend().check_usable()"
    own = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*own, "--mount-proc", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces")
    whole, foreign = (
        subprocess.run([*words, sys.executable, "-c", code], capture_output=True, text=True, check=False)
        for words in ([*own, "--mount-proc"], own)
    )
    assert whole.returncode == 0, whole.stderr
    assert "/proc is of another process namespace" in foreign.stderr
