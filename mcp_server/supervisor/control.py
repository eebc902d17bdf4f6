"""What reaches a supervisor from outside: signals, a person's keys, tmux's death, requests to stop, the time limit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any

from mcp_server.record.events import EventLog
from mcp_server.record.exit_status import CTRL_C, StopRequest
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.supervisor import terminal

_RETRY_S = 5.0  # until a full disk is tried again
_LONGEST_NAP_S = 3600.0  # poll(2) counts milliseconds in an int
_TOLD_TROUBLES = 5
_TROUBLED_S = 0.05
# tmux closes the panes a moment before it is gone itself.
_TMUX_DEATH_S = 2.0
_INTERRUPT = b"\x03"


class Desk:
    """Hears for the whole run, during its attempts and between them; ``asked`` is the stop that was asked for."""

    def __init__(self, rundir: RunDir, spec: dict[str, Any], events: EventLog, woken: int) -> None:
        self.rundir, self.spec, self.events = rundir, spec, events
        self.pane = terminal.pane_of(0)
        self.asked: StopRequest | None = None
        self._woken = woken
        self._tmux = terminal.tmux_server()
        # The pane was closed: by a person, unless tmux turns out to have died by then.
        self._hangup_until_s: float | None = None
        self._deadline_s: float | None = None
        self._troubles = 0

    def start_clock(self, now_s: float) -> None:
        """Let the run's time limit count from its first attempt's start, in monotonic seconds."""
        limit_s = self.spec.get("time_limit_s")
        if limit_s and self._deadline_s is None:
            self._deadline_s = now_s + limit_s

    def register(self, poll: select.poll) -> None:
        """Let ``poll`` wake for what reaches this desk."""
        poll.register(self._woken, select.POLLIN)
        if self.pane and self.pane.open:
            wants = select.POLLOUT if self.pane.wants_to_write else 0
            poll.register(self.pane.fd, select.POLLIN | wants)
        if self._hangup_until_s is not None and self._tmux is not None:
            poll.register(self._tmux, select.POLLIN)

    def nap_ms(self, *due_s: float | None) -> int | None:
        """Return how long a poll may sleep, given the caller's own deadlines too; None: until something happens."""
        due = [t for t in (self._deadline_s, self._hangup_until_s, *due_s) if t is not None]
        if self.events.behind:
            due.append(time.monotonic() + _RETRY_S)
        if not due:
            return None
        return round(1000 * min(max(0.0, min(due) - time.monotonic()), _LONGEST_NAP_S)) + 1

    def hear(self, fd: int) -> set[int]:
        """Deal with a descriptor that is this desk's own; return the signals that arrived by it."""
        if fd == self._woken:
            return self._signals()
        if fd == self._tmux and self._hangup_until_s is not None:
            self._hangup_until_s = None
            self.events.append("screen_lost", "tmux died; the run goes on without a screen.")
        return set()

    def catch_up(self) -> None:
        """Take note of what has arrived by now: signals, keys, and the pane's end."""
        self._signals()
        if self.pane and self.pane.open:
            self._read_keys(self.pane)
        self.keep_time()

    def _signals(self) -> set[int]:
        numbers: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            numbers = set(os.read(self._woken, 4096))
        if (request := read_json(self.rundir.stop)) is not None:
            self.ask(StopRequest("killed", str(request.get("by", "")), str(request.get("reason", ""))))
        elif signal.SIGTERM in numbers:
            self.ask(StopRequest("killed", "SIGTERM to the supervisor", "somebody terminated the supervisor"))
        if signal.SIGHUP in numbers:
            self.on_hangup()
        return numbers

    def ask(self, asked: StopRequest) -> None:
        """Note a wish to stop the run; the first is recorded."""
        if self.asked is None:
            self.asked = asked

    def on_hangup(self) -> None:
        """Take note that the pane is gone, and give tmux a moment to turn out dead."""
        if self.pane and self.pane.open:
            self.pane.close()
            self._hangup_until_s = time.monotonic() + _TMUX_DEATH_S

    def keep_time(self) -> None:
        """Do what is due by the clock."""
        now_s = time.monotonic()
        if self.events.behind:
            self.events.flush()
        if self._hangup_until_s is not None and now_s >= self._hangup_until_s:
            self._hangup_until_s = None
            self.ask(StopRequest("killed", "a person", "the tmux session was closed"))
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            self.ask(StopRequest("timed_out", "time limit", f"{self.spec['time_limit_s']:g} s have passed"))

    def trouble(self, error: Exception) -> None:
        """Tell of an error of the supervisor's own, a few times, and go on."""
        self._troubles += 1
        if self._troubles <= _TOLD_TROUBLES:
            self.events.append("observer_error", f"The supervisor met {error!r}; the run goes on.")
        time.sleep(_TROUBLED_S)

    def say(self, text: str) -> None:
        """Show a line of the supervisor's own in the pane."""
        if self.pane:
            self.pane.write(f"\x1b[0m\r\n[runward] {text}\r\n".encode(errors="replace"))

    def wait(self, wait_s: float) -> bool:
        """Let ``wait_s`` pass between two attempts; False as soon as somebody asks for a stop.

        A pane that has gone is looked into first: the next attempt must not start in a session that was closed.
        """
        until_s = time.monotonic() + wait_s
        self.catch_up()
        while self.asked is None and (time.monotonic() < until_s or self._hangup_until_s is not None):
            poll = select.poll()
            self.register(poll)
            due_s = until_s if self._hangup_until_s is None else self._hangup_until_s
            for fd, _ in poll.poll(self.nap_ms(due_s)):
                self.hear(fd)
                if self.pane and fd == self.pane.fd:
                    self._read_keys(self.pane)
            self.keep_time()
        return self.asked is None

    def _read_keys(self, pane: terminal.Pane) -> None:
        pane.write()
        keys = pane.read()
        if keys is None:
            self.on_hangup()
        elif _INTERRUPT in keys:
            self.ask(CTRL_C)
