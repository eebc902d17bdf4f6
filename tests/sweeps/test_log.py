"""sweep_log.md and results.tsv of a sweep: for a person who reads, and for a program."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.record.sweeps.sweep_ranking import rank_groups
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.results.figures import Figure
from mcp_server.sweeps.tables.log import SweepLog
from tests.support.sweeps import AT, cell_events

DIRECTORY = SweepDir(Path("home/sweeps/s"))
NOON_S = 1_795_608_000.0  # 2026-11-25T12:00:00Z


@dataclass
class Clock:
    """Virtual time."""

    now_s: float = NOON_S

    def __call__(self) -> float:
        return self.now_s


def make(values: dict[str, float | None], *events: dict[str, Any], **spec: Any) -> Sweep:
    """Return a sweep over lr and seed; each of ``values`` is a cell that has ended, None one that has not begun."""
    cells = tuple(
        Cell(name, "1", {"lr": float(name.partition("-")[0]), "seed": int(name.partition("-")[2])}) for name in values
    )
    ended = [event for name, value in values.items() if value is not None for event in cell_events(name, value)]
    numbered: list[Any] = [{"seq": n, "at": AT, **event} for n, event in enumerate([*ended, *events], 1)]
    facts = {"metric": "reward", "ranking": "last", "goal": "max", "cells": cells, **spec}
    return fold_sweep(SweepSpec("s", "s", **facts), numbered, Liveness.ALIVE)


def live(cell: str, step: int, **facts: Any) -> dict[str, Run]:
    return {cell: Run(RunSpec(run_id=f"r-{cell}"), "running", (), progress={"step": step, "total_steps": 100, **facts})}


def section(log: str, title: str) -> list[str]:
    return [line for line in log.split(f"## {title}")[1].split("\n## ", maxsplit=1)[0].splitlines()[1:] if line]


FOUR = {"0.1-1": 1.0, "0.1-2": 2.0, "0.2-1": 5.0, "0.2-2": 7.0, "0.3-1": None}


def test_the_log_opens_with_the_settings_ranked_and_the_test_of_the_best_two() -> None:
    log = SweepLog(DIRECTORY).render(make(FOUR), {}, {"0.1-1": "keep"})
    assert log.index("## Settings") < log.index("## Plan") < log.index("## Runs")
    assert section(log, "Settings") == [
        "| lr | reward (last) mean±sd | n | last@step | cell | state | note |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 0.2 | 6±1.4 | 2 | 7@2800 | 0.2-2 |  |  |",
        "| 0.1 | 1.5±0.71 | 2 | 2@2800 | 0.1-2 |  | 0.1-1: keep |",
        "| 0.3 |  | 0 |  | 0.3-1 | queued |  |",
        "Best against 0.1-2: Welch t 4.02, df 1.47, p 0.092 (two-sided).",
    ]


def test_live_cells_have_step_and_value_as_of_a_time_and_are_looked_at_every_half_minute() -> None:
    started = {"kind": "cell_started", "cell": "0.3-1", "run_id": "r-0.3-1"}
    sweep, clock, reads = make(FOUR, started), Clock(), list[str]()

    def measure(run: Run) -> Figure:
        reads.append(run.run_id)
        return Figure(4.25, run.progress["step"])

    log = SweepLog(DIRECTORY, measure, clock)
    first = log.render(sweep, live("0.3-1", 20, eta_s=240.0), {})
    assert section(first, "Live cells at 12:00:00 UTC")[2:] == [
        "| 0.3-1 | r-0.3-1 | running | 20/100 | 4.25@20 | 4 min |"
    ]
    assert "; about 4 min left at 12:00:00 UTC\n" in first
    assert "| 0.3 |  | 0 |  | 0.3-1 | running 4.25@20 |" in section(first, "Settings")[4]
    clock.now_s += 29
    assert log.render(sweep, live("0.3-1", 90, eta_s=9.0), {}) == first, "within half a minute the same bytes"
    others = log.render(sweep, live("0.1-1", 1), {})
    assert section(others, "Live cells at 12:00:00 UTC") == section(first, "Live cells at 12:00:00 UTC"), "of one time"
    clock.now_s += 2
    later = log.render(sweep, live("0.3-1", 90, eta_s=9.0), {})
    assert section(later, "Live cells at 12:00:31 UTC")[2:] == [
        "| 0.3-1 | r-0.3-1 | running | 90/100 | 4.25@90 | 9 s |"
    ]
    assert reads == ["r-0.3-1"] * 2
    assert "## Live" not in log.render(make({**FOUR, "0.3-1": 3.0}), {}, {})


def test_a_live_cell_has_no_step_before_that_of_its_value() -> None:
    started = {"kind": "cell_started", "cell": "0.3-1", "run_id": "r-0.3-1"}
    log = SweepLog(DIRECTORY, lambda _: Figure(4.25, 31), Clock()).render(make(FOUR, started), live("0.3-1", 1), {})
    assert section(log, "Live cells at 12:00:00 UTC")[2] == "| 0.3-1 | r-0.3-1 | running | 31/100 | 4.25@31 |  |"


def test_the_time_left_is_that_at_the_step_beside_it() -> None:
    started = {"kind": "cell_started", "cell": "0.3-1", "run_id": "r-0.3-1"}
    runs = live("0.3-1", 20, eta_s=240.0, step_s=3.0)
    log = SweepLog(DIRECTORY, lambda _: Figure(4.25, 40), Clock()).render(make(FOUR, started), runs, {})
    assert section(log, "Live cells at 12:00:00 UTC")[2] == "| 0.3-1 | r-0.3-1 | running | 40/100 | 4.25@40 | 3 min |"


def test_a_table_of_a_thousand_settings_says_how_many_it_leaves_out() -> None:
    sweep = make({f"{n / 1000}-1": float(n) for n in range(1, 1001)})
    lines = section(SweepLog(DIRECTORY).render(sweep, {}, {}), "Settings")
    assert len(lines) == 103
    assert lines[2].startswith("| 1 | 1000@2800 |")
    assert lines[-1] == "The first 100 of 1000 settings: `runward sweep s --csv`."


def test_settings_are_numbers_also_where_a_retry_changed_them_and_name_the_rows_of_the_table() -> None:
    cells = [Cell(f"c{n}", "1", {"n": n, "seed": 1}, {"params": {"w": 4}}) for n in (64, 128, 256)]
    events = [event for cell in cells for event in cell_events(cell.name, float(cell.params["n"]))]
    events[7] |= {"params": {"n": 128, "seed": 1, "w": 2}}  # the end of c256
    numbered: list[Any] = [{"seq": n, "at": AT, **event} for n, event in enumerate(events, 1)]
    spec = SweepSpec("s", "s", cells=tuple(cells), metric="reward", ranking="last")
    sweep = fold_sweep(spec, numbered, Liveness.ALIVE)
    rows = list(csv.DictReader(io.StringIO(SweepLog(DIRECTORY).render_results(sweep, {})), delimiter="\t"))
    settings = [tuple(float(row[name]) for name in ("n", "n planned", "w", "w planned")) for row in rows]
    assert settings == [(64, 64, 4, 4), (128, 128, 4, 4), (128, 256, 2, 4)]
    assert len(rank_groups(sweep.cells, "max")) == len(set(settings))


def test_a_program_reads_back_what_results_say_whatever_stands_in_them() -> None:
    hostile = '"an open quote, a comma'
    cells = (Cell("c", "1", {"value": 3, "text": hostile, "flag": True, "none": None}), Cell("d", "1", {"value": 4}))
    events: list[Any] = [{"seq": n, "at": AT, **event} for n, event in enumerate(cell_events("c", 0.1 + 0.2), 1)]
    sweep = fold_sweep(SweepSpec("s", "s", cells=cells, metric="reward", ranking="last"), events, Liveness.ALIVE)
    for separator in ("\t", ","):
        text = SweepLog(DIRECTORY).render_results(sweep, {"c": 'a\tnote with "quotes"\nand lines'}, separator)
        first, second = csv.DictReader(io.StringIO(text), delimiter=separator)
        assert (first["text"], first["value set"], first["none"], first["flag"]) == (hostile, "3", "", "True")
        assert (float(first["value"]), int(first["step"])) == (0.1 + 0.2, 2800)
        assert first["note"] == 'a note with "quotes" and lines'
        assert (second["value"], second["step"], second["elapsed_s"]) == ("", "", "")
