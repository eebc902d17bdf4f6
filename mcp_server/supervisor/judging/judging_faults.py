"""Errors of judging: one skips what it cannot read, several in a row make judging rest, and an event says so."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_server.record.events import EventKind, EventLog

_FAULTS, _FAULTS_WITHIN_S, _REST_S = 3, 60.0, 60.0  # so many errors within this time, and judging rests
_REPORT_EVERY_S = 600.0  # of an event of one kind
_BLIND = "A stall, an error or a first step may go unseen, and recovery does not act on them; the run goes on."


class JudgingFaults:
    """Counts the errors of judging one attempt, and says when judging rests."""

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
