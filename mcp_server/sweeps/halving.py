"""Successive halving: which live cells are stopped because others were better at the same step. Optuna decides. Pure.

A rung is a step. At each rung a cell stays while Optuna's ``SuccessiveHalvingPruner`` would let it go on as the last of
all cells that have reached the rung, ended ones among them: while it is in the better half, rounded down (of ``factor``
parts, in the best one). Cells do not wait for each other: one that was good among the first is stopped later, if enough
better ones follow before it reaches the next rung. The study is made anew from the record of the sweep, so any process
comes to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.sweeps.optuna_extra import check_optuna, make_study

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
    value: float | None
    better: int
    reached: int

    @property
    def text(self) -> str:
        """Why it is stopped, as a sentence."""
        had = "no number" if self.value is None else f"{self.value:g}"
        return f"At step {self.step:,} it had {had}, and {self.better} of {self.reached} cells were better."


def parse_halving(facts: Mapping[str, Any]) -> Halving:
    """Return what JSON describes: ``steps``, ``factor`` (default 2), ``least`` (default 4).

    Raises:
        BadArgument: it is not a halving, or this Python does not have Optuna.
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
    check_optuna("halving", "Without it, leave halving out.")
    return Halving(tuple(steps), factor, least)


def find_reached(points: Sequence[tuple[int, float]], steps: Iterable[int]) -> dict[int, float | None]:
    """Return the rungs that a cell has reached with these reports, steps and values in any order.

    It has reached a rung with a report from there on. Its value is that of its last report up to the rung, else of the
    first one after; None where that is not a number.
    """
    values: dict[int, float | None] = {}
    for rung in steps:
        before = [point for point in points if point[0] <= rung]
        after = [point for point in points if point[0] >= rung]
        if after:
            _, value = max(before, key=_step) if before else min(after, key=_step)
            values[rung] = value if math.isfinite(value) else None
    return values


def find_stops(
    reached: Mapping[str, Mapping[int, float | None]], halving: Halving, goal: str, live: Collection[str]
) -> list[Stop]:
    """Return the cells of ``live`` to stop now, in the order of ``reached``.

    ``reached`` holds for each cell the rungs that it has reached, with its value there; None is worse than all others.
    Only the highest rung counts that a cell has reached.
    """
    stops = []
    for cell, rungs in reached.items():
        if cell not in live or not rungs:
            continue
        step = max(rungs)
        others = [each[step] for name, each in reached.items() if name != cell and step in each]
        if len(others) + 1 >= halving.least and _is_pruned(rungs[step], others, step, halving.factor, goal):
            own = _as_number(rungs[step], goal)
            better = sum(number > own if goal == "max" else number < own for number in _as_numbers(others, goal))
            stops.append(Stop(cell, step, rungs[step], better, len(others) + 1))
    return stops


def _is_pruned(own: float | None, others: Sequence[float | None], step: int, factor: int, goal: str) -> bool:
    from optuna.pruners import SuccessiveHalvingPruner  # noqa: PLC0415 - an extra, which takes a second

    study = make_study(goal, pruner=SuccessiveHalvingPruner(min_resource=step, reduction_factor=factor))
    pruned = False
    for number in _as_numbers([*others, own], goal):
        trial = study.ask()
        trial.report(number, step)
        pruned = trial.should_prune()
    return pruned


def _as_numbers(values: Iterable[float | None], goal: str) -> list[float]:
    return [_as_number(value, goal) for value in values]


def _as_number(value: float | None, goal: str) -> float:
    """Return a value as Optuna compares it. It would not count those that are not numbers among the worse half."""
    return value if value is not None else -math.inf if goal == "max" else math.inf


def _step(point: tuple[int, float]) -> int:
    return point[0]
