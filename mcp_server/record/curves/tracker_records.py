"""Reads the records of the logs that wandb (``run-*.wandb``) writes, offline or online, and the chunks of such logs.

LevelDB's format: after a header of 7 bytes follow blocks of 32 KiB with chunks of records, each chunk with a CRC-32.
wandb's records are protocol buffers (``wandb/proto/wandb_internal.proto``), in which a number that is absent is 0: 2 of
a record is the history, with 1 its items and 2 its step (1 the number). An item has 1 its key, or 2 the parts of a
nested key, and its value: 16 is JSON; 5 (sint64), 6 (double) and 8 (JSON) are declared.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from mcp_server.record.curves.protobuf import read_fields, to_signed

HEADER_BYTES, BLOCK_BYTES = 7, 32 * 2**10
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)
DOUBLE = struct.Struct("<d")
_LONGEST_RECORD = 64 * 2**20
_CHUNK = struct.Struct("<IHB")  # CRC-32 of kind and content, bytes of content, kind
_DAMAGED, _FULL, _FIRST, _LAST = 0, 1, 2, 4  # 3 is between first and last
_HISTORY = 2
_ITEM, _HISTORY_STEP = 1, 2
_ITEM_KEY, _KEY_PART, _INTEGER, _ITEM_DOUBLE, _JSON, _VALUE_JSON = 1, 2, 5, 6, 8, 16
_NUMBER = 1
_CLOCK = "_runtime"  # seconds since the start, which wandb adds to each row: not a metric
_DEPTH = 16  # of objects in objects


def flatten(record: Mapping[str, Any], prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects, keys joined by "/". A list is a leaf."""
    for key, value in record.items():
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif depth:
            yield from flatten(value, f"{prefix}{key}/", depth - 1)


def iter_records(data: bytes, at: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield each record of ``data``, which begins at offset ``at``, with its end: None for damage, b"" where joined.

    The last block may not be written yet. A record whose first chunk was not seen is b"".
    """
    position = max(0, HEADER_BYTES - at)
    record: bytes | None = None  # joined from chunks
    while True:
        block_end = position + BLOCK_BYTES - (at + position) % BLOCK_BYTES
        if block_end - position < _CHUNK.size:  # no room for another chunk; the rest is zeros
            position = block_end
            continue
        if (chunk := _read_chunk(data, position, block_end)) is None:
            return
        kind, content = chunk
        if kind == _DAMAGED or len(record or b"") > _LONGEST_RECORD:
            position, record = block_end, None
            yield position, None
            continue
        position += _CHUNK.size + len(content)
        if kind in {_FULL, _FIRST}:
            record = content
        elif record is not None:
            record += content
        if kind in {_FULL, _LAST}:
            yield position, record or b""
            record = None


def _read_chunk(data: bytes, position: int, block_end: int) -> tuple[int, bytes] | None:
    """Return kind and content of the chunk at ``position``, or None where it may still be being written."""
    if position + _CHUNK.size > len(data):
        return None
    crc, length, kind = _CHUNK.unpack_from(data, position)
    start = position + _CHUNK.size
    content = data[start : start + length]
    is_complete = start + length <= min(block_end, len(data)) and _FULL <= kind <= _LAST
    if is_complete and zlib.crc32(content, zlib.crc32(bytes([kind]))) == crc:
        return kind, content
    return None if len(data) < block_end else (_DAMAGED, b"")


def read_history(record: bytes) -> list[tuple[str, Any]] | None:
    """Return the values of a record of wandb's, its step as ``_step``; None for one without. Raises ``DAMAGE``."""
    history = next((content for number, _, content in read_fields(record) if number == _HISTORY), None)
    if history is None:
        return None
    values: list[tuple[str, Any]] = []
    step, has_step = 0, False
    for number, _, content in read_fields(history):
        if number == _HISTORY_STEP:
            step = to_signed(read_values(content).get(_NUMBER, 0), 64)
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


def read_values(message: Any) -> dict[int, Any]:
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
            value = float(DOUBLE.unpack(content)[0])
        elif number == _INTEGER:
            value = (content >> 1) ^ -(content & 1)  # as `sint64` is written
    return (b"/".join(parts) or key).decode(), value


def _read_json(text: bytes) -> Any:
    """Return a number or an object, and None for all else: a text such as "1" is not a number."""
    try:
        return json.loads(text) if text.startswith(b"{") else float(text)
    except (ValueError, RecursionError):
        return None
