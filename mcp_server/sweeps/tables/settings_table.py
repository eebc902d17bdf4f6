"""The table of a sweep's settings, ranked, and what stands beside it, made from the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.record.attempt_params import count_ends
from mcp_server.record.sweeps import sweep_ranking
from mcp_server.record.sweeps.sweep_state import CUT_SHORT, LIVE, WAITING, CellState
from mcp_server.results.code_differences import describe_other_code
from mcp_server.results.comparison_cells import fit as fit_cell
from mcp_server.results.comparison_cells import shorten_names
from mcp_server.results.evaluations.benchmark_table import (
    SPREAD_NOTE,
    Benchmarks,
    EvaluatedRun,
    build_benchmark_tables,
    find_benchmark,
)
from mcp_server.results.evaluations.evaluation_series import EvaluationPoint, EvaluationSeries
from mcp_server.results.figures import ANY_COUNT, RANKINGS
from mcp_server.results.outcome_answers import BenchmarkTable
from mcp_server.sweeps.plan.cell_code import read_cell_code
from mcp_server.sweeps.plan.plan import find_seeds
from mcp_server.text.formatting import count_digits, join_some, plain_value, shorten_facts, spread

if TYPE_CHECKING:
    from mcp_server.sweeps.tables.columns import Columns

CHECKPOINT = "checkpoint"
_MOST_SETTINGS, _MOST_BENCHMARKS, _NOTE_CHARS = 8, 4, 60
_MOST_SEEDS = 10  # of a setting whose code is read
_FACTS = ("phase", "n", "step", "cell", "retries", "state", "note", CHECKPOINT, *(f"{each}@step" for each in RANKINGS))


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
class RankingNotes:
    """Facts for a reader of a ranking. ``benchmarks``: the settings by benchmark, where a parameter names it.

    ``code``: where the code of the best two is known to differ.
    """

    notes: Sequence[str]
    benchmarks: BenchmarkTable | None = None
    code: str = ""


def describe_ranking(groups: Sequence[sweep_ranking.Group], by: Ranking, home: Path) -> RankingNotes:
    """Return which setting is better with fewer seeds, and the test of the best two; of benchmarks the best of each.

    A difference in code of the best two stands beside their test. Reads files of the state below ``home``.
    """
    behind = sweep_ranking.find_better_with_fewer(groups, by.goal)
    notes = []
    if behind is not None:
        notes.append(f'{sweep_ranking.describe_behind(behind, groups[0])}: metrics=["{ANY_COUNT}"] ranks it first.')
    found = None if by.metric is None else _build_benchmarks(groups, by)
    if found is not None:
        tables, name = found
        notes += [_describe_best_by(groups, name), *(note for note in tables.notes if note != SPREAD_NOTE)]
        return RankingNotes(notes, tables.tables[0] if tables.tables else None)
    code = "" if by.metric is None else _describe_code(groups, home)
    test = "" if by.metric is None else " ".join(filter(None, [sweep_ranking.describe_test(groups), code]))
    return RankingNotes([*notes, test] if test else notes, code=code)


def _build_benchmarks(groups: Sequence[sweep_ranking.Group], by: Ranking) -> tuple[Benchmarks, str] | None:
    """Return the settings by benchmark, and the parameter that names it; None where none does, or one has no value."""
    known = [group for group in groups if group.mean is not None]
    name = find_benchmark([group.settings for group in known])
    if name is None:
        return None
    has_phases = len({group.first.cell.phase for group in known}) > 1
    runs = []
    for group in known:
        phase = {"phase": group.first.cell.phase} if has_phases else {}
        settings = {**phase, **{each: text for each in group.settings if (text := group.show(each)) != "-"}}
        for cell in group.results:
            seeds = {each: plain_value(value) for each, value in cell.settings.items() if each not in group.settings}
            value = EvaluationPoint(cell.value if cell.value is not None else math.nan)
            series = EvaluationSeries(by.label, (value,), goal="max" if by.goal == "max" else "min")
            runs.append(EvaluatedRun(cell.cell.name, {**settings, **seeds, **find_seeds(cell.cell)}, [series]))
    return build_benchmark_tables(runs), name


def _describe_best_by(groups: Sequence[sweep_ranking.Group], name: str) -> str:
    best: dict[str, str] = {}
    for group in groups:
        if group.mean is not None:
            best.setdefault(plain_value(group.settings.get(name)), f"{group.label} {group.text}")
    shown = "; ".join(f"{benchmark}: {text}" for benchmark, text in list(best.items())[:_MOST_BENCHMARKS])
    more = f"; {len(best) - _MOST_BENCHMARKS} more" if len(best) > _MOST_BENCHMARKS else ""
    return f"{name} is the benchmark: only within one are settings comparable, and best is of all. {shown}{more}."


def _describe_code(groups: Sequence[sweep_ranking.Group], home: Path) -> str:
    """Return in which files the code of the best two settings differs, as far as it was kept; empty where unknown."""
    best = sweep_ranking.choose_best(groups)
    if best is None or best.other is None:
        return ""
    cells = [cell for group in (best.group, best.other) for cell in group.results[:_MOST_SEEDS]]
    other = describe_other_code([read_cell_code(cell, cell.run_id, home) for cell in cells])
    if other:
        return f"{name_best_two(best)} did not all run the same code ({other}), which may be the cause."
    apart = [group.label for group in groups if group.codes and best.group.codes and group.codes != best.group.codes]
    return f"Their code is not that of the best: {join_some(apart, _MOST_BENCHMARKS)}." if apart else ""


def name_best_two(best: sweep_ranking.Best) -> str:
    """Return the cells that a test compares, as the subject of a sentence."""
    return f"The cells of the best{f' and of {best.other.label}' if best.other is not None else ''}"


def make_rows(
    groups: Sequence[sweep_ranking.Group],
    shown: Sequence[sweep_ranking.Group],
    by: Ranking,
    remarks: Mapping[str, str],
    notes: list[str],
    columns: Columns | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns that are not empty, and the rows of the ``shown`` groups."""
    settings = sweep_ranking.find_differing(groups)
    if len(settings) > _MOST_SETTINGS:
        notes.append(f"More settings differ: {join_some(settings[_MOST_SETTINGS:], _MOST_SETTINGS)}.")
        settings = settings[:_MOST_SETTINGS]
    short = {name: f"{end} set" if end in _FACTS else end for name, end in shorten_names(settings, _FACTS).items()}
    has_seeds = any(len(group.cells) > 1 for group in groups)
    has_phases = len({cell.cell.phase for group in groups for cell in group.cells}) > 1
    digits = count_digits([cell.value for group in shown for cell in group.results if cell.value is not None], least=4)
    rows = []
    for group in shown:
        row = {"phase": group.first.cell.phase} if has_phases else {}
        row |= {short[name]: fit_cell(group.show(name)) for name in settings}
        if by.metric is not None and has_seeds:
            row |= {f"{by.label} mean±sd": spread(group.mean, group.deviation, digits), "n": str(len(group.results))}
            row[f"{by.ranking}@step"] = _value(group.results[0], digits) if group.results else ""
        elif by.metric is not None:
            row[f"{by.label}@step"] = _value(group.results[0], digits) if group.results else ""
        else:
            row["step"] = str(group.first.end.get("step", ""))
        further = columns.describe(group) if columns else {}
        is_asked = has_seeds and f"{by.metric} best" in further  # without seeds the step stands beside it
        if by.ranking != "best" and by.metric is not None and not is_asked:
            row |= {"best mean±sd": _best(group)} if has_seeds else {"best@step": _best(group)}
        row |= {f"{name} mean±sd" if has_seeds else name: text for name, text in further.items()}
        row |= {
            "cell": group.first.cell.name,
            "retries": count_ends(kind for cell in group.cells for kind in cell.tries),
            "state": describe_states(group, by.metric),
            "note": _join_notes(group, remarks),
            CHECKPOINT: columns.checkpoints.get(group.first.cell.name, "") if columns else "",
        }
        rows.append(row)
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    return names, [[row[name] for name in names] for row in rows]


def _value(cell: CellState, digits: int = 4) -> str:
    at = "" if cell.value_step is None else f"@{cell.value_step}"
    return "" if cell.value is None else f"{cell.value:.{digits}g}{at}"


def _best(group: sweep_ranking.Group) -> str:
    known = [best for cell in group.results if (best := cell.figures.get("best"))]
    if len(known) != 1:
        return spread(*sweep_ranking.average([value for value, _ in known]))
    ((value, step),) = known
    return f"{value:.4g}{'' if step is None else f'@{step}'}"


def describe_states(group: sweep_ranking.Group, metric: str | None) -> str:
    """Return what is no result: ``1 failed oom_gpu, 1 running 12.3@500``; of a cell alone without the number."""
    states: dict[str, list[str]] = {}
    whole = {cell.cell.name for cell in group.results}
    for cell in group.cells:
        if cell.state == "finished" and cell.cell.name in whole:
            continue
        state = {LIVE: "running", WAITING: "queued"}.get(cell.state, cell.state)
        if metric is not None and state == "finished":
            state = "finished" if cell.bad_end else "finished without value"
        detail = f"{_kind(cell)} {_value(cell)}".strip() if cell.state in (LIVE, "failed", *CUT_SHORT) else ""
        if cell.bad_end:
            at = "" if cell.value_step is None else f"@{cell.value_step}"
            how = f"ended {cell.bad_end}{at}" if cell.bad_end != "diverged" else f"diverged {_value(cell)}".strip()
            detail = f"{_kind(cell)} {cell.bad_end}{at}" if _kind(cell) else how
        elif why := cell.end.get("why"):
            detail = str(why) if cell.state == "stopped" else f"{detail} ({why})".strip()  # halving says the value
        states.setdefault(state, []).append(detail)
    parts = []
    for state, details in states.items():
        known = "/".join(filter(None, dict.fromkeys(details)))
        parts.append(f"{len(details)} {state} {known}" if len(group.cells) > 1 else f"{state} {known}")
    return ", ".join(part.strip() for part in parts)


def _kind(cell: CellState) -> str:
    return str((cell.end.get("failure") or {}).get("kind") or "") if cell.state == "failed" else ""


def _join_notes(group: sweep_ranking.Group, remarks: Mapping[str, str]) -> str:
    own = {cell.cell.name: remarks[cell.cell.name] for cell in group.cells if cell.cell.name in remarks}
    if len(group.cells) == 1:
        return shorten_facts(" ".join(own.values()), _NOTE_CHARS).replace("|", "¦")
    return shorten_facts("; ".join(f"{name}: {text}" for name, text in own.items()), _NOTE_CHARS).replace("|", "¦")
