"""Compares runs in one table: settings that differ, progress, metrics, evaluations, checkpoints. Reads only."""

import contextlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from mcp_server.command.shell import find_directory
from mcp_server.errors import BadArgument, RunUnreadable, SweepNotFound
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.state import Run
from mcp_server.results import checkpoints, configuration
from mcp_server.results.checkpoints import Checkpoint
from mcp_server.results.code_differences import CodeOfRun, find_code_differences, read_ran_code
from mcp_server.results.comparison_cells import (
    Cells,
    checkpoint_cell,
    describe_checkpoint,
    evaluation_column,
    fact_cells,
    find_differences,
    fit,
    format_value,
    merge_overrides,
    metric_cells,
    shorten_names,
    shorten_paths,
)
from mcp_server.results.evaluations import evaluations
from mcp_server.results.evaluations.benchmark_table import (
    ERROR_NOTE,
    SPREAD_NOTE,
    Benchmarks,
    EvaluatedRun,
    build_benchmark_tables,
    render_benchmark_tables,
    shorten_table,
)
from mcp_server.results.evaluations.evaluation_series import (
    EvaluationSeries,
    build_series,
    format_series,
    is_count,
    name_series,
    repeats_scalar,
)
from mcp_server.results.evaluations.evaluation_text import render_table
from mcp_server.results.evaluations.printed_evaluations import read_printed_evaluations
from mcp_server.results.far_results import name_there, show_far_files
from mcp_server.results.figures import ANY_COUNT, EVERY_EVALUATION, explain_missing_metric, names_value, read_values
from mcp_server.results.finish import describe_finding
from mcp_server.results.metrics import Metric, read_metrics
from mcp_server.results.outcome_answers import Comparison
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.tag_names import match_tags, rank_headline
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.text.equal_settings import Place
from mcp_server.text.formatting import count_digits, join_some
from mcp_server.views.run_status import describe_left_behind

_LONGEST_TAG = 32
_BENCHMARK_TOKENS = 400
_MOST_EVALUATED = 100  # runs in the tables of benchmarks
_MOST_RUNS, _MOST_DIFFERENCES, _MOST_METRICS, _MOST_EVALUATIONS, _MOST_CHECKPOINTS = 20, 8, 6, 6, 20
_FACTS = frozenset(
    {"run", "state", "why", "attempts", "step", "time", "peak GPU GiB", "mean GPU %", "episodes", "checkpoint"}
)
# What files of results hold beside evaluations: `train_loss`, `eval_runtime`, `eval_samples_per_second`.
_BESIDE = re.compile(r"(?i)(?:.*\.)?(?:train_\w+|total_flos|(?:eval_|test_|predict_)?\w*(?:runtime|_per_second))")


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One run of a comparison. ``uncertain``: paths of files that may be another run's, and are left out."""

    run: Run
    settings: Mapping[str, str]
    metrics: Sequence[Metric]
    step: int | None
    elapsed_s: float | None
    figures: Mapping[str, EvaluationSeries]
    checkpoints: Sequence[Checkpoint]
    uncertain: Sequence[str]
    remarks: Sequence[str]
    ran_in: Place
    code: CodeOfRun


def build_comparison(
    store: RunStore,
    scalars: Scalars,
    *,
    run_ids: Sequence[str] = (),
    tags: Sequence[str] = (),
    metrics: Sequence[str] = (),
    as_markdown: bool = False,
) -> Comparison:
    """Return these runs, and those that have all of ``tags``, as one table. Blocks. BadArgument: there are none."""
    runs, further, notes = _select_runs(store, run_ids, tags)
    metrics = [name.removeprefix(ANY_COUNT) for name in metrics]
    root_cwd = _common_path([Path(run.spec.cwd) for run in runs if run.spec.cwd.startswith("/")])
    lookups = cache(checkpoints.find_checkpoints), cache(evaluations.find_evaluation_files)  # runs share directories
    printed = metrics or _list_sweep_metrics(store, runs)
    read = partial(_read_run, store, scalars, metrics, printed, root_cwd, *lookups)
    entries = [read(run) for run in runs]
    chosen = [name for name in metrics if names_value(name) and not _is_tag(name, entries)]
    read_all = {name: [list(read_values(run, store, scalars, name)) for run in runs] for name in chosen}
    settings_of = merge_overrides([entry.settings for entry in entries])
    differing = _choose_settings(entries, settings_of, notes)
    tag_columns = _columns([[one.tag for one in e.metrics] for e in entries], metrics, _MOST_METRICS, notes, "metrics")
    figures_of = [_list_figures(entry, entries, everything=bool(metrics)) for entry in entries]
    figures = _columns(figures_of, metrics, _MOST_EVALUATIONS, notes, "evaluation figures")
    notes += find_code_differences([entry.code for entry in entries])
    notes += [f"{run.run_id}: {run.code_change}" for run in runs if run.code_change]
    notes += _describe_missing([name for name in metrics if not any(read_all.get(name, ()))], entries, scalars, store)
    notes += _compare_with_first(runs, read_all) if len(run_ids) > 1 else []
    tag_columns = [tag for tag in tag_columns if not _is_in_files(tag, entries)]
    root = _common_path([one.path.parent for entry in entries for one in entry.checkpoints[:1]])
    values_of = {name: shorten_paths([own.get(name, "-") for own in settings_of]) for name in differing}
    table = _make_rows(entries, values_of, tag_columns, list(read_all.values()), figures, root)
    found = dict.fromkeys(name for row in table for name in row if any(other.get(name) for other in table))
    names = sorted(found, key=lambda name: name == "checkpoint")
    values = {name: {row.get(name, "") for row in table} for name in names}
    same = {name: min(values[name]) for name in names[1:] if len(entries) > 1 and len(values[name]) == 1}
    names = [name for name in names if name not in same]
    notes += [*_describe_runs(entries), *scalars.attribution.describe_shared(runs).values()]
    rows = [[row.get(name, "") for name in names] for row in table]
    benchmarks = _tabulate_benchmarks(entries, metrics, bold=as_markdown)
    if further and benchmarks.tables:  # evaluations are many and small
        benchmarks = _tabulate_benchmarks([*entries, *map(read, further)], metrics, bold=as_markdown)
        notes.append(f"benchmarks count {len(further)} of the runs that the table leaves out.")
    notes += benchmarks.notes
    has_error = any("±" in row.get(evaluation_column(name), "") for row in table for name in figures)
    notes += [ERROR_NOTE] if has_error and SPREAD_NOTE not in benchmarks.notes else []
    shown = [] if as_markdown else [shorten_table(one, _BENCHMARK_TOKENS, notes) for one in benchmarks.tables]
    described = (describe_finding(run, store.run_directory(run.run_id), with_page=as_markdown) for run in runs)
    findings = [line for line in described if line]
    answer = Comparison(
        benchmarks=shown or None,
        same={name: value for name, value in same.items() if value and (name, value) != ("attempts", "1")} or None,
        root=root or None,
        checkpoints=_list_checkpoints(entries, root),
        notes=notes or None,
    )
    if as_markdown:
        pages = ["", *(f"- {line}" for line in findings)] if findings else []
        lines = [*render_table(names, rows), *render_benchmark_tables(benchmarks.tables), *pages]
        return answer.model_copy(update={"markdown": "\n".join(lines)})
    lines = ["|".join(row) for row in rows]
    return answer.model_copy(update={"columns": "|".join(names), "rows": lines, "findings": findings or None})


def _list_figures(run: ComparedRun, entries: Sequence[ComparedRun], *, everything: bool) -> list[str]:
    return [
        name for name in run.figures if everything or not (_BESIDE.fullmatch(name) or _is_curve(name, run, entries))
    ]


def _make_rows(
    entries: Sequence[ComparedRun],
    values_of: Mapping[str, Sequence[str]],
    tags: Sequence[str],
    read_all: Sequence[Sequence[Sequence[tuple[str, float, bool]]]],
    figures: Sequence[str],
    root: str,
) -> list[Cells]:
    settings = shorten_names(values_of, _FACTS)
    others = {*_FACTS, *settings.values()}
    short, digits = shorten_names(tags, others, longest=_LONGEST_TAG), _count_digits(entries, tags, figures)
    named, table = _tabulate_values(read_all, len(entries), others), []
    for number, entry in enumerate(entries):
        row = fact_cells(entry.run, entry.step, entry.elapsed_s)
        row |= {name: fit(values_of[long][number]) for long, name in settings.items()}
        row |= metric_cells(entry.metrics, short, others, digits) | named[number]
        for name in figures:
            if name in entry.figures:
                row[evaluation_column(name)] = format_series(entry.figures[name], digits[name])
        table.append(row | _episodes_cell(entry, figures) | checkpoint_cell(entry.checkpoints, root))
    return table


def _describe_runs(entries: Sequence[ComparedRun]) -> list[str]:
    """Return what a reader of figures has to know of these runs."""
    runs = [entry.run for entry in entries]
    changed = {run.run_id: "; ".join(run.attempt_params.changed.values()) for run in runs}
    notes = [f"{run_id}: {text}." for run_id, text in changed.items() if text]
    notes += [f"{run.run_id} {left}." for run in runs if (left := describe_left_behind(run, short=True))]
    notes += [f"{run.run_id} {run.still}." for run in runs if not run.ended]
    lost = [run.run_id for run in runs if run.state == "lost"]
    notes += [f"{run_id} is lost: its figures are the last that are known." for run_id in lost]
    notes += dict.fromkeys(remark for entry in entries for remark in entry.remarks)
    left_out = describe_uncertain([path for entry in entries for path in entry.uncertain])
    return [*notes, *([left_out] if left_out else [])]


def _choose_settings(
    entries: Sequence[ComparedRun], settings_of: Sequence[Mapping[str, str]], notes: list[str]
) -> list[str]:
    """Return the names of the settings that become columns, and note those that do not."""
    differing, places = find_differences(settings_of, [entry.ran_in for entry in entries])
    filled = {name for entry in entries for name in entry.run.spec.filled}
    columns = {name: [one.get(name) for one in settings_of] for name in differing}
    others = [column for name, column in columns.items() if name not in filled]
    differing = [name for name in differing if name not in filled or columns[name] not in others]
    if differing and places:
        notes.append(f"Paths and names differ too: {join_some(places, _MOST_DIFFERENCES)}.")
    differing = differing or places
    if len(differing) > _MOST_DIFFERENCES:
        more = join_some(differing[_MOST_DIFFERENCES:], _MOST_DIFFERENCES)
        notes.append(f"{len(differing) - _MOST_DIFFERENCES} more settings differ: {more}.")
    return differing[:_MOST_DIFFERENCES]


def _count_digits(entries: Sequence[ComparedRun], tags: Collection[str], figures: Collection[str]) -> dict[str, int]:
    values: dict[str, list[float]] = {name: [] for name in (*tags, *figures)}
    for entry in entries:
        for one in entry.metrics:
            if one.tag in values:
                values[one.tag] += [value for value in (one.last, one.best) if isinstance(value, float | int)]
        for name in figures:
            if (series := entry.figures.get(name)) is not None:
                values[name] += [point.value for point in (series.last, series.best) if point is not None]
    return {name: count_digits(each, *([4] if name in figures else [])) for name, each in values.items()}


def _is_curve(name: str, entry: ComparedRun, entries: Sequence[ComparedRun]) -> bool:
    """Return whether an evaluation repeats a curve of the run, which has a column of its own."""
    if _is_in_files(name, entries):
        return False
    last = entry.figures[name].last
    same = [one for one in entry.metrics if one.tag == name and (one.last, one.last_step) == (last.value, last.step)]
    return bool(same) and len(entry.figures[name].points) > 1


def _compare_with_first(
    runs: Sequence[Run], read_all: Mapping[str, Sequence[Sequence[tuple[str, float, bool]]]]
) -> list[str]:
    """Return by how much a figure that the caller asked for differs from that of the first run, its baseline."""
    notes = []
    for read in read_all.values():
        for name, base, _ in read[0]:
            pairs = [
                (run.run_id, value - base)
                for run, own in zip(runs[1:], read[1:], strict=True)
                for other, value, _ in own
                if other == name
            ]
            differences = [
                f"{run_id} {by:+.4g}" + (f" ({100 * by / abs(base):+.0f} %)" if base else "")
                for run_id, by in pairs[:_MOST_DIFFERENCES]
                if math.isfinite(by)
            ]
            notes += [f"{name} against {runs[0].run_id}: {', '.join(differences)}."] if differences else []
    return notes[:_MOST_METRICS]


def _tabulate_values(
    read_all: Sequence[Sequence[Sequence[tuple[str, float, bool]]]], runs: int, other_columns: Collection[str]
) -> list[Cells]:
    """Return the cells of values that the caller named, such as ``best:TAG``, by run."""
    known = [{name: value for read in read_all for name, value, _ in read[number]} for number in range(runs)]
    short = shorten_names(list(dict.fromkeys(itertools.chain(*known))), other_columns, longest=_LONGEST_TAG)
    digits = {name: count_digits([own[name] for own in known if name in own], least=4) for name in short}
    return [{short[name]: format_value(value, digits[name]) for name, value in own.items()} for own in known]


def _list_checkpoints(entries: Sequence[ComparedRun], root: str) -> list[str] | None:
    if len(entries) != 1 or len(entries[0].checkpoints) < 2:  # noqa: PLR2004 - one is in the table
        return None
    return [describe_checkpoint(one, root) for one in entries[0].checkpoints[:_MOST_CHECKPOINTS]]


def _select_runs(
    store: RunStore, run_ids: Sequence[str], tags: Sequence[str]
) -> tuple[list[Run], list[Run], list[str]]:
    """Return the runs by id, then by tags, the newest first; those that only count for benchmarks; and notes."""
    runs = {run.run_id: run for run in store.resolve(run_ids)}
    ids = set(runs)
    if tags:
        ids.update(store.list_ids(RunQuery(tags=tags)))
        runs |= {run.run_id: run for run in store.list_runs(RunQuery(tags=tags), _MOST_EVALUATED)}
    if not runs:
        reason = f"no run has the tags {', '.join(tags)}" if tags else "name run_ids or tags"
        raise BadArgument("tags" if tags else "run_ids", f"{reason}; list_runs shows all runs.")
    selected, left_out = list(runs.values()), len(ids) - _MOST_RUNS
    further = selected[_MOST_RUNS:_MOST_EVALUATED]
    return selected[:_MOST_RUNS], further, [f"{left_out} more runs were left out."] if left_out > 0 else []


def _list_sweep_metrics(store: RunStore, runs: Sequence[Run]) -> list[str]:
    """Return by which metrics the sweeps of these runs rank."""
    found = []
    for sweep_id in dict.fromkeys(run.spec.sweep for run in runs if run.spec.sweep):
        with contextlib.suppress(SweepNotFound, RunUnreadable):
            found.append(store.sweeps.observe(sweep_id).spec.metric)
    return list(filter(None, found))


def _tabulate_benchmarks(entries: Sequence[ComparedRun], metrics: Sequence[str], *, bold: bool) -> Benchmarks:
    settings_of = merge_overrides([entry.settings for entry in entries])
    runs = [
        EvaluatedRun(
            entry.run.run_id,
            own,
            list(entry.figures.values()),
            entry.metrics,
            entry.run.state,
            entry.run.spec.created_at,
            entry.ran_in,
        )
        for entry, own in zip(entries, settings_of, strict=True)
    ]
    return build_benchmark_tables(runs, metrics, bold=bold)


def _read_run(
    store: RunStore,
    scalars: Scalars,
    metrics: Sequence[str],
    printed: Sequence[str],
    root_cwd: str,
    look_for_checkpoints: Callable[[Path], list[Checkpoint]],
    look_for_evaluations: Callable[[Path], list[tuple[Path, float]]],
    run: Run,
) -> ComparedRun:
    rundir = store.fetch_record(run)
    snapshot = read_code_snapshot(rundir, run.attempt)
    settings, code = configuration.read_configuration(run, snapshot), read_ran_code(run.run_id, run.spec.cwd, snapshot)
    if code.commit:
        settings["commit"] = code.described_commit
    if settings["cwd"].startswith("/"):  # only its end can differ
        settings["cwd"] = os.path.relpath(settings["cwd"], root_cwd)
    run_metrics = read_metrics(run, scalars, metrics, rundir)
    elapsed_s = run.elapsed_s(store.now_s(run))
    own = scalars.attribution.of(run)
    here, remark = run, ""
    if run.spec.mirror:
        here, remark = show_far_files(run, own)
    files = evaluations.find_run_evaluations(here, own, look_for_evaluations)
    saved = checkpoints.find_run_checkpoints(here, own, look_for_checkpoints)
    asked = [name for name in printed if not match_tags(name, [one.tag for one in run_metrics.metrics])]
    read = {str(name_there(one.source, run)) for one in files}  # what is uncertain for curves may be an evaluation
    uncertain = [*scalars.locate(run).uncertain, *(str(name_there(path, run)) for path in own.uncertain)]
    return ComparedRun(
        run,
        settings,
        run_metrics.metrics,
        run_metrics.step,
        elapsed_s,
        name_series(build_series([*read_printed_evaluations(run, rundir, asked), *files])),
        [replace(one, path=name_there(one.path, run)) for one in saved],
        [path for path in uncertain if path not in read],
        [*([remark] if remark else []), *(f"{run.run_id}: {doubt}" for doubt in run_metrics.doubts)],
        Place(find_directory(run.spec.command, run.spec.cwd), snapshot.python if snapshot else ""),
        code,
    )


def _is_tag(name: str, entries: Sequence[ComparedRun]) -> bool:
    """Return whether a run has a metric or figure that is called ``name`` itself, such as ``pass@1``."""
    return any(
        match_tags(name, [one.tag for one in entry.metrics]) or match_tags(name, entry.figures, held_out=True)
        for entry in entries
    )


def _describe_missing(
    metrics: Sequence[str], entries: Sequence[ComparedRun], scalars: Scalars, store: RunStore
) -> list[str]:
    notes = []
    for pattern in metrics:
        tags = [name for entry in entries for name in (*(one.tag for one in entry.metrics), *entry.figures)]
        if match_tags(pattern, tags, held_out=True):
            continue
        if pattern.lower() in EVERY_EVALUATION and any(entry.figures for entry in entries):
            continue
        for entry in entries:  # without the filter by name
            rundir = store.run_directory(entry.run.run_id)
            tags += [one.tag for one in read_metrics(entry.run, scalars, rundir=rundir).metrics]
        notes.append(explain_missing_metric(pattern, list(dict.fromkeys(tags)), "run"))
    return notes


def _is_in_files(tag: str, entries: Sequence[ComparedRun]) -> bool:
    """Return whether every run that has a scalar has the same evaluation in a result file, with its uncertainty."""
    pairs = [(entry, one) for entry in entries for one in entry.metrics if one.tag == tag]
    return bool(pairs) and all(
        any(repeats_scalar(series, one.tag, one.last, one.last_step) for series in entry.figures.values())
        for entry, one in pairs
    )


def _episodes_cell(entry: ComparedRun, figures: Sequence[str]) -> Cells:
    """Return of how many episodes the newest evaluation is, where no column counts them already."""
    counts = [entry.figures[name].last.episodes for name in figures if name in entry.figures]
    episodes = next((count for count in counts if count), None)
    return {"episodes": str(episodes)} if episodes and not any(map(is_count, figures)) else {}


def _columns(
    names: Sequence[Sequence[str]], patterns: Sequence[str], most: int, notes: list[str], what: str
) -> list[str]:
    """Return the names that become columns: those that match ``patterns``, or the main ones of most runs."""
    counts = Counter(name for one in names for name in dict.fromkeys(one))
    if patterns:
        meant = {name for pattern in patterns for name in match_tags(pattern, counts, held_out=what != "metrics")}
        matches = [name for name in counts if name in meant]
        return matches if what == "metrics" or matches else list(counts)[:most]

    ordered = sorted(counts, key=lambda name: (-counts[name], is_count(name), rank_headline(name)))
    if len(ordered) > most:
        notes.append(f"{len(ordered) - most} more {what}: name them in metrics.")
    return ordered[:most]


def _common_path(paths: Sequence[Path]) -> str:
    return os.path.commonpath(paths) if paths else ""
