"""Compares runs in one table: settings that differ, progress, metrics, evaluations, checkpoints. Reads only."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.record.code_snapshot import read_code_snapshot
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.results import checkpoints, configuration, evaluations
from mcp_server.results.answers import Comparison
from mcp_server.results.checkpoints import Checkpoint
from mcp_server.results.evaluations import Evaluation, Value, render_table
from mcp_server.results.metrics import Metric, best_direction, read_metrics
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import shorten_middle

_MOST_RUNS, _MOST_DIFFERENCES, _MOST_METRICS, _MOST_EVALUATIONS = 20, 8, 6, 6
_CELL_CHARS = 36
_MINUTE_S, _HOUR_S = 60, 3600
# Headings of the value column in a table whose first column has the names.
_VALUE_HEADINGS = frozenset({"value", "result", "figure", "值", "数值", "结果"})
_FACTS = frozenset({"run", "state", "step", "time", "checkpoint"})
_MAIN = ("eval", "val", "test", "success", "reward", "return", "accuracy", "loss")

Cells = dict[str, str]


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One run of a comparison."""

    run: Run
    settings: Mapping[str, str]
    metrics: Sequence[Metric]
    figures: Mapping[str, Value]
    checkpoints: Sequence[Checkpoint]


def build_comparison(
    store: RunStore,
    scalars: Scalars,
    *,
    run_ids: Sequence[str] = (),
    tags: Sequence[str] = (),
    metrics: Sequence[str] = (),
    as_markdown: bool = False,
) -> Comparison:
    """Return the runs with these ids, and those that have all of ``tags``, as one table.

    Reads files: call it in a thread.

    Raises:
        BadArgument: no run is selected.
        RunNotFound: no run has this id; suggests similar ones.
    """
    runs, notes = _select_runs(store, run_ids, tags)
    root_cwd = _common_path([Path(run.spec.cwd) for run in runs if run.spec.cwd.startswith("/")])
    # Cached, since several runs share a directory.
    lookups = cache(checkpoints.find_checkpoints), cache(evaluations.find_evaluation_files)
    entries = [_read_run(run, store.run_directory(run.run_id), scalars, metrics, root_cwd, *lookups) for run in runs]
    differing = _differences([entry.settings for entry in entries])
    tag_columns = _columns(
        [[one.tag for one in entry.metrics] for entry in entries],
        metrics,
        _MOST_METRICS,
        notes,
        "metrics",
    )
    figures = _columns(
        [list(entry.figures) for entry in entries],
        metrics,
        _MOST_EVALUATIONS,
        notes,
        "evaluation figures",
    )
    root = _common_path([one.path.parent for entry in entries for one in entry.checkpoints[:1]])
    taken = _FACTS.union(*(entry.settings for entry in entries))
    table = [
        _facts(entry)
        | {name: _fit(entry.settings.get(name, "-")) for name in differing}
        | _metric_cells(entry, tag_columns, taken)
        | {f"eval {name}": _value(entry.figures[name]) for name in figures if name in entry.figures}
        | _checkpoint_cell(entry, root)
        for entry in entries
    ]
    names = _ordered(table)
    same = {}
    if len(entries) > 1:
        for name in names[1:]:
            values = {row.get(name, "") for row in table}
            if len(values) == 1:
                same[name] = values.pop()
    names = [name for name in names if name not in same]
    notes += [f"{run.run_id} is still {run.state}." for run in runs if not run.ended]
    rows = [[row.get(name, "") for name in names] for row in table]
    return Comparison(
        columns=None if as_markdown else "|".join(names),
        rows=None if as_markdown else ["|".join(row) for row in rows],
        markdown="\n".join(render_table(names, rows)) if as_markdown else None,
        same={name: value for name, value in same.items() if value} or None,
        root=root or None,
        notes=notes or None,
    )


def _select_runs(store: RunStore, run_ids: Sequence[str], tags: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs with these ids in this order, then those with these tags, newest first."""
    runs = {run.run_id: run for run in store.resolve(run_ids)}
    if tags:
        runs |= {run.run_id: run for run in store.list_runs() if set(tags) <= set(run.spec.tags)}
    if not runs:
        reason = f"no run has the tags {', '.join(tags)}" if tags else "name run_ids or tags"
        raise BadArgument("tags" if tags else "run_ids", f"{reason}; list_runs shows all runs.")
    left_out = len(runs) - _MOST_RUNS
    return list(runs.values())[:_MOST_RUNS], [f"{left_out} more runs were left out."] if left_out > 0 else []


def _read_run(
    run: Run,
    rundir: RunDir,
    scalars: Scalars,
    metrics: Sequence[str],
    root_cwd: str,
    look_for_checkpoints: Callable[[Path], list[Checkpoint]],
    look_for_evaluations: Callable[[Path], list[tuple[Path, float]]],
) -> ComparedRun:
    settings = configuration.read_configuration(run, read_code_snapshot(rundir, run.attempt))
    if settings["cwd"].startswith("/"):  # only its end can differ
        settings["cwd"] = os.path.relpath(settings["cwd"], root_cwd)
    return ComparedRun(
        run,
        settings,
        read_metrics(run, scalars, metrics, rundir).metrics,
        _figures(evaluations.find_run_evaluations(run, look=look_for_evaluations)),
        checkpoints.find_run_checkpoints(run, look=look_for_checkpoints),
    )


def _differences(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose values differ, those with the most values first."""
    names = dict.fromkeys(name for one in settings for name in one)
    values = {name: {one.get(name, "") for one in settings} for name in names}
    differ = [name for name in names if len(values[name]) > 1]
    return sorted(differ, key=lambda name: -len(values[name]))[:_MOST_DIFFERENCES]


def _figures(results: Sequence[Evaluation]) -> dict[str, Value]:
    """Return the numbers of the newest evaluations by name, with the label of the row where there are several."""
    figures: dict[str, Value] = {}
    for one in results:
        for number, row in enumerate(one.rows):
            label = next((f"{value}." for value in row.values() if isinstance(value, str)), "")
            label = label or f"{number + 1}."
            for name, value in row.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    named = label.removesuffix(".") if set(row) - {name} and name.lower() in _VALUE_HEADINGS else ""
                    figures.setdefault(named or f"{label if len(one.rows) > 1 else ''}{name}", value)
    return figures


def _columns(
    names: Sequence[Sequence[str]], patterns: Sequence[str], most: int, notes: list[str], what: str
) -> list[str]:
    """Return the names that become columns: those that match ``patterns``, or the main ones of most runs."""
    counts = Counter(name for one in names for name in dict.fromkeys(one))
    if patterns:
        matches = [name for name in counts if any(_matches(pattern, name) for pattern in patterns)]
        return matches if what == "metrics" or matches else list(counts)[:most]

    def rank(name: str) -> tuple[int, bool, int]:
        lower = name.lower()
        importance = next((number for number, word in enumerate(_MAIN) if word in lower), len(_MAIN))
        return -counts[name], best_direction(name) is None, importance

    ordered = sorted(counts, key=rank)
    if len(ordered) > most:
        notes.append(f"{len(ordered) - most} more {what}: name them in metrics.")
    return ordered[:most]


def _matches(pattern: str, name: str) -> bool:
    lower = name.lower()
    last = {lower.rpartition("/")[2], lower.rpartition(".")[2]}
    return fnmatch.fnmatchcase(lower, pattern.lower()) or pattern.lower() in last


def _facts(entry: ComparedRun) -> Cells:
    run = entry.run
    seconds = run.elapsed_s(time.time())
    step = max((one.last_step for one in entry.metrics if one.last_step is not None), default=run.progress.get("step"))
    return {
        "run": run.run_id,
        "state": run.state + (f" ({run.failure.get('kind')})" if run.failure and run.ended else ""),
        "step": "" if step is None else str(step),
        "time": "" if seconds is None else _elapsed(seconds),
    }


def _elapsed(seconds: float) -> str:
    """Return a duration that takes little room in a table: ``97s``, ``62min``, ``2.5h``."""
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f}s"
    return f"{seconds / _MINUTE_S:.0f}min" if seconds < 2 * _HOUR_S else f"{seconds / _HOUR_S:.1f}h"


def _metric_cells(entry: ComparedRun, tags: Sequence[str], taken: Collection[str]) -> Cells:
    cells = {}
    for one in entry.metrics:
        if one.tag in tags:
            last = _value(one.last)
            best = "" if one.best is None else _value(one.best)
            name = f"{one.tag} last/{one.best_is}" if one.best_is else one.tag
            name = f"{name} last" if name in taken else name  # a setting, such as `lr`, is logged as well
            cells[name] = f"{last}/{best}" if best not in ("", last) else last
    return cells


def _value(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else _fit("" if value is None else str(value))


def _common_path(paths: Sequence[Path]) -> str:
    return os.path.commonpath(paths) if paths else ""


def _checkpoint_cell(entry: ComparedRun, root: str) -> Cells:
    """Return the newest checkpoint and the number of others."""
    if not entry.checkpoints:
        return {}
    one, more = entry.checkpoints[0], len(entry.checkpoints) - 1
    path = os.path.relpath(one.path, root)
    step = "" if one.step is None or re.search(rf"(?<!\d)0*{one.step}(?!\d)", path) else f" step {one.step}"
    size = one.size.replace(" ", "")
    return {"checkpoint": f"{path}{step} {size}{f' +{more}' if more else ''}"}


def _ordered(table: Sequence[Cells]) -> list[str]:
    """Return the columns in order, the checkpoint last."""
    names = dict.fromkeys(name for row in table for name in row if any(other.get(name) for other in table))
    return sorted(names, key=lambda name: name == "checkpoint")


def _fit(text: str) -> str:
    text = " ".join(text.split()).replace("|", "¦")
    return shorten_middle(text, _CELL_CHARS, head=_CELL_CHARS // 2)
