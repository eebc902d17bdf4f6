"""Reads scalars from the SQLite databases of Trackio and MLflow, and from MLflow's file store."""

import json
import math
import os
import shutil
import sqlite3
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from mcp_server.record.curves.follow import (
    MAGIC,
    DatabaseKind,
    decode_value,
    find_run_column,
    find_uri,
    name_companion,
    read_kind,
)
from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import parse_number
from mcp_server.scalars.formats.appended_file import WholeSource, file_size, open_scalar_file, unreadable_error
from mcp_server.scalars.formats.row_series import Rows, collect_columns
from mcp_server.scalars.series import MOST_TAGS, FilePoints, RunScalars, ScalarsUnreadable, Series, merge_files
from mcp_server.text.formatting import join_some
from mcp_server.threads import is_abandoned, stop_if_abandoned

_BUSY_S = 1.0
_HEADER_BYTES = 100
_MOST_COPIED_BYTES = 2**30
_MOST_STORE_BYTES = 64 * 2**20  # as Python objects a point takes five times as much
_MOST_POINTS = 2_000_000  # of a run: what so many bytes of the file store hold
_MOST_CELL_CHARS = 2**20  # Python's parser lets no other thread run
_STEPS_BETWEEN_LOOKS = 1_000_000  # of SQLite's machine: some 10 ms
_MOST_METRICS = 10_000
_ROWS_AT_ONCE, _BLOCK_CHARS = 10_000, 2**22

# The id, experiment and name of each run, oldest first.
_RUNS = {
    "trackio": "SELECT {run}, '', run_name FROM metrics GROUP BY 1 ORDER BY min(id)",
    "mlflow": (
        "SELECT r.run_uuid, coalesce(e.name, ''), coalesce(nullif(r.name, ''), r.run_uuid) FROM runs r"
        " LEFT JOIN experiments e ON e.experiment_id = r.experiment_id"
        " WHERE r.lifecycle_stage IS NOT 'deleted' ORDER BY r.start_time, r.rowid"
    ),
}


def is_database(path: Path) -> bool:
    """Return whether a regular file begins with the magic bytes of SQLite."""
    with suppress(ScalarsUnreadable), open_scalar_file(path) as fd:
        return os.pread(fd, len(MAGIC), 0) == MAGIC
    return False


def list_database_runs(path: Path) -> tuple[DatabaseKind | None, list[str]]:
    """Return the program of a database, None for another one, and its runs as project/run, oldest first."""
    with _connected(path) as database:
        kind = read_kind(database)
        return kind, list(_runs(path, database)) if kind else []


def read_database_facts(path: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return what a database says of a run beside its curves: ``run`` (its row), ``params`` and ``tags``."""
    facts: dict[str, dict[str, Any]] = {"run": {}, "params": {}, "tags": {}}
    with _connected(path) as database:
        database.row_factory = sqlite3.Row
        run, kind = _runs(path, database)[name], read_kind(database)
        tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if kind == "mlflow":
            facts["run"] = dict(database.execute("SELECT * FROM runs WHERE run_uuid = ?", (run,)).fetchone())
            for table in tables & {"params", "tags"}:
                query = f"SELECT key, value FROM {table} WHERE run_uuid = ?"  # noqa: S608 - one of two names
                facts[table] = {str(key): str(value) for key, value in database.execute(query, (run,))}
        elif "configs" in tables:
            query = f"SELECT config, created_at FROM configs WHERE {find_run_column(database)} = ?"  # noqa: S608
            if row := database.execute(query, (run,)).fetchone():
                facts["run"], config = dict(row), json.loads(row["config"])
                facts["params"] = config if isinstance(config, dict) else {}
    return facts


class DatabaseRun(WholeSource):
    """One run in a database of Trackio or MLflow."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._name = name

    @override
    def list_files(self) -> list[Path]:
        return [self.path, Path(name_companion(self.path, "-wal"))]

    @override
    def read_whole(self) -> RunScalars:
        with _connected(self.path) as database:
            runs = _runs(self.path, database)
            if self._name not in runs and (self._name or len(runs) != 1):
                raise unreadable_error(self.path, _no_such_run(self._name, list(runs)))
            run = runs[self._name or next(iter(runs))]
            kind = read_kind(database)
            series, notes = (_trackio if kind == "trackio" else _mlflow)(database, run)
        return RunScalars(series, notes)


class MlflowStore(WholeSource):
    """One run in MLflow's file store: ``metrics/KEY`` with a line "timestamp value step" for each value."""

    @override
    def read_whole(self) -> RunScalars:
        size, series, skipped = 0, {}, []
        for file in self.list_files():
            size += file_size(file)
            if size > _MOST_STORE_BYTES:
                raise unreadable_error(self.path, "its metrics are larger than 64 MiB")
            tag = str(file.relative_to(self.path / "metrics"))
            try:
                with open_scalar_file(file) as fd, os.fdopen(fd, "rb", closefd=False) as lines:
                    points = [_point(line) for line in lines if line.endswith(b"\n")]
            except ScalarsUnreadable as error:
                skipped.append(str(error))
                continue
            if complete := [point for point in points if point]:
                series[tag] = _series_of_columns(list(zip(*complete, strict=True)))
        return RunScalars(series, tuple(skipped))

    @override
    def list_files(self) -> list[Path]:
        files: list[Path] = []
        for directory, _, names in os.walk(self.path / "metrics"):
            files += [Path(directory, name) for name in names]
            if len(files) > _MOST_METRICS:
                break
        return sorted(files[:_MOST_METRICS])


def _point(line: bytes) -> tuple[float, float, float] | None:
    """Return step, POSIX seconds and value of a line. Old stores have no step."""
    cells = line.decode("utf-8", "replace").split()
    numbers = [parse_number(cell) for cell in cells]
    if len(numbers) == 2:  # noqa: PLR2004
        numbers.append(0.0)
    match numbers:
        case [float(wall_ms), float(value), float(step)] if abs(step) < 2**62:
            return step, wall_ms / 1000, value
    return None


def _series_of_columns(columns: Sequence[Sequence[float]]) -> Series:
    stop_if_abandoned()
    steps, walls, values = (np.array(numbers, np.float64) for numbers in columns)
    whole = steps.astype(np.int64), walls, values
    for column in whole:
        column.flags.writeable = False
    return merge_files([FilePoints(whole[0], walls, values)])


def _trackio(database: sqlite3.Connection, run: str) -> tuple[dict[str, Series], tuple[str, ...]]:
    rows, column = Rows(step_key="step"), find_run_column(database)
    query = "SELECT count(*), coalesce(sum(length(metrics)), 0) FROM metrics WHERE {run} = ?"
    [(count, size)] = database.execute(query.format(run=column), (run,))
    left_out = max(0, count - _MOST_POINTS, math.ceil(count * (1 - _MOST_STORE_BYTES / size)) if size else 0)
    query = (
        "SELECT step, timestamp, CASE WHEN length(metrics) <= ? THEN metrics END"
        " FROM metrics WHERE {run} = ? ORDER BY id LIMIT -1 OFFSET ?"
    )
    for block in _read_blocks(database.execute(query.format(run=column), (_MOST_CELL_CHARS, run, left_out))):
        rows.add(*collect_columns(_logged_values(*row) for row in block))
    notes = [f"The {left_out:,} oldest rows are left out: together they exceed 64 MiB."] if left_out else []
    return rows.series(), (*notes, *rows.notes)


def _read_blocks(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows in blocks of 10,000, or of some 4 MiB of text."""
    block: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor:
        block.append(row)
        size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(block) >= _ROWS_AT_ONCE or size >= _BLOCK_CHARS:
            stop_if_abandoned()
            yield block
            block, size = [], 0
    yield block


def _logged_values(step: Any, timestamp: Any, metrics: Any) -> list[tuple[str, Any]]:
    try:
        record = json.loads(metrics)
    except (ValueError, TypeError, RecursionError):
        record = None
    # The step comes last: a metric of the same name is not the step.
    leaves = [
        leaf for leaf in flatten(record if isinstance(record, dict) else {}) if leaf[0] not in {"step", "_timestamp"}
    ]
    return [*leaves, ("step", step), ("_timestamp", timestamp)]


def _mlflow(database: sqlite3.Connection, run: str) -> tuple[dict[str, Series], tuple[str, ...]]:
    [(count,)] = database.execute("SELECT count(*) FROM metrics WHERE run_uuid = ?", (run,))
    left_out, tags_left_out = max(0, count - _MOST_POINTS), set[int]()
    query = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
    cursor = database.execute(f"{query} LIMIT -1 OFFSET ?", (run, left_out))
    points: dict[str, tuple[array[float], array[float], array[float]]] = {}
    for block in _read_blocks(cursor):
        for key, step, wall_ms, value, is_nan in block:
            if not all(isinstance(cell, int | float) for cell in (step, wall_ms, value)) or abs(step) >= 2**62:
                continue
            tag = str(key)
            if tag not in points and len(points) >= MOST_TAGS:
                tags_left_out.add(hash(tag))
                continue
            of_tag = points.setdefault(tag, (array("d"), array("d"), array("d")))
            for column, number in zip(of_tag, (step, wall_ms / 1000, decode_value(value, bool(is_nan))), strict=True):
                column.append(number)
    notes = [
        *([f"The {left_out:,} oldest points are left out, the newest {_MOST_POINTS:,} are kept."] if left_out else []),
        *([f"Only {MOST_TAGS:,} tags are kept, {len(tags_left_out):,} more are left out."] if tags_left_out else []),
    ]
    return {tag: _series_of_columns(columns) for tag, columns in points.items()}, tuple(notes)


def _runs(path: Path, database: sqlite3.Connection) -> dict[str, str]:
    """Return the id of each run by its name. Runs with the same name get a part of their id as suffix."""
    kind = read_kind(database)
    if kind is None:
        raise unreadable_error(path, "it holds no metrics of Trackio or MLflow")
    query = _RUNS[kind].format(run=find_run_column(database))
    rows = [(str(run), f"{project or path.stem}/{name}") for run, project, name in database.execute(query)]
    counts = Counter(name for _, name in rows)
    return {name if counts[name] == 1 else f"{name}-{run[:8]}": run for run, name in rows}


def _no_such_run(name: str, runs: list[str]) -> str:
    listed = join_some(runs, 10)
    return f"it has no run {name!r}, but {listed or 'none at all'}" if name else f"name one of its runs: {listed}"


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading; no file beside it is created or changed. All errors are ScalarsUnreadable."""
    path = path.resolve() if path.exists() else path  # the WAL is next to the file that a link points to
    with open_scalar_file(path) as fd:
        header = os.pread(fd, _HEADER_BYTES, 0)
    if not header.startswith(MAGIC) or len(header) < _HEADER_BYTES:
        raise unreadable_error(path, "it is not an SQLite database")
    try:
        with _readable(path, header) as uri, closing(_open(uri)) as database:
            yield database
    except (sqlite3.Error, OSError, UnicodeError, MemoryError) as error:  # the last two from damaged databases
        stop_if_abandoned()  # which interrupts a query
        raise unreadable_error(path, f"SQLite says {error}") from None


def _open(uri: str) -> sqlite3.Connection:
    database = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
    database.set_progress_handler(is_abandoned, _STEPS_BETWEEN_LOOKS)  # a query may sort for long before its first row
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


@contextmanager
def _readable(path: Path, header: bytes) -> Iterator[str]:
    """Yield the URI with which SQLite reads a database and leaves the files next to it unchanged."""
    if (uri := find_uri(str(path), header)) is not None:
        yield uri
        return
    # Left by a writer that died, or copied in this state; a live writer would have a -shm.
    wal = Path(name_companion(path, "-wal"))
    if path.stat().st_size + wal.stat().st_size > _MOST_COPIED_BYTES:
        raise unreadable_error(path, "it has a -wal file without a -shm, and is too large to be copied for that")
    with tempfile.TemporaryDirectory(prefix="runward-") as directory:
        copy = Path(directory, "copy.db")
        shutil.copyfile(path, copy)
        shutil.copyfile(wal, name_companion(copy, "-wal"))
        yield copy.as_uri()
