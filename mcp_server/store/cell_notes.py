"""Notes about the cells of a sweep, such as keep or discard: agents and people append them, a line each."""

from __future__ import annotations

import json
import os

from mcp_server.record.run_directory import now
from mcp_server.record.sweeps.sweep_directory import SweepDir
from mcp_server.system.files import open_private, read_regular_file

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
        except (ValueError, TypeError, KeyError, RecursionError):
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
