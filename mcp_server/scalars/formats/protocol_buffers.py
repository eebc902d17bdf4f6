"""Reads the wire format of protocol buffers, in which wandb and SwanLab encode their records. Pure.

A message is a row of fields: a key (number of the field, kind of its value) as a varint, and the value.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10
_CONTINUES = 0x80


def read_fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: a whole number of 64 bits with sign, or bytes.

    Raises:
        ValueError, IndexError: ``message`` is not a message.
    """
    if not isinstance(message, bytes):
        raise ValueError("not a message")  # noqa: TRY004 - one error for all damage
    position, end = 0, len(message)
    while position < end:
        key = message[position]
        position += 1
        if key >= _CONTINUES:
            key, position = _read_varint(message, position - 1)
        kind = key & 7
        if kind == _BYTES:
            length = message[position]
            position += 1
            if length >= _CONTINUES:
                length, position = _read_varint(message, position - 1)
        elif kind == _VARINT:
            value, position = _read_varint(message, position)
            yield key >> 3, value
            continue
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("not a field")
        begin, position = position, position + length
        if length < 0 or position > end:
            raise ValueError("cut off")
        yield key >> 3, message[begin:position]


def undo_zigzag(value: int) -> int:
    """Return the whole number that a field of type ``sint64`` holds as ``value``."""
    value &= (1 << 64) - 1
    return (value >> 1) ^ -(value & 1)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a whole number of 64 bits with sign, and the position after it."""
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < _CONTINUES:
            value &= (1 << 64) - 1
            return value - (1 << 64) if value >> 63 else value, position + index + 1
    raise ValueError("not a whole number")
