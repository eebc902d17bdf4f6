"""Reads scalars from the logs that wandb (``run-*.wandb``) and SwanLab (``*.swanlab``) write, offline or online.

Their records are protocol buffers, in which a number that is absent is 0. wandb (``wandb/proto/wandb_internal.proto``):
2 of a record is the history, with 1 its items and 2 its step (1 the number). An item has 1 its key, or 2 the parts of a
nested key, and its value: 16 is JSON; 5 (sint64), 6 (double) and 8 (JSON) are declared. SwanLab: records of version 1
are JSON. In those of version 2 (``swanlab/record/v1``) 13 is a scalar, with 1 its key, 2 its step, 4 its time (1
seconds, 2 nanoseconds) and 5 its value (1 the number).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from mcp_server.scalars.formats.chunked_log import ChunkedLog
from mcp_server.scalars.formats.row_series import flatten
from mcp_server.scalars.protobuf import read_fields, to_signed

_HISTORY = 2
_ITEM, _HISTORY_STEP = 1, 2
_ITEM_KEY, _KEY_PART, _INTEGER, _ITEM_DOUBLE, _JSON, _VALUE_JSON = 1, 2, 5, 6, 8, 16
_NUMBER = 1
_CLOCK = "_runtime"  # seconds since the start, which wandb adds to each row: not a metric
_DOUBLE = struct.Struct("<d")
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)


class WandbLog(ChunkedLog):
    """Parses the history records of one run and skips all others."""

    magic = b":W&B\xe1\xbe\x00"
    program = "wandb"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        try:
            for number, _, content in read_fields(record):
                if number == _HISTORY:
                    return _read_history(content)
        except _DAMAGE:
            self.note_damage()
        return None


def _read_history(history: Any) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    step, has_step = 0, False
    for number, _, content in read_fields(history):
        if number == _HISTORY_STEP:
            step = to_signed(_read_values(content).get(_NUMBER, 0), 64)
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


def _read_values(message: Any) -> dict[int, Any]:
    """Return the last value of each field."""
    return {number: value for number, _, value in read_fields(message)}


def _read_item(item: Any) -> tuple[str, Any]:
    """Return key and value of an item; a value that is neither a number nor an object is None."""
    key, parts, value = b"", [], None
    for number, _, content in read_fields(item):
        if number == _KEY_PART:
            parts.append(content)
        elif number in (_VALUE_JSON, _JSON):
            value = _read_json(content)
        elif number == _ITEM_KEY:
            key = content
        elif number == _ITEM_DOUBLE:
            value = float(_DOUBLE.unpack(content)[0])
        elif number == _INTEGER:
            value = (content >> 1) ^ -(content & 1)  # as `sint64` is written
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
            scalar = _read_values(record).get(_SCALAR)
            return None if scalar is None else _read_scalar(scalar)
        except _DAMAGE:
            self.note_damage()
            return None


def _read_json_scalar(record: bytes) -> list[tuple[str, Any]] | None:
    facts = json.loads(record)
    if facts["model_type"] != "Scalar" or facts["data"]["key"].startswith(_OF_MACHINE):
        return None
    data, metric = facts["data"], facts["data"]["metric"]
    return [(data["key"], metric["data"]), ("_step", data["step"]), ("_timestamp", metric["create_time"])]


def _read_scalar(scalar: Any) -> list[tuple[str, Any]] | None:
    fields = _read_values(scalar)
    time = _read_values(fields.get(_TIME, b""))
    value = _read_values(fields.get(_VALUE, b"")).get(_NUMBER, bytes(_DOUBLE.size))
    posix = to_signed(time.get(_NUMBER, 0), 64) + time.get(_NANOSECONDS, 0) / 1e9
    number = float(_DOUBLE.unpack(value)[0])
    key = fields[_SCALAR_KEY].decode()
    if key.startswith(_OF_MACHINE):
        return None
    return [(key, number), ("_step", to_signed(fields.get(_STEP, 0), 64)), ("_timestamp", posix)]
