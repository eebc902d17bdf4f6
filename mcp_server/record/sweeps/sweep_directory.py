"""The files of a sweep's directory: one writer each, everything else only reads.

``spec.json`` is the launcher's, ``stop.json`` in ``requests/`` is the requester's of a stop, and ``events.jsonl``,
``conductor.lock`` and ``sweep_log.md`` are the conductor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.run_directory import path_below


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
