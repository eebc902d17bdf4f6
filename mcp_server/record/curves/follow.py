"""Opens the tail of a file with curves by its content: growing rows, a document that is written anew, a database.

The documents are histories of Keras, skorch, XGBoost, CatBoost, Sacred and HF; the databases those of Trackio and
MLflow. No file beside a database is created or changed. Measured in WAL mode with SQLite 3.40: ``mode=ro`` alone
creates or touches -wal and -shm, ``readonly_shm=1`` does not, ``immutable=1`` does not see rows still in the WAL.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from mcp_server.record import scalar_files
from mcp_server.record.curves import tails
from mcp_server.record.curves.tracker_records import flatten

_HEAD_BYTES = 4096
_MOST_DOCUMENT_BYTES = 4 * 2**20
_MOST_ROWS = 5_000  # of a database, at once
_BUSY_S = 0.1
_METRIC = re.compile(r"(?i)loss|acc|reward|return|score|auc|error|mae|mse|bleu|f1|perplexity|logloss|likelihood")
MAGIC = b"SQLite format 3\0"
_WAL_MODE = 2  # at byte 18 of the header
_FEWEST = 2  # rows or cells
_DEPTH = 3  # of the list of rows in a document

Table = list[dict[str, Any]]
DatabaseKind = Literal["trackio", "mlflow"]


def find_tables(document: Any, is_metric: Callable[[str], object]) -> Iterator[Table]:
    """Yield the tables of a document: its list of rows, series that name their steps, or columns side by side.

    Lists of one length are the columns of a table, objects in a list its rows. One object of numbers is an evaluation.
    Columns count where ``is_metric`` knows the name of one.
    """
    if rows := _find_rows(document, _DEPTH):
        yield rows
        return
    columns: dict[int, dict[str, list[Any]]] = {}  # by length: a validation may be rarer
    for name, value in _list_leaves(document):
        if isinstance(value, dict):
            yield [{"step": step, name: number} for step, number in zip(value["steps"], value["values"])]
        else:
            columns.setdefault(len(value), {})[name] = value
    for length, table in columns.items():
        if any(map(is_metric, table)):
            yield [{name: cells[row] for name, cells in table.items()} for row in range(length)]


def _find_rows(document: Any, depth: int) -> Table:
    """Return the first list of objects, at most so deep, in which a number rises with the rows."""
    if isinstance(document, list) and len(document) >= _FEWEST and all(isinstance(one, dict) for one in document):
        rows = [{name: _unwrap(value) for name, value in flatten(one)} for one in document]
        return rows if scalar_files.is_curve(rows) and len(rows[0]) < 10_000 else []  # noqa: PLR2004
    inner = document.values() if isinstance(document, dict) and depth else ()
    return next((rows for one in inner if (rows := _find_rows(one, depth - 1))), [])


def _unwrap(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _list_leaves(document: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the lists of numbers of nested objects, and Sacred's pairs of steps and values; none of any other."""
    found: list[tuple[str, Any]] = []
    for key, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, dict) and _is_pair(value):
            found.append((f"{prefix}{key}", value))
        elif (
            isinstance(value, dict) and value and all(one.isdigit() for one in value) and _is_column([*value.values()])
        ):
            found.append((f"{prefix}{key}", [*value.values()]))  # as pandas writes a table
        elif isinstance(value, dict):
            inner = [*_list_leaves(value, f"{prefix}{key}/")]
            if not inner:
                return
            found += inner
        elif isinstance(value, list) and _is_column(value):
            found.append((f"{prefix}{key}", value))
        else:
            return
    yield from found


def _is_pair(value: Mapping[str, Any]) -> bool:
    steps, values = value.get("steps"), value.get("values")
    return isinstance(steps, list) and isinstance(values, list) and len(steps) == len(values) > 0 and _is_column(values)


def _is_column(cells: list[Any]) -> bool:
    return len(cells) > 0 and all(one is None or scalar_files.parse_number(one) is not None for one in cells)


def read_kind(database: sqlite3.Connection) -> DatabaseKind | None:
    """Return the program of a database, None for another one."""
    # Tables only: a view may be a query that never ends.
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")} if "metrics" in tables else set()
    if {"run_name", "step", "timestamp", "metrics", "id"} <= columns:
        return "trackio"
    if {"run_uuid", "key", "value", "timestamp", "step", "is_nan"} <= columns and {"runs", "experiments"} <= tables:
        return "mlflow"
    return None


def find_run_column(database: sqlite3.Connection) -> str:
    """Return the column of Trackio's metrics that says of which run they are."""
    columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    return "run_id" if "run_id" in columns else "run_name"  # before Trackio 0.20 a run had only a name


def decode_value(value: float, is_nan: bool) -> float:
    """Return the value that was logged: MLflow stores NaN as 0, and an infinity as the largest number."""
    if is_nan:
        return float("nan")
    if abs(value) >= sys.float_info.max:
        return float("inf") if value > 0 else float("-inf")
    return value


def name_companion(path: str | Path, suffix: str) -> str:
    """Return the path of the file beside a database that SQLite names so."""
    return f"{path}{suffix}"


def find_uri(path: str, header: bytes) -> str | None:
    """Return the URI that reads a database and changes nothing beside it, None where that needs a copy."""
    uri = Path(path).as_uri() + "?mode=ro"
    if header[18] != _WAL_MODE:
        return uri
    if not os.path.exists(name_companion(path, "-wal")):  # noqa: PTH110 - a path as text
        return uri + "&immutable=1"
    has_index = os.path.exists(name_companion(path, "-shm"))  # noqa: PTH110 - a path as text
    return uri + "&readonly_shm=1" if has_index else None


class DocumentTail(tails.RowTail):
    """One JSON value that is written anew with more rows: the state of HF's Trainer, the history of Keras."""

    is_certain = False

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[int] = []  # rows, by table

    def read(self, fd: int) -> list[tails.CurveRow]:
        """Return the rows that are new, or all of a file with fewer."""
        if os.fstat(fd).st_size > _MOST_DOCUMENT_BYTES:
            return []
        tables = read_document(os.pread(fd, _MOST_DOCUMENT_BYTES, 0))
        if len(tables) < len(self._taken) or any(len(rows) < n for rows, n in zip(tables, self._taken)):
            self._taken = []
        new: list[tails.CurveRow] = []
        for n, rows in enumerate(tables):
            since = self._taken[n] if n < len(self._taken) else 0
            self._step = None
            made = [self._make_row(row.items()) for row in rows]
            new += [row for row in made[since:] if row is not None]
        self._taken = [len(rows) for rows in tables] or self._taken
        return new

    def pass_over(self, fd: int) -> None:
        """Begin behind its rows."""
        self.read(fd)

    def read_records(self, lines: list[str]) -> Iterator[Any]:  # noqa: ARG002
        """Yield nothing: a document has no lines."""
        yield from ()


def read_document(data: bytes) -> list[list[dict[str, Any]]]:
    """Return the tables of a JSON value, each row with a step; none while it is being written."""
    try:
        tables = list(find_tables(json.loads(data), _METRIC.search))
    except (ValueError, RecursionError):
        return []
    for rows in tables:
        if not any(scalar_files.rank_step(name) is not None for name in rows[0]):
            for n, row in enumerate(rows, 1):
                row["epoch"] = n
    return tables


class DatabaseTail(tails.Tail):
    """The metrics of the newest run in a database of MLflow or Trackio, as far as they are newer than the attempt."""

    is_certain = False
    _QUERIES = {  # noqa: RUF012 - a constant
        "mlflow": "SELECT rowid, run_uuid, timestamp, step, key, value, is_nan FROM metrics",
        "trackio": "SELECT rowid, {run}, timestamp, step, metrics FROM metrics",
    }

    def __init__(self, path: str, since_s: float) -> None:
        super().__init__()
        self._path, self._since_s = path, since_s
        self._taken: int | None = None  # the last row

    def read(self, fd: int) -> list[tails.CurveRow]:
        """Return the rows that are new. A database that is locked is read the next time."""
        header = os.pread(fd, 100, 0)
        uri = find_uri(os.path.realpath(self._path), header) if header.startswith(MAGIC) else None
        if uri is None:
            return []
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as database:
                return self._read_rows(database)
        except (sqlite3.Error, UnicodeError, MemoryError):
            return []

    def pass_over(self, fd: int) -> None:
        """Begin behind its rows."""
        self.read(fd)

    def _read_rows(self, database: sqlite3.Connection) -> list[tails.CurveRow]:
        kind = read_kind(database)
        if kind is None:
            return []
        [(newest,)] = database.execute("SELECT coalesce(max(rowid), 0) FROM metrics")
        since = max(0, newest - _MOST_ROWS) if self._taken is None or newest < self._taken else self._taken
        query = self._QUERIES[kind].format(run=find_run_column(database))
        cells = database.execute(f"{query} WHERE rowid > ? ORDER BY rowid LIMIT ?", (since, _MOST_ROWS)).fetchall()
        self._taken = cells[-1][0] if cells else since
        of_newest = [one for one in cells if one[1] == cells[-1][1]]
        make = _make_mlflow_row if kind == "mlflow" else _make_trackio_row
        rows = [row for one in of_newest if (row := make(one[2:])) is not None]
        return [row for row in rows if row.wall_s is None or row.wall_s >= self._since_s]

    def parse(self, data: bytes) -> tuple[int, list[tails.CurveRow]]:
        """Return nothing: SQLite reads it."""
        return len(data), []


def _make_mlflow_row(cells: Sequence[Any]) -> tails.CurveRow | None:
    wall_ms, step, key, value, is_nan = cells
    if not all(isinstance(cell, (int, float)) for cell in (wall_ms, step, value)):
        return None
    return tails.CurveRow(int(step), wall_ms / 1000, {str(key): decode_value(value, bool(is_nan))})


def _make_trackio_row(cells: Sequence[Any]) -> tails.CurveRow | None:
    timestamp, step, metrics = cells
    try:
        record = json.loads(metrics)
        wall_s = datetime.fromisoformat(str(timestamp).replace("Z", "+00:00")).timestamp()
    except (ValueError, TypeError, RecursionError):
        return None
    leaves = flatten(record) if isinstance(record, dict) else ()
    values = {name: number for name, cell in leaves if (number := scalar_files.parse_number(cell)) is not None}
    return tails.CurveRow(step, wall_s, values) if isinstance(step, int) and values else None


def open_tail(path: str, head: bytes, since_s: float) -> tails.Tail | None:
    """Return a tail of the file at ``path`` that begins with ``head``, None where it holds no curve with steps.

    ``since_s``: when the attempt began (POSIX). What a database has from earlier is of other runs.

    Raises:
        EOFError: too little has been written to say.
    """
    directory, _, name = path.rpartition("/")
    if "tfevents" in name:
        return tails.EventTail()
    if name.endswith(".wandb"):
        return tails.WandbTail()
    if (metric := _find_mlflow_metric(directory, name)) is not None:
        return tails.MlflowTail(metric)
    if head.startswith(MAGIC):
        return DatabaseTail(path, since_s)
    return None if b"\0" in head else _open_text(head, name)


def _open_text(head: bytes, name: str) -> tails.Tail | None:
    if name.endswith(".json") and _is_document(head):
        return DocumentTail()
    if b"\n" not in head:
        if len(head) < _HEAD_BYTES:
            raise EOFError
        return None
    if head.startswith(b"{") or (
        scalar_files.is_log(name) and scalar_files.holds_json_lines(head, name, is_sure=False)
    ):
        return _open_json(head, name)
    try:
        header = scalar_files.read_header(head)
    except csv.Error:
        return None
    names = header.names if header else []
    if header is None or len(names) < 2 or any(scalar_files.parse_number(one) is not None for one in names):  # noqa: PLR2004
        return None
    if any(scalar_files.rank_step(one) is not None for one in names):
        return tails.TableTail()
    if len(head) < _HEAD_BYTES and scalar_files.may_count_yet(header, head):
        raise EOFError
    row = scalar_files.find_scalar_file(name)
    is_training = row is not None and row.is_sure and scalar_files.holds_table(head, is_sure=True)
    if not header.has_metadata:
        is_training &= any(map(_METRIC.search, names)) and not any(map(scalar_files.names_thing, names))
    return tails.TableTail() if is_training else None


def _is_document(head: bytes) -> bool:
    """Return whether a file is, or may become, one JSON value with curves, and no lines of JSON."""
    first, _, others = head.lstrip().partition(b"\n")
    if not first.startswith((b"{", b"[")):
        return False
    if len(head) < _HEAD_BYTES and read_document(head):
        return True
    is_object = first.startswith(b"{") and scalar_files.read_json_line(first, is_log=False) is not None
    return len(first) >= _HEAD_BYTES - 1 if not others else not is_object


def _open_json(head: bytes, name: str) -> tails.JsonTail | None:
    first, _, others = head.partition(b"\n")
    if not scalar_files.is_log(name) and scalar_files.read_json_line(first, is_log=False) is None:
        return None
    if name.endswith(".json") and not others:  # one object is an evaluation
        raise EOFError
    # The first object may be settings: whether a later one has a step is seen as they come.
    return tails.JsonTail(is_in_log=scalar_files.is_log(name))


def _find_mlflow_metric(directory: str, name: str) -> str | None:
    run, found, below = (
        directory.rpartition("/metrics") if directory.endswith("/metrics") else directory.partition("/metrics/")
    )
    if found and os.path.isfile(f"{run}/meta.yaml"):  # noqa: PTH113 - hot path
        return f"{below}/{name}" if below else name
    return None
