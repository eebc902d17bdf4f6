"""Reads scalars from the ``run-*.wandb`` files that wandb writes, offline or online.

Such a file is a log in LevelDB's format: after a header of 7 bytes, blocks of 32 KiB with chunks of records, each chunk
with a CRC-32. Records are decoded with the protobuf classes of wandb, which must be installed.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mcp_server.scalars.formats.appended_file import unreadable_error
from mcp_server.scalars.formats.rows import Rows, collect_columns, flatten

MOST_BYTES = 512 * 2**20  # of a larger file only the end is read
_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES = 32 * 2**10
_LONGEST_RECORD = 64 * 2**20
_CHUNK = struct.Struct("<IHB")  # CRC-32 of kind and content, bytes of content, kind
_DAMAGED, _FULL, _FIRST, _LAST = 0, 1, 2, 4  # 3 is between first and last


class WandbLog:
    """Parses the history records of one run and skips all others."""

    def __init__(self, path: Path) -> None:
        self.rows = Rows(step_key="_step")
        self._path = path
        self._damaged = 0
        self._left_out = 0

    def begin(self, fd: int, size: int) -> int:
        """Drop all state, and return the offset to read from.

        Raises:
            ScalarsUnreadable: the file does not begin like wandb's files, or wandb is not installed.
        """
        head = os.pread(fd, len(_MAGIC), 0)
        if not _MAGIC.startswith(head):
            raise unreadable_error(self._path, "it does not begin like wandb's files")
        self._record_class, self._decode_error = _protocol(self._path)
        self._damaged = 0
        self._left_out = max(0, size - MOST_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        return self._left_out

    def feed(self, data: bytes, at: int) -> int:
        """Parse the complete records of ``data``, which begins at offset ``at``. Return their length in bytes."""
        end, histories = 0, []
        for end, record in self._records(data, at):  # noqa: B007
            if record and (history := self._history(record)) is not None:
                histories.append(history)
        self.rows.add(*collect_columns(histories))
        return end

    def feed_end(self, data: bytes) -> int:  # noqa: ARG002
        """Leave an incomplete record."""
        return 0

    def notes(self) -> list[str]:
        """Return one sentence per kind of skipped data."""
        notes = []
        if self._left_out:
            notes.append(f"Only the end was read: the first {self._left_out / 2**20:,.0f} MiB were left out.")
        if self._damaged:
            notes.append(f"Damaged places skipped: {self._damaged:,}.")
        return notes

    def _records(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield each record with its end in ``data``, and b"" with the end of skipped data.

        A chunk with a wrong checksum in the last block may still be being written.
        """
        position = max(0, len(_MAGIC) - at)
        record: bytes | None = None  # joined from chunks; None where the first chunk was not seen
        while True:
            block_end = position + _BLOCK_BYTES - (at + position) % _BLOCK_BYTES
            if block_end - position < _CHUNK.size:  # no room for another chunk; the rest is zeros
                position = block_end
                continue
            if (chunk := _chunk(data, position, block_end)) is None:
                return
            kind, content = chunk
            if kind == _DAMAGED or len(record or b"") > _LONGEST_RECORD:
                self._damaged += 1
                position, record = block_end, None
                yield position, b""
                continue
            position += _CHUNK.size + len(content)
            if kind in {_FULL, _FIRST}:
                record = content
            elif record is not None:
                record += content
            if kind in {_FULL, _LAST}:
                yield position, record or b""
                record = None

    def _history(self, record: bytes) -> Iterator[tuple[str, Any]] | None:
        """Return the values of a history record, or None for any other record."""
        try:
            message = self._record_class.FromString(record)
        except self._decode_error:
            self._damaged += 1
            return None
        if message.WhichOneof("record_type") != "history":
            return None
        return _values(message.history)


def _values(history: Any) -> Iterator[tuple[str, Any]]:
    has_step = False
    for item in history.item:
        key = "/".join(item.nested_key) or item.key
        try:
            value = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
        has_step |= key == "_step"
        yield from flatten({key: value})
    if not has_step:
        yield "_step", history.step.num


def _chunk(data: bytes, position: int, block_end: int) -> tuple[int, bytes] | None:
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


def _protocol(path: Path) -> tuple[Any, type[Exception]]:
    """Return wandb's record class, and the error it raises for other bytes.

    Raises:
        ScalarsUnreadable: wandb is not installed.
    """
    try:  # an extra; its import takes half a second
        records = import_module("wandb.proto.wandb_internal_pb2")
        error: type[Exception] = import_module("google.protobuf.message").DecodeError
    except ImportError:
        raise unreadable_error(path, "wandb is not installed; a person can run: pip install 'runward[wandb]'") from None
    return records.Record, error
