"""A sweep as one table: its settings ranked by the metric, seeds grouped, only what differs. 600 tokens at most."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcp_server.errors import RunwardError
from mcp_server.record.sweep_ranking import (
    Group,
    average,
    describe_test,
    find_best,
    find_differing,
    is_changed,
    rank_groups,
)
from mcp_server.record.sweep_state import CUT_SHORT, LIVE, WAITING, CellState, Sweep
from mcp_server.results.answers import BenchmarkTable, Comparison, SweepFacts
from mcp_server.results.benchmark_table import render_benchmark_tables, shorten_table
from mcp_server.results.comparison_cells import fit as fit_cell
from mcp_server.results.comparison_cells import shorten_names
from mcp_server.results.evaluation_text import render_table
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.cell_notes import read_notes
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.benchmarks import build_benchmarks
from mcp_server.sweeps.benchmarks import describe_best as describe_best_by
from mcp_server.sweeps.columns import MOST_READ, Columns, explain_missing, observe_cell, read_columns, read_results
from mcp_server.sweeps.figures import RANKINGS, choose_goal, measure, parse_metric
from mcp_server.sweeps.merging import merge_sweeps
from mcp_server.text.formatting import count_digits, plain_value, shorten_facts, spread
from mcp_server.views.brevity import fit
from mcp_server.views.sweep_status import describe_best

_ROW_TOKENS, _FEWEST_ROWS, _MOST_ROWS = 265, 3, 16
_BENCHMARK_TOKENS = 200
_MOST_SETTINGS, _MOST_FAILED, _MOST_LIVE, _MOST_CHANGED = 8, 3, 16, 4
_WHY_CHARS, _NOTE_CHARS = 90, 60
_FACTS = (
    "phase",
    "n",
    *(f"{ranking}@step" for ranking in RANKINGS),
    "step",
    "cell",
    "tries",
    "state",
    "note",
    "checkpoint",
)
_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Ranking:
    """Which value of which metric ranks, and whether more or less of it is better."""

    metric: str | None
    ranking: str
    goal: str

    @property
    def label(self) -> str:
        """The metric as tables name it, e.g. ``loss (last)``."""
        return f"{self.metric} ({self.ranking})"


@dataclass(frozen=True)
class SweepTable:
    """The settings of a sweep, the best first. ``total``: how many there are, of which ``rows`` holds the first.

    ``root``: the directory of their checkpoints. ``benchmarks``: the same by benchmark, where a parameter names it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int
    metric: str | None
    goal: str
    notes: Sequence[str]
    root: str = ""
    benchmarks: BenchmarkTable | None = None

    def without(self, column: str) -> SweepTable:
        """Return the table without a column."""
        kept = [number for number, name in enumerate(self.columns) if name != column]
        rows = [[row[number] for number in kept] for row in self.rows]
        return replace(self, columns=[self.columns[number] for number in kept], rows=rows)


def compare_sweep(
    sweep: Sweep,
    store: RunStore,
    scalars: Scalars,
    metrics: Sequence[str] = (),
    *,
    as_markdown: bool = False,
    remarks: Mapping[str, str] | None = None,
) -> Comparison:
    """Return the comparison of a sweep's settings. Without ``as_markdown`` its best rows, as far as they fit.

    ``remarks``: notes on cells, of a sweep that is made of several. Reads files: call it in a thread.
    """
    most_rows = None if as_markdown else _MOST_ROWS
    table = make_table(sweep, store, scalars, metrics, most_rows=most_rows, with_results=True, remarks=remarks)
    notes = list(table.notes)
    if not as_markdown and _CHECKPOINT in table.columns and fit(_lines(table), _ROW_TOKENS, least=1) < len(table.rows):
        row = dict(zip(table.columns, table.rows[0], strict=True))
        first = f"Newest checkpoint of {row['cell']}: {table.root}/{row[_CHECKPOINT]}; " if row[_CHECKPOINT] else ""
        table = replace(table.without(_CHECKPOINT), root="")
        notes.append(f"{first}markdown=true has the checkpoints of all.")
    rows = _lines(table)
    rows = rows[: fit(rows, _ROW_TOKENS, least=_FEWEST_ROWS)]
    left = 0 if as_markdown else table.total - len(rows)
    benchmarks = [table.benchmarks] if table.benchmarks else []
    if benchmarks and not as_markdown:
        benchmarks = [shorten_table(benchmarks[0], _BENCHMARK_TOKENS, notes)]
    failed = [describe_failed(cell) for cell in sweep.failed]
    if len(failed) > _MOST_FAILED and not as_markdown:
        notes.append(f"{len(failed)} cells failed: {_count_kinds(sweep.failed)}; the newest are in failed.")
        failed = failed[-_MOST_FAILED:]
    best = find_best(sweep)
    if best is not None and benchmarks:
        best = replace(best, other=None)  # may be that of another benchmark
    facts = SweepFacts(
        sweep_id=sweep.sweep_id,
        state=sweep.state,
        reason=sweep.reason if sweep.state != "running" or not sweep.conducted else None,
        cells=sweep.count(),
        metric=table.metric,
        goal=table.goal if table.metric else None,
        best=None if best is None else describe_best(best),
        failed=failed or None,
    )
    return Comparison(
        sweep=facts,
        columns=None if as_markdown else "|".join(table.columns),
        rows=None if as_markdown else rows,
        markdown="\n".join([*render_table(table.columns, table.rows), *render_benchmark_tables(benchmarks)])
        if as_markdown
        else None,
        benchmarks=None if as_markdown else benchmarks or None,
        root=table.root or None,
        more=f"{left} more settings that rank behind these: markdown=true has all." if left else None,
        notes=notes or None,
    )


def compare_sweeps(
    sweeps: Sequence[Sweep],
    store: RunStore,
    scalars: Scalars,
    metrics: Sequence[str] = (),
    *,
    as_markdown: bool = False,
) -> Comparison:
    """Return the comparison of the settings of several sweeps, with seeds grouped over them, or that of a single one.

    Reads files: call it in a thread.

    Raises:
        BadArgument: they rank by different figures.
    """
    if len(sweeps) == 1:
        return compare_sweep(sweeps[0], store, scalars, metrics, as_markdown=as_markdown)
    merged = merge_sweeps(sweeps)
    remarks = {each.sweep_id: read_notes(store.sweeps.files_of(each)) for each in sweeps}
    own = {name: remarks[each.sweep_id].get(cell, "") for name, (each, cell) in merged.sources.items()}
    known = {name: text for name, text in own.items() if text}
    result = compare_sweep(merged.sweep, store, scalars, metrics, as_markdown=as_markdown, remarks=known)
    return result.model_copy(update={"notes": [*merged.notes, *(result.notes or ())] or None})


def _lines(table: SweepTable) -> list[str]:
    return ["|".join(row) for row in table.rows]


def make_table(
    sweep: Sweep,
    store: RunStore,
    scalars: Scalars,
    metrics: Sequence[str] = (),
    *,
    most_rows: int | None = None,
    with_results: bool = False,
    remarks: Mapping[str, str] | None = None,
) -> SweepTable:
    """Return the settings of a sweep as a table. ``metrics`` become columns. Reads files: call it in a thread.

    ``with_results``: evaluations and checkpoints do, where no metrics are asked for.
    Values of ended cells are those that the conductor has noted; those of at most 16 live ones are read now, and do
    not count.
    """
    by, cells, notes = Ranking(sweep.spec.metric, sweep.spec.ranking, sweep.spec.goal), sweep.cells, list[str]()
    if by.metric is None and metrics:
        text, *metrics = metrics
        tag, ranking = parse_metric(text)
        by = Ranking(tag, ranking, choose_goal(tag, None))
        cells = _measure(cells, store, scalars, by, {"finished", *CUT_SHORT}, MOST_READ)
        notes.append(f"The sweep has no metric: ranked by {by.label}, {by.goal}.")
    elif by.metric is None:
        notes.append('The sweep has no metric: in the order of the plan. metrics=["..."] ranks.')
    if by.metric is not None:
        cells = _measure(cells, store, scalars, by, {LIVE}, _MOST_LIVE)
    groups = rank_groups(cells, by.goal)
    top_groups = groups[:most_rows]
    remarks = read_notes(store.sweeps.files_of(sweep)) if remarks is None else remarks
    further = [name for name in metrics if parse_metric(name) != (by.metric, by.ranking)]
    if further:
        columns = read_columns(top_groups, store, scalars, further, {by.metric: by.goal} if by.metric else {})
    else:
        columns = read_results(top_groups, store, scalars, by.metric) if with_results else Columns()
    notes += columns.notes
    if by.metric is not None and (uncertain := explain_missing(top_groups, store, scalars)):
        notes.append(uncertain)
    names, rows = _make_rows(sweep, groups, top_groups, by, columns, remarks, notes)
    notes += _describe_code_changes(top_groups, store)
    if (behind := _find_better_with_fewer(groups, by.goal)) is not None:
        notes.append(f"{behind.label} is better with fewer seeds, and ranks behind.")
    found = None if by.metric is None else build_benchmarks(groups, by.label)
    if found is not None:
        notes.append(describe_best_by(groups, found[1]))
    elif by.metric is not None and (test := describe_test(groups)):
        notes.append(test)
    return SweepTable(
        names, rows, len(groups), by.metric and by.label, by.goal, notes, columns.root, found and found[0]
    )


def _describe_code_changes(groups: Sequence[Group], store: RunStore) -> list[str]:
    """Return which cells of a table ran other code than at their sweep's launch, those with the same files together."""
    cells_of: dict[str, list[str]] = {}
    for cell in [cell for group in groups for cell in group.cells if cell.run_id is not None][:MOST_READ]:
        run = observe_cell(cell, store)
        if run is not None and run.code_change:
            cells_of.setdefault(run.code_change, []).append(cell.cell.name)
    described = []
    for change, names in cells_of.items():
        more = f" and {len(names) - _MOST_CHANGED} more" if len(names) > _MOST_CHANGED else ""
        described.append(f"{', '.join(names[:_MOST_CHANGED])}{more}: {change}")
    return described


def _make_rows(
    sweep: Sweep,
    groups: Sequence[Group],
    shown: Sequence[Group],
    by: Ranking,
    columns: Columns,
    remarks: Mapping[str, str],
    notes: list[str],
) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns that are not empty, and the rows of the ``shown`` groups."""
    settings = find_differing(groups)
    if len(settings) > _MOST_SETTINGS:
        notes.append(f"More settings differ: {', '.join(settings[_MOST_SETTINGS:][:_MOST_SETTINGS])}.")
        settings = settings[:_MOST_SETTINGS]
    short = {name: f"{end} set" if end in _FACTS else end for name, end in shorten_names(settings, _FACTS).items()}
    has_seeds = any(len(group.cells) > 1 for group in groups)
    has_phases = len(sweep.spec.phases) > 1
    digits = count_digits([cell.value for group in shown for cell in group.results if cell.value is not None], least=4)
    rows = []
    for group in shown:
        row = {"phase": group.first.cell.phase} if has_phases else {}
        row |= {short[name]: _setting(group, name) for name in settings}
        if by.metric is not None and has_seeds:
            row |= {f"{by.label} mean±sd": spread(group.mean, group.deviation, digits), "n": str(len(group.results))}
            row[f"{by.ranking}@step"] = _value(group.results[0], digits) if group.results else ""
        elif by.metric is not None:
            row[f"{by.label}@step"] = _value(group.results[0], digits) if group.results else ""
        else:
            row["step"] = str(group.first.end.get("step", ""))
        if by.ranking != "best" and by.metric is not None:
            row |= {"best mean±sd": _best(group)} if has_seeds else {"best@step": _best(group)}
        row |= columns.describe(group)
        row |= {
            "cell": group.first.cell.name,
            "tries": _describe_tries(group),
            "state": _describe_states(group, by.metric),
            "note": _join_notes(group, remarks),
            _CHECKPOINT: columns.checkpoints.get(group.first.cell.name, ""),
        }
        rows.append(row)
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    return names, [[row[name] for name in names] for row in rows]


def _find_better_with_fewer(groups: Sequence[Group], goal: str) -> Group | None:
    """Return the best setting that ranks behind the first one for its fewer seeds alone."""
    sign = 1 if goal == "max" else -1
    first = sign * (groups[0].mean or 0.0) if groups and groups[0].mean is not None else math.inf
    others = [group for group in groups[1:] if group.forms != groups[0].forms]  # else it is promoted from there
    better = [group for group in others if group.mean is not None and sign * group.mean > first]
    return max(better, key=lambda group: sign * (group.mean or 0.0), default=None)


def _setting(group: Group, name: str) -> str:
    cell, value = group.cells[0], group.settings.get(name)
    return fit_cell(f"{cell.planned(name)}→{value}" if is_changed(cell, name) else plain_value(value))


def _value(cell: CellState, digits: int = 4) -> str:
    return (
        ""
        if cell.value is None
        else f"{cell.value:.{digits}g}{'' if cell.value_step is None else f'@{cell.value_step}'}"
    )


def _best(group: Group) -> str:
    """Return the best value over all steps: the mean of those of its results, or of a single one with its step."""
    known = [best for cell in group.results if (best := cell.figures.get("best"))]
    if len(known) != 1:
        return spread(*average([value for value, _ in known]))
    ((value, step),) = known
    return f"{value:.4g}{'' if step is None else f'@{step}'}"


def _describe_tries(group: Group) -> str:
    """Return how attempts ended before a retry: ``2 oom_gpu``."""
    kinds = Counter(kind for cell in group.cells for kind in cell.end.get("tries") or ())
    kinds.update(
        _kind(cell) or "failed" for cell in group.cells for _ in range(cell.failures - (cell.state == "failed"))
    )
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _describe_states(group: Group, metric: str | None) -> str:
    """Return what is no result: ``1 failed oom_gpu, 1 running 12.3@500``; of a cell alone without the number."""
    states: dict[str, list[str]] = {}
    whole = {cell.cell.name for cell in group.results}
    for cell in group.cells:
        if cell.state == "finished" and cell.cell.name in whole:
            continue
        state = {LIVE: "running", WAITING: "queued"}.get(cell.state, cell.state)
        if metric is not None and state == "finished":
            state = "finished" if cell.bad_end else "finished without value"
        detail = _value(cell) if cell.state in (LIVE, *CUT_SHORT) else _kind(cell)
        if cell.bad_end:
            detail = f"{cell.bad_end}{'' if cell.value_step is None else f'@{cell.value_step}'}"
        elif why := cell.end.get("why"):
            detail = str(why)
        states.setdefault(state, []).append(detail)
    parts = []
    for state, details in states.items():
        known = "/".join(filter(None, dict.fromkeys(details)))
        parts.append(f"{len(details)} {state} {known}" if len(group.cells) > 1 else f"{state} {known}")
    return ", ".join(part.strip() for part in parts)


def _kind(cell: CellState) -> str:
    return str((cell.end.get("failure") or {}).get("kind") or "") if cell.state == "failed" else ""


def _join_notes(group: Group, remarks: Mapping[str, str]) -> str:
    own = {cell.cell.name: remarks[cell.cell.name] for cell in group.cells if cell.cell.name in remarks}
    if len(group.cells) == 1:
        return shorten_facts(" ".join(own.values()), _NOTE_CHARS).replace("|", "¦")
    return shorten_facts("; ".join(f"{name}: {text}" for name, text in own.items()), _NOTE_CHARS).replace("|", "¦")


def describe_failed(cell: CellState) -> str:
    """Return a cell that failed, and why, as one line."""
    failure = cell.end.get("failure") or {}
    why = ": ".join(filter(None, [failure.get("kind"), failure.get("line")])) or str(cell.end.get("text") or cell.state)
    return f"{cell.cell.name}: {shorten_facts(' '.join(why.split()), _WHY_CHARS)}"


def _count_kinds(failed: Sequence[CellState]) -> str:
    kinds = Counter(str((cell.end.get("failure") or {}).get("kind") or cell.state) for cell in failed)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))


def _measure(
    cells: Sequence[CellState],
    store: RunStore,
    scalars: Scalars,
    by: Ranking,
    states: set[str],
    most: int,
) -> tuple[CellState, ...]:
    """Return the cells, those in ``states`` with the value that their run has now; at most ``most`` are read."""
    measured = []
    for cell in cells:
        run = observe_cell(cell, store) if cell.state in states and most > 0 else None
        if run is not None:
            most -= 1
            with contextlib.suppress(RunwardError, OSError):
                figure = measure(run, store, scalars, by.metric, by.goal, by.ranking)
                bad_end = figure.bad_end if run.ended else None
                cell = replace(cell, value=figure.value, value_step=figure.step, bad_end=bad_end)  # noqa: PLW2901
                measured.append(replace(cell, figures=figure.figures))
                continue
        measured.append(cell)
    return tuple(measured)
