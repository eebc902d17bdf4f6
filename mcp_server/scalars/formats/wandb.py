"""Scalars in the ``run-*.wandb`` files that wandb writes, offline or not.

Such a file is a log as LevelDB has it: after 7 bytes of its own, blocks of 32 KiB, in them chunks of records, each with
a CRC-32. wandb had a reader of it once; what a record means is still told by its protobuf classes, if it is installed.
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

MOST_BYTES = 512 * 2**20  # of a larger file the end is read
_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES = 32 * 2**10
_LONGEST_RECORD = 64 * 2**20
_CHUNK = struct.Struct("<IHB")  # CRC-32 of kind and content, bytes of content, kind
_DAMAGED, _FULL, _FIRST, _LAST = 0, 1, 2, 4  # 3 lies between first and last


class WandbLog:
    """The records of one run, of which those with its history are taken."""

    def __init__(self, path: Path) -> None:
        self.rows = Rows(step_key="_step")
        self._path = path
        self._damaged = 0
        self._left_out = 0

    def begin(self, fd: int, size: int) -> int:
        """Forget what was fed, and return the offset to read from.

        Raises:
            ScalarsUnreadable: the file does not begin as those of wandb do, or wandb is not installed.
        """
        head = os.pread(fd, len(_MAGIC), 0)
        if not _MAGIC.startswith(head):
            raise unreadable_error(self._path, "it does not begin as the files of wandb do")
        self._record_class, self._decode_error = _protocol(self._path)
        self._damaged = 0
        self._left_out = max(0, size - MOST_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        return self._left_out

    def feed(self, data: bytes, at: int) -> int:
        """Take the whole records of ``data``, which begins at offset ``at``; return how many bytes those are."""
        taken, histories = 0, []
        for taken, record in self._records(data, at):  # noqa: B007
            if record and (history := self._history(record)) is not None:
                histories.append(history)
        self.rows.add(*collect_columns(histories))
        return taken

    def notes(self) -> list[str]:
        """Tell in words what was passed over."""
        notes = []
        if self._left_out:
            notes.append(f"Only the end was read: the first {self._left_out / 2**20:,.0f} MiB were left out.")
        if self._damaged:
            notes.append(f"Damaged places passed over: {self._damaged:,}.")
        return notes

    def _records(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield each record and where it ends in ``data``; b"" for what is passed over, where it ends for good.

        A chunk that is not as its checksum says, in the last block, may not have been written to its end yet.
        """
        place = max(0, len(_MAGIC) - at)
        record: bytes | None = None  # in parts; None: its first chunk was not seen
        while True:
            block_end = place + _BLOCK_BYTES - (at + place) % _BLOCK_BYTES
            if block_end - place < _CHUNK.size:  # no room for another chunk: filled with zeros
                place = block_end
                continue
            if (chunk := _chunk(data, place, block_end)) is None:
                return
            kind, content = chunk
            if kind == _DAMAGED or len(record or b"") > _LONGEST_RECORD:
                self._damaged += 1
                place, record = block_end, None
                yield place, b""
                continue
            place += _CHUNK.size + len(content)
            if kind in {_FULL, _FIRST}:
                record = content
            elif record is not None:
                record += content
            if kind in {_FULL, _LAST}:
                yield place, record or b""
                record = None

    def _history(self, record: bytes) -> Iterator[tuple[str, Any]] | None:
        """Return the values of a record of the history; None for any other."""
        try:
            message = self._record_class.FromString(record)
        except self._decode_error:
            self._damaged += 1
            return None
        if message.WhichOneof("record_type") != "history":
            return None
        return _values(message.history)


def _values(history: Any) -> Iterator[tuple[str, Any]]:
    told_step = False
    for item in history.item:
        key = "/".join(item.nested_key) or item.key
        try:
            value = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
        told_step |= key == "_step"
        yield from flatten({key: value})
    if not told_step:
        yield "_step", history.step.num


def _chunk(data: bytes, place: int, block_end: int) -> tuple[int, bytes] | None:
    """Return kind and content of the chunk at ``place``; None where it may not have been written to its end yet."""
    if place + _CHUNK.size > len(data):
        return None
    crc, length, kind = _CHUNK.unpack_from(data, place)
    start = place + _CHUNK.size
    content = data[start : start + length]
    is_there = start + length <= min(block_end, len(data)) and _FULL <= kind <= _LAST
    if is_there and zlib.crc32(content, zlib.crc32(bytes([kind]))) == crc:
        return kind, content
    return None if len(data) < block_end else (_DAMAGED, b"")


def _protocol(path: Path) -> tuple[Any, type[Exception]]:
    """Return wandb's class of records, and what it raises on bytes that are none.

    Raises:
        ScalarsUnreadable: wandb is not installed.
    """
    try:  # optional, and takes half a second
        records = import_module("wandb.proto.wandb_internal_pb2")
        error: type[Exception] = import_module("google.protobuf.message").DecodeError
    except ImportError:
        raise unreadable_error(path, "wandb is not installed; a person can run: pip install 'runward[wandb]'") from None
    return records.Record, error
