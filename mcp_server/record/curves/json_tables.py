"""Finds the curves in one JSON value: Keras' and skorch's history, XGBoost's and CatBoost's, Sacred's, HF's state.

Lists of one length are the columns of a table, objects in a list its rows. One object of numbers is an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import is_curve, parse_number

_FEWEST = 2  # rows or cells
_DEPTH = 3  # of the list of rows in a document

Table = list[dict[str, Any]]


def find_tables(document: Any, is_metric: Callable[[str], object]) -> Iterator[Table]:
    """Yield the tables of a document: its list of rows, series that name their steps, or columns side by side.

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
