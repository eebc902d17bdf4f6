"""Which event files of one directory come from one program, and which from several: by their names and their points.

A file's name holds the process that wrote it. Files of one process, and of the attempts of one run, are one program's.
A file of another process is another program's where its steps go back while the other's still grow. A later one goes on
with the program before it, as a resumed run does; of several programs, nothing says with which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcp_server.record.scalar_files import parse_event_name
from mcp_server.scalars.series import Points
from mcp_server.scalars.tensorboard.tail import EventFile

_MOST_TAGS, _MOST_POINTS = 50, 500  # that are compared: two programs with the same tags differ at once
_CERTAIN = 2  # steps that go back; one is a late evaluation


@dataclass(frozen=True)
class Writer:
    """``processes``: the readings of a file's name, of which one is true. ``attempt``: of its run, 0 without one."""

    processes: frozenset[tuple[int, str]]
    attempt: int = 0

    @classmethod
    def of(cls, name: str, attempt: int = 0) -> Writer:
        """Return the writer of the event file with this name."""
        parsed = parse_event_name(name)
        return cls(frozenset(parsed.writers if parsed else ()), attempt)

    def is_same(self, other: Writer) -> bool:
        """Return whether both are surely one program: one process, or two attempts of a run."""
        return self.attempt != other.attempt or not self.processes.isdisjoint(other.processes)


def group_programs(files: Sequence[EventFile], writers: Sequence[Writer]) -> list[list[int]]:
    """Return the indices of the files of each program, in the order of the programs' first points."""
    spans = [file.span for file in files]
    programs: list[list[int]] = []
    ends: list[float] = []
    for index in sorted(range(len(files)), key=lambda index: spans[index][0]):
        known = [n for n, program in enumerate(programs) if any(writers[index].is_same(writers[i]) for i in program)]
        if known or (len(programs) == 1 and not _goes_back(files, spans[index][0], ends[0], index, programs[0])):
            number = known[0] if known else 0
            programs[number].append(index)
            ends[number] = max(ends[number], spans[index][1])
        else:
            programs.append([index])
            ends.append(spans[index][1])
    return programs


def _goes_back(files: Sequence[EventFile], begun_s: float, end_s: float, index: int, program: Sequence[int]) -> bool:
    return begun_s < end_s and any(_interfere(files[index], files[other]) for other in program)


def _interfere(one: EventFile, other: EventFile) -> bool:
    """Return whether two files log the same or lower steps of a tag in turn, at the same time."""
    tags = [tag for tag in one.tags() if tag in set(other.tags())]
    for tag in tags[:_MOST_TAGS]:
        pair = [points for points in (one.points(tag), other.points(tag)) if points is not None]
        begun_s = max((points.walls[0] for points in pair), default=np.nan)
        end_s = min((points.walls[-1] for points in pair), default=np.nan)
        if len(pair) == 1 or not begun_s <= end_s:
            continue
        parts = [_cut(points, begun_s, end_s) for points in pair]
        order = np.argsort(np.concatenate([part.walls for part in parts]), kind="stable")
        steps = np.concatenate([part.steps for part in parts])[order]
        source = np.repeat([0, 1], [len(part.steps) for part in parts])[order]
        goes_back = (steps[1:] <= steps[:-1]) & (source[1:] != source[:-1])
        if steps.any() and int(goes_back.sum()) >= _CERTAIN:
            return True
    return False


def _cut(points: Points, begun_s: float, end_s: float) -> Points:
    first = max(0, int(np.searchsorted(points.walls, begun_s)) - 1)
    last = min(int(np.searchsorted(points.walls, end_s, "right")) + 1, first + _MOST_POINTS)
    return points.where(slice(first, last))
