"""The evaluations of one run as a table: a row for each step, model and benchmark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mcp_server.results.evaluation_series import (
    EvaluationPoint,
    EvaluationSeries,
    build_series,
    format_point,
    has_figures,
)
from mcp_server.results.evaluation_text import render_rows, render_table
from mcp_server.results.evaluations import Evaluation

_MOST_ROWS = 50
_NOISE = re.compile(r"\d\.\d*(?:0{7,}[1-9]{1,2}|9{7,}\d{0,2})(?!\d)")

_RowKey = tuple[int | None, str, str]  # step, model, benchmark


def render_evaluations(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yield the evaluations of one run as markdown: a row per step, model and benchmark, newest last."""
    series = build_series(evaluations)
    if series:
        files = list(dict.fromkeys(path for one in series for path in one.sources))
        has_error = any(point.error is not None for one in series for point in one.points)
        error = " ± is one standard error." if has_error else ""
        yield from (f"From {', '.join(f'`{path}`' for path in files)}.{error}", "")
        yield from _render_series(series)
        yield ""
        for one in series:
            best, last = one.best, one.last
            if best is not None and best.share != last.share:
                yield f"- Best {one.name}: {format_point(best)}, last {format_point(last)}"
    for evaluation in evaluations:
        if evaluation.rows and not has_figures(evaluation):
            yield from (f"`{evaluation.source}`", "", *render_rows(evaluation.rows), "")


def _render_series(series: Sequence[EvaluationSeries]) -> Iterator[str]:
    rows: dict[_RowKey, list[dict[str, str]]] = {}
    for one in series:
        best = one.best if len(one.points) > 1 else None
        seen: dict[_RowKey, int] = {}
        for point in one.points:
            key = point.step, one.model, one.benchmark
            number = seen[key] = seen.get(key, -1) + 1  # an evaluation that was repeated
            row = rows.setdefault(key, [])
            while len(row) <= number:
                row.append({})
            cell = _exact(point)
            row[number][one.metric] = f"**{cell}**" if point is best else cell
    metrics = list(dict.fromkeys(one.metric for one in series))
    ordered = sorted(rows, key=lambda key: (key[0] is None, key[0] or 0, key[1], key[2]))
    lines = [(key, cells) for key in ordered for cells in rows[key]]
    if len(lines) == 1 and not any(lines[0][0][1:]):
        (step, *_), cells = lines[0]
        yield from render_table(["figure", "value"], [*([["step", step]] if step is not None else []), *cells.items()])
        return
    headers = [
        name for name, n in (("step", 0), ("model", 1), ("benchmark", 2)) if any(k[n] not in ("", None) for k in rows)
    ]
    columns = {"step": 0, "model": 1, "benchmark": 2}
    newest = lines[-_MOST_ROWS:]
    cells_of = [[*(key[columns[name]] for name in headers), *(cells.get(m) for m in metrics)] for key, cells in newest]
    yield from render_table([*headers, *metrics], cells_of)
    if len(lines) > len(newest):
        yield f"\nThe last {len(newest)} of {len(lines)} rows."


def _exact(point: EvaluationPoint) -> str:
    """Return a value with all its digits, but for those that come from binary fractions: 0.6000000000000001."""
    text = f"{point.value:.12g}{point.unit}" if _NOISE.search(point.text) else point.text
    return text if point.error is None else f"{text} ± {point.error:.2g}{point.unit}"
