"""Reads logs in LevelDB's format, in which wandb and SwanLab write a run, as they grow.

After a header of 7 bytes follow blocks of 32 KiB with chunks of records, each chunk with a CRC-32.
"""

from __future__ import annotations

import os
import struct
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from mcp_server.scalars.formats.appended_file import Parser, unreadable_error
from mcp_server.scalars.formats.row_series import collect_columns

_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 2**10
_LONGEST_RECORD = 64 * 2**20
_CHUNK = struct.Struct("<IHB")  # CRC-32 of kind and content, bytes of content, kind
_DAMAGED, _FULL, _FIRST, _LAST = 0, 1, 2, 4  # 3 is between first and last


class ChunkedLog(Parser):
    """Parses the records that hold metrics in the log of one run, and skips all others."""

    magic: ClassVar[bytes]  # with which the header begins
    program: ClassVar[str]  # that writes such files
    kinds = ("Damaged places",)
    most_bytes = 128 * 2**20

    def __init__(self, path: Path) -> None:
        super().__init__(path, "_step")

    @override
    def begin(self, fd: int, size: int) -> int:
        head = os.pread(fd, len(self.magic), 0)
        if not self.magic.startswith(head):
            raise unreadable_error(self.path, f"it does not begin like {self.program}'s files")
        self.left_out = super().begin(fd, size) // _BLOCK_BYTES * _BLOCK_BYTES
        return self.left_out

    @override
    def feed(self, data: bytes, at: int) -> int:
        end, read = 0, []
        for end, record in self._records(data, at):  # noqa: B007
            if record and (values := self._read_record(record)) is not None:
                read.append(values)
        self.rows.add(*collect_columns(read))
        return end

    def _records(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield each record with its end in ``data``, b"" for skipped data. The last block may not be written yet."""
        position = max(0, _HEADER_BYTES - at)
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
                self.note_damage()
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

    def note_damage(self) -> None:
        """Count a damaged place."""
        self.skipped["Damaged places"] += 1

    @abstractmethod
    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        """Return the values of a record by tag, its step as ``_step``; None for a record that holds no metrics."""


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
