"""What a sweep's table has beside its ranked metric: other values of it, evaluations, checkpoints, benchmarks."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_ranking import Group
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.results.outcome_answers import Comparison
from mcp_server.sweeps.tables.comparison import compare_sweep
from mcp_server.sweeps.tables.settings_table import describe_states
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.sweeps import cell_events, write_sweep

LOSSES = {("0.1", 1): [4.0, 1.0, 2.0], ("0.1", 2): [5.0, 2.0, 4.0], ("0.2", 1): [9.0, 3.0, 3.5], ("0.2", 2): [8.0, 2.5]}

NAMES = {"0.1": "low", "0.2": "high"}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (BEGAN_S + 60, BEGAN_S + 60))


def sweep(runs: Runs) -> dict[str, list[float]]:
    """Write a sweep of four cells, the last killed at step 20 of 30; return the losses by cell."""
    cells, events, curves = [], list[dict[str, Any]](), {}
    for (lr, seed), losses in LOSSES.items():
        name = f"{NAMES[lr]}{seed}"
        cells.append(Cell(name, "1", {"lr": lr, "seed": seed}))
        cwd = runs.add(f"night-{name}-k7qz", tags=[], command=f"python train.py --out out/{name}")
        rows = "".join(f"{step},{loss}\n" for step, loss in zip((10, 20, 30), losses, strict=False))
        put(cwd / "progress.csv", f"step,loss\n{rows}")
        put(cwd / "eval.json", json.dumps({"success_rate": 1 - losses[-1] / 10, "num_episodes": 50}))
        put(cwd / "checkpoints" / f"model_{len(losses)}0.pt", "weights")
        ended = cell_events(name, losses[-1])
        ended[1] |= {"state": "killed"} if len(losses) < 3 else {}
        ended[2] |= {"value_step": 10 * len(losses), "figures": {"best": [min(losses), 20]}}
        events += ended
        curves[name] = losses
    write_sweep(runs.home.path, cells, events, metric="loss", goal="min", ranking="last")
    return curves


def compare(runs: Runs, *metrics: str, **asked: Any) -> Comparison:
    store = runs.store
    return compare_sweep(store.sweeps.find("night"), store, runs.scalars, metrics, **asked)


def rows_of(found: Comparison) -> list[dict[str, str]]:
    names = (found.columns or "").split("|")
    return [dict(zip(names, row.split("|"), strict=True)) for row in found.rows or []]


def test_evaluations_and_checkpoints_stand_beside_the_metric(runs: Runs) -> None:
    sweep(runs)
    found = compare(runs)
    first, second = rows_of(found)
    assert (first["lr"], first["loss (last) mean±sd"], first["n"]) == ("0.1", "3±1.4", "2")
    assert (
        first["eval success_rate mean±sd"] == f"{statistics.fmean((0.8, 0.6)):.4g}±{statistics.stdev((0.8, 0.6)):.2g}"
    )
    assert (second["eval success_rate mean±sd"], second["state"]) == ("0.65", "1 killed 2.5@20")
    assert (first["best mean±sd"], second["best mean±sd"]) == ("1.5±0.71", "3@20")
    assert first["checkpoint"].startswith("night-low1-k7qz/checkpoints/model_30.pt 7B")
    assert found.root == str(runs.path / "work")


def test_where_rows_are_many_the_checkpoint_of_the_best_is_a_note(runs: Runs) -> None:
    cells, events = [], list[dict[str, Any]]()
    for number in range(20):
        cells.append(Cell(f"c{number}", "1", {"learning_rate": number}))
        events += cell_events(f"c{number}", float(number))
        put(runs.add(f"night-c{number}-k7qz") / "checkpoints" / "model_30.pt", "weights")
    write_sweep(runs.home.path, cells, events, metric="loss", goal="min", ranking="last")
    found = compare(runs)
    assert "checkpoint" not in (found.columns or "")
    path = runs.path / "work" / "night-c0-k7qz" / "checkpoints" / "model_30.pt"
    assert f"Newest checkpoint of c0: {path} 7B; markdown=true has the checkpoints of all." in (found.notes or [])
    assert (compare(runs, as_markdown=True).markdown or "").count("model_30.pt") == 20


def test_the_ranked_metric_is_had_as_best_and_at_a_step(runs: Runs) -> None:
    curves = sweep(runs)
    first, second = rows_of(compare(runs, "loss", "best:loss", "loss@20"))
    whole, at_20 = [curves[f"low{seed}"] for seed in (1, 2)], [curves[f"high{seed}"][1] for seed in (1, 2)]
    assert (
        first["loss best mean±sd"] == f"{statistics.fmean(map(min, whole)):.4g}±{statistics.stdev(map(min, whole)):.2g}"
    )
    assert second["loss best mean±sd"] == "3"
    mean, deviation = statistics.fmean(at_20), statistics.stdev(at_20)
    assert second["loss @20 mean±sd"] == f"{mean:.4g}±{deviation:.2g} (n 2)", (
        "at step 20 the killed one is as good as any"
    )
    assert [row.get("loss @31", "") for row in rows_of(compare(runs, "loss@31"))] == ["", ""]


def test_the_goal_that_somebody_gave_holds_for_every_value_of_the_metric(runs: Runs) -> None:
    put(runs.add("night-alone-k7qz") / "progress.csv", "step,spread\n1,7\n2,3\n3,5\n")
    cells = [Cell("alone", "1", {"x": 1})]
    write_sweep(runs.home.path, cells, cell_events("alone", 5.0), metric="spread", goal="min", ranking="last")
    assert rows_of(compare(runs, "best:spread"))[0]["spread best"] == "3"


def test_the_best_of_a_metric_whose_name_says_no_direction_is_both_ends(runs: Runs) -> None:
    put(runs.add("night-alone-k7qz") / "progress.csv", "step,loss,zeal\n1,3,7\n2,2,3\n3,1,5\n")
    write_sweep(runs.home.path, [Cell("alone", "1", {"x": 1})], cell_events("alone", 1.0), metric="loss")
    (row,) = rows_of(compare(runs, "best:zeal", "zeal"))
    assert (row["zeal max"], row["zeal min"], row["zeal last"]) == ("7", "3", "5")
    assert "zeal best" not in row


def test_an_evaluation_is_known_by_the_name_that_it_has_for_single_runs(runs: Runs) -> None:
    sweep(runs)
    found = compare(runs, "success_rate")
    assert rows_of(found)[0]["success_rate last mean±sd"] == "0.7±0.14"
    assert not [note for note in found.notes or [] if "No metric" in note]
    for asked in ("eval success_rate", "eval"):
        assert rows_of(compare(runs, asked))[0]["success_rate last mean±sd"] == "0.7±0.14"
    (note,) = [note for note in compare(runs, "succes_rate").notes or [] if "No metric" in note]
    assert "success_rate" in note.partition("Near:")[2]


def test_a_tag_with_an_at_of_its_own_is_that_tag(runs: Runs) -> None:
    cwd = runs.add("night-alone-k7qz")
    put(cwd / "progress.csv", "step,pass@1\n1,0.1\n2,0.3\n")
    write_sweep(runs.home.path, [Cell("alone", "1", {"x": 1})], cell_events("alone", 1.0), metric="loss")
    assert rows_of(compare(runs, "pass@1"))[0]["pass@1 last"] == "0.3"


def test_a_parameter_that_is_the_task_makes_a_table_by_benchmark(runs: Runs) -> None:
    values: dict[tuple[str, str], list[float]] = {}
    cells, events = [], list[dict[str, Any]]()
    for n, (model, task, seed) in enumerate(
        (m, t, s) for m in ("sft", "ppo") for t in ("obj", "spa") for s in (1, 2, 3)
    ):
        value = (n * 7 % 12) / 10
        values.setdefault((model, task), []).append(value)
        cells.append(Cell(f"c{n}", "1", {"model": model, "task_suite": task, "seed": seed}))
        events += cell_events(f"c{n}", value)
    write_sweep(runs.home.path, cells, events, metric="success", ranking="last")
    found = compare(runs)
    (table,) = found.benchmarks or []
    assert (table.metric, table.columns) == ("success (last)", "model|obj|spa")
    truth = {key: f"{statistics.fmean(own):.4g}±{statistics.stdev(own):.2g} (n 3)" for key, own in values.items()}
    assert table.rows == [f"{model}|{truth[model, 'obj']}|{truth[model, 'spa']}" for model in ("ppo", "sft")]
    (note,) = [note for note in found.notes or [] if note.startswith("task_suite is the benchmark")]
    best = {
        task: max(("sft", "ppo"), key=lambda model: statistics.fmean(values[model, task])) for task in ("obj", "spa")
    }
    assert all(f"{truth[best[task], task]}" in note.partition(f"{task}: ")[2].partition(";")[0] for task in best)
    assert found.sweep is not None
    assert found.sweep.best is not None
    assert found.sweep.best.runner_up is None
    assert "success (last) by benchmark:" in (compare(runs, as_markdown=True).markdown or "")


def test_a_reason_stands_beside_the_value_of_a_run_that_was_cut_short() -> None:
    def told(state: str, **end: Any) -> str:
        cell = CellState(Cell("a", "1"), 1, state, value=27.25, value_step=288, end=end)
        return describe_states(Group({}, (cell,), ()), "reward")

    assert told("killed", why="half way is enough") == "killed 27.25@288 (half way is enough)"
    assert told("failed", failure={"kind": "stall"}) == "failed stall 27.25@288"
    assert told("stopped", why="halved at rung 100: 1.2, 4th of 4") == "stopped halved at rung 100: 1.2, 4th of 4"


def test_settings_of_which_one_began_after_an_edit_did_not_run_the_same_code(runs: Runs) -> None:
    cells = [Cell(name, "1", {"x": name}) for name in ("early", "late")]
    for name in ("early", "late"):
        runs.add(f"night-{name}-k7qz")
    path = runs.home.runs / "night-late-k7qz" / "events.jsonl"
    edit = {"seq": 9, "at": "2026-11-21T15:30:00.000Z", "kind": "code_changed", "text": "t.py changed.", "attempt": 1}
    path.write_text(path.read_text() + json.dumps(edit) + "\n")
    events = [*cell_events("early", 1.0), *cell_events("late", 2.0)]
    write_sweep(runs.home.path, cells, events, metric="reward", goal="max", ranking="last")
    told = [note for note in compare(runs).notes or [] if "same code" in note]
    assert told == ["The cells of the best and of early did not all run the same code, which may be the cause."]
