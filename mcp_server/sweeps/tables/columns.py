"""Columns of a sweep's table beside its ranked metric: other metrics, evaluations, checkpoints. Reads files."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from mcp_server.errors import RunwardError
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import Group, average
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.results import checkpoints
from mcp_server.results.comparison_cells import describe_checkpoint, evaluation_column
from mcp_server.results.figures import explain_missing_metric, measure_evaluations, read_values
from mcp_server.results.metrics import read_metrics
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.tag_names import best_direction, match_tags
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import spread

MOST_READ = 100  # runs whose files are read for one answer
_MOST_METRICS, _MOST_EVALUATIONS = 6, 2
_CELLS_EXPLAINED = 8
_CELLS_WITH_TAGS = 3  # whose metrics are listed to explain a name that none has


@dataclass
class Columns:
    """Values by column, then by cell. ``notes``: what is missing. ``checkpoints``: the newest by cell, below ``root``.

    A column at a step has the values of all cells that have reached it, others those of whole trainings.
    """

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    at_step: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    checkpoints: dict[str, str] = field(default_factory=dict)
    root: str = ""

    def describe(self, group: Group) -> dict[str, str]:
        """Return the cells of a group's row, with the number of values where it is not that of the group's results."""
        cells = {}
        for name, known in self.values.items():
            members = group.cells if name in self.at_step else list_whole(group)
            values = [known[cell.cell.name] for cell in members if cell.cell.name in known]
            count = "" if len(values) in (0, len(list_whole(group))) else f" (n {len(values)})"
            cells[name] = spread(*average(values)) + count
        return cells


def list_whole(group: Group) -> Sequence[CellState]:
    """Return the cells of a group that count: its results, without any of the metric those that have finished."""
    return group.results or [cell for cell in group.cells if cell.state == "finished"]


def observe_cell(cell: CellState, store: RunStore) -> Run | None:
    """Return the newest run of a cell, None where there is none, or it cannot be read."""
    with contextlib.suppress(RunwardError):
        return store.observe(cell.run_id) if cell.run_id is not None else None
    return None


def read_columns(
    groups: Sequence[Group], store: RunStore, scalars: Scalars, metrics: Sequence[str], goals: Mapping[str, str]
) -> Columns:
    """Return the columns for ``metrics``: ``TAG``, ``best:TAG``, ``mean10%:TAG``, or ``TAG@300``, the value at a step.

    ``goals``: of metrics for which somebody has said it; else it follows from the name.
    A tag that has an @ of its own, such as ``pass@1``, is meant where a run has it.
    """
    columns = Columns()
    whole = {cell.cell.name for group in groups for cell in list_whole(group)}
    cells = [cell for group in groups for cell in group.cells if cell.runs]
    cells.sort(key=lambda cell: cell.cell.name not in whole)
    if len(cells) > MOST_READ:
        columns.notes.append(f"Further metrics are those of {MOST_READ} of {len(cells)} cells.")
    found = set()
    for cell in cells[:MOST_READ]:
        if (run := observe_cell(cell, store)) is None:
            continue
        for name in metrics:
            for column, value, is_at_step in read_values(run, store, scalars, name, goals):
                found.add(name)
                if is_at_step or cell.cell.name in whole:
                    columns.values.setdefault(column, {})[cell.cell.name] = value
                columns.at_step |= {column} if is_at_step else set()
    if missing := [name for name in metrics if name not in found]:
        tags = list(dict.fromkeys(_list_tags(cells, store, scalars)))
        columns.notes += [explain_missing_metric(name, tags, "cell") for name in missing]
    if len(columns.values) > _MOST_METRICS:
        columns.notes.append(f"{len(columns.values) - _MOST_METRICS} more metrics match.")
        columns.values = dict(list(columns.values.items())[:_MOST_METRICS])
    return columns


def _list_tags(cells: Sequence[CellState], store: RunStore, scalars: Scalars) -> Iterator[str]:
    for cell in cells[:_CELLS_WITH_TAGS]:
        if (run := observe_cell(cell, store)) is not None:
            yield from (one.tag for one in read_metrics(run, scalars, (), store.run_directory(run.run_id)).metrics)
            yield from measure_evaluations(run, store, scalars)


def read_results(groups: Sequence[Group], store: RunStore, scalars: Scalars, metric: str | None) -> Columns:
    """Return the two main figures of the evaluations of whole trainings, and the newest checkpoint of each best cell.

    Those of ``metric`` are left out. Runs of other hosts have their files there.
    """
    columns, look = Columns(), cache(checkpoints.find_checkpoints)
    saved = {}
    left = MOST_READ
    for group in groups:
        for cell in list_whole(group)[:left]:
            if (run := observe_cell(cell, store)) is None or run.spec.mirror:
                continue
            with contextlib.suppress(RunwardError, OSError):
                for name, value in measure_evaluations(run, store, scalars).items():
                    columns.values.setdefault(evaluation_column(name), {})[cell.cell.name] = value
                own = checkpoints.find_run_checkpoints(run, scalars.attribution.of(run), look)
                saved.update({cell.cell.name: own} if own and cell is group.first else {})
        left -= len(list_whole(group)[:left])
    counts = Counter({name: len(known) for name, known in columns.values.items()})
    named = [name for name, _ in counts.most_common() if best_direction(name) and not _is_same(name, metric)]
    columns.values = {name: columns.values[name] for name in named[:_MOST_EVALUATIONS]}
    parents = [str(own[0].path.parent) for own in saved.values()]
    columns.root = os.path.commonpath(parents) if parents else ""
    for cell_name, own in saved.items():
        more = f" +{len(own) - 1}" if len(own) > 1 else ""
        columns.checkpoints[cell_name] = describe_checkpoint(own[0], columns.root) + more
    return columns


def explain_missing(groups: Sequence[Group], store: RunStore, scalars: Scalars) -> str:
    """Return which files may be other runs' of cells that finished without a value, empty where there are none."""
    cells = [cell for group in groups for cell in group.cells if cell.state == "finished" and cell.value is None]
    runs = [run for cell in cells[:_CELLS_EXPLAINED] if (run := observe_cell(cell, store)) is not None]
    return describe_uncertain([path for run in runs for path in scalars.locate(run).uncertain]) or ""


def _is_same(column: str, metric: str | None) -> bool:
    return metric is not None and bool(match_tags(metric, [column, column.removeprefix("eval ")]))
