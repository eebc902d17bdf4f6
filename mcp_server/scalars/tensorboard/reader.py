"""Reads the event files of runs repeatedly; each read costs only what was appended since the one before.

An :class:`EventReader` may be shared by threads and live for weeks. It keeps the points of the runs read most recently,
64 MiB of them. Other runs are read again, through the cache.
"""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mcp_server.scalars.series import FilePoints, RunScalars, Series, describe_series, merge_files, shorten_list
from mcp_server.scalars.tensorboard import scan
from mcp_server.scalars.tensorboard.cache import Cache
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.scalars.tensorboard.scan import TagPoints
from mcp_server.scalars.tensorboard.tail import EventFile, FilePosition, GrowingPoints, later_starts, open_regular

_KEPT_BYTES = 64 * 2**20
_MOST_MARKS = 4096  # runs of which is known how far they were read: about 1 KB each
_TAILS = 32  # files of a run whose ends are looked at for the newest values
_SAVED_FIRST_BYTES = 64 * 2**10  # less is read again in a millisecond
_SAVED_BYTES = 2**20


class ScalarsUnreadable(Exception):
    """A directory has no event files that can be read; the message says why."""


class EventReader:
    """Reads runs and remembers them; ``cache`` is the directory in which it does so for other processes."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = None if cache is None else Cache(cache)
        self._lock = threading.Lock()  # of the two tables; each run has its own
        self._runs: OrderedDict[str, _RunFiles] = OrderedDict()
        self._marks: OrderedDict[str, frozenset[tuple[str, FilePosition]]] = OrderedDict()

    def read(self, directory: Path) -> RunScalars:
        """Return the series of the run whose event files lie directly in ``directory``; tags without points are none.

        Raises:
            ScalarsUnreadable: there is no such directory, it has no event files, or none that can be read.
        """
        place = os.path.realpath(directory)
        with self._lock:
            run = self._runs.setdefault(place, _RunFiles())
            self._runs.move_to_end(place)
        try:
            with run.lock:
                scalars = run.read(directory, self._cache)
                marks = run.marks()
        except ScalarsUnreadable:
            with self._lock:
                self._runs.pop(place, None)
                self._marks.pop(place, None)
            raise
        with self._lock:
            self._marks[place] = marks
            self._marks.move_to_end(place)
            while len(self._marks) > _MOST_MARKS:
                self._marks.popitem(last=False)
            kept = sum(run.nbytes for run in self._runs.values())
            while kept > _KEPT_BYTES and len(self._runs) > 1:
                kept -= self._runs.popitem(last=False)[1].nbytes
        return scalars

    def newest(self, directory: Path) -> dict[str, tuple[int, float, float]]:
        """Return step, wall time and value of the newest point of each tag, from the ends of the newest 32 files.

        Reads a MiB of a file at most: a tag that was not told for long may be missing.

        Raises:
            ScalarsUnreadable: as for :meth:`read`.
        """
        told: dict[str, tuple[int, float, float]] = {}
        for path in _list_files(directory)[-_TAILS:]:
            with suppress(OSError), _open_file(path) as fd:
                for tag, point in scan.read_newest(fd, os.fstat(fd).st_size)[0].items():
                    if tag not in told or not point[1] < told[tag][1]:
                        told[tag] = point
        return told

    def changed(self, directory: Path) -> bool:
        """Tell whether :meth:`read` would have anything new since its last call: an open, a few bytes, a close."""
        with self._lock:
            known = self._marks.get(os.path.realpath(directory))
        try:
            paths = list_event_files(directory)
        except OSError:
            return known is not None
        if known is None:
            return bool(paths)
        marks = dict(known)
        looked_at = set()
        for path in paths:
            try:
                with _open_file(path) as fd:
                    status = os.fstat(fd)
                    mark = marks.get(path.name)
                    if mark is None or mark.has_changed(fd, status):
                        return True
            except OSError:
                continue
            looked_at.add(path.name)
        return looked_at != marks.keys()


class _RunFiles:
    """The event files of one directory, and the series that were made of them last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nbytes = 0
        self._files: dict[tuple[int, int], EventFile] = {}
        self._names: dict[str, tuple[int, int]] = {}  # several, where a link stands beside the file
        self._saved: dict[tuple[int, int], int] = {}  # offset
        self._joined: dict[str, _MergedSeries] = {}
        self._structure: object = None
        self._problems: list[str] = []
        self._told: RunScalars | None = None

    def marks(self) -> frozenset[tuple[str, FilePosition]]:
        """Return how far each file was read, by name."""
        marks = ((name, self._files[key].mark) for name, key in self._names.items())
        return frozenset((name, mark) for name, mark in marks if mark is not None)

    def read(self, directory: Path, cache: Cache | None) -> RunScalars:
        """Return the series as they are now.

        Raises:
            ScalarsUnreadable: as for :meth:`EventReader.read`.
        """
        problems, files, names, total = [], {}, {}, 0
        is_news = False
        told, self._told = self._told, None  # if anything fails half-way, the next look makes it anew
        for path in _list_files(directory):
            try:
                with _open_file(path) as fd:
                    status = os.fstat(fd)
                    key = names[path.name] = (status.st_dev, status.st_ino)
                    if key in files:
                        continue
                    known = self._files.get(key)
                    event_file = known or (cache and cache.load(path, fd)) or EventFile()
                    if known is None and event_file.mark is not None:
                        self._saved[key] = event_file.mark.offset
                    is_news |= event_file.read_new(fd)
                    files[key] = event_file
                    total += status.st_size
            except OSError as error:
                names.pop(path.name, None)
                problems.append(f"{path.name} cannot be read: {error.strerror or error}")
                continue
            if cache is not None:
                self._save(cache, path, key, event_file)
        if not files:
            raise ScalarsUnreadable(f"No event file in {directory} can be read. {problems[0]}.")
        if told is None or is_news or list(files) != list(self._files) or problems != self._problems:
            self._files, self._problems = files, problems
            series = self._join(list(files.values()))
            damage = [f"{name}: {text}" for name, key in names.items() for text in files[key].all_damage()]
            notes = (*problems, *shorten_list(damage), *describe_series(series))
            told = RunScalars(directory, series, notes, total)
            self.nbytes = sum(file.nbytes for file in files.values()) + sum(one.nbytes for one in self._joined.values())
        self._names = names
        self._saved = {key: self._saved[key] for key in self._saved.keys() & files.keys()}
        self._told = told
        return replace(told, path=directory)

    def _save(self, cache: Cache, path: Path, key: tuple[int, int], event_file: EventFile) -> None:
        """Put the file into the cache, but not for every few points: the whole entry is written each time."""
        saved, offset = self._saved.get(key, 0), event_file.mark.offset if event_file.mark is not None else 0
        if offset < saved:
            saved = 0
        if offset - saved >= (max(_SAVED_BYTES, saved // 10) if saved else _SAVED_FIRST_BYTES):
            cache.save(path, event_file)
            self._saved[key] = offset

    def _join(self, files: list[EventFile]) -> dict[str, Series]:
        """Return the series of all tags; those of unchanged tags are the same objects as before."""
        starts = [file.all_starts() for file in files]
        later = later_starts(files)
        structure = [(file.version, [(s.step, s.wall) for s in starts[n]], later[n]) for n, file in enumerate(files)]
        settled = all(file.ahead is None for file in files)
        if structure != self._structure or not settled:
            self._joined = {}
        self._structure = structure if settled else None
        series = {}
        for tag in dict.fromkeys(tag for file in files for tag in file.tags()):
            columns = [file.columns.get(tag) for file in files]
            joined = self._joined.get(tag)
            if joined is None or not joined.extend(columns):
                told = [
                    FilePoints(
                        points.steps,
                        points.walls,
                        points.values,
                        [(s.before.get(tag, 0), s.step) for s in starts[n]],
                        later[n],
                    )
                    for n, file in enumerate(files)
                    if (points := file.points(tag)) is not None
                ]
                joined = _MergedSeries(merge_files(told), columns, later)
            if settled:
                self._joined[tag] = joined
            if len(joined.series.steps):
                series[tag] = joined.series
        return series


class _MergedSeries:
    """The series of one tag, and how many points of which files it was made of."""

    def __init__(self, series: Series, columns: Sequence[GrowingPoints | None], later: Sequence[Sequence[int]]) -> None:
        self.series = series
        self._counts = _counts(columns)
        told = [(float(column.points().walls[0]), n) for n, column in enumerate(columns) if column is not None]
        self._last = max(told)[1] if told else 0  # in the order in which merge takes them
        ordered = len(told) == 1 or not any(math.isnan(wall) for wall, _ in told)
        self._is_open = ordered and series.writers == 1 and not later[self._last]
        self._whole = len(told) == 1 and len(series.steps) == sum(self._counts)  # arrays of the file itself
        self._column: GrowingPoints | None = None

    @property
    def nbytes(self) -> int:
        """Memory that it takes besides the points of the files."""
        return 0 if self._whole else 24 * len(self.series.steps)

    def extend(self, columns: Sequence[GrowingPoints | None]) -> bool:
        """Put behind what the last file told since, if that changes nothing before; return whether it is all in.

        So a thousand new points cost as much behind a million as behind none.
        """
        counts, steps = _counts(columns), self.series.steps
        if counts == self._counts:
            return True
        column = columns[self._last]
        others = [n for n, (now, then) in enumerate(zip(counts, self._counts, strict=True)) if now != then]
        if column is None or others != [self._last] or not self._is_open or not len(steps):
            return False
        new = column.points(self._counts[self._last])
        rising = new.steps[0] > steps[-1] and (new.steps[1:] > new.steps[:-1]).all()
        if len(steps) > 1 and steps[0] == steps[-1]:  # no steps are passed
            rising = not new.steps.any()
        if not rising:
            return False
        if self._whole:
            points = column.points()
        else:
            if self._column is None:
                self._column = GrowingPoints(TagPoints(steps, self.series.walls, self.series.values))
            self._column.append(new)
            points = self._column.points()
        self.series = replace(self.series, steps=points.steps, walls=points.walls, values=points.values)
        self._counts = counts
        return True


def _counts(columns: Sequence[GrowingPoints | None]) -> list[int]:
    return [0 if column is None else column.count for column in columns]


def _list_files(directory: Path) -> list[Path]:
    try:
        paths = list_event_files(directory)
    except OSError as error:
        raise ScalarsUnreadable(f"{directory} cannot be listed: {error.strerror or error}.") from error
    if not paths:
        raise ScalarsUnreadable(f"No event file lies directly in {directory}.")
    return paths


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    fd = open_regular(path)
    try:
        yield fd
    finally:
        os.close(fd)
