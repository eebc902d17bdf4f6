"""Collects the points of many records by tag, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcp_server.record.curves.event_records import SCALARS, ScalarEvent, decode_event, plugin_name
from mcp_server.record.curves.protobuf import Malformed
from mcp_server.scalars.series import MOST_TAGS, Points
from mcp_server.scalars.tensorboard.batch_decode import (
    TEXT_BYTES,
    DecodedBatch,
    Span,
    UnsupportedLayout,
    ValueColumn,
    decode_batch,
)
from mcp_server.scalars.tensorboard.records import HEADER_BYTES, Bytes, Positions, unaligned

_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # masks of the first bytes of a word


def _group_records(data: Bytes, batch: DecodedBatch) -> tuple[Positions, list[tuple[int, int, int]]]:
    """Return the good rows by their tags, and of each group one row, its begin and its end.

    Clears ``good`` of the few rows that must be decoded in another walk.
    """
    rows = np.flatnonzero(batch.good)
    spans = [span for column in batch.columns if column.is_relevant for span in column.texts]
    words = [word for span in spans for word in _words(data, span, rows)]
    mixed = np.zeros(len(rows), np.uint64)
    for word in words:
        mixed ^= word
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(32)
    bucket = (mixed >> np.uint64(48)).view(np.int64)
    table = np.empty(2**16, np.int64)
    every = np.arange(len(rows))
    table[bucket] = every  # the last row of a bucket remains
    first = table[bucket]
    same = np.ones(len(rows), bool)
    for word in words:
        same &= word == word[first]
    firsts = np.flatnonzero(first == every)
    group = np.zeros(len(rows), np.uint16)  # numpy sorts uint16 by radix
    group[firsts] = np.arange(len(firsts), dtype=np.uint16)
    group = group[first]
    if not same.all():  # two tags in one bucket
        batch.good[rows[~same]] = False
        rows, group, firsts = rows[same], group[same], rows[firsts]
    else:
        firsts = rows[firsts]
    order = np.argsort(group, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(firsts)))])
    return rows[order], list(zip(firsts.tolist(), bounds.tolist(), bounds.tolist()[1:], strict=False))


def _words(data: Bytes, span: Span, rows: Positions) -> Iterator[NDArray[np.uint64]]:
    """Yield the length of each text, then its bytes, eight at a time, with zeros after its end."""
    starts, lengths = (
        (span.starts, span.lengths) if len(rows) == len(span.starts) else (span.starts[rows], span.lengths[rows])
    )
    yield lengths.view(np.uint64)
    longest = int(lengths.max(initial=0))
    for begin in range(0, longest, TEXT_BYTES):
        block = unaligned(data, f"V{TEXT_BYTES}")[starts + begin].view("<u8").reshape(-1, TEXT_BYTES // 8)
        for index in range(-(-min(TEXT_BYTES, longest - begin) // 8)):
            yield block[:, index] & _FIRST_BYTES[np.clip(lengths - (begin + index * 8), 0, 8)]


_FEW = 24  # records: decoding them one by one takes as long as one batch
_MOST_BATCHES = 32  # a block of records has two or three layouts; 32 batches take as long as the slow path
_MOST_DAMAGE = 20  # reports with an offset of their own


class _Piece(NamedTuple):
    """Points of one tag and the offset of each record. ``needs_plugin``: they come from tensors."""

    offsets: Positions
    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    needs_plugin: bool

    def select(self, index: NDArray[Any]) -> _Piece:
        return _Piece(self.offsets[index], self.steps[index], self.walls[index], self.values[index], self.needs_plugin)


@dataclass(eq=False)
class _Block:
    """Points read since the last ``finish_block``, by tag. ``learned``: the first offset and the name of a plugin."""

    pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    singles: dict[tuple[str, bool], list[tuple[int, int, float, float]]] = field(default_factory=dict)
    learned: dict[str, tuple[int, str]] = field(default_factory=dict)
    starts: list[tuple[int, int, float]] = field(default_factory=list)

    def learn(self, tag: str, offset: int, plugin: str) -> None:
        if tag not in self.learned or offset < self.learned[tag][0]:
            self.learned[tag] = (offset, plugin)


class Collector:
    """Collects blocks of records in the order of the file. Within a block records may come in any order."""

    def __init__(self, plugins: Mapping[str, str]) -> None:
        self.plugins = dict(plugins)
        self.starts: list[tuple[int, float]] = []
        self._series: dict[str, list[list[NDArray[Any]]]] = {}
        self._counts: dict[str, int] = {}
        self._at_starts: dict[str, list[int]] = {}
        self._block = _Block()
        self._damage: list[tuple[int, str]] = []
        self._more_damage = 0
        self._left_out: set[int] = set()  # hashes of tags

    def add_damage(self, offset: int, what: str) -> None:
        """Note why bytes at an offset were skipped."""
        if len(self._damage) < _MOST_DAMAGE:
            self._damage.append((offset, what))
        else:
            self._more_damage += 1

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence per skipped part of the file."""
        reports = [f"offset {offset}: {what}" for offset, what in sorted(self._damage)]
        if self._more_damage:
            reports.append(f"and {self._more_damage} more places")
        return (*describe_left_out(len(self._left_out)), *reports)

    def add_records(self, data: Bytes, starts: Positions, lengths: Positions, base: int) -> None:
        """Read records whose headers are at ``starts`` in ``data``, which begins at the file's offset ``base``."""
        begins, ends = starts + HEADER_BYTES, starts + HEADER_BYTES + lengths
        for _ in range(_MOST_BATCHES):
            if len(begins) < _FEW:
                break
            rest = self._decode_batch(data, begins, ends, base)
            begins, ends = begins[rest], ends[rest]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self.add_record(data[begin:end].tobytes(), base + begin - HEADER_BYTES)

    def add_record(self, payload: bytes, offset: int) -> None:
        """Read the record at ``offset`` in the file."""
        try:
            event = decode_event(payload)
        except Malformed as problem:
            self.add_damage(offset, f"{problem} in a record whose checksum is right")
        else:
            self._add(event, offset)

    def finish_block(self) -> None:
        """Close a block: all records before its end have been added, and none after it."""
        block, self._block = self._block, _Block()
        for (tag, needs_plugin), singles in block.singles.items():
            block.pieces.setdefault(tag, []).append(_piece(singles, needs_plugin))
        fresh: dict[str, _Piece] = {}
        tags = list(block.pieces.items())
        if len(self._series) + len(tags) > MOST_TAGS:  # a block has its tags in no order
            tags.sort(key=lambda tag: min(int(piece.offsets[0]) for piece in tag[1]))
        for tag, pieces in tags:
            if tag not in self._series and len(self._series) >= MOST_TAGS:
                self._left_out.add(hash(tag))
                continue
            known_from = self._known_from(tag, block)
            if parts := [part for piece in pieces if (part := _select_scalars(piece, known_from)) is not None]:
                fresh[tag] = _join(parts)
                for arrays, array in zip(self._series.setdefault(tag, [[], [], []]), fresh[tag][1:4], strict=True):
                    arrays.append(array)
        self._count(fresh, sorted(block.starts))
        for tag, (_, plugin) in block.learned.items():
            self.plugins.setdefault(tag, plugin)

    def _known_from(self, tag: str, block: _Block) -> int | None:
        """Return the first offset at which the tensors of a tag are known to be scalars, or None if they are not."""
        if tag in self.plugins:
            return 0 if self.plugins[tag] == SCALARS else None
        offset, plugin = block.learned.get(tag, (0, ""))
        return offset if plugin == SCALARS else None

    def _count(self, fresh: Mapping[str, _Piece], starts: list[tuple[int, int, float]]) -> None:
        """Count the points of each tag, in total and up to each of ``starts``."""
        if starts:
            offsets = [offset for offset, _, _ in starts]
            for tag in {**self._counts, **fresh}:
                inside = (
                    np.searchsorted(fresh[tag].offsets, offsets) if tag in fresh else np.zeros(len(offsets), np.int64)
                )
                earlier = self._at_starts.setdefault(tag, [0] * len(self.starts))
                earlier += (inside + self._counts.get(tag, 0)).tolist()
            self.starts += [(step, wall) for _, step, wall in starts]
        for tag, piece in fresh.items():
            self._counts[tag] = self._counts.get(tag, 0) + len(piece.offsets)

    def points(self) -> dict[str, Points]:
        """Return all points by tag, and drop them here."""
        series, self._series = self._series, {}
        # One column after the other: the parts of one are freed before the next is joined.
        columns = [{tag: _concatenate(parts.pop(0)) for tag, parts in series.items()} for _ in range(3)]
        return {tag: Points(*(column[tag] for column in columns)) for tag in series}

    def start_positions(self) -> dict[str, tuple[int, ...]]:
        """Return how many points of each tag precede each of ``starts``."""
        return {tag: tuple(self._at_starts.get(tag, [0] * len(self.starts))) for tag in self._counts}

    def _decode_batch(self, data: Bytes, begins: Positions, ends: Positions, base: int) -> NDArray[np.bool_]:
        """Read the records with the layout of the first one. Return a mask of the others."""
        rest = np.ones(len(begins), bool)
        try:
            batch = decode_batch(data, begins, ends)
        except UnsupportedLayout:
            rest[0] = False
            self.add_record(data[begins[0] : ends[0]].tobytes(), base + int(begins[0]) - HEADER_BYTES)
            return rest
        if any(column.is_relevant for column in batch.columns):
            self._add_groups(data, batch, begins, ends, base)
        return ~batch.good

    def _add_groups(self, data: Bytes, batch: DecodedBatch, begins: Positions, ends: Positions, base: int) -> None:
        rows, groups = _group_records(data, batch)
        offsets = begins[rows] + (base - HEADER_BYTES)
        steps, walls = batch.steps[rows], batch.walls[rows]
        columns = [column for column in batch.columns if column.is_relevant]
        numbers = [None if column.numbers is None else column.numbers[rows] for column in columns]
        value_offsets = [offsets + index for index in range(len(columns))]
        for first, low, high in groups:
            try:
                names = [_name(data, column, first) for column in columns]
            except (UnicodeDecodeError, Malformed):
                for row in rows[low:high].tolist():
                    self.add_record(data[begins[row] : ends[row]].tobytes(), base + int(begins[row]) - HEADER_BYTES)
                continue
            for column, values, at, (tag, plugin) in zip(columns, numbers, value_offsets, names, strict=True):
                if plugin is not None and tag not in self.plugins:
                    self._block.learn(tag, int(at[low]), plugin)
                if values is not None:
                    part = slice(low, high)
                    piece = _Piece(at[part], steps[part], walls[part], values[part], column.needs_plugin)
                    self._block.pieces.setdefault(tag, []).append(piece)

    def _add(self, event: ScalarEvent, offset: int) -> None:
        if event.starts:
            self._block.starts.append((offset, event.step, event.wall))
        for index, value in enumerate(event.values):
            if value.plugin is not None and value.tag not in self.plugins:
                self._block.learn(value.tag, offset + index, value.plugin)
            if value.number is not None:
                singles = self._block.singles.setdefault((value.tag, value.needs_plugin), [])
                singles.append((offset + index, event.step, event.wall, value.number))


def describe_left_out(count: int) -> list[str]:
    """Return the sentence on so many tags that were left out; none for 0."""
    return [f"only the first {MOST_TAGS:,} tags are kept, {count:,} more are left out"] if count else []


def _name(data: Bytes, column: ValueColumn, row: int) -> tuple[str, str | None]:
    tag = _text(data, column.tag, row) or _text(data, column.node, row)
    if column.numbers is not None and not column.needs_plugin:
        return tag.decode(), SCALARS
    return tag.decode(), None if column.metadata is None else plugin_name(_text(data, column.metadata, row))


def _text(data: Bytes, span: Span | None, row: int) -> bytes:
    if span is None:
        return b""
    begin = int(span.starts[row])
    return data[begin : begin + int(span.lengths[row])].tobytes()


def _select_scalars(piece: _Piece, known_from: int | None) -> _Piece | None:
    """Return the scalars of a piece: its tensors count from the offset at which their plugin is known."""
    if not piece.needs_plugin:
        return piece
    if known_from is None:
        return None
    is_scalar = piece.offsets >= known_from
    return piece if is_scalar.all() else piece.select(is_scalar) if is_scalar.any() else None


def _piece(singles: list[tuple[int, int, float, float]], needs_plugin: bool) -> _Piece:
    offsets, steps, walls, values = zip(*sorted(singles), strict=True)
    floats = np.array([walls, values], np.float64)
    return _Piece(np.array(offsets, np.int64), np.array(steps, np.int64), floats[0], floats[1], needs_plugin)


def _join(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    offsets, steps, walls, values = (_concatenate(list(arrays)) for arrays in list(zip(*pieces, strict=True))[:4])
    piece = _Piece(offsets, steps, walls, values, needs_plugin=False)
    return piece if (offsets[1:] >= offsets[:-1]).all() else piece.select(np.argsort(offsets, kind="stable"))


def _concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
