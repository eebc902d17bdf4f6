"""Follows the newest rows of files with curves as they grow, with the standard library alone.

Event files of TensorBoard, tables and lines of JSON with a column of steps, logs of wandb, and the files of MLflow, a
metric each. A tail is read from where the last read ended; of more than 256 KiB only the end. Damage is passed over:
who needs every point reads the whole file (`scalars/`).
"""

from __future__ import annotations

import csv
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mcp_server.record.curves.event_records import SCALARS, decode_event
from mcp_server.record.curves.protobuf import Malformed
from mcp_server.record.curves.tracker_records import BLOCK_BYTES, DAMAGE, flatten, iter_records, read_history
from mcp_server.record.scalar_files import (
    TIME_KEYS,
    is_split,
    name_in_split,
    parse_number,
    plain_name,
    rank_step,
    read_header,
    read_json_line,
    split_rows,
)

_MOST_BYTES = 256 * 2**10
_HEAD_BYTES = 4096
_LARGEST_STEP = 2.0**53
_POSIX_S = (1e9, 1e10)  # a number in a column of times that is one in seconds


class CurveRow(NamedTuple):
    """The numbers of one row by tag. ``wall_s``: when it was written (POSIX), where the file says so.

    ``axis``: the file's own name for the step, empty where it has none, as in event files.
    """

    step: int
    wall_s: float | None
    values: Mapping[str, float]
    axis: str = ""


class Tail(ABC):
    """One growing file. ``offset``: up to where it was read. ``is_certain``: it is a curve, also while it is empty."""

    is_certain = True

    def __init__(self) -> None:
        self.offset = 0
        self._identity: tuple[int, int] | None = None
        self._head = b""

    def read(self, fd: int) -> list[CurveRow]:
        """Return the rows that are new, or those of a file that was replaced or written anew."""
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        head = os.pread(fd, min(_HEAD_BYTES, status.st_size), 0)
        if identity != self._identity or status.st_size < self.offset or not head.startswith(self._head):
            self.offset = 0
        if not self.offset:  # also where the last read met an empty file, or half of its first line
            self.begin(head)
        self._identity = identity
        if status.st_size - self.offset > _MOST_BYTES:
            self.offset = self.skip(fd, status.st_size - _MOST_BYTES)
        data = os.pread(fd, _MOST_BYTES, self.offset)
        taken, rows = self.parse(data)
        self.offset += taken
        self._head = head[: self.offset]
        return rows

    def pass_over(self, fd: int) -> None:
        """Begin behind all that the file holds now."""
        status = os.fstat(fd)
        self._identity, self.offset = (status.st_dev, status.st_ino), status.st_size
        self._head = os.pread(fd, min(_HEAD_BYTES, status.st_size), 0)
        self.begin(self._head)

    def begin(self, head: bytes) -> None:  # noqa: B027 - most files need no beginning
        """Begin a file whose first bytes are ``head``."""

    def skip(self, fd: int, at: int) -> int:
        """Return the offset of a row at or soon after ``at``."""
        end = os.pread(fd, _MOST_BYTES, at).find(b"\n")
        return at + end + 1

    @abstractmethod
    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Return how many bytes hold whole rows, and these rows."""


class EventTail(Tail):
    """An event file of TensorBoard: records with their length (8 bytes), its checksum (4), and one behind them (4)."""

    _HEADER = struct.Struct("<QI")

    def __init__(self) -> None:
        super().__init__()
        self._plugins: dict[str, str] = {}

    def skip(self, fd: int, at: int) -> int:
        """Return where a header begins that another one follows."""
        data = os.pread(fd, _MOST_BYTES, at)
        for start in range(len(data) - self._HEADER.size):
            # Six of the eight bytes of a length are zero: all others need no checksum.
            if not any(data[start + 3 : start + 8]) and self._length(data, start) is not None:
                return at + start
        return at + len(data)

    def _length(self, data: bytes, at: int) -> int | None:
        length, crc = self._HEADER.unpack_from(data, at)
        return length if length and _mask(_crc32c(data[at : at + 8])) == crc else None

    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Read records as far as they are whole."""
        at, rows = 0, []
        while at + self._HEADER.size <= len(data) and (length := self._length(data, at)) is not None:
            end = at + self._HEADER.size + length + 4
            if end > len(data):
                if length > _MOST_BYTES:  # an image: its end is beyond this read
                    at = end
                break
            try:
                event = decode_event(data[at + self._HEADER.size : end - 4])
            except Malformed:
                at = end
                continue
            at = end
            self._plugins.update((one.tag, one.plugin) for one in event.values if one.plugin is not None)
            values = {
                one.tag: one.number
                for one in event.values
                if one.number is not None and (not one.needs_plugin or self._plugins.get(one.tag) == SCALARS)
            }
            if values:
                rows.append(CurveRow(event.step, event.wall, values))
        return at, rows


class RowTail(Tail):
    """Rows with a step by one of the usual names, in lines."""

    def __init__(self) -> None:
        super().__init__()
        self._step: int | None = None

    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Read whole lines."""
        end = data.rfind(b"\n") + 1
        records = self.read_records(data[:end].decode(errors="replace").split("\n"))
        return end, [row for record in records if (row := self._make_row(record)) is not None]

    @abstractmethod
    def read_records(self, lines: list[str]) -> Iterator[Iterable[tuple[str, Any]]]:
        """Yield the named values of each row."""

    def _make_row(self, record: Iterable[tuple[str, Any]]) -> CurveRow | None:
        values: dict[str, float] = {}
        scope = ""
        for name, cell in record:
            if (number := parse_number(cell)) is not None:
                values[name_in_split(name, scope)] = number
            elif isinstance(cell, str) and cell and is_split(name):
                scope = f"{cell}/"
        ranks = {name: rank for name in values if (rank := rank_step(name)) is not None}
        key = min(ranks, key=lambda name: ranks[name], default=None)
        if key is not None and abs(values[key]) < _LARGEST_STEP:
            self._step = int(values[key])
        times = [values[name] for name in values if plain_name(name) in TIME_KEYS]
        wall_s = next((time for time in times if _POSIX_S[0] <= time < _POSIX_S[1]), None)
        others = {name: v for name, v in values.items() if name not in ranks and plain_name(name) not in TIME_KEYS}
        if self._step is None or not others:
            return None
        return CurveRow(self._step, wall_s, others, key or "")


class TableTail(RowTail):
    """A table whose first line names its columns. Where none of them counts, its rows are the steps, from 1."""

    def begin(self, head: bytes) -> None:
        """Learn the columns."""
        header = read_header(head)
        self._names, self._separator = (header.names, header.separator) if header else ([], ",")
        self._counts_rows = not any(rank_step(name) is not None for name in self._names)
        self._step = 0 if self._counts_rows else None

    def skip(self, fd: int, at: int) -> int:
        """Return the offset of a row at or soon after ``at``; how many rows stand above it is unknown."""
        self._step, self._counts_rows = (None, False) if self._counts_rows else (self._step, False)
        return super().skip(fd, at)

    def pass_over(self, fd: int) -> None:
        """Begin behind all that the file holds now."""
        super().pass_over(fd)
        if self._counts_rows:
            self.offset = 0
            self.read(fd)

    def read_records(self, lines: list[str]) -> Iterator[Iterable[tuple[str, Any]]]:
        """Yield the cells of each row by the names of their columns."""
        try:
            for row in split_rows(lines, self._separator):
                if len(row) == len(self._names) and row != self._names:
                    self._step = self._step + 1 if self._counts_rows and self._step is not None else self._step
                    yield zip(self._names, row)
        except csv.Error:
            return


class JsonTail(RowTail):
    """Lines with a JSON object each; in a log also behind other text."""

    def __init__(self, *, is_in_log: bool) -> None:
        super().__init__()
        self._is_in_log = is_in_log

    def read_records(self, lines: list[str]) -> Iterator[Iterable[tuple[str, Any]]]:
        """Yield the leaves of each object."""
        for line in lines:
            if (record := read_json_line(line.encode(), is_log=self._is_in_log)) is not None:
                yield flatten(record)


class WandbTail(Tail):
    """A log of wandb."""

    def skip(self, fd: int, at: int) -> int:  # noqa: ARG002
        """Return where a block begins."""
        return at // BLOCK_BYTES * BLOCK_BYTES

    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Read whole records."""
        end, rows = 0, []
        for end, record in iter_records(data, self.offset):  # noqa: B007
            try:
                history = read_history(record) if record else None
            except DAMAGE:
                continue
            values = {name: number for name, cell in history or () if (number := parse_number(cell)) is not None}
            step, wall_s = values.pop("_step", None), values.pop("_timestamp", None)
            if step is not None and values:
                rows.append(CurveRow(int(step), wall_s, values, "_step"))
        return end, rows


class MlflowTail(Tail):
    """One metric of an MLflow run, whose name the file has: lines of time (ms), value and step."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Read whole lines."""
        end, rows = data.rfind(b"\n") + 1, []
        for line in data[:end].decode(errors="replace").split("\n"):
            numbers = [parse_number(word) for word in line.split()]
            if len(numbers) == 3 and None not in numbers:  # noqa: PLR2004
                at_ms, value, step = (number or 0.0 for number in numbers)
                rows.append(CurveRow(int(step), at_ms / 1000, {self._tag: value}))
        return end, rows


def _make_crc_table() -> list[int]:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _make_crc_table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
