"""Successive halving: which live cells are stopped because others were better at the same step. Pure.

A rung is a step. At each rung a cell stays while it is in the better half, rounded down (of ``factor`` parts, in the
best one), of all cells that have reached the rung, ended ones among them: as Optuna's ``SuccessiveHalvingPruner`` lets
the last of them go on. Seeds of one setting are judged together, by their mean. Cells do not wait for each other: one
that was good among the first is stopped later, if enough better ones follow before it reaches the next rung. All of it
follows from the record of the sweep, so any process comes to the same answer.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.sweeps.sweep_spec import HALVING_FACTOR, HALVING_LEAST

LANGUAGE = 'It is e.g. {"steps": [1000, 3000], "factor": 2, "least": 4}.'
_KEYS = frozenset({"steps", "factor", "least"})


@dataclass(frozen=True)
class Halving:
    """``steps`` are the rungs, rising. The best of ``factor`` parts stays, once ``least`` or all cells reached one."""

    steps: tuple[int, ...]
    factor: int = HALVING_FACTOR
    least: int = HALVING_LEAST


@dataclass(frozen=True)
class Reached:
    """The rungs that a cell has reached, with its values there, and when it did, by the numbers of the sweep's events.

    ``setting``: cells that differ in their seed alone have the same one.
    """

    setting: str
    rungs: Mapping[int, float | None]
    order: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """A live cell to stop: at ``step`` it had ``value``, and ``better`` of ``reached`` had a better one.

    ``seeds``: the value is a mean of so many cells.
    """

    cell: str
    step: int
    value: float | None
    better: int
    reached: int
    seeds: int = 1

    @property
    def text(self) -> str:
        """Why it is stopped, in a clause."""
        had = "no number" if self.value is None else f"{self.value:.6g}"
        mean = f", the mean of {self.seeds} seeds" if self.seeds > 1 else ""
        return f"halved at rung {self.step:,}: {had}{mean}, {_ordinal(self.better + 1)} of {self.reached}"


def parse_halving(facts: Mapping[str, Any]) -> Halving:
    """Return what JSON describes: ``steps``, ``factor`` (default 2), ``least`` (default 4); else raise BadArgument."""
    steps = facts.get("steps")
    if set(facts) - _KEYS or not isinstance(steps, list | tuple) or not steps:
        raise BadArgument("halving", f"must have steps, and may have {', '.join(sorted(_KEYS - {'steps'}))}.", LANGUAGE)
    factor, least = facts.get("factor", HALVING_FACTOR), facts.get("least", HALVING_LEAST)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (*steps, factor, least)):
        raise BadArgument("halving", "has a value that is not an integer.", LANGUAGE)
    if list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise BadArgument("halving", "steps must rise, from 1 on.")
    if factor < HALVING_FACTOR or least < HALVING_FACTOR:
        raise BadArgument("halving", "factor and least must be 2 or more.")
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
            _, value = (max if before else min)(before or after, key=lambda point: point[0])
            values[rung] = value if math.isfinite(value) else None
    return values


def find_stops(
    reached: Mapping[str, Reached], halving: Halving, goal: str, live: Collection[str], *, more: bool = True
) -> list[Stop]:
    """Return the cells of ``live`` to stop now, in the order of ``reached``; a value of None is worse than all others.

    Each rung that a setting has passed is judged, from the lowest on: the highest by all that have reached it, a lower
    one by those that had come there before this one reached the next; whom it halves no higher one counts. It waits for
    the rule's ``least``, or until all that can come have: each live cell is there, and no other begins (``more``).
    Seeds of a setting are judged by their mean, once all that began have reached the rung, and go or stay together.
    """
    settings: dict[str, dict[str, Reached]] = {}
    for cell, one in reached.items():
        settings.setdefault(one.setting, {})[cell] = one
    merged = {setting: _merge(list(cells.values())) for setting, cells in settings.items()}
    came = [reached[cell].rungs.keys() if cell in reached else set[int]() for cell in live]
    full = () if more else [step for step in halving.steps if all(step in rungs for rungs in came)]
    halved: dict[str, Stop] = {}
    for step in halving.steps:
        there = {setting: one for setting, one in merged.items() if step in one.rungs and setting not in halved}
        found = (_judge(setting, step, there, halving, goal, is_full=step in full) for setting in there)
        halved |= {stop.cell: stop for stop in list(found) if stop is not None}
    stops = {cell: (halved[one.setting], one.setting) for cell, one in reached.items() if one.setting in halved}
    return [
        replace(stop, cell=cell, seeds=len(settings[setting]))
        for cell, (stop, setting) in stops.items()
        if cell in live
    ]


def _judge(
    setting: str, step: int, there: Mapping[str, Reached], halving: Halving, goal: str, *, is_full: bool
) -> Stop | None:
    """Return the stop of a setting by those ``there`` at a rung whom no rung below has halved; None: it goes on."""
    own = there[setting]
    until = min((order for rung, order in own.order.items() if rung > step), default=math.inf)
    others = [each.rungs[step] for name, each in there.items() if name != setting and each.order.get(step, 0) < until]
    if len(others) + 1 < halving.least and not is_full:
        return None
    value, *ahead = (_as_rank(each, goal) for each in (own.rungs[step], *others))
    better = sum(each < value for each in ahead)
    is_worse = better >= max(1, (len(others) + 1) // halving.factor)
    return Stop(setting, step, own.rungs[step], better, len(others) + 1) if is_worse else None


def _merge(cells: Sequence[Reached]) -> Reached:
    """Return the seeds of a setting as one: the means at the rungs that all have reached, and when the last one did."""
    begun = [cell for cell in cells if cell.rungs] if len(cells) > 1 else cells
    shared = [step for step in begun[0].rungs if all(step in cell.rungs for cell in begun)] if begun else []
    rungs: dict[int, float | None] = {}
    for step in shared:
        values = [value for cell in begun if (value := cell.rungs[step]) is not None]
        rungs[step] = statistics.fmean(values) if len(values) == len(begun) else None
    order = {step: max(cell.order.get(step, 0) for cell in begun) for step in shared}
    return Reached(cells[0].setting, rungs, order)


def _ordinal(number: int) -> str:
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _as_rank(value: float | None, goal: str) -> float:
    """Return a value so that the lowest is the best: one that is not a number is the worst."""
    return math.inf if value is None else -value if goal == "max" else value
