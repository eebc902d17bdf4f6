"""Reads the wire format of protocol buffers: a message is a list of fields, each a key (number, type) and its value.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
_GROUPS, _WIDTHS = (GROUP, GROUP_END), {FIXED32: 4, FIXED64: 8}
_LAST = 0x7F  # a larger byte is followed by another one of the same number


class Malformed(ValueError):
    """The bytes are not a message of the expected kind. The text says what is wrong with them."""


def read_fields(data: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield number, type and value of each field: of a varint a number modulo 2^64, else bytes. Groups are passed over.

    Raises:
        Malformed: ``data`` is not a message.
    """
    if not isinstance(data, bytes):
        raise Malformed("a number where a message should be")
    at, end, groups = 0, len(data), list[int]()
    while at < end:
        key = data[at]
        at += 1
        if key > _LAST:
            key, at = read_varint(data, at - 1)
        wire = key & 7
        if not 0 < key >> 3 < 2**29:
            raise Malformed("a field without a number")
        value: Any = None
        if wire == VARINT:
            value, at = read_varint(data, at)
        elif wire in _GROUPS:
            _note_group(groups, key >> 3, begins=wire == GROUP)
            continue
        else:
            begin, at = _find_content(data, at, wire)
            value = data[begin:at]
            if at > end:
                raise Malformed("a field that is cut off")
        if not groups:
            yield key >> 3, wire, value
    if groups:
        raise Malformed("a group that does not end")


def _find_content(data: bytes, at: int, wire: int) -> tuple[int, int]:
    if wire == BYTES:
        if at < len(data) and data[at] <= _LAST:
            return at + 1, at + 1 + data[at]
        length, at = read_varint(data, at)
        return at, at + length
    if wire not in _WIDTHS:
        raise Malformed("a field of no known type")
    return at, at + _WIDTHS[wire]


def _note_group(groups: list[int], field: int, *, begins: bool) -> None:
    if begins:
        groups.append(field)
    elif not groups or groups.pop() != field:
        raise Malformed("the end of a group that did not begin")


def find_fields(data: bytes, number: int, wire: int) -> list[Any]:
    """Return the values of the fields of a number and type. Raises Malformed."""
    return [value for field, kind, value in read_fields(data) if (field, kind) == (number, wire)]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, modulo 2^64, and its end. Raises Malformed where it does not end."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("a number that is cut off")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte <= _LAST:
            return number & (2**64 - 1), at
    raise Malformed("a number of more than ten bytes")


def to_signed(number: int, bits: int) -> int:
    """Return the lowest ``bits`` of a number as a two's complement."""
    number &= 2**bits - 1
    return number - 2**bits if number >> (bits - 1) else number
