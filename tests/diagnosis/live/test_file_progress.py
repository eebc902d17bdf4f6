"""Step and metrics from files: which rows show training, which file leads, and how files and output go together."""

import pytest

from mcp_server.diagnosis.live.file_progress import FileProgress
from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.record.curves.tails import CurveRow

WALL_S = 1_700_000_000.0


def row(step: int, wall_s: float | None = None, **values: float) -> CurveRow:
    return CurveRow(step, wall_s, {name.replace("__", "/"): value for name, value in values.items()})


def reading(*batches: tuple[str, list[CurveRow]]) -> FileProgress:
    progress = FileProgress()
    for number, (path, rows) in enumerate(batches):
        progress.read_rows(path, rows, 100.0 + number, WALL_S + number)
    return progress


ROWS = {
    "a loss after a step": (row(100, losses__loss=4.9), True),
    "a loss at step 0": (row(0, train__loss=4.9), True),
    "an initial evaluation": (row(0, train__loss=4.9, val__loss=4.8), False),
    "an evaluation": (row(500, eval__success=0.5), False),
    "a learning rate at step 0": (row(0, lr=0.1), False),
    "a learning rate later": (row(10, lr=0.1), True),
    "a metric of its own": (row(10, charts__foo=1.0), True),
    "the machine": (row(10, system__gpu__0__temp=60.0), False),
    "speed alone": (row(10, charts__SPS=1000.0), False),
    "another axis": (row(77, Train__mean_reward__time=1.0), False),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_row_shows_training_where_it_is_of_an_optimizer_that_has_stepped(case: str) -> None:
    one, shows = ROWS[case]
    assert (reading(("runs/x", [one])).step is not None) is shows


def test_metrics_have_the_usual_names_or_their_own_tags() -> None:
    progress = reading(
        ("runs/a/events", [row(125, charts__episodic_return=21.0), row(128, losses__value_loss=0.5, charts__SPS=900.0)])
    )
    assert progress.step == 128
    assert progress.metrics == {"reward": 21.0, "fps": 900.0, "losses/value_loss": 0.5}


def test_a_directory_of_held_out_data_gives_no_step_and_says_so_in_the_name() -> None:
    progress = reading(
        ("logs/train/events", [row(10, epoch_loss=2.0)]), ("logs/validation/events", [row(99, epoch_loss=3.0)])
    )
    assert progress.step == 10
    assert progress.metrics["val_loss"] == 3.0


@pytest.mark.parametrize("path", ["out/eval_results.json", "out/val_log.csv", "eval/metrics.csv"])
def test_a_table_of_an_evaluation_is_no_training(path: str) -> None:
    progress = reading((path, [row(500, accuracy=0.8)]))
    assert (progress.step, list(progress.metrics)) == (None, [f"{'val' if '/val_' in path else 'eval'}/accuracy"])
    assert reading(("out/train_val_log.csv", [row(500, accuracy=0.8)])).step == 500
    assert reading(("runs/events.out.tfevents.1.test.2.0", [row(500, accuracy=0.8)])).step == 500


def test_the_pace_is_that_of_the_times_in_the_file_where_it_is_written_seldom() -> None:
    rows = [row(step, WALL_S - 60 + step / 2, loss=1.0) for step in range(100)]
    assert reading(("a", rows)).speed.step_s == pytest.approx(0.5)


def test_files_of_one_training_count_together_and_one_that_begins_later_is_another_round() -> None:
    progress = reading(("a.csv", [row(10, loss=1.0)]), ("events", [row(10, loss=1.0)]), ("a.csv", [row(20, loss=0.9)]))
    assert (progress.step, progress.round) == (20, 1)
    for number, step in enumerate((5, 6, 7)):
        progress.read_rows("second", [row(step, loss=2.0)], 200.0 + number, WALL_S + 100)
    assert (progress.step, progress.round) == (7, 2)


def monitor(*lines: str) -> OutputMonitor:
    one = OutputMonitor({}, 0.0)
    for number, line in enumerate(lines):
        one.read_output(f"{line}\n".encode(), float(number))
    return one


def test_a_step_in_a_file_is_the_first_step_and_ends_its_deadline() -> None:
    one = monitor("SPS: 1017")
    (event,) = one.read_rows("runs/x", [row(100, losses__loss=4.9), row(200, losses__loss=4.8)], 5.0, WALL_S)
    assert (event.kind, event.facts["step"]) == ("first_step", 100)
    assert event.text == "First training step seen after 5 s: step 100, in runs/x."
    assert not one.check_first_step_timeout(5_000.0)
    facts = one.progress_facts()
    assert (facts["step"], facts["metrics"]["losses/loss"], facts["read_from"]) == (200, 4.8, "runs/x")


def test_a_file_that_goes_on_growing_is_no_stall() -> None:
    one = monitor("step 1 loss 0.5", "step 2 loss 0.4")
    for minute in range(1, 60):
        one.read_rows("runs/x", [row(minute, loss=0.3)], 60.0 * minute, WALL_S + 60 * minute)
    assert not one.stall_detector.detect_stall(60.0 * 60, cpu_idle=True)
    assert one.stall_detector.detect_stall(60.0 * 59 + 10_000, cpu_idle=True)


def test_output_and_file_that_count_alike_go_together_and_the_further_one_counts() -> None:
    one = monitor("step 10/100 loss 0.5", "step 20/100 loss 0.4")
    one.read_rows("m.csv", [row(step, loss=0.3, grad_norm=1.5) for step in range(10, 26)], 3.0, WALL_S)
    facts = one.progress_facts()
    assert (facts["step"], facts["total_steps"], facts["read_from"]) == (25, 100, "m.csv")
    assert facts["metrics"] == {"loss": 0.3, "grad_norm": 1.5}
    one.read_output(b"step 30/100 loss 0.2\n", 4.0)
    facts = one.progress_facts()
    assert (facts["step"], facts["metrics"]["loss"], "read_from" in facts) == (30, 0.2, False)


def test_a_file_that_counts_something_else_gives_metrics_and_the_answer_says_so() -> None:
    one = monitor("Epoch 1/10 loss: 0.5", "Epoch 2/10 loss: 0.4")
    one.read_rows("events", [row(4_500, train__grad_norm=1.5)], 3.0, WALL_S)
    facts = one.progress_facts()
    assert (facts["step"], facts["total_steps"]) == (2, 10)
    assert facts["metrics"] == {"loss": 0.4, "grad_norm": 1.5}
    assert facts["read_from"] == "output; events has step 4500"


def test_with_a_pattern_of_the_users_a_file_is_no_first_step() -> None:
    one = OutputMonitor({"first_step_pattern": "GO"}, 0.0)
    assert one.read_rows("runs/x", [row(100, loss=4.9)], 5.0, WALL_S) == []
    assert one.first_step_s is None
