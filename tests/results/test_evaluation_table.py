"""Evaluations in compare_runs and results.md: last and best, episodes, models by benchmarks, near names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcp_server.results.compare import build_comparison
from mcp_server.results.document import render_evaluations
from mcp_server.results.evaluations.evaluations import read_evaluations
from mcp_server.results.finish import write_results
from mcp_server.results.outcome_answers import Comparison
from tests.results.test_evaluation_series import BLOCKS
from tests.support.ended_runs import BEGAN_S, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def put(path: Path, text: str) -> None:
    """Write a file within the time of the run."""
    path.write_text(text)
    os.utime(path, (BEGAN_S + 60, BEGAN_S + 60))


def table(comparison: Comparison) -> list[dict[str, str]]:
    names = (comparison.columns or "").split("|")
    return [dict(zip(names, row.split("|"), strict=True)) for row in comparison.rows or []]


def compare(runs: Runs, *metrics: str, markdown: bool = False) -> Comparison:
    run_ids = sorted(run.run_id for run in runs.store.list_runs())
    return build_comparison(runs.store, runs.scalars, run_ids=run_ids, metrics=metrics, as_markdown=markdown)


def evaluate(runs: Runs, run_id: str, model: str, benchmark: str, success: float) -> None:
    """An evaluation as RLinf runs it: a dict in the log, checkpoint and benchmark in the command."""
    command = (
        f"python eval.py rollout.model.model_path={model} env.eval.task_suite_name={benchmark} logdir=logs/{run_id}"
    )
    runs.add(run_id, command=command)
    text = f"{{'eval/success_once': {success}, 'eval/num_trajectories': 500}}\n"
    runs.store.run_directory(run_id).log(1).write_text(text)


def matrix(runs: Runs) -> None:
    for number, step in enumerate((900, 1000)):
        model = f"/ckpt/cfm/global_step_{step}/actor/model"
        evaluate(runs, f"ev-{number}a", model, "libero_spatial", 0.9 + number / 100)
        evaluate(runs, f"ev-{number}b", model, "libero_goal", 0.8 - number / 100)


def test_evaluations_of_models_on_benchmarks_are_a_table_of_both(runs: Runs) -> None:
    matrix(runs)
    (one,) = compare(runs).benchmarks or []
    assert (one.metric, one.columns) == ("eval/success_once", "model|libero_goal|libero_spatial")
    assert one.rows == [
        "global_step_900|0.8±0.018 n=500|0.9±0.013 n=500",
        "global_step_1000|0.79±0.018 n=500|0.91±0.013 n=500",
    ]
    markdown = compare(runs, markdown=True).markdown or ""
    assert "eval/success_once by benchmark:" in markdown
    assert "| global_step_900 | **0.8±0.018 n=500** | 0.9±0.013 n=500 |" in markdown
    assert "| global_step_1000 | 0.79±0.018 n=500 | **0.91±0.013 n=500** |" in markdown


@pytest.mark.parametrize(("model", "label"), [("/ckpt/cfm/step_9/actor/model", "step_9"), ("sft.pt", "sft.pt")])
def test_the_row_of_the_only_model_has_its_name(runs: Runs, model: str, label: str) -> None:
    for benchmark in ("goal", "spatial"):
        evaluate(runs, f"ev-{benchmark}", model, benchmark, 0.5)
    (one,) = compare(runs).benchmarks or []
    assert one.rows == [f"{label}|0.5±0.022 n=500|0.5±0.022 n=500"]


def test_benchmarks_in_the_rows_of_a_file_are_columns_too(runs: Runs) -> None:
    for number in (1, 2):
        cwd = runs.add(f"ev-{number}")
        rows = "".join(f"| {name} | {number * 10} % | 50 |\n" for name in ("b", "a"))
        put(cwd / "eval.md", f"# Step 100\n| dataset | success_rate | episodes |\n|--|--|--|\n{rows}")
    (one,) = compare(runs).benchmarks or []
    assert (one.metric, one.columns) == ("success_rate", "run|step|a|b")
    assert one.rows == ["ev-1|100|10±4.2% n=50|10±4.2% n=50", "ev-2|100|20±5.7% n=50|20±5.7% n=50"]


def test_a_file_with_a_column_per_benchmark_is_a_table_of_models_by_benchmarks(runs: Runs) -> None:
    rows = "| sft | 50% | 40% |\n| cfm | 90% | 80% |\n"
    put(runs.add("ev-aaaa") / "eval_results.md", f"| Model | Spatial | Goal |\n|--|--|--|\n{rows}")
    (one,) = compare(runs).benchmarks or []
    assert (one.columns, one.rows) == ("model|Goal|Spatial", ["cfm|80%|90%", "sft|40%|50%"])
    put(runs.add("ev-bbbb") / "eval.json", '[{"model": "a", "loss": 1, "length": 2}, {"model": "b", "loss": 2}]')
    assert build_comparison(runs.store, runs.scalars, run_ids=["ev-bbbb"]).benchmarks is None


def test_without_several_benchmarks_there_is_no_such_table(runs: Runs) -> None:
    evaluate(runs, "ev-a", "/ckpt/global_step_1", "goal", 0.5)
    evaluate(runs, "ev-b", "/ckpt/global_step_2", "goal", 0.6)
    assert compare(runs).benchmarks is None


def test_last_and_best_have_their_steps_and_the_episodes_a_column(runs: Runs) -> None:
    for number in (1, 2):
        cwd = runs.add(f"aj-{number}")
        text = BLOCKS if number == 1 else BLOCKS.replace("0.5100", "0.6100")
        put(cwd / "val_results.md", text)
    first, second = table(compare(runs, "mean_reward"))
    assert first["eval mean_reward"] == "0.51±0.03@30/0.55±0.03@20"
    assert second["eval mean_reward"] == "0.61±0.03@30"
    assert compare(runs, "mean_reward").same["episodes"] == "228"  # type: ignore[index]
    assert "± of a single run is one standard error." in (compare(runs, "mean_reward").notes or [])


def test_a_metric_by_another_word_names_the_near_ones(runs: Runs) -> None:
    matrix(runs)
    notes = compare(runs, "success_rate").notes or []
    assert "No metric 'success_rate' in these runs. Near: eval/success_once." in notes
    assert not [note for note in compare(runs, "eval/success_once").notes or [] if "No metric" in note]
    assert not [note for note in compare(runs, "success_once").notes or [] if "No metric" in note]


def test_the_head_of_a_column_is_a_name_of_its_metric_and_eval_alone_is_all_evaluations(runs: Runs) -> None:
    put(runs.add("cfm-1") / "eval.json", '{"reached": 0.5, "length": 7}')
    for asked, columns in (("eval reached", {"eval reached"}), ("eval", {"eval reached", "eval length"})):
        found = compare(runs, asked)
        assert {name for name in table(found)[0] if name.startswith("eval")} == columns
        assert not [note for note in found.notes or [] if "No metric" in note]


def test_an_evaluation_that_is_logged_and_in_a_file_is_one_column(runs: Runs) -> None:
    for number in (1, 2):
        cwd = runs.add(f"sb-{number}")
        put(cwd / "progress.csv", f"step,eval/mean_reward,loss\n10,{number}.5,1\n20,{number}.25,0.5\n")
        lines = "".join(
            f'{{"step": {step}, "mean_reward": {number}.{digits}, "std_reward": 1, "episodes": 100}}\n'
            for step, digits in ((10, 5), (20, 25))
        )
        put(cwd / "val.jsonl", lines)
    first, _ = table(compare(runs))
    assert first["eval mean_reward"] == "1.25±0.1@20/1.5±0.1@10"
    assert not [name for name in first if name.startswith("eval/mean_reward")]


def test_the_document_has_one_row_per_step_newest_last(tmp_path: Path) -> None:
    (tmp_path / "val_results.md").write_text(BLOCKS)
    (tmp_path / "val.jsonl").write_text('{"step": 20, "mean_reward": 0.55, "score": 0.6000000000000001}\n')
    files = [tmp_path / "val.jsonl", tmp_path / "val_results.md"]
    lines = list(render_evaluations([one for path in files for one in read_evaluations(path)]))
    rows = [line for line in lines if line.startswith("| ") and "---" not in line]
    assert rows[0].startswith("| step | pass_n | total_tasks |")
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| 0", "| 20", "| 30"]
    assert "31.0%" not in rows[3]
    assert "51.2% ± 3.3%" in rows[3]
    assert "**0.55 ± 0.03**" in rows[2]
    assert "0.6" in rows[2].replace("**", "").split(" | ")[-1], "not the noise of a binary fraction"
    assert "0000001" not in "".join(rows)
    assert "- Best mean_reward: 0.55±0.03@20, last 0.51±0.03@30" in lines
    assert sum("0.55" in line for line in rows) == 1, "the same evaluation in two files appears once"


def test_what_is_told_as_an_evaluation_is_not_named_as_left_out(runs: Runs, tmp_path: Path) -> None:
    cwd = runs.add("ev-aaaa", steps=False)  # no curve is surely its own
    lines = [
        {"step": 1, "val_acc": 0.5, "train_loss": 0.1, "pass_n": 4},
        {"step": 2, "val_acc": 0.6, "train_loss": 0.1, "pass_n": 4},
    ]
    put(cwd / "eval.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    found = compare(runs)
    (row,) = table(found)
    assert list(row)[-2:] == ["eval val_acc", "eval pass_n"]
    assert found.notes is None
    run = runs.store.observe("ev-aaaa")
    write_results(run, runs.store, runs.scalars, result_dir=str(tmp_path / "out"), environ=os.environ)
    assert "Left out" not in (tmp_path / "out" / "results.md").read_text()
