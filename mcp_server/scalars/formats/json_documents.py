"""Reads curves from files that are one JSON value: Keras' and skorch's history, XGBoost's and CatBoost's, Sacred's.

Lists of one length are the columns of a table, objects in a list its rows. One object of numbers is an evaluation.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import is_curve, parse_number
from mcp_server.scalars.formats.appended_file import WholeSource, file_signature, open_scalar_file, unreadable_error
from mcp_server.scalars.formats.row_series import Rows, collect_columns
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, Series
from mcp_server.scalars.tag_names import best_direction

_MOST_BYTES = 16 * 2**20
_BEGINNING = re.compile(rb"\s*[\[{]")
_FEWEST = 2  # rows or cells
_DEPTH = 3  # of the list of rows in a document

Table = list[dict[str, Any]]


class JsonDocument(WholeSource):
    """A file whose one JSON value holds curves."""

    @override
    def read_whole(self) -> RunScalars:
        tables = _read_tables(self.path, file_signature(self.path))
        series: dict[str, Series] = {}
        notes: dict[str, None] = {}
        for table in tables:
            rows = Rows()
            rows.add_whole(*collect_columns(row.items() for row in table))
            series |= rows.series()
            notes |= dict.fromkeys(rows.notes)
        return RunScalars(series, tuple(notes))


def holds_document(path: Path) -> bool:
    """Return whether a file is one JSON value with curves."""
    try:
        return bool(_read_tables(path, file_signature(path)))
    except ScalarsUnreadable:
        return False


@functools.lru_cache(maxsize=64)
def _read_tables(path: Path, signature: tuple[int, ...]) -> tuple[Table, ...]:  # noqa: ARG001 - of the state it was read in
    with open_scalar_file(path) as fd:
        if os.fstat(fd).st_size > _MOST_BYTES:
            raise unreadable_error(path, "it is larger than 16 MiB")
        data = os.pread(fd, _MOST_BYTES, 0)
    try:
        return tuple(_find_tables(json.loads(data))) if _BEGINNING.match(data) else ()
    except (ValueError, RecursionError):
        raise unreadable_error(path, "it is not JSON, or is just being written") from None


def _find_tables(document: Any) -> Iterator[Table]:
    """Yield the tables of a document: its list of rows, series that name their steps, or columns side by side."""
    if rows := _find_rows(document, _DEPTH):
        yield rows
        return
    columns: dict[int, dict[str, list[Any]]] = {}  # by length: a validation may be rarer
    for name, value in _list_leaves(document):
        if isinstance(value, dict):
            yield [{"step": step, name: number} for step, number in zip(value["steps"], value["values"], strict=True)]
        else:
            columns.setdefault(len(value), {})[name] = value
    for length, table in columns.items():
        if any(map(best_direction, table)):
            yield [{name: cells[row] for name, cells in table.items()} for row in range(length)]


def _find_rows(document: Any, depth: int) -> Table:
    """Return the first list of objects, at most so deep, in which a number rises with the rows."""
    if isinstance(document, list) and len(document) >= _FEWEST and all(isinstance(one, dict) for one in document):
        rows = [{name: _unwrap(value) for name, value in flatten(one)} for one in document]
        return rows if is_curve(rows) and len(rows[0]) < 10_000 else []  # noqa: PLR2004
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
    return len(cells) > 0 and all(one is None or parse_number(one) is not None for one in cells)
