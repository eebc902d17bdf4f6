"""Finds and reads evaluation results: the markdown, JSON, JSON lines and arrays of trainers and harnesses."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcp_server.diagnosis.progress.named_values import LOSS, classify_name
from mcp_server.record.results.result_page import read_origin
from mcp_server.record.state import Run
from mcp_server.results.evaluations.evaluation_text import (
    MOST_ROWS,
    Row,
    has_step,
    parse_lines,
    parse_markdown,
    parse_rows,
)
from mcp_server.results.evaluations.success_lines import read_success_rates
from mcp_server.results.run_files import limited_scan, list_tree, result_roots, select_own
from mcp_server.scalars.formats.evaluation_arrays import read_evaluation_arrays
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.system.files import open_regular_file, read_regular_file
from mcp_server.text.rows import read_patterns

_RX = read_patterns("results/patterns", "evaluations")

_STEPS = re.compile(rb"(?m)^#{1,6}\s+Step\s+\d+\s*(?:\(|$)|^\{['\"](?:global_)?steps?['\"]:", re.IGNORECASE)
_SNIFFED_BYTES = 4096
_MOST_BYTES = 2_000_000  # of one file
_MOST_BROKEN = 1_000  # lines; a file with more is not JSON lines
_MOST_FILES = 20


@dataclass(frozen=True)
class Evaluation:
    """One table of a file: a row for each evaluated item, values as written (numbers exact).

    ``title``: the heading above it. ``problem``: why it is incomplete.
    """

    source: Path
    rows: tuple[Row, ...] = ()
    title: str = ""
    problem: str | None = None


def find_evaluation_files(root: Path) -> list[tuple[Path, float]]:
    """Return the files at or below ``root`` that look like evaluations, with their change time (POSIX)."""
    tree = list_tree(limited_scan(max_depth=4), root)
    entries = (entry for _, entries in tree for entry in entries if not entry.is_dir)
    return [(entry.path, entry.changed_s) for entry in entries if _is_evaluation(entry.path)]


def find_run_evaluations(
    run: Run, own: OwnFiles, find_below: Callable[[Path], list[tuple[Path, float]]] = find_evaluation_files
) -> list[Evaluation]:
    """Return a run's own evaluations, newest first: of its time; in the result directory also later ones."""
    files = {path: at_s for root in result_roots(run, own) for path, at_s in find_below(root)}
    files |= {path: path.stat().st_mtime for path in map(Path, own.claims.results) if path.is_file()}
    newest = sorted(select_own(files, own), key=lambda path: (-files[path], str(path)))[:_MOST_FILES]
    found = [one for path in newest for one in read_evaluations(path)]
    return [one for one in found if _RX.name.fullmatch(one.source.name) or _counts_steps(one)]


def _counts_steps(one: Evaluation) -> bool:
    """Return whether each row has a step. A model card, or notes, have other numbers."""
    return bool(one.rows) and (one.source.suffix != ".md" or all(map(has_step, one.rows)))


def is_evaluation_name(path: Path) -> bool:
    """Return whether a file may hold evaluations, by its name and that of its directory."""
    return path.suffix == ".md" or (_is_named(path) and not _RX.not_evaluations.fullmatch(path.name))


def _is_evaluation(path: Path) -> bool:
    is_candidate = _is_named(path) or (path.suffix == ".md" and _begins_with_steps(path))
    return is_candidate and not _RX.not_evaluations.fullmatch(path.name) and read_origin(path) == (None, None)


def _is_named(path: Path) -> bool:
    return bool(_RX.name.fullmatch(path.name) or (path.suffix == ".md" and _RX.directory.fullmatch(path.parent.name)))


def _begins_with_steps(path: Path) -> bool:
    """Return whether a document begins as validations do that are appended to a file of any name."""
    try:
        begin = read_regular_file(path, max_bytes=_SNIFFED_BYTES, follow_links=False)
    except (OSError, ValueError):
        return False
    return _STEPS.search(begin) is not None


def read_evaluations(path: Path) -> list[Evaluation]:
    """Return the tables of a file, as far as it can be read, and otherwise the problem. Never raises."""
    try:
        if path.suffix == ".npz":
            return [Evaluation(path, tuple(read_evaluation_arrays(path)[-MOST_ROWS:]))]
        text = _read_text(path)
    except (OSError, ValueError) as error:
        return [Evaluation(path, problem=str(getattr(error, "strerror", None) or error))]
    if path.suffix == ".jsonl":
        lines = _parse_json_lines(path, text)
        return [] if _logs_training(path, lines) else [lines]
    if path.suffix in {".txt", ".log"}:  # other lines are anybody's
        rows = (*parse_lines(text), *read_success_rates(text.splitlines()))
        return [Evaluation(path, rows[-MOST_ROWS:])] if rows else []
    if path.suffix != ".json":
        return [Evaluation(path, tuple(table.rows), table.title, table.cut) for table in parse_markdown(text)]
    try:
        return [Evaluation(path, tuple(parse_rows(json.loads(text)))[:MOST_ROWS])]
    except (ValueError, RecursionError) as error:
        if (lines := _parse_json_lines(path, text)).rows:  # JSON lines under the other name
            return [lines]
        return [Evaluation(path, problem=f"not JSON: {error}")]


def _logs_training(path: Path, lines: Evaluation) -> bool:
    """Return whether lines of steps are a training's own log, which is curves: by their names, and the file's."""
    names = {name for row in lines.rows for name in row}
    classes = (classify_name(name.replace(".", "/")) for name in names)
    has_loss = any(one is not None and one.bits & LOSS for one in classes)  # of no held-out data
    return not _RX.evaluates.search(path.name) and (has_loss or any(map(_RX.of_training.search, names)))


def _read_text(path: Path) -> str:
    """Return the text of a regular file of at most 2 MB. Links are not followed."""
    with os.fdopen(open_regular_file(path, follow_links=False), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES:,} bytes")
        return file.read(_MOST_BYTES).decode("utf-8-sig", errors="replace")


def _parse_json_lines(path: Path, text: str) -> Evaluation:
    rows: list[Row] = []
    broken = 0
    for line in filter(str.strip, text.splitlines()):
        try:
            rows += parse_rows(json.loads(line))
        except (ValueError, RecursionError):
            broken += 1
            if broken >= _MOST_BROKEN:
                break
    problems = []
    if broken:
        problems.append(f"{broken} lines are not JSON{', the rest was not read' if broken >= _MOST_BROKEN else ''}")
    if len(rows) > MOST_ROWS:
        problems.append(f"only the last {MOST_ROWS} of {len(rows)} rows")
    return Evaluation(path, tuple(rows[-MOST_ROWS:]), problem="; ".join(problems) or None)
