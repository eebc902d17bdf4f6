"""Reads scalars from the logs that wandb (``run-*.wandb``) and SwanLab (``*.swanlab``) write, offline or online.

Their records are protocol buffers: a message is a row of fields, each a key (number, kind of its value) as a varint and
the value (https://protobuf.dev/programming-guides/encoding). A number that is absent is 0.

wandb (``wandb/proto/wandb_internal.proto``): 2 of a record is the history, with 1 its items and 2 its step (1 the
number). An item has 1 its key, or 2 the parts of a nested key, and its value: 16 is JSON. wandb 0.31 declares 5
(sint64), 6 (double) and 8 (JSON) without use.

SwanLab: records of version 1 are JSON. In those of version 2 (``swanlab/record/v1``) 13 is a scalar, with 1 its key, 2
its step, 4 its time (1 seconds, 2 nanoseconds) and 5 its value (1 the number). Numbers of the machine are left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from mcp_server.scalars.formats.chunked_log import ChunkedLog
from mcp_server.scalars.formats.rows import flatten

_HISTORY = 2
_ITEM, _HISTORY_STEP = 1, 2
_ITEM_KEY, _KEY_PART, _INTEGER, _ITEM_DOUBLE, _JSON, _VALUE_JSON = 1, 2, 5, 6, 8, 16
_NUMBER = 1
_CLOCK = "_runtime"  # seconds since the start, which wandb adds to each row: not a metric
_DOUBLE = struct.Struct("<d")


class WandbLog(ChunkedLog):
    """Parses the history records of one run and skips all others."""

    magic = b":W&B\xe1\xbe\x00"
    program = "wandb"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        try:
            for number, content in read_fields(record):
                if number == _HISTORY:
                    return _read_history(content)
        except (ValueError, IndexError, struct.error):
            self.note_damage()
        return None


def _read_history(history: Any) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    step, has_step = 0, False
    for number, content in read_fields(history):
        if number == _HISTORY_STEP:
            step = dict(read_fields(content)).get(_NUMBER, 0)
        elif number == _ITEM:
            key, value = _read_item(content)
            has_step |= key == "_step"
            if key == _CLOCK:
                continue
            if isinstance(value, dict):
                values.extend(flatten({key: value}))
            else:
                values.append((key, value))
    if not has_step:
        values.append(("_step", step))
    return values


def _read_item(item: Any) -> tuple[str, Any]:
    """Return key and value of an item; a value that is neither a number nor an object is None."""
    key, parts, value = b"", [], None
    for number, content in read_fields(item):
        if number == _KEY_PART:
            parts.append(content)
        elif number in (_VALUE_JSON, _JSON):
            value = _read_json(content)
        elif number == _ITEM_KEY:
            key = content
        elif number == _ITEM_DOUBLE:
            value = float(_DOUBLE.unpack(content)[0])
        elif number == _INTEGER:
            value = undo_zigzag(content)
    return (b"/".join(parts) or key).decode(), value


def _read_json(text: bytes) -> Any:
    """Return a number or an object, and None for all else: a text such as "1" is not a number."""
    try:
        return json.loads(text) if text.startswith(b"{") else float(text)
    except (ValueError, RecursionError):
        return None


_OF_MACHINE = "__swanlab__."
_SCALAR = 13
_SCALAR_KEY, _STEP, _TIME, _VALUE = 1, 2, 4, 5
_NANOSECONDS = 2


class SwanlabLog(ChunkedLog):
    """Parses the scalar records of one run and skips all others."""

    magic = b":SWL\xd6\xe1"
    program = "SwanLab"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        try:
            if record.startswith(b"{"):
                return _read_json_scalar(record)
            scalar = dict(read_fields(record)).get(_SCALAR)
            return None if scalar is None else _read_scalar(scalar)
        except (ValueError, LookupError, TypeError, RecursionError, struct.error):
            self.note_damage()
            return None


def _read_json_scalar(record: bytes) -> list[tuple[str, Any]] | None:
    facts = json.loads(record)
    if facts["model_type"] != "Scalar" or facts["data"]["key"].startswith(_OF_MACHINE):
        return None
    data, metric = facts["data"], facts["data"]["metric"]
    return [(data["key"], metric["data"]), ("_step", data["step"]), ("_timestamp", metric["create_time"])]


def _read_scalar(scalar: Any) -> list[tuple[str, Any]] | None:
    fields = dict(read_fields(scalar))
    time = dict(read_fields(fields.get(_TIME, b"")))
    value = dict(read_fields(fields.get(_VALUE, b""))).get(_NUMBER, bytes(_DOUBLE.size))
    posix = time.get(_NUMBER, 0) + time.get(_NANOSECONDS, 0) / 1e9
    number = float(_DOUBLE.unpack(value)[0])
    key = fields[_SCALAR_KEY].decode()
    if key.startswith(_OF_MACHINE):
        return None
    return [(key, number), ("_step", fields.get(_STEP, 0)), ("_timestamp", posix)]


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
