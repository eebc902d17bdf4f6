"""Models by benchmarks over several runs: a row for each of the settings that differ, seeds grouped. Pure."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.command.outputs import names_a_run
from mcp_server.record.sweeps.sweep_ranking import average, is_seed
from mcp_server.results.comparison_cells import fit, shorten_names, shorten_paths
from mcp_server.results.evaluations import evaluation_series as series_of
from mcp_server.results.evaluations.evaluation_text import render_table
from mcp_server.results.metrics import Metric
from mcp_server.results.outcome_answers import BenchmarkTable
from mcp_server.scalars.tag_names import match_tags
from mcp_server.text.equal_settings import Place, find_equal_forms
from mcp_server.text.formatting import join_some, spread
from mcp_server.views.brevity import fit as fit_rows

ERROR_NOTE = "± of a single run is one standard error."
SPREAD_NOTE = f"In benchmarks (n 3) is mean±sd over 3 seeds; {ERROR_NOTE}"
_FEWEST_ROWS, _DIGITS = 8, 4  # digits of one value, as of a mean
_MOST_TABLES, _MOST_SETTINGS, _MOST_NAMED, _MOST_RUNS_IN_A_ROW = 3, 6, 4, 3
# Name a benchmark where no setting of another name does: a file of options for each.
_CONFIG_NAMES = frozenset({"config_name", "cn", "config", "config_file", "cfg"})
_PLACEMENT = frozenset({"gpus", "host", "device", "devices", "port", "cuda_visible_devices", "gpu_ids", "gpu_id"})
_SEED_IN_VALUE = re.compile(r"(?i)(?<![a-z])(seed[-_=]?)\d+")
_PARTS_OF_A_MODEL = frozenset({"actor", "model", "policy", "checkpoint", "ckpt", "weights"})  # at the end of its path
_VALUE = "value"  # of a table that says only which benchmarks its columns are
_SCALAR_SCOPES = ("eval", "val", "test", "evaluation", "validation")


@dataclass(frozen=True)
class EvaluatedRun:
    """A run's part in a table of benchmarks. ``settings``: all of its configuration."""

    name: str
    settings: Mapping[str, str]
    series: Sequence[series_of.EvaluationSeries]
    metrics: Sequence[Metric] = ()
    state: str = "finished"
    created_at: str = ""
    place: Place = field(default_factory=Place)


@dataclass(frozen=True)
class Benchmarks:
    """The tables of some runs. ``notes``: what they leave out, and what ± is."""

    tables: Sequence[BenchmarkTable] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Figure:
    """The newest value of one metric of a run. ``model``: as its file names it. ``is_of_file``: so is the benchmark."""

    run: EvaluatedRun
    series: series_of.EvaluationSeries
    benchmark: str
    model: str
    is_of_file: bool

    @property
    def point(self) -> series_of.EvaluationPoint:
        return self.series.last


@dataclass(frozen=True)
class _Columns:
    """The settings that tell rows apart, and their values by run. ``seeds``: of each run, what tells it from others.

    ``beside``: settings that differ only as the benchmark does.
    """

    names: Sequence[str]
    values: Mapping[str, Mapping[str, str]]
    seeds: Mapping[str, tuple[str, ...]]
    beside: Sequence[str] = ()


@dataclass(frozen=True, order=True)
class _RowKey:
    """The subject of a row. ``repeat``: 0, or the number of an evaluation that nothing tells from newer ones."""

    labels: tuple[str, ...]
    model: str
    step: int | None
    repeat: int


@dataclass
class _Row:
    runs: list[str] = field(default_factory=list)
    cells: dict[str, list[series_of.EvaluationPoint]] = field(default_factory=dict)


def build_benchmark_tables(
    runs: Sequence[EvaluatedRun], patterns: Sequence[str] = (), *, bold: bool = False
) -> Benchmarks:
    """Return a table for each metric that evaluations share on several benchmarks.

    Benchmarks come from the rows of result files, or from the setting in which the runs differ. A row is one value of
    all other settings that differ, and a step; runs that differ in seeds alone are its mean. Evaluations that nothing
    tells apart have a row each. A run that is an evaluation counts once it has finished. ``patterns``: the metrics that
    are asked for, where any of them has such a table. ``bold``: marks the best value of each benchmark.
    """
    name = find_benchmark([run.settings for run in runs])
    labels = shorten_paths(_unify(name, runs)) if name else []
    benchmarks = dict(zip((run.name for run in runs), labels, strict=False))
    figures = [figure for run in runs for figure in _list_figures(run, benchmarks.get(run.name, ""))]
    counted = [one for one in figures if one.is_of_file or one.run.state == "finished"]
    metrics: dict[str, list[_Figure]] = {}
    for one in counted:
        metrics.setdefault(one.series.metric, []).append(one)
    metrics = {metric: own for metric, own in metrics.items() if len({one.benchmark for one in own}) > 1}
    asked = {metric for pattern in patterns for metric in match_tags(pattern, metrics)}
    shown = {metric: own for metric, own in metrics.items() if metric in asked or not asked}
    tables, beside = [], dict[str, None]()
    for own in list(shown.values())[:_MOST_TABLES]:
        columns = _choose_columns(own, name)
        tables.append(_build_table(own, columns, bold=bold))
        beside |= dict.fromkeys(columns.beside)
    if not tables:
        return Benchmarks()
    notes = [SPREAD_NOTE] if any("(n " in row for table in tables for row in table.rows) else []
    if beside:
        notes.append(f"Differ with the benchmark: {join_some(list(beside), _MOST_NAMED)}.")
    in_tables = {one.run.name for own in shown.values() for one in own}
    if out := [f"{run.name} ({_explain(run, figures)})" for run in runs if run.name not in in_tables]:
        notes.append(f"Not in benchmarks: {join_some(out, _MOST_NAMED)}.")
    if len(shown) > len(tables):
        notes.append(f"{len(shown) - len(tables)} more metrics by benchmark: name them in metrics.")
    return Benchmarks(tables, notes)


def find_benchmark(settings: Sequence[Mapping[str, object]]) -> str | None:
    """Return the setting that names the benchmark: with most values, or the file of options beside a model's."""
    name = _find_setting(settings, series_of.BENCHMARK_NAMES)
    has_model = any(_base(key) in series_of.MODEL_NAMES and value for one in settings for key, value in one.items())
    return name or (_find_setting(settings, _CONFIG_NAMES) if has_model else None)


def _find_setting(settings: Sequence[Mapping[str, object]], names: Collection[str]) -> str | None:
    values: dict[str, set[str]] = {}
    for one in settings:
        for name, value in one.items():
            if value and _base(name) in names:
                values.setdefault(name, set()).add(str(value))
    candidates = [name for name in values if len(values[name]) > 1]
    return max(candidates, key=lambda name: len(values[name]), default=None)


def _base(name: str) -> str:
    """Return the last part of a setting's name: of ``config:env.task_suite`` or ``$TASK_SUITE`` ``task_suite``."""
    return series_of.plain_name(name.rpartition(":")[2].lstrip("$"))


def _explain(run: EvaluatedRun, figures: Sequence[_Figure]) -> str:
    return run.state if run.state != "finished" or any(one.run is run for one in figures) else "no figure"


def _list_figures(run: EvaluatedRun, benchmark: str) -> Iterator[_Figure]:
    for one in (*_turn_wide_table(run.series), *_series_of_metrics(run)):
        if (one.benchmark or benchmark) and (one.best_is is not None or one.metric == _VALUE):
            yield _Figure(run, one, one.benchmark or benchmark, one.model, is_of_file=bool(one.benchmark))


def _turn_wide_table(series: Sequence[series_of.EvaluationSeries]) -> Sequence[series_of.EvaluationSeries]:
    """Return the series, by benchmark where columns are benchmarks: none has the name of a metric."""
    figures = [one for one in series if not series_of.is_count(one.metric)]
    if any(one.benchmark or not one.model or one.best_is for one in figures):
        return series
    return [replace(one, benchmark=one.metric, metric=_VALUE) for one in figures]


def _series_of_metrics(run: EvaluatedRun) -> Iterator[series_of.EvaluationSeries]:
    """Yield the scalars of evaluations as series of their last value, without those that a result file has too."""
    names = {one.metric.lower() for one in run.series}
    for one in run.metrics:
        is_evaluation = re.split(r"[/_.]", one.tag.lower())[0] in _SCALAR_SCOPES
        if is_evaluation and isinstance(one.last, float | int) and one.tag.lower() not in names:
            yield series_of.EvaluationSeries(one.tag, (series_of.EvaluationPoint(float(one.last), one.last_step),))


def _choose_columns(figures: Sequence[_Figure], benchmark: str | None) -> _Columns:
    """Return the settings in which the runs of these figures differ, but for seeds and what only names a run.

    A place of output, or the name of a run, is a setting only where it tells apart runs that all others, with the
    benchmark and the seeds, do not, and is not another one in every run.
    """
    runs = list({one.run.name: one.run for one in figures}.values())
    by_run = {one.run.name: "" if one.is_of_file else one.benchmark for one in figures}
    names = dict.fromkeys(name for run in runs for name in run.settings if _base(name) not in _PLACEMENT)
    raw = {
        name: {run.name: value.replace(run.name, "*") for run, value in zip(runs, _unify(name, runs), strict=True)}
        for name in names
    }
    raw = {name: values for name, values in raw.items() if len(set(values.values())) > 1}
    if benchmark is not None and all(by_run.values()):
        raw.pop(benchmark, None)
    seeds = {name: values for name, values in raw.items() if is_seed(_base(name))}
    places = {name for name in raw if _base(name) not in series_of.MODEL_NAMES and names_a_run(name)}
    chosen: dict[str, dict[str, str]] = {}
    beside = []
    paths = {name for name, values in raw.items() if any("/" in value for value in values.values())}
    settings = [name for name in raw if name not in seeds and name not in places]
    for name in sorted(settings, key=lambda name: (_base(name) not in series_of.MODEL_NAMES, name in paths)):
        values = {run: _SEED_IN_VALUE.sub(r"\1*", value) for run, value in raw[name].items()}
        if values != raw[name]:
            seeds[name] = raw[name]
        if len(set(values.values())) == 1 or values in chosen.values():
            continue
        known = zip(*(each.values() for each in (by_run, *chosen.values(), *seeds.values())), strict=True)
        is_of_one_run = len(set(values.values())) == len(runs) == len(set(known))
        if is_of_one_run and name in paths and _base(name) not in series_of.MODEL_NAMES:
            continue  # a directory of its own for each of the runs, which all else tells apart
        if _base(name) in series_of.MODEL_NAMES or not all(by_run.values()) or not _depends(values, [by_run]):
            chosen[name] = values
        elif set(values.values()) != set(by_run.values()):
            beside.append(name)
    for name in (name for name in raw if name in places):
        is_of_one_run = len(set(raw[name].values())) == len(runs)
        if not is_of_one_run and not _depends(raw[name], [by_run, *chosen.values(), *seeds.values()]):
            chosen[name] = raw[name]
    of_run = {run.name: tuple(values[run.name] for values in seeds.values()) for run in runs}
    return _Columns(list(chosen), chosen, of_run, beside)


def _unify(name: str, runs: Sequence[EvaluatedRun]) -> list[str]:
    values, first = [run.settings.get(name, "") for run in runs], dict[str, str]()
    forms = find_equal_forms(name, values, [run.place for run in runs])
    return [first.setdefault(form, value) for form, value in zip(forms, values, strict=True)]


def _depends(values: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> bool:
    """Return whether runs for which all ``others`` have one value have one of ``values`` too."""
    known: dict[tuple[str, ...], str] = {}
    return all(known.setdefault(tuple(one[run] for one in others), value) == value for run, value in values.items())


def _build_table(figures: Sequence[_Figure], columns: _Columns, *, bold: bool) -> BenchmarkTable:
    rows = _make_rows(figures, columns)
    model = next((name for name in columns.names if _base(name) in series_of.MODEL_NAMES), None)
    settings = [name for name in columns.names if name != model]
    series = figures[0].series
    benchmarks = sorted({one.benchmark for one in figures})
    taken = {"model", "step", "run", *benchmarks}
    ends = shorten_names(settings, taken)
    short = {name: f"{end} set" if end in taken else end for name, end in ends.items()}
    best = _find_best(series, list(rows.values()))
    labels = _label_rows(list(rows), columns, model, _name_model(figures[0].run))
    lines: list[dict[str, str]] = []
    for (key, row), label in zip(rows.items(), labels, strict=True):
        of = dict(zip(columns.names, key.labels, strict=True))
        line = {"model": label, "run": _join_runs(row.runs), "step": "" if key.step is None else str(key.step)}
        line |= {short[name]: fit(of[name] or "-") for name in settings[:_MOST_SETTINGS]}
        for name in benchmarks:
            points = row.cells.get(name, ())
            is_best = bold and len(rows) > 1 and bool(points) and _share(points) == best.get(name)
            line[name] = f"**{_render(points)}**" if is_best else _render(points)
        lines.append(line)
    names = ["model"] if any(labels) else []
    names += [short[name] for name in settings[:_MOST_SETTINGS]]
    names += ["run"] if any(key.repeat for key in rows) else []
    names += ["step"] if any(key.step is not None for key in rows) else []
    lines.sort(key=lambda line: [_natural(line[name]) for name in names])
    names += benchmarks
    plain = [[cell.replace("|", "¦") for cell in cells] for cells in (names, *([r[n] for n in names] for r in lines))]
    return BenchmarkTable(metric=series.metric, columns="|".join(plain[0]), rows=["|".join(line) for line in plain[1:]])


def _make_rows(figures: Sequence[_Figure], columns: _Columns) -> dict[_RowKey, _Row]:
    """Return the rows. The newest of evaluations that only their time tells apart are in the first one."""
    rows: dict[_RowKey, _Row] = {}
    seen: dict[tuple[object, ...], list[str]] = {}
    for one in sorted(figures, key=lambda one: one.run.created_at, reverse=True):
        labels = tuple(columns.values[name][one.run.name] for name in columns.names)
        same = (labels, one.model, one.point.step, columns.seeds[one.run.name], "" if one.is_of_file else one.benchmark)
        twins = seen.setdefault(same, [])
        if one.run.name not in twins:
            twins.append(one.run.name)
        row = rows.setdefault(_RowKey(labels, one.model, one.point.step, twins.index(one.run.name)), _Row())
        row.runs += [one.run.name] if one.run.name not in row.runs else []
        row.cells.setdefault(one.benchmark, []).append(one.point)
    return rows


def _label_rows(keys: Sequence[_RowKey], columns: _Columns, model: str | None, only: str) -> list[str]:
    """Return the model of each row: as a setting names it, and as a file does. Where only one is known, its name."""
    if model is not None:
        paths = shorten_paths([key.labels[columns.names.index(model)] for key in keys])
    else:
        is_only = not columns.names and not any(key.repeat or key.model for key in keys)
        paths = [only or "all" if is_only else "" for _ in keys]
    return [
        ", ".join(dict.fromkeys(part for part in (path, key.model) if part))
        for path, key in zip(paths, keys, strict=True)
    ]


def _join_runs(names: Sequence[str]) -> str:
    more = len(names) - _MOST_RUNS_IN_A_ROW
    return ", ".join(sorted(names[:_MOST_RUNS_IN_A_ROW])) + (f" +{more}" if more > 0 else "")


def _find_best(series: series_of.EvaluationSeries, rows: Sequence[_Row]) -> dict[str, float]:
    choose = {"max": max, "min": min, None: None}[series.best_is]
    shares: dict[str, list[float]] = {}
    for row in rows:
        for name, points in row.cells.items():
            if (share := _share(points)) is not None:
                shares.setdefault(name, []).append(share)
    return {name: choose(values) for name, values in shares.items()} if choose else {}


def _share(points: Sequence[series_of.EvaluationPoint]) -> float | None:
    return average([point.share for point in points])[0]


def _render(points: Sequence[series_of.EvaluationPoint]) -> str:
    """Return one value with its standard error and episodes, or the mean of several with their deviation and number."""
    if len(points) < 2:  # noqa: PLR2004 - two have a mean
        text = "".join(series_of.format_point(point, step=False, digits=_DIGITS) for point in points)
        return text + "".join(f" n={point.episodes}" for point in points if point.episodes)
    unit = points[0].unit if len({point.unit for point in points}) == 1 else ""
    values = [point.value if unit else point.share for point in points]
    finite = [value for value in values if math.isfinite(value)]
    mean, deviation = average(finite)
    if mean is None:
        return f"nan (n {len(values)})"
    odd = f" +{len(values) - len(finite)} nan" if len(finite) < len(values) else ""
    return f"{spread(mean, deviation)}{unit} (n {len(finite)}{odd})"


def _name_model(run: EvaluatedRun) -> str:
    values = (value for name, value in run.settings.items() if _base(name) in series_of.MODEL_NAMES)
    parts = [part for part in next(filter(None, values), "").split("/") if part]
    return next((part for part in reversed(parts) if series_of.plain_name(part) not in _PARTS_OF_A_MODEL), "")


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts step_900 before step_1000."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def shorten_table(table: BenchmarkTable, tokens: int, notes: list[str]) -> BenchmarkTable:
    """Return the table with its first rows, as far as they fit; ``notes`` gets how many these are."""
    count = fit_rows(table.rows, tokens, least=_FEWEST_ROWS)
    if count < len(table.rows):
        notes.append(f"benchmarks has {count} of {len(table.rows)} rows: markdown=true has all.")
    return table.model_copy(update={"rows": table.rows[:count]})


def render_benchmark_tables(tables: Sequence[BenchmarkTable]) -> list[str]:
    """Return the tables as markdown, each below the name of its metric."""
    lines = []
    for one in tables:
        rows = [row.split("|") for row in one.rows]
        lines += ["", f"{one.metric} by benchmark:", "", *render_table(one.columns.split("|"), rows)]
    return lines
