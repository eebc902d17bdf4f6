"""How long a sweep still takes, by how long like cells took and how far the live ones are. Pure.

A live cell has what its own steps say is left. A waiting one takes what ended cells of its phase and launch took, or
live ones are about to take, in proportion to a parameter that sets the length (``max_steps``, ``epochs``). Once as many
have ended as run at once, their rate counts, which has the time between two cells in it. Where one cell's length is
unknown (the first of a phase, a hang without a limit), so is the sweep's: a promotion and a hang are not cells of usual
length.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import LIVE, WAITING, CellState, Sweep

LENGTH = re.compile(
    r"(?:^|[._])(?:(?:max|num|total|n|train|training|env|learning)_?)*(?:steps?|iters?|iterations?|epochs?|timesteps?|updates?)$",
    re.IGNORECASE,
)
_OVERDUE, _UNNOTED_S = 1.5, 5.0  # times, and seconds above the usual length, without a step that says more: a hang
_ENDS_A_SLOT = 1  # ended cells for each slot, from which on their rate is better than their lengths


def estimate_rest_s(sweep: Sweep, live: Mapping[str, Run], now_s: float) -> float | None:
    """Return how many seconds the rest takes, or None where that is not known. ``live``: the live runs, by cell."""
    if sweep.ended or sweep.is_metric_missing or any(run.unreachable for run in live.values()):
        return None
    # A run that has ended holds its slot until the conductor has noted it, and starts the next one.
    begun = {name: run for name, run in live.items() if run.state not in ("queued", "starting")}
    if not begun and (any(run.state == "queued" for run in live.values()) or not _is_between_cells(sweep, now_s)):
        return None
    cells = {cell.cell.name: cell for cell in sweep.cells}
    slots = _count_slots(sweep, live, len(begun))
    known = _Lengths(sweep, [(cells[name], run) for name, run in begun.items()], slots, now_s)
    left = [known.left_s(cells[name], run) for name, run in begun.items()]
    waiting = [
        cell for cell in sweep.cells if cell.state == WAITING or (cell.state == LIVE and cell.cell.name not in begun)
    ]
    lengths = [known.length_s(cell) for cell in waiting]
    if None in left or None in lengths:
        return None
    by_phase: dict[str, list[float]] = {}
    for cell, length_s in zip(waiting, lengths, strict=True):
        by_phase.setdefault(cell.cell.phase, []).append(length_s or 0.0)
    phase = next((cells[name].cell.phase for name in begun), sweep.phase or "")
    left_s = [each or 0.0 for each in left]
    left_s += [0.0] * (slots - len(left_s))  # a cell starts in each of these now
    return schedule_s(left_s, by_phase.pop(phase, []), by_phase.values(), slots)


def _count_slots(sweep: Sweep, live: Mapping[str, Run], begun: int) -> int:
    """Return how many cells run at once, of which ``begun`` have begun: more where others are about to start."""
    most = sweep.spec.max_parallel
    if most is None or sweep.refusal or any(run.state == "queued" for run in live.values()):
        return max(1, begun)
    open_cells = sum(not cell.done for cell in sweep.cells if cell.cell.phase == sweep.phase)
    return max(1, begun, min(most, open_cells))


def _is_between_cells(sweep: Sweep, now_s: float) -> bool:
    """Return whether a cell has just ended, so that the next one is about to start though none runs now."""
    return any(now_s - _ended_s(cell) < _UNNOTED_S for cell in sweep.cells if cell.done)


def schedule_s(
    left_s: Sequence[float], waiting_s: Sequence[float], later_s: Iterable[Sequence[float]], slots: int
) -> float:
    """Return when the last of all cells ends: each takes the slot that is free first; a phase waits for the last."""
    free_s = list(left_s)
    heapq.heapify(free_s)
    for length_s in waiting_s:
        heapq.heappush(free_s, heapq.heappop(free_s) + length_s)
    end_s = max(free_s)
    for phase in later_s:
        end_s += schedule_s([0.0] * slots, phase, (), slots)
    return end_s


@dataclass(frozen=True)
class _Sample:
    """A cell whose length is known, or about to be."""

    cell: CellState
    length_s: float


class _Lengths:
    """How long cells take, from those that have ended and those that run."""

    def __init__(self, sweep: Sweep, running: Sequence[tuple[CellState, Run]], slots: int, now_s: float) -> None:
        self._now_s, self._running, self._slots = now_s, running, slots
        took = [(cell, cell.end.get("elapsed_s")) for cell in sweep.cells if cell.state in ("finished", "timed_out")]
        self._ended = [_Sample(cell, float(s)) for cell, s in took if isinstance(s, int | float)]
        self._begun_s = _first_starts_s(sweep)
        self._sweep = sweep
        self._scales: dict[str, dict[str, float]] = {}
        self._known: dict[tuple[object, ...], float | None] = {}  # a sweep has many cells, and few lengths

    def left_s(self, cell: CellState, run: Run) -> float | None:
        """Return how long a running cell still takes, at most until its time limit."""
        if run.ended:
            return 0.0
        elapsed_s = self._elapsed_s(run)
        limit_s = run.spec.time_limit_s
        most_s = None if limit_s is None else max(0.0, limit_s - elapsed_s)
        eta_s = run.progress.get("eta_s")
        if isinstance(eta_s, int | float) and run.state == "running":
            return eta_s if most_s is None else min(eta_s, most_s)
        usual_s = self._usual_s(cell)
        if usual_s is None and run.state == "running":
            return None  # its time limit is no estimate
        if usual_s is None or run.state != "running" or elapsed_s > max(_OVERDUE * usual_s, usual_s + _UNNOTED_S):
            return most_s
        return max(0.0, usual_s - elapsed_s)

    def length_s(self, cell: CellState) -> float | None:
        """Return how long a waiting cell will hold its slot."""
        return self._remember("length", cell, self._find_length_s)

    def _remember(self, what: str, cell: CellState, find: Callable[[CellState], float | None]) -> float | None:
        key = (what, cell.cell.phase, cell.cell.variant, *self._scale(cell).items())
        if key not in self._known:
            self._known[key] = find(cell)
        return self._known[key]

    def _find_length_s(self, cell: CellState) -> float | None:
        usual_s, begun_s = self._usual_s(cell), self._begun_s.get(cell.cell.phase)
        running = [(one, run) for one, run in self._running if _is_alike(one, cell)]
        slots = self._slots * len(running) / len(self._running) if self._running else self._slots
        if not usual_s or begun_s is None or not slots:
            return usual_s
        done = [
            self._ratio(one, cell)
            for one in self._sweep.cells
            if _is_alike(one, cell) and one.done and _ended_s(one) >= begun_s
        ]
        if len(done) < _ENDS_A_SLOT * slots:
            return usual_s
        under_way = [
            self._ratio(one, cell) if run.ended else min(self._ratio(one, cell), self._elapsed_s(run) / usual_s)
            for one, run in running
        ]
        return (self._now_s - begun_s) * slots / (sum(done) + sum(under_way))

    def _usual_s(self, cell: CellState) -> float | None:
        return self._remember("usual", cell, self._find_usual_s)

    def _find_usual_s(self, cell: CellState) -> float | None:
        alike = [sample for sample in self._ended if _is_alike(sample.cell, cell)]
        if not alike:
            alike = [
                _Sample(one, s) for one, run in self._running if _is_alike(one, cell) and (s := self._whole_s(run))
            ]
        scaled = [sample.length_s * self._ratio(cell, sample.cell) for sample in alike]
        return sum(scaled) / len(scaled) if scaled else None

    def _ratio(self, cell: CellState, other: CellState) -> float:
        """Return how many times as long as ``other`` a cell trains, by settings that set the length."""
        here, there = self._scale(cell), self._scale(other)
        return math.prod(value / there[name] for name, value in here.items() if name in there)

    def _scale(self, cell: CellState) -> dict[str, float]:
        """Return the settings of a cell that set its length."""
        if (scale := self._scales.get(cell.cell.name)) is None:
            named = ((name, cell.setting(name)) for name in cell.settings if LENGTH.search(name))
            scale = self._scales[cell.cell.name] = {name: value for name, value in named if _is_length(value)}
        return scale

    def _whole_s(self, run: Run) -> float | None:
        eta_s = run.progress.get("eta_s")
        return self._elapsed_s(run) + eta_s if isinstance(eta_s, int | float) and run.state == "running" else None

    def _elapsed_s(self, run: Run) -> float:
        return max(0.0, self._now_s - posix(run.started_at)) if run.started_at else 0.0


def _is_alike(one: CellState, other: CellState) -> bool:
    return (one.cell.phase, one.cell.variant) == (other.cell.phase, other.cell.variant)


def _ended_s(cell: CellState) -> float:
    return posix(cell.end["at"]) if "at" in cell.end else 0.0


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
