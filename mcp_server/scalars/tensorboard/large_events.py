"""Reads a large event without its images and histograms: only the heads of such fields are read from the file."""

from __future__ import annotations

from collections.abc import Callable

from mcp_server.scalars.tensorboard.protobuf import Malformed, read_varint

_WINDOW_BYTES = 16 * 2**10
_SHORT_BYTES = 1024  # a field of at most this length is trimmed whole
_HEAD_BYTES = 20  # a field's key and length, or key and number
_EVENT, _SUMMARY, _VALUE = range(3)
_INTO = {(_EVENT, 5): _SUMMARY, (_SUMMARY, 1): _VALUE}
_TEXTS = {(_VALUE, 1), (_VALUE, 7), (_VALUE, 9)}  # tag, node_name, metadata: trimmed at any length


def read_trimmed_event(read: Callable[[int, int], bytes], begin: int, end: int) -> bytes:
    """Return the event from offset ``begin`` to ``end`` with long contents emptied. ``read`` takes offset and length.

    Raises:
        Malformed: the bytes are not an event.
    """
    return _TrimmedReader(read).message(begin, end, _EVENT)


class _TrimmedReader:
    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._at, self._window = 0, b""

    def message(self, at: int, end: int, level: int) -> bytes:
        trimmed = bytearray()
        while at < end:
            head = self._bytes(at, min(_HEAD_BYTES, end - at))
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
