"""Decodes many records at once: numpy walks the fields of all records that have the layout of the first one.

Every position is an array with one element per record. Each key and each shape of the first record is compared with the
same bytes of the others; records that differ are left for another walk. So the number of tags, their order and the
order of fields cost nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mcp_server.record.curves.event_records import LONGEST_SCALAR, TYPES, read_scalar_tensor
from mcp_server.record.curves.protobuf import Malformed
from mcp_server.scalars.tensorboard.records import Bytes, Positions, unaligned

_LONGEST_TEXT = 1024  # of a tag or metadata; a longer one is left to the slow path
SLACK_BYTES = _LONGEST_TEXT + 64  # after the records, within which a position may be read

TEXT_BYTES = 32  # a text is compared in blocks of this size
_FIXED = {kind: form for kind, (form, _) in TYPES.items() if form not in ("?", "bfloat16")}
_SINGLES = {5: "<f4", 6: "<f8", 7: "", 10: "", 11: ""}  # fields of single values; "" means varints
# Keys: the number of a field, and its wire type.
_WALL, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE = 0x0A
_TAG, _NODE_NAME, _METADATA, _SIMPLE_VALUE, _TENSOR = 0x0A, 0x3A, 0x4A, 0x15, 0x42
_TEXTS = {_TAG, _NODE_NAME, _METADATA}
_VALUE_KEYS = _TEXTS | {_SIMPLE_VALUE, _TENSOR, 0x1A, 0x22, 0x2A, 0x32}  # and image, histogram, audio
_DTYPE, _SHAPE, _CONTENT = 0x08, 0x12, 0x22
_INTS, _BOOLS = 7, 11
_PACKED = 2
_LAST = 0x7F  # a larger byte is followed by another one of the same number


class UnsupportedLayout(Exception):
    """The first record has a layout that only the slow path reads."""


@dataclass(frozen=True, eq=False)
class Span:
    """A range of bytes in every record."""

    starts: Positions
    lengths: Positions


@dataclass(eq=False)
class ValueColumn:
    """One value of every record. ``numbers`` is None where it is not a scalar."""

    tag: Span | None = None
    node: Span | None = None
    metadata: Span | None = None
    numbers: NDArray[np.float64] | None = None
    needs_plugin: bool = False

    @property
    def is_relevant(self) -> bool:
        """Whether it holds scalars or metadata."""
        return self.numbers is not None or self.metadata is not None

    @property
    def texts(self) -> list[Span]:
        """The texts in which records with the same layout may differ."""
        return [span for span in (self.tag, self.node, self.metadata) if span is not None]


@dataclass(eq=False)
class DecodedBatch:
    """The decoded records. Only rows whose ``good`` is set have the layout of the first one."""

    good: NDArray[np.bool_]
    walls: NDArray[np.float64]
    steps: NDArray[np.int64]
    columns: list[ValueColumn] = field(default_factory=list)


def decode_batch(data: Bytes, starts: Positions, ends: Positions) -> DecodedBatch:
    """Decode payloads; ``data`` goes on for SLACK_BYTES. UnsupportedLayout: the first is no event, or a rare one."""
    with np.errstate(invalid="ignore"):  # of rows with another layout, arbitrary bytes are read as numbers
        return _BatchDecoder(data, starts, ends).event()


class _BatchDecoder:
    def __init__(self, data: Bytes, starts: Positions, ends: Positions) -> None:
        self.data, self.at, self.ends = data, starts.copy(), ends
        self.good = np.ones(len(starts), bool)

    def event(self) -> DecodedBatch:
        count = len(self.at)
        result = DecodedBatch(self.good, np.zeros(count), np.zeros(count, np.int64))
        for key in self.message(self.ends, {_WALL, _STEP, _SUMMARY}):
            if key == _WALL:
                result.walls = self.fixed("<f8").astype(np.float64)
            elif key == _STEP:
                result.steps = self.varint().view(np.int64)
            else:
                self.summary(result.columns)
        return result

    def summary(self, columns: list[ValueColumn]) -> None:
        ends = self.length()
        while self.at[0] < ends[0]:
            self.expect(_VALUE)
            columns.append(self.value())
        self.arrive(ends)

    def value(self) -> ValueColumn:
        column = ValueColumn()
        contents = 0
        for key in self.message(self.length(), _VALUE_KEYS):
            contents += key not in _TEXTS
            if key == _SIMPLE_VALUE:
                column.numbers = self.fixed("<f4").astype(np.float64)
            elif key == _TENSOR:
                column.numbers, column.needs_plugin = self.tensor(), True
            elif key == _TAG:
                column.tag = self.text()
            elif key == _NODE_NAME:
                column.node = self.text()
            elif key == _METADATA:
                column.metadata = self.text()
            else:  # an image, a histogram, audio
                self.at = self.length()
        if contents > 1:
            raise UnsupportedLayout
        return column

    def tensor(self) -> NDArray[np.float64] | None:
        ends = self.length()
        begin, end = int(self.at[0]), int(ends[0])
        if end - begin > LONGEST_SCALAR:
            self.good &= ends - self.at > LONGEST_SCALAR
            self.at = ends
            return None
        try:
            typed_number = read_scalar_tensor(self.data[begin:end].tobytes())
        except Malformed:
            typed_number = None
        if typed_number is None:
            raise UnsupportedLayout
        dtype = typed_number[0]
        numbers = list[NDArray[np.float64]]()
        for key in self.message(ends, None):
            if key == _DTYPE:
                self.same()
            elif key == _SHAPE:
                for _ in range(self.same()):
                    self.same()
            else:
                numbers.append(self.content(dtype) if key == _CONTENT else self.single(key, dtype))
        if len(numbers) != 1:
            raise UnsupportedLayout
        return numbers[0]

    def content(self, dtype: int) -> NDArray[np.float64]:
        if dtype not in _FIXED or self.same() != np.dtype(_FIXED[dtype]).itemsize:
            raise UnsupportedLayout
        return self.fixed(_FIXED[dtype]).astype(np.float64)

    def single(self, key: int, dtype: int) -> NDArray[np.float64]:
        number, wire = key >> 3, key & 7
        if number not in _SINGLES or number != TYPES[dtype][1]:
            raise UnsupportedLayout
        ends = self.length() if wire == _PACKED else None
        if _SINGLES[number]:
            numbers = self.fixed(_SINGLES[number]).astype(np.float64)
        else:
            raw = self.varint()
            if number == _BOOLS:
                numbers = (raw != 0).astype(np.float64)
            elif number == _INTS:
                numbers = raw.astype(np.uint32).view(np.int32).astype(np.float64)
            else:
                numbers = raw.view(np.int64).astype(np.float64)
        if ends is not None:
            self.arrive(ends)
        return numbers

    def message(self, ends: Positions, keys: set[int] | None) -> Iterator[int]:
        """Yield the key of each field up to ``ends``: one of ``keys``, each at most once."""
        seen = set()
        while self.at[0] < ends[0]:
            key = self.same()
            if key in seen or key > _LAST or (keys is not None and key not in keys):
                raise UnsupportedLayout
            seen.add(key)
            yield key
        self.arrive(ends)

    def arrive(self, ends: Positions) -> None:
        """Close a message: a record whose position is not at its end has another layout."""
        if self.at[0] != ends[0]:
            raise UnsupportedLayout
        self.good &= self.at == ends

    def expect(self, key: int) -> None:
        if self.same() != key:
            raise UnsupportedLayout

    def byte(self) -> Bytes:
        bytes_at: Bytes = self.data.take(self.at, mode="clip")
        return bytes_at

    def same(self) -> int:
        """Read one byte, which must be the same in all records."""
        values = self.byte()
        self.at += 1
        self.good &= values == values[0]
        return int(values[0])

    def varint(self) -> NDArray[np.uint64]:
        number = np.zeros(len(self.at), np.uint64)
        more = np.ones(len(self.at), bool)
        for shift in range(0, 70, 7):
            part = self.byte()
            if shift:
                part = part * more
            number |= (part & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            self.at += more
            more = part > _LAST
            if not more.any():
                return number
        self.good &= ~more
        return number

    def length(self) -> Positions:
        """Read a length and return the end of the content that follows."""
        number = self.varint()
        ends = self.at + np.minimum(number, np.uint64(len(self.data))).view(np.int64)
        if ends[0] > self.ends[0]:
            raise UnsupportedLayout
        return ends

    def text(self) -> Span:
        ends = self.length()
        span = Span(self.at, ends - self.at)
        if span.lengths[0] > _LONGEST_TEXT:
            raise UnsupportedLayout
        longest = -(-max(1, int(span.lengths[0])) // TEXT_BYTES) * TEXT_BYTES
        self.good &= span.lengths <= longest
        self.at = ends.copy()
        return span

    def fixed(self, dtype: str) -> NDArray[np.void]:
        view = unaligned(self.data, dtype)
        values = view[np.minimum(self.at, len(view) - 1)]
        self.at += values.itemsize
        return values
