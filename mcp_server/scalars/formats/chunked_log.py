"""Reads the logs in LevelDB's format that wandb (``run-*.wandb``) and SwanLab (``*.swanlab``) write, as they grow.

SwanLab's records of version 1 are JSON. In those of version 2 (``swanlab/record/v1``) 13 is a scalar, with 1 its key, 2
its step, 4 its time (1 seconds, 2 nanoseconds) and 5 its value (1 the number).
"""

import json
import os
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from mcp_server.record.curves.protobuf import to_signed
from mcp_server.record.curves.tracker_records import (
    BLOCK_BYTES,
    DAMAGE,
    DOUBLE,
    iter_records,
    read_history,
    read_values,
)
from mcp_server.scalars.formats.appended_file import Parser, unreadable_error
from mcp_server.scalars.formats.row_series import collect_columns

_DAMAGED_PLACES = "Damaged places"


class ChunkedLog(Parser):
    """Parses the records that hold metrics in the log of one run, and skips all others."""

    magic: ClassVar[bytes]  # with which the header begins
    program: ClassVar[str]  # that writes such files
    kinds = (_DAMAGED_PLACES,)
    most_bytes = 128 * 2**20

    def __init__(self, path: Path) -> None:
        super().__init__(path, "_step")

    @override
    def begin(self, fd: int, size: int) -> int:
        head = os.pread(fd, len(self.magic), 0)
        if not self.magic.startswith(head):
            raise unreadable_error(self.path, f"it does not begin like {self.program}'s files")
        self.left_out = super().begin(fd, size) // BLOCK_BYTES * BLOCK_BYTES
        return self.left_out

    @override
    def feed(self, data: bytes, at: int) -> int:
        end, read = 0, []
        for end, record in iter_records(data, at):  # noqa: B007
            try:
                values = self._read_record(record) if record else None
                self.skipped[_DAMAGED_PLACES] += record is None
            except DAMAGE:
                self.skipped[_DAMAGED_PLACES] += 1
                continue
            if values is not None:
                read.append(values)
        self.rows.add(*collect_columns(read))
        return end

    @abstractmethod
    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        """Return the values of a record by tag, its step as ``_step``; None for a record that holds no metrics."""


class WandbLog(ChunkedLog):
    """Parses the history records of one run and skips all others."""

    magic = b":W&B\xe1\xbe\x00"
    program = "wandb"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        return read_history(record)


_OF_MACHINE = "__swanlab__."
_SCALAR = 13
_SCALAR_KEY, _STEP, _TIME, _VALUE = 1, 2, 4, 5
_NUMBER, _NANOSECONDS = 1, 2


class SwanlabLog(ChunkedLog):
    """Parses the scalar records of one run and skips all others."""

    magic = b":SWL\xd6\xe1"
    program = "SwanLab"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        if record.startswith(b"{"):
            return _read_json_scalar(record)
        scalar = read_values(record).get(_SCALAR)
        return None if scalar is None else _read_scalar(scalar)


def _read_json_scalar(record: bytes) -> list[tuple[str, Any]] | None:
    facts = json.loads(record)
    if facts["model_type"] != "Scalar" or facts["data"]["key"].startswith(_OF_MACHINE):
        return None
    data, metric = facts["data"], facts["data"]["metric"]
    return [(data["key"], metric["data"]), ("_step", data["step"]), ("_timestamp", metric["create_time"])]


def _read_scalar(scalar: Any) -> list[tuple[str, Any]] | None:
    fields = read_values(scalar)
    time = read_values(fields.get(_TIME, b""))
    value = read_values(fields.get(_VALUE, b"")).get(_NUMBER, bytes(DOUBLE.size))
    posix = to_signed(time.get(_NUMBER, 0), 64) + time.get(_NANOSECONDS, 0) / 1e9
    number = float(DOUBLE.unpack(value)[0])
    key = fields[_SCALAR_KEY].decode()
    if key.startswith(_OF_MACHINE):
        return None
    return [(key, number), ("_step", to_signed(fields.get(_STEP, 0), 64)), ("_timestamp", posix)]
