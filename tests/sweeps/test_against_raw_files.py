"""The table of a sweep and its results.tsv against figures computed from the raw files by other means."""

from __future__ import annotations

import csv
import io
import math
import os
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.comparison import compare_sweep
from mcp_server.sweeps.figures import measure
from mcp_server.sweeps.log import SweepLog
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.sweeps import cell_events, write_sweep

STATES = ("finished", "finished", "finished", "killed", "stopped", "failed")


def write_run(runs: Runs, name: str, draw: random.Random, state: str, steps: int) -> Path:
    """Write the files of a run that ended as ``state``; return its curve."""
    path = runs.add(f"night-{name}-k7qz", "finished" if state == "finished" else "killed") / "progress.csv"
    last = steps if state == "finished" else draw.randint(1, steps - 1)
    values = [draw.gauss(0, 1) + step / 10 for step in range(1, last + 1)]
    if state == "finished" and draw.random() < 0.15:
        values[-1] = math.nan
    path.write_text("step,score\n" + "".join(f"{step},{value!r}\n" for step, value in enumerate(values, 1)))
    os.utime(path, (BEGAN_S + 60, BEGAN_S + 60))
    return path


def read_raw(path: Path) -> list[float]:
    return [float(row["score"]) for row in csv.DictReader(path.read_text().splitlines())]


def value_of(curve: list[float], ranking: str, goal: str) -> float:
    if math.isnan(curve[-1]):
        return math.nan
    tail = curve[-max(1, len(curve) // 10) :]
    best = max(curve) if goal == "max" else min(curve)
    return {"last": curve[-1], "best": best, "mean10%": sum(tail) / len(tail)}[ranking]


def expect(curves: dict[str, tuple[int, str, list[float]]], ranking: str, goal: str) -> list[tuple[str, str, int]]:
    """Return the rows of the table: setting, mean with deviation, and of how many seeds."""
    by_setting: dict[int, list[float]] = {}
    for setting, state, curve in curves.values():
        value = value_of(curve, ranking, goal)
        by_setting.setdefault(setting, []).extend([value] if state == "finished" and not math.isnan(value) else [])
    sign = -1 if goal == "max" else 1
    known = {setting: values for setting, values in by_setting.items() if values}
    most = max(map(len, known.values()))
    behind = {setting: most - len(values) if 2 * len(values) <= most else 0 for setting, values in known.items()}
    ranked = sorted(known, key=lambda setting: (behind[setting], sign * statistics.fmean(known[setting])))
    rows = []
    for setting in ranked:
        values = known[setting]
        spread = f"±{statistics.stdev(values):.2g}" if len(values) > 1 else ""
        rows.append((str(setting), f"{statistics.fmean(values):.4g}{spread}", len(values)))
    return rows


def read_settings(log: str) -> list[dict[str, str]]:
    """Return the rows of the table of settings in a sweep's log."""
    lines = [
        line for line in log.partition("## Settings")[2].partition("\n## ")[0].splitlines() if line.startswith("|")
    ]
    header, _, *rows = [[field.strip() for field in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("ranking", ["last", "best", "mean10%"])
@pytest.mark.parametrize("goal", ["max", "min"])
def test_every_mean_and_rank_is_that_of_the_raw_files(tmp_path: Path, ranking: str, goal: str) -> None:
    for number in range(2):
        draw, runs = random.Random(f"{ranking}{goal}{number}"), Runs(tmp_path / str(number))
        cells, events, curves = [], list[dict[str, Any]](), dict[str, tuple[int, str, list[float]]]()
        for setting, seed in ((setting, seed) for setting in range(5) for seed in range(3)):
            name, state = f"c{setting}x{seed}", draw.choice(STATES)
            path = write_run(runs, name, draw, state, steps=25)
            cells.append(Cell(name, "1", {"width": setting, "seed": seed}))
            curves[name] = setting, state, read_raw(path)
            run = runs.store.find(f"night-{name}-k7qz")
            figure = measure(run, runs.store, runs.scalars, "score", goal, ranking)
            started, ended, measured = cell_events(name, figure.value)
            measured |= {"value_step": figure.step, "figures": dict(figure.figures), "bad_end": figure.bad_end}
            events += [started, {**ended, "state": state}, {k: v for k, v in measured.items() if v is not None}]
        directory = write_sweep(runs.home.path, cells, events, metric="score", goal=goal, ranking=ranking)
        sweep = runs.store.sweeps.find("night")
        found = compare_sweep(sweep, runs.store, runs.scalars)
        names = (found.columns or "").split("|")
        rows = [dict(zip(names, row.split("|"), strict=True)) for row in found.rows or []]
        expected = expect(curves, ranking, goal)
        label = f"score ({ranking}) mean±sd"
        assert [(row["width"], row[label], int(row["n"])) for row in rows if row["n"] != "0"] == expected
        shown = read_settings(SweepLog(directory).render(sweep, {}, {}))
        assert [(row["width"], row[label], int(row["n"])) for row in shown if row["n"] != "0"] == expected
        table = csv.DictReader(io.StringIO(SweepLog(directory).render_results(sweep, {})), delimiter="\t")
        means: dict[str, list[float]] = {}
        for row in table:
            if row["value"] not in ("", "nan"):
                means.setdefault(row["width"], []).append(float(row["value"]))
        assert {width: f"{statistics.fmean(values):.4g}" for width, values in means.items()} == {
            width: text.partition("±")[0] for width, text, _ in expected
        }
