"""The LaTeX table of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_server.record.state import Liveness
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import fold_sweep
from mcp_server.sweeps.tables.latex import render_latex
from tests.support.sweeps import AT, cell_events


def render(values: dict[str, float], params: dict[str, dict[str, Any]], **spec: Any) -> list[str]:
    cells = tuple(Cell(name, "1", facts) for name, facts in params.items())
    events = [event for name, value in values.items() for event in cell_events(name, value)]
    numbered: list[Any] = [{"seq": n, "at": AT, **event} for n, event in enumerate(events, 1)]
    facts = {"metric": "eval/succ_rate", "ranking": "last", "goal": "max", "cells": cells, **spec}
    return render_latex(
        fold_sweep(SweepSpec("s", "s", **facts), numbered, Liveness.ALIVE), Path("/no/home")
    ).splitlines()


def test_the_best_is_bold_text_is_escaped_and_what_does_not_count_is_a_comment() -> None:
    params = {f"{act}{seed}": {"act_fn": act, "seed": seed} for act in ("a_b%", "c&{", "#$~^\\") for seed in (1, 2)}
    assert render({"a_b%1": 5.0, "a_b%2": 7.0, "c&{1": 1.0, "c&{2": 2.0}, params) == [
        "% Sweep s: mean and deviation of the sample over n whole trainings, max.",
        "% In the preamble: \\usepackage{booktabs}",
        "% Best against c&{2: Welch t 4.02, df 1.47, p 0.092 (two-sided).",
        "\\begin{tabular}{lrr}",
        "\\toprule",
        "act\\_fn & eval/succ\\_rate (last) & n \\\\",
        "\\midrule",
        "a\\_b\\% & $\\mathbf{6.0 \\pm 1.4}$ & 2 \\\\",
        "c\\&\\{ & $1.50 \\pm 0.71$ & 2 \\\\",
        "\\#\\$\\textasciitilde{}\\textasciicircum{}\\textbackslash{} & -- & 0 \\\\",
        "% #$~^\\1: 2 queued",
        "\\bottomrule",
        "\\end{tabular}",
    ]


def test_the_best_of_each_benchmark_is_bold_and_powers_are_mathematics() -> None:
    params = {f"{task}{lr}": {"task": task, "lr": lr} for task in ("lift", "stack") for lr in (1e-5, 1e-4)}
    values = {"lift1e-05": 2e-5, "lift0.0001": 3e-5, "stack1e-05": 0.5, "stack0.0001": 0.25}
    lines = [line for line in render(values, params, goal="min") if " & " in line][1:]
    assert lines == [
        "lift & 1e-05 & $\\mathbf{2 \\times 10^{-5}}$ & 1 \\\\",
        "lift & 0.0001 & $3 \\times 10^{-5}$ & 1 \\\\",
        "stack & 0.0001 & $\\mathbf{0.25}$ & 1 \\\\",
        "stack & 1e-05 & $0.5$ & 1 \\\\",
    ]
