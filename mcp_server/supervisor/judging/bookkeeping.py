"""The books that an observer keeps: when progress is written, the processor time used, and the errors of judging."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.events import EventKind, EventLog
from mcp_server.record.run_directory import now
from mcp_server.system import processes
from mcp_server.system.files import write_atomic

_WRITE_S, _SLOWER_S = 6.0, 1.0  # between two writes; so much longer each time until then
_EARLY = 0.8  # of that time, after which output that arrives is read and written at once: one wake-up less


class ProgressFile:
    """``progress.json`` of an attempt: decides when it is due, and writes it when it says something new.

    ``due_s``: when it is to be written, in monotonic seconds, or None while no output has come since the last time.
    """

    def __init__(self, path: Path) -> None:
        self.due_s: float | None = None
        self._path = path
        self._written_s, self._writes = 0.0, 0
        self._facts: Mapping[str, Any] = {}

    def plan(self, now_s: float) -> None:
        """Plan a write for output that came at ``now_s``."""
        pause_s = min(_WRITE_S, _SLOWER_S * self._writes)
        if now_s >= self._written_s + _EARLY * pause_s:
            self.due_s = now_s
        elif self.due_s is None:
            self.due_s = self._written_s + pause_s

    def begin(self, now_s: float) -> None:
        """Note that progress is written now: the next time is planned from here."""
        self._written_s, self.due_s, self._writes = now_s, None, self._writes + 1

    def forget(self) -> None:
        """Write the next facts even if they are the last ones: their time is news."""
        self._facts = {}

    def write(self, facts: Mapping[str, Any]) -> None:
        """Write ``facts`` unless the file has them. A full disk is tried again with the next facts."""
        if not facts or facts == self._facts:
            return
        self._facts = facts
        try:
            write_atomic(self._path, json.dumps({"at": now(), **facts}).encode(), durable=False)
        except OSError:
            self._facts = {}


_MEASURE_S = 30.0  # between two measurements while there is progress
# An idle command uses less of one core, beside what its guard and the keeper of its code took at the start.
_IDLE, _START_S = 0.05, 0.1


class CpuUse:
    """Measures the processor time of the supervisor's descendants: what tells a stall from computing in silence."""

    def __init__(self) -> None:
        self._at_s, self._used_s = time.monotonic(), 0.0
        self._silent_mark: tuple[float, float] | None = None  # the same, once since the last progress

    def measure(self) -> None:
        """Count from here."""
        self._at_s, self._used_s = time.monotonic(), processes.cpu_s(os.getpid())

    def measure_sometimes(self, now_s: float) -> None:
        """Count from here, if the last measurement is half a minute old."""
        if now_s - self._at_s >= _MEASURE_S:
            self.measure()

    def measure_silence(self, now_s: float) -> None:
        """Note that there has been no progress for a while: a stall reports what was used from here."""
        self._silent_mark = (now_s, processes.cpu_s(os.getpid()))

    def has_measured_silence(self, since_s: float) -> bool:
        """Return whether ``measure_silence`` was called since ``since_s``."""
        return self._silent_mark is not None and self._silent_mark[0] >= since_s

    @property
    def is_idle(self) -> bool:
        """Whether less than 5 % of a core was used since the last measurement, and 0.1 s."""
        used_s = max(0.0, processes.cpu_s(os.getpid()) - self._used_s)
        return used_s < _START_S + _IDLE * (time.monotonic() - self._at_s)

    def since_silence(self) -> tuple[float, float]:
        """Return since when the silence has been measured, monotonic, and the seconds used since then."""
        since_s, before_s = self._silent_mark or (self._at_s, self._used_s)
        return since_s, max(0.0, processes.cpu_s(os.getpid()) - before_s)


_FAULTS, _FAULTS_WITHIN_S, _REST_S = 3, 60.0, 60.0  # so many errors within this time, and judging rests
_REPORT_EVERY_S = 600.0  # of an event of one kind
_BLIND = "A stall, an error or a first step may go unseen, and recovery does not act on them; the run goes on."


class JudgingFaults:
    """Counts the errors of judging an attempt: one skips what it cannot read, after several in a row judging rests."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._at_s: list[float] = []
        self._reported_s: dict[EventKind, float] = {}
        self.rests_until_s = 0.0

    @property
    def rests(self) -> bool:
        """Whether judging rests now."""
        return time.monotonic() < self.rests_until_s

    def note(self, error: Exception, *, is_loaded: bool) -> bool:
        """Note an error; return whether judging begins to rest. ``is_loaded``: the output patterns are there."""
        now_s = time.monotonic()
        self._at_s = [at_s for at_s in self._at_s if now_s - at_s < _FAULTS_WITHIN_S] + [now_s]
        if not is_loaded:
            self._report("judging_lost", f"Output is not judged: {error!r}. {_BLIND}")
            return False
        if len(self._at_s) < _FAULTS:
            self._report("observer_error", f"Some output is skipped unjudged: {error!r}; the run goes on.")
            return False
        self.rests_until_s, self._at_s = now_s + _REST_S, []
        self._report("judging_lost", f"Output is not judged for {_REST_S:.0f} s: {error!r}. {_BLIND}")
        return True

    def _report(self, kind: EventKind, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s.get(kind, -math.inf) >= _REPORT_EVERY_S:
            self._reported_s[kind] = now_s
            self._events.append(kind, text)
