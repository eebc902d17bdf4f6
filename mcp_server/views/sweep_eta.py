"""How long a sweep still takes, by how long like cells took and how far the live ones are. Pure.

A whole training takes as long as those of its phase and launch took, or are about to take, by its settings
(``fit_lengths``); a live one what its own steps say. But cells fail, hang and are tried again: a cell takes as long as
those that are most like it did (``Peers``), each as often as they ended so. Under halving each may stop at a rung:
which one is drawn, by the rule and by those that were judged, and the mean of many draws counts. Once as many have
ended as run at once, the time between two cells is added. Where one cell's length is unknown (the first of a phase, a
hang without a limit), so is the sweep's: a promotion and a hang are not cells of usual length.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_server.record.attempt_params import list_earlier_ends
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_ranking import is_seed, name_setting
from mcp_server.record.sweeps.sweep_spec import HALVING_FACTOR, HALVING_LEAST
from mcp_server.record.sweeps.sweep_state import INTERRUPTED, LIVE, STOPPED, WAITED, WAITING, CellState, Sweep
from mcp_server.views.length_fit import SHORTEST_S, add_rests, fit_lengths

_OVERDUE, _UNNOTED_S = 1.5, 5.0  # times, and seconds above the usual length, without a step that says more: a hang
_WHOLE = ("finished", "timed_out")
_DRAWS = 40  # of the rungs at which cells stop
_JUDGED_S = 3.0  # after a cell reaches a rung it has stopped: the conductor reads every 5 s
_SHARE_WEIGHT = 4  # of the rule's share of cells that pass a rung, in cells that were judged
_MOST_PEERS = 200
_WEIGHTS = (0.0, 1.0, 4.0)  # of all ends beside those of a group
_BETTER = 0.9  # by so much a coarser grouping has to be better
_PLAIN = 2  # settings whose cells are a whole training each, beside those that are known
_ENDS_A_SLOT = 0.5  # ended cells for each slot, from which on their rate is better than their lengths


def estimate_rest_s(sweep: Sweep, live: Mapping[str, Run], now_s: float) -> float | None:
    """Return how many seconds the rest takes, or None where that is not known. ``live``: the live runs, by cell.

    An open sweep goes on with trials that nobody has proposed yet.
    """
    if sweep.ended or sweep.spec.open is not None or sweep.is_metric_missing:
        return None
    if any(run.unreachable for run in live.values()):
        return None
    # A run that has ended holds its slot until the conductor has noted it, and starts the next one.
    begun = add_rests(sweep, {name: run for name, run in live.items() if run.state not in ("queued", "starting")})
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


def estimate_lengths_s(sweep: Sweep) -> dict[str, float]:
    """Return how long cells of an ended sweep, also those added since, take again, as far as its ends tell."""
    known = _Lengths(sweep, (), 0, 0.0)
    lengths_s = {cell.cell.name: known.length_s(cell) for cell in sweep.cells if cell.is_planned}
    return {name: length_s for name, length_s in lengths_s.items() if length_s is not None}


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
    ends = (cell.end["at"] for cell in sweep.cells if cell.done and "at" in cell.end)
    return any(now_s - posix(at) < _UNNOTED_S for at in ends)


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
class Fate:
    """The end of a cell, or what is known of one under way: the seconds of its slot, of that those that count, and how.

    Attempts that something outside ended are held against no other cell. ``last_s``: its last attempt.
    """

    cell: CellState
    held_s: float = 0.0
    took_s: float = 0.0
    last_s: float = 0.0
    attempts: int = 0
    state: str = ""
    is_now: bool = True  # of the present round

    @property
    def is_plain(self) -> bool:
        """Whether it is one whole training without a retry."""
        return self.state in _WHOLE and self.attempts == 1

    def add(self, event: Mapping[str, Any], state: str) -> Fate:
        """Return it with a further run."""
        attempts_s = event.get("attempts_s") or [event.get("elapsed_s")]
        if not isinstance(attempts_s, list) or not all(isinstance(each, int | float) for each in attempts_s):
            return self
        is_outside = state in (*INTERRUPTED, WAITED)
        ends = [*(event.get("tries") or ()), state]
        own_s = [s for s, why in zip(attempts_s, ends[-len(attempts_s) :], strict=False) if not _is_outside(str(why))]
        took_s = self.took_s + (0.0 if is_outside else sum(own_s))
        attempts = self.attempts + (0 if is_outside else max(1, len(ends) - len(attempts_s) + len(own_s)))
        held_s = self.held_s + sum(attempts_s)
        return replace(self, held_s=held_s, took_s=took_s, last_s=attempts_s[-1], attempts=attempts, state=state)


def read_fates(sweep: Sweep) -> tuple[list[Fate], dict[str, Fate]]:
    """Return how cells ended, of former rounds the newest end of each; and, by cell, those that start again."""
    cells = {cell.cell.name: cell for cell in sweep.cells}
    first = sweep.round_events[0]["seq"] if sweep.round_events else 0
    fates: dict[tuple[str, bool], Fate] = {}
    begun: dict[str, Fate] = {}
    for event in sweep.events:
        name = event.get("cell", "")
        if event["kind"] == "cell_resumed":
            begun.pop(name, None)
        if event["kind"] not in ("cell_ended", "cell_failed") or name not in cells:
            continue
        is_now = event["seq"] >= first
        fate = begun.get(name, Fate(cells[name], is_now=is_now)).add(event, str(event.get("state")))
        if event.get("then") == "again":
            begun[name] = fate
        else:
            begun.pop(name, None)
            fates[name, is_now] = fate
    return list(fates.values()), begun


def _is_outside(why: str) -> bool:
    return why.startswith("killed")


class _Lengths:
    """How long cells take, from those that have ended and those that say what is left."""

    def __init__(self, sweep: Sweep, running: Sequence[tuple[CellState, Run]], slots: int, now_s: float) -> None:
        self._sweep, self._now_s, self._running, self._slots = sweep, now_s, running, slots
        self._begun_s = _first_starts_s(sweep)
        self._fates, self._former = read_fates(sweep)
        self._known: dict[tuple[str, str], _Launch | None] = {}
        self._shares: dict[tuple[object, ...], float | None] = {}

    def left_s(self, cell: CellState, run: Run, chance: random.Random) -> float | None:
        """Return how long a running cell still takes, at most until its time limit. ``chance`` draws where it stops."""
        if run.ended:
            return 0.0
        limit_s = run.spec.time_limit_s
        most_s = None if limit_s is None else max(0.0, limit_s - self._elapsed_s(run))
        left_s, launch, spent = self._pace_s(run), self._read(cell), self._spend(cell, run)
        is_again = run.state == "retrying" or (run.state == "stalled" and "stall" in run.stop_on)
        if launch is not None and (run.state == "running" or is_again):
            left_s = launch.left_s(spent, left_s, is_again=is_again)
        elif is_again:
            return None  # its time limit is no estimate
        if left_s is None:
            return None if launch is None and run.state == "running" else most_s
        if launch is not None and (whole_s := spent.last_s + left_s) > 0 and not is_again:
            left_s = whole_s * launch.draw_share(chance, spent.last_s / whole_s, is_live=True)
        return left_s if most_s is None else min(left_s, most_s)

    def length_s(self, cell: CellState, chance: random.Random | None = None) -> float | None:
        """Return how long a waiting cell takes, with the time between two cells; None where nothing tells."""
        launch = self._read(cell)
        if launch is None:
            return None
        if (begun := self._former.get(cell.cell.name)) is not None or launch.fit is None:
            length_s = launch.left_s(begun or Fate(cell), None, is_again=True)
        else:  # the same share of a whole training for all cells of a group
            key = (cell.cell.phase, cell.cell.variant, *launch.peers.name_group(cell))
            if key not in self._shares:
                usual_s = max(launch.fit(cell), SHORTEST_S)
                whole_s = launch.left_s(Fate(cell), None, is_again=True)
                self._shares[key] = None if whole_s is None else whole_s / usual_s
            share = self._shares[key]
            length_s = None if share is None else share * launch.fit(cell)
        if length_s is None:
            return None
        return length_s * (1.0 if chance is None else launch.draw_share(chance)) + launch.between_s

    def _read(self, cell: CellState) -> _Launch | None:
        """Return what is known of the cells of a launch, None before any has ended or says what is left."""
        key = (cell.cell.phase, cell.cell.variant)
        if key not in self._known:
            alike = [one for one in self._sweep.cells if (one.cell.phase, one.cell.variant) == key]
            running = [(one, run) for one, run in self._running if (one.cell.phase, one.cell.variant) == key]
            fates = [fate for fate in self._fates if (fate.cell.cell.phase, fate.cell.cell.variant) == key]
            whole = [(fate.cell, fate.last_s) for fate in fates if fate.state in _WHOLE and fate.attempts]
            for one, run in running:
                if (left_s := self._pace_s(run)) is not None:
                    whole.append((one, self._spend(one, run).last_s + left_s))
            self._known[key] = self._describe(alike, whole, fates, running) if whole or fates else None
        return self._known[key]

    def _describe(
        self,
        alike: Sequence[CellState],
        whole: Sequence[tuple[CellState, float]],
        fates: Sequence[Fate],
        running: Sequence[tuple[CellState, Run]],
    ) -> _Launch | None:
        fit = fit_lengths(alike, whole) if whole else None
        usual = fit or (lambda _: 1.0)
        own = [fate for fate in fates if fate.attempts and fate.state in (*_WHOLE, "failed")]
        short = [fate.took_s / usual(fate.cell) for fate in own if fate.state == "failed" and fate.is_now]
        last = max((share for share in short if share < 1.0), default=1.0)
        tried = {name_setting(fate.cell): fate.attempts for fate in own}
        is_first = all(fate.is_now for fate in fates)
        for cell, run in running:
            spent, usual_s = replace(self._spend(cell, run), is_now=is_first), usual(cell)
            if fit is None or run.ended:
                continue
            # Those that fail early end first: a live one that is past that point is not one of them. And those that
            # hang end last: a live one beyond its length is one.
            if self._is_overdue(spent.last_s, usual_s) and self._pace_s(run) is None:
                own.append(replace(spent, state="failed"))
            elif spent.attempts > 1 and spent.attempts > tried.get(name_setting(cell), 0):
                rest_s = max(0.0, usual_s - spent.last_s) if (pace_s := self._pace_s(run)) is None else pace_s
                own.append(replace(spent, took_s=spent.took_s + rest_s, state="finished"))
            elif last < 1.0 and spent.last_s > last * usual_s:
                own.append(replace(spent, took_s=usual_s, state="finished"))
        launch = _Launch(fit, Peers(own, fit, alike))
        done = [fate for fate in fates if fate.is_now]
        lengths = [usual(fate.cell) for fate in done] + [usual(cell) for cell, _ in running]
        rungs = self._find_rungs(done, usual, statistics.fmean(lengths)) if lengths and fit else []
        begun_s = self._begun_s.get(alike[0].cell.phase)
        slots = self._slots * len(running) / len(self._running) if self._running else self._slots
        if fit is None or begun_s is None or not slots or len(done) < _ENDS_A_SLOT * slots:
            return replace(launch, rungs=rungs)
        held_s = sum(fate.held_s for fate in done)
        held_s += sum(self._former[cell.cell.name].held_s for cell in alike if cell.cell.name in self._former)
        for cell, run in running:
            elapsed_s, usual_s = self._elapsed_s(run), usual(cell)
            # One that says nothing and is just beyond its length has ended, and nobody has noted it.
            is_over = self._pace_s(run) is None and not self._is_overdue(elapsed_s, usual_s)
            held_s += min(elapsed_s, usual_s) if is_over else elapsed_s
        between_s = ((self._now_s - begun_s) * slots - held_s) / (len(done) + len(running))
        return replace(launch, between_s=max(0.0, between_s), rungs=rungs)

    def _find_rungs(self, done: Sequence[Fate], usual: Callable[[CellState], float], whole_s: float) -> list[_Rung]:
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
            shares = [min(1.0, fate.last_s / usual(fate.cell)) for fate in done if fate.cell in stopped]
            if not shares and not (totals and step < statistics.median(totals)):
                continue
            at = statistics.fmean(shares) if shares else step / statistics.median(totals) + _JUDGED_S / whole_s
            reached = sorted((cell for cell in cells if step in cell.rungs), key=lambda cell: cell.rung_order[step])
            over = [cell for cell in reached[least - 1 :] if cell.done or max(cell.rungs) > step]
            passed = sum(cell not in stopped for cell in over)
            share = (passed + _SHARE_WEIGHT / factor) / (len(over) + _SHARE_WEIGHT)
            here = {settings[cell.cell.name] for cell in reached} | begun
            found.append(_Rung(at, share if expected > 1 else 1.0, share if len(here) >= min(least, expected) else 1.0))
            expected *= share
        return found

    def _pace_s(self, run: Run) -> float | None:
        """Return what its own steps say is left; None where they do not, or have stopped coming."""
        return run.left_s(self._now_s)

    def _spend(self, cell: CellState, run: Run) -> Fate:
        """Return what a live cell has taken so far, with its runs before that failed."""
        former, attempts_s = self._former.get(cell.cell.name, Fate(cell)), run.attempts_s(self._now_s) or [0.0]
        tries = [why for _, why in list_earlier_ends(run.events)]
        lost_s = [s for s, why in zip(attempts_s, tries, strict=False) if _is_outside(why)]
        took_s = former.took_s + sum(attempts_s) - sum(lost_s)
        attempts = former.attempts + len(attempts_s) - len(lost_s)
        return replace(former, took_s=took_s, last_s=attempts_s[-1], attempts=attempts, is_now=True)

    def _is_overdue(self, elapsed_s: float, usual_s: float) -> bool:
        return elapsed_s > max(_OVERDUE * usual_s, usual_s + _UNNOTED_S)

    def _elapsed_s(self, run: Run) -> float:
        return max(0.0, self._now_s - posix(run.started_at)) if run.started_at else 0.0


def _leave_out(
    key: tuple[str, ...], fate: Fate, scale: float, sums: Mapping[tuple[tuple[str, ...], bool], tuple[float, int]]
) -> tuple[float, int]:
    """Return sum and number of the other ends of its group: of this round, or of former ones before any other."""
    for is_now in (True, False):
        total, count = sums.get((key, is_now), (0.0, 0))
        if is_now is fate.is_now:
            total, count = total - scale, count - 1
        if count:
            break
    return total, count


class Peers:
    """The ends of the cells of one launch. For a cell those count that are most like it, by settings that tell apart.

    Which settings do so is found by leaving out one end after the other: all without seeds, a single one, or none. An
    end of a former round counts until one of its group has ended in this.
    """

    def __init__(
        self, fates: Sequence[Fate], fit: Callable[[CellState], float] | None, cells: Sequence[CellState]
    ) -> None:
        self._fit = fit
        self._names = list(dict.fromkeys(name for cell in cells for name in cell.settings if not is_seed(name)))
        self.fates = sorted(fates, key=lambda fate: fate.is_now)[-_MOST_PEERS:]
        self.has_others = any(not fate.is_plain for fate in self.fates)
        self._by, self._weight = self._choose() if self.has_others else ((), 0.0)
        self._groups, self.settings = self._divide(self._by), self._divide(self._names)

    def find(self, cell: CellState) -> tuple[list[Fate], float]:
        """Return the ends of its group, and how much those of other settings count beside them, in ends."""
        return _newest(self._groups.get(self.name_group(cell), [])), self._weight

    def name_group(self, cell: CellState) -> tuple[str, ...]:
        """Return the settings of its group; those without an end are one, as nothing tells them apart."""
        key = _read_key(cell, self._by)
        return key if key in self._groups else ()

    def has_same(self, cell: CellState) -> bool:
        """Return whether a cell of the same setting has ended."""
        return _read_key(cell, self._names) in self.settings

    def scale(self, fate: Fate) -> float:
        """Return how long it took, in lengths of a whole training of its cell, or in seconds before any is known."""
        return fate.took_s if self._fit is None else fate.took_s / max(self._fit(fate.cell), SHORTEST_S)

    def _divide(self, names: Sequence[str]) -> dict[tuple[str, ...], list[Fate]]:
        groups: dict[tuple[str, ...], list[Fate]] = {}
        for fate in self.fates:
            groups.setdefault(_read_key(fate.cell, names), []).append(fate)
        return groups

    def _choose(self) -> tuple[Sequence[str], float]:
        if self._fit is None:
            return self._names, 0.0
        scales = [(fate, self.scale(fate)) for fate in self.fates]
        mean = statistics.fmean(scale for _, scale in scales)
        best, least = (tuple(self._names), 0.0), math.inf
        for names in (self._names, *([name] for name in self._names), []):
            keys = [_read_key(fate.cell, names) for fate in self.fates]
            sums: dict[tuple[tuple[str, ...], bool], tuple[float, int]] = {}
            for key, (fate, scale) in zip(keys, scales, strict=True):
                total, count = sums.get((key, fate.is_now), (0.0, 0))
                sums[key, fate.is_now] = total + scale, count + 1
            others = [_leave_out(key, fate, scale, sums) for key, (fate, scale) in zip(keys, scales, strict=True)]
            for weight in _WEIGHTS:
                error = 0.0
                for (_, scale), (total, count) in zip(scales, others, strict=True):
                    error += (scale - ((total + weight * mean) / (count + weight) if count + weight else mean)) ** 2
                if error < least * _BETTER:
                    best, least = (tuple(names), weight), error
        return best


def _newest(fates: list[Fate]) -> list[Fate]:
    return [fate for fate in fates if fate.is_now] or fates


def _read_key(cell: CellState, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(cell.planned(name)) for name in names)


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
    """The cells of one launch: how long a whole training takes by its settings, and how such cells ended.

    ``fit`` is None before the length of any is known. ``between_s``: for each cell, the time of its slot that none ran.
    """

    fit: Callable[[CellState], float] | None
    peers: Peers
    between_s: float = 0.0
    rungs: Sequence[_Rung] = ()

    def left_s(self, spent: Fate, pace_s: float | None, *, is_again: bool) -> float | None:
        """Return how long a cell still takes that has ``spent`` so much; ``is_again``: another attempt begins.

        As long as its own steps say, or a whole training takes; as long as those took that failed, hung or were tried
        again, as often as they are among its like.
        """
        usual_s = None if self.fit is None else self.fit(spent.cell)
        if usual_s is None and not self.peers.has_same(spent.cell):
            return pace_s
        own_s = self._own_s(spent, pace_s, usual_s, is_again=is_again)
        if not self.peers.has_others:
            return own_s
        group, weight = self.peers.find(spent.cell)
        near = self._mean_s(group, spent, own_s, usual_s, is_again=is_again)
        if near is not None and not weight:
            return near
        # Settings count as often as they are, and some are plain: of a new one nobody knows whether it hangs.
        settings = map(_newest, self.peers.settings.values())
        known = [self._mean_s(fates, spent, own_s, usual_s, is_again=is_again) for fates in settings]
        others = [each for each in (*known, *[own_s] * _PLAIN) if each is not None]
        far = statistics.fmean(others) if others else None
        if near is None or far is None:
            return far if near is None else near
        return (near * len(group) + far * weight) / (len(group) + weight)

    def _mean_s(
        self, fates: Sequence[Fate], spent: Fate, own_s: float | None, usual_s: float | None, *, is_again: bool
    ) -> float | None:
        attempts = spent.attempts + is_again
        found = []
        for fate in fates:
            whole_s = self.peers.scale(fate) * (usual_s or 1.0)
            if fate.attempts < attempts:
                continue
            if fate.state in _WHOLE and fate.attempts == attempts:
                found += [] if own_s is None else [own_s]
            elif whole_s > spent.took_s:
                found.append(whole_s - spent.took_s)
        return statistics.fmean(found) if found else None

    def _own_s(self, spent: Fate, pace_s: float | None, usual_s: float | None, *, is_again: bool) -> float | None:
        """Return how long its present attempt takes if it is a whole training: None where it is beyond that."""
        if pace_s is not None or usual_s is None:
            return pace_s
        last_s = 0.0 if is_again else spent.last_s
        is_hung = last_s > max(_OVERDUE * usual_s, usual_s + _UNNOTED_S)
        return None if is_hung else max(0.0, usual_s - last_s)

    def draw_share(self, chance: random.Random, begun: float = 0.0, *, is_live: bool = False) -> float:
        """Return the share of a whole training that a cell still runs which has run ``begun`` of it."""
        for rung in self.rungs:
            if rung.at > begun and chance.random() >= (rung.live if is_live else rung.waiting):
                return rung.at - begun
        return max(0.0, 1.0 - begun)


def _first_starts_s(sweep: Sweep) -> dict[str, float]:
    """Return by phase when its first cell was started in the present round, POSIX time."""
    phases = {cell.cell.name: cell.cell.phase for cell in sweep.cells}
    found: dict[str, float] = {}
    for event in sweep.round_events:
        if event["kind"] == "cell_started" and "at" in event and (phase := phases.get(event.get("cell", ""))):
            found.setdefault(phase, posix(event["at"]))
    return found
