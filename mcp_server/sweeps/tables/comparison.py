"""A sweep as one table: its settings ranked by the metric, seeds grouped, only what differs. 600 tokens at most."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcp_server.errors import RunwardError
from mcp_server.record.sweeps.sweep_ranking import Group, choose_best, find_best, rank_groups
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import (
    CUT_SHORT,
    LIVE,
    CellState,
    Sweep,
    describe_bad_ends,
    describe_cut_short,
)
from mcp_server.results.evaluations.benchmark_table import render_benchmark_tables, shorten_table
from mcp_server.results.evaluations.evaluation_text import render_table
from mcp_server.results.figures import ANY_COUNT, choose_goal, measure
from mcp_server.results.outcome_answers import BenchmarkTable, Comparison, SweepFacts
from mcp_server.scalars.curve_questions import parse_ranking
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.tables.columns import (
    MOST_READ,
    Columns,
    explain_missing,
    observe_cell,
    read_columns,
    read_results,
)
from mcp_server.sweeps.tables.merging import merge_sweeps
from mcp_server.sweeps.tables.settings_table import CHECKPOINT, Ranking, describe_ranking, make_rows, name_best_two
from mcp_server.sweeps.tables.trial_table import COLUMNS, choose_rows, describe_state, render_trials
from mcp_server.sweeps.trials.ledger import list_rows
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.text.formatting import join_some, shorten_facts
from mcp_server.views.brevity import fit
from mcp_server.views.sweep_status import count_kinds, describe_best, find_kind

_ROW_TOKENS, _FEWEST_ROWS, _MOST_ROWS = 225, 3, 16
_BENCHMARK_TOKENS, _TRIAL_TOKENS = 200, 600
_MOST_SHARED = 2  # notes on directories
_MOST_FAILED, _MOST_LIVE, _MOST_CHANGED = 3, 16, 4
_WHY_CHARS = 90


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


def _list_failed(sweep: Sweep, notes: list[str], *, all_of_them: bool) -> list[str]:
    if all_of_them or len(sweep.failed) <= _MOST_FAILED:
        return [describe_failed(cell) for cell in sweep.failed]
    chosen = _choose_failed(sweep.failed)
    has_each_kind = {*map(find_kind, sweep.failed)} <= {*map(find_kind, chosen)}
    named = f"{len(chosen)}, among them the newest of each kind" if has_each_kind else f"{len(chosen)}"
    notes.append(f"{len(sweep.failed)} cells failed: {count_kinds(sweep.failed)}; failed names {named}.")
    return [describe_failed(cell) for cell in chosen]


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
    facts = SweepFacts(
        sweep_id=sweep.sweep_id,
        state=sweep.state,
        reason=sweep.reason if sweep.state != "running" or not sweep.conducted else None,
        cells=sweep.count(),
        metric=sweep.spec.ranked_by,
        goal=sweep.spec.goal,
    )
    if sweep.spec.open is not None:
        return _compare_trials(sweep, facts, as_markdown=as_markdown)
    most_rows = None if as_markdown else _MOST_ROWS
    table = make_table(sweep, store, scalars, metrics, most_rows=most_rows, with_results=True, remarks=remarks)
    notes = list(table.notes)
    if not as_markdown and CHECKPOINT in table.columns and fit(_lines(table), _ROW_TOKENS, least=1) < len(table.rows):
        row = dict(zip(table.columns, table.rows[0], strict=True))
        first = f"Newest checkpoint of {row['cell']}: {table.root}/{row[CHECKPOINT]}; " if row[CHECKPOINT] else ""
        at = table.columns.index(CHECKPOINT)
        columns, *fields = ([*row[:at], *row[at + 1 :]] for row in (table.columns, *table.rows))
        table = replace(table, columns=columns, rows=fields, root="")
        notes.append(f"{first}markdown=true has the checkpoints of all.")
    rows = _lines(table)
    rows = rows[: fit(rows, _ROW_TOKENS, least=_FEWEST_ROWS)]
    left = table.total - len(rows)
    benchmarks = [table.benchmarks] if table.benchmarks else []
    if benchmarks and not as_markdown:
        benchmarks = [shorten_table(benchmarks[0], _BENCHMARK_TOKENS, notes)]
    failed = _list_failed(sweep, notes, all_of_them=as_markdown)
    notes += [f"{bad}." for bad in (describe_bad_ends(sweep), describe_cut_short(sweep)) if bad]
    best = find_best(sweep, by_mean_alone=_ignores_counts(metrics))
    if best is not None and benchmarks:
        best = replace(best, other=None)  # may be that of another benchmark
    notes += list(sweep.shared_outputs.values())[:_MOST_SHARED]
    shown_best = None if best is None else describe_best(replace(best, behind=None))  # which is in the notes
    ranked = {"metric": table.metric, "goal": table.goal if table.metric else None}
    facts = facts.model_copy(update={**ranked, "best": shown_best, "failed": failed or None})
    result = Comparison(sweep=facts, root=table.root or None, notes=notes or None)
    if as_markdown:
        lines = [*render_table(table.columns, table.rows), *render_benchmark_tables(benchmarks)]
        return result.model_copy(update={"markdown": "\n".join(lines)})
    more = f"{left} more setting{'s' if left > 1 else ''} behind these: markdown=true has all." if left else None
    shown = {"columns": "|".join(table.columns), "rows": rows, "benchmarks": benchmarks or None, "more": more}
    return result.model_copy(update=shown)


def _compare_trials(sweep: Sweep, facts: SweepFacts, *, as_markdown: bool) -> Comparison:
    """Return the trials of an open sweep: the newest ten, and as many kept ones as fit; the rest counted by verdict."""
    seen = read_trials(sweep)
    if as_markdown:
        return Comparison(sweep=facts, markdown="\n".join(render_trials(seen)))
    trials = list_rows(seen)
    names, lines = choose_rows(trials)
    shown = dict(zip(names, lines[: fit(lines, _TRIAL_TOKENS)], strict=False))
    left = Counter(row.state for row in trials if row.trial not in shown)
    counts = ", ".join(f"{number} {state}" for state, number in left.most_common())
    return Comparison(
        sweep=facts,
        columns="|".join(COLUMNS),
        rows=[shown[row.trial] for row in trials if row.trial in shown],
        more=f"{left.total()} more: {counts}; markdown=true has all." if left else None,
        notes=describe_state(seen),
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
    remarks = {each.sweep_id: read_cell_notes(store.sweeps.files_of(each)) for each in sweeps}
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

    ``with_results``: evaluations and checkpoints do, where no metrics are asked for. ``any:`` before a metric ranks
    settings by their means, however many seeds they have.
    Values of ended cells are those that the conductor has noted; those of at most 16 live ones are read now, and do
    not count.
    """
    by, cells, notes = Ranking(sweep.spec.metric, sweep.spec.ranking, sweep.spec.goal), sweep.cells, list[str]()
    by_mean_alone, metrics = (
        _ignores_counts(metrics),
        [each for text in metrics if (each := text.removeprefix(ANY_COUNT))],
    )
    if by.metric is None and metrics:
        text, *metrics = metrics
        tag, ranking = parse_ranking(text)
        by = Ranking(tag, ranking, choose_goal(tag))
        cells = _measure(cells, store, scalars, by, {"finished", *CUT_SHORT}, MOST_READ)
        notes.append(f"The sweep has no metric: ranked by {by.label}, {by.goal}.")
    elif by.metric is None:
        notes.append('The sweep has no metric: in the order of the plan. metrics=["..."] ranks.')
    if by.metric is not None:
        cells = _measure(cells, store, scalars, by, {LIVE}, _MOST_LIVE)
    groups = rank_groups(cells, by.goal, by_mean_alone=by_mean_alone)
    top_groups = groups[:most_rows]
    remarks = read_cell_notes(store.sweeps.files_of(sweep)) if remarks is None else remarks
    further = [name for name in metrics if parse_ranking(name) != (by.metric, by.ranking)]
    if further:
        columns = read_columns(top_groups, store, scalars, further, {by.metric: by.goal} if by.metric else {})
    else:
        columns = read_results(top_groups, store, scalars, by.metric) if with_results else Columns()
    notes += columns.notes
    if by.metric is not None and (uncertain := explain_missing(top_groups, store, scalars)):
        notes.append(uncertain)
    names, rows = make_rows(groups, top_groups, by, remarks, notes, columns)
    ranked = describe_ranking(groups, by, store.home.path)
    notes += _describe_code_changes(top_groups, store, compares=not (ranked.code or ranked.benchmarks))
    notes += ranked.notes
    return SweepTable(names, rows, len(groups), by.metric and by.label, by.goal, notes, columns.root, ranked.benchmarks)


def _ignores_counts(metrics: Sequence[str]) -> bool:
    return any(text.startswith(ANY_COUNT) for text in metrics)


def _describe_code_changes(groups: Sequence[Group], store: RunStore, *, compares: bool) -> list[str]:
    """Return which cells of a table ran other code than at their sweep's launch, those with the same files together.

    ``compares``: also whether those of the best two settings differ, where their kept code does not tell.
    """
    cells_of: dict[str, list[str]] = {}
    changes_of: list[set[str | None]] = [set() for _ in groups]
    placed = [(place, cell) for place, group in enumerate(groups) for cell in group.cells if cell.run_id is not None]
    for place, cell in placed[:MOST_READ]:
        run = observe_cell(cell, store)
        if run is not None and cell.state in ("finished", "timed_out"):
            changes_of[place].add(run.code_change)
        if run is not None and run.code_change:
            cells_of.setdefault(run.code_change, []).append(cell.cell.name)
    described = []
    best = choose_best(groups) if compares else None
    if best is not None and best.other is not None:
        one, other = changes_of[groups.index(best.group)], changes_of[groups.index(best.other)]
        if one and other and one != other:
            described.append(f"{name_best_two(best)} did not all run the same code, which may be the cause.")
    for change, names in cells_of.items():
        described.append(f"{join_some(names, _MOST_CHANGED)}: {change}")
    return described


def _choose_failed(failed: Sequence[CellState]) -> list[CellState]:
    """Return the newest failed cell of each kind, then the newest of all, in their order."""
    newest = {find_kind(cell): number for number, cell in enumerate(failed)}.values()
    others = [number for number in range(len(failed)) if number not in newest]
    chosen = [*sorted(newest, reverse=True), *reversed(others)][:_MOST_FAILED]
    return [failed[number] for number in sorted(chosen)]


def describe_failed(cell: CellState) -> str:
    """Return a cell that failed, and why, as one line."""
    failure = cell.end.get("failure") or {}
    why = ": ".join(filter(None, [failure.get("kind"), failure.get("line")])) or str(cell.end.get("text") or cell.state)
    return f"{cell.cell.name}: {shorten_facts(' '.join(why.split()), _WHY_CHARS)}"


def _measure(
    cells: Sequence[CellState], store: RunStore, scalars: Scalars, by: Ranking, states: set[str], most: int
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
