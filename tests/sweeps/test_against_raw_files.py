"""Every table of a sweep against figures computed from the raw files by other means, digit by digit."""

from __future__ import annotations

import csv
import io
import math
import os
import random
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir
from mcp_server.results.figures import measure
from mcp_server.sweeps.tables.comparison import compare_sweep, compare_sweeps
from mcp_server.sweeps.tables.latex import render_latex
from mcp_server.sweeps.tables.log import SweepLog
from mcp_server.views.sweep_status import summarise_sweep
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.sweeps import cell_events, write_sweep

STATES = ("finished", "finished", "finished", "finished", "killed", "stopped", "failed")


@dataclass(frozen=True)
class Raw:
    """A cell as the raw files and the plan have it. ``label``: its settings but for the seed, as tables show them."""

    name: str
    label: tuple[str, ...]
    state: str
    curve: list[float]
    retried: bool = False

    def figure(self, ranking: str, goal: str) -> float | None:
        """Return the value by a ranking; None of a training that was cut short or ended as NaN."""
        if self.state != "finished" or math.isnan(self.curve[-1]):
            return None
        tail = self.curve[-max(1, len(self.curve) // 10) :]
        best = max(self.curve) if goal == "max" else min(self.curve)
        return {"last": self.curve[-1], "best": best, "mean10%": sum(tail) / len(tail)}[ranking]


@dataclass(frozen=True)
class Row:
    """A setting: the values of its seeds, the best first."""

    label: tuple[str, ...]
    values: list[float]
    cells: list[str]

    def shown(self, like: str) -> str:
        """Return mean and deviation, the mean with as many digits, 4 to 7, as ``like`` has: a column has one number."""
        deviation = f"±{statistics.stdev(self.values):.2g}" if len(self.values) > 1 else ""
        texts = [f"{statistics.fmean(self.values):.{digits}g}{deviation}" for digits in range(4, 8)]
        return like if like in texts else texts[0]


def write_curve(path: Path, draw: random.Random, state: str, steps: int) -> list[float]:
    """Write the curve of a run that ended as ``state``, and return what another reader finds in the file."""
    last = steps if state == "finished" else draw.randint(1, steps - 1)
    values = [draw.gauss(0, 1) + step / 10 for step in range(1, last + 1)]
    if state == "finished" and draw.random() < 0.15:
        values[-1] = math.nan
    path.write_text("step,score\n" + "".join(f"{step},{value!r}\n" for step, value in enumerate(values, 1)))
    os.utime(path, (BEGAN_S + 60, BEGAN_S + 60))
    return [float(row["score"]) for row in csv.DictReader(path.read_text().splitlines())]


def make_sweep(runs: Runs, draw: random.Random, ranking: str, goal: str) -> tuple[SweepDir, list[str], list[Raw]]:
    """Write a random sweep: seeds, cells that were cut short, NaN, retries that halve a width, seeds added later."""
    has_benchmarks = draw.random() < 0.4
    names = ["model", "task"] if has_benchmarks else ["width"]
    settings: list[dict[str, Any]] = [{"width": width} for width in (64, 128, 256, 512, 1024)[: draw.randint(2, 5)]]
    if has_benchmarks:
        settings = [{"model": model, "task": task} for model in ("ppo", "sft") for task in ("cube", "walk")]
    seeds = list(range(1, draw.randint(2, 4) + 1))
    rounds = [seeds, [seeds[-1] + 1, seeds[-1] + 2]] if draw.random() < 0.4 else [seeds]
    cells, events, raw = list[Cell](), list[dict[str, Any]](), list[Raw]()
    for number, own in enumerate(rounds):
        events += (
            [{"kind": "ended", "state": "finished", "total": len(cells)}, {"kind": "conducting"}] if number else []
        )
        for n, (setting, seed) in enumerate((setting, seed) for setting in settings for seed in own):
            name, state = f"r{number}c{n}", draw.choice(STATES)
            retried = not has_benchmarks and draw.random() < 0.1
            path = runs.add(f"night-{name}-k7qz", "finished" if state == "finished" else "killed") / "progress.csv"
            curve = write_curve(path, draw, state, steps=draw.choice((12, 25)))
            cells.append(Cell(name, "1", {**setting, "seed": seed}))
            ran = {"width": setting["width"] // 2} if retried else {}
            shown = [f"{setting[key]}→{ran[key]}" if key in ran else str(setting[key]) for key in names]
            raw.append(Raw(name, tuple(shown), state, curve, retried))
            figure = measure(runs.store.find(f"night-{name}-k7qz"), runs.store, runs.scalars, "score", goal, ranking)
            started, ended, measured = cell_events(name, figure.value)
            ended |= {"state": state, **({"params": {**setting, **ran, "seed": seed}} if ran else {})}
            measured |= {"value_step": figure.step, "figures": dict(figure.figures), "bad_end": figure.bad_end}
            events += [started, ended, {k: v for k, v in measured.items() if v is not None}]
    directory = write_sweep(runs.home.path, cells, events, metric="score", goal=goal, ranking=ranking)
    return directory, names, raw


def rank(raw: list[Raw], ranking: str, goal: str) -> list[Row]:
    """Return the settings that have a value, in the order that the guide describes."""
    sign = -1 if goal == "max" else 1
    of: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for cell in raw:
        if (value := cell.figure(ranking, goal)) is not None:
            of.setdefault(cell.label, []).append((value, cell.name))
    known = [
        Row(label, *map(list, zip(*sorted(own, key=lambda one: sign * one[0]), strict=True)))
        for label, own in of.items()
    ]
    most = max((len(row.values) for row in known), default=0)
    behind = {row.label: most - len(row.values) if 2 * len(row.values) <= most else 0 for row in known}
    return sorted(known, key=lambda row: (behind[row.label], sign * statistics.fmean(row.values)))


def read_settings(log: str) -> list[dict[str, str]]:
    """Return the rows of the table of settings in a sweep's log."""
    lines = [
        line for line in log.partition("## Settings")[2].partition("\n## ")[0].splitlines() if line.startswith("|")
    ]
    header, _, *rows = [[field.strip() for field in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def check_settings(shown: list[dict[str, str]], rows: list[Row], names: list[str], label: str) -> None:
    """Compare a table of settings, or its beginning, with the rows computed."""
    counted = [row for row in shown if row["n"] != "0"]
    assert len(counted) == min(len(rows), len(shown))
    for found, row in zip(counted, rows, strict=False):
        assert (tuple(found[name] for name in names), found["n"]) == (row.label, str(len(row.values)))
        assert found[label] == row.shown(found[label])


def check_cells(text: str, separator: str, raw: list[Raw], ranking: str, goal: str) -> None:
    """Compare one row a cell with the raw files: each figure as written, and no value where it does not count."""
    rows = {row["cell"]: row for row in csv.DictReader(io.StringIO(text), delimiter=separator)}
    assert list(rows) == [cell.name for cell in raw]
    for cell in raw:
        row, value = rows[cell.name], cell.figure(ranking, goal)
        assert (float(row["value"]) if row["value"] else None) == value
        finite = [each for each in cell.curve if not math.isnan(each)]
        assert float(row["best"]) == (max(finite) if goal == "max" else min(finite))
        assert (float(row["last"]) if row["last"] else None) == (None if math.isnan(cell.curve[-1]) else cell.curve[-1])
        assert row["state"] == cell.state
        planned, _, ran = cell.label[0].partition("→")
        if cell.retried:
            assert (row["width"], row["width planned"]) == (ran, planned)


def render_row(row: Row, line: str, *, is_best: bool) -> str:
    """Return the line of a setting in a LaTeX table: as many decimals as two digits of the deviation have."""
    mean = statistics.fmean(row.values)
    text = row.shown(re.sub(r"[^-+.e\d]", "", line.split(" & ")[-2].replace("mathbf", "")))
    if len(row.values) > 1:
        deviation = statistics.stdev(row.values)
        decimals = max(0, 1 - int(f"{deviation:.1e}".partition("e")[2]))
        text = f"{mean:.{decimals}f} \\pm {deviation:.{decimals}f}"
    shown = f"$\\mathbf{{{text}}}$" if is_best else f"${text}$"
    return " & ".join([*(label.replace("→", r"$\to$") for label in row.label), shown, str(len(row.values))]) + r" \\"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_every_table_of_a_random_sweep_is_that_of_the_raw_files(number: int, tmp_path: Path) -> None:
    draw, runs = random.Random(number), Runs(tmp_path)
    ranking, goal = ("last", "best", "mean10%")[number % 3], ("max", "min")[number % 2]
    directory, names, raw = make_sweep(runs, draw, ranking, goal)
    sweep = runs.store.sweeps.find("night")
    rows, label = rank(raw, ranking, goal), f"score ({ranking}) mean±sd"

    table = compare_sweep(sweep, runs.store, runs.scalars)
    columns = (table.columns or "").split("|")
    shown = [dict(zip(columns, row.split("|"), strict=True)) for row in table.rows or []]
    check_settings(shown, rows, names, label)
    log = SweepLog(directory)
    check_settings(read_settings(log.render(sweep, {}, {})), rows, names, label)
    check_cells(log.render_results(sweep, {}), "\t", raw, ranking, goal)
    check_cells(SweepLog(directory).render_results(sweep, {}, separator=","), ",", raw, ranking, goal)

    seen = set[str]()
    latex = [line for line in render_latex(sweep, runs.home.path).splitlines() if " & " in line and "-- &" not in line]
    assert len(latex) == 1 + len(rows)
    for row, line in zip(rows, latex[1:], strict=True):
        of = row.label[1] if "task" in names else ""
        assert line == render_row(row, line, is_best=of not in seen)
        seen.add(of)

    best = summarise_sweep(sweep, {}, now_s=0.0).best
    assert (best is None) == (not rows)
    if best is not None:
        values = rows[0].values
        assert (best.cell, best.value, best.n or 1) == (rows[0].cells[0], float(f"{values[0]:.4g}"), len(values))
        assert best.mean == (float(f"{statistics.fmean(values):.4g}") if len(values) > 1 else None)
        assert best.deviation == (float(f"{statistics.stdev(values):.2g}") if len(values) > 1 else None)
    if "task" in names and len({row.label[1] for row in rows}) > 1:
        (by_benchmark,) = table.benchmarks or []
        tasks = by_benchmark.columns.split("|")[1:]
        known = {row.label: row.shown("") + (f" (n {len(row.values)})" if len(row.values) > 1 else "") for row in rows}
        models = sorted({row.label[0] for row in rows})
        assert by_benchmark.rows == ["|".join([m, *(known.get((m, task), "") for task in tasks)]) for m in models]


def write_more(
    runs: Runs, draw: random.Random, name: str, widths: list[int], seeds: list[int], **spec: str
) -> list[Raw]:
    """Write a sweep of these widths and seeds, each cell with a random end; return its cells."""
    cells, events, raw = list[Cell](), list[dict[str, Any]](), list[Raw]()
    for width, seed in ((width, seed) for width in widths for seed in seeds):
        cell, state = f"w{width}-s{seed}", draw.choice(STATES)
        run_id = f"{name}-{cell}-k7qz"
        path = runs.add(run_id, "finished" if state == "finished" else "killed") / "progress.csv"
        raw.append(Raw(f"{cell} {seed}", (str(width),), state, write_curve(path, draw, state, draw.choice((12, 25)))))
        cells.append(Cell(cell, "1", {"width": width, "seed": seed}))
        figure = measure(runs.store.find(run_id), runs.store, runs.scalars, "score", spec["goal"], spec["ranking"])
        started, ended, measured = ({**each, "run_id": run_id} for each in cell_events(cell, figure.value))
        measured |= {"value_step": figure.step, "figures": dict(figure.figures), "bad_end": figure.bad_end}
        events += [started, {**ended, "state": state}, {k: v for k, v in measured.items() if v is not None}]
    write_sweep(runs.home.path, cells, events, sweep_id=f"{name}-ab3d", name=name, metric="score", **spec)
    return raw


def join(sweeps: list[list[Raw]], ranking: str, goal: str) -> list[Raw]:
    """Return the trainings of several sweeps, each width and seed once: that of the first sweep in which it counts."""
    kept: dict[str, Raw] = {}
    for cell in (cell for raw in sweeps for cell in raw):
        known = kept.get(cell.name)
        if known is None or (known.figure(ranking, goal) is None and cell.figure(ranking, goal) is not None):
            kept[cell.name] = cell
    return list(kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(15))
def test_a_table_over_several_sweeps_is_that_of_the_raw_files_of_all(number: int, tmp_path: Path) -> None:
    draw, runs = random.Random(f"several {number}"), Runs(tmp_path)
    spec = {"ranking": ("last", "best", "mean10%")[number % 3], "goal": ("max", "min")[number % 2]}
    widths, first = [64, 128, 256, 512][: draw.randint(2, 4)], 1
    sweeps = []
    for at in range(draw.randint(2, 3)):
        own = widths if not at else draw.sample(widths, draw.randint(1, len(widths)))
        begin = max(1, first - draw.choice((0, 0, 1)))  # at times a seed again
        count = draw.randint(2 - (at > 0), 3)
        sweeps.append(write_more(runs, draw, f"night{at}", own, list(range(begin, begin + count)), **spec))
        first = begin + count
    found = [runs.store.sweeps.find(f"night{at}") for at in range(len(sweeps))]
    rows, label = rank(join(sweeps, **spec), **spec), f"score ({spec['ranking']})"

    table = compare_sweeps(found, runs.store, runs.scalars)
    columns = (table.columns or "").split("|")
    shown = [dict(zip(columns, row.split("|"), strict=True)) for row in table.rows or []]
    whole = compare_sweeps(found, runs.store, runs.scalars, as_markdown=True).markdown or ""
    header, _, *lines = [[f.strip() for f in line.strip("|").split("|")] for line in whole.splitlines()]
    for each in (shown, [dict(zip(header, line, strict=True)) for line in lines]):
        check_settings(each, rows, ["width"], f"{label} mean±sd")
    repeated = sum(map(len, sweeps)) - len(join(sweeps, **spec))
    assert any(f"{repeated} cell" in note for note in table.notes or ()) == bool(repeated)
    assert table.sweep is not None
    assert (table.sweep.best is None) == (not rows)
    if table.sweep.best is not None and len(rows[0].values) > 1:
        assert table.sweep.best.mean == float(f"{statistics.fmean(rows[0].values):.4g}")
        assert table.sweep.best.n == len(rows[0].values)


def test_seeds_that_two_later_sweeps_add_to_the_best_settings_count_in_one_table(tmp_path: Path) -> None:
    draw, runs = random.Random("more seeds"), Runs(tmp_path)
    spec = {"ranking": "last", "goal": "max"}
    plans = [([64, 128, 256], [1, 2]), ([128, 256], [3, 4]), ([256], [5, 6, 7])]
    sweeps = [write_more(runs, draw, f"night{at}", *plan, ranking="last", goal="max") for at, plan in enumerate(plans)]
    found = [runs.store.sweeps.find(f"night{at}") for at in range(3)]
    merged = compare_sweeps(found, runs.store, runs.scalars)
    columns = (merged.columns or "").split("|")
    shown = {row["width"]: row for row in (dict(zip(columns, r.split("|"), strict=True)) for r in merged.rows or [])}
    for row in rank([cell for raw in sweeps for cell in raw], **spec):
        assert shown[row.label[0]]["n"] == str(len(row.values))
        assert shown[row.label[0]]["score (last) mean±sd"] == row.shown(shown[row.label[0]]["score (last) mean±sd"])
    assert merged.sweep is not None
    assert merged.sweep.cells["total"] == 6 + 4 + 3
