"""Successive halving: which live cells are stopped because others were better at the same step. Pure.

A rung is a step. At each rung a cell stays while it is in the better half (of ``factor`` parts, in the best one) of all
cells that have reached the rung, ended ones among them. Cells do not wait for each other: one that was good among the
first is stopped later, if enough better ones follow before it reaches the next rung. The answer follows from the
reports alone, so any process comes to the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.errors import BadArgument

LANGUAGE = 'It is e.g. {"steps": [1000, 3000], "factor": 2, "least": 4}.'
_KEYS = frozenset({"steps", "factor", "least"})
_FACTOR, _LEAST = 2, 4


@dataclass(frozen=True)
class Halving:
    """``steps`` are the rungs, rising. Of ``factor`` parts the best one stays, once ``least`` cells reached a rung."""

    steps: tuple[int, ...]
    factor: int = _FACTOR
    least: int = _LEAST


@dataclass(frozen=True)
class Stop:
    """A live cell to stop: at ``step`` it had ``value``, and ``better`` of ``reached`` cells had a better one."""

    cell: str
    step: int
    value: float
    better: int
    reached: int

    @property
    def text(self) -> str:
        """Why it is stopped, as a sentence."""
        return f"At step {self.step:,} it had {self.value:g}, and {self.better} of {self.reached} cells were better."


def parse_halving(facts: Mapping[str, Any]) -> Halving:
    """Return what JSON describes: ``steps``, ``factor`` (default 2), ``least`` (default 4).

    Raises:
        BadArgument: it is not a halving.
    """
    steps = facts.get("steps")
    if set(facts) - _KEYS or not isinstance(steps, list | tuple) or not steps:
        raise BadArgument("halving", f"must have steps, and may have {', '.join(sorted(_KEYS - {'steps'}))}.", LANGUAGE)
    factor, least = facts.get("factor", _FACTOR), facts.get("least", _LEAST)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (*steps, factor, least)):
        raise BadArgument("halving", "has a value that is not an integer.", LANGUAGE)
    if list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise BadArgument("halving", "steps must rise, from 1 on.")
    if factor < _FACTOR or least < _FACTOR:
        raise BadArgument("halving", "factor and least must be 2 or more.")
    return Halving(tuple(steps), factor, least)


def find_stops(
    reports: Mapping[str, Sequence[tuple[int, float]]], halving: Halving, goal: str, live: Collection[str]
) -> list[Stop]:
    """Return the cells of ``live`` to stop now, in the order of ``reports``.

    ``reports`` holds steps and values of the metric for each cell that began, in any order. A cell has reached a rung
    with a report from there on; its value is that of its last report up to the rung, else of the first one after. A
    value that is not a number is worse than all others. Equal values are not better. Only the highest rung counts that
    a cell has reached; a cell without reports is not judged.
    """
    values = {step: _find_values(reports, step) for step in halving.steps}
    stops = []
    for cell in reports:
        reached = [step for step in halving.steps if cell in values[step]]
        if cell not in live or not reached:
            continue
        step = reached[-1]
        own, all_values = values[step][cell], values[step].values()
        better = sum(_is_better(each, own, goal) for each in all_values)
        if len(all_values) >= halving.least and better >= math.ceil(len(all_values) / halving.factor):
            stops.append(Stop(cell, step, own, better, len(all_values)))
    return stops


def _find_values(reports: Mapping[str, Sequence[tuple[int, float]]], rung: int) -> dict[str, float]:
    """Return the value at a rung of each cell that has reached it."""
    values = {}
    for cell, points in reports.items():
        before = [point for point in points if point[0] <= rung]
        after = [point for point in points if point[0] >= rung]
        if after:
            chosen = max(before, key=_step) if before else min(after, key=_step)
            values[cell] = chosen[1]
    return values


def _step(point: tuple[int, float]) -> int:
    return point[0]


def _is_better(one: float, other: float, goal: str) -> bool:
    if not math.isfinite(one) or not math.isfinite(other):
        return math.isfinite(one)
    return one > other if goal == "max" else one < other
