"""Reads the number of a tensor that holds a scalar.

Field numbers are those of tensorflow/core/framework/{tensor,tensor_shape,types}.proto.
"""

from __future__ import annotations

import numpy as np

from mcp_server.scalars.tensorboard.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Malformed,
    read_fields,
    read_varint,
    to_signed,
)

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
_FLOATS, _INTS, _BOOLS, _HALVES = 5, 7, 11, 13  # TensorProto's float_val and so on
_WIDTHS = {_FLOATS: 4, 6: 8}  # bytes of each number
_VARINTS = {_INTS, 10, _BOOLS, _HALVES, 16, 17}
_UNSIGNED = {16: 2**32 - 1, 17: 2**64 - 1}


def read_scalar_tensor(tensor: bytes) -> tuple[int, float] | None:
    """Return type and number of a tensor with one element, None for any other. Raises Malformed."""
    if len(tensor) > LONGEST_SCALAR:
        return None
    dtype, count, content = 0, 1, b""
    numbers: dict[int, list[bytes]] = {}
    for field, wire, item in read_fields(tensor):
        if (field, wire) == (1, VARINT):
            dtype = to_signed(int.from_bytes(item, "little"), 32)
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


def _single(dtype: int, content: bytes, items: list[bytes]) -> float | None:
    form, field = TYPES[dtype]
    if content:
        return _number(form, content)
    if len(items) != 1:
        return None
    return (
        _number(form, items[0]) if field in _WIDTHS else _varint_number(form, field, int.from_bytes(items[0], "little"))
    )


def _varint_number(form: str, field: int, varint: int) -> float | None:
    if field == _HALVES:
        return _number(form, (varint & 0xFFFF).to_bytes(2, "little"))
    if field == _BOOLS:
        return float(varint != 0)
    if field in _UNSIGNED:
        return float(varint & (_UNSIGNED[field]))
    return float(to_signed(varint, 32 if field == _INTS else 64))


def _number(form: str, data: bytes) -> float | None:
    if form == "bfloat16":  # the upper half of a float
        form, data = "<f4", b"\0\0" + data
    return float(np.frombuffer(data, form)[0]) if len(data) == np.dtype(form).itemsize else None


def _elements(shape: bytes) -> int:
    count = 1
    for field, wire, item in read_fields(shape):
        if (field, wire) == (2, BYTES):
            size = 0
            for inner, inner_wire, number in read_fields(item):
                if (inner, inner_wire) == (1, VARINT):
                    size = to_signed(int.from_bytes(number, "little"), 64)
            count *= size
    return count


def _items(field: int, wire: int, item: bytes) -> list[bytes]:
    width = _WIDTHS.get(field)
    if wire == BYTES and width:
        if len(item) % width:
            raise Malformed("numbers that are cut off")
        return [item[at : at + width] for at in range(0, len(item), width)]
    if wire == BYTES and field in _VARINTS:
        numbers, at = [], 0
        while at < len(item):
            number, at = read_varint(item, at)
            numbers.append(number.to_bytes(8, "little"))
        return numbers
    expected = {4: FIXED32, 8: FIXED64}.get(width or 0, VARINT)
    return [item] if wire == expected else []
