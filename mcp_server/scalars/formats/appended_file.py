"""Follows a file of rows: reads on from where its last whole row ended, and anew where it is no longer the same.

Loggers rewrite a CSV file when a column appears. A file is known by device, inode, its first bytes and the last ones
that were read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from mcp_server.scalars.formats.rows import Rows, WrongStepColumn
from mcp_server.scalars.series import RunScalars
from mcp_server.scalars.tensorboard.reader import ScalarsUnreadable
from mcp_server.scalars.tensorboard.tail import open_regular

_CHUNK_BYTES = 4 * 2**20
_HEAD_BYTES = 4096
_BEFORE_BYTES = 256


def unreadable_error(path: Path, cause: str) -> ScalarsUnreadable:
    """Return the error that says that ``path`` cannot be read, and why."""
    return ScalarsUnreadable(f"{path} cannot be read: {cause}.")


class Parser(Protocol):
    """Turns the bytes of one kind of file into rows."""

    rows: Rows

    def begin(self, fd: int, size: int) -> int:
        """Forget what was fed, and return the offset to read from."""

    def feed(self, data: bytes, at: int) -> int:
        """Take the whole rows of ``data``, which begins at offset ``at``; return how many bytes those are."""

    def notes(self) -> Sequence[str]:
        """Tell in words what was passed over."""


@contextmanager
def open_scalar_file(path: Path) -> Iterator[int]:
    """Open a regular file to read.

    Raises:
        ScalarsUnreadable: it cannot be opened or read, or is a pipe, a device or a directory.
    """
    try:
        fd = open_regular(path)
    except OSError as error:
        raise unreadable_error(path, error.strerror or str(error)) from error
    try:
        yield fd
    except OSError as error:
        raise unreadable_error(path, error.strerror or str(error)) from error
    finally:
        os.close(fd)


def file_signature(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has changed; () where there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class AppendedFile:
    """One file, read by a parser as it grows; ``nbytes``: memory that its points take."""

    def __init__(self, path: Path, parser: Parser) -> None:
        self.path = path
        self.nbytes = 0
        self._parser = parser
        self._seen: tuple[int, ...] | None = None
        self._known: tuple[int, int] | None = None
        self._offset = 0
        self._head = self._before = b""
        self._told: RunScalars | None = None

    def changed(self) -> bool:
        """Whether the file differs from what was read."""
        return file_signature(self.path) != self._seen

    def read(self) -> RunScalars:
        """Return what the file tells by now.

        Raises:
            ScalarsUnreadable: it is not there or no such file.
        """
        with open_scalar_file(self.path) as fd:
            status = os.fstat(fd)
            known = (status.st_dev, status.st_ino) == self._known
            if not (known and self._offset and self._is_same(fd, status.st_size)):
                self._parser.rows.forget_step_column()
                self._begin(fd, status.st_size)
            at, self._known = self._offset, None  # until all went well
            while True:
                try:
                    self._read_on(fd)
                    break
                except WrongStepColumn:
                    self._parser.rows.clear()
                    self._begin(fd, status.st_size)
                    at = -1
            self._known = status.st_dev, status.st_ino
            self._head = os.pread(fd, min(_HEAD_BYTES, self._offset), 0)
            length = min(_BEFORE_BYTES, self._offset)
            self._before = os.pread(fd, length, self._offset - length)
        if self._told is None or self._offset != at:
            self._told = None
            series = self._parser.rows.series()
            self.nbytes = self._parser.rows.nbytes
        else:
            series = dict(self._told.series)
        self._seen = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        self._told = RunScalars(self.path, series, (*self._parser.notes(), *self._parser.rows.notes), status.st_size)
        return self._told

    def _begin(self, fd: int, size: int) -> None:
        self._told = None
        self._offset = self._parser.begin(fd, size)

    def _is_same(self, fd: int, size: int) -> bool:
        return (
            size >= self._offset
            and os.pread(fd, len(self._head), 0) == self._head
            and os.pread(fd, len(self._before), self._offset - len(self._before)) == self._before
        )

    def _read_on(self, fd: int) -> None:
        rest = b""
        while chunk := os.pread(fd, _CHUNK_BYTES, self._offset + len(rest)):
            data = rest + chunk
            taken = self._parser.feed(data, self._offset)
            self._offset += taken
            rest = data[taken:]
