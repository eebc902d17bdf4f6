"""Keeps what was read of event files on disk, so that the next process goes on where the last one stopped.

An entry is a file: a magic word with the version, the CRC-32C of the rest, the length of a JSON header, the header, and
the arrays as they are in memory, steps, walls and values of all tags. An entry that is not whole, not
ours or of another version counts as none: the event file is read again. Entries are replaced, never changed.
"""

import hashlib
import json
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from mcp_server.scalars.tensorboard.scan import TagPoints
from mcp_server.scalars.tensorboard.tail import EventFile, FilePosition, GrowingPoints, SessionStart

MOST_BYTES = 2 * 2**30
_MAGIC = b"rwscal01" if sys.byteorder == "little" else b"RWSCAL01"
_FRAME = struct.Struct("<8sII")  # magic, checksum of what follows it, length of the header
_CHECKED_FROM = 12
_MOST_ENTRY_BYTES = 2**30  # 40 million points: more are read from the event file
_SUFFIX, _PART = ".scalars", ".part"
_ABANDONED_S = 3600  # a half-written entry of that age has no writer any more


class Cache:
    """Entries in ``directory``, which is made on first use and readable by its owner alone.

    Nothing here raises: without a directory that can be written, or with one that others can, there is no cache.
    """

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most_bytes = most_bytes

    def load(self, path: Path, fd: int) -> EventFile | None:
        """Return what was kept of the event file ``path``, open as ``fd``; None if nothing fits it as it is now."""
        status = os.fstat(fd)
        place = _place(path, status)
        entry = self._directory / _name(place)
        with suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            self._check()
            header, points = _unpacked(_content(entry))
            mark = _mark(header)
            if header["place"] != place or not mark.matches(fd, status):
                return None
            event_file = _restored(header, points, mark)
            os.utime(entry)  # the oldest are removed first
            return event_file
        return None

    def save(self, path: Path, event_file: EventFile) -> None:
        """Keep what was read of the event file ``path``."""
        mark = event_file.mark
        if mark is None or event_file.nbytes > _MOST_ENTRY_BYTES:
            return
        with suppress(OSError):
            place = _place(path, mark)
            for directory in (self._directory.parent, self._directory):  # else the first would be as the umask allows
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            parts = _packed(place, event_file, mark)
            fd, name = tempfile.mkstemp(_PART, dir=self._directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.writelines(parts)
                Path(name).replace(self._directory / _name(place))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._tidy()

    def _check(self) -> None:
        status = self._directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError("others can write the directory of the cache")

    def _tidy(self) -> None:
        """Remove the oldest entries until the rest fits, and what a process left that died while writing."""
        entries = []
        with os.scandir(self._directory) as found:
            for entry in found:
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX):
                    entries.append((status.st_mtime, status.st_size, entry.path))
                elif entry.name.endswith(_PART) and status.st_mtime < time.time() - _ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)
        left = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if left <= self._most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            left -= size


def _place(path: Path, file: os.stat_result | FilePosition) -> list[int | str]:
    """Return what an entry is of: device, inode, real path."""
    device, inode = (file.device, file.inode) if isinstance(file, FilePosition) else (file.st_dev, file.st_ino)
    return [device, inode, os.path.realpath(path)]


def _name(place: list[int | str]) -> str:
    return hashlib.blake2b(json.dumps(place).encode(), digest_size=16).hexdigest() + _SUFFIX


def _content(entry: Path) -> bytes:
    """Return the bytes of an entry that we wrote and nobody else can.

    Raises:
        OSError: there is none, or it is not such a file.
    """
    fd = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not stat.S_ISREG(status.st_mode) or not ours or status.st_size > 2 * _MOST_ENTRY_BYTES:
            raise PermissionError("not an entry of ours")
        return file.read()


def _packed(place: list[int | str], event_file: EventFile, mark: FilePosition) -> list[bytes]:
    """Return an entry in parts."""
    points = [column.points() for column in event_file.columns.values()]
    header = {
        "place": place,
        "offset": mark.offset,
        "head": mark.head.hex(),
        "before": mark.before.hex(),
        "plugins": event_file.plugins,
        "damage": event_file.damage,
        "starts": [[start.step, start.wall, dict(start.before)] for start in event_file.starts],
        "tags": [[tag, column.count] for tag, column in event_file.columns.items()],
    }
    text = json.dumps(header).encode()
    text += b" " * (-(_FRAME.size + len(text)) % 8)  # arrays of 8-byte numbers follow
    arrays = [
        b"".join(one.steps.tobytes() for one in points),
        b"".join(one.walls.tobytes() for one in points),
        b"".join(one.values.tobytes() for one in points),
    ]
    rest = [struct.pack("<I", len(text)), text, *arrays]
    checksum = 0
    for part in rest:
        checksum = google_crc32c.extend(checksum, part)
    return [_MAGIC, struct.pack("<I", checksum), *rest]


def _unpacked(data: bytes) -> tuple[Mapping[str, Any], dict[str, TagPoints]]:
    """Return header and points of an entry.

    Raises:
        ValueError: it is not whole, or of another version.
        struct.error, KeyError, TypeError: the same.
    """
    magic, checksum, length = _FRAME.unpack_from(data)
    if magic != _MAGIC or google_crc32c.value(data[_CHECKED_FROM:]) != checksum:
        raise ValueError("not an entry of this version, or damaged")
    header = json.loads(data[_FRAME.size : _FRAME.size + length])
    total = sum(count for _, count in header["tags"])
    first = _FRAME.size + length
    if len(data) != first + 24 * total:
        raise ValueError("not as long as its header says")
    steps = np.frombuffer(data, np.int64, total, first)
    walls = np.frombuffer(data, np.float64, total, first + 8 * total)
    values = np.frombuffer(data, np.float64, total, first + 16 * total)
    points, at = {}, 0
    for tag, count in header["tags"]:
        part = slice(at, at := at + count)
        points[tag] = TagPoints(steps[part], walls[part], values[part])
    return header, points


def _mark(header: Mapping[str, Any]) -> FilePosition:
    """Return where reading stopped; its size is one that no file has, so that the tail is looked at."""
    device, inode, _ = header["place"]
    head, before = bytes.fromhex(header["head"]), bytes.fromhex(header["before"])
    return FilePosition(device, inode, -1, header["offset"], head, before, 0)


def _restored(header: Mapping[str, Any], points: Mapping[str, TagPoints], mark: FilePosition) -> EventFile:
    event_file = EventFile()
    event_file.mark = mark
    event_file.columns = {tag: GrowingPoints(one) for tag, one in points.items()}
    event_file.plugins = header["plugins"]
    event_file.damage = header["damage"]
    event_file.starts = [SessionStart(step, wall, before) for step, wall, before in header["starts"]]
    return event_file
