"""``progress.json`` of an attempt: when it is written, and that it is written only when it says something new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import now
from mcp_server.system.files import write_atomic

_WRITE_S, _SLOWER_S = 6.0, 1.0  # between two writes; so much longer each time until then
_EARLY = 0.8  # of that time, after which output that arrives is read and written at once: one wake-up less


class ProgressFile:
    """Decides when progress is due, and writes it.

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
