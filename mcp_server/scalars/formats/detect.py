"""Finds the files and databases with scalars at a path that are not TensorBoard's, and who reads each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import DATABASES, JSON_LINES, JSON_LINES_TOO, TABLES, TRACKER_LOGS, TRAINER_STATE
from mcp_server.scalars.formats import sqlite
from mcp_server.scalars.formats.appended_file import AppendedFile, SourceReader, file_signature, open_scalar_file
from mcp_server.scalars.formats.chunked_log import SwanlabLog, WandbLog
from mcp_server.scalars.formats.row_series import STEP_KEYS, TIME_KEYS, parse_number
from mcp_server.scalars.formats.sqlite import DatabaseRun, MlflowStore
from mcp_server.scalars.formats.text_tables import Csv, JsonLines, TrainerState
from mcp_server.scalars.series import ScalarsUnreadable

SourceKind = Literal["csv", "jsonl", "trainer_state", "trackio", "mlflow", "wandb", "swanlab"]

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_TRACKER_RUN = re.compile(r"(offline-)?run-\d")
_TRACKER_DIRECTORIES = {"wandb", "swanlog"}
_PARSERS: dict[str, type[Csv | JsonLines | WandbLog | SwanlabLog]] = {
    "csv": Csv,
    "jsonl": JsonLines,
    "wandb": WandbLog,
    "swanlab": SwanlabLog,
}
_TRACKER_KINDS: dict[str, SourceKind] = dict(zip(TRACKER_LOGS, ("wandb", "swanlab"), strict=True))
_TEXT = (".log", ".txt")  # endings of tables that are those of any output as well
_MOST_ENTRIES = 100_000  # of a directory
_SNIFFED_BYTES = 64 * 2**10


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
    if source.kind == "trainer_state":
        return TrainerState(source.path)
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
    suffix = path.suffix.lower()
    if suffix in JSON_LINES:
        yield ScalarSource("jsonl", path)
    elif suffix in _TRACKER_KINDS:
        yield ScalarSource(_TRACKER_KINDS[suffix], path)
    elif path.name == TRAINER_STATE:
        yield ScalarSource("trainer_state", path)
    elif sqlite.is_database(path):
        yield from _list_database(path)
    elif suffix in {".csv", ".tsv"} or path.name in TABLES:
        yield ScalarSource("csv", path)
    elif _holds_scalars(path):
        yield ScalarSource("jsonl", path)


def _list_directory(path: Path) -> Iterator[ScalarSource]:
    with os.scandir(path) as entries:
        listed = [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    files = {entry.name for entry in listed if _is_kind(entry, directory=False)}
    directories = {entry.name for entry in listed if _is_kind(entry, directory=True)}
    for name in sorted(files):
        file = path / name
        if (name in TABLES and (file.suffix not in _TEXT or _holds_table(file))) or file.suffix in _TRACKER_KINDS:
            yield from _list_file(file)
        elif (name.endswith(JSON_LINES) or name in JSON_LINES_TOO) and _holds_scalars(file):
            yield ScalarSource("jsonl", file)
        elif file.suffix in DATABASES and sqlite.is_database(file):
            yield from _list_database(file)
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


def _holds_scalars(path: Path) -> bool:
    """Return whether the first line is an object of numbers, or one with a step or a time. A data set has neither."""
    with suppress(ScalarsUnreadable, ValueError, RecursionError), open_scalar_file(path) as fd:
        record = json.loads(os.pread(fd, _SNIFFED_BYTES, 0).split(b"\n")[0])
        if isinstance(record, dict):
            leaves = dict(flatten(record))
            step_or_time = {key.lower() for key in leaves} & {*STEP_KEYS, *TIME_KEYS}
            numbers = [parse_number(value) is not None for value in leaves.values()]
            return any(numbers) if step_or_time else bool(numbers) and all(numbers)
    return False


def _holds_table(path: Path) -> bool:
    """Return whether the first lines are names and numbers of as many columns: `training.log` may be mere output."""
    with suppress(ScalarsUnreadable), open_scalar_file(path) as fd:
        text = os.pread(fd, _SNIFFED_BYTES, 0).decode("utf-8", "replace")
        lines = [line for line in text.split("\n")[:-1] if line.strip() and line[0] != "#"][:2]
        separator = max(",;\t", key=lines[0].count) if lines else ","
        names, *rows = [line.split(separator) for line in lines] or [[]]
        has_names = len(names) > 1 and all(parse_number(name) is None for name in names)
        return has_names and all(
            len(row) == len(names) and any(parse_number(cell) is not None for cell in row) for row in rows
        )
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
