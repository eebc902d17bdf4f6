"""Reads scalars from the ``run-*.wandb`` files that wandb writes, offline or online.

Records are decoded with the protobuf classes of wandb, which must be installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mcp_server.scalars.formats.appended_file import unreadable_error
from mcp_server.scalars.formats.chunked_log import ChunkedLog
from mcp_server.scalars.formats.rows import flatten


class WandbLog(ChunkedLog):
    """Parses the history records of one run and skips all others."""

    magic = b":W&B\xe1\xbe\x00"
    program = "wandb"

    def _load(self) -> None:
        self._record_class, self._decode_error = _protocol(self.path)

    def _read_record(self, record: bytes) -> Iterator[tuple[str, Any]] | None:
        """Return the values of a history record, or None for any other record."""
        try:
            message = self._record_class.FromString(record)
        except self._decode_error:
            self.damaged += 1
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
