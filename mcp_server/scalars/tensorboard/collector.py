"""TagPoints of many records, put together by tag and in the order of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcp_server.scalars.tensorboard.batch_decode import DecodedBatch, Span, UnsupportedLayout, ValueColumn, decode_batch
from mcp_server.scalars.tensorboard.decode import SCALARS, ScalarEvent, decode_event, plugin_name
from mcp_server.scalars.tensorboard.group_by_tag import group_records
from mcp_server.scalars.tensorboard.protobuf import Malformed
from mcp_server.scalars.tensorboard.records import HEADER_BYTES, Bytes, Positions

_FEW = 24  # records: decoded one by one in the time that a decode_batch takes
_MOST_WALKS = 32  # a block of records has two or three builds; 32 walks take as long as the slow path
_MOST_DAMAGE = 20  # places told one by one


@dataclass(frozen=True, eq=False)
class TagPoints:
    """TagPoints of one tag in the order of the file, each array of shape (n,). ``walls``: seconds since 1970, UTC."""

    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


class _Piece(NamedTuple):
    """TagPoints of one tag and where the record of each stands. ``needs_plugin``: of tensors."""

    offsets: Positions
    steps: NDArray[np.int64]
    walls: NDArray[np.float64]
    values: NDArray[np.float64]
    needs_plugin: bool

    def chosen(self, which: NDArray[Any]) -> _Piece:
        """Return the points that a mask or an order tells."""
        return _Piece(self.offsets[which], self.steps[which], self.walls[which], self.values[which], self.needs_plugin)


@dataclass(eq=False)
class _Block:
    """What was read since the last ``finish_block``, by tag. ``learned``: at which offset, and the plugin."""

    pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    singles: dict[tuple[str, bool], list[tuple[int, int, float, float]]] = field(default_factory=dict)
    learned: dict[str, tuple[int, str]] = field(default_factory=dict)
    starts: list[tuple[int, int, float]] = field(default_factory=list)

    def learn(self, tag: str, offset: int, plugin: str) -> None:
        if tag not in self.learned or offset < self.learned[tag][0]:
            self.learned[tag] = (offset, plugin)


class Collector:
    """Takes blocks of records in the order of the file; within a block in any order."""

    def __init__(self, plugins: Mapping[str, str]) -> None:
        self.plugins = dict(plugins)
        self.starts: list[tuple[int, float]] = []
        self.file_version: str | None = None
        self._series: dict[str, list[list[NDArray[Any]]]] = {}
        self._counts: dict[str, int] = {}
        self._at_starts: dict[str, list[int]] = {}
        self._block = _Block()
        self._damage: list[tuple[int, str]] = []
        self._more_damage = 0

    def add_damage(self, offset: int, what: str) -> None:
        """Keep what was skipped at an offset."""
        if len(self._damage) < _MOST_DAMAGE:
            self._damage.append((offset, what))
        else:
            self._more_damage += 1

    @property
    def damage(self) -> tuple[str, ...]:
        """What was skipped, in words."""
        told = [f"offset {offset}: {what}" for offset, what in sorted(self._damage)]
        return (*told, f"and {self._more_damage} more places") if self._more_damage else tuple(told)

    def add_records(self, data: Bytes, starts: Positions, lengths: Positions, base: int) -> None:
        """Read records whose headers stand at ``starts`` in ``data``, which begins at the file's offset ``base``."""
        begins, ends = starts + HEADER_BYTES, starts + HEADER_BYTES + lengths
        for _ in range(_MOST_WALKS):
            if len(begins) < _FEW:
                break
            rest = self._walk(data, begins, ends, base)
            begins, ends = begins[rest], ends[rest]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self.add_record(data[begin:end].tobytes(), base + begin - HEADER_BYTES)

    def add_record(self, payload: bytes, offset: int) -> None:
        """Read one record, which stands at ``offset`` in the file."""
        try:
            event = decode_event(payload)
        except Malformed as problem:
            self.add_damage(offset, f"{problem} in a record whose checksum is right")
        else:
            self._add(event, offset)

    def finish_block(self) -> None:
        """Close a block: everything before it, and nothing behind it, has been taken."""
        block, self._block = self._block, _Block()
        for (tag, needs_plugin), singles in block.singles.items():
            block.pieces.setdefault(tag, []).append(_piece(singles, needs_plugin))
        fresh: dict[str, _Piece] = {}
        for tag, pieces in block.pieces.items():
            known_from = self._known_from(tag, block)
            if kept := [part for piece in pieces if (part := _scalars(piece, known_from)) is not None]:
                fresh[tag] = _joined(kept)
                for parts, array in zip(self._series.setdefault(tag, [[], [], []]), fresh[tag][1:4], strict=True):
                    parts.append(array)
        self._count(fresh, sorted(block.starts))
        for tag, (_, plugin) in block.learned.items():
            self.plugins.setdefault(tag, plugin)

    def _known_from(self, tag: str, block: _Block) -> int | None:
        """Return the offset from which on the tensors of a tag are known to be scalars."""
        if tag in self.plugins:
            return 0 if self.plugins[tag] == SCALARS else None
        offset, plugin = block.learned.get(tag, (0, ""))
        return offset if plugin == SCALARS else None

    def _count(self, fresh: Mapping[str, _Piece], starts: list[tuple[int, int, float]]) -> None:
        """Count the points, up to each of ``starts`` too."""
        if starts:
            places = [offset for offset, _, _ in starts]
            for tag in {**self._counts, **fresh}:
                inside = (
                    np.searchsorted(fresh[tag].offsets, places) if tag in fresh else np.zeros(len(places), np.int64)
                )
                earlier = self._at_starts.setdefault(tag, [0] * len(self.starts))
                earlier += (inside + self._counts.get(tag, 0)).tolist()
            self.starts += [(step, wall) for _, step, wall in starts]
        for tag, piece in fresh.items():
            self._counts[tag] = self._counts.get(tag, 0) + len(piece.offsets)

    def points(self) -> dict[str, TagPoints]:
        """Return all points by tag, and forget them."""
        series, self._series = self._series, {}
        # A column after the other: the parts of one are freed before the next is put together.
        columns = [{tag: _concatenated(parts.pop(0)) for tag, parts in series.items()} for _ in range(3)]
        return {tag: TagPoints(*(column[tag] for column in columns)) for tag in series}

    def start_positions(self) -> dict[str, tuple[int, ...]]:
        """Return how many points of each tag stand before each of ``starts``."""
        return {tag: tuple(self._at_starts.get(tag, [0] * len(self.starts))) for tag in self._counts}

    def _walk(self, data: Bytes, begins: Positions, ends: Positions, base: int) -> NDArray[np.bool_]:
        """Read the records that are built like the first; return a mask of those left."""
        rest = np.ones(len(begins), bool)
        try:
            found = decode_batch(data, begins, ends)
        except UnsupportedLayout:
            rest[0] = False
            self.add_record(data[begins[0] : ends[0]].tobytes(), base + int(begins[0]) - HEADER_BYTES)
            return rest
        if any(column.counts for column in found.columns):
            self._add_groups(data, found, begins, ends, base)
        return ~found.good

    def _add_groups(self, data: Bytes, found: DecodedBatch, begins: Positions, ends: Positions, base: int) -> None:
        groups = group_records(data, found)
        offsets = begins[groups.rows] + (base - HEADER_BYTES)
        steps, walls = found.steps[groups.rows], found.walls[groups.rows]
        columns = [column for column in found.columns if column.counts]
        numbers = [None if column.numbers is None else column.numbers[groups.rows] for column in columns]
        every_places = [offsets + index for index in range(len(columns))]
        for first, low, high in groups:
            try:
                names = [_name(data, column, first) for column in columns]
            except (UnicodeDecodeError, Malformed):
                for row in groups.rows[low:high].tolist():
                    self.add_record(data[begins[row] : ends[row]].tobytes(), base + int(begins[row]) - HEADER_BYTES)
                continue
            for column, values, places, (tag, plugin) in zip(columns, numbers, every_places, names, strict=True):
                if plugin is not None and tag not in self.plugins:
                    self._block.learn(tag, int(places[low]), plugin)
                if values is not None:
                    part = slice(low, high)
                    piece = _Piece(places[part], steps[part], walls[part], values[part], column.needs_plugin)
                    self._block.pieces.setdefault(tag, []).append(piece)

    def _add(self, event: ScalarEvent, offset: int) -> None:
        self.file_version = self.file_version or event.file_version
        if event.starts:
            self._block.starts.append((offset, event.step, event.wall))
        for index, value in enumerate(event.values):
            if value.plugin is not None and value.tag not in self.plugins:
                self._block.learn(value.tag, offset + index, value.plugin)
            if value.number is not None:
                singles = self._block.singles.setdefault((value.tag, value.needs_plugin), [])
                singles.append((offset + index, event.step, event.wall, value.number))


def _name(data: Bytes, column: ValueColumn, row: int) -> tuple[str, str | None]:
    """Return a value's tag, and the plugin that it names."""
    tag = _text(data, column.tag, row) or _text(data, column.node, row)
    if column.numbers is not None and not column.needs_plugin:
        return tag.decode(), SCALARS
    return tag.decode(), None if column.metadata is None else plugin_name(_text(data, column.metadata, row))


def _text(data: Bytes, span: Span | None, row: int) -> bytes:
    if span is None:
        return b""
    begin = int(span.starts[row])
    return data[begin : begin + int(span.lengths[row])].tobytes()


def _scalars(piece: _Piece, known_from: int | None) -> _Piece | None:
    """Return what is scalar of a piece, if its tag is known from an offset on to belong to the plugin of scalars."""
    if not piece.needs_plugin:
        return piece
    if known_from is None:
        return None
    known = piece.offsets >= known_from
    return piece if known.all() else piece.chosen(known) if known.any() else None


def _piece(singles: list[tuple[int, int, float, float]], needs_plugin: bool) -> _Piece:
    offsets, steps, walls, values = zip(*sorted(singles), strict=True)
    floats = np.array([walls, values], np.float64)
    return _Piece(np.array(offsets, np.int64), np.array(steps, np.int64), floats[0], floats[1], needs_plugin)


def _joined(pieces: list[_Piece]) -> _Piece:
    """Return the pieces as one, in the order of the file."""
    if len(pieces) == 1:
        return pieces[0]
    offsets, steps, walls, values = (_concatenated(list(arrays)) for arrays in list(zip(*pieces, strict=True))[:4])
    piece = _Piece(offsets, steps, walls, values, needs_plugin=False)
    return piece if (offsets[1:] >= offsets[:-1]).all() else piece.chosen(np.argsort(offsets, kind="stable"))


def _concatenated(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
