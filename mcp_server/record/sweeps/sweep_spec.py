"""A sweep as it was asked for: what ``spec.json`` of its directory holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from mcp_server.record.codec import decode

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
    hosts: tuple[str, ...] = ()  # each cell runs on the first of them that has its GPUs free
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
    def ranked_by(self) -> str | None:
        """The metric and which of its values ranks, e.g. ``loss (last)``; None without a metric."""
        return None if self.metric is None else f"{self.metric} ({self.ranking})"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> SweepSpec:
        """Return the spec that ``facts`` hold.

        Raises:
            ValueError: they hold none.
        """
        return decode(cls, facts, strict=True)
