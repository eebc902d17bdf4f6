"""Finds the files and databases with scalars at a path that are not TensorBoard's, and who reads each.

A file that is one JSON value is read here.
"""

import csv
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from typing_extensions import override

from mcp_server.record.curves.follow import Table, find_tables
from mcp_server.record.scalar_files import (
    HEAD_BYTES,
    TRAINER_STATE,
    ScalarFile,
    find_scalar_file,
    holds_json_lines,
    holds_table,
    parse_number,
    rank_step,
    read_header,
)
from mcp_server.scalars.formats import sqlite
from mcp_server.scalars.formats.appended_file import (
    AppendedFile,
    SourceReader,
    WholeSource,
    file_signature,
    open_scalar_file,
    unreadable_error,
)
from mcp_server.scalars.formats.chunked_log import SwanlabLog, WandbLog
from mcp_server.scalars.formats.row_series import Rows, collect_columns
from mcp_server.scalars.formats.sqlite import DatabaseRun, MlflowStore
from mcp_server.scalars.formats.text_tables import Csv, JsonLines, TrainerState
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, Series
from mcp_server.scalars.tag_names import best_direction
from mcp_server.text.formatting import join_some

SourceKind = Literal["csv", "jsonl", "document", "trainer_state", "trackio", "mlflow", "wandb", "swanlab"]

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_TRACKER_RUN = re.compile(r"(offline-)?run-\d")
_TRACKER_DIRECTORIES = {"wandb", "swanlog"}
_PARSERS: dict[str, type[Csv | JsonLines | WandbLog | SwanlabLog]] = {
    "csv": Csv,
    "jsonl": JsonLines,
    "wandb": WandbLog,
    "swanlab": SwanlabLog,
}
_TRACKER_KINDS: dict[str, SourceKind] = {".wandb": "wandb", ".swanlab": "swanlab"}
_MOST_ENTRIES = 100_000  # of a directory
_MOST_EXPLAINED, _MOST_NAMED = 2, 4
_MOST_TABLES = 200  # of no known name in a directory: more are data
_MOST_BYTES = 16 * 2**20
_BEGINNING = re.compile(rb"\s*[\[{]")


@dataclass(frozen=True)
class ScalarSource:
    """The scalars of one run in a file or database. ``name``: the run in a database, as project/run, else empty."""

    kind: SourceKind
    path: Path
    name: str = ""


def build_reader(source: ScalarSource) -> SourceReader:
    """Return a reader of ``source``."""
    if (parser := _PARSERS.get(source.kind)) is not None:
        return AppendedFile(parser(source.path))
    if source.kind in ("trainer_state", "document"):
        return (TrainerState if source.kind == "trainer_state" else JsonDocument)(source.path)
    is_store = source.kind == "mlflow" and source.path.is_dir()
    return MlflowStore(source.path) if is_store else DatabaseRun(source.path, source.name)


def find_sources(path: Path) -> list[ScalarSource]:
    """Return the sources at ``path``: a file, or a directory that directly holds such files.

    In databases, MLflow stores and directories of wandb and SwanLab each run is a source. A database that cannot be
    read now is one source without a name, so that reading it says why. Nothing is raised: unreadable paths are omitted.
    """
    with suppress(OSError):
        if path.is_dir():
            return list(dict.fromkeys(_list_directory(path)))
        if path.is_file():
            return list(_list_file(path))
    return []


def _list_file(path: Path) -> Iterator[ScalarSource]:
    """Yield the sources in a file that somebody names: a table is taken at its word."""
    row = find_scalar_file(path.name.lower()) or ScalarFile(("jsonl",))
    if sqlite.is_database(path):
        yield from _list_database(path)
    elif row.readers in (("csv",), ("jsonl",)) and (row.names or row.endings):
        yield ScalarSource("csv" if row.readers == ("csv",) else "jsonl", path)
    else:
        yield from _examine(path, row)


def _examine(path: Path, row: ScalarFile) -> Iterator[ScalarSource]:
    """Yield the sources in a file that was found, as far as its content says that it has curves."""
    for reader in row.readers:
        if reader == "database":
            if sqlite.is_database(path):
                yield from _list_database(path)
        elif _holds(path, reader, row):
            yield ScalarSource(reader, path)  # type: ignore[arg-type] # one of its kinds
            return


def _holds(path: Path, reader: str, row: ScalarFile) -> bool:
    """Return whether a file of a row has curves for a reader. A table with a logger's name may still be empty."""
    if reader in _TRACKER_KINDS.values() or reader == "trainer_state" or (row.names and row.readers == ("csv",)):
        return True
    if reader == "document":
        return holds_document(path)
    with suppress(ScalarsUnreadable), open_scalar_file(path) as fd:
        head = os.pread(fd, HEAD_BYTES, 0)
        if reader == "csv":
            return holds_table(head, is_sure=row.is_sure)
        return holds_json_lines(head, path.name, is_sure=row.is_sure)
    return False


def explain_no_curve(path: Path) -> str:
    """Return why a table with the ending of one holds no curve, as a sentence; empty for other files, and for curves.

    Looks at the beginning of the file.
    """
    row = find_scalar_file(path.name.lower())
    if row is None or row.readers != ("csv",) or _holds(path, "csv", row):
        return ""
    header = None
    with suppress(ScalarsUnreadable, csv.Error), open_scalar_file(path) as fd:
        header = read_header(os.pread(fd, HEAD_BYTES, 0))
    names = header.names if header else []
    if len(names) < 2 or any(parse_number(name) is not None for name in names):  # noqa: PLR2004
        return f"{path.name} is no curve: its first line does not name columns."
    shown = join_some(names, _MOST_NAMED)
    if any(rank_step(name) is not None for name in names):
        return f"{path.name} is no curve: its steps do not rise, or nothing is measured beside them ({shown})."
    return f"{path.name} is no curve: no column is named as a step, or rises by 1 beside numbers alone ({shown})."


def explain_no_curves(paths: Iterable[Path]) -> str:
    """Return for the first of some files that are tables without a curve why they are none."""
    return " ".join(islice(filter(None, map(explain_no_curve, paths)), _MOST_EXPLAINED))


def _list_directory(path: Path) -> Iterator[ScalarSource]:
    with os.scandir(path) as entries:
        listed = [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    files = {entry.name for entry in listed if _is_kind(entry, directory=False)}
    directories = {entry.name for entry in listed if _is_kind(entry, directory=True)}
    rows = {name: row for name in sorted(files - {TRAINER_STATE}) if (row := find_scalar_file(name)) is not None}
    unsure = sum(not row.is_sure for row in rows.values())
    for name, row in rows.items():
        if row.is_sure or unsure <= _MOST_TABLES:
            yield from _examine(path / name, row)
    yield from _list_trainer_state(path, files, directories)
    yield from _list_mlflow_store(path, files, directories)
    for name in sorted(directories):
        if name in _TRACKER_DIRECTORIES:
            yield from _list_tracker(path / name)
        elif _TRACKER_RUN.match(name):
            yield from _list_tracker_run(path / name)
        elif name == "mlruns":
            yield from _list_directory(path / name)


def _is_kind(entry: os.DirEntry[str], *, directory: bool) -> bool:
    """Return whether an entry is a file, also through a link, or a directory. Pipes and loops of links are neither."""
    try:
        return entry.is_dir(follow_symlinks=False) if directory else entry.is_file()
    except OSError:
        return False


def _list_database(path: Path) -> Iterator[ScalarSource]:
    try:
        kind, names = sqlite.list_database_runs(path)
    except ScalarsUnreadable:
        yield ScalarSource("mlflow" if "mlflow" in path.name else "trackio", path)
        return
    if kind:
        yield from (ScalarSource(kind, path, name) for name in names)


def _list_trainer_state(path: Path, files: set[str], directories: set[str]) -> Iterator[ScalarSource]:
    states = [path / TRAINER_STATE] if TRAINER_STATE in files else []
    states += [path / name / TRAINER_STATE for name in directories if _CHECKPOINT.fullmatch(name)]
    newest = max(states, key=lambda state: (file_signature(state)[3:], len(str(state)), state), default=None)
    if newest is not None and newest.is_file():
        yield ScalarSource("trainer_state", newest)


def _list_mlflow_store(path: Path, files: set[str], directories: set[str]) -> Iterator[ScalarSource]:
    """Yield the runs of an MLflow file store, of one experiment in it, or the directory where it is one run."""
    if "meta.yaml" in files and "metrics" in directories:
        yield ScalarSource("mlflow", path)
    elif "meta.yaml" in files or path.name == "mlruns":
        for name in sorted(directories):
            inner = path / name
            if (inner / "meta.yaml").is_file():
                below = {entry.name for entry in os.scandir(inner) if _is_kind(entry, directory=True)}
                yield from _list_mlflow_store(inner, {"meta.yaml"}, below)


def _list_tracker(path: Path) -> Iterator[ScalarSource]:
    for directory in sorted(path.iterdir()):
        if _TRACKER_RUN.match(directory.name) and not directory.is_symlink():
            yield from _list_tracker_run(directory)


def _list_tracker_run(path: Path) -> Iterator[ScalarSource]:
    with suppress(OSError):
        for file in sorted(path.iterdir()):
            if (kind := _TRACKER_KINDS.get(file.suffix)) and file.is_file():
                yield ScalarSource(kind, file)


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
        return tuple(find_tables(json.loads(data), best_direction)) if _BEGINNING.match(data) else ()
    except (ValueError, RecursionError):
        raise unreadable_error(path, "it is not JSON, or is just being written") from None
