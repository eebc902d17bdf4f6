"""Reads evaluation results: tables and numbers in the markdown, JSON and JSON lines of trainers and harnesses."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mcp_server.record.result_directory import EXPERIMENT_LOG, read_origin
from mcp_server.record.state import Run
from mcp_server.results.run_files import limited_scan, list_tree, result_roots
from mcp_server.scalars.locate import run_span
from mcp_server.system.files import open_regular_file

Value = float | int | str | bool | None
Row = Mapping[str, Value]

_NAME = re.compile(
    r"(?:.*[-_.])?(?:eval|evals|evaluation|evaluate|results?|metrics|valid|validation|val|test|scores?|benchmark|lm)"
    r"(?:[-_.0-9T].*)?\.(?:md|json|jsonl)|all_results\.json",
    re.IGNORECASE,
)
_NOT_EVALUATIONS = re.compile(
    rf"{re.escape(EXPERIMENT_LOG)}|.*(?:config|args|state|vocab|tokenizer|samples).*", re.IGNORECASE
)
_MOST_BYTES = 2_000_000  # of one file
_MOST_BROKEN = 1_000  # lines; a file with more is not JSON lines
_MOST_FILES, _MOST_ROWS, _MOST_TABLES, _MOST_COLUMNS = 20, 200, 20, 200
_SEPARATOR = re.compile(r"\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?")
_HEADING = re.compile(r"#{1,6}\s.*")
_LONGEST_LINE = 1_000  # of a pair or a heading
_FENCE = re.compile(r"(```|~~~)[ \t]*(?:json)?[ \t]*\n(?P<body>.*?)\n[ \t]*\1", re.DOTALL | re.IGNORECASE)
_PAIR = re.compile(
    r"(?:[-*+]|\d+\.)?\s*[`*_]*(?P<name>[A-Za-z][\w@/.\- ]{0,60}?)[`*_]*\s*[:=\uff1a]\s*[`*_]*(?P<value>.+)"
)
_CELLS = re.compile(r"(?<!\\)\|")
_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf)", re.IGNORECASE)


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
    run: Run, result_dir: Path | None = None, look: Callable[[Path], list[tuple[Path, float]]] = find_evaluation_files
) -> list[Evaluation]:
    """Return the evaluations that a run left in its result directory and below its working directory, newest first.

    They were written between its start and its end; in the result directory, which only this run uses, also later.
    ``look`` is :func:`find_evaluation_files`, perhaps with a cache.
    """
    begun_s, until_s = run_span(run)
    files: dict[Path, float] = {}
    for root in result_roots(run, result_dir):
        last_s = until_s if root == Path(run.spec.cwd) else math.inf
        files |= {path: at_s for path, at_s in look(root) if path not in files and begun_s <= at_s <= last_s}
    newest = sorted(files, key=lambda path: (-files[path], str(path)))[:_MOST_FILES]
    return [one for path in newest for one in read_evaluations(path)]


def _is_evaluation(path: Path) -> bool:
    name = path.name
    return bool(_NAME.fullmatch(name)) and not _NOT_EVALUATIONS.fullmatch(name) and read_origin(path) == (None, None)


def read_evaluations(path: Path) -> list[Evaluation]:
    """Return the tables of a file, as far as it can be read, and otherwise the problem. Never raises."""
    try:
        text = _read_text(path)
    except (OSError, ValueError) as error:
        return [Evaluation(path, problem=str(getattr(error, "strerror", None) or error))]
    if path.suffix == ".jsonl":
        return [_parse_json_lines(path, text)]
    if path.suffix != ".json":
        return list(_parse_markdown(path, text))
    try:
        return [Evaluation(path, tuple(parse_rows(json.loads(text)))[:_MOST_ROWS])]
    except (ValueError, RecursionError) as error:
        if (lines := _parse_json_lines(path, text)).rows:  # JSON lines under the other name
            return [lines]
        return [Evaluation(path, problem=f"not JSON: {error}")]


def _read_text(path: Path) -> str:
    """Return the text of a regular file of at most 2 MB. Links are not followed."""
    with os.fdopen(open_regular_file(path, follow_links=False), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES:,} bytes")
        return file.read(_MOST_BYTES).decode("utf-8-sig", errors="replace")


def parse_rows(value: Any) -> Iterator[Row]:
    """Yield the rows of a JSON value: each object of a list, or nested objects as one row with dotted names.

    An object of objects, in which harnesses store results by task, is a row per task. Pure.
    """
    if isinstance(value, list):
        for item in value:
            yield from parse_rows(item)
        return
    if not isinstance(value, Mapping):
        return
    results = value.get("results")
    if isinstance(results, Mapping) and results and all(isinstance(one, Mapping) for one in results.values()):
        for task, one in results.items():
            yield {"task": task, **_flatten(one)}
    elif isinstance(results, list) and any(isinstance(one, Mapping) for one in results):
        yield from parse_rows(results)
        if rest := _flatten({name: one for name, one in value.items() if name != "results"}):
            yield rest
    elif flat := _flatten(value):
        yield flat


def _flatten(value: Mapping[str, Any], before: str = "") -> dict[str, Value]:
    """Return the scalars of nested objects, without the filter that lm-eval adds to a name (`acc,none`)."""
    flat: dict[str, Value] = {}
    for name, one in value.items():
        label = before + str(name).removesuffix(",none")
        if isinstance(one, Mapping):
            flat |= _flatten(one, f"{label}.")
        elif isinstance(one, str | int | float | bool) and len(str(one)) <= _MOST_ROWS and name != "alias":
            flat[label] = one
        if len(flat) >= _MOST_COLUMNS:
            break
    return flat


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
    if len(rows) > _MOST_ROWS:
        problems.append(f"only the last {_MOST_ROWS} of {len(rows)} rows")
    return Evaluation(path, tuple(rows[-_MOST_ROWS:]), problem="; ".join(problems) or None)


def _parse_markdown(path: Path, text: str) -> Iterator[Evaluation]:
    """Yield every table, then the JSON in fences, then the `name: number` lines as one row."""
    evaluations = list(_parse_tables(path, text))[:_MOST_TABLES]
    for match in islice(_FENCE.finditer(text), _MOST_TABLES):
        try:
            rows = tuple(parse_rows(json.loads(match["body"])))[:_MOST_ROWS]
        except (ValueError, RecursionError):
            continue
        if rows:
            evaluations.append(Evaluation(path, rows))
    pairs: dict[str, Value] = {}
    for line in text.splitlines():
        pair = None if "|" in line else _PAIR.fullmatch(line.strip()[:_LONGEST_LINE])
        value = _value(pair["value"]) if pair else None
        if pair and isinstance(value, int | float):
            pairs.setdefault(pair["name"].strip(), value)
    if pairs:
        evaluations.append(Evaluation(path, (pairs,)))
    yield from evaluations


def _parse_tables(path: Path, text: str) -> Iterator[Evaluation]:
    lines = text.splitlines()
    title, number = "", 0
    while number < len(lines):
        line = lines[number].strip()
        if _HEADING.fullmatch(line[:_LONGEST_LINE]):
            title = line[:_LONGEST_LINE].strip("# \t")
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if "|" not in line or "|" not in following or not _SEPARATOR.fullmatch(following):
            number += 1
            continue
        names = _cells(line)
        number += 2
        rows = []
        while number < len(lines) and "|" in lines[number]:
            values = [_value(cell) for cell in _cells(lines[number])]
            rows.append(dict(zip(names, values, strict=False)))
            number += 1
        if rows:
            cut = f"only the first {_MOST_ROWS} of {len(rows)} rows" if len(rows) > _MOST_ROWS else None
            yield Evaluation(path, tuple(rows[:_MOST_ROWS]), title, cut)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip().replace("\\|", "|").strip("*`").strip() for cell in _CELLS.split(inner)]


def _value(text: str) -> Value:
    """Return the text as a number where all of it is one, or else the text."""
    plain = text.strip().strip("*`").strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    return float(plain) if _NUMBER.fullmatch(plain) else plain


def render_rows(rows: Sequence[Row], most: int = 50) -> list[str]:
    """Return the first ``most`` rows as a markdown table, followed by the total where there are more."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = render_table(names, [[row.get(name) for name in names] for row in rows[:most]])
    return [*lines, "", f"… of {len(rows)} rows the first {most}."] if len(rows) > most else lines


def render_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a markdown table. None is an empty cell, and ``|`` in a value is escaped."""
    lines = [f"| {' | '.join(map(_cell, names))} |", f"|{' --- |' * len(names)}"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _cell(value: object) -> str:
    return "" if value is None else " ".join(str(value).split()).replace("|", "\\|")
