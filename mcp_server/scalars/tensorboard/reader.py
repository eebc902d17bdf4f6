"""Reads the event files of a run repeatedly. Each read costs only what was appended since the one before.

Which event files of one directory come from one program, and which from several: by their names and their points.

A file's name holds the process that wrote it. Files of one process, and of the attempts of one run, are one program's.
A file of another process is another program's where its steps go back while the other's still grow. A later one goes on
with the program before it, as a resumed run does; of several programs, nothing says with which.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mcp_server.record.scalar_files import parse_event_name
from mcp_server.scalars.reading_process import ReadingProcess
from mcp_server.scalars.series import (
    MOST_TAGS,
    FilePoints,
    Points,
    RunScalars,
    ScalarsUnreadable,
    Series,
    describe_series,
    is_rising,
    join_programs,
    merge_files,
    shorten_list,
)
from mcp_server.scalars.tensorboard.cache import Cache
from mcp_server.scalars.tensorboard.collector import describe_left_out
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.scalars.tensorboard.tail import EventFile, GrowingPoints, later_starts
from mcp_server.system.files import open_regular_file
from mcp_server.threads import stop_if_abandoned

_SAVED_FIRST_BYTES = 64 * 2**10  # less is read again in a millisecond
_SAVED_BYTES = 2**20
_MOST_TAGS, _MOST_POINTS = 50, 500  # that are compared: two programs with the same tags differ at once
_CERTAIN = 2  # steps that go back; one is a late evaluation


class EventRun:
    """The event files directly in ``directory`` as one run, and the series that were last built from them.

    ``attempts``: only these files are the run's, each of this attempt of it, 0 where that is unknown. ``cache``: where
    another reader of them begins. ``nbytes``: memory that their points take.
    """

    def __init__(self, directory: Path, attempts: Mapping[str, int] | None = None, cache: Cache | None = None) -> None:
        self.nbytes = 0
        self._directory, self._attempts, self._cache = directory, attempts, cache
        self._files: dict[tuple[int, int], EventFile] = {}
        self._saved: dict[tuple[int, int], int] = {}  # offset
        self._merged: dict[str, _MergedSeries] = {}
        self._structure: object = None
        self._problems: list[str] = []
        self._left_out = 0  # tags
        self._scalars: RunScalars | None = None

    def count_unread(self) -> int:
        """Return how many bytes of the files are neither in memory nor in the cache; 0 without a cache."""
        count = 0
        for path in self._list_files() if self._cache is not None else ():
            with suppress(OSError):
                status = path.stat()
                known = self._files.get((status.st_dev, status.st_ino))
                position = known.position if known is not None else None
                read = position.offset if position is not None else self._cache and self._cache.find_offset(path)
                count += status.st_size - (read or 0)
        return count

    def read_apart(self, process: ReadingProcess) -> tuple[EventRun, RunScalars]:
        """Have ``process`` read the files, which leaves them in the cache, and read them from there."""
        process.call(_fill_cache, self._directory, self._attempts, self._cache)
        return self, self.read()

    def read(self) -> RunScalars:
        """Return the series as they are now, but no tag without points, or raise ScalarsUnreadable."""
        problems, files, names = [], {}, {}  # two names of one file where a link points to it
        changed = False
        scalars, self._scalars = self._scalars, None  # if anything fails half-way, the next read rebuilds it
        for path in self._list_files():
            try:
                with _open_file(path) as fd:
                    status = os.fstat(fd)
                    key = names[path.name] = (status.st_dev, status.st_ino)
                    if key in files:
                        continue
                    cached = self._files.get(key)
                    event_file = cached or (self._cache and self._cache.load(path, fd)) or EventFile()
                    if cached is None and event_file.position is not None:
                        self._saved[key] = event_file.position.offset
                    changed |= event_file.read_new(fd)
                    files[key] = event_file
            except OSError as error:
                names.pop(path.name, None)
                problems.append(f"{path.name} cannot be read: {error.strerror or error}")
                continue
            if self._cache is not None:
                self._save(self._cache, path, key, event_file)
        if not files:
            why = problems[0] if problems else "Those of the run are gone"
            raise ScalarsUnreadable(f"No event file in {self._directory} can be read. {why}.")
        if scalars is None or changed or list(files) != list(self._files) or problems != self._problems:
            self._files, self._problems = files, problems
            scalars = self._build(names)
        self._saved = {key: self._saved[key] for key in self._saved.keys() & files.keys()}
        self._scalars = scalars
        return scalars

    def _build(self, names: Mapping[str, tuple[int, int]]) -> RunScalars:
        files, keys = self._files, list(self._files)
        writers = {key: Writer.of(name, (self._attempts or {}).get(name, 0)) for name, key in names.items()}
        series, groups = self._merge(list(files.values()), [writers[key] for key in keys])
        programs = [tuple(name for name, key in names.items() if key in {keys[n] for n in one}) for one in groups]
        damage = [f"{name}: {text}" for name, key in names.items() for text in files[key].all_damage()]
        left_out = [f"All files together: {text}." for text in describe_left_out(self._left_out)]
        notes = (*self._problems, *left_out, *shorten_list(damage), *describe_series(series))
        self.nbytes = sum(file.nbytes for file in files.values()) + sum(one.nbytes for one in self._merged.values())
        return RunScalars(series, notes, tuple(programs) if len(programs) > 1 else ())

    def _list_files(self) -> list[Path]:
        try:
            paths = list_event_files(self._directory)
        except OSError as error:
            raise ScalarsUnreadable(f"{self._directory} cannot be listed: {error.strerror or error}.") from error
        if not paths:
            raise ScalarsUnreadable(f"No event file is directly in {self._directory}.")
        return [path for path in paths if self._attempts is None or path.name in self._attempts]

    def _save(self, cache: Cache, path: Path, key: tuple[int, int], event_file: EventFile) -> None:
        """Save the file in the cache, but not after every few points: each save writes the whole entry."""
        saved, offset = self._saved.get(key, 0), event_file.position.offset if event_file.position is not None else 0
        if offset < saved:
            saved = 0
        if offset - saved >= (max(_SAVED_BYTES, saved // 10) if saved else _SAVED_FIRST_BYTES):
            cache.save(path, event_file)
            self._saved[key] = offset

    def _merge(self, files: list[EventFile], writers: list[Writer]) -> tuple[dict[str, Series], list[list[int]]]:
        """Return the series of all tags, unchanged ones as the same objects, and the indices of programs' files."""
        starts = [file.all_starts() for file in files]
        programs = group_programs(files, writers) if len(files) > 1 else [[0]]
        later: list[list[int]] = [[] for _ in files]
        for program in programs:
            for n, steps in zip(program, later_starts([files[n] for n in program]), strict=True):
                later[n] = steps
        structure = [(file.version, [(s.step, s.wall) for s in starts[n]], later[n]) for n, file in enumerate(files)]
        settled = all(file.ahead is None for file in files)
        if (structure, programs) != self._structure or not settled:
            self._merged = {}
        self._structure = (structure, programs) if settled else None
        series = {}
        tags = list(dict.fromkeys(tag for file in files for tag in file.tags()))
        self._left_out = max(0, len(tags) - MOST_TAGS)
        for tag in tags[:MOST_TAGS]:
            stop_if_abandoned()
            columns = [file.columns.get(tag) for file in files]
            merged = self._merged.get(tag)
            if merged is None or not merged.extend(columns):
                parts = {
                    n: FilePoints(
                        *points.arrays, [(s.before.get(tag, 0), s.step) for s in starts[n]], later[n], writers[n]
                    )
                    for n, file in enumerate(files)
                    if (points := file.points(tag)) is not None
                }
                of_programs = [[parts[n] for n in program if n in parts] for program in programs]
                joined = join_programs([merge_files(one, Writer.is_same) for one in of_programs if one])
                merged = _MergedSeries(joined, columns, later)
            if settled:
                self._merged[tag] = merged
            if len(merged.series.steps):
                series[tag] = merged.series
        return series, programs


class _MergedSeries:
    """The series of one tag, and how many points of each file it was built from."""

    def __init__(self, series: Series, columns: Sequence[GrowingPoints | None], later: Sequence[Sequence[int]]) -> None:
        self.series = series
        self._counts = _counts(columns)
        points = {n: column.points() for n, column in enumerate(columns) if column is not None}
        starts = [(float(one.walls[0]), n) for n, one in points.items()]
        self._last = max(starts)[1] if starts else 0  # in the order in which merge_files takes them
        ordered = len(starts) == 1 or not any(math.isnan(wall) for wall, _ in starts)
        # Below the highest step, a later point may complete a stretch, and thereby a restart.
        highest = max((int(one.steps.max()) for one in points.values()), default=0)
        is_ahead = len(series.steps) > 0 and not series.cycles and series.steps[-1] >= highest
        self._is_open = ordered and series.writers == 1 and is_ahead and not later[self._last]
        # Whether the arrays are those of the file itself.
        self._whole = len(starts) == 1 and len(series.steps) == sum(self._counts) and not series.late
        self._column: GrowingPoints | None = None

    @property
    def nbytes(self) -> int:
        """Memory used in addition to the points of the files."""
        return 0 if self._whole else 24 * len(self.series.steps)

    def extend(self, columns: Sequence[GrowingPoints | None]) -> bool:
        """Append the last file's new points where no earlier one changes. Return whether all are in."""
        counts, steps = _counts(columns), self.series.steps
        if counts == self._counts:
            return True
        column = columns[self._last]
        others = [n for n, (now, then) in enumerate(zip(counts, self._counts, strict=True)) if now != then]
        if column is None or others != [self._last] or not self._is_open or not len(steps):
            return False
        new = column.points(self._counts[self._last])
        if new.steps[0] < steps[-1] or not is_rising(new.steps):
            return False
        if self._whole:
            points = column.points()
        else:
            if self._column is None:
                self._column = GrowingPoints(self.series)
            self._column.append(new)
            points = self._column.points()
        self.series = replace(self.series, steps=points.steps, walls=points.walls, values=points.values)
        self._counts = counts
        return True


def _counts(columns: Sequence[GrowingPoints | None]) -> list[int]:
    return [0 if column is None else column.count for column in columns]


def _fill_cache(directory: Path, attempts: Mapping[str, int] | None, cache: Cache | None) -> None:
    EventRun(directory, attempts, cache).read()


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    fd = open_regular_file(path)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Writer:
    """``processes``: the readings of a file's name, of which one is true. ``attempt``: of its run, 0 without one."""

    processes: frozenset[tuple[int, str]]
    attempt: int = 0

    @classmethod
    def of(cls, name: str, attempt: int = 0) -> Writer:
        """Return the writer of the event file with this name."""
        parsed = parse_event_name(name)
        return cls(frozenset(parsed.writers if parsed else ()), attempt)

    def is_same(self, other: Writer) -> bool:
        """Return whether both are surely one program: one process, or two attempts of a run."""
        return self.attempt != other.attempt or not self.processes.isdisjoint(other.processes)


def group_programs(files: Sequence[EventFile], writers: Sequence[Writer]) -> list[list[int]]:
    """Return the indices of the files of each program, in the order of the programs' first points."""
    spans = [file.span for file in files]
    programs: list[list[int]] = []
    ends: list[float] = []
    for index in sorted(range(len(files)), key=lambda index: spans[index][0]):
        known = [n for n, program in enumerate(programs) if any(writers[index].is_same(writers[i]) for i in program)]
        if known or (len(programs) == 1 and not _goes_back(files, spans[index][0], ends[0], index, programs[0])):
            number = known[0] if known else 0
            programs[number].append(index)
            ends[number] = max(ends[number], spans[index][1])
        else:
            programs.append([index])
            ends.append(spans[index][1])
    return programs


def _goes_back(files: Sequence[EventFile], begun_s: float, end_s: float, index: int, program: Sequence[int]) -> bool:
    return begun_s < end_s and any(_interfere(files[index], files[other]) for other in program)


def _interfere(one: EventFile, other: EventFile) -> bool:
    """Return whether two files log the same or lower steps of a tag in turn, at the same time."""
    tags = [tag for tag in one.tags() if tag in set(other.tags())]
    for tag in tags[:_MOST_TAGS]:
        pair = [points for points in (one.points(tag), other.points(tag)) if points is not None]
        begun_s = max((points.walls[0] for points in pair), default=np.nan)
        end_s = min((points.walls[-1] for points in pair), default=np.nan)
        if len(pair) == 1 or not begun_s <= end_s:
            continue
        parts = [_cut(points, begun_s, end_s) for points in pair]
        order = np.argsort(np.concatenate([part.walls for part in parts]), kind="stable")
        steps = np.concatenate([part.steps for part in parts])[order]
        source = np.repeat([0, 1], [len(part.steps) for part in parts])[order]
        goes_back = (steps[1:] <= steps[:-1]) & (source[1:] != source[:-1])
        if steps.any() and int(goes_back.sum()) >= _CERTAIN:
            return True
    return False


def _cut(points: Points, begun_s: float, end_s: float) -> Points:
    first = max(0, int(np.searchsorted(points.walls, begun_s)) - 1)
    last = min(int(np.searchsorted(points.walls, end_s, "right")) + 1, first + _MOST_POINTS)
    return points.where(slice(first, last))
