"""The two ways to read a source again: what was appended to its rows, or the whole of it where it has changed.

Loggers rewrite a CSV file when a column appears. A file of rows is identified by device, inode, its first bytes and the
last bytes that were read.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from mcp_server.scalars.formats.row_series import Rows, WrongStepColumn
from mcp_server.scalars.reading_process import ReadingProcess
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, describe_series
from mcp_server.system.files import open_regular_file
from mcp_server.threads import stop_if_abandoned

_CHUNK_BYTES = 4 * 2**20
_HEAD_BYTES = 4096
_BEFORE_BYTES = 256
_TICK_S = 2.0  # the coarsest clock of a file system


def unreadable_error(path: Path, cause: str) -> ScalarsUnreadable:
    """Return the error for a file that cannot be read."""
    return ScalarsUnreadable(f"{path} cannot be read: {cause}.")


@contextmanager
def open_scalar_file(path: Path) -> Iterator[int]:
    """Open a regular file to read; any error, also of the block, is ScalarsUnreadable."""
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


class SourceReader(ABC):
    """Reads one source repeatedly. ``nbytes``: memory that its points take."""

    nbytes = 0

    @abstractmethod
    def read(self) -> RunScalars:
        """Return its scalars as they are now, or raise ScalarsUnreadable."""

    @abstractmethod
    def count_unread(self) -> int:
        """Return how many bytes a read passes over, or has left to parse."""

    def read_apart(self, process: ReadingProcess) -> tuple[SourceReader, RunScalars]:
        """Return a reader that has read, in ``process``, what there is, and its scalars."""
        return process.call(_read_on, self)


def _read_on(reader: SourceReader) -> tuple[SourceReader, RunScalars]:
    return reader, reader.read()


class Parser(ABC):
    """Turns the bytes of one format into ``rows``. ``skipped``: how much damage was passed over, by its kind."""

    most_bytes = 64 * 2**20  # of a larger file only the end is read
    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path, step_key: str | None = None) -> None:
        self.path, self.rows = path, Rows(step_key)
        self.left_out = 0
        self.skipped = Counter[str]()

    def begin(self, fd: int, size: int) -> int:  # noqa: ARG002
        """Begin to read a file, and return the offset to read from."""
        self.skipped = Counter(dict.fromkeys(self.kinds, 0))
        self.left_out = max(0, size - self.most_bytes)
        return self.left_out

    @abstractmethod
    def feed(self, data: bytes, at: int) -> int:
        """Parse the complete rows of ``data``, which begins at offset ``at``. Return their length in bytes."""

    def feed_end(self, data: bytes) -> int:  # noqa: ARG002
        """Parse what follows the last complete row if it is a row. Return its length in bytes, or 0."""
        return 0

    def describe_skipped(self) -> list[str]:
        """Return one sentence per kind of skipped data, after that on the beginning of the file."""
        beginning = f"Only the end was read: the first {self.left_out / 2**20:,.0f} MiB were left out."
        skipped = [f"{kind} skipped: {count:,}." for kind, count in self.skipped.items() if count]
        return [beginning, *skipped] if self.left_out else skipped


class AppendedFile(SourceReader):
    """One file, parsed as it grows."""

    def __init__(self, parser: Parser) -> None:
        self._path, self._parser = parser.path, parser
        self._inode: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._head = self._before = b""
        self._scalars: RunScalars | None = None

    @override
    def count_unread(self) -> int:
        size, is_same = file_size(self._path), file_signature(self._path)[:2] == self._inode
        return size - self._offset if is_same and size >= self._offset else size

    @override
    def read(self) -> RunScalars:
        with open_scalar_file(self._path) as fd:
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
        notes = [*self._parser.describe_skipped(), *self._parser.rows.notes, *describe_series(series)]
        if self._offset and (rest := status.st_size - self._offset) > 0:
            notes.append(f"{self._path.name}: the last {rest:,} bytes are not a whole row: being written, or cut off")
        self._scalars = RunScalars(series, tuple(notes))
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


class WholeSource(SourceReader):
    """A source that is read from its beginning, but only where its files have changed: a wait reads it each second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scalars: RunScalars | None = None
        self._signatures: tuple[tuple[int, ...], ...] = ()
        self._is_settled = False

    def list_files(self) -> list[Path]:
        """Return the files that hold it."""
        return [self.path]

    @abstractmethod
    def read_whole(self) -> RunScalars:
        """Return its scalars as they are now. Raises as ``read`` does."""

    @override
    def count_unread(self) -> int:
        signatures = self._sign()
        return 0 if self._is_read(signatures) else sum(one[2] for one in signatures if one)

    @override
    def read(self) -> RunScalars:
        signatures, now_s = self._sign(), time.time()
        if self._scalars is None or not self._is_read(signatures):
            self._scalars, self._signatures = None, ()
            self._scalars = self.read_whole()
            self._signatures = signatures
            # A write in the same clock tick as the read leaves the time unchanged, so the source is read once more.
            self._is_settled = all(abs(now_s - one[3] / 1e9) > _TICK_S for one in signatures if one)
            self.nbytes = sum(array.nbytes for one in self._scalars.series.values() for array in one.arrays)
        return self._scalars

    def _is_read(self, signatures: tuple[tuple[int, ...], ...]) -> bool:
        return self._scalars is not None and self._is_settled and signatures == self._signatures

    def _sign(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(file_signature, self.list_files()))
