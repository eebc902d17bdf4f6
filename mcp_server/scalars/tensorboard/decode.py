"""Decodes one event field by field in plain Python: the slow path, and the reference for the fast one.

Field numbers are those of tensorflow/core/util/event.proto and framework/summary.proto.
Images, histograms, audio and graphs are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.scalars.tensorboard.protobuf import BYTES, FIXED32, FIXED64, VARINT, Malformed, read_fields, to_signed
from mcp_server.scalars.tensorboard.tensors import read_scalar_tensor

SCALARS = "scalars"  # the plugin whose tensors are scalars

_WHAT = range(3, 10)  # the oneof of Event
_SIMPLE_VALUE, _TENSOR = 2, 8
_CONTENTS = {2, 3, 4, 5, 6, 8}  # the oneof of Summary.Value: the last one counts


@dataclass(frozen=True)
class SummaryValue:
    """One value of an event's summary. ``number`` is None where it is not a scalar.

    ``plugin``: the name in its metadata, None without metadata. ``needs_plugin``: the value is a tensor, which is a
    scalar only if its tag belongs to the plugin "scalars".
    """

    tag: str
    number: float | None
    needs_plugin: bool = False
    plugin: str | None = None


@dataclass(frozen=True)
class ScalarEvent:
    """The scalars of an event. ``starts``: a session of the training run begins here, at ``step``."""

    wall: float
    step: int
    values: tuple[SummaryValue, ...] = ()
    starts: bool = False
    file_version: str | None = None


def decode_event(payload: bytes) -> ScalarEvent:
    """Return the event in ``payload``, or raise Malformed."""
    wall, step, what, body = 0.0, 0, 0, b""
    for field, wire, item in read_fields(payload):
        if (field, wire) == (1, FIXED64):
            wall = struct.unpack("<d", item)[0]
        elif (field, wire) == (2, VARINT):
            step = to_signed(int.from_bytes(item, "little"), 64)
        elif wire == BYTES and field in _WHAT:
            # Two messages in a row are one: joining their bytes merges them.
            body = body + item if field == what and field in {5, 7} else item
            what = field
    match what:
        case 3:
            return ScalarEvent(wall, step, file_version=_text(body))
        case 5:
            return ScalarEvent(wall, step, tuple(_values(body)))
        case 7:
            return ScalarEvent(wall, step, starts=_starts(body))
        case _:
            return ScalarEvent(wall, step)


def plugin_name(metadata: bytes) -> str:
    """Return the plugin that a SummaryMetadata names, or "" without a name. Raises Malformed."""
    data, name = b"", ""
    for field, wire, item in read_fields(metadata):
        if (field, wire) == (1, BYTES):
            data += item
    for field, wire, item in read_fields(data):
        if (field, wire) == (1, BYTES):
            name = _text(item)
    return name


def _values(summary: bytes) -> Iterator[SummaryValue]:
    for field, wire, item in read_fields(summary):
        if (field, wire) == (1, BYTES):
            yield _value(item)


def _value(data: bytes) -> SummaryValue:
    tag, node, kind, body = "", "", 0, b""
    metadata: bytes | None = None
    for field, wire, item in read_fields(data):
        if (field, wire) == (1, BYTES):
            tag = _text(item)
        elif (field, wire) == (7, BYTES):
            node = _text(item)
        elif (field, wire) == (9, BYTES):
            metadata = (metadata or b"") + item
        elif field in _CONTENTS and wire == (FIXED32 if field == _SIMPLE_VALUE else BYTES):
            body = body + item if field == kind == _TENSOR else item
            kind = field
    plugin = None if metadata is None else plugin_name(metadata)
    name = tag or node  # TensorFlow 1 has node names only
    match kind:
        case 2:
            return SummaryValue(name, struct.unpack("<f", body)[0], plugin=SCALARS)
        case 8:
            number = read_scalar_tensor(body)
            return SummaryValue(name, number and number[1], needs_plugin=True, plugin=plugin)
        case _:
            return SummaryValue(name, None, plugin=plugin)


def _starts(session_log: bytes) -> bool:
    status = 0
    for field, wire, item in read_fields(session_log):
        if (field, wire) == (1, VARINT):
            status = to_signed(int.from_bytes(item, "little"), 32)
    return status == 1


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("text that is not UTF-8") from None
