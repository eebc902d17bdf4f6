"""Several sweeps in one table, by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.results.notes import append_note
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.results.outcome_answers import Comparison
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.plan import expand, parse_phases
from mcp_server.sweeps.tables.comparison import compare_sweeps
from mcp_server.sweeps.tables.merging import merge_sweeps
from tests.support.sweeps import cell_events, write_sweep

COMMON = {"command": "python t.py", "cwd": "/w", "gpus": 1}


def write(
    home: Path,
    name: str,
    values: Mapping[tuple[float, int], float | None],
    common: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Write a sweep of cells by (lr, seed) with these values, None for one that failed."""
    listed = [{"lr": lr, "seed": seed} for lr, seed in values]
    cells = list(expand(parse_phases(None, {"cells": listed}, common or COMMON), f"{name}-ab3d"))
    failure = {"kind": "oom_gpu", "line": "CUDA out of memory"}
    ends = [
        event
        for cell, value in zip(cells, values.values(), strict=True)
        for event in cell_events(cell.name, value, failure if value is None else None)
    ]
    facts = {"metric": "reward", "ranking": "last", **spec}
    write_sweep(home, cells, ends, sweep_id=f"{name}-ab3d", name=name, **facts)


def compare(home: Path, *names: str) -> Comparison:
    store = RunStore(StateHome(home))
    return compare_sweeps([store.sweeps.find(name) for name in names], store, Scalars(store.home, store))


A = {(0.1, 1): 1.0, (0.1, 2): 3.0, (0.2, 1): 4.0, (0.2, 2): 6.0}


def rows(table: Comparison) -> list[list[str]]:
    return [row.split("|")[:3] for row in table.rows or []]


def test_seeds_of_two_sweeps_are_grouped_by_settings_and_best_is_over_all(tmp_path: Path) -> None:
    write(tmp_path, "a", A)
    later = {**COMMON, "tags": ["later"], "recovery": "default"}
    write(tmp_path, "b", {(0.1, 3): 11.0, (0.2, 3): None, (0.3, 1): 2.0}, later)
    table = compare(tmp_path, "a", "b")
    assert table.columns is not None
    assert table.columns.startswith("lr|reward (last) mean±sd|n|")
    assert rows(table) == [["0.1", "5±5.3", "3"], ["0.2", "5±1.4", "2"], ["0.3", "2", "1"]]
    assert table.sweep is not None
    assert table.sweep.best is not None
    assert (table.sweep.sweep_id, table.sweep.cells["total"]) == ("a-ab3d, b-ab3d", 7)
    assert (table.sweep.best.mean, table.sweep.best.n, table.sweep.best.params) == (5, 3, {"lr": 0.1, "seed": 3})
    assert table.sweep.failed == ["lr0.2-seed3: oom_gpu: CUDA out of memory"]


def test_a_training_that_both_sweeps_have_counts_once(tmp_path: Path) -> None:
    write(tmp_path, "a", {**A, (0.1, 1): None})
    write(tmp_path, "b", {(0.1, 1): 5.0, (0.1, 2): 99.0, (0.1, 3): 4.0})
    append_note(RunStore(StateHome(tmp_path)).sweeps.directory("b-ab3d").notes, {"cell": "seed1", "note": "keep"})
    table = compare(tmp_path, "a", "b")
    assert ["0.1", "4±1", "3"] in rows(table), "seed 1 has failed in the first, and has a result in the second"
    assert "2 cells ran in several sweeps with the same seed: each counts once." in (table.notes or [])


def test_cells_of_one_name_are_told_apart_and_keep_their_notes(tmp_path: Path) -> None:
    write(tmp_path, "a", {(0.1, 1): 1.0, (0.1, 2): 2.0})
    write(tmp_path, "b", {(0.2, 1): 3.0, (0.2, 2): 4.0})
    append_note(RunStore(StateHome(tmp_path)).sweeps.directory("b-ab3d").notes, {"cell": "seed2", "note": "keep"})
    table = compare(tmp_path, "a", "b")
    assert rows(table) == [["0.2", "3.5±0.71", "2"], ["0.1", "1.5±0.71", "2"]]
    assert "|b-ab3d/seed2|" in (table.rows or [""])[0]
    assert "b-ab3d/seed2: keep" in (table.rows or [""])[0]


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"gpus": 4}, "gpus"),
        ({"command": "python t.py --wd 0.1"}, "command"),
        ({"env": {"TASK": "cube"}}, "env"),
        ({"params": {"epochs": 9}}, "params"),
        ({"time_limit_s": 60}, "time_limit_s"),
    ],
)
def test_a_sweep_that_trains_something_else_stands_apart_and_says_why(
    tmp_path: Path, own: dict[str, Any], named: str
) -> None:
    write(tmp_path, "a", A)
    write(tmp_path, "b", {(0.1, 3): 11.0}, {**COMMON, **own})
    table = compare(tmp_path, "a", "b")
    assert f"b-ab3d differs from a-ab3d in {named}: its rows are its own." in (table.notes or [])
    assert table.columns is not None
    assert "sweep" in table.columns.split("|")
    assert len(table.rows or []) == 3


def test_every_row_names_its_sweeps_where_one_trains_something_else_and_all_differences_are_told(
    tmp_path: Path,
) -> None:
    command = {"command": "python t.py --config {lr}.json"}
    write(tmp_path, "a", {(0.1, 1): 1.0, (0.2, 1): 2.0}, {**COMMON, **command, "time_limit_s": 600})
    fixed = {**COMMON, "command": "python t.py --config 0.1.json", "recovery": "default"}
    for name, seed in (("b", 1), ("c", 2)):
        cells = list(expand(parse_phases(None, {"cells": [{"n": 4, "seed": seed}]}, fixed), f"{name}-ab3d"))
        ends = cell_events(cells[0].name, 5.0)
        write_sweep(tmp_path, cells, ends, sweep_id=f"{name}-ab3d", name=name, metric="reward", ranking="last")
    table = compare(tmp_path, "a", "b", "c")
    at = (table.columns or "").split("|").index("sweep")
    assert {row.split("|")[at] for row in table.rows or []} == {"a-ab3d", "b-ab3d, c-ab3d"}
    assert [note for note in table.notes or [] if "differs" in note] == [
        "a-ab3d differs from b-ab3d in recovery, time_limit_s: its rows are its own."
    ]


PLACES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a place in the command": ({"command": "python t.py --config c/{lr}.json"}, "python t.py --config c/0.2.json", {}),
    "an option": ({}, "python t.py --lr 0.2", {}),
    "a setting of Hydra": ({"param_style": "k=v"}, "python t.py lr=0.2", {}),
    "a word": ({"command": "python t.py {lr}"}, "python t.py 0.2", {}),
    "a variable": ({"env": {"LR": "{lr}"}}, "python t.py", {"env": {"LR": "0.2"}}),
    "params of all cells": ({}, "python t.py", {"params": {"lr": 0.2}}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_one_sweep_varied_is_read_where_another_has_it(tmp_path: Path, place: str) -> None:
    varied, command, more = PLACES[place]
    write(tmp_path, "a", A, {**COMMON, **varied})
    other = {**COMMON, "command": command, **more}
    cells = list(expand(parse_phases(None, {"grid": {"seed": [3, 4]}}, other), "b-ab3d"))
    ends = [event for cell in cells for event in cell_events(cell.name, 8.0)]
    write_sweep(tmp_path, cells, ends, sweep_id="b-ab3d", name="b", metric="reward", ranking="last")
    table = compare(tmp_path, "a", "b")
    assert rows(table) == [["0.2", "6.5±1.9", "4"], ["0.1", "2±1.4", "2"]]
    assert not [note for note in table.notes or [] if "differs" in note]


def test_a_value_in_another_place_is_no_setting(tmp_path: Path) -> None:
    write(tmp_path, "a", A, {**COMMON, "command": "python t.py --config c/{lr}.json"})
    other = {**COMMON, "command": "python t.py --warmup c/0.2.json --config other/0.2.json"}
    cells = list(expand(parse_phases(None, {"grid": {"seed": [3]}}, other), "b-ab3d"))
    ends = cell_events("seed3", 8.0)
    write_sweep(tmp_path, cells, ends, sweep_id="b-ab3d", name="b", metric="reward", ranking="last")
    table = compare(tmp_path, "a", "b")
    assert rows(table)[-1][0] == "-", "nobody says that it has that setting"


@pytest.mark.parametrize(("size", "seed", "grouped"), [(2, 3, True), (4, 4, False), (4, 3, False)])
def test_a_seed_in_the_command_is_no_difference_unless_it_may_be_another_value(
    tmp_path: Path, size: int, seed: int, *, grouped: bool
) -> None:
    command = "python t.py --bs {size} -s {{seed}} -o {{cell}}"
    write(tmp_path, "a", {(0.1, 1): 1.0, (0.1, 2): 3.0}, {**COMMON, "command": command.format(size=2)})
    later = {**COMMON, "command": command.format(size=size), "tags": ["later"]}
    write(tmp_path, "b", {(0.1, seed): 8.0}, later)
    assert (len(compare(tmp_path, "a", "b").rows or []) == 1) is grouped


def test_sweeps_that_rank_by_different_figures_are_refused_with_both(tmp_path: Path) -> None:
    write(tmp_path, "a", A)
    write(tmp_path, "b", {(0.1, 3): 11.0}, metric="loss", goal="min")
    with pytest.raises(BadArgument, match=r"a-ab3d by reward \(last\), max; b-ab3d by loss \(last\), min"):
        compare(tmp_path, "a", "b")


def test_a_sweep_of_one_phase_joins_the_first_phase_of_another(tmp_path: Path) -> None:
    phases: list[dict[str, Any]] = [
        {"name": "explore", "cells": [{"lr": 0.1, "seed": 1}]},
        {"name": "final", "promote": "best"},
    ]
    cells = list(expand(parse_phases(phases, {}, COMMON), "a-ab3d"))
    chosen = {"kind": "cell_planned", "cell": "promotion", "params": {"lr": 0.1, "seed": 1}, "what": "cell"}
    ends = [*cell_events(cells[0].name, 1.0), chosen, *cell_events("promotion", 2.0)]
    write_sweep(tmp_path, cells, ends, sweep_id="a-ab3d", name="a", metric="reward", ranking="last")
    write(tmp_path, "b", {(0.1, 2): 3.0})
    table = compare(tmp_path, "a", "b")
    assert [row.split("|")[:3] for row in table.rows or []] == [["explore", "2±1.4", "2"], ["final", "2", "1"]]


def test_merged_sweeps_are_under_way_until_all_have_ended(tmp_path: Path) -> None:
    write(tmp_path, "a", A)
    write(tmp_path, "b", {(0.1, 3): 11.0})
    store = RunStore(StateHome(tmp_path))
    path = store.sweeps.directory("a-ab3d").events
    path.write_text(path.read_text() + json.dumps({"seq": 99, "kind": "ended", "state": "failed"}) + "\n")
    sweeps = [store.sweeps.find("a"), store.sweeps.find("b")]
    assert merge_sweeps(sweeps).sweep.state == "running"
    assert merge_sweeps([sweeps[0], sweeps[0]]).sweep.state == "failed"


def test_cells_without_a_seed_are_repetitions(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 3.0)):
        cells = [Cell("lr0.1", "1", {"lr": 0.1}, COMMON)]
        write_sweep(tmp_path, cells, cell_events("lr0.1", value), sweep_id=f"{name}-ab3d", name=name, metric="reward")
    assert rows(compare(tmp_path, "a", "b"))[0][:2] == ["2±1.4", "2"]
