"""How long a sweep still takes, by how long like cells took and how far the live ones are. Pure.

A live cell has what its own steps say is left. A waiting one takes what ended cells of its phase and launch took, or
live ones are about to take, in proportion to a parameter that sets the length (``max_steps``, ``epochs``). Where many
have ended, their rate counts, which has the time between two cells in it. Where one cell's length is unknown (the first
of a phase, a hang without a limit), so is the sweep's: a promotion and a hang are not cells of usual length.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.record.state import Run, posix
from mcp_server.record.sweep_state import LIVE, WAITING, CellState, Sweep

_LENGTH = re.compile(
    r"(?:^|[._])(?:(?:max|num|total|n|train|training|env|learning)_?)*(?:steps?|iters?|iterations?|epochs?|timesteps?|updates?)$",
    re.IGNORECASE,
)
_OVERDUE = 1.5  # times the usual length, without a step that says more: it may hang
_ENDS_A_SLOT = 2  # ended cells for each slot, from which on their rate is better than their lengths


def estimate_rest_s(sweep: Sweep, live: Mapping[str, Run], now_s: float) -> float | None:
    """Return how many seconds the rest takes, or None where that is not known. ``live``: the live runs, by cell."""
    if sweep.ended or any(run.unreachable for run in live.values()):
        return None
    running = {name: run for name, run in live.items() if run.state not in ("queued", "starting")}
    if not running:
        return None
    cells = {cell.cell.name: cell for cell in sweep.cells}
    known = _Lengths(sweep, [(cells[name], run) for name, run in running.items()], now_s)
    left = [known.left_s(cells[name], run) for name, run in running.items()]
    waiting = [
        cell for cell in sweep.cells if cell.state == WAITING or (cell.state == LIVE and cell.cell.name not in running)
    ]
    lengths = [known.length_s(cell) for cell in waiting]
    if None in left or None in lengths:
        return None
    slots = len(running) if waiting else max(len(running), 1)
    by_phase: dict[str, list[float]] = {}
    for cell, length_s in zip(waiting, lengths, strict=True):
        by_phase.setdefault(cell.cell.phase, []).append(length_s or 0.0)
    phase = next(iter(cells[name].cell.phase for name in running))
    return _schedule_s([each or 0.0 for each in left], by_phase.pop(phase, []), by_phase.values(), slots)


def _schedule_s(
    left_s: Sequence[float], waiting_s: Sequence[float], later_s: Iterable[Sequence[float]], slots: int
) -> float:
    """Return when the last of all cells ends: each takes the slot that is free first; a phase waits for the last."""
    free_s = list(left_s)
    heapq.heapify(free_s)
    for length_s in waiting_s:
        heapq.heappush(free_s, heapq.heappop(free_s) + length_s)
    end_s = max(free_s)
    for phase in later_s:
        end_s += _schedule_s([0.0] * slots, phase, (), slots)
    return end_s


@dataclass(frozen=True)
class _Sample:
    """A cell whose length is known, or about to be."""

    cell: CellState
    length_s: float


class _Lengths:
    """How long cells take, from those that have ended and those that run."""

    def __init__(self, sweep: Sweep, running: Sequence[tuple[CellState, Run]], now_s: float) -> None:
        self._now_s, self._running = now_s, running
        took = [(cell, cell.end.get("elapsed_s")) for cell in sweep.cells if cell.state in ("finished", "timed_out")]
        self._ended = [_Sample(cell, float(s)) for cell, s in took if isinstance(s, int | float)]
        self._begun_s = _first_starts_s(sweep)
        self._sweep = sweep
        self._names = sorted(filter(_LENGTH.search, {name for cell in sweep.cells for name in cell.params}))
        self._known: dict[tuple[object, ...], float | None] = {}  # of 1,000 cells most are alike

    def left_s(self, cell: CellState, run: Run) -> float | None:
        """Return how long a running cell still takes, at most until its time limit."""
        elapsed_s = self._elapsed_s(run)
        limit_s = run.spec.time_limit_s
        most_s = None if limit_s is None else max(0.0, limit_s - elapsed_s)
        eta_s = run.progress.get("eta_s")
        if isinstance(eta_s, int | float) and run.state == "running":
            return eta_s if most_s is None else min(eta_s, most_s)
        usual_s = self._usual_s(cell)
        if usual_s is None or run.state != "running" or elapsed_s > _OVERDUE * usual_s:
            return most_s
        return max(0.0, usual_s - elapsed_s)

    def length_s(self, cell: CellState) -> float | None:
        """Return how long a waiting cell will hold its slot."""
        return self._remember("length", cell, self._find_length_s)

    def _find_length_s(self, cell: CellState) -> float | None:
        usual_s = self._usual_s(cell)
        begun_s = self._begun_s.get(cell.cell.phase)
        done = [
            one for one in self._sweep.cells if _is_alike(one, cell) and one.done and _ended_s(one) >= (begun_s or 0)
        ]
        slots = sum(_is_alike(one, cell) for one, _ in self._running)
        if usual_s is None or begun_s is None or not slots or len(done) < _ENDS_A_SLOT * slots:
            return usual_s
        under_way = sum(min(1.0, self._elapsed_s(run) / usual_s) for one, run in self._running if _is_alike(one, cell))
        return (self._now_s - begun_s) * slots / (len(done) + under_way) if usual_s else usual_s

    def _remember(self, what: str, cell: CellState, find: Callable[[CellState], float | None]) -> float | None:
        key = (what, cell.cell.phase, cell.cell.variant, *(repr(cell.setting(name)) for name in self._names))
        if key not in self._known:
            self._known[key] = find(cell)
        return self._known[key]

    def _usual_s(self, cell: CellState) -> float | None:
        return self._remember("usual", cell, self._find_usual_s)

    def _find_usual_s(self, cell: CellState) -> float | None:
        alike = [sample for sample in self._ended if _is_alike(sample.cell, cell)]
        if not alike:
            alike = [
                _Sample(one, s) for one, run in self._running if _is_alike(one, cell) and (s := self._whole_s(run))
            ]
        scaled = [sample.length_s * _ratio(cell, sample.cell, self._names) for sample in alike]
        return sum(scaled) / len(scaled) if scaled else None

    def _whole_s(self, run: Run) -> float | None:
        eta_s = run.progress.get("eta_s")
        return self._elapsed_s(run) + eta_s if isinstance(eta_s, int | float) and run.state == "running" else None

    def _elapsed_s(self, run: Run) -> float:
        return max(0.0, self._now_s - posix(run.started_at)) if run.started_at else 0.0


def _is_alike(one: CellState, other: CellState) -> bool:
    return (one.cell.phase, one.cell.variant) == (other.cell.phase, other.cell.variant)


def _ended_s(cell: CellState) -> float:
    return posix(cell.end["at"]) if "at" in cell.end else 0.0


def _ratio(cell: CellState, sample: CellState, names: Iterable[str]) -> float:
    """Return how many times as long ``cell`` trains, by parameters that set the length."""
    ratio = 1.0
    for name in names:
        here, there = cell.setting(name), sample.setting(name)
        if _is_length(here) and _is_length(there):
            ratio *= here / there
    return ratio


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _first_starts_s(sweep: Sweep) -> dict[str, float]:
    """Return by phase when its first cell was started in the present round, POSIX time."""
    phases = {cell.cell.name: cell.cell.phase for cell in sweep.cells}
    found: dict[str, float] = {}
    for event in sweep.round_events:
        if event["kind"] == "cell_started" and "at" in event and (phase := phases.get(event.get("cell", ""))):
            found.setdefault(phase, posix(event["at"]))
    return found
