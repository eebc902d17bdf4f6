"""The series of a run, and how the points of one tag in several event files become one series. Pure, on numpy arrays.

No point is lost silently: a step that is logged again keeps all its points, and only a restart replaces earlier ones:

- a START in a session log, or the header of a table that was appended to another one. TensorBoard does the same;
- a later event file whose points begin below the end of the earlier ones: more than one point, as an evaluation or a
  test at step 0 writes, and no live writer beside, whose times overlap. It may be another program: that is told;
- a header in a table, after which the steps begin again at the beginning: no row says who wrote it;
- in one file, at least three points that repeat most of the steps that they span, from the middle of the series on.

Steps that fall back to the beginning of one file may count batches: their order is kept. Late points are sorted.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mcp_server.text.formatting import join_some

MOST_TAGS = 10_000  # of a file or run; otherwise one with a new tag in every record fills the memory
_MOST_LISTED = 3  # of a kind in the notes
_STRETCH = 3  # points that can repeat a stretch; fewer are late ones
_LONE = 10  # usual distances between steps: a point so far before the others of its file is on its own
_MOST_COMPARED = 2_000  # points, for two programs in turn
_MOST_STRETCHES = 64  # that are examined in a file, each as expensive as a sort


@dataclass(frozen=True, eq=False)
class Points:
    """Points of one tag: ``steps``, ``walls`` (POSIX seconds) and ``values`` have the same shape (n,)."""

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The three arrays."""
        return self.steps, self.walls, self.values

    def where(self, index: NDArray[Any] | slice) -> Self:
        """Return the selected points, with all else that is known of them."""
        return replace(self, steps=self.steps[index], walls=self.walls[index], values=self.values[index])


def join_points(parts: Sequence[Points]) -> Points:
    """Return the points of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    steps = np.concatenate([np.empty(0, np.int64), *(part.steps for part in parts)])
    walls, values = ([part.walls for part in parts], [part.values for part in parts])
    return Points(steps, np.concatenate([np.empty(0), *walls]), np.concatenate([np.empty(0), *values]))


@dataclass(frozen=True, eq=False)
class Series(Points):
    """One tag of one run, by step, in read-only arrays. Points of one step keep the order in which they were logged.

    ``restarts``: the steps from which a restart replaced earlier points. ``writers`` > 1: so many processes wrote this
    tag at the same time; all points are kept, in the order of ``walls``. ``cycles``: how often the steps fall back to
    their beginning; the order logged is kept. ``late``: points logged after a higher step, which are sorted;
    ``in_turn``: as if two programs wrote one file. ``replaced``: points left out since another process, perhaps another
    program, began again at the beginning, at the steps ``doubted`` of ``restarts``. Where a logger passes no step, all
    are 0.
    """

    restarts: tuple[int, ...] = ()
    writers: int = 1
    cycles: int = 0
    late: int = 0
    in_turn: bool = False
    replaced: int = 0
    doubted: tuple[int, ...] = ()

    @property
    def certain_restarts(self) -> tuple[int, ...]:
        """The restarts that are surely none of another program."""
        steps = list(self.restarts)
        for step in self.doubted:
            steps.remove(step)
        return tuple(steps)


@dataclass(frozen=True, eq=False)
class RunScalars:
    """The series of a run by tag.

    ``notes``: what a reader of the numbers should know, such as damage, restarts, two writers. ``programs``: the names
    of each one's event files, where several wrote there.
    """

    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()


class ScalarsUnreadable(Exception):
    """A file, database or directory has no scalars that can be read. The message says why."""


@dataclass(frozen=True, eq=False)
class FilePoints(Points):
    """The points of one tag in one event file, in file order, n > 0.

    ``starts``: the START events of this file as (number of points before it, its step).
    ``later``: the steps of START events in other files that purge this one, in order. ``writer``: for ``is_same``.
    ``is_table``: its starts are headers, of a restart or of another program.
    """

    starts: Sequence[tuple[int, int]] = ()
    later: Sequence[int] = ()
    writer: Any = None
    is_table: bool = False


def merge_files(files: Sequence[FilePoints], is_same: Callable[[Any, Any], bool] = operator.is_) -> Series:
    """Return the series of one tag from its points in the event files of a run.

    Files count in the order of their first wall times. A file that begins before an earlier one ends has another live
    writer, and neither replaces points of the other. The series is empty where a START purged all points.
    """
    files = sorted(files, key=lambda file: file.walls[0])
    parts = [_purge(file, number) for number, file in enumerate(files)]
    replaced, doubted = sum(part.replaced for part in parts), [step for part in parts for step in part.doubted]
    restarts = [restart for part in parts for restart in part.restarts]
    groups = _group_overlapping([part for part in parts if len(part.steps)])
    if not any(
        part.steps.any() for group in groups for part in group
    ):  # no step was passed, so no step is logged twice
        whole = _build_series([_interleave(group) for group in groups], restarts)
        return replace(whole, replaced=replaced, doubted=tuple(doubted))
    merged: list[_Part] = []
    for group in groups:
        newest = _interleave([_drop_repeated_stretches(part) for part in group])
        restarts.extend(newest.restarts)
        first = _find_start(newest.steps, [part.steps for part in merged]) if merged else None
        if first is not None:
            before, merged = merged, [rest for part in merged if len((rest := _keep(part, part.steps < first)).steps)]
            restarts.append((group[0].number, -1, first))
            if not merged and not is_same(files[before[-1].number].writer, files[group[0].number].writer):
                replaced += sum(len(part.steps) for part in before)
                doubted.append(first)
        merged.append(newest)
    return replace(_build_series(merged, restarts), replaced=replaced, doubted=tuple(doubted))


def join_programs(series: Sequence[Series]) -> Series:
    """Return the series of several programs that wrote one tag as one, in the order of time."""
    if len(series) == 1:
        return series[0]
    restarts = tuple(step for one in series for step in one.restarts)
    joined = _join_by_time(series)
    return Series(*joined.arrays, restarts, sum(one.writers for one in series), max(one.cycles for one in series))


def _join_by_time(parts: Sequence[Points]) -> Points:
    joined = join_points(parts)
    return joined.where(np.argsort(joined.walls, kind="stable"))


def describe_series(series: Mapping[str, Series]) -> list[str]:
    """Return one sentence on restarts and one on concurrent writers, where there were any."""
    notes = []
    restarts = max(
        (one.certain_restarts for one in series.values()),
        key=lambda steps: (len(steps), [-s for s in steps]),
        default=(),
    )
    if restarts:
        steps = ", ".join(f"{step:,}" for step in restarts[-_MOST_LISTED:])
        which = f"at step {steps}" if len(restarts) == 1 else f"{len(restarts)} times, at steps {steps}"
        if len(restarts) > _MOST_LISTED:
            which = f"{len(restarts):,} times, last at steps {steps}"
        notes.append(f"Restarted {which}: later points replace earlier ones from there on.")
    notes += describe_programs(series)
    if cycling := {tag: one.cycles for tag, one in series.items() if one.cycles}:
        most = max(cycling.values())
        how_often = "once" if most == 1 else f"{most:,} times"
        notes.append(
            f"Steps of {_list_tags(cycling)} fall back to their beginning, {how_often}: "
            "all points are kept, in the order logged. They may count batches within an epoch, start again, or be "
            "another program's."
        )
    if in_turn := {tag: one for tag, one in series.items() if one.in_turn}:
        notes.append(
            f"Steps of {_list_tags(in_turn)} go back and forth, as where two programs write one file, which does not "
            "say who wrote a row: all points are kept, sorted by step."
        )
    if late := {tag: one.late for tag, one in series.items() if one.late >= _STRETCH and not one.in_turn}:
        notes.append(
            f"Up to {max(late.values()):,} points of {_list_tags(late)} were logged after higher steps: "
            "all are kept, sorted by step."
        )
    return notes


def describe_programs(series: Mapping[str, Series]) -> list[str]:
    """Return what a reader should know where other processes, perhaps other programs, wrote some of the points."""
    notes = []
    if replaced := max((one.replaced for one in series.values()), default=0):
        notes.append(
            f"Another process began again at the beginning, a restart or another program, which its file does not say: "
            f"up to {replaced:,} earlier points of a tag are not shown."
        )
    if (writers := max((one.writers for one in series.values()), default=1)) > 1:
        listed = _list_tags({tag: one for tag, one in series.items() if one.writers > 1})
        notes.append(
            f"{writers} processes wrote {listed} here, at the same time: all points are kept, in order of time."
        )
    return notes


def _list_tags(tags: Mapping[str, object]) -> str:
    return join_some(sorted(tags), _MOST_LISTED)


def shorten_list(texts: Sequence[str]) -> list[str]:
    """Return the first three texts, and the number of the others."""
    if len(texts) <= _MOST_LISTED:
        return list(texts)
    return [*texts[:_MOST_LISTED], f"{len(texts) - _MOST_LISTED} more like these."]


_Restart = tuple[int, int, int]  # number of the file, position in it, step


@dataclass(frozen=True, eq=False)
class _Part(Points):
    """The remaining points of one file, or of several files that were written at the same time."""

    number: int
    restarts: tuple[_Restart, ...] = ()
    writers: int = 1
    cycles: int = 0
    replaced: int = 0
    doubted: tuple[int, ...] = ()


def _purge(file: FilePoints, number: int) -> _Part:
    """Return the points of a file that no START event purges."""
    part = _Part(*file.arrays, number)
    restarts: list[_Restart] = []
    count = len(file.steps)
    keep: NDArray[np.bool_] | None = None
    replaced, doubted = 0, list[int]()
    for position, step in [*file.starts, *((count, step) for step in file.later)]:
        purged = file.steps[:position] >= step
        if keep is not None:
            purged &= keep[:position]
        if purged.any():
            keep = np.ones(count, np.bool_) if keep is None else keep
            keep[:position] &= ~purged
            restarts.append((number, position, step))
            if file.is_table and not keep[:position].any():
                replaced += int(purged.sum())
                doubted.append(step)
    if keep is None:
        return part
    return replace(part.where(keep), restarts=tuple(restarts), replaced=replaced, doubted=tuple(doubted))


def _group_overlapping(parts: Sequence[_Part]) -> list[list[_Part]]:
    groups: list[list[_Part]] = []
    end = -np.inf
    for part in parts:
        if groups and part.walls[0] < end:
            groups[-1].append(part)
            end = max(end, part.walls[-1])
        else:
            groups.append([part])
            end = part.walls[-1]
    return groups


def is_rising(steps: NDArray[np.int64]) -> bool:
    """Return whether no step is lower than the one before it."""
    return bool((steps[1:] >= steps[:-1]).all())


def _drop_repeated_stretches(part: _Part) -> _Part:
    """Return the points that no later stretch, from one fall of the steps to the next, repeats; with the cycles."""
    steps = part.steps
    if is_rising(steps) or _go_in_turn(steps):
        return replace(part, restarts=())
    changes = np.diff(steps)
    falls = np.flatnonzero(changes < 0) + 1
    usual = float(np.median(changes[changes > 0])) if (changes > 0).any() else 1.0
    lowest, highest = np.minimum.accumulate(steps), np.maximum.accumulate(steps)
    ends = np.append(falls[1:], len(steps))
    third = np.minimum(falls + _STRETCH - 1, len(steps) - 1)
    repeats = (ends - falls >= _STRETCH) & (steps[third] <= highest[falls - 1])
    at_beginning = steps[falls] <= lowest[falls - 1] + 2 * usual
    keep = np.ones(len(steps), np.bool_)
    restarts: list[_Restart] = []
    for begin, end in np.column_stack([falls, ends])[repeats & ~at_beginning][:_MOST_STRETCHES].tolist():
        if _is_repeated(steps[:begin][keep[:begin]], steps[begin:end]):
            keep[:begin] &= steps[:begin] < steps[begin]
            restarts.append((part.number, begin, int(steps[begin])))
    # The stretch before it spans the same steps, and not only a single high one.
    cycles = repeats & at_beginning & (steps[np.append(0, falls[:-1])] <= steps[third])
    count = int(cycles.sum())
    if count == 1:  # evaluations between earlier ones begin a little later
        count = int((cycles & (steps[falls] <= lowest[falls - 1])).sum())
    return replace(_keep(part, keep), restarts=tuple(restarts), cycles=count)


def _is_repeated(earlier: NDArray[np.int64], stretch: NDArray[np.int64]) -> bool:
    """Return whether a stretch logs at least half of the steps that it spans again, and not many others."""
    most = min(int(earlier.max()), int(stretch[-1]))
    spanned = np.unique(earlier[(earlier >= stretch[0]) & (earlier <= most)])
    logged = np.unique(stretch[stretch <= most])
    repeated = len(np.intersect1d(spanned, logged, assume_unique=True))
    return len(logged) >= _STRETCH and 2 * repeated >= max(len(spanned), len(logged))


def _find_start(steps: NDArray[np.int64], earlier: Sequence[NDArray[np.int64]]) -> int | None:
    """Return the step from which a later writer replaces points, or None. Points far before its others do not count."""
    before = np.unique(np.concatenate(earlier))
    highest = before[-1]
    if steps.min() > highest:
        return None
    logged = np.unique(steps)
    overlap = logged[: np.searchsorted(logged, highest, "right") + 1]  # and one point behind: later ones change nothing
    distances = np.diff(overlap)
    usual = float(np.median(distances)) if len(distances) >= _STRETCH else 0.0
    usual = max(usual, float(np.median(np.diff(before))) if len(before) > 1 else 1.0)
    first = 0
    while first < len(distances) and distances[first] > _LONE * usual:
        first += 1
    return int(overlap[first]) if first < len(overlap) - 1 and overlap[first] <= highest else None


def _interleave(group: Sequence[_Part]) -> _Part:
    if len(group) == 1:
        return group[0]
    restarts = tuple(restart for part in group for restart in part.restarts)
    cycles = max(part.cycles for part in group)
    return _Part(*_join_by_time(group).arrays, group[0].number, restarts, len(group), cycles)


def _keep(part: _Part, which: NDArray[np.bool_]) -> _Part:
    """Return the part with the selected points, or itself, and no copies, where all are."""
    return part if which.all() else part.where(which)


def _build_series(parts: Sequence[_Part], restarts: list[_Restart]) -> Series:
    points = join_points(parts)
    writers = max((part.writers for part in parts), default=1)
    cycles, late, in_turn = max((part.cycles for part in parts), default=0), 0, False
    if writers == 1 and not cycles and not is_rising(points.steps):
        in_turn = _go_in_turn(points.steps)
        late = int((points.steps < np.maximum.accumulate(points.steps)).sum())
        points = points.where(np.argsort(points.steps, kind="stable"))
    return Series(*points.arrays, tuple(step for _, _, step in sorted(restarts)), writers, cycles, late, in_turn)


def _go_in_turn(steps: NDArray[np.int64]) -> bool:
    """Return whether steps are those of two rising series that log the same steps in turn, as two programs do."""
    ends, logged, turns, newest = [-1, -1], (set[int](), set[int]()), 0, 0
    for step in steps[-_MOST_COMPARED:].tolist():
        fitting = [number for number in (0, 1) if ends[number] < step]
        if not fitting:
            return False
        number = max(fitting, key=lambda each: ends[each])
        turns += number != newest
        ends[number], newest = step, number
        logged[number].add(step)
    one, other = logged
    return turns >= 2 * _STRETCH and 2 * len(one & other) >= min(len(one), len(other)) >= _STRETCH
