"""Follows one event file: reads on from where it stopped, and notices when the file is no longer the same.

A file is known by device, inode and the bytes that were read of it, never by its time of change, which
network file systems tell wrong. It is opened for each look and closed again, and never mapped: another host may cut
it short at any moment.
"""

import itertools
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from mcp_server.scalars.tensorboard.scan import ScanResult, TagPoints, scan

_HEAD_BYTES = 64  # a writer begins with a record that holds its start time: another file differs there
_BEFORE_BYTES = 32  # end with the checksum of a record
_TAIL_BYTES = 2**20
_COLUMN_BYTES, _FILE_BYTES = 2**10, 4 * 2**10  # besides the points
_MOST_DAMAGE = 20  # reports kept of a file; a hostile one may have millions


def open_regular(path: Path) -> int:
    """Return a descriptor to read a regular file, also through a link; the caller closes it.

    Raises:
        OSError: it cannot be opened, or is a pipe, a device or a directory.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening some devices acts on them
        raise OSError("not a regular file")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return fd


@dataclass(frozen=True)
class FilePosition:
    """Where reading stopped in which file, and what tells whether it is still that file.

    ``head`` and ``before``: the first bytes and those before ``offset``. ``tail``: checksum of what waits behind it.
    """

    device: int
    inode: int
    size: int
    offset: int
    head: bytes
    before: bytes
    tail: int

    @classmethod
    def of(cls, fd: int, status: os.stat_result, offset: int) -> "FilePosition":
        """Return the mark of a file of which ``offset`` bytes were read."""
        head = os.pread(fd, min(_HEAD_BYTES, offset), 0)
        length = min(_BEFORE_BYTES, offset)
        before = os.pread(fd, length, offset - length)
        size = status.st_size
        return cls(status.st_dev, status.st_ino, size, offset, head, before, _tail(fd, offset, size))

    def matches(self, fd: int, status: os.stat_result) -> bool:
        """Tell whether the file still begins with what was read of it."""
        return (
            (status.st_dev, status.st_ino) == (self.device, self.inode)
            and os.pread(fd, len(self.head), 0) == self.head
            and os.pread(fd, len(self.before), self.offset - len(self.before)) == self.before
        )

    def has_changed(self, fd: int, status: os.stat_result) -> bool:
        """Tell whether the file has more or other bytes than when the mark was set."""
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
    """TagPoints of one tag in arrays with room behind, so that appending does not copy those before."""

    def __init__(self, points: TagPoints) -> None:
        self.count = 0
        room = _room(len(points.steps))
        self._steps = np.empty(room, np.int64)
        self._walls = np.empty(room)
        self._values = np.empty(room)
        self.append(points)

    def append(self, points: TagPoints) -> None:
        """Put points behind those there are; what ``points`` returned before stays as it is."""
        first, self.count = self.count, self.count + len(points.steps)
        if self.count > len(self._steps):
            behind = _room(self.count) - first
            self._steps = np.concatenate([self._steps[:first], np.empty(behind, np.int64)])
            self._walls = np.concatenate([self._walls[:first], np.empty(behind)])
            self._values = np.concatenate([self._values[:first], np.empty(behind)])
        self._steps[first : self.count] = points.steps
        self._walls[first : self.count] = points.walls
        self._values[first : self.count] = points.values

    def points(self, first: int = 0) -> TagPoints:
        """Return the points from number ``first`` on, without a copy; they cannot be written."""
        steps, walls, values = (
            self._steps[first : self.count],
            self._walls[first : self.count],
            self._values[first : self.count],
        )
        for array in (steps, walls, values):
            array.flags.writeable = False
        return TagPoints(steps, walls, values)

    @property
    def nbytes(self) -> int:
        """Memory that is in use, about; the room behind is not touched yet."""
        return 24 * self.count + _COLUMN_BYTES


def _room(count: int) -> int:
    return count + max(count // 4, 16)


_versions = itertools.count()


@dataclass(frozen=True)
class SessionStart:
    """A START event: its step and wall time, and how many points of each tag stand before it in the file."""

    step: int
    wall: float
    before: Mapping[str, int]


class EventFile:
    """What one event file has told so far.

    ``ahead`` is what a tail tells that is not final yet: told, but read again with the next look. ``version`` is
    another one when the file was read from its beginning again.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.mark: FilePosition | None = None
        self.columns: dict[str, GrowingPoints] = {}
        self.plugins: dict[str, str] = {}
        self.starts: list[SessionStart] = []
        self.damage: list[str] = []
        self.ahead: ScanResult | None = None
        self.version = next(_versions)

    @property
    def nbytes(self) -> int:
        """Memory that it takes, about."""
        return _FILE_BYTES + sum(column.nbytes for column in self.columns.values())

    @property
    def last_wall(self) -> float:
        """The newest wall time at which a tag was told; -inf if none was."""
        walls = [float(column.points(column.count - 1).walls[0]) for column in self.columns.values()]
        return max((wall for wall in walls if not math.isnan(wall)), default=-math.inf)

    def read_new(self, fd: int) -> bool:
        """Read what is new, all of it if the file is no longer the one read before; return whether there was any.

        Raises:
            OSError: it cannot be read; what was told before stays.
        """
        status = os.fstat(fd)
        if self.mark is not None and not self.mark.has_changed(fd, status):
            return False
        holds = self.mark is not None and self.mark.matches(fd, status)
        offset = self.mark.offset if self.mark is not None and holds else 0
        plugins = self.plugins if holds else {}
        scanned = scan(fd, offset, status.st_size, plugins)
        ahead = scan(fd, scanned.consumed, status.st_size, scanned.plugins, final=True) if scanned.waiting else None
        mark = FilePosition.of(fd, status, scanned.consumed)
        cut = os.fstat(fd).st_size < status.st_size  # meanwhile: the next look reads it anew
        if cut or not holds:
            self._reset()
        if cut:
            return True
        self.add(scanned)
        self.ahead = ahead if ahead is not None and (ahead.points or ahead.starts) else None
        self.mark = mark
        return True

    def tags(self) -> list[str]:
        """Return the tags that were told."""
        return [*self.columns, *(self.ahead.points.keys() - self.columns.keys() if self.ahead is not None else ())]

    def points(self, tag: str) -> TagPoints | None:
        """Return what the file tells of ``tag``, also what is not final yet; None if nothing."""
        ahead = self.ahead.points.get(tag) if self.ahead is not None else None
        here = self.columns[tag].points() if tag in self.columns else None
        if here is None or ahead is None:
            return here or ahead
        return TagPoints(
            np.concatenate([here.steps, ahead.steps]),
            np.concatenate([here.walls, ahead.walls]),
            np.concatenate([here.values, ahead.values]),
        )

    def all_starts(self) -> list[SessionStart]:
        """Return the START events, also those that are not final yet."""
        return self.starts if self.ahead is None else [*self.starts, *self._starts_of(self.ahead)]

    def all_damage(self) -> list[str]:
        """Return what is damaged, also near the end where something is told behind it."""
        return self.damage if self.ahead is None else _distinct([*self.damage, *self.ahead.damage])

    def add(self, scanned: ScanResult) -> None:
        """Put behind what was told what a scan found from there on."""
        self.starts += self._starts_of(scanned)
        for tag, points in scanned.points.items():
            if not len(points.steps):
                continue
            if tag in self.columns:
                self.columns[tag].append(points)
            else:
                self.columns[tag] = GrowingPoints(points)
        self.plugins.update(scanned.plugins)
        self.damage = _distinct([*self.damage, *scanned.damage])

    def _starts_of(self, scanned: ScanResult) -> list[SessionStart]:
        """Return the START events of a scan from where the columns end."""
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
    """Return for each file the steps of the START events of others that came when it was over."""
    starts = [file.all_starts() for file in files]
    if len(files) == 1 or not any(starts):
        return [[] for _ in files]
    ends = [file.last_wall for file in files]
    ordered = sorted((start.wall, n, start.step) for n, told in enumerate(starts) for start in told)
    return [
        [step for wall, n, step in ordered if n != here and (end < wall or (end == wall and here < n))]
        for here, end in enumerate(ends)
    ]
