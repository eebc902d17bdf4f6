"""Reads scalars from the ``run-*.wandb`` files that wandb writes, offline or online. wandb need not be installed.

Records are protocol buffers (``wandb/proto/wandb_internal.proto``), of which only the history is decoded here: 2 of a
record is the history, with 1 its items and 2 its step (1 the number; absent: 0). An item has 1 its key, or 2 the parts
of a nested key, and its value: 16 is JSON. wandb 0.31 declares 5 (sint64), 6 (double) and 8 (JSON) without use.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from mcp_server.scalars.formats.chunked_log import ChunkedLog
from mcp_server.scalars.formats.protocol_buffers import read_fields, undo_zigzag
from mcp_server.scalars.formats.rows import flatten

_HISTORY = 2
_ITEM, _STEP = 1, 2
_KEY, _KEY_PART, _INTEGER, _DOUBLE, _JSON, _VALUE_JSON = 1, 2, 5, 6, 8, 16
_NUMBER = 1
_CLOCK = "_runtime"  # seconds since the start, which wandb adds to each row: not a metric
_EIGHT_BYTES = struct.Struct("<d")


class WandbLog(ChunkedLog):
    """Parses the history records of one run and skips all others."""

    magic = b":W&B\xe1\xbe\x00"
    program = "wandb"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        """Return the values of a history record, or None for any other record."""
        try:
            for number, content in read_fields(record):
                if number == _HISTORY:
                    return _read_history(content)
        except (ValueError, IndexError, struct.error):
            self.damaged += 1
        return None


def _read_history(history: Any) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    step, has_step = 0, False
    for number, content in read_fields(history):
        if number == _STEP:
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
        elif number == _KEY:
            key = content
        elif number == _DOUBLE:
            value = float(_EIGHT_BYTES.unpack(content)[0])
        elif number == _INTEGER:
            value = undo_zigzag(content)
    return (b"/".join(parts) or key).decode(), value


def _read_json(text: bytes) -> Any:
    """Return a number or an object, and None for all else: a text such as "1" is not a number."""
    try:
        return json.loads(text) if text.startswith(b"{") else float(text)
    except (ValueError, RecursionError):
        return None
