"""Decodes one event of TensorBoard field by field in plain Python: for tails, and the reference for whole files.

Field numbers are those of tensorflow/core/util/event.proto and framework/{summary,tensor,tensor_shape,types}.proto.
Images, histograms, audio and graphs are skipped.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from mcp_server.record.curves.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Malformed,
    find_fields,
    read_fields,
    read_varint,
    to_signed,
)

SCALARS = "scalars"  # the plugin whose tensors are scalars

_WHAT = range(3, 10)  # the oneof of Event
_SUMMARY, _SESSION_LOG = 5, 7
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


def decode_event(payload: bytes) -> ScalarEvent:
    """Return the event in ``payload``, or raise Malformed."""
    wall, step, what, body = 0.0, 0, 0, b""
    for field, wire, item in read_fields(payload):
        if (field, wire) == (1, FIXED64):
            wall = struct.unpack("<d", item)[0]
        elif (field, wire) == (2, VARINT):
            step = to_signed(item, 64)
        elif wire == BYTES and field in _WHAT:
            # Two messages in a row are one: joining their bytes merges them.
            body = body + item if field == what and field in {_SUMMARY, _SESSION_LOG} else item
            what = field
    values = tuple(_value(value) for value in find_fields(body, 1, BYTES)) if what == _SUMMARY else ()
    states = find_fields(body, 1, VARINT) if what == _SESSION_LOG else []
    return ScalarEvent(wall, step, values, bool(states) and to_signed(states[-1], 32) == 1)


def plugin_name(metadata: bytes) -> str:
    """Return the plugin that a SummaryMetadata names, or "" without a name. Raises Malformed."""
    names = find_fields(b"".join(find_fields(metadata, 1, BYTES)), 1, BYTES)
    return [_text(name) for name in (b"", *names)][-1]


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
    if kind == _SIMPLE_VALUE:
        return SummaryValue(name, struct.unpack("<f", body)[0], plugin=SCALARS)
    number = read_scalar_tensor(body) if kind == _TENSOR else None
    return SummaryValue(name, number and number[1], kind == _TENSOR, plugin)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("text that is not UTF-8") from None


# --- tensors

# A scalar takes at most about 40 bytes. A longer tensor is not a scalar and is not parsed.
LONGEST_SCALAR = 128
TYPES = {  # DataType: its form in tensor_content, and the field that holds single values
    1: ("<f4", 5),
    2: ("<f8", 6),
    3: ("<i4", 7),
    4: ("<u1", 7),
    5: ("<i2", 7),
    6: ("<i1", 7),
    9: ("<i8", 10),
    10: ("?", 11),
    14: ("bfloat16", 13),
    17: ("<u2", 7),
    19: ("<f2", 13),
    22: ("<u4", 16),
    23: ("<u8", 17),
}
_LAYOUTS = {
    form: struct.Struct(layout)
    for form, layout in zip(
        ("<f4", "<f8", "<i4", "<u1", "<i2", "<i1", "<i8", "?", "<u2", "<f2", "<u4", "<u8"),
        ("<f", "<d", "<i", "<B", "<h", "<b", "<q", "?", "<H", "<e", "<I", "<Q"),
    )
}
_FLOATS, _INTS, _BOOLS, _HALVES = 5, 7, 11, 13  # TensorProto's float_val and so on
_WIDTHS = {_FLOATS: 4, 6: 8}  # bytes of each number
_VARINTS = {_INTS, 10, _BOOLS, _HALVES, 16, 17}
_UNSIGNED = {16: 2**32 - 1, 17: 2**64 - 1}


def read_scalar_tensor(tensor: bytes) -> tuple[int, float] | None:
    """Return type and number of a tensor with one element, None for any other. Raises Malformed."""
    if len(tensor) > LONGEST_SCALAR:
        return None
    dtype, count, content = 0, 1, b""
    numbers: dict[int, list[Any]] = {}
    for field, wire, item in read_fields(tensor):
        if (field, wire) == (1, VARINT):
            dtype = to_signed(item, 32)
        elif (field, wire) == (2, BYTES):
            count *= _elements(item)
        elif (field, wire) == (4, BYTES):
            content = item
        elif field >= _FLOATS:
            numbers.setdefault(field, []).extend(_items(field, wire, item))
    if dtype not in TYPES or count != 1:
        return None
    number = _single(dtype, content, numbers.get(TYPES[dtype][1], []))
    return None if number is None else (dtype, number)


def _single(dtype: int, content: bytes, items: list[Any]) -> float | None:
    form, field = TYPES[dtype]
    if content:
        return _number(form, content)
    if len(items) != 1:
        return None
    (item,) = items
    if field in _WIDTHS:
        return _number(form, item)
    if field == _HALVES:
        return _number(form, (item & 0xFFFF).to_bytes(2, "little"))
    if field == _BOOLS:
        return float(item != 0)
    return float(item & _UNSIGNED[field] if field in _UNSIGNED else to_signed(item, 32 if field == _INTS else 64))


def _number(form: str, data: bytes) -> float | None:
    if form == "bfloat16":  # the upper half of a float
        form, data = "<f4", b"\0\0" + data
    layout = _LAYOUTS[form]
    return float(layout.unpack(data)[0]) if len(data) == layout.size else None


def _elements(shape: bytes) -> int:
    sizes = (find_fields(dimension, 1, VARINT) for dimension in find_fields(shape, 2, BYTES))
    return math.prod(to_signed(size[-1], 64) if size else 0 for size in sizes)


def _items(field: int, wire: int, item: Any) -> list[Any]:
    width = _WIDTHS.get(field)
    if wire == BYTES and width:
        if len(item) % width:
            raise Malformed("numbers that are cut off")
        return [item[at : at + width] for at in range(0, len(item), width)]
    if wire == BYTES and field in _VARINTS:
        numbers, at = [], 0
        while at < len(item):
            number, at = read_varint(item, at)
            numbers.append(number)
        return numbers
    expected = {4: FIXED32, 8: FIXED64}.get(width or 0, VARINT)
    return [item] if wire == expected else []
