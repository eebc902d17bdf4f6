"""Reads scalars from the ``*.swanlab`` files that SwanLab writes, offline or online.

Records of version 1 are JSON. Those of version 2 are protocol buffers (``swanlab/record/v1``), of which only the fields
of a scalar are decoded here: 13 of a record is the scalar, with 1 its key, 2 its step, 4 its time (1 seconds, 2
nanoseconds) and 5 its value (1 the number). A field that is absent is 0. Numbers of the machine are left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from mcp_server.scalars.formats.chunked_log import ChunkedLog
from mcp_server.scalars.formats.protocol_buffers import read_fields

_OF_MACHINE = "__swanlab__."
_SCALAR = 13
_KEY, _STEP, _TIME, _VALUE = 1, 2, 4, 5
_FIRST, _NANOSECONDS = 1, 2
_DOUBLE = struct.Struct("<d")


class SwanlabLog(ChunkedLog):
    """Parses the scalar records of one run and skips all others."""

    magic = b":SWL\xd6\xe1"
    program = "SwanLab"

    def _read_record(self, record: bytes) -> Iterable[tuple[str, Any]] | None:
        try:
            if record.startswith(b"{"):
                return _read_json(record)
            scalar = dict(read_fields(record)).get(_SCALAR)
            return None if scalar is None else _read_scalar(scalar)
        except (ValueError, LookupError, TypeError, RecursionError, struct.error):
            self.damaged += 1
            return None


def _read_json(record: bytes) -> list[tuple[str, Any]] | None:
    facts = json.loads(record)
    if facts["model_type"] != "Scalar" or facts["data"]["key"].startswith(_OF_MACHINE):
        return None
    data, metric = facts["data"], facts["data"]["metric"]
    return [(data["key"], metric["data"]), ("_step", data["step"]), ("_timestamp", metric["create_time"])]


def _read_scalar(scalar: Any) -> list[tuple[str, Any]] | None:
    fields = dict(read_fields(scalar))
    time = dict(read_fields(fields.get(_TIME, b"")))
    value = dict(read_fields(fields.get(_VALUE, b""))).get(_FIRST, bytes(_DOUBLE.size))
    posix = time.get(_FIRST, 0) + time.get(_NANOSECONDS, 0) / 1e9
    number = float(_DOUBLE.unpack(value)[0])
    key = fields[_KEY].decode()
    if key.startswith(_OF_MACHINE):
        return None
    return [(key, number), ("_step", fields.get(_STEP, 0)), ("_timestamp", posix)]
