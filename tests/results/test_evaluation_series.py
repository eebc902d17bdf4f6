"""Evaluations are series by step, newest last, with episodes and uncertainty where files have what it takes."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mcp_server.results.document import _render_series
from mcp_server.results.evaluations.evaluation_series import EvaluationSeries, build_series, format_series, name_series
from mcp_server.results.evaluations.evaluation_text import Value, parse_value
from mcp_server.results.evaluations.evaluations import Evaluation, find_evaluation_files, read_evaluations
from tests.support.rows import for_each

Read = Callable[..., dict[str, EvaluationSeries]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Series by name of files that are given oldest first."""

    def series(**files: str) -> dict[str, EvaluationSeries]:
        evaluations: list[Evaluation] = []
        for name, text in files.items():
            path = tmp_path / name.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            evaluations = [*read_evaluations(path), *evaluations]
        return {one.name: one for one in build_series(evaluations)}

    return series


def values(series: EvaluationSeries) -> list[tuple[int | None, float]]:
    return [(point.step, point.value) for point in series.points]


def block(step: str, rate: str, reward: float) -> str:
    return (
        f"\n## Step {step}\n- pass_n: 4\n- total_tasks: 57\n- num_all_success_tasks: 3\n- num_pass_n_tasks: 30\n"
        f"- task_pass_rate@1: {rate}\n- task_pass_rate@4: 52.63%\n- mean_reward: {reward:.4f}\n- std_reward: 0.4600\n"
    )


BLOCKS = block("0", "31.00%", 0.31) + block("20", "55.00 %", 0.55) + block("30", "51.20%", 0.51)


def test_blocks_of_steps_are_a_series_whose_last_block_is_the_newest(read: Read) -> None:
    series = read(val_results__md=BLOCKS)
    assert values(series["mean_reward"]) == [(0, 0.31), (20, 0.55), (30, 0.51)]
    assert values(series["task_pass_rate@1"]) == [(0, 31.0), (20, 55.0), (30, 51.2)]
    best = series["mean_reward"].best
    assert best is not None
    assert (best.step, best.value) == (20, 0.55)
    assert series["pass_n"].best is None


def test_a_percentage_keeps_its_unit(read: Read) -> None:
    series = read(eval__md="| success_rate | plain |\n| --- | --- |\n| 51 % | 0.51 |\n")
    assert [series[name].last.unit for name in ("success_rate", "plain")] == ["%", ""]
    assert (series["success_rate"].last.value, format_series(series["success_rate"])) == (51.0, "51%")
    assert series["success_rate"].last.share == series["plain"].last.share
    assert read(eval__md="- accuracy: 51.2%\n")["accuracy"].last.value == 51.2
    assert read(eval__json='{"accuracy": "51.2%"}')["accuracy"].last.unit == "%"


def test_a_label_in_the_heading_is_the_benchmark(read: Read) -> None:
    series = read(val_results__md=block("10 (math)", "50%", 0.5) + block("10 (code)", "40%", 0.4))
    assert values(series["math.mean_reward"]) == [(10, 0.5)]
    assert values(series["code.mean_reward"]) == [(10, 0.4)]


def test_the_spread_becomes_a_standard_error(read: Read) -> None:
    series = read(val_results__md=BLOCKS)
    reward, rate, any_of_four = (series[name].last for name in ("mean_reward", "task_pass_rate@1", "task_pass_rate@4"))
    assert (reward.episodes, rate.episodes, any_of_four.episodes) == (57 * 4, 57 * 4, 57)
    assert reward.error == pytest.approx(0.46 / math.sqrt(228))
    assert rate.error == pytest.approx(100 * math.sqrt(0.512 * 0.488 / 228))
    assert any_of_four.error == pytest.approx(100 * math.sqrt(0.5263 * 0.4737 / 57))
    assert "std_reward" not in series
    assert format_series(series["mean_reward"]) == "0.51±0.03@30/0.55±0.03@20"


@pytest.mark.parametrize(
    ("row", "episodes", "error"),
    [
        ('{"eval/success_once": 0.85, "eval/num_trajectories": 500}', 500, math.sqrt(0.85 * 0.15 / 500)),
        ('{"eval/success_once": 1.0, "n_episodes": 20}', 20, 0.0),
        ('{"eval/success_once": 0.85}', None, None),
        ('{"eval/success_once": 1.85, "n": 4}', 4, None),
        ('{"eval/success_once": 0.5, "eval/success_once_stderr": 0.02}', None, 0.02),
        ('{"eval/success_once": 0.5, "eval/success_once_std": 0.5, "episodes": 100}', 100, 0.05),
        ('{"eval/success_once": 0.5, "eval/success_once_std": 0.5}', None, None),
    ],
)
def test_uncertainty_is_computed_only_from_what_is_there(
    read: Read, row: str, episodes: int | None, error: float | None
) -> None:
    last = read(eval__json=row)["eval/success_once"].last
    assert last.episodes == episodes
    assert last.error == (None if error is None else pytest.approx(error))


def test_a_reward_is_not_a_rate(read: Read) -> None:
    assert read(eval__json='{"mean_reward": 0.5, "success_return": 0.5, "n": 10}')["mean_reward"].last.error is None


DICTS = (
    "{'global_steps': 0, 'pass_n': 4, 'total_tasks': 57, 'num_pass_n_tasks(pass@4)': 30, 'task_pass_rate@1': 0.31, "
    "'task_pass_rate@4-all-pass': 0.05, 'mean_reward': 0.31, 'std_reward': np.float64(0.46)}\n"
    "{'global_steps': 20, 'pass_n': 4, 'total_tasks': 57, 'mean_reward': tensor(0.41, device='cuda:0'), "
    "'std_reward': nan}\n"
)


def test_lines_of_python_dicts_are_a_series(read: Read) -> None:
    series = read(validation__md=DICTS)
    assert values(series["mean_reward"]) == [(0, 0.31), (20, 0.41)]
    assert series["mean_reward"].points[0].error == pytest.approx(0.46 / math.sqrt(228))
    assert series["mean_reward"].last.error is None
    assert series["task_pass_rate@4-all-pass"].last.episodes == 57


def test_a_file_below_a_directory_of_validation_results_needs_no_name_of_its_own(tmp_path: Path) -> None:
    texts = {
        "saved_val_result/qwen2-math.md": DICTS.replace("global_steps", "n"),
        "docs/qwen2-math.md": DICTS.replace("global_steps", "n"),
        "docs/dicts.md": DICTS,
        "docs/blocks.md": BLOCKS,
        "docs/guide.md": "# Guide\n## Step 1: install\n- retries: 3\n",
        "eval/eval_log.txt": DICTS,
        "evaluations.npz": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {str(path.relative_to(tmp_path)) for path, _ in find_evaluation_files(tmp_path)}
    assert found == set(texts) - {"docs/qwen2-math.md", "docs/guide.md"}


def test_printed_lines_of_names_and_values_have_the_step_before_them(read: Read) -> None:
    text = (
        "[EVAL @ step 20] client/math  mean_reward=0.5123  std_reward=0.4100  task_pass_rate@1=51.20%  n_rollouts=228\n"
        "lr=0.1 loss=2\nnothing\n"
    )
    series = read(eval_log__txt=text)
    assert set(series) == {f"client/math.{name}" for name in ("mean_reward", "task_pass_rate@1", "n_rollouts")}
    assert format_series(series["client/math.task_pass_rate@1"]) == "51.2±3.3%@20"


def test_a_table_before_training_belongs_to_the_series(read: Read) -> None:
    table = "| dataset | success_rate | num_episodes |\n|--|--|--|\n| a | {}% | 100 |\n| b | {}% | 100 |\n"
    text = "# Baseline before training\n" + table.format(51, 40) + "\n# Step 100\n" + table.format(71, 60)
    series = read(eval__md=text)
    assert values(series["a.success_rate"]) == [(0, 51.0), (100, 71.0)]
    assert values(series["b.success_rate"]) == [(0, 40.0), (100, 60.0)]


def test_the_step_may_be_in_a_column_a_line_or_the_name_of_the_file(read: Read) -> None:
    assert values(read(val__jsonl='{"step": 9, "acc": 0.2}\n{"step": 3, "acc": 0.1}\n')["acc"]) == [(3, 0.1), (9, 0.2)]
    text = "Step: 0\nacc: 0.1\nStep: 10\nacc: 0.2\n"
    assert values(read(eval__md=text)["acc"]) == [(0, 0.1), (10, 0.2)]
    first, last = '{"acc": 0.1}', '{"acc": 0.2}'
    assert values(read(eval_step_500__json=last, eval_step_20__json=first)["acc"]) == [(20, 0.1), (500, 0.2)]
    epochs = '{"epoch": 1, "acc": 0.1}\n{"epoch": 2, "acc": 0.2}\n'
    assert values(read(val__jsonl=epochs)["acc"]) == [(1, 0.1), (2, 0.2)]


def test_the_same_evaluation_in_two_files_counts_once(read: Read) -> None:
    lines = "".join(f'{{"step": {step}, "mean_reward": {reward}}}\n' for step, reward in ((0, 0.31), (20, 0.5501)))
    series = read(val_results__md=BLOCKS, val__jsonl=lines)["mean_reward"]
    assert values(series) == [(0, 0.31), (20, 0.55), (30, 0.51)]
    assert [path.name for path in series.sources] == ["val_results.md"]
    results = '{"epoch": 3.0, "eval_accuracy": 0.91, "eval_samples": 872}'
    both = read(all_results__json=results, eval_results__json=results)
    assert values(both["eval_accuracy"]) == [(None, 0.91)]
    assert both["eval_accuracy"].last.episodes == 872
    other = '{"step": 20, "mean_reward": 0.7}\n'
    assert values(read(val_results__md=BLOCKS, val__jsonl=other)["mean_reward"]) == [
        *[(0, 0.31), (20, 0.55), (20, 0.7)],
        (30, 0.51),
    ]


def test_a_file_without_steps_that_repeats_the_newest_evaluations_of_another_has_their_steps(read: Read) -> None:
    steps = "".join(f'{{"step": {step}, "acc": {acc}, "total_tasks": 50}}\n' for step, acc in ((0, 0.1), (20, 0.2)))
    more = "".join(f'{{"acc": {acc}, "total_tasks": 50, "score": {acc * 10}}}\n' for acc in (0.1, 0.2))
    for files in ({"val__jsonl": steps, "val2__jsonl": more}, {"val2__jsonl": more, "val__jsonl": steps}):
        both = read(**files)
        assert values(both["acc"]) == [(0, 0.1), (20, 0.2)]
        assert values(both["total_tasks"]) == [(0, 50), (20, 50)]
        assert values(both["score"]) == [(0, 1.0), (20, 2.0)]
    newest = read(val__jsonl=steps, all_results__json='{"acc": 0.2, "total_tasks": 50}')
    assert values(newest["acc"]) == [(0, 0.1), (20, 0.2)]


@pytest.mark.parametrize("accs", [(0.1,), (0.2, 0.1), (0.1, 0.2, 0.2), (0.1, 0.25)], ids=str)
def test_a_file_without_steps_keeps_none_where_its_values_are_not_the_newest_of_another(
    read: Read, accs: tuple[float, ...]
) -> None:
    steps = '{"step": 0, "acc": 0.1}\n{"step": 20, "acc": 0.2}\n'
    other = "".join(f'{{"acc": {acc}}}\n' for acc in accs)
    found = values(read(val__jsonl=steps, val2__jsonl=other)["acc"])
    assert found == [(0, 0.1), (20, 0.2), *((None, acc) for acc in accs)]


def test_an_evaluation_that_is_repeated_in_a_file_is_two_points(read: Read) -> None:
    text = block("10", "50%", 0.5) + block("10", "50%", 0.5)
    assert values(read(val_results__md=text)["mean_reward"]) == [(10, 0.5), (10, 0.5)]


def test_harnesses_name_tasks_and_standard_errors(read: Read) -> None:
    text = (
        '{"results": {"gsm8k": {"alias": "gsm8k", "exact_match,strict": 0.61, "exact_match_stderr,strict": 0.01}, '
        '"mmlu": {"acc,none": 0.7, "acc_stderr,none": 0.02}}}'
    )
    series = read(results__json=text)
    assert set(series) == {"gsm8k.exact_match,strict", "mmlu.acc"}
    assert [one.last.error for one in series.values()] == [0.01, 0.02]


def test_models_and_samples_that_a_harness_names_belong_to_its_rows(read: Read) -> None:
    def harness(model: str, acc: float) -> str:
        results = f'{{"gsm8k": {{"acc,none": {acc}}}}}, "n-samples": {{"gsm8k": {{"effective": 1319}}}}'
        return f'{{"results": {results}, "model_name": "{model}"}}'

    series = read(**{"x/results.json": harness("org/A", 0.6), "y/results.json": harness("org/B", 0.7)})
    assert values(series["org/A.gsm8k.acc"]) == [(None, 0.6)]
    assert series["org/B.gsm8k.acc"].last.episodes == 1319
    assert set(name_series([series["org/A.gsm8k.acc"]])) == {"gsm8k.acc"}
    tasks = '{"step": 1000, "goal": {"success": 0.8, "episodes": 50}, "long": {"success": 0.6, "episodes": 50}}'
    assert values(read(results__json=tasks)["long.success"]) == [(1000, 0.6)]
    splits = '{"train": {"loss": 0.8}, "eval": {"loss": 0.9}}'
    assert set(read(results__json=splits)) == {"train.loss", "eval.loss"}


def test_files_of_one_name_are_told_apart_by_their_directories(read: Read) -> None:
    accuracies = {500: 0.5, 1000: 0.7, 1500: 0.6}
    files = {f"o/checkpoint-{step}/eval_results.json": f'{{"acc": {acc}}}' for step, acc in accuracies.items()}
    assert values(read(**files)["acc"]) == list(accuracies.items())
    series = read(**{"eval/cfm/results.json": '{"acc": 0.5}', "eval/base/results.json": '{"acc": 0.4}'})
    assert {name: one.last.value for name, one in series.items()} == {"cfm.acc": 0.5, "base.acc": 0.4}


@for_each(
    [
        ("# Baseline (before training)\n- acc: 10%\n# After training\n- acc: 80%\n", [(0, 10.0), (None, 80.0)]),
        ("## Step 10\n- acc: 10%\n## Final\n- acc: 80%\n", [(10, 10.0), (None, 80.0)]),
        (
            "## Epoch 1\n- acc: 10%\n## Epoch 10\n- acc: 20%\n## Epoch 2\n- acc: 30%\n",
            [(1, 10.0), (2, 30.0), (10, 20.0)],
        ),
        ("- acc: 85.0% (425/500)\n", [(None, 85.0)]),
        ("- acc: 42/50 (84%)\n", [(None, 84.0)]),
        ("- acc: 0.51 ± 0.02\n", [(None, 0.51)]),
        ("- acc: 1,234.5\n", [(None, 1234.5)]),
        ("- acc: 0.84 (84.0%)\n", [(None, 0.84)]),
        ("- success: 12/20\n", [(None, 0.6)]),
        ("| passed |\n|--|\n| 12/20 |\n", [(None, 0.6)]),
        ("| acc |\n|--|\n| 75.0% +/- 2.2% |\n", [(None, 75.0)]),
    ]
)
def test_blocks_and_figures_are_read_as_people_write_them(text: str, expected: list[tuple[int | None, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "eval.md")
        path.write_text(text)
        (series,) = build_series(read_evaluations(path))
    assert values(series) == expected


@for_each(["85% (3/500)", "1,234", "0,512", "12/20", "2024-01-02", "1/2/3"])
def test_what_may_mean_something_else_is_not_a_number(text: str) -> None:
    assert parse_value(text) == text


@for_each([("0.512", 0.51234, True), ("51.2%", 0.51234, True), ("0.512", 0.5131, False), ("0.5", 0.51234, False)])
def test_a_rounded_value_in_another_file_is_the_same_evaluation(text: str, exact: float, same: bool) -> None:
    accuracies: list[Value] = [parse_value(text), exact]
    evaluations = [Evaluation(Path(f"{n}.json"), ({"step": 10, "acc": one},)) for n, one in enumerate(accuracies)]
    (series,) = build_series(evaluations)
    assert (len(series.points) == 1) is same


@for_each(["- acc: 85.0% (425/500)\n", "| success |\n|--|\n| 425/500 |\n", '{"success": "425/500"}'])
def test_the_count_beside_a_rate_is_its_number_of_episodes(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "eval.json" if text.startswith("{") else "eval.md")
        path.write_text(text)
        (series,) = build_series(read_evaluations(path))
    assert series.last.share == pytest.approx(0.85)
    assert series.last.episodes == 500
    assert series.last.error == pytest.approx(0.01597 * (100 if series.last.unit else 1), rel=1e-3)


def test_what_lerobot_writes_is_read_by_suite_and_task_with_its_episodes(read: Read) -> None:
    suites = {"goal": {"pc_success": 75.0, "n_episodes": 4}, "spatial": {"pc_success": 50.0, "n_episodes": 2}}
    tasks = [{"task_group": "goal", "task_id": 3, "metrics": {"successes": [True, True, True, False]}}]
    whole = {"per_task": tasks, "per_group": suites, "overall": {"pc_success": 66.7, "n_episodes": 6}}
    series = read(eval_info__json=json.dumps(whole))
    assert {name: (one.last.value, one.last.episodes) for name, one in series.items() if "pc" in name} == {
        "pc_success": (66.7, 6),
        "goal.pc_success": (75.0, 4),
        "spatial.pc_success": (50.0, 2),
        "goal/3.pc_success": (75.0, 4),
    }
    former = {"per_episode": [{"success": True}] * 8, "aggregated": {"pc_success": 100.0, "eval_s": 3}}
    last = read(eval_info__json=json.dumps(former))["pc_success"].last
    assert (last.value, last.unit, last.episodes, last.error) == (100.0, "%", 8, 0.0)


def test_a_table_of_names_and_values_names_its_metrics(read: Read) -> None:
    series = read(results__md="| metric | value |\n|--|--|\n| success_rate | 0.5 |\n| length | 12 |\n")
    assert {name: one.last.value for name, one in series.items()} == {"success_rate": 0.5, "length": 12.0}


def test_the_arrays_of_stable_baselines3_are_a_series(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.npz"
    results = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    np.savez(path, timesteps=[1000, 2000], results=results, ep_lengths=results, successes=results > 2)
    series = {one.name: one for one in build_series(read_evaluations(path))}
    assert values(series["mean_reward"]) == [(1000, 2.0), (2000, 5.0)]
    assert series["mean_reward"].last.episodes == 3
    assert series["mean_reward"].last.error == pytest.approx(np.std([4, 5, 6]) / math.sqrt(3))
    assert values(series["success_rate"]) == [(1000, pytest.approx(1 / 3)), (2000, 1.0)]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 100])
def test_broken_arrays_are_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "evaluations.npz").write_bytes(content)
    (one,) = read_evaluations(tmp_path / "evaluations.npz")
    assert one.problem


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "evaluations.npz", timesteps=[1], results=np.array([[object()]], dtype=object))
    (one,) = read_evaluations(tmp_path / "evaluations.npz")
    assert one.problem
    assert "pickle" in one.problem


def test_rows_with_unequal_names_stay_rows_and_a_prefix_does_not_join_two_quantities(read: Read) -> None:
    rows = [{"it": 20, "nll": 1.5, "gnorm": 0.5}, {"it": 20, "val": {"nll": 1.9}}, {"it": 21, "nll": 1.4, "gnorm": 0.4}]
    series = read(eval_rows__jsonl="\n".join(map(json.dumps, rows)))
    assert values(series["nll"]) == [(20, 1.5), (21, 1.4)]
    assert values(series["val.nll"]) == [(20, 1.9)]
    unnamed = [{"a": 1, "b": 2}, {"a": 3}, {"a": 5, "b": 6}]
    series = read(eval_rows__jsonl="\n".join(map(json.dumps, unnamed)))
    lines = list(_render_series(list(series.values())))
    assert [line.split("|")[1:-1] for line in lines[-3:]] == [[" 1 ", " 2 "], [" 3 ", "  "], [" 5 ", " 6 "]]
