"""Reads scalars from the ``*.swanlab`` files that SwanLab writes, offline or online.

Records of version 1 are JSON. Those of version 2 are protocol buffers (``swanlab/record/v1``), of which only the fields
of a scalar are decoded here: 13 of a record is the scalar, with 1 its key, 2 its step, 4 its time (1 seconds, 2
nanoseconds) and 5 its value (1 the number). A field that is absent is 0. Numbers of the machine are left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from mcp_server.scalars.formats.chunked_log import ChunkedLog

_OF_MACHINE = "__swanlab__."
_SCALAR = 13
_KEY, _STEP, _TIME, _VALUE = 1, 2, 4, 5
_FIRST, _NANOSECONDS = 1, 2
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_LONGEST_VARINT = 10


class SwanlabLog(ChunkedLog):
    """Parses the scalar records of one run and skips all others."""

    magic = b":SWL\xd6\xe1"
    program = "SwanLab"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        try:
            if record.startswith(b"{"):
                return _read_json(record)
            scalar = dict(_read_fields(record)).get(_SCALAR)
            return None if scalar is None else _read_scalar(scalar)
        except (ValueError, LookupError, TypeError, RecursionError, struct.error):
            self.damaged += 1
            return None


def _read_json(record: bytes) -> list[tuple[str, Any]] | None:
    facts = json.loads(record)
    if facts["model_type"] != "Scalar" or facts["data"]["key"].startswith(_OF_MACHINE):
        return None
    data, metric = facts["data"], facts["data"]["metric"]
    return [(data["key"], metric["data"]), ("_step", data["step"]), ("_timestamp", metric["create_time"])]


def _read_scalar(scalar: Any) -> list[tuple[str, Any]] | None:
    fields = dict(_read_fields(scalar))
    time = dict(_read_fields(fields.get(_TIME, b"")))
    value = dict(_read_fields(fields.get(_VALUE, b""))).get(_FIRST, bytes(_DOUBLE.size))
    posix = time.get(_FIRST, 0) + time.get(_NANOSECONDS, 0) / 1e9
    number = float(_DOUBLE.unpack(value)[0])
    key = fields[_KEY].decode()
    if key.startswith(_OF_MACHINE):
        return None
    return [(key, number), ("_step", fields.get(_STEP, 0)), ("_timestamp", posix)]


def _read_fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer: a whole number, or bytes.

    Raises:
        ValueError, IndexError: it is not one.
    """
    if not isinstance(message, bytes):
        raise ValueError("not a message")  # noqa: TRY004 - one error for all damage
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _read_varint(message, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("not a field")
        if position + length > len(message):
            raise ValueError("cut off")
        yield number, message[position : position + length]
        position += length


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a whole number of 64 bits with sign, and the position after it."""
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            value &= (1 << 64) - 1
            return value - (1 << 64) if value >> 63 else value, position + index + 1
    raise ValueError("not a whole number")
