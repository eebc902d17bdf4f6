"""External inputs of a run: signals, keystrokes, the end of tmux, stop requests, the time limit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_server.record.events import EventLog
from mcp_server.record.exit_status import CTRL_C, STOPPERS, StopRequest
from mcp_server.record.run_directory import RunDir, has_expired, read_json
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.terminal.pty import Pane, TmuxProbe, open_pane, open_tmux_server

if TYPE_CHECKING:
    from mcp_server.supervisor.guard import SpareGuard
    from mcp_server.supervisor.jobs.slurm_job import SlurmJob


class StoppedBeforeStart(Exception):
    """There is a stop request, so the command must not start any more."""


class GpusUnavailable(Exception):
    """The requested GPUs or cpu slots are not available. The message says why. ``never``: waiting would not help."""

    def __init__(self, text: str, *, never: bool = False) -> None:
        super().__init__(text)
        self.never = never


class ServiceEnded(Exception):
    """A run that this one needs has ended, so the command must not start. The message says which, and how."""


_RETRY_S = 5.0  # until a full disk is tried again
_LONGEST_POLL_S = 3600.0  # poll(2) counts milliseconds in an int
_REPORTED_ERRORS = 5
_ERROR_PAUSE_S = 0.05
_LOOK_S, _DISK_LOOK_S = 5.0, 1.0  # after the end: for a repair, for a disk that takes writes again
# While the disk takes no writes: how long a supervisor keeps what it has to write. A job holds its nodes meanwhile, and
# its scheduler remembers how it ended.
_HELD_S, _JOB_HELD_S = 1800.0, 60.0
# tmux closes the panes a moment before it is gone itself; then it is asked whether it goes on.
_TMUX_DEATH_S, _TMUX_ANSWER_S = 2.0, 30.0
# A request from another process namespace, or another host, comes without a signal. It is looked for a little earlier
# when the supervisor is awake: waking up only for that costs more than the look. Where inotify tells of it, as it does
# of processes of this host, the look is for a watch that was lost, e.g. with a directory that somebody moved.
_STOP_FILE_S, _STOP_FILE_EARLY_S, _STOP_FILE_WATCHED_S = 5.0, 1.5, 120.0
_SERVICES_S = 1.0
_SESSION_CLOSED = StopRequest("killed", "whoever closed it", "the tmux session was closed", "person")
_INTERRUPT = b"\x03"


def poll_until(poll: select.poll, due_s: float) -> list[tuple[int, int]]:
    """Wait for events of ``poll`` until ``due_s``, in monotonic seconds."""
    return poll.poll(round(1000 * min(max(0.0, due_s - time.monotonic()), _LONGEST_POLL_S)) + 1)


class ControlInputs:
    """External inputs of a run, during its attempts and between them.

    ``stop_request`` is the first stop request, or None. ``wakeup_fd`` yields one byte for each signal. ``job_stop``:
    why the scheduler of ``job`` ends it.
    """

    def __init__(
        self,
        rundir: RunDir,
        spec: RunSpec,
        events: EventLog,
        wakeup_fd: int,
        job: SlurmJob | None = None,
        spare_guard: SpareGuard | None = None,
    ) -> None:
        self.rundir, self.spec, self.events, self.job = rundir, spec, events, job
        self._spare_guard = spare_guard
        self.job_stop: StopRequest | None = None
        self.pane = open_pane(0)
        self.stop_request: StopRequest | None = None
        self._wakeup_fd = wakeup_fd
        self._tmux_fd = open_tmux_server()
        # After the pane closed: when a person is taken to have closed it, unless tmux proves dead before.
        self._pane_verdict_s: float | None = None
        self._tmux_probe: TmuxProbe | None = None
        self._deadline_s: float | None = None
        self._stop_file_due_s = time.monotonic() + _STOP_FILE_S
        # Whether somebody calls ``look_for_stop`` once a request is written.
        self.hears_stop_requests: Callable[[], bool] = lambda: False
        self._error_count = 0
        self._find_end_of_service: Callable[[], StopRequest | None] | None = None
        self._services_due_s: float | None = None

    @property
    def helper_pid(self) -> int | None:
        """The pid of a process of the supervisor's own that asks tmux something, or None while there is none."""
        return self._tmux_probe.pid if self._tmux_probe is not None else None

    def take_spare_guard(self) -> SpareGuard | None:
        """Return the guard that waits for the first command, once."""
        spare, self._spare_guard = self._spare_guard, None
        return spare

    def start_time_limit(self, now_s: float) -> None:
        """Start the run's time limit at ``now_s`` (monotonic), unless it has been started before."""
        limit_s = self.spec.time_limit_s
        if limit_s and self._deadline_s is None:
            self._deadline_s = now_s + limit_s

    def watch_services(self, find_end: Callable[[], StopRequest | None]) -> None:
        """Stop the run when ``find_end``, called once a second from now on, returns a request."""
        self._find_end_of_service, self._services_due_s = find_end, time.monotonic()

    def check_services(self) -> None:
        """Look now whether a service of the run has ended."""
        if self._find_end_of_service is not None:
            self._services_due_s = time.monotonic() + _SERVICES_S
            if (request := self._find_end_of_service()) is not None:
                self._find_end_of_service = self._services_due_s = None
                self.request_stop(request)

    def register(self, poll: select.poll) -> None:
        """Register the descriptors of all inputs with ``poll``."""
        poll.register(self._wakeup_fd, select.POLLIN)
        if self.pane and self.pane.is_open:
            output = select.POLLOUT if self.pane.has_backlog else 0
            poll.register(self.pane.fd, select.POLLIN | output)
        if self._pane_verdict_s is not None and self._tmux_fd is not None:
            poll.register(self._tmux_fd, select.POLLIN)
        if self._tmux_probe is not None:
            poll.register(self._tmux_probe.fd, select.POLLIN)

    def earliest_due_s(self, *due_s: float | None) -> float:
        """Return the earliest of all deadlines and those of the caller, in monotonic seconds."""
        due = [t for t in (self._deadline_s, self._pane_verdict_s, self._services_due_s, *due_s) if t is not None]
        due.append(self._stop_file_due_s)
        if self.events.behind:
            due.append(time.monotonic() + _RETRY_S)
        return min(due)

    def handle(self, fd: int) -> set[int]:
        """Handle the input on ``fd`` and return the numbers of the signals that it brought."""
        if fd == self._wakeup_fd:
            return self._read_signals()
        if fd == self._tmux_fd and self._pane_verdict_s is not None:
            self._lose_screen("tmux died")
        elif self._tmux_probe is not None and fd == self._tmux_probe.fd:
            self._read_tmux_answer(self._tmux_probe)
        return set()

    def handle_pending(self) -> None:
        """Handle everything that has arrived by now: signals, keys, the end of the pane, deadlines."""
        self._read_signals()
        if self.pane and self.pane.is_open:
            self._read_keys(self.pane)
        self.check_deadlines()

    def _read_signals(self) -> set[int]:
        numbers: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            numbers = set(os.read(self._wakeup_fd, 4096))
        if not self._read_stop_file() and signal.SIGTERM in numbers and not self.learn_job_stop():
            self.request_stop(StopRequest("killed", "SIGTERM to the supervisor", "the supervisor was terminated"))
        if signal.SIGHUP in numbers:
            self.on_pane_closed()
        return numbers

    def _read_stop_file(self) -> bool:
        """Take the stop request in ``stop.json`` and return whether there is one that has not expired."""
        is_told = self.spec.backend == RunSpec.backend and self.hears_stop_requests()
        self._stop_file_due_s = time.monotonic() + (_STOP_FILE_WATCHED_S if is_told else _STOP_FILE_S)
        request = read_json(self.rundir.stop)
        if request is None or request.get("carried_out") or has_expired(request):
            return False
        by, stopped_by = str(request.get("by", "")), request.get("stopped_by")
        stopper = str(stopped_by) if stopped_by in STOPPERS else ""
        self.request_stop(StopRequest("killed", by, str(request.get("reason", "")), stopper))
        return True

    def look_for_stop(self) -> None:
        """Have the supervisor look for a stop request now. May be called by any thread."""
        os.kill(os.getpid(), signal.SIGCHLD)

    def learn_job_stop(self) -> bool:
        """Ask the scheduler whether it ends the job, and return whether it does. A cancelled job is a stop request."""
        if self.job is None:
            return False
        if self.job_stop is None and (request := self.job.explain_stop()) is not None:
            self.job_stop = request
            if request.state == "killed":
                self.request_stop(request)
        return self.job_stop is not None

    def request_stop(self, request: StopRequest) -> None:
        """Record a stop request, unless there is an earlier one."""
        if self.stop_request is None:
            self.stop_request = request

    def on_pane_closed(self) -> None:
        """Close the pane, and find out why it closed: a person closed the session only if tmux certainly still runs."""
        if self.pane and self.pane.is_open:
            self.pane.close()
            self._pane_verdict_s = time.monotonic() + _TMUX_DEATH_S

    def check_deadlines(self) -> None:
        """Act on deadlines that have passed, and write events that wait for the disk."""
        now_s = time.monotonic()
        if self.events.behind:
            self.events.flush()
        if self._pane_verdict_s is not None and now_s >= self._pane_verdict_s:
            self._judge_closed_pane(now_s)
        if now_s >= self._stop_file_due_s - _STOP_FILE_EARLY_S:
            self._read_stop_file()
        if self._services_due_s is not None and now_s >= self._services_due_s:
            self.check_services()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            text = f"{self.spec.time_limit_s:g} s have passed"
            self.request_stop(StopRequest("timed_out", "time limit", text, "time_limit"))

    def _judge_closed_pane(self, now_s: float) -> None:
        if self._tmux_fd is None:  # this process was not started by tmux
            self._end_verdict()
            self.request_stop(_SESSION_CLOSED)
        elif self._tmux_probe is not None:
            self._lose_screen("tmux does not answer")
        else:
            try:
                self._tmux_probe = TmuxProbe()
                self._pane_verdict_s = now_s + _TMUX_ANSWER_S
            except OSError:
                self._lose_screen("tmux is gone")

    def _read_tmux_answer(self, probe: TmuxProbe) -> None:
        cause = probe.read()
        if cause:
            self._lose_screen(cause)
        elif cause is not None:
            self._end_verdict()
            self.request_stop(_SESSION_CLOSED)

    def _lose_screen(self, cause: str) -> None:
        self._end_verdict()
        self.events.append("screen_lost", f"{cause}; the run goes on without a screen.")

    def _end_verdict(self) -> None:
        self._pane_verdict_s = None
        if self._tmux_probe is not None:
            self._tmux_probe.close()
            self._tmux_probe = None

    def report_error(self, error: Exception) -> None:
        """Report an internal error of the supervisor as an event, five times at most. Never raises."""
        self._error_count += 1
        if self._error_count <= _REPORTED_ERRORS:
            with contextlib.suppress(Exception):  # the run outlives what cannot be reported either
                self.events.append("observer_error", f"The supervisor met {error!r}; the run goes on.")
        time.sleep(_ERROR_PAUSE_S)

    def show(self, text: str) -> None:
        """Show a line of the supervisor's own in the pane."""
        if self.pane:
            self.pane.write(f"\x1b[0m\r\n[runward] {text}\r\n".encode(errors="replace"))

    def wait(self, wait_s: float) -> bool:
        """Wait ``wait_s`` between two attempts and return False at once when there is a stop request.

        If the pane has closed, wait until it is known why: no attempt may start in a session that a person closed.
        """
        until_s = time.monotonic() + wait_s
        self.handle_pending()
        while not self._is_stopped and (time.monotonic() < until_s or self._pane_verdict_s is not None):
            poll = select.poll()
            self.register(poll)
            due_s = until_s if self._pane_verdict_s is None else self._pane_verdict_s
            for fd, _ in poll_until(poll, self.earliest_due_s(due_s)):
                self.handle(fd)
                if self.pane and fd == self.pane.fd:
                    self._read_keys(self.pane)
            self.check_deadlines()
        return not self._is_stopped

    @property
    def _is_stopped(self) -> bool:
        return self.stop_request is not None or self.job_stop is not None

    def wait_after_end(self, wait_s: float, is_over: Callable[[], bool], look_s: float = _LOOK_S) -> None:
        """Wait ``wait_s`` after the run's end, or until ``is_over``, SIGTERM, Ctrl-C or the end of the pane.

        ``is_over`` is asked every ``look_s``. No event may follow an end, so nothing is recorded.
        """
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0 and not is_over():
            poll = select.poll()
            poll.register(self._wakeup_fd, select.POLLIN)
            if self.pane and self.pane.is_open:
                poll.register(self.pane.fd, select.POLLIN)
            for fd, _ in poll.poll(round(1000 * min(left_s, look_s)) + 1):
                if fd == self._wakeup_fd:
                    is_ended = bool({signal.SIGTERM, signal.SIGHUP}.intersection(os.read(fd, 4096)))
                else:
                    keys = self.pane.read_keys() if self.pane else None
                    is_ended = keys is None or _INTERRUPT in keys
                if is_ended:
                    return

    @property
    def held_s(self) -> float:
        """How long what this supervisor has to write may wait for a disk that takes no writes."""
        return _JOB_HELD_S if self.job else _HELD_S

    def await_record(self) -> bool:
        """Wait, as ``wait_after_end`` does, while events wait for the disk: without them the end is unknown for ever.

        The caller still holds the run's lock: readers see a living supervisor. Return whether there was a wait.
        """
        if not self.events.behind:
            return False
        until = f"for {self.held_s / 60:.0f} min at most; Ctrl-C gives it up"
        self.show(f"{self.rundir.path} takes no writes: the end is recorded once it does, {until}.")
        self.wait_after_end(self.held_s, self._is_recorded, _DISK_LOOK_S)
        return True

    def _is_recorded(self) -> bool:
        self.events.flush()
        return not self.events.behind or self.events.is_removed

    def _read_keys(self, pane: Pane) -> None:
        pane.write()
        keys = pane.read_keys()
        if keys is None:
            self.on_pane_closed()
        elif _INTERRUPT in keys:
            self.request_stop(CTRL_C)
