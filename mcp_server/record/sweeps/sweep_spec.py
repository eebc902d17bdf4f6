"""A sweep as it was asked for: what ``spec.json`` of its directory holds, and the other files there, one writer each.

``spec.json`` is the launcher's, ``stop.json`` in ``requests/`` is the requester's of a stop, and ``events.jsonl``,
``conductor.lock`` and ``sweep_log.md`` are the conductor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mcp_server.record.results.notes import read_notes
from mcp_server.record.run_directory import path_below

BEST = "best"  # as ``promote`` of a phase: the best cell so far


HALVING_FACTOR, HALVING_LEAST = 2, 4  # where a sweep's halving does not say them


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. ``params`` distinguish it from the others. ``launch`` holds the arguments of ``launch_run``.

    ``promote`` and ``trial``: its parameters are found when it begins. They are those of the best cell, or the point
    with this number, from 0, of the phase's search. Cells with the same ``variant`` differ in nothing but parameters.
    ``overrides``: arguments of the launch in which cells of the phase differ, by name, a variable as ``$NAME``, as they
    were asked for. ``fixed``: those that its phase sets, which win over those of a promoted cell.
    """

    name: str
    phase: str
    params: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    promote: str | None = None
    trial: int | None = None
    notes: tuple[str, ...] = ()
    variant: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()

    @property
    def wants_array(self) -> bool:
        """Whether it may be handed in to Slurm together with others."""
        options = self.launch.get("backend_options")
        return self.launch.get("backend") == "slurm" and isinstance(options, Mapping) and options.get("array") is True


@dataclass(frozen=True)
class SweepSpec:
    """A sweep with nothing left open. Every field has a default, so that specs of other versions stay readable.

    ``max_failures``: so many failed cells stop it, None for no limit. ``cell_failures``: so many failed runs fail a
    cell.
    """

    sweep_id: str = ""
    name: str = ""
    owner: str = ""
    created_at: str = ""
    cells: tuple[Cell, ...] = ()
    max_parallel: int | None = None
    max_failures: int | None = None
    cell_failures: int = 1
    metric: str | None = None
    ranking: str = "best"  # which value of the metric counts; sweeps of versions that had no choice took the best
    goal: str = "max"
    searches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by phase
    halving: Mapping[str, Any] | None = None
    # Of an open sweep, whose cells beyond the baseline its events add: see sweeps/trials/open_plan.
    open: Mapping[str, Any] | None = None
    hosts: tuple[str, ...] = ()  # each cell runs on the first of them that has its GPUs free
    # What its commands may run that ends processes of others, where cells come that nobody has seen; None: anything.
    approved: tuple[str, ...] | None = None
    tmux_socket: str = "default"
    layout: int = 1

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """The names of the phases, in order."""
        return tuple(dict.fromkeys(cell.phase for cell in self.cells))

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The place of each cell in ``cells``, by its name."""
        return {cell.name: position for position, cell in enumerate(self.cells)}

    @property
    def depends_on_metric(self) -> bool:
        """Whether it chooses, stops or promotes cells by its metric."""
        is_searched = any(facts.get("strategy") == "tpe" for facts in self.searches.values())
        return is_searched or self.halving is not None or any(cell.promote == BEST for cell in self.cells)

    @property
    def ranked_by(self) -> str | None:
        """The metric and which of its values ranks, e.g. ``loss (last)``; None without a metric."""
        return None if self.metric is None else f"{self.metric} ({self.ranking})"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


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
    trees = path_below("trees")  # work trees of the live cells of an open sweep
    trials = path_below("trials")  # tN.diff: the change that a trial makes

    @property
    def sweep_id(self) -> str:
        """The directory's name is the sweep's id."""
        return self.path.name


LONGEST_NOTE = 300


def read_cell_notes(directory: SweepDir) -> dict[str, str]:
    """Return the newest note about each cell, none where the file cannot be read."""
    notes = read_notes(directory.notes)
    return {
        str(one["cell"]): " ".join(str(one["note"]).split())[:LONGEST_NOTE]
        for one in notes
        if {"cell", "note"} <= one.keys()
    }
