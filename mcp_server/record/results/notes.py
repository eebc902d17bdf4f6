"""Notes of people and agents, in the order in which they were written: on a run or sweep, and on cells of a sweep.

The events of a run have one writer, and nobody writes once it has ended: who reads them folds its notes in.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.run_directory import now
from mcp_server.system.files import append_whole, open_private, read_end

NOTES = "notes.jsonl"  # in the directory of a run or sweep
VERDICTS = ("keep", "discard", "inconclusive")
NOTED = "noted"  # in the state directory: the ids of runs of which something was noted, a line each
MOST_CHARS, _MOST_BYTES = 4_000, 1 << 20


def read_notes(path: Path) -> list[dict[str, str]]:
    """Return the notes of a file, oldest first; none where it cannot be read."""
    notes: list[dict[str, str]] = []
    with contextlib.suppress(OSError):
        for line in read_end(path, _MOST_BYTES).splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                note = json.loads(line)
                if isinstance(note, dict):
                    notes.append({name: value for name, value in note.items() if isinstance(value, str)})
    return notes


def append_note(path: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    """Append a note with the time of now, and return it. BadArgument: there is no room for more. OSError."""
    kept = {"at": now(), **note}
    data = json.dumps(kept, ensure_ascii=False).encode(errors="replace") + b"\n"
    with open(path, "ab", buffering=0, opener=open_private) as file:
        if os.fstat(file.fileno()).st_size + len(data) > _MOST_BYTES:
            raise BadArgument("text", "there are too many notes.", "Nothing was noted.")
        append_whole(file.fileno(), data)
    return kept


def mark_noted(home: Path, run_id: str) -> None:
    """Tell the memories of all servers that a run has other notes than they know."""
    with contextlib.suppress(OSError), open(home / NOTED, "ab", buffering=0, opener=open_private) as file:
        append_whole(file.fileno(), f"{run_id}\n".encode())


def tell_note(note: Mapping[str, Any]) -> str:
    """Return a note in one line, with who wrote it: ``keep: best so far (ada, on the page)``."""
    said = ": ".join(str(part) for part in (note.get("verdict"), note.get("text")) if part)
    return f"{' '.join(said.split())} ({note.get('by') or 'unknown'})"


def fold_notes(events: Sequence[Mapping[str, Any]], notes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return events with the notes among them. A note has the number of the event before it, 0 before the first."""
    told = [
        {
            "seq": next((event["seq"] for event in reversed(events) if event.get("at", "") <= str(note.get("at"))), 0),
            "at": str(note.get("at")),
            "kind": "note",
            "text": tell_note(note),
        }
        for note in notes
    ]
    return sorted([*events, *told], key=lambda event: (event["seq"], event["kind"] == "note"))
