"""Reads the scalars of one event file with pread; a mapped file that is truncated would crash the process.

Every point has passed the checksum of its record. Of a payload over 64 KiB only the heads of the fields are read,
unless it holds scalars.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import google_crc32c
import numpy as np

from mcp_server.scalars.tensorboard.batch_decode import SLACK_BYTES
from mcp_server.scalars.tensorboard.collector import Collector, TagPoints
from mcp_server.scalars.tensorboard.decode import decode_event
from mcp_server.scalars.tensorboard.large_events import read_trimmed_event
from mcp_server.scalars.tensorboard.protobuf import Malformed
from mcp_server.scalars.tensorboard.records import (
    FRAME_BYTES,
    HEADER_BYTES,
    Records,
    find_header,
    find_wrong_payloads,
    follow_records,
    mask_crc,
)

__all__ = ["ScanResult", "TagPoints", "read_newest", "scan"]

_CHUNK_BYTES = 4 * 2**20  # of records at once: arrays of these stay within a second-level cache
_LARGE_BYTES = 64 * 2**10  # a payload of more is not read
_TAIL_BYTES = 2**20  # damage in the last MiB may be a page that is yet to be written
_WRONG_LENGTH = "the checksum of the length is wrong"
_WRONG_PAYLOAD = "the checksum of the payload is wrong"
_NEWEST_BYTES = (2**20, 4 * 2**20)
_HEAD_BYTES = 2**18  # where the first events of tags tell their plugins


@dataclass(frozen=True, eq=False)
class ScanResult:
    """What a part of an event file holds.

    ``plugins``: of each tag, from its first event. ``starts``: step and wall time of each SessionLog START;
    ``start_positions``: per tag, how many of its points stand before each of them. ``consumed``: the offset up to
    which everything has been dealt with. ``damage``: what was skipped, in words. ``waiting``: at ``consumed`` stands
    a record that is incomplete or not yet right, to be looked at again once the file has grown.
    """

    points: Mapping[str, TagPoints]
    plugins: Mapping[str, str]
    starts: tuple[tuple[int, float], ...]
    start_positions: Mapping[str, tuple[int, ...]]
    consumed: int
    damage: tuple[str, ...]
    waiting: bool
    file_version: str | None


def scan(
    fd: int, start: int, size: int, plugins: Mapping[str, str] | None = None, *, final: bool = False
) -> ScanResult:
    """Read the records of an open event file from offset ``start`` up to ``size``.

    ``start`` is 0 or what an earlier call consumed, ``plugins`` what it learned. ``final``: nothing will be
    appended any more, so damage at the end is told, not waited for.
    """
    reading = _Scanner(fd, size, Collector(plugins or {}), final=final)
    consumed, waiting = reading.run(start)
    found = reading.found
    return ScanResult(
        found.points(),
        found.plugins,
        tuple(found.starts),
        found.start_positions(),
        consumed,
        found.damage,
        waiting,
        found.file_version,
    )


def read_newest(fd: int, size: int) -> tuple[dict[str, tuple[int, float, float]], bool]:
    """Return step, wall time and value of the newest point of every tag in the last MiB of an event file.

    The last 4 MiB where the last one has no scalar. The second result is whether the part began at the file's start.
    Takes some milliseconds for a file of any size. A tag whose tensors are stored without their plugin name in these
    parts or in the first 256 KiB is left out.
    """
    plugins = scan(fd, 0, min(size, _HEAD_BYTES)).plugins if size > _NEWEST_BYTES[0] else {}
    for length in _NEWEST_BYTES:
        reading = _Scanner(fd, size, Collector(plugins), final=True)
        begin = max(0, size - length)
        start = reading.next_header(begin) if begin else 0
        if start is not None:
            reading.run(start)
        points = reading.found.points()
        if points or not begin:
            break
    last = {tag: (int(part.steps[-1]), float(part.walls[-1]), float(part.values[-1])) for tag, part in points.items()}
    return last, not begin


class _Incomplete(Exception):
    """What stands at an offset is to be looked at again later."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Scanner:
    """Goes from record to record; a chunk of the file at a time."""

    def __init__(self, fd: int, size: int, found: Collector, *, final: bool) -> None:
        self.found = found
        self._fd, self._size, self._final = fd, size, final
        self._buffer = np.zeros(min(size, _CHUNK_BYTES) + SLACK_BYTES, np.uint8)

    def run(self, at: int) -> tuple[int, bool]:
        """Read from ``at`` on; return what ``ScanResult`` calls ``consumed`` and ``waiting``."""
        try:
            while at < self._size:
                at = self._chunk(at)
                self.found.finish_block()
        except _Incomplete as hold:
            self.found.finish_block()
            return hold.offset, True
        return at, False

    def next_header(self, at: int) -> int | None:
        """Return where the next header with a right checksum stands."""
        while at + HEADER_BYTES <= self._size:
            data = np.frombuffer(os.pread(self._fd, min(_CHUNK_BYTES, self._size - at), at), np.uint8)
            if (place := find_header(data)) is not None:
                return at + place
            at += max(1, len(data) - HEADER_BYTES + 1)
        return None

    def _chunk(self, at: int) -> int:
        """Read what stands whole in a chunk of the file; return where to go on.

        Raises:
            _Incomplete: what stands there cannot be read yet; what stands before has been.
        """
        wanted = min(_CHUNK_BYTES, self._size - at)
        count = os.preadv(self._fd, [self._buffer[:wanted].data], at)
        self._buffer[count : count + SLACK_BYTES] = 0
        if count < wanted:  # the file was cut meanwhile
            self._size = at + count
        records = follow_records(self._buffer, count, self._size - at, _LARGE_BYTES)
        stop, held, damage = self._end(at, records)
        wrong = find_wrong_payloads(self._buffer, records.starts, records.lengths)
        damage |= dict.fromkeys((records.starts[wrong] + at).tolist(), _WRONG_PAYLOAD)
        events = self._large_events(at, records.large, damage)
        if held is not None and len(wrong):
            last = wrong[-1]
            if records.starts[last] + records.lengths[last] + FRAME_BYTES == held - at:
                held = int(records.starts[last]) + at  # a page yet to be written begins within this record
        waited = [offset for offset in damage if self._may_heal(offset)]
        held = min(waited if held is None else [*waited, held], default=None)
        good = np.ones(len(records.starts), bool)
        good[wrong] = False
        if held is not None:
            good &= records.starts < held - at
        self.found.add_records(self._buffer, records.starts[good], records.lengths[good], at)
        for offset, payload in events.items():
            if held is None or offset < held:
                self.found.add_record(payload, offset)
        for offset, what in damage.items():
            if held is None or offset < held:
                self.found.add_damage(offset, what)
        if held is not None:
            raise _Incomplete(held)
        return stop

    def _end(self, at: int, records: Records) -> tuple[int, int | None, dict[int, str]]:
        """Return where to go on behind a chunk read from ``at`` on, what to wait for, and what is to be skipped."""
        stop, held = at + records.stop, None
        damage = dict.fromkeys((at + place for place in records.gaps), _WRONG_LENGTH)
        if records.end == "cut":
            held, damage[stop] = stop, "the record is incomplete"
        elif records.end == "lost":
            damage[stop] = _WRONG_LENGTH
            found = self.next_header(stop + 1)
            if found is not None:
                return found, None, damage
            held = stop
        else:
            return stop, None, damage
        return (self._size, None, damage) if self._final else (stop, held, damage)

    def _large_events(self, at: int, places: list[tuple[int, int]], damage: dict[int, str]) -> dict[int, bytes]:
        """Return the large events without their images, by offset; add what is wrong to ``damage``."""
        events = {}
        for place, length in places:
            offset, begin = at + place, at + place + HEADER_BYTES
            try:
                payload = read_trimmed_event(self._read, begin, begin + length)
                if not any(value.number is not None for value in decode_event(payload).values) or self._right(
                    begin, length
                ):
                    events[offset] = payload
                    continue
            except Malformed as problem:
                if self._right(begin, length):
                    self.found.add_damage(offset, f"{problem} in a record whose checksum is right")
                    continue
            damage[offset] = _WRONG_PAYLOAD
        return events

    def _right(self, begin: int, length: int) -> bool:
        """Tell whether the checksum of a payload is right, without holding it."""
        crc = 0
        for offset in range(begin, begin + length, _TAIL_BYTES):
            crc = google_crc32c.extend(crc, self._read(offset, min(_TAIL_BYTES, begin + length - offset)))
        return struct.pack("<I", mask_crc(crc)) == self._read(begin + length, 4)

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def _may_heal(self, offset: int) -> bool:
        return not self._final and self._size - offset <= _TAIL_BYTES
