"""Models by benchmarks: rows are all settings that differ, seeds are a mean, and what is left out is said."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest

from mcp_server.results.compare import build_comparison
from mcp_server.results.outcome_answers import Comparison
from tests.support.ended_runs import BEGAN_S, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def evaluate(
    runs: Runs, run_id: str, success: float, state: str | None = "finished", episodes: int = 50, **spec: Any
) -> None:
    """An evaluation that prints its figure at its end."""
    params: dict[str, Any] = spec.pop("params", {})
    command = spec.pop("command", "python eval.py {params}")
    runs.add(run_id, state, command=command, params=params, tags=["ev"], **spec)
    text = f"{{'eval/success': {success}, 'eval/num_episodes': {episodes}}}\n"
    runs.store.run_directory(run_id).log(1).write_text(text)


def compare(runs: Runs, **asked: Any) -> Comparison:
    return build_comparison(runs.store, runs.scalars, tags=["ev"], **asked)


def pivot(runs: Runs) -> list[dict[str, str]]:
    (table,) = compare(runs).benchmarks or []
    names = table.columns.split("|")
    return [dict(zip(names, row.split("|"), strict=True)) for row in table.rows]


def test_settings_beside_the_model_have_rows_of_their_own(runs: Runs) -> None:
    truth = {}
    for n, (model, steps, suite) in enumerate(
        (m, s, b) for m in ("sft", "ppo") for s in (1, 2) for b in ("obj", "spa")
    ):
        truth[model, str(steps), suite] = 0.1 + n / 10
        params = {"model_path": f"/ckpt/{model}/actor", "num_steps": steps, "task_suite": suite}
        evaluate(runs, f"ev-{n:02}", 0.1 + n / 10, params=params)
    rows = pivot(runs)
    assert [[*row][:2] for row in rows] == [["model", "num_steps"]] * 4
    found = {
        (row["model"], row["num_steps"], suite): float(row[suite].split("±")[0])
        for row in rows
        for suite in ("obj", "spa")
    }
    assert found == pytest.approx(truth)


def test_seeds_are_a_mean_with_the_deviation_of_the_sample(runs: Runs) -> None:
    values: dict[tuple[str, str], list[float]] = {}
    for n, (model, suite, seed) in enumerate(
        (m, b, s) for m in ("sft", "ppo") for b in ("obj", "spa") for s in (1, 2, 3)
    ):
        value = round(0.2 + (n * 7 % 12) / 20, 3)
        values.setdefault((model, suite), []).append(value)
        evaluate(runs, f"ev-{n:02}", value, params={"policy": model, "task_suite": suite, "seed": seed})
    rows = {row["model"]: row for row in pivot(runs)}
    for (model, suite), own in values.items():
        mean, deviation = statistics.fmean(own), statistics.stdev(own)
        assert rows[model][suite] == f"{mean:.4g}±{deviation:.2g} (n 3)"
    assert [note for note in compare(runs).notes or [] if "mean±sd" in note]


def test_seeds_in_the_path_of_a_model_are_seeds(runs: Runs) -> None:
    for n, (seed, suite) in enumerate((s, b) for s in (1, 2) for b in ("obj", "spa")):
        params = {"model_path": f"/ckpt/ppo_seed{seed}/last.pt", "task_suite": suite, "logdir": f"logs/{n}"}
        evaluate(runs, f"ev-{n}", 0.4 + seed / 10, params=params)
    (row,) = pivot(runs)
    assert row["obj"] == row["spa"] == "0.55±0.071 (n 2)"


def test_evaluations_that_nothing_tells_apart_are_no_mean(runs: Runs) -> None:
    for n, at in enumerate(("2026-11-21T15:30:00.000Z", "2026-11-21T16:30:00.000Z")):
        for suite in ("obj", "spa"):
            params = {"policy": "ppo", "task_suite": suite}
            evaluate(runs, f"ev-{n}-{suite}", 0.4 + n / 10, params=params, created_at=at)
    rows = pivot(runs)
    assert [(row["run"], row["obj"][:3], row["spa"][:3]) for row in rows] == [
        ("ev-0-obj, ev-0-spa", "0.4", "0.4"),
        ("ev-1-obj, ev-1-spa", "0.5", "0.5"),
    ]


def test_a_seed_that_was_evaluated_twice_counts_once(runs: Runs) -> None:
    for n, seed in enumerate((1, 2, 2)):
        for suite in ("obj", "spa"):
            params = {"policy": "ppo", "task_suite": suite, "seed": seed}
            at = f"2026-11-21T1{n}:30:00.000Z"
            evaluate(runs, f"ev-{n}-{suite}", (0.4, 0.9, 0.6)[n], params=params, created_at=at)
    rows = sorted(pivot(runs), key=lambda row: "(n 2)" in row["obj"])
    assert [row["obj"].partition("±")[0] for row in rows] == ["0.9", "0.5"]
    assert rows[0]["run"] == "ev-1-obj, ev-1-spa"
    assert rows[1]["obj"].endswith("(n 2)")


def test_the_benchmark_may_be_the_file_of_options(runs: Runs) -> None:
    for n, (model, name) in enumerate((m, b) for m in ("sft", "ppo") for b in ("libero_goal", "libero_spatial")):
        command = f"python eval.py --config-name {name} rollout.model.model_path=/ckpt/{model}/actor"
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, command=command)
    rows = {row["model"]: row for row in pivot(runs)}
    found = {model: [row[name][:3] for name in ("libero_goal", "libero_spatial")] for model, row in rows.items()}
    assert found == {"sft": ["0.1", "0.2"], "ppo": ["0.3", "0.4"]}


def test_an_environment_variable_is_a_setting(runs: Runs) -> None:
    for n, (switch, suite) in enumerate((e, b) for e in ("0", "1") for b in ("obj", "spa")):
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, params={"task_suite": suite}, env={"NO_MASK": switch})
    assert {row["$NO_MASK"]: row["obj"][:3] for row in pivot(runs)} == {"0": "0.1", "1": "0.3"}


def test_what_has_not_finished_is_left_out_and_said(runs: Runs) -> None:
    for n, suite in enumerate(("obj", "spa", "goal", "ten")):
        state = "failed" if suite == "goal" else None if suite == "ten" else "finished"
        evaluate(runs, f"ev-{n}", 0.5, state, params={"policy": "ppo", "task_suite": suite})
    (row,) = pivot(runs)
    assert "goal" not in row
    assert "ten" not in row
    (note,) = [note for note in compare(runs).notes or [] if note.startswith("Not in benchmarks")]
    assert "ev-2 (failed)" in note
    assert "ev-3 (lost)" in note


def test_a_setting_that_goes_with_the_benchmark_is_no_row_and_is_said(runs: Runs) -> None:
    for n, (model, suite) in enumerate((m, b) for m in ("sft", "ppo") for b in ("obj", "spa")):
        horizon = {"obj": 280, "spa": 220}[suite]
        params = {"policy": model, "task_suite": suite, "horizon": horizon, "output_dir": f"out/{model}-{suite}"}
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, params=params)
    assert [row["model"] for row in pivot(runs)] == ["ppo", "sft"]
    assert "Differ with the benchmark: horizon." in (compare(runs).notes or [])


def test_weights_of_any_name_tell_rows_apart(runs: Runs) -> None:
    for n, (weights, suite) in enumerate((m, b) for m in ("a", "b") for b in ("obj", "spa")):
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, params={"weights_dir": f"/w/{weights}", "task_suite": suite})
    assert [(row["weights_dir"], row["obj"][:3]) for row in pivot(runs)] == [("/w/a", "0.1"), ("/w/b", "0.3")]


def test_values_that_mean_the_same_are_one_row(runs: Runs) -> None:
    for n, (rate, suite) in enumerate((("1e-3", "obj"), ("0.001", "spa"), ("2e-3", "obj"), ("0.002", "spa"))):
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, params={"lr": rate, "task_suite": suite})
    assert [(row["lr"], row["obj"][:3], row["spa"][:3]) for row in pivot(runs)] == [
        ("0.001", "0.1", "0.2"),
        ("0.002", "0.3", "0.4"),
    ]


def test_a_directory_of_each_run_is_no_setting_whatever_its_name(runs: Runs) -> None:
    for n, (model, suite, seed) in enumerate((m, b, s) for m in ("a", "b") for b in ("obj", "spa") for s in (1, 2)):
        params = {
            "policy": model,
            "task_suite": suite,
            "seed": seed,
            "cache": f"/c/{model}{suite}{seed}",
            "x": f"ev-{n}.h5",
        }
        evaluate(runs, f"ev-{n}", 0.1 + n / 10, params=params)
    assert [(row["model"], row["obj"]) for row in pivot(runs)] == [("a", "0.15±0.071 (n 2)"), ("b", "0.55±0.071 (n 2)")]


def test_a_long_table_of_benchmarks_says_how_much_of_it_is_shown(runs: Runs) -> None:
    for n, (model, suite) in enumerate((m, b) for m in range(50) for b in ("obj", "spa")):
        params = {"policy": f"policy_after_{model}_thousand_steps", "task_suite": suite}
        evaluate(runs, f"ev-{n:03}", 0.5, params=params)
    found = compare(runs)
    (table,) = found.benchmarks or []
    assert 8 <= len(table.rows) < 50
    assert f"benchmarks has {len(table.rows)} of 50 rows: markdown=true has all." in (found.notes or [])
    assert (compare(runs, as_markdown=True).markdown or "").count("_thousand_steps | ") >= 50


def test_evaluations_that_the_table_of_runs_has_no_room_for_count(runs: Runs) -> None:
    for n, (seed, suite) in enumerate((s, b) for s in range(13) for b in ("obj", "spa")):
        evaluate(runs, f"ev-{n:02}", 0.5 + seed / 100, params={"policy": "p", "task_suite": suite, "seed": seed})
    (row,) = pivot(runs)
    mean = statistics.fmean(0.5 + seed / 100 for seed in range(13))
    assert row["obj"].startswith(f"{mean:.3g}±")
    assert row["obj"].endswith("(n 13)")


def test_rows_of_runs_name_the_model(runs: Runs) -> None:
    for n, model in enumerate(("sft", "ppo")):
        evaluate(runs, f"ev-{n}", 0.5 + n / 10, params={"model_path": f"/ckpt/{model}/actor/model"})
    found = compare(runs)
    names = (found.columns or "").split("|")
    assert sorted(row.split("|")[names.index("model_path")] for row in found.rows or []) == ["ppo", "sft"]


def test_results_in_files_count_whatever_becomes_of_the_run(runs: Runs) -> None:
    path = runs.add("ev-0", None, tags=["ev"]) / "eval.json"
    path.write_text(json.dumps([{"task": name, "success": 0.5} for name in ("a", "b")]))
    os.utime(path, (BEGAN_S + 60, BEGAN_S + 60))
    (row,) = pivot(runs)
    assert (row["a"], row["b"]) == ("0.5", "0.5")
