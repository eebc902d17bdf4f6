"""Evaluations in the log: dicts that say of how many episodes they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.results.evaluation_series import EvaluationSeries, build_series
from mcp_server.results.printed_evaluations import read_printed_evaluations
from tests.support.ended_runs import Runs

Read = Callable[..., dict[str, EvaluationSeries]]
STEPS = [f"step {step}/9 loss: {1 / step:.3f}" for step in range(1, 10)]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def series(*lines: str) -> dict[str, EvaluationSeries]:
        runs = Runs(tmp_path)
        if not runs.store.list_runs():
            runs.add()
        run, rundir = runs.store.observe("cfm-7kqz"), runs.store.run_directory("cfm-7kqz")
        rundir.log(1).write_text("\n".join(lines) + "\n")
        return {one.name: one for one in build_series(read_printed_evaluations(run, rundir))}

    return series


def test_the_dict_of_an_evaluation_without_training_has_no_step(read: Read) -> None:
    series = read("(Runner pid=3) {'eval/success_once': 0.85, 'eval/return': 0.8, 'eval/num_trajectories': 500}")
    last = series["eval/success_once"].last
    assert (last.step, last.value, last.episodes) == (None, 0.85, 500)
    assert last.error == pytest.approx(0.01597, abs=1e-5)


def test_a_dict_over_several_lines_is_one_evaluation(read: Read) -> None:
    series = read("{'eval/num_trajectories': 500,", " 'eval/return': np.float64(0.8),", " 'eval/success_once': 0.85}")
    assert {name: one.last.value for name, one in series.items()} == {
        "eval/num_trajectories": 500,
        "eval/return": 0.8,
        "eval/success_once": 0.85,
    }


def test_dicts_among_steps_are_a_series_from_the_baseline_on(read: Read) -> None:
    line = "metrics: {{'pass_n': 4, 'total_tasks': 57, 'mean_reward': {}}}".format
    series = read("Initial validation", line(0.31), *STEPS[:5], line(0.55), *STEPS[5:], line(0.51))
    assert [(point.step, point.value) for point in series["mean_reward"].points] == [(0, 0.31), (5, 0.55), (9, 0.51)]
    own = read("{'global_steps': 7, 'total_tasks': 57, 'mean_reward': 0.5}", *STEPS)
    assert own["mean_reward"].last.step == 7


def test_other_dicts_are_no_evaluations(read: Read) -> None:
    lines = ["{'loss': 0.5, 'epoch': 1.0}", "config = {'n': 3}", "{'a': {1, 2}", "{", "{'total_tasks': 3}"]
    assert read(*lines, *STEPS) == {}
