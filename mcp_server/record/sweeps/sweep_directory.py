"""The files of a sweep's directory: one writer each, everything else only reads.

``spec.json`` is the launcher's, ``stop.json`` in ``requests/`` is the requester's of a stop, and ``events.jsonl``,
``conductor.lock`` and ``sweep_log.md`` are the conductor's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.run_directory import now, path_below
from mcp_server.system.files import open_private, read_regular_file


@dataclass(frozen=True)
class SweepDir:
    """Names every file of one sweep."""

    path: Path

    spec = path_below("spec.json")  # the plan: every cell with the arguments of its launch; secrets by name only
    events = path_below("events.jsonl")  # append-only facts, one JSON object a line, numbered by ``seq`` from 1
    lock = path_below("conductor.lock")  # held with ``flock`` as long as the conductor lives
    log = path_below("sweep_log.md")  # for people: the plan, and what became of every cell; appears atomically
    results = path_below("results.tsv")  # for programs: one row a cell, with tabs between; appears atomically
    requests = path_below("requests")  # directory of requests to the conductor, which watches it
    stop = path_below("requests/stop.json")  # who asked for a stop, and why
    notes = path_below("requests/notes.jsonl")  # about cells, one JSON object a line; agents and people append

    @property
    def sweep_id(self) -> str:
        """The directory's name is the sweep's id."""
        return self.path.name


LONGEST_NOTE = 300
_MOST_BYTES = 2**20


def read_notes(directory: SweepDir) -> dict[str, str]:
    """Return the newest note about each cell, none where the file cannot be read."""
    try:
        data = read_regular_file(directory.notes, max_bytes=_MOST_BYTES)
    except OSError:
        return {}
    notes: dict[str, str] = {}
    for line in data.splitlines():
        try:
            facts = json.loads(line)
            notes[str(facts["cell"])] = " ".join(str(facts["note"]).split())[:LONGEST_NOTE]
        except (ValueError, TypeError, KeyError, RecursionError):  # noqa: PERF203 - the other lines count
            continue
    return notes


def append_note(directory: SweepDir, cell: str, note: str, by: str) -> None:
    """Add a note about a cell."""
    line = json.dumps({"cell": cell, "note": note[:LONGEST_NOTE], "by": by, "at": now()}, ensure_ascii=False)
    fd = open_private(str(directory.notes), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode(errors="replace") + b"\n")
    finally:
        os.close(fd)
