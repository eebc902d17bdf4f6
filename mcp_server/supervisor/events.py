"""What a supervisor writes and all others read: events, and the records of an attempt. Anything may stand in a file."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from mcp_server.supervisor.rundir import Facts, now, read_json, read_regular


class EventLog:
    """Appends events. A full disk delays them and never raises: judging must not stop a healthy run."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting: list[bytes] = []
        self._seq = 0

    @property
    def behind(self) -> bool:
        """Whether events wait for the disk to take them."""
        return bool(self._waiting)

    def append(self, kind: str, text: str, **facts: Any) -> None:
        """Add one event; ``facts`` that are None are left out."""
        self._seq += 1
        event = {"seq": self._seq, "at": now(), "kind": kind, "text": text}
        event |= {name: value for name, value in facts.items() if value is not None}
        self._waiting.append(json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what waits; a line that did not fit whole is taken back."""
        while self._waiting:
            before = os.fstat(self._fd).st_size
            line = self._waiting[0]
            with contextlib.suppress(OSError):
                if os.write(self._fd, line) == len(line):
                    del self._waiting[0]
                    continue
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
            return


def read_events(path: Path, after: int = 0) -> list[Facts]:
    """Return the events with ``seq`` above ``after``, oldest first; a torn last line is left for later."""
    try:
        lines = read_regular(path).split(b"\n")[:-1]
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_event(event) and event["seq"] > after:
            events.append(_typed(event))
    return events


def read_exit(path: Path) -> Facts | None:
    """Return an exit record, or None when there is none."""
    record = read_json(path)
    return None if record is None else _typed(record)


def read_progress(path: Path) -> Facts | None:
    """Return how far an attempt is, or None when nothing is told."""
    record = read_json(path)
    return None if record is None else _typed(record)


# What readers rely on; anything can stand in a file.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "exit_code": int,
    "signal": str,
    "state": str,
    "attempt": int,
    "at_start": dict,
    "leftovers": list,
    "survivors": list,
    "signals_sent": list,
    "failure": dict,
    "step": int,
    "total_steps": int,
    "step_s": (int, float),
    "eta_s": (int, float),
    "metrics": dict,
}
_TIMES = ("at", "started_at", "ended_at")


def _typed(facts: Facts) -> Facts:
    """Leave out what is not of the type that it should be."""
    return {
        name: value
        for name, value in facts.items()
        if isinstance(value, _TYPES.get(name, object)) and (name not in _TIMES or is_time(value))
    }


def _is_event(value: object) -> TypeGuard[Facts]:
    return isinstance(value, dict) and isinstance(value.get("seq"), int) and isinstance(value.get("kind"), str)


def is_time(text: object) -> bool:
    """Tell whether ``text`` is a time as ``now`` writes it, or any other in ISO 8601 with its zone."""
    try:
        return isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
