"""Evaluations as tables: the series of one run, and models by benchmarks over several runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcp_server.results.answers import BenchmarkTable
from mcp_server.results.evaluation_series import (
    BENCHMARK_NAMES,
    MODEL_NAMES,
    EvaluationPoint,
    EvaluationSeries,
    build_series,
    format_point,
    has_figures,
    is_count,
    plain_name,
)
from mcp_server.results.evaluation_text import render_rows, render_table
from mcp_server.results.evaluations import Evaluation
from mcp_server.results.metrics import Metric

_MOST_ROWS, _MOST_TABLES, _MOST_SETTINGS = 50, 3, 3
_NAMES_A_RUN = re.compile(r"cwd|command|gpus|dir|path|file|log|output|run|name|tag|\$")
_NOISE = re.compile(r"\d\.\d*(?:0{7,}[1-9]{1,2}|9{7,}\d{0,2})(?!\d)")
_PARTS_OF_A_MODEL = frozenset({"actor", "model", "policy", "checkpoint", "ckpt", "weights"})  # at the end of its path
_VALUE = "value"  # of a table that says only which benchmarks its columns are
_SCALAR_SCOPES = ("eval", "val", "test", "evaluation", "validation")

_RowKey = tuple[int | None, str, str]  # step, model, benchmark


def render_evaluations(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yield the evaluations of one run as markdown: a row per step, model and benchmark, newest last."""
    series = build_series(evaluations)
    if series:
        files = list(dict.fromkeys(path for one in series for path in one.sources))
        yield from (f"From {', '.join(f'`{path}`' for path in files)}. ± is one standard error.", "")
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


@dataclass(frozen=True)
class EvaluatedRun:
    """What a run contributes to a table of benchmarks. ``settings``: all of its configuration."""

    name: str
    settings: Mapping[str, str]
    series: Sequence[EvaluationSeries]
    metrics: Sequence[Metric] = ()


def build_benchmark_tables(runs: Sequence[EvaluatedRun], *, bold: bool = False) -> list[BenchmarkTable]:
    """Return models (and steps) by benchmarks for each metric that several evaluations share on several benchmarks.

    Benchmarks come from the rows of result files, or from the setting in which the runs differ. ``bold``: marks the
    best value of each benchmark.
    """
    cells: dict[str, dict[tuple[str, int | None], dict[str, EvaluationPoint]]] = {}
    series_of: dict[str, EvaluationSeries] = {}
    benchmark_setting = _find_setting(runs, BENCHMARK_NAMES)
    model_setting = _find_setting(runs, MODEL_NAMES)
    if model_setting:
        labels = _shorten_paths([run.settings.get(model_setting, "") for run in runs])
    elif benchmark_setting:
        labels = _describe_others(runs, benchmark_setting)
    else:
        labels = [run.name for run in runs]
    for run, row in zip(runs, labels, strict=True):
        set_benchmark = run.settings.get(benchmark_setting, "") if benchmark_setting else ""
        for one in (*_turn_wide_table(run.series), *_series_of_metrics(run)):
            benchmark = one.benchmark or set_benchmark
            if not benchmark or (one.best_is is None and one.metric != _VALUE):
                continue
            series_of.setdefault(one.metric, one)
            label = (
                ", ".join(part for part in (row, one.model) if part and (one.model == part or len(runs) > 1))
                or run.name
            )
            known = cells.setdefault(one.metric, {}).setdefault((label, one.last.step), {})
            known.setdefault(benchmark, one.last)
    tables = []
    for metric, rows in cells.items():
        benchmarks = sorted({benchmark for row in rows.values() for benchmark in row})
        if len(benchmarks) > 1:
            tables.append(_build_table(series_of[metric], rows, benchmarks, bold=bold))
    return tables[:_MOST_TABLES]


def _turn_wide_table(series: Sequence[EvaluationSeries]) -> Sequence[EvaluationSeries]:
    """Return the series, those of a table with a row per model and a column per benchmark by benchmark.

    It is one where no column has the name of a metric, such as `success` or `loss`.
    """
    figures = [one for one in series if not is_count(one.metric)]
    if any(one.benchmark or not one.model or one.best_is for one in figures):
        return series
    return [replace(one, benchmark=one.metric, metric=_VALUE) for one in figures]


def _series_of_metrics(run: EvaluatedRun) -> Iterator[EvaluationSeries]:
    """Yield the scalars of evaluations as series of their last value, without those that a result file has too."""
    names = {one.metric.lower() for one in run.series}
    for one in run.metrics:
        is_evaluation = re.split(r"[/_.]", one.tag.lower())[0] in _SCALAR_SCOPES
        if is_evaluation and isinstance(one.last, float | int) and one.tag.lower() not in names:
            yield EvaluationSeries(one.tag, (EvaluationPoint(float(one.last), one.last_step),))


def _find_setting(runs: Sequence[EvaluatedRun], names: frozenset[str]) -> str | None:
    """Return the setting of one of these names that has the most values."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if plain_name(name.rpartition(":")[2]) in names and value:
                values.setdefault(name, set()).add(value)
    candidates = [name for name in values if len(values[name]) > 1]
    return max(candidates, key=lambda name: len(values[name]), default=None)


def _describe_others(runs: Sequence[EvaluatedRun], without: str) -> list[str]:
    """Return for each run the settings in which they differ, but for one and for what names a run, such as paths."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    differing = [
        name
        for name in names
        if name != without
        and not _NAMES_A_RUN.search(name.lower())
        and len(values := {run.settings.get(name, "") for run in runs}) > 1
        and not any("/" in value for value in values)
    ]
    texts = [
        [f"{name}={run.settings[name]}" for name in differing[:_MOST_SETTINGS] if run.settings.get(name)]
        for run in runs
    ]
    return [", ".join(one) or _name_model(run) or "all" for one, run in zip(texts, runs, strict=True)]


def _name_model(run: EvaluatedRun) -> str:
    """Return the end of the path or name of the run's model, empty where its settings have none."""
    values = (value for name, value in run.settings.items() if plain_name(name.rpartition(":")[2]) in MODEL_NAMES)
    parts = [part for part in next(filter(None, values), "").split("/") if part]
    return next((part for part in reversed(parts) if plain_name(part) not in _PARTS_OF_A_MODEL), "")


def _shorten_paths(values: Sequence[str]) -> list[str]:
    """Return paths without the directories at both ends that all of them have."""
    parts = [value.split("/") for value in values]
    ahead = _count_shared(parts)
    behind = _count_shared([one[:ahead:-1] for one in parts])
    return ["/".join(one[ahead : len(one) - behind]) or value for one, value in zip(parts, values, strict=True)]


def _count_shared(paths: Sequence[Sequence[str]]) -> int:
    """Return how many first parts all paths share."""
    return next((n for n, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))


def _build_table(
    series: EvaluationSeries,
    rows: Mapping[tuple[str, int | None], Mapping[str, EvaluationPoint]],
    benchmarks: Sequence[str],
    *,
    bold: bool,
) -> BenchmarkTable:
    has_steps = any(step is not None for _, step in rows)
    choose = {"max": max, "min": min, None: None}[series.best_is]
    best = {name: choose(row[name].share for row in rows.values() if name in row) for name in benchmarks if choose}
    lines = []
    for label, step in sorted(rows, key=lambda key: (_natural(key[0]), key[1] or 0)):
        cells = [label, *([str(step) if step is not None else ""] if has_steps else [])]
        for name in benchmarks:
            point = rows[label, step].get(name)
            text = "" if point is None else format_point(point, step=False)
            if point is not None and point.episodes:
                text += f" n={point.episodes}"
            is_best = bold and point is not None and len(rows) > 1 and point.share == best.get(name)
            cells.append(f"**{text}**" if is_best else text)
        lines.append(cells)
    names = ["model", *(["step"] if has_steps else []), *benchmarks]
    plain = [[cell.replace("|", "¦") for cell in line] for line in (names, *lines)]
    return BenchmarkTable(metric=series.metric, columns="|".join(plain[0]), rows=["|".join(line) for line in plain[1:]])


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts step_900 before step_1000."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def render_benchmark_tables(tables: Sequence[BenchmarkTable]) -> list[str]:
    """Return the tables as markdown, each below the name of its metric."""
    lines = []
    for one in tables:
        rows = [row.split("|") for row in one.rows]
        lines += ["", f"{one.metric} by benchmark:", "", *render_table(one.columns.split("|"), rows)]
    return lines
