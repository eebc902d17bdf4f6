"""Caches the content of event files on disk, so that the next process continues where the last one stopped.

An entry is a file: a magic word with the version, the CRC-32C of the rest, the lengths of a JSON header and of the list
of tags, the header, the tags as a JSON line each, and the arrays as they are in memory: the number of points of each
tag, steps, walls and values of all tags. An entry that is incomplete, owned by another
user or of another version is ignored: the event file is read again. Entries are replaced, never changed.
"""

import hashlib
import json
import os
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

from mcp_server.scalars.series import Points
from mcp_server.scalars.tensorboard.tail import EventFile, FilePosition, GrowingPoints, SessionStart
from mcp_server.system.files import open_regular
from mcp_server.threads import stop_if_abandoned

MOST_BYTES = 2 * 2**30
_MAGIC = b"rwscal02" if sys.byteorder == "little" else b"RWSCAL02"
_FRAME = struct.Struct("<8sIIII")  # magic, checksum of what follows it, length of the header, of the tags, their number
_CHECKED_FROM = 12
_MOST_ENTRY_BYTES = 2**30  # 40 million points; a larger file is not cached
_SUFFIX, _PART = ".scalars", ".part"
_ABANDONED_S = 3600  # the writer of a half-written entry of that age has exited


class Cache:
    """Entries in ``directory``, which only its owner may read, else it is not used. Nothing here raises."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most_bytes = most_bytes

    def load(self, path: Path, fd: int) -> EventFile | None:
        """Return the cached content of the event file ``path``, open as ``fd``, or None without a matching entry."""
        status = os.fstat(fd)
        identity = _identify(path, status)
        entry = self._directory / _entry_name(identity)
        with suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            self._check()
            header, points = _unpack(_read_entry(entry))
            event_file = _restore(header, points)
            position = event_file.position
            if header["place"] != identity or position is None or not position.matches(fd, status):
                return None
            os.utime(entry)  # the oldest entries are removed first
            return event_file
        return None

    def find_offset(self, path: Path) -> int:
        """Return up to where the event file ``path`` is cached, without a look at the points; 0 without an entry."""
        with suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            entry = self._directory / _entry_name(_identify(path, path.stat()))
            with open_regular(entry, follow_links=False) as file:
                magic, _, length, _, _ = _FRAME.unpack(file.read(_FRAME.size))
                if magic == _MAGIC:
                    return int(json.loads(file.read(length))["offset"])
        return 0

    def save(self, path: Path, event_file: EventFile) -> None:
        """Save the content of the event file ``path``. An entry lost in a power cut is only read again: no fsync."""
        position = event_file.position
        if position is None or event_file.nbytes > _MOST_ENTRY_BYTES:
            return
        with suppress(OSError):
            identity = _identify(path, position)
            for directory in (self._directory.parent, self._directory):  # parents=True would ignore the mode
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            parts = _pack(identity, event_file, position)
            fd, name = tempfile.mkstemp(_PART, dir=self._directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.writelines(parts)
                Path(name).replace(self._directory / _entry_name(identity))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._remove_oldest()

    def _check(self) -> None:
        status = self._directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError("others can write the directory of the cache")

    def _remove_oldest(self) -> None:
        """Remove the oldest entries until the rest fits, and entries whose writer died while writing."""
        entries = []
        with os.scandir(self._directory) as listing:
            for entry in listing:
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


def _identify(path: Path, file: os.stat_result | FilePosition) -> list[int | str]:
    """Return the identity of an event file: device, inode, real path."""
    device, inode = (file.device, file.inode) if isinstance(file, FilePosition) else (file.st_dev, file.st_ino)
    return [device, inode, os.path.realpath(path)]


def _entry_name(identity: list[int | str]) -> str:
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest() + _SUFFIX


def _read_entry(entry: Path) -> bytes:
    """Return the bytes of an entry that this user wrote and no other can write, else raise OSError."""
    with open_regular(entry, follow_links=False) as file:
        status = os.fstat(file.fileno())
        is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not is_own or status.st_size > 2 * _MOST_ENTRY_BYTES:
            raise PermissionError("not an entry of this user")
        return file.read()


def _pack(identity: list[int | str], event_file: EventFile, position: FilePosition) -> list[bytes]:
    points = [column.points() for column in event_file.columns.values()]
    header = {
        "place": identity,
        "offset": position.offset,
        "head": position.head.hex(),
        "before": position.before.hex(),
        "plugins": event_file.plugins,
        "damage": event_file.damage,
        "starts": [[start.step, start.wall, dict(start.before)] for start in event_file.starts],
    }
    text, tags = json.dumps(header).encode(), "\n".join(map(json.dumps, event_file.columns)).encode()
    tags += b" " * (-(_FRAME.size + len(text) + len(tags)) % 8)  # arrays of 8-byte numbers follow
    counts = np.array([len(one.steps) for one in points], np.int64).tobytes()
    columns = zip(*(one.arrays for one in points), strict=True)
    arrays = [b"".join(array.tobytes() for array in column) for column in columns]
    rest = [struct.pack("<III", len(text), len(tags), len(points)), text, tags, counts, *arrays]
    checksum = 0
    for part in rest:
        checksum = google_crc32c.extend(checksum, part)
    return [_MAGIC, struct.pack("<I", checksum), *rest]


def _unpack(data: bytes) -> tuple[Mapping[str, Any], dict[str, Points]]:
    """Return header and points of an entry; raises where it is incomplete or of another version."""
    magic, checksum, length, tags_length, tags_count = _FRAME.unpack_from(data)
    if magic != _MAGIC or google_crc32c.value(data[_CHECKED_FROM:]) != checksum:
        raise ValueError("not an entry of this version, or damaged")
    at = _FRAME.size + length
    header = json.loads(data[_FRAME.size : at])
    # A line each: to parse ten thousand as one would let no other thread run meanwhile.
    tags = [json.loads(line) for line in data[at : at + tags_length].splitlines()] if tags_count else []
    counts = np.frombuffer(data, np.int64, tags_count, at + tags_length)
    total, first = int(counts.sum()), at + tags_length + 8 * tags_count
    if len(data) != first + 24 * total:
        raise ValueError("not as long as its header says")
    steps = np.frombuffer(data, np.int64, total, first)
    numbers = np.frombuffer(data, np.float64, 2 * total, first + 8 * total)
    everything, points, at = Points(steps, numbers[:total], numbers[total:]), {}, 0
    for tag, count in zip(tags, counts.tolist(), strict=True):
        stop_if_abandoned()
        points[tag] = everything.where(slice(at, at := at + count))
    return header, points


def _restore(header: Mapping[str, Any], points: Mapping[str, Points]) -> EventFile:
    device, inode, _ = header["place"]
    head, before = bytes.fromhex(header["head"]), bytes.fromhex(header["before"])
    event_file = EventFile()
    # Its size is one that no file has, so that the tail is read.
    event_file.position = FilePosition(device, inode, -1, header["offset"], head, before, 0)
    for tag, one in points.items():
        stop_if_abandoned()
        event_file.columns[tag] = GrowingPoints(one)
    event_file.plugins, event_file.damage = header["plugins"], header["damage"]
    event_file.starts = [SessionStart(step, wall, before) for step, wall, before in header["starts"]]
    return event_file
