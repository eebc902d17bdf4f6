"""Follows a file of rows: reads what was appended after its last complete row, or everything where it was rewritten.

Loggers rewrite a CSV file when a column appears. A file is identified by device, inode, its first bytes and the last
bytes that were read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from mcp_server.scalars.formats.rows import Rows, WrongStepColumn
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable
from mcp_server.system.files import open_regular_file
from mcp_server.threads import stop_if_abandoned

_CHUNK_BYTES = 4 * 2**20
_HEAD_BYTES = 4096
_BEFORE_BYTES = 256


def describe_skipped(left_out_bytes: int, counts: Mapping[str, int]) -> list[str]:
    """Return one sentence per kind of skipped data: the bytes at the beginning, and ``counts`` by kind."""
    beginning = f"Only the end was read: the first {left_out_bytes / 2**20:,.0f} MiB were left out."
    skipped = [f"{kind} skipped: {count:,}." for kind, count in counts.items() if count]
    return [beginning, *skipped] if left_out_bytes else skipped


def unreadable_error(path: Path, cause: str) -> ScalarsUnreadable:
    """Return the error for a file that cannot be read."""
    return ScalarsUnreadable(f"{path} cannot be read: {cause}.")


class Parser(Protocol):
    """Turns the bytes of one format into rows."""

    rows: Rows

    def begin(self, fd: int, size: int) -> int:
        """Drop all rows, and return the offset to read from."""

    def feed(self, data: bytes, at: int) -> int:
        """Parse the complete rows of ``data``, which begins at offset ``at``. Return their length in bytes."""

    def feed_end(self, data: bytes) -> int:
        """Parse what follows the last complete row if it is a row. Return its length in bytes, or 0."""

    def notes(self) -> Sequence[str]:
        """Return one sentence per kind of skipped rows."""


@contextmanager
def open_scalar_file(path: Path) -> Iterator[int]:
    """Open a regular file to read.

    Raises:
        ScalarsUnreadable: the file cannot be opened or read, or is not a regular file.
    """
    try:
        fd = open_regular_file(path)
    except OSError as error:
        raise unreadable_error(path, error.strerror or str(error)) from error
    try:
        yield fd
    except OSError as error:
        raise unreadable_error(path, error.strerror or str(error)) from error
    finally:
        os.close(fd)


def file_signature(path: Path) -> tuple[int, ...]:
    """Return a value that differs once a file has changed, () for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, 0 for a missing one."""
    return (*file_signature(path), 0, 0, 0)[2]


class AppendedFile:
    """One file, parsed as it grows. ``nbytes``: memory that its points take."""

    def __init__(self, path: Path, parser: Parser) -> None:
        self.path = path
        self.nbytes = 0
        self._parser = parser
        self._signature: tuple[int, ...] | None = None
        self._inode: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._head = self._before = b""
        self._scalars: RunScalars | None = None

    def changed(self) -> bool:
        """Return whether the file differs from what was read."""
        return file_signature(self.path) != self._signature

    def count_unread(self) -> int:
        """Return how many bytes a read passes over, or has left to parse."""
        size, is_same = file_size(self.path), file_signature(self.path)[:2] == self._inode
        return size - self._offset if is_same and size >= self._offset else size

    def read(self) -> RunScalars:
        """Return the scalars in the file as they are now.

        Raises:
            ScalarsUnreadable: the file is missing or cannot be read.
        """
        with open_scalar_file(self.path) as fd:
            status = os.fstat(fd)
            same_inode = (status.st_dev, status.st_ino) == self._inode
            if not (same_inode and self._offset and self._is_same(fd, status.st_size)):
                self._parser.rows.forget_step_column()
                self._begin(fd, status.st_size)
            at, self._inode = self._offset, None  # until the read succeeds
            while True:
                try:
                    self._read_appended(fd)
                    break
                except WrongStepColumn:
                    self._parser.rows.clear()
                    self._begin(fd, status.st_size)
                    at = -1
            self._inode = status.st_dev, status.st_ino
            self._head = os.pread(fd, min(_HEAD_BYTES, self._offset), 0)
            length = min(_BEFORE_BYTES, self._offset)
            self._before = os.pread(fd, length, self._offset - length)
        if self._scalars is None or self._offset != at:
            self._scalars = None
            series = self._parser.rows.series()
            self.nbytes = self._parser.rows.nbytes
        else:
            series = dict(self._scalars.series)
        self._signature = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        notes = [*self._parser.notes(), *self._parser.rows.notes]
        if self._offset and (rest := status.st_size - self._offset) > 0:
            notes.append(f"{self.path.name}: the last {rest:,} bytes are not a whole row: being written, or cut off")
        self._scalars = RunScalars(self.path, series, tuple(notes), status.st_size)
        return self._scalars

    def _begin(self, fd: int, size: int) -> None:
        self._scalars = None
        self._offset = self._parser.begin(fd, size)

    def _is_same(self, fd: int, size: int) -> bool:
        return (
            size >= self._offset
            and os.pread(fd, len(self._head), 0) == self._head
            and os.pread(fd, len(self._before), self._offset - len(self._before)) == self._before
        )

    def _read_appended(self, fd: int) -> None:
        rest = b""
        while chunk := os.pread(fd, _CHUNK_BYTES, self._offset + len(rest)):
            stop_if_abandoned()
            data = rest + chunk
            taken = self._parser.feed(data, self._offset)
            self._offset += taken
            rest = data[taken:]
        if rest:
            self._offset += self._parser.feed_end(rest)
