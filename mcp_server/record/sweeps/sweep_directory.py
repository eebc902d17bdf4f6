"""The files of a sweep's directory: one writer each, everything else only reads.

``spec.json`` is the launcher's, ``stop.json`` in ``requests/`` is the requester's of a stop, and ``events.jsonl``,
``conductor.lock`` and ``sweep_log.md`` are the conductor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SweepDir:
    """Names every file of one sweep."""

    path: Path

    @property
    def sweep_id(self) -> str:
        """The directory's name is the sweep's id."""
        return self.path.name

    @property
    def spec(self) -> Path:
        """The plan: every cell with the arguments of its launch. Secrets by name only."""
        return self.path / "spec.json"

    @property
    def events(self) -> Path:
        """Append-only facts, one JSON object a line, numbered by ``seq`` from 1."""
        return self.path / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Held with ``flock`` as long as the conductor lives."""
        return self.path / "conductor.lock"

    @property
    def log(self) -> Path:
        """For people: the plan, and what became of every cell. Appears atomically."""
        return self.path / "sweep_log.md"

    @property
    def results(self) -> Path:
        """For programs: one row a cell, with tabs between. Appears atomically."""
        return self.path / "results.tsv"

    @property
    def requests(self) -> Path:
        """Directory of requests to the conductor, which watches it."""
        return self.path / "requests"

    @property
    def stop(self) -> Path:
        """A request to stop the sweep: who asked, and why."""
        return self.requests / "stop.json"

    @property
    def notes(self) -> Path:
        """Notes about cells, one JSON object a line. Agents and people append."""
        return self.requests / "notes.jsonl"
