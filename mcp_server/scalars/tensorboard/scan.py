"""Reads the scalars of one event file with pread. A mapped file that is truncated would crash the process.

Every point has passed the checksum of its record. A payload over 64 KiB without scalars is read by the heads of
its fields alone.
"""

import errno
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import google_crc32c
import numpy as np

from mcp_server.record.curves.event_records import decode_event
from mcp_server.record.curves.protobuf import Malformed, read_varint
from mcp_server.scalars.series import Points
from mcp_server.scalars.tensorboard.batch_decode import SLACK_BYTES
from mcp_server.scalars.tensorboard.collector import Collector
from mcp_server.scalars.tensorboard.records import (
    FRAME_BYTES,
    HEADER_BYTES,
    Records,
    find_header,
    find_wrong_payloads,
    follow_records,
    mask_crc,
)
from mcp_server.threads import stop_if_abandoned

_CHUNK_BYTES = 4 * 2**20  # of records at once: arrays of these stay within a second-level cache
_LARGE_BYTES = 64 * 2**10  # of a larger payload only the heads of fields are read
_TAIL_BYTES = 2**20  # damage in the last MiB may be a page that is not written yet
_WRONG_LENGTH = "the checksum of the length is wrong"
_WRONG_PAYLOAD = "the checksum of the payload is wrong"


@dataclass(frozen=True, eq=False)
class ScanResult:
    """The content of a part of an event file. ``plugins``: of each tag, from its first event.

    ``starts``: step and wall time of each SessionLog START. ``start_positions``: per tag, how many points precede each.
    ``consumed``: the offset up to which all is processed. ``waiting``: the record there must be read again once the
    file has grown. ``damage``: one sentence per skipped part.
    """

    points: Mapping[str, Points]
    plugins: Mapping[str, str]
    starts: tuple[tuple[int, float], ...]
    start_positions: Mapping[str, tuple[int, ...]]
    consumed: int
    damage: tuple[str, ...]
    waiting: bool


def scan(
    fd: int, start: int, size: int, plugins: Mapping[str, str] | None = None, *, final: bool = False
) -> ScanResult:
    """Read the records of an open event file from offset ``start`` up to ``size``.

    ``start`` and ``plugins`` are ``consumed`` and ``plugins`` of the previous call. ``final``: nothing more will be
    appended, so damage at the end is reported rather than waited for.
    """
    scanner = _Scanner(fd, size, Collector(plugins or {}), final=final)
    consumed, waiting = scanner.run(start)
    collector = scanner.collector
    return ScanResult(
        collector.points(),
        collector.plugins,
        tuple(collector.starts),
        collector.start_positions(),
        consumed,
        collector.damage,
        waiting,
    )


class _Incomplete(Exception):
    """The record at an offset must be read again later."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Scanner:
    """Reads records in order, a chunk of the file at a time."""

    def __init__(self, fd: int, size: int, collector: Collector, *, final: bool) -> None:
        self.collector = collector
        self._fd, self._size, self._final = fd, size, final
        self._buffer = np.zeros(min(size, _CHUNK_BYTES) + SLACK_BYTES, np.uint8)

    def run(self, at: int) -> tuple[int, bool]:
        """Read from ``at`` on. Return ``consumed`` and ``waiting`` of ScanResult."""
        try:
            while at < self._size:
                stop_if_abandoned()
                at = self._chunk(at)
                self.collector.finish_block()
        except _Incomplete as incomplete:
            self.collector.finish_block()
            return incomplete.offset, True
        return at, False

    def _next_header(self, at: int) -> int | None:
        while (at := self._after_hole(at)) + HEADER_BYTES <= self._size:
            stop_if_abandoned()
            data = np.frombuffer(os.pread(self._fd, min(_CHUNK_BYTES, self._size - at), at), np.uint8)
            if (position := find_header(data)) is not None:
                return at + position
            at += max(1, len(data) - HEADER_BYTES + 1)
        return None

    def _after_hole(self, at: int) -> int:
        """Return where a header can begin from ``at`` on: not in a hole, which may be longer than the disk."""
        try:
            return max(at, os.lseek(self._fd, at, os.SEEK_DATA) - HEADER_BYTES + 1)
        except OSError as error:  # no data follows; other file systems do not know
            return self._size if error.errno == errno.ENXIO else at

    def _chunk(self, at: int) -> int:
        """Read the complete records of a chunk, and return where to go on. Raises _Incomplete after them."""
        length = min(_CHUNK_BYTES, self._size - at)
        count = os.preadv(self._fd, [self._buffer[:length].data], at)
        self._buffer[count : count + SLACK_BYTES] = 0
        if count < length:  # the file was truncated meanwhile
            self._size = at + count
        records = follow_records(self._buffer, count, self._size - at, _LARGE_BYTES)
        stop, held, damage = self._end(at, records)
        wrong = find_wrong_payloads(self._buffer, records.starts, records.lengths)
        damage |= dict.fromkeys((records.starts[wrong] + at).tolist(), _WRONG_PAYLOAD)
        events = self._large_events(at, records.large, damage)
        if held is not None and len(wrong):
            last = wrong[-1]
            if records.starts[last] + records.lengths[last] + FRAME_BYTES == held - at:
                held = int(records.starts[last]) + at  # a page that is not written yet begins within this record
        waited = [offset for offset in damage if not self._final and self._size - offset <= _TAIL_BYTES]
        held = min(waited if held is None else [*waited, held], default=None)
        good = np.ones(len(records.starts), bool)
        good[wrong] = False
        if held is not None:
            good &= records.starts < held - at
        self.collector.add_records(self._buffer, records.starts[good], records.lengths[good], at)
        for offset, payload in events.items():
            if held is None or offset < held:
                self.collector.add_record(payload, offset)
        for offset, what in damage.items():
            if held is None or offset < held:
                self.collector.add_damage(offset, what)
        if held is not None:
            raise _Incomplete(held)
        return stop

    def _end(self, at: int, records: Records) -> tuple[int, int | None, dict[int, str]]:
        """Return the offset to continue at after a chunk, the offset to wait for, and the damage to skip."""
        stop, held = at + records.stop, None
        damage = dict.fromkeys((at + gap for gap in records.gaps), _WRONG_LENGTH)
        if records.end == "cut":
            held, damage[stop] = stop, "the record is incomplete"
        elif records.end == "lost":
            damage[stop] = _WRONG_LENGTH
            header = self._next_header(stop + 1)
            if header is not None:
                return header, None, damage
            held = stop
        else:
            return stop, None, damage
        return (self._size, None, damage) if self._final else (stop, held, damage)

    def _large_events(self, at: int, records: list[tuple[int, int]], damage: dict[int, str]) -> dict[int, bytes]:
        """Return the large events without their images, by offset. Add wrong checksums to ``damage``."""
        events = {}
        for position, length in records:
            offset, begin = at + position, at + position + HEADER_BYTES
            try:
                payload = _TrimmedReader(self._read).message(begin, begin + length, _EVENT)
                if not any(value.number is not None for value in decode_event(payload).values) or self._is_right(
                    begin, length
                ):
                    events[offset] = payload
                    continue
            except Malformed as problem:
                if self._is_right(begin, length):
                    self.collector.add_damage(offset, f"{problem} in a record whose checksum is right")
                    continue
            damage[offset] = _WRONG_PAYLOAD
        return events

    def _is_right(self, begin: int, length: int) -> bool:
        """Return whether the checksum of a payload is right, without holding the payload in memory."""
        crc = 0
        for offset in range(begin, begin + length, _TAIL_BYTES):
            stop_if_abandoned()
            crc = google_crc32c.extend(crc, self._read(offset, min(_TAIL_BYTES, begin + length - offset)))
        return struct.pack("<I", mask_crc(crc)) == self._read(begin + length, 4)

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)


_WINDOW_BYTES = 16 * 2**10
_SHORT_BYTES = 1024  # a field of at most this length is trimmed whole
_FIELD_HEAD_BYTES = 20  # a field's key and length, or key and number
_EVENT, _SUMMARY, _VALUE = range(3)
_INTO = {(_EVENT, 5): _SUMMARY, (_SUMMARY, 1): _VALUE}
_TEXTS = {(_VALUE, 1), (_VALUE, 7), (_VALUE, 9)}  # tag, node_name, metadata: trimmed at any length


class _TrimmedReader:
    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._at, self._window = 0, b""

    def message(self, at: int, end: int, level: int) -> bytes:
        trimmed = bytearray()
        while at < end:
            head = self._bytes(at, min(_FIELD_HEAD_BYTES, end - at))
            key, behind = read_varint(head, 0)
            wire, path = key & 7, (level, key >> 3)
            if wire != 2:  # noqa: PLR2004 - not bytes with a length
                size = _number_end(head, behind, wire)
                trimmed += head[:size]
                at += size
                continue
            length, begin = read_varint(head, behind)
            begin += at
            if begin + length > end:
                raise Malformed("a field that is cut off")
            if path in _INTO and length > _SHORT_BYTES:
                content = self.message(begin, begin + length, _INTO[path])
            elif path in _INTO or path in _TEXTS or length <= _SHORT_BYTES:
                content = self._bytes(begin, length)
            else:
                content = b""
            trimmed += head[:behind] + _as_varint(len(content)) + content
            at = begin + length
        return bytes(trimmed)

    def _bytes(self, at: int, length: int) -> bytes:
        if not self._at <= at <= at + length <= self._at + len(self._window):
            self._at, self._window = at, self._read(at, max(length, _WINDOW_BYTES))
        return self._window[at - self._at : at - self._at + length]


def _number_end(head: bytes, behind: int, wire: int) -> int:
    """Return the length of a key and its number. The start and end of a group are keys alone."""
    if wire == 0:
        return read_varint(head, behind)[1]
    return behind + {1: 8, 5: 4}.get(wire, 0)


def _as_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - more than seven bits
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])
