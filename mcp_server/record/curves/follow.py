"""Opens the tail of a file with curves by its content: growing rows, a document that is written anew, a database."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from mcp_server.record.curves.databases import MAGIC, decode_value, find_run_column, find_uri, read_kind
from mcp_server.record.curves.json_tables import find_tables
from mcp_server.record.curves.tails import (
    CurveRow,
    EventTail,
    JsonTail,
    MlflowTail,
    RowTail,
    TableTail,
    Tail,
    WandbTail,
)
from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import (
    holds_json_lines,
    is_log,
    may_count_yet,
    parse_number,
    rank_step,
    read_header,
    read_json_line,
)

_HEAD_BYTES = 4096
_MOST_DOCUMENT_BYTES = 4 * 2**20
_MOST_ROWS = 5_000  # of a database, at once
_BUSY_S = 0.1
_METRIC = re.compile(r"(?i)loss|acc|reward|return|score|auc|error|mae|mse|bleu|f1|perplexity|logloss|likelihood")


class DocumentTail(RowTail):
    """One JSON value that is written anew with more rows: the state of HF's Trainer, the history of Keras."""

    is_certain = False

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[int] = []  # rows, by table

    def read(self, fd: int) -> list[CurveRow]:
        """Return the rows that are new, or all of a file with fewer."""
        if os.fstat(fd).st_size > _MOST_DOCUMENT_BYTES:
            return []
        tables = read_document(os.pread(fd, _MOST_DOCUMENT_BYTES, 0))
        if len(tables) < len(self._taken) or any(len(rows) < n for rows, n in zip(tables, self._taken)):
            self._taken = []
        new: list[CurveRow] = []
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
        if not any(rank_step(name) is not None for name in rows[0]):
            for n, row in enumerate(rows, 1):
                row["epoch"] = n
    return tables


class DatabaseTail(Tail):
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

    def read(self, fd: int) -> list[CurveRow]:
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

    def _read_rows(self, database: sqlite3.Connection) -> list[CurveRow]:
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

    def parse(self, data: bytes) -> tuple[int, list[CurveRow]]:
        """Return nothing: SQLite reads it."""
        return len(data), []


def _make_mlflow_row(cells: Sequence[Any]) -> CurveRow | None:
    wall_ms, step, key, value, is_nan = cells
    if not all(isinstance(cell, (int, float)) for cell in (wall_ms, step, value)):
        return None
    return CurveRow(int(step), wall_ms / 1000, {str(key): decode_value(value, bool(is_nan))})


def _make_trackio_row(cells: Sequence[Any]) -> CurveRow | None:
    timestamp, step, metrics = cells
    try:
        record = json.loads(metrics)
        wall_s = datetime.fromisoformat(str(timestamp).replace("Z", "+00:00")).timestamp()
    except (ValueError, TypeError, RecursionError):
        return None
    leaves = flatten(record) if isinstance(record, dict) else ()
    values = {name: number for name, cell in leaves if (number := parse_number(cell)) is not None}
    return CurveRow(step, wall_s, values) if isinstance(step, int) and values else None


def open_tail(path: str, head: bytes, since_s: float) -> Tail | None:
    """Return a tail of the file at ``path`` that begins with ``head``, None where it holds no curve with steps.

    ``since_s``: when the attempt began (POSIX). What a database has from earlier is of other runs.

    Raises:
        EOFError: too little has been written to say.
    """
    directory, _, name = path.rpartition("/")
    if "tfevents" in name:
        return EventTail()
    if name.endswith(".wandb"):
        return WandbTail()
    if (metric := _find_mlflow_metric(directory, name)) is not None:
        return MlflowTail(metric)
    if head.startswith(MAGIC):
        return DatabaseTail(path, since_s)
    return None if b"\0" in head else _open_text(head, name)


def _open_text(head: bytes, name: str) -> Tail | None:
    if name.endswith(".json") and _is_document(head):
        return DocumentTail()
    if b"\n" not in head:
        if len(head) < _HEAD_BYTES:
            raise EOFError
        return None
    if head.startswith(b"{") or (is_log(name) and holds_json_lines(head, name, is_sure=False)):
        return _open_json(head, name)
    try:
        header = read_header(head)
    except csv.Error:
        return None
    names = header.names if header else []
    if header is None or len(names) < 2 or any(parse_number(one) is not None for one in names):  # noqa: PLR2004
        return None
    if any(rank_step(one) is not None for one in names):
        return TableTail()
    if len(head) < _HEAD_BYTES and may_count_yet(header, head):
        raise EOFError
    return None


def _is_document(head: bytes) -> bool:
    """Return whether a file is, or may become, one JSON value with curves, and no lines of JSON."""
    first, _, others = head.lstrip().partition(b"\n")
    if not first.startswith((b"{", b"[")):
        return False
    if len(head) < _HEAD_BYTES and read_document(head):
        return True
    is_object = first.startswith(b"{") and read_json_line(first, is_log=False) is not None
    return len(first) >= _HEAD_BYTES - 1 if not others else not is_object


def _open_json(head: bytes, name: str) -> JsonTail | None:
    first, _, others = head.partition(b"\n")
    if not is_log(name) and read_json_line(first, is_log=False) is None:
        return None
    if name.endswith(".json") and not others:  # one object is an evaluation
        raise EOFError
    # The first object may be settings: whether a later one has a step is seen as they come.
    return JsonTail(is_in_log=is_log(name))


def _find_mlflow_metric(directory: str, name: str) -> str | None:
    run, found, below = (
        directory.rpartition("/metrics") if directory.endswith("/metrics") else directory.partition("/metrics/")
    )
    if found and os.path.isfile(f"{run}/meta.yaml"):  # noqa: PTH113 - hot path
        return f"{below}/{name}" if below else name
    return None
