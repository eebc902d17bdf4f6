"""The series of a run, and how the points of one tag in several event files become one series. Pure, on numpy arrays.

A restarted training run logs steps again. Its later points replace the earlier ones from its first step on: a point is
kept only while every later point of its tag has a higher step. A START in a session log does the same for
all tags at once. TensorBoard observes START in files of version 2 and falling steps in files of version 1. Most
loggers write version 2 without START, so both count here. Two writers that are alive at the same time are not a
restart, nor are points that threads of one writer log a few positions too late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MOST_LISTED = 3  # of a kind in the notes
_LATE = 8  # positions by which threads and queues may delay a point


@dataclass(frozen=True, eq=False)
class Series:
    """One tag of one run: rising steps, each with the value that was logged last.

    ``steps``, ``walls`` (POSIX seconds) and ``values`` have the same shape (n,) and are read-only. Where a
    logger passes no step, all steps are 0 and the points keep the order in which they were logged. ``restarts``: the
    steps from which a restart replaced earlier points, in order. ``writers`` > 1: so many processes wrote this tag
    at the same time; all their points are kept, in the order of ``walls``, so steps may repeat or fall.
    """

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    restarts: tuple[int, ...] = ()
    writers: int = 1


@dataclass(frozen=True, eq=False)
class RunScalars:
    """The series of the run stored directly in ``path``, by tag.

    ``notes``: what a reader of the numbers should know, such as damage, restarts, two writers. ``bytes``: the total
    size of its files.
    """

    path: Path
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()
    bytes: int = 0


class ScalarsUnreadable(Exception):
    """A file, database or directory has no scalars that can be read. The message says why."""


@dataclass(frozen=True, eq=False)
class FilePoints:
    """The points of one tag in one event file, in file order, as arrays of the same shape (n,), n > 0.

    ``starts``: the START events of this file as (number of points before it, its step).
    ``later``: the steps of START events in other files that purge this one, in order.
    """

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    starts: Sequence[tuple[int, int]] = ()
    later: Sequence[int] = ()


def merge_files(files: Sequence[FilePoints]) -> Series:
    """Return the series of one tag from its points in the event files of a run.

    Files count in the order of their first wall times. A file that begins before an earlier one ends has another live
    writer, and neither replaces points of the other. The series is empty where a START purged all points.
    """
    parts = [_purge(file, number) for number, file in enumerate(sorted(files, key=lambda file: file.walls[0]))]
    restarts = [restart for part in parts for restart in part.restarts]
    groups = _group_overlapping([part for part in parts if len(part.steps)])
    if not any(
        part.steps.any() for group in groups for part in group
    ):  # no step was passed, so no step is logged twice
        return _build_series([_interleave(group) for group in groups], restarts)
    merged: list[_Part] = []
    for group in groups:
        first = min(int(part.steps[0]) for part in group)
        if merged and max(int(part.steps.max()) for part in merged) >= first:
            restarts.append((group[0].number, -1, first))
        newest = _interleave([_drop_replaced(part) for part in group])
        restarts.extend(newest.restarts)
        lowest = int(newest.steps.min())
        merged = [rest for part in merged if len((rest := part.where(part.steps < lowest)).steps)]
        merged.append(newest)
    return _build_series(merged, restarts)


def describe_series(series: Mapping[str, Series]) -> list[str]:
    """Return one sentence on restarts and one on concurrent writers, where there were any."""
    notes = []
    restarts = max(
        (one.restarts for one in series.values()), key=lambda steps: (len(steps), [-s for s in steps]), default=()
    )
    if restarts:
        steps = ", ".join(f"{step:,}" for step in restarts[-_MOST_LISTED:])
        which = f"at step {steps}" if len(restarts) == 1 else f"{len(restarts)} times, at steps {steps}"
        if len(restarts) > _MOST_LISTED:
            which = f"{len(restarts):,} times, last at steps {steps}"
        notes.append(f"Restarted {which}: later points replace earlier ones from there on.")
    if (writers := max((one.writers for one in series.values()), default=1)) > 1:
        tags = sorted(tag for tag, one in series.items() if one.writers > 1)
        listed = ", ".join(tags[:_MOST_LISTED]) + (" …" if len(tags) > _MOST_LISTED else "")
        notes.append(
            f"{writers} processes write {listed} at the same time: all their points are kept, in order of time."
        )
    return notes


def shorten_list(texts: Sequence[str]) -> list[str]:
    """Return the first three texts, and the number of the others."""
    if len(texts) <= _MOST_LISTED:
        return list(texts)
    return [*texts[:_MOST_LISTED], f"{len(texts) - _MOST_LISTED} more like these."]


_Restart = tuple[int, int, int]  # number of the file, position in it, step


@dataclass(frozen=True, eq=False)
class _Part:
    """The remaining points of one file, or of several files that were written at the same time."""

    number: int
    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    restarts: tuple[_Restart, ...] = ()
    writers: int = 1

    def where(self, keep: NDArray[np.bool_]) -> "_Part":
        """Return the part with only the selected points, or itself if all are selected."""
        if keep.all():
            return self
        return replace(self, steps=self.steps[keep], walls=self.walls[keep], values=self.values[keep])


def _purge(file: FilePoints, number: int) -> _Part:
    """Return the points of a file that no START event purges."""
    part = _Part(number, file.steps, file.walls, file.values)
    restarts: list[_Restart] = []
    count = len(file.steps)
    keep: NDArray[np.bool_] | None = None
    for position, step in [*file.starts, *((count, step) for step in file.later)]:
        purged = file.steps[:position] >= step
        if keep is not None:
            purged &= keep[:position]
        if purged.any():
            keep = np.ones(count, np.bool_) if keep is None else keep
            keep[:position] &= ~purged
            restarts.append((number, position, step))
    return part if keep is None else replace(part.where(keep), restarts=tuple(restarts))


def _group_overlapping(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Group the parts whose wall times overlap."""
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


def _drop_replaced(part: _Part) -> _Part:
    """Return the points that no later point of the same file replaces. A falling step is a restart.

    But where no step is logged twice and all points are near their sorted positions, they only came late.
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


def _interleave(group: Sequence[_Part]) -> _Part:
    """Return the points of concurrent writers as one part, in the order of wall times."""
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


def _build_series(parts: Sequence[_Part], restarts: list[_Restart]) -> Series:
    writers = max((part.writers for part in parts), default=1)
    steps = tuple(step for _, _, step in sorted(restarts))
    if len(parts) == 1:
        return Series(parts[0].steps, parts[0].walls, parts[0].values, steps, writers)
    empty = np.empty(0)
    return Series(
        np.concatenate([empty.astype(np.int64), *(part.steps for part in parts)]),
        np.concatenate([empty, *(part.walls for part in parts)]),
        np.concatenate([empty, *(part.values for part in parts)]),
        steps,
        writers,
    )
