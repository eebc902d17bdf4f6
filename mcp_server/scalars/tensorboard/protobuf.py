"""Reads the wire format of protocol buffers: a message is a list of fields, each a key (number, type) and its bytes."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
_LAST = 0x7F  # a larger byte is followed by another one of the same number


class Malformed(Exception):
    """The bytes are not an event. The message says what is wrong with them."""


def read_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and bytes of each field of a message. A varint has 8 bytes, little-endian."""
    at = 0
    while at < len(data):
        field, wire, item, at = _field(data, at)
        if wire == GROUP_END:
            raise Malformed("the end of a group that did not begin")
        yield field, wire, item


def _field(data: bytes, at: int) -> tuple[int, int, bytes, int]:
    key, at = read_varint(data, at)
    field, wire = key >> 3, key & 7
    if not 0 < field < 2**29:
        raise Malformed("a field without a number")
    if wire == VARINT:
        number, at = read_varint(data, at)
        return field, wire, number.to_bytes(8, "little"), at
    if wire == GROUP:
        return field, wire, b"", _past_group(data, at, field)
    if wire == GROUP_END:
        return field, wire, b"", at
    if wire == BYTES:
        length, at = read_varint(data, at)
    elif wire in {FIXED32, FIXED64}:
        length = 4 if wire == FIXED32 else 8
    else:
        raise Malformed("a field of no known type")
    if at + length > len(data):
        raise Malformed("a field that is cut off")
    return field, wire, data[at : at + length], at + length


def _past_group(data: bytes, at: int, group_field: int) -> int:
    depth = [group_field]
    while depth:
        key, behind = read_varint(data, at)
        if key & 7 == GROUP:
            depth.append(key >> 3)
            at = behind
            continue
        field, wire, _, at = _field(data, at)
        if wire == GROUP_END and depth.pop() != field:
            raise Malformed("a group that does not end")
    return at


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, modulo 2^64, and its end. Raises Malformed where it does not end."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("a number that is cut off")
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] <= _LAST:
            return number & (2**64 - 1), at
    raise Malformed("a number of more than ten bytes")


def to_signed(number: int, bits: int) -> int:
    """Return the lowest ``bits`` of a number as a two's complement."""
    number &= 2**bits - 1
    return number - 2**bits if number >> (bits - 1) else number
