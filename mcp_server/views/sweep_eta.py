"""How long a sweep still takes, by how long like cells took and how far the live ones are. Pure.

A live cell has what its own steps say is left. A waiting one takes as long as cells of its phase and launch took, or
are about to take, by its settings (``fit_lengths``): as much of that as others ran before they failed. Under halving
each may stop at a rung: which one is drawn, by the rule and by those that were judged, and the mean of many draws
counts. Once as many have ended as run at once, the time between two cells is added. Where one cell's length is
unknown (the first of a phase, a hang without a limit), so is the sweep's: a promotion and a hang are not cells of usual
length.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_ranking import is_seed, name_setting
from mcp_server.record.sweeps.sweep_spec import HALVING_FACTOR, HALVING_LEAST
from mcp_server.record.sweeps.sweep_state import LIVE, STOPPED, WAITING, CellState, Sweep

LENGTH = re.compile(
    r"(?:^|[._])(?:(?:max|num|total|n|train|training|env|learning)_?)*(?:steps?|iters?|iterations?|epochs?|timesteps?|updates?)$",
    re.IGNORECASE,
)
_OVERDUE, _UNNOTED_S = 1.5, 5.0  # times, and seconds above the usual length, without a step that says more: a hang
_RIDGE = 0.02  # the variance of the logarithm of a length, by that of a slope before anything is known
_SHORTEST_S, _MOST_LEARNT = 0.01, 4.0  # of a logarithm: 55 times as long
_MOST_FEATURES, _MOST_TEXTS = 16, 8
_WHOLE = ("finished", "timed_out")
_DRAWS = 40  # of the rungs at which cells stop
_JUDGED_S = 3.0  # after a cell reaches a rung it has stopped: the conductor reads every 5 s
_SHARE_WEIGHT = 4  # of the rule's share of cells that pass a rung, in cells that were judged
_ENDS_A_SLOT = 0.5  # ended cells for each slot, from which on their rate is better than their lengths


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
    waiting = [
        cell for cell in sweep.cells if cell.state == WAITING or (cell.state == LIVE and cell.cell.name not in begun)
    ]
    phase = next((cells[name].cell.phase for name in begun), sweep.phase or "")
    ends_s = []
    for number in range(_DRAWS if sweep.spec.halving else 1):
        chance = random.Random(number)  # noqa: S311 - the same at each look
        left_s = [known.left_s(cells[name], run, chance) for name, run in begun.items()]
        by_phase: dict[str, list[float | None]] = {}
        for cell in waiting:
            by_phase.setdefault(cell.cell.phase, []).append(known.length_s(cell, chance))
        if None in left_s or any(None in lengths_s for lengths_s in by_phase.values()):
            return None
        left_s += [0.0] * (slots - len(left_s))  # a cell starts in each of these now
        first, later = by_phase.pop(phase, []), by_phase.values()
        ends_s.append(schedule_s(_known(left_s), _known(first), map(_known, later), slots))
    return statistics.fmean(ends_s)


def _known(lengths_s: Iterable[float | None]) -> list[float]:
    return [each for each in lengths_s if each is not None]


def _count_slots(sweep: Sweep, live: Mapping[str, Run], begun: int) -> int:
    """Return how many cells run at once, of which ``begun`` have begun: more where others are about to start."""
    most = sweep.spec.max_parallel
    if most is None or sweep.refusal or any(run.state == "queued" for run in live.values()):
        return max(1, begun)
    open_cells = sum(not cell.done for cell in sweep.cells if cell.cell.phase == sweep.phase)
    return max(1, begun, min(most, open_cells))


def _is_between_cells(sweep: Sweep, now_s: float) -> bool:
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


class _Lengths:
    """How long cells take, from those that have ended and those that say what is left."""

    def __init__(self, sweep: Sweep, running: Sequence[tuple[CellState, Run]], slots: int, now_s: float) -> None:
        self._sweep, self._now_s, self._running, self._slots = sweep, now_s, running, slots
        self._begun_s = _first_starts_s(sweep)
        self._known: dict[tuple[str, str], _Launch | None] = {}

    def left_s(self, cell: CellState, run: Run, chance: random.Random) -> float | None:
        """Return how long a running cell still takes, at most until its time limit. ``chance`` draws where it stops."""
        if run.ended:
            return 0.0
        elapsed_s = self._elapsed_s(run)
        limit_s = run.spec.time_limit_s
        most_s = None if limit_s is None else max(0.0, limit_s - elapsed_s)
        eta_s = run.progress.get("eta_s")
        launch = self._read(cell)
        if isinstance(eta_s, int | float) and run.state == "running":
            if launch is not None and (whole_s := elapsed_s + eta_s) > 0:
                eta_s = whole_s * launch.draw_share(chance, elapsed_s / whole_s, is_live=True)
            return eta_s if most_s is None else min(eta_s, most_s)
        usual_s = None if launch is None else launch.fit(cell)
        is_retried = run.state == "retrying" or (run.state == "stalled" and "stall" in run.stop_on)
        if usual_s is None and (run.state == "running" or is_retried):
            return None  # its time limit is no estimate
        if is_retried and launch is not None and usual_s is not None:  # another attempt, as long as cells usually run
            again_s = usual_s * launch.share * launch.draw_share(chance, is_live=True)
            return again_s if most_s is None else min(again_s, most_s)
        elapsed_s = self._attempt_s(run)
        if usual_s is None or run.state != "running" or elapsed_s > max(_OVERDUE * usual_s, usual_s + _UNNOTED_S):
            return most_s
        left = launch.draw_share(chance, elapsed_s / usual_s, is_live=True) if launch and elapsed_s < usual_s else 0.0
        return usual_s * left

    def length_s(self, cell: CellState, chance: random.Random) -> float | None:
        launch = self._read(cell)
        if launch is None:
            return None
        return launch.fit(cell) * launch.share * launch.draw_share(chance) + launch.between_s

    def _read(self, cell: CellState) -> _Launch | None:
        """Return what is known of the cells of a launch, None before any has ended or says what is left."""
        key = (cell.cell.phase, cell.cell.variant)
        if key not in self._known:
            alike = [one for one in self._sweep.cells if (one.cell.phase, one.cell.variant) == key]
            running = [(one, run) for one, run in self._running if (one.cell.phase, one.cell.variant) == key]
            took = [(one, s) for one in alike if one.done and (s := _took_s(one)) is not None]
            whole = [(one, s) for one, s in took if one.state in _WHOLE]
            whole += [(one, s) for one, run in running if (s := self._whole_s(run)) is not None]
            self._known[key] = self._describe(fit_lengths(alike, whole), took, running) if whole else None
        return self._known[key]

    def _describe(
        self,
        fit: Callable[[CellState], float],
        took: Sequence[tuple[CellState, float]],
        running: Sequence[tuple[CellState, Run]],
    ) -> _Launch:
        begun_s = self._begun_s.get(next((cell.cell.phase for cell, _ in running), self._sweep.phase or ""))
        done = [(cell, s, fit(cell)) for cell, s in took if _ended_s(cell) >= (begun_s or 0.0)]
        halved = {cell.cell.name for cell, *_ in done if cell.state == STOPPED and self._sweep.spec.halving}
        judged = [(cell, s, usual_s) for cell, s, usual_s in done if cell.cell.name not in halved]
        cut = [(min(s, usual_s), usual_s) for cell, s, usual_s in judged if cell.state not in _WHOLE]
        whole_s = sum(usual_s for cell, _, usual_s in judged if cell.state in _WHOLE)
        # A fit holds for the cells of its launch alone: others may lack a setting.
        whole = [usual_s for *_, usual_s in done] + [fit(cell) for cell, _ in running]
        rungs = self._find_rungs(done, statistics.fmean(whole)) if whole else []
        # Those that were cut short end first: a live one that is past that point is not one of them.
        last = max((s / usual_s for s, usual_s in cut), default=1.0)
        whole_s += sum(fit(cell) for cell, run in running if self._elapsed_s(run) > last * fit(cell))
        share = (sum(s for s, _ in cut) + whole_s) / (sum(usual_s for _, usual_s in cut) + whole_s) if cut else 1.0
        slots = self._slots * len(running) / len(self._running) if self._running else self._slots
        if begun_s is None or not slots or len(done) < _ENDS_A_SLOT * slots:
            return _Launch(fit, share, rungs=rungs)
        # One that says nothing and is beyond its length has ended, and nobody has noted it.
        live_s = (
            min(self._elapsed_s(run), fit(cell) if self._whole_s(run) is None else math.inf) for cell, run in running
        )
        held_s = sum(s for _, s, _ in done) + sum(live_s)
        between_s = ((self._now_s - begun_s) * slots - held_s) / (len(done) + len(running))
        return _Launch(fit, share, max(0.0, between_s), rungs)

    def _find_rungs(self, done: Sequence[tuple[CellState, float, float]], whole_s: float) -> list[_Rung]:
        """Return the rungs of the sweep's halving as far as it is known where a training of ``whole_s`` has them."""
        facts, cells = self._sweep.spec.halving, self._sweep.cells
        if facts is None:
            return []
        factor, least = facts.get("factor", HALVING_FACTOR), facts.get("least", HALVING_LEAST)
        totals = [total for _, run in self._running if isinstance(total := run.progress.get("total_steps"), int)]
        settings = {cell.cell.name: name_setting(cell) for cell in cells}
        expected = float(len(set(settings.values())))
        begun = {settings[cell.cell.name] for cell, _ in self._running}
        found: list[_Rung] = []
        for step in facts["steps"]:
            stopped = [cell for cell in cells if cell.state == STOPPED and max(cell.rungs, default=0) == step]
            shares = [min(1.0, s / usual_s) for cell, s, usual_s in done if cell in stopped]
            if not shares and not (totals and step < statistics.median(totals)):
                continue
            at = statistics.fmean(shares) if shares else step / statistics.median(totals) + _JUDGED_S / whole_s
            reached = sorted((cell for cell in cells if step in cell.rungs), key=lambda cell: cell.rung_order[step])
            over = [cell for cell in reached[least - 1 :] if cell.done or max(cell.rungs) > step]
            passed = sum(cell not in stopped for cell in over)
            share = (passed + _SHARE_WEIGHT / factor) / (len(over) + _SHARE_WEIGHT)
            here = {settings[cell.cell.name] for cell in reached} | begun
            found.append(_Rung(at, share if expected >= least else 1.0, share if len(here) >= least else 1.0))
            expected *= share
        return found

    def _whole_s(self, run: Run) -> float | None:
        eta_s = run.progress.get("eta_s")
        return self._elapsed_s(run) + eta_s if isinstance(eta_s, int | float) and run.state == "running" else None

    def _attempt_s(self, run: Run) -> float:
        """Return how long its newest attempt has run: one that began anew is no hang."""
        starts = [event["at"] for event in run.events if event["kind"] == "started" and "at" in event]
        return max(0.0, self._now_s - posix(starts[-1])) if starts else self._elapsed_s(run)

    def _elapsed_s(self, run: Run) -> float:
        return max(0.0, self._now_s - posix(run.started_at)) if run.started_at else 0.0


@dataclass(frozen=True)
class _Rung:
    """A rung: the share ``at`` of a training at which one that is left behind has stopped, and how many go on.

    ``waiting``, ``live``: the share of those that wait and that run now: all while fewer than the rule's least come.
    """

    at: float
    waiting: float
    live: float


@dataclass(frozen=True)
class _Launch:
    """The cells of one launch: how long a whole one takes by its settings, and which ``share`` of that cells have run.

    ``between_s``: for each cell, the time of its slot that none ran: before its start, or another attempt at it.
    """

    fit: Callable[[CellState], float]
    share: float = 1.0
    between_s: float = 0.0
    rungs: Sequence[_Rung] = ()

    def draw_share(self, chance: random.Random, begun: float = 0.0, *, is_live: bool = False) -> float:
        """Return the share of a whole training that a cell still runs which has run ``begun`` of it."""
        for rung in self.rungs:
            if rung.at > begun and chance.random() >= (rung.live if is_live else rung.waiting):
                return rung.at - begun
        return max(0.0, 1.0 - begun)


def fit_lengths(cells: Sequence[CellState], whole: Sequence[tuple[CellState, float]]) -> Callable[[CellState], float]:
    """Return how long each of ``cells`` takes by the lengths of some, in seconds.

    The logarithm of a length is linear in the logarithms of settings that are positive numbers, and each text has a
    factor of its own. As long as few cells say otherwise, a length is in proportion to settings that count steps or
    epochs, and depends on no others (ridge regression towards that).
    """
    features = _list_features(cells)
    rows = [[read(cell) for _, read in features] for cell, _ in whole]
    logs = [math.log(max(s, _SHORTEST_S)) - _sum_prior(features, row) for (_, s), row in zip(whole, rows, strict=True)]
    centre = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    mean = statistics.fmean(logs)
    off = [[value - middle for value, middle in zip(row, centre, strict=True)] for row in rows]
    slopes = _solve_ridge(off, [each - mean for each in logs], _RIDGE)

    def estimate(cell: CellState) -> float:
        row = [read(cell) for _, read in features]
        learnt = sum(s * (v - c) for s, v, c in zip(slopes, row, centre, strict=True))
        return math.exp(mean + _sum_prior(features, row) + max(-_MOST_LEARNT, min(learnt, _MOST_LEARNT)))

    scale = sum(s for _, s in whole) / sum(estimate(cell) for cell, _ in whole)  # a mean, not one of logarithms
    return lambda cell: estimate(cell) * scale


_Feature = tuple[float, Callable[[CellState], float]]  # the slope that is expected, and how a cell's value is read


def _list_features(cells: Sequence[CellState]) -> list[_Feature]:
    """Return the settings on which the length may depend: those that differ, but for seeds."""
    found: list[_Feature] = []
    for name in dict.fromkeys(name for cell in cells for name in cell.settings if not is_seed(name)):
        values = [cell.setting(name) for cell in cells]
        if all(_is_positive(value) for value in values):
            if len(set(values)) > 1:
                found.append((1.0 if LENGTH.search(name) else 0.0, partial(_read_log, name)))
        elif 1 < len(texts := set(map(str, values))) <= _MOST_TEXTS:
            found += [(0.0, partial(_is_text, name, text)) for text in sorted(texts)]
    return found[:_MOST_FEATURES]


def _read_log(name: str, cell: CellState) -> float:
    return math.log(cell.setting(name))


def _is_text(name: str, text: str, cell: CellState) -> float:
    return float(str(cell.setting(name)) == text)


def _sum_prior(features: Sequence[_Feature], row: Sequence[float]) -> float:
    return sum(slope * value for (slope, _), value in zip(features, row, strict=True))


def _solve_ridge(rows: Sequence[Sequence[float]], ends: Sequence[float], penalty: float) -> list[float]:
    """Return the slopes that fit ``ends`` best, each slope's square at a ``penalty``: Gauss, as it is positive."""
    size = len(rows[0]) if rows else 0
    left = [[sum(row[i] * row[j] for row in rows) + penalty * (i == j) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * end for row, end in zip(rows, ends, strict=True)) for i in range(size)]
    for i in range(size):
        for k in range(i + 1, size):
            factor = left[k][i] / left[i][i]
            left[k] = [a - factor * b for a, b in zip(left[k], left[i], strict=True)]
            right[k] -= factor * right[i]
    slopes = [0.0] * size
    for i in reversed(range(size)):
        slopes[i] = (right[i] - sum(left[i][j] * slopes[j] for j in range(i + 1, size))) / left[i][i]
    return slopes


def _took_s(cell: CellState) -> float | None:
    elapsed_s = cell.end.get("elapsed_s")
    return float(elapsed_s) if isinstance(elapsed_s, int | float) else None


def _ended_s(cell: CellState) -> float:
    return posix(cell.end["at"]) if "at" in cell.end else 0.0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _first_starts_s(sweep: Sweep) -> dict[str, float]:
    """Return by phase when its first cell was started in the present round, POSIX time."""
    phases = {cell.cell.name: cell.cell.phase for cell in sweep.cells}
    found: dict[str, float] = {}
    for event in sweep.round_events:
        if event["kind"] == "cell_started" and "at" in event and (phase := phases.get(event.get("cell", ""))):
            found.setdefault(phase, posix(event["at"]))
    return found
