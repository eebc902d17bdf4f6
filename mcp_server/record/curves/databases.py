"""The SQLite databases of Trackio and MLflow: what they hold, and how they are read beside a writer.

No file beside a database is created or changed. Measured in WAL mode with SQLite 3.40: ``mode=ro`` alone creates or
touches -wal and -shm, ``readonly_shm=1`` does not, ``immutable=1`` does not see rows that are still in the WAL.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Literal

MAGIC = b"SQLite format 3\0"
_WAL_MODE = 2  # at byte 18 of the header

DatabaseKind = Literal["trackio", "mlflow"]


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
