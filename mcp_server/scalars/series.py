"""Series of a run, and how what several event files tell of one tag becomes one of them: pure, on numpy arrays.

A training that was restarted tells steps again. What it tells later replaces what it told before, from its first step
on: a point stays only while every later one of its tag has a higher step. A START in a session log says the same of
all tags at once. TensorBoard heeds START in files of version 2 and falling steps in those of version 1; most
loggers write version 2 without START, so both count here. Two writers that are alive at the same time are no restart,
nor are points that threads of one writer tell a few places too late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MOST_NAMED = 3  # of a kind in the notes
_LATE = 8  # places at which a point may stand away from its step's, as threads and queues bring about


@dataclass(frozen=True, eq=False)
class Series:
    """One tag of one run as the training went: steps rise, each with the newest value told of it.

    ``steps``, ``walls`` (POSIX seconds) and ``values`` have the same shape (n,) and cannot be written. Where a
    logger passes no step, all steps are 0 and the points stand in the order told. ``restarts``: the steps from
    which a restart replaced what had been told before, in order. ``writers`` > 1: as many wrote this tag
    at the same time; all their points are kept, in the order of ``walls``, so steps may repeat or fall.
    """

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    restarts: tuple[int, ...] = ()
    writers: int = 1


@dataclass(frozen=True, eq=False)
class RunScalars:
    """The series of the run that lies directly in ``path``, by tag.

    ``notes`` tells in words what a reader of the numbers should know: damage, restarts, two writers. ``bytes`` is
    the size of the event files together.
    """

    path: Path
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class FilePoints:
    """What one event file tells of one tag, in file order; the arrays have the same shape (n,), n > 0.

    ``starts``: the START events of this file as (how many of the points stand before it, its step).
    ``later``: the steps of START events in other files that purge this one, in order.
    """

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    starts: Sequence[tuple[int, int]] = ()
    later: Sequence[int] = ()


def merge_files(told: Sequence[FilePoints]) -> Series:
    """Return the series of one tag from what the event files of a run tell of it, in the order of the files.

    Files count in the order of their first wall times. One that begins before an earlier one ends is a live writer
    beside it, and neither replaces points of the other. The series is empty where a START purged all.
    """
    parts = [_purged(one, number) for number, one in enumerate(sorted(told, key=lambda one: one.walls[0]))]
    restarts = [restart for part in parts for restart in part.restarts]
    groups = _groups([part for part in parts if len(part.steps)])
    if not any(part.steps.any() for group in groups for part in group):  # no step was passed: nothing is told twice
        return _series([_side_by_side(group) for group in groups], restarts)
    kept: list[_Part] = []
    for group in groups:
        first = min(int(part.steps[0]) for part in group)
        if kept and max(int(part.steps.max()) for part in kept) >= first:
            restarts.append((group[0].number, -1, first))
        ahead = _side_by_side([_newest_kept(part) for part in group])
        restarts.extend(ahead.restarts)
        lowest = int(ahead.steps.min())
        kept = [rest for part in kept if len((rest := part.where(part.steps < lowest)).steps)]
        kept.append(ahead)
    return _series(kept, restarts)


def describe_series(series: Mapping[str, Series]) -> list[str]:
    """Return in words where a restart replaced points, and that several wrote at the same time."""
    notes = []
    restarts = max(
        (one.restarts for one in series.values()), key=lambda steps: (len(steps), [-s for s in steps]), default=()
    )
    if restarts:
        steps = ", ".join(f"{step:,}" for step in restarts[-_MOST_NAMED:])
        which = f"at step {steps}" if len(restarts) == 1 else f"{len(restarts)} times, at steps {steps}"
        if len(restarts) > _MOST_NAMED:
            which = f"{len(restarts):,} times, last at steps {steps}"
        notes.append(f"Restarted {which}: what was told again from there on replaces what was told before.")
    if (writers := max((one.writers for one in series.values()), default=1)) > 1:
        tags = sorted(tag for tag, one in series.items() if one.writers > 1)
        shown = ", ".join(tags[:_MOST_NAMED]) + (" …" if len(tags) > _MOST_NAMED else "")
        notes.append(
            f"{writers} live writers tell {shown} at the same time: all their points are kept, in order of time."
        )
    return notes


def shorten_list(texts: Sequence[str]) -> list[str]:
    """Return the first three, and how many more there are."""
    if len(texts) <= _MOST_NAMED:
        return list(texts)
    return [*texts[:_MOST_NAMED], f"{len(texts) - _MOST_NAMED} more like these."]


_Restart = tuple[int, int, int]  # number of the file, position in it, step


@dataclass(frozen=True, eq=False)
class _Part:
    """What remains of what a file tells, or several that were written side by side."""

    number: int
    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    restarts: tuple[_Restart, ...] = ()
    writers: int = 1

    def where(self, keep: NDArray[np.bool_]) -> "_Part":
        """Return the part with only those points; itself if that is all of them."""
        if keep.all():
            return self
        return replace(self, steps=self.steps[keep], walls=self.walls[keep], values=self.values[keep])


def _purged(told: FilePoints, number: int) -> _Part:
    """Return what the START events leave of a file."""
    part = _Part(number, told.steps, told.walls, told.values)
    restarts: list[_Restart] = []
    count = len(told.steps)
    keep: NDArray[np.bool_] | None = None
    for position, step in [*told.starts, *((count, step) for step in told.later)]:
        purged = told.steps[:position] >= step
        if keep is not None:
            purged &= keep[:position]
        if purged.any():
            keep = np.ones(count, np.bool_) if keep is None else keep
            keep[:position] &= ~purged
            restarts.append((number, position, step))
    return part if keep is None else replace(part.where(keep), restarts=tuple(restarts))


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Put those together whose wall times overlap."""
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


def _newest_kept(part: _Part) -> _Part:
    """Return the points that no later one of the same file replaces; a step that falls is a restart.

    Unless no step is told twice and all points are near the places where their steps belong: those came late.
    """
    steps = part.steps
    if (steps[1:] > steps[:-1]).all():
        return replace(part, restarts=())
    order = np.argsort(steps, kind="stable")
    if np.abs(order - np.arange(len(order))).max() <= _LATE and (np.diff(steps[order]) > 0).all():
        return replace(part, steps=steps[order], walls=part.walls[order], values=part.values[order], restarts=())
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
    falls = np.flatnonzero(steps[1:] < steps[:-1]) + 1
    restarts = tuple((part.number, int(at), int(steps[at])) for at in falls)
    return replace(part.where(np.append(steps[:-1] < lowest_after[1:], True)), restarts=restarts)


def _side_by_side(group: Sequence[_Part]) -> _Part:
    """Return what live writers tell as one part, in the order of wall times."""
    if len(group) == 1:
        return group[0]
    walls = np.concatenate([part.walls for part in group])
    order = np.argsort(walls, kind="stable")
    return _Part(
        group[0].number,
        np.concatenate([part.steps for part in group])[order],
        walls[order],
        np.concatenate([part.values for part in group])[order],
        tuple(restart for part in group for restart in part.restarts),
        len(group),
    )


def _series(parts: Sequence[_Part], restarts: list[_Restart]) -> Series:
    writers = max((part.writers for part in parts), default=1)
    told = tuple(step for _, _, step in sorted(restarts))
    if len(parts) == 1:
        return Series(parts[0].steps, parts[0].walls, parts[0].values, told, writers)
    empty = np.empty(0)
    return Series(
        np.concatenate([empty.astype(np.int64), *(part.steps for part in parts)]),
        np.concatenate([empty, *(part.walls for part in parts)]),
        np.concatenate([empty, *(part.values for part in parts)]),
        told,
        writers,
    )
