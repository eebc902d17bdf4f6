"""Evaluations in the log: dicts that say of how many episodes they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mcp_server.results.evaluations.evaluation_series import EvaluationSeries, build_series
from mcp_server.results.evaluations.printed_evaluations import read_printed_evaluations
from mcp_server.results.evaluations.success_lines import PrintedRates
from mcp_server.scalars.tag_names import match_tags
from tests.support.ended_runs import Runs

Read = Callable[..., dict[str, EvaluationSeries]]
STEPS = [f"step {step}/9 loss: {1 / step:.3f}" for step in range(1, 10)]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def series(*lines: str, command: str = "python main.py", named: Sequence[str] = ()) -> dict[str, EvaluationSeries]:
        runs = Runs(tmp_path)
        if not runs.store.list_runs():
            runs.add(command=command)
        run, rundir = runs.store.observe("cfm-7kqz"), runs.store.run_directory("cfm-7kqz")
        rundir.log(1).write_text("\n".join(lines) + "\n")
        return {one.name: one for one in build_series(read_printed_evaluations(run, rundir, named))}

    return series


def test_the_dict_of_an_evaluation_without_training_has_no_step(read: Read) -> None:
    series = read("(Runner pid=3) {'eval/success_once': 0.85, 'eval/return': 0.8, 'eval/num_trajectories': 500}")
    last = series["eval/success_once"].last
    assert (last.step, last.value, last.episodes) == (None, 0.85, 500)
    assert last.error == pytest.approx(0.01597, abs=1e-5)


def test_an_evaluation_at_the_end_of_an_epoch_is_at_its_last_step(read: Read) -> None:
    lines = [f"Epoch: [1][{n}/100] loss 0.{n}" for n in (40, 80)]
    series = read(*lines, "{'eval/success_once': 0.85, 'eval/num_trajectories': 500}", "Epoch: [2][40/100] loss 0.1")
    assert series["eval/success_once"].last.step == 100


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


def test_the_suites_of_a_printed_dict_have_their_own_numbers_of_episodes(read: Read) -> None:
    suites = {"goal": {"pc_success": 80.0, "n_episodes": 5}, "spatial": {"pc_success": 85.0, "n_episodes": 20}}
    series = read("Aggregated:", "{'pc_success': 84.0, 'n_episodes': 25}", str(suites), str(suites))
    points = {name: one.points for name, one in series.items() if "success" in name}
    assert {name: (one.value, one.unit, one.episodes) for name, (one,) in points.items()} == {
        "pc_success": (84.0, "%", 25),
        "goal.pc_success": (80.0, "%", 5),
        "spatial.pc_success": (85.0, "%", 20),
    }


COUNTED = ("# episodes completed so far: 10", "# successes: 8 (80.0%)")
LOGGED = "11/23 10:20:11 [INFO] | >> {}".format


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Success: 12/20"], [(None, 0.6, 20)]),
        (["success rate: 12/20 (60.0%)"], [(None, 60.0, 20)]),
        (["INFO:root:Success rate = 60% (12/20)"], [(None, 60.0, 20)]),
        (["(Runner pid=3) **Eval success:** 12 / 20 episodes."], [(None, 0.6, 20)]),
        (["Overall success rate: 95.2%"], [(None, 95.2, None)]),
        ([LOGGED("Overall success rate: 0.9520 (95.2%)")], [(None, 0.952, None)]),
        ([*COUNTED, "Current task success rate: 0.5", "Current total success rate: 0.8"], [(None, 0.8, 10)]),
        ([*COUNTED, "Current total success rate: 0.8", "Overall success rate: 0.8000 (80.0%)"], [(None, 0.8, 10)]),
        (["Total episodes: 10", "Total successes: 7", "Overall success rate: 0.8"], [(None, 0.8, None)]),
        (["Total success rate: 0.8", "Total episodes: 10"], [(None, 0.8, 10)]),
        (["Total success rate: 0.83", "Total episodes: 10"], [(None, 0.83, None)]),
        ([f"Success: {n // 2}/{n}" for n in range(1, 21)], [(None, 0.5, 20)]),
        (["overall success 62.00% over 3 benchmarks"], [(None, 62.0, None)]),
        (["Mean success rate of 41/50 (82.0%) on 5 tasks"], [(None, 82.0, 50)]),
        (["final success rate 0.5%"], [(None, 0.5, None)]),
        (["Success: 5/20", "Success: 12/20"], [(None, 0.25, 20), (None, 0.6, 20)]),
        (["step 100: success: 5/20", "step 200: success: 12/20"], [(100, 0.25, 20), (200, 0.6, 20)]),
        ([*STEPS[:5], "Eval success: 5/20", *STEPS[5:], "Eval success: 12/20"], [(5, 0.25, 20), (9, 0.6, 20)]),
    ],
)
def test_a_success_rate_in_a_sentence_is_an_evaluation(
    read: Read, lines: list[str], expected: list[tuple[int | None, float, int | None]]
) -> None:
    one = read(*lines)["success_rate"]
    assert [(point.step, round(point.value, 6), point.episodes) for point in one.points] == expected
    assert all((point.error is None) == (point.episodes is None) for point in one.points)


def test_rates_of_several_benchmarks_are_each_its_own_beside_that_of_all(read: Read) -> None:
    lines = []
    for name, good in (("stack", 35), ("pour", 36), ("fold_towel", 22)):
        lines += [f"[{name}] trial {n}/50: {good * n // 50} ok so far" for n in (10, 50)]
        lines.append(f"== {name}: success rate {good}/50 ({2 * good:.1f}%)")
    series = read(*lines, "[lift] success: 80%", "overall success 62.00% over 3 benchmarks")
    assert {name: (one.last.value, one.last.episodes) for name, one in series.items() if "success" in name} == {
        "success_rate": (62.0, None),
        "stack.success_rate": (70.0, 50),
        "pour.success_rate": (72.0, 50),
        "fold_towel.success_rate": (44.0, 50),
        "lift.success_rate": (80.0, None),
    }
    for asked, found in (
        ("overall success", ["success_rate"]),
        ("overall success rate", ["success_rate"]),
        ("success", ["success_rate"]),
        ("pour success rate", ["pour.success_rate"]),
    ):
        assert match_tags(asked, list(series), held_out=True) == found, asked
    assert match_tags("success_rate", ["success"]) == [], "what each episode printed is no rate"


@pytest.mark.parametrize(
    "line",
    [
        *("stack: success rate 0.5", "INFO: success 12", "pour: success 60", "overall success 3", "success 50% done"),
        *("Success: True", "success: 0.5", "success rate: 0.5", "Success: 12/20/30", "Success: 21/20", "Success: 0/0"),
        *("Download success: 20/20", "Overall success rate: 340%", "Overall success rate: nan", "success: 3 of 4"),
        *("Current task success rate: 0.5", "Overall success rate of the last run: 0.5", "Success: 2024-01-02"),
    ],
)
def test_what_may_be_something_else_is_no_success_rate(read: Read, line: str) -> None:
    assert read(line, *STEPS) == {}


@pytest.mark.parametrize(
    ("line", "name", "value", "episodes"),
    [
        ("{'eval/success_once': np.float64(0.9375), 'eval/return': 3.2}", "eval/success_once", 0.9375, None),
        ("{'eval/success_once': tensor(0.9375, device='cuda:0')}", "eval/success_once", 0.9375, None),
        ("[eval] success_once: 0.938", "success_once", 0.938, None),
        ("Success rate: 93.75%", "success_rate", 93.75, None),
        ("11/23 10:20:11 [INFO] | >> **Success rate:** 93.75%", "success_rate", 93.75, None),
        ("│ eval/success_at_end    │ 0.9   │", "eval/success_at_end", 0.9, None),
        ("Average success: 0.9375 over 16 episodes", "success_rate", 0.9375, 16),
        ("val: detected 79 of 200 images, detection rate 39.5%, false alarms 0.4%", "detection_rate", 39.5, None),
        ("gsm        exact_match 0.4425  format_ok 0.9525  n=400", "exact_match", 0.4425, 400),
        ("%WER 24.48 [ 2448 / 10000, 272 ins, 408 del, 1768 sub ]", "WER", 24.48, 10_000),
        ("illicit  P=0.786  F1=0.773   (n=1,083 of 46,564, split test)", "f1", 0.773, 1_083),
        ("== flat == success: 33/50 (66.0%)", "flat.success_rate", 66.0, 50),
    ],
)
def test_a_rate_that_an_evaluation_prints_is_its_result(
    read: Read, line: str, name: str, value: float, episodes: int | None
) -> None:
    parts = ["Episode 16 success: 1.0", "[40/200] detection rate so far 42.5%", "  50/400  EM=0.460  format_ok=1.000"]
    settings = ["success_threshold: 0.8", "{'lr': 0.1, 'target_accuracy': 0.9}", "eval:  50%|##| 8/16, success=0.5"]
    series = read(*settings, *parts, line, command="bash scripts/eval_agent.sh")
    assert {each: (one.last.value, one.last.episodes) for each, one in series.items() if "n_ep" not in each} == {
        name: (value, episodes)
    }


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (["success_rate: 0.5"], "python main.py"),
        (["success_rate: 0.5"], "python train.py && python eval.py"),
        (["success: 1.0", "success: 0.0", "success: 1.0"], "python eval.py"),
        (["Success rate: 50%", "Success rate: 80%"], "python eval.py"),
    ],
)
def test_a_rate_that_may_be_of_a_part_or_of_a_training_is_no_result(read: Read, lines: list[str], command: str) -> None:
    assert read(*lines, command=command) == {}


@pytest.mark.parametrize(
    ("line", "named", "value"),
    [
        ("31 of 50 images match their prompt (62.0 %), CLIP-sim 0.3119", "clip_sim", 0.3119),
        ("%SER 75.89 [ 7 / 1000 ]", "%SER", 75.89),
        ("CV AUROC 0.8567 ± 0.0057 (3 folds)", "CV AUROC", 0.8567),
        ("  sampled 64 images at 50, FID-5k 118.45", "fid5k", 118.45),
        ("images 1,234 (kept)", "images", 1234.0),
    ],
)
def test_a_number_that_somebody_asks_for_by_its_printed_name_is_found(
    read: Read, line: str, named: str, value: float
) -> None:
    series = read("batch_size=32", line, "done in 3.2 s", command="python report.py", named=[named])
    assert {name: one.last.value for name, one in series.items()} == {named: value}
    assert read("batch_size=32", line, command="python report.py", named=["F7", "*", "%"]) == {}


@pytest.mark.parametrize("text", ["a/", "a ", "success ", "success_rate", "acc: (", "acc  ", "acc.1"])
def test_a_long_line_without_a_rate_is_soon_read(text: str) -> None:
    begin, rates = time.process_time(), PrintedRates()
    for _ in range(10):
        rates.read((text * 1_000)[:1_000])
    assert time.process_time() - begin < 0.5
