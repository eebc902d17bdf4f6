"""Keeps the figures of each group in `results.json`, with machine and date, and renders them into README.md.

`python -m tests.benchmarks.results` renders them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Table, line, machine

HERE = Path(__file__).parent
_TREE = f"{HERE.parents[1]}/"  # a note quotes answers: where the tree stands on a machine is left out
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_VERDICTS = {True: "met", False: "**missed**", None: ""}


def read_results() -> dict[str, Any]:
    """Return the kept figures by group: `machine` (with the date), `title`, `rows`, `notes`."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return kept


def keep(name: str, table: Table) -> None:
    """Keep the figures of a group in place of its former ones, and render all."""
    results = {**read_results(), name: {"machine": machine(), **asdict(table)}}
    text = json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False).replace(_TREE, "")
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
    PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), read_results()), encoding="utf-8")


def insert(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with the figures of ``results`` between its marks."""
    before, _, rest = page.partition(BEGIN)
    tables = "\n".join(render(results))
    return f"{before}{BEGIN}\n\n{tables}\n{END}{rest.partition(END)[2]}"


def render(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables: a group each, a figure a row."""
    for name, group in sorted(results.items()):
        yield from (f"### {group['title']}", "", f"`python -m tests.benchmarks {name}`: {group['machine']}", "")
        yield from (line(["what", "runward", "peer", "ratio", "bar", ""]), line(["---"] * 6))
        for row in group["rows"]:
            cells = [row[key] for key in ("what", "runward", "baseline", "ratio", "bar")]
            yield line([*cells, _VERDICTS[row["ok"]]])
        yield ""
        yield from [*(f"- {note}" for note in group["notes"]), *([""] if group["notes"] else [])]


if __name__ == "__main__":
    PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), read_results()), encoding="utf-8")
