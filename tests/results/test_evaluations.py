"""Evaluation files as trainers, harnesses and agents write them: numbers are exact, broken files are reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcp_server.results.evaluations.evaluation_text import Row, render_rows, render_table
from mcp_server.results.evaluations.evaluations import Evaluation, find_run_evaluations, read_evaluations
from tests.support.ended_runs import BEGAN_S, Runs

VALIDATION = """# Validation at step 300

| dataset | pass_n | total_tasks | task_pass_rate@1 | task_pass_rate@4 | mean_reward | std_reward |
|:--------|------:|------------:|-----------------:|:----------------:|------------:|-----------:|
| appworld | 4 | 57 | 0.4035087719298246 | **0.6140350877192983** | 0.4521 | 0.31 |
| a\\|b | 4 | 10 | 1e-3 | nan | n/a | `-2` |
"""


def rows(path: Path, text: str) -> list[dict[str, object]]:
    path.write_text(text)
    return [dict(row) for one in read_evaluations(path) for row in one.rows]


def test_a_table_in_markdown_is_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "validation.md"
    path.write_text(VALIDATION)
    (one,) = read_evaluations(path)
    assert one.title == "Validation at step 300"
    assert one.rows[0] == {
        "dataset": "appworld",
        "pass_n": 4,
        "total_tasks": 57,
        "task_pass_rate@1": 0.4035087719298246,
        "task_pass_rate@4": 0.6140350877192983,
        "mean_reward": 0.4521,
        "std_reward": 0.31,
    }
    last = dict(one.rows[1])
    assert (last["dataset"], last["task_pass_rate@1"], last["mean_reward"], last["std_reward"]) == (
        "a|b",
        0.001,
        "n/a",
        -2,
    )


@pytest.mark.parametrize(
    "text",
    [
        "pass_n: 4\ntotal_tasks: 57\nmean_reward: 0.45\n",
        "- pass_n: 4\n- **total_tasks**: 57\n* `mean_reward` = 0.45\n",
        "# Results\n\n```\npass_n: 4\ntotal_tasks = 57\nmean_reward\uff1a0.45\n```\n",
        '```json\n{"pass_n": 4, "total_tasks": 57, "mean_reward": 0.45}\n```\n',
        "pass_n | total_tasks | mean_reward\n--- | --- | ---\n4 | 57 | 0.45\n",
    ],
)
def test_figures_in_markdown_are_read_in_any_of_these_spellings(tmp_path: Path, text: str) -> None:
    assert rows(tmp_path / "eval.md", text) == [{"pass_n": 4, "total_tasks": 57, "mean_reward": 0.45}]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("all_results.json", '{"epoch": 3.0, "eval_accuracy": 0.91}', [{"epoch": 3.0, "eval_accuracy": 0.91}]),
        ("metrics.json", '{"test": {"success": 0.5, "runs": 20}}', [{"test.success": 0.5, "test.runs": 20}]),
        (
            "results_2026-11-21T15-30.json",
            '{"results": {"gsm8k": {"alias": "gsm8k", "em,strict": 0.61}, "mmlu": {"acc,none": 0.7}}, "versions": {}}',
            [{"task": "gsm8k", "em,strict": 0.61}, {"task": "mmlu", "acc": 0.7}],
        ),
        (
            "eval_results.json",
            '[{"seed": 1, "rew": 2}, {"seed": 2, "rew": 3}]',
            [{"seed": 1, "rew": 2}, {"seed": 2, "rew": 3}],
        ),
        ("results.json", '{"results": [{"seed": 1}], "mean": 2.5}', [{"seed": 1}, {"mean": 2.5}]),
        (
            "results.jsonl",
            '{"n": 1, "acc": 0.25}\n\n{"n": 2, "acc": 0.5}\n',
            [{"n": 1, "acc": 0.25}, {"n": 2, "acc": 0.5}],
        ),
        ("results.json", '{"step": 1}\n{"step": 2}\n', [{"step": 1}, {"step": 2}]),
        ("metrics.json", "[]", []),
        ("metrics.json", "3", []),
    ],
)
def test_result_files_are_read(tmp_path: Path, name: str, text: str, expected: list[dict[str, object]]) -> None:
    assert rows(tmp_path / name, text) == expected


def test_numbers_stay_what_they_are(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": 12345678901234567890, "c": 1e-320, "d": True, "f": 10**40, "e": float("inf")}
    assert rows(tmp_path / "metrics.json", json.dumps(values)) == [values]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("metrics.json", '{"a": 1', "not JSON: "),
        ("metrics.json", "[" * 100_000, "not JSON: "),
        ("results.jsonl", '{"a": 1}\n{"a": \n', "1 lines are not JSON"),
        ("results.jsonl", '{"a": 1}\n' * 300, "only the last 200 of 300 rows"),
        ("metrics.json", " " * 2_000_001, "larger than 2,000,000 bytes"),
        ("eval.md", "| a |\n| --- |\n" + "| 1 |\n" * 300, "only the first 200 of 300 rows"),
    ],
)
def test_broken_and_too_long_files_are_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (one,) = read_evaluations(path)
    assert one.problem is not None
    assert one.problem.startswith(problem)
    assert len(one.rows) <= 200


@pytest.mark.parametrize(
    ("name", "line", "counts"),
    [
        ("metrics.jsonl", {"step": 10, "train/loss": 0.5, "val/acc": 0.9}, False),
        ("results.jsonl", {"step": 10, "loss": 0.5, "lr": 1e-4}, False),
        ("metrics.jsonl", {"it": 10, "nll": 0.5, "gnorm": 0.1}, False),
        ("metrics.jsonl", {"step": 10, "acc": 0.9}, True),
        ("metrics.jsonl", {"step": 10, "val_loss": 0.9}, True),
        ("eval_metrics.jsonl", {"step": 10, "train_acc": 0.9, "val_acc": 0.8}, True),
    ],
)
def test_a_log_of_training_is_no_evaluation(tmp_path: Path, name: str, line: dict[str, float], counts: bool) -> None:
    (tmp_path / name).write_text(f"{json.dumps(line)}\n" * 3)
    assert bool(read_evaluations(tmp_path / name)) is counts


def test_pipes_and_links_are_reported_and_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.json")
    (tmp_path / "eval.md").symlink_to("/dev/zero")
    (tmp_path / "metrics.json").mkdir()
    for name in ("results.json", "eval.md", "metrics.json", "none.json"):
        (one,) = read_evaluations(tmp_path / name)
        assert one.rows == ()
        assert one.problem


def test_the_evaluations_of_a_run_are_found_below_its_directories(tmp_path: Path) -> None:
    runs, out = Runs(tmp_path), tmp_path / "out"
    cwd = runs.add()
    names = [
        "outputs/eval_results.json",
        "a/b/c/metrics.json",
        "experiment_log.md",
        "old/results.json",
        "late/results.json",
    ]
    names += ["tokenizer_config.json", "deep/1/2/3/4/5/results.json", ".hidden/results.json", "venv/results.json"]
    for name in names:
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text('{"a": 1}')
        os.utime(cwd / name, (BEGAN_S + 60,) * 2)
    os.utime(cwd / "old/results.json", (BEGAN_S - 60,) * 2)
    os.utime(cwd / "late/results.json", (BEGAN_S + 86400,) * 2)
    out.mkdir()
    (out / "validation.md").write_text(VALIDATION)
    os.utime(out / "validation.md", (BEGAN_S + 86400,) * 2)  # the directory is the run's own: evaluated later
    (out / "results.md").write_text("<!-- runward run cfm-7kqz, written by finish_blueprint: -->\n| a |\n| - |\n")
    (out / "elsewhere").symlink_to(tmp_path / "work")
    run = runs.store.observe("cfm-7kqz")
    own = runs.scalars.attribution.of(run).with_result_directory(out)
    paths = [str(one.source.relative_to(tmp_path)) for one in find_run_evaluations(run, own)]
    assert paths == ["out/validation.md", "work/cfm-7kqz/a/b/c/metrics.json", "work/cfm-7kqz/outputs/eval_results.json"]


def test_rows_become_a_table_that_no_value_breaks() -> None:
    assert render_rows([{"a": 1, "b": "x|y"}, {"b": "two\nlines", "c": None}]) == [
        "| a | b | c |",
        "| --- | --- | --- |",
        "| 1 | x\\|y |  |",
        "|  | two lines |  |",
    ]
    assert render_rows([{"a": n} for n in range(60)])[-1] == "… of 60 rows the first 50."
    assert render_table(["a"], []) == ["| a |", "| --- |"]


def test_an_evaluation_read_back_from_its_table_is_the_same(tmp_path: Path) -> None:
    rows_of_table: tuple[Row, ...] = ({"task": "a|b", "n": 3, "rate": 0.1 + 0.2},)
    (tmp_path / "eval.md").write_text("\n".join(render_rows(rows_of_table)))
    assert read_evaluations(tmp_path / "eval.md") == [Evaluation(tmp_path / "eval.md", rows_of_table)]


@pytest.mark.parametrize("text", [" ", "# ", "- a", "|", "```\n", "a: ", "-|", "{", "\\|"])
def test_a_long_line_of_anything_is_read_in_one_go(tmp_path: Path, text: str) -> None:
    for name in ("eval.md", "eval.json", "eval.jsonl"):
        (tmp_path / name).write_text("# " + text * (1_900_000 // len(text)) + "x")
        assert len(read_evaluations(tmp_path / name)) <= 30


def test_the_settings_in_a_document_of_a_result_directory_are_not_figures(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add()
    for name in ("results/README.md", "results/notes.md", "results/val.md"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_text("- learning_rate: 5e-5\n- accuracy: 0.5\n")
        os.utime(cwd / name, (BEGAN_S + 60, BEGAN_S + 60))
    own = runs.scalars.attribution.of(runs.store.observe("cfm-7kqz"))
    found = find_run_evaluations(runs.store.observe("cfm-7kqz"), own)
    assert [one.source.name for one in found] == ["val.md"]
