"""The processes of a run on this host, and whether its supervisor lives, as its record proves. Below the backends.

The servers of this host and the relay of a far one use the same rules: what a record says of processes is true only on
the host, and in the boot, that the run is of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from mcp_server.record.events import RecordEvent, read_events, read_new_events, read_record, read_stop
from mcp_server.record.run_directory import RunDir, boot_id, load_json
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import STARTING_S, Evidence, Liveness, LivenessReport, Run, attempt_of, fold, posix
from mcp_server.system import processes
from mcp_server.system.lock_files import is_locked, may_be_locked
from mcp_server.system.own_process import SUPERVISOR, supervised_run
from mcp_server.system.processes import StopSequence, stop_stages

REAP_STEP_S = 0.05
_KILLED_WITHIN_S = 3.0


@dataclass(frozen=True)
class RunProcess:
    """A process of a run, by number and program. Its arguments are left out: they may hold secrets."""

    pid: int
    program: str


@dataclass(frozen=True)
class ReapResult:
    """Result of stopping a run without its supervisor's help.

    ``unsupervised``: the supervisor was already dead, so a daemon that cleaned its environment cannot be found.
    ``note``: what a scheduler keeps of the run, in one sentence. ``far_side_ended``: it says that its job is over.
    """

    signals_sent: tuple[str, ...]
    survivors: tuple[RunProcess, ...]
    unsupervised: bool
    note: str = ""
    far_side_ended: bool = False


class ThisHost:
    """The host that this process is on, in its present boot."""

    def __init__(self) -> None:
        self.boot_id, self.name = boot_id(), socket.gethostname()

    def is_this_boot(self, spec: RunSpec) -> bool:
        """Return whether the run was started in the present boot of this host."""
        return spec.boot_id in ("", self.boot_id)

    def supervises(self, spec: RunSpec) -> bool:
        """Return whether the run belongs to this host, in this boot or an earlier one."""
        return self.is_this_boot(spec) or spec.host in ("", self.name)

    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return ``alive`` while the supervisor holds its lock, or lives though the lock was removed.

        A reused process number cannot deceive it. Without both: ``unknown`` for a run of another host, ``pending`` in
        the first 15 s of a launch, else ``dead``.
        """
        if is_locked(directory.lock) or (_has_lost_its_lock(directory) and self.is_this_boot(spec)):
            return LivenessReport(Liveness.ALIVE)
        if not self.supervises(spec):
            reason = f"Supervised on {spec.host}: only that host can say whether it still lives."
            return LivenessReport(Liveness.UNKNOWN, reason)
        if not self.is_this_boot(spec):
            return LivenessReport(Liveness.DEAD, "The machine was rebooted while it ran.")
        # A clock that was set back leaves a launch in the future: it is not under way for as long.
        if abs(time.time() - posix(spec.created_at)) < STARTING_S and not directory.events.exists():
            return LivenessReport(Liveness.PENDING)
        return LivenessReport(Liveness.DEAD)

    def find_leftovers(self, run: Run) -> list[processes.Process]:
        """Return the processes of a run whose supervisor died, found by its id in their environment or by session."""
        return self._find_left_behind(run) if run.abandoned else []

    def _find_left_behind(self, run: Run) -> list[processes.Process]:
        if run.started_at is None or not self.is_this_boot(run.spec):
            return []
        marked = processes.find_by_variable("RUNWARD_RUN_ID", run.run_id)
        return list(dict.fromkeys(marked + _members_of_session(run, marked)))

    def find_living(
        self, run: Run, supervisor: processes.Process | None, known: Iterable[processes.Process] = ()
    ) -> list[processes.Process]:
        """Return the run's processes: its supervisor's descendants, else all that carry its id, never this process.

        ``known``: processes that were found to be the run's. Once its guard has ended, nothing else may prove that.
        """
        if supervisor is not None:
            members = processes.descendants(supervisor.pid)
        else:
            # Its supervisor has died, perhaps since the run was read.
            members = processes.find_by_variable("RUNWARD_RUN_ID", run.run_id) + self._find_left_behind(run)
        for process in known:
            if processes.find_process(process.pid) == process:
                members += [process, *processes.descendants(process.pid)]
        own = set(processes.ancestors(os.getpid()))
        return [p for p in dict.fromkeys(members) if p.pid not in own]


class Reaping:
    """Stops every process of a run stage by stage, then kills a supervisor that is stuck.

    Call ``step`` every ``REAP_STEP_S`` until it returns the result.
    """

    def __init__(self, host: ThisHost, path: Path, run: Run) -> None:
        self._host, self._path, self._run = host, path, run
        self._unsupervised = supervisor_of(path, run) is None
        self._stopping = StopSequence(stop_stages(run.spec.stop_grace_s))
        self._killed: processes.Process | None = None
        self._kill_until_s = 0.0
        self._sent: list[str] | None = None
        self._living: list[processes.Process] = []

    def step(self) -> ReapResult | None:
        """Send what is due and return the result once nothing is left to do."""
        if self._sent is None:
            supervisor = supervisor_of(self._path, self._run)
            self._living = self._find_living(supervisor)
            if not self._stopping.step(self._living, time.monotonic()):
                return None
            self._sent = self._stopping.sent
            if supervisor is not None and processes.send_signal(supervisor, signal.SIGKILL):
                self._sent = [*self._sent, *([] if "SIGKILL" in self._sent else ["SIGKILL"])]
                # A process that waits for a disk outlives SIGKILL.
                self._killed, self._kill_until_s = supervisor, time.monotonic() + _KILLED_WITHIN_S
        left = [self._killed] if self._killed and processes.find_process(self._killed.pid) == self._killed else []
        # A process whose first thread has ended looks like a zombie, while others still hold its lock.
        is_dying = left or (self._killed and may_be_locked(RunDir(self._path).lock))
        if is_dying and time.monotonic() < self._kill_until_s:
            return None
        survivors = name_processes([*left, *self._find_living(None)])
        return ReapResult(tuple(self._sent), tuple(survivors), self._unsupervised)

    def _find_living(self, supervisor: processes.Process | None) -> list[processes.Process]:
        """Return the run's processes. A guard that has ended since the run was read has said when: it is asked now.

        Without its word nothing proves that the session, which has lost its leader, is the run's.
        """
        living = self._host.find_living(self._run, supervisor, self._living)
        if supervisor is None and self._run.guard_ended_at is None:
            record = read_record(RunDir(self._path).guard_exit(self._run.attempt)) or {}
            if "ended_at" in record:
                self._run = replace(self._run, guard_ended_at=record["ended_at"])
                living = self._host.find_living(self._run, None, living)
        return living


def supervisor_of(path: Path, run: Run) -> processes.Process | None:
    """Return the run's supervisor: the process with the recorded number and start time, or None when it is gone."""
    pid, started = run.at_start.get("supervisor_pid"), run.at_start.get("supervisor_started")
    process = processes.find_process(pid) if isinstance(pid, int) else None
    if process is None:
        return None
    if started is None and supervised_run(processes.command_words(process.pid)) != path.name:
        return None
    return process if started in (None, process.started) else None


def find_unrecorded(runs: Path) -> Iterator[tuple[str, processes.Process]]:
    """Yield each run that lives although its record below ``runs`` was removed, with its supervisor."""
    for process in processes.list_processes():
        run_id = supervised_run(processes.command_words(process.pid))
        with contextlib.suppress(OSError):  # another user's, or another's words
            if not run_id or (runs / run_id / "spec.json").is_file():
                continue
            if supervised_run(processes.command_words(process.parent)) == run_id:  # its guard, which was just forked
                continue
            files = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
            if any(file.startswith(f"{runs.resolve()}/{run_id}/") for file in files):
                yield run_id, process


def describe_unrecorded(run_id: str, supervisor: processes.Process, runs: Path) -> Run:
    """Return a run of which only its processes are left, as they prove it."""
    began = datetime.fromtimestamp(processes.started_at_s(supervisor), timezone.utc).isoformat()
    began = began.replace("+00:00", "Z")
    at_start = {"supervisor_pid": supervisor.pid, "supervisor_started": supervisor.started}
    start: RecordEvent = {"seq": 1, "at": began, "kind": "started", "at_start": at_start}
    words = [p.command for p in processes.descendants(supervisor.pid) if p.session != supervisor.session]
    command = next((text for text in words if not text.startswith(SUPERVISOR)), "")
    facts = {"run_id": run_id, "name": run_id, "command": command, "run_dir": str(runs / run_id), "created_at": began}
    spec = RunSpec.from_facts(facts)
    return fold(Evidence(spec, (start,), None, None, None, LivenessReport(Liveness.ALIVE), 0.0))


def _has_lost_its_lock(directory: RunDir) -> bool:
    """Return whether the run's lock was removed, as a cleaner of ``*.lock`` does, under a supervisor that lives."""
    if directory.lock.exists():
        return False
    starts = [event["at_start"] for event in read_events(directory.events) if "at_start" in event]
    last = starts[-1] if starts else {}
    pid, started = last.get("supervisor_pid"), last.get("supervisor_started")
    process = processes.find_process(pid) if isinstance(pid, int) else None
    return process is not None and process.started == started


def name_processes(members: Iterable[processes.Process]) -> list[RunProcess]:
    """Return processes by number and program."""
    return [RunProcess(p.pid, processes.program_name(p)) for p in members]


def _members_of_session(run: Run, marked: Collection[processes.Process]) -> list[processes.Process]:
    """Return the processes of the run's session, without its guard, which exits by itself in a moment.

    The number of a session is used again once its last process has ended. The session is the run's if its guard lives,
    if a process with the run's id is in it, or if a process of it is older than what supervisor or guard said last.
    """
    guard, started = run.at_start.get("guard_pid"), run.at_start.get("pid_started")
    if not isinstance(guard, int) or not isinstance(started, int):
        return []
    all_processes = processes.list_processes()
    leader = next((p for p in all_processes if p.pid == guard), None)
    if leader is not None and not _is_guard(leader, run):
        return []
    members = [p for p in all_processes if p.session == guard != p.pid and p.started >= started]
    heard_s = _last_event_up_s(run, started)
    is_own = (
        leader is not None
        or any(p.session == guard for p in marked)
        or any(processes.started_up_s(p.started) <= heard_s for p in members)
    )
    return members if is_own else []


def _last_event_up_s(run: Run, started: int) -> float:
    """Return how long this machine was up at the run's last event or its guard's end; the least, if the clock was set.

    ``started`` is the start of the newest command, which its event reports.
    """
    times = [event["at"] for event in run.events if "at" in event]
    heard_s = max(map(posix, [*times, *([run.guard_ended_at] if run.guard_ended_at else [])]), default=0.0)
    begun_s = max((posix(e["at"]) for e in run.events if e["kind"] == "started" and "at" in e), default=heard_s)
    by_start = processes.started_up_s(started) + heard_s - begun_s
    return min(by_start, heard_s - time.time() + processes.up_s())


def _is_guard(leader: processes.Process, run: Run) -> bool:
    """Return whether a process with the guard's number is the guard: it is older than the command."""
    guard_started = run.at_start.get("guard_started")
    if isinstance(guard_started, int):
        return leader.started == guard_started
    return bool(leader.started <= run.at_start["pid_started"])


def read_run(directory: RunDir, host: ThisHost, supervisor: LivenessReport | None = None) -> Run:
    """Return a run as it is now. ``supervisor``: that of a run whose supervisor is on another host."""
    spec = read_spec(directory)
    if supervisor is None:
        supervisor = host.liveness(directory, spec)
    return fold(read_evidence(directory, spec, read_new_events(directory.events).events, supervisor))


def read_spec(directory: RunDir) -> RunSpec:
    """Return the spec of a run. One without a readable spec is a run all the same."""
    return RunSpec.from_facts({**(load_json(directory.spec) or {}), "run_id": directory.run_id})


def read_evidence(
    directory: RunDir, spec: RunSpec, events: tuple[RecordEvent, ...], supervisor: LivenessReport
) -> Evidence:
    """Return the record of a run of which the rest is known."""
    attempt = attempt_of(events)
    return Evidence(
        spec,
        events,
        read_record(directory.exit(attempt)),
        read_record(directory.progress(attempt)),
        read_stop(directory.stop),
        supervisor,
        time.time() - posix(spec.created_at) if spec.created_at else 0.0,
        read_record(directory.guard_exit(attempt)),
    )
