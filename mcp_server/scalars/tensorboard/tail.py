"""Follows one event file: reads what was appended, and detects when the file was replaced.

A file is identified by device, inode and the bytes that were read of it, never by its modification time, which
network file systems report wrongly. It is opened for each read and closed again, and never mapped, since another host
may truncate it at any moment.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mcp_server.scalars.series import MOST_TAGS, Points, join_points
from mcp_server.scalars.tensorboard.collector import describe_left_out
from mcp_server.scalars.tensorboard.scan import ScanResult, scan
from mcp_server.threads import stop_if_abandoned

_HEAD_BYTES = 64  # a writer begins with a record of its start time, in which two files differ
_BEFORE_BYTES = 32  # these end with the checksum of a record
_TAIL_BYTES = 2**20
_COLUMN_BYTES, _FILE_BYTES = 2**10, 4 * 2**10  # in addition to the points
_MOST_DAMAGE = 20  # reports kept for a file; a hostile one may have millions


@dataclass(frozen=True)
class FilePosition:
    """The offset up to which a file was read; its first bytes, those before it, and the checksum of those behind."""

    device: int
    inode: int
    size: int
    offset: int
    head: bytes
    before: bytes
    tail: int

    @classmethod
    def of(cls, fd: int, status: os.stat_result, offset: int) -> "FilePosition":
        """Return the position in a file of which ``offset`` bytes were read."""
        head = os.pread(fd, min(_HEAD_BYTES, offset), 0)
        length = min(_BEFORE_BYTES, offset)
        before = os.pread(fd, length, offset - length)
        size = status.st_size
        return cls(status.st_dev, status.st_ino, size, offset, head, before, _tail(fd, offset, size))

    def matches(self, fd: int, status: os.stat_result) -> bool:
        """Return whether the file still begins with the bytes that were read."""
        return (
            (status.st_dev, status.st_ino) == (self.device, self.inode)
            and os.pread(fd, len(self.head), 0) == self.head
            and os.pread(fd, len(self.before), self.offset - len(self.before)) == self.before
        )

    def has_changed(self, fd: int, status: os.stat_result) -> bool:
        """Return whether the file has more or other bytes than when the position was taken."""
        return (
            status.st_size != self.size
            or not self.matches(fd, status)
            or _tail(fd, self.offset, self.size) != self.tail  # a page of zeros that was filled later
        )


def _tail(fd: int, offset: int, size: int) -> int:
    if size <= offset:
        return 0
    return int(google_crc32c.value(os.pread(fd, min(size - offset, _TAIL_BYTES), offset)))


class GrowingPoints:
    """Points of one tag in arrays with spare room, so that appending does not copy the earlier points."""

    def __init__(self, points: Points) -> None:
        self.count = 0
        room = _room(len(points.steps))
        self._arrays: list[NDArray[Any]] = [np.empty(room, array.dtype) for array in points.arrays]
        self.append(points)

    def append(self, points: Points) -> None:
        """Append points. Arrays that ``points`` returned before keep their values."""
        first, self.count = self.count, self.count + len(points.steps)
        if self.count > len(self._arrays[0]):
            behind = _room(self.count) - first
            self._arrays = [np.concatenate([array[:first], np.empty(behind, array.dtype)]) for array in self._arrays]
        for array, new in zip(self._arrays, points.arrays, strict=True):
            array[first : self.count] = new

    def points(self, first: int = 0) -> Points:
        """Return the points from index ``first`` on as read-only views."""
        views = [array[first : self.count] for array in self._arrays]
        for view in views:
            view.flags.writeable = False
        return Points(*views)

    @property
    def nbytes(self) -> int:
        """Approximate memory in use. Spare room is not touched yet."""
        return 24 * self.count + _COLUMN_BYTES


def _room(count: int) -> int:
    return count + max(count // 4, 16)


_versions = itertools.count()


@dataclass(frozen=True)
class SessionStart:
    """A START event: its step and wall time, and how many points of each tag precede it in the file."""

    step: int
    wall: float
    before: Mapping[str, int]


class EventFile:
    """The content of one event file so far.

    ``ahead`` is the content of a tail that is not final yet: it is shown, and read again by the next read. ``version``
    changes when the file is read from its beginning again.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.position: FilePosition | None = None
        self.columns: dict[str, GrowingPoints] = {}
        self.plugins: dict[str, str] = {}
        self.starts: list[SessionStart] = []
        self.damage: list[str] = []
        self.ahead: ScanResult | None = None
        self.version = next(_versions)

    @property
    def nbytes(self) -> int:
        """Approximate memory in use."""
        return _FILE_BYTES + sum(column.nbytes for column in self.columns.values())

    @property
    def span(self) -> tuple[float, float]:
        """The wall times of the first and the last point of any tag, inf and -inf without points."""
        walls = [column.points().walls[[0, -1]].tolist() for column in self.columns.values()]
        known = [pair for pair in walls if not math.isnan(sum(pair))]
        return min((first for first, _ in known), default=math.inf), max((last for _, last in known), default=-math.inf)

    def read_new(self, fd: int) -> bool:
        """Read what was appended, or a replaced file whole. Return whether any was new. An OSError changes nothing."""
        status = os.fstat(fd)
        if self.position is not None and not self.position.has_changed(fd, status):
            return False
        same_file = self.position is not None and self.position.matches(fd, status)
        offset = self.position.offset if self.position is not None and same_file else 0
        plugins = self.plugins if same_file else {}
        scanned = scan(fd, offset, status.st_size, plugins)
        ahead = scan(fd, scanned.consumed, status.st_size, scanned.plugins, final=True) if scanned.waiting else None
        position = FilePosition.of(fd, status, scanned.consumed)
        truncated = os.fstat(fd).st_size < status.st_size  # meanwhile: the next read starts from the beginning
        if truncated or not same_file:
            self._reset()
        if truncated:
            return True
        self.add(scanned)
        self.ahead = ahead if ahead is not None and (ahead.points or ahead.starts) else None
        self.position = position
        return True

    def tags(self) -> list[str]:
        """Return the tags of all points."""
        return [*self.columns, *(self.ahead.points.keys() - self.columns.keys() if self.ahead is not None else ())]

    def points(self, tag: str) -> Points | None:
        """Return the points of ``tag``, including those that are not final yet, or None without points."""
        ahead = self.ahead.points.get(tag) if self.ahead is not None else None
        here = self.columns[tag].points() if tag in self.columns else None
        return here or ahead if here is None or ahead is None else join_points([here, ahead])

    def all_starts(self) -> list[SessionStart]:
        """Return the START events, including those that are not final yet."""
        return self.starts if self.ahead is None else [*self.starts, *self._starts_of(self.ahead)]

    def all_damage(self) -> list[str]:
        """Return the damage reports, also of what is not final yet, and of an end that is not a whole record."""
        if self.ahead is not None:
            return _distinct([*self.damage, *self.ahead.damage])
        if self.position is None or self.position.size <= self.position.offset:
            return self.damage
        rest = self.position.size - self.position.offset
        return [*self.damage, f"the last {rest:,} bytes are not a whole record: being written, or cut off"]

    def add(self, scanned: ScanResult) -> None:
        """Append the result of a scan that continued at the position."""
        self.starts += self._starts_of(scanned)
        left_out = 0
        for tag, points in scanned.points.items():
            stop_if_abandoned()
            if not len(points.steps):
                continue
            if tag in self.columns:
                self.columns[tag].append(points)
            elif len(self.columns) < MOST_TAGS:
                self.columns[tag] = GrowingPoints(points)
            else:
                left_out += 1
        self.plugins.update(scanned.plugins)
        if len(self.plugins) > MOST_TAGS:  # of tags that are left out, or hold no scalars, nothing is asked again
            self.plugins = {tag: self.plugins[tag] for tag in self.columns if tag in self.plugins}
        self.damage = _distinct([*self.damage, *describe_left_out(left_out), *scanned.damage])

    def _starts_of(self, scanned: ScanResult) -> list[SessionStart]:
        """Return the START events of a scan that continues where the columns end."""
        counts = {tag: column.count for tag, column in self.columns.items()}
        starts = []
        for number, (step, wall) in enumerate(scanned.starts):
            new = {tag: positions[number] for tag, positions in scanned.start_positions.items()}
            before = {tag: counts.get(tag, 0) + new.get(tag, 0) for tag in counts | new}
            starts.append(SessionStart(step, wall, before))
        return starts


def _distinct(damage: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(damage))[:_MOST_DAMAGE]


def later_starts(files: Sequence[EventFile]) -> list[list[int]]:
    """Return for each file the steps of the START events in other files that come after its last point."""
    starts = [file.all_starts() for file in files]
    if len(files) == 1 or not any(starts):
        return [[] for _ in files]
    ends = [file.span[1] for file in files]
    ordered = sorted((start.wall, n, start.step) for n, file_starts in enumerate(starts) for start in file_starts)
    return [
        [step for wall, n, step in ordered if n != here and (end < wall or (end == wall and here < n))]
        for here, end in enumerate(ends)
    ]
