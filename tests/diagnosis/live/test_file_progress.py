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


def test_a_training_whose_figures_have_unknown_names_shows_them() -> None:
    rows = [row(50, epoch=1.0, train__ctc=2.5, lr=0.1, dev__clean__wer=30.0, system__gpu__0__temp=60.0)]
    assert reading(("history.json", rows)).metrics == {"dev/clean/wer": 30.0, "train/ctc": 2.5}
    rows = [row(50, train__eps_mse=0.5, sample__fid5k=31.25, sample__foo=1.0)]
    assert reading(("events", rows)).metrics == {"train/eps_mse": 0.5, "sample/fid5k": 31.25}


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


def test_a_file_that_is_read_a_moment_after_another_of_its_training_begins_no_round() -> None:
    rows = [row(n, Logloss=1 / (n + 1)) for n in range(10)]
    later = [row(n, Logloss=1 / (n + 1)) for n in range(10, 20)]
    progress = reading(("learn_error.tsv", rows), ("history.json", rows), ("history.json", later))
    assert (progress.round, progress.step) == (1, 19)


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


def test_one_quantity_under_two_spellings_is_told_once_as_the_steps_source_has_it() -> None:
    one = monitor("step 10/100 critic loss: 0.5", "step 20/100 critic loss: 0.4")
    one.read_rows("m.csv", [row(step, loss__critic=0.41, grad_norm=1.5) for step in range(1, 16)], 3.0, WALL_S)
    assert one.progress_facts()["metrics"] == {"grad_norm": 1.5, "critic loss": 0.4}


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


def test_a_round_that_the_output_begins_has_none_of_the_figures_of_the_files_before() -> None:
    """As folds of a table, each with a file of its own, which is read a little later than the line is printed."""
    one = monitor(
        "| fold | epoch | train nll | val auc |", *(f"| 0 | {n}/12 | 0.{n} | 0.8{n} |" for n in range(10, 12))
    )
    one.read_rows("fold_0/log.csv", [row(n, train_nll=0.5, val_auc=0.7) for n in range(1, 12)], 3.0, WALL_S)
    for number in (1, 2):
        one.read_output(f"| 1 | {number}/12 | 0.9 | 0.6{number} |\n".encode(), 4.0 + number)
    one.read_rows("fold_0/log.csv", [row(12, train_nll=0.4, val_auc=0.7)], 6.1, WALL_S + 3)
    facts = one.progress_facts()
    assert (facts["round"], facts["step"], facts["total_steps"], facts["metrics"]["loss"]) == (2, 2, 12, 0.9)
    one.read_rows("late.csv", [row(11, train_nll=0.4), row(12, WALL_S, train_nll=0.4)], 6.5, WALL_S + 3.5)
    assert one.progress_facts()["step"] == 2, "it was written before the round, and is read for the first time"
    one.read_rows("fold_1/log.csv", [row(n, train_nll=0.3, val_auc=0.7) for n in range(1, 4)], 7.0, WALL_S + 4)
    facts = one.progress_facts()
    assert (facts["round"], facts["step"], facts["metrics"]["loss"]) == (2, 3, 0.3)


def test_a_file_whose_step_was_printed_a_moment_before_counts_as_the_output_does() -> None:
    one = monitor("step 50/400 loss 0.5", "step 100/400 loss 0.4\nstep 110/400 loss 0.4")
    one.read_rows("history.json", [row(100, dev__wer=30.0, train__loss=0.4)], 3.0, WALL_S)
    facts = one.progress_facts()
    assert (facts["step"], facts["total_steps"], "read_from" in facts) == (110, 400, False)


def test_a_file_that_counts_something_else_gives_metrics_and_the_answer_says_so() -> None:
    one = monitor("Epoch 1/10 loss: 0.5", "Epoch 2/10 loss: 0.4")
    one.read_rows("events", [row(4_500, train__grad_norm=1.5)], 3.0, WALL_S)
    facts = one.progress_facts()
    assert (facts["step"], facts["total_steps"]) == (2, 10)
    assert facts["metrics"] == {"loss": 0.4, "grad_norm": 1.5}
    assert facts["read_from"] == "output; events has step 4500"


@pytest.mark.parametrize(
    ("command", "axis", "step", "total"),
    [
        ("t --steps 400", "", 50, 400),
        ("t --steps 400", "step", 50, 400),
        ("t --steps 400", "", 401, None),  # it counts samples
        ("t --steps 400", "_step", 50, None),  # the calls that log, of wandb
        ("t --steps 400", "epoch", 50, None),
        ("t --epochs 8", "epoch", 2, 8),
        ("t --epochs 8", "", 2, None),
        ("t --epochs 8 --max_steps 400", "", 2, None),  # either
        ("t --epochs 8 --max_steps 400", "", 9, 400),
        ("ppo --num-steps 128 --total-timesteps 5e5", "", 36, None),  # a rollout's length is none
        ("ppo --num-steps 128 --total-timesteps 5e5", "", 512, 500_000),
        ("ppo --num-steps 128 --total-timesteps 5e5", "time/total_timesteps", 36, 500_000),
    ],
)
def test_a_file_has_the_commands_total_where_both_count_alike(
    command: str, axis: str, step: int, total: int | None
) -> None:
    one = OutputMonitor({"command": command}, 0.0)
    one.read_rows("runs/x", [CurveRow(step, None, {"train/loss": 0.5}, axis)], 5.0, WALL_S)
    assert (one.step, one.total_steps) == (step, total)


def test_with_a_pattern_of_the_users_a_file_is_no_first_step() -> None:
    one = OutputMonitor({"first_step_pattern": "GO"}, 0.0)
    assert one.read_rows("runs/x", [row(100, loss=4.9)], 5.0, WALL_S) == []
    assert one.first_step_s is None


def losing(path: str, loss: str, *, batch: int = 4, **others: float) -> list[str]:
    """Return the texts of the events of a training whose loss is NaN from step 20 on, in rows of a file alone."""
    one, found = OutputMonitor({}, 0.0), []
    rows = [row(n, **{loss: float("nan") if n >= 20 else 2.0 / n, **others}) for n in range(1, 41)]
    for n in range(0, 40, batch):
        found += [event.text for event in one.read_rows(path, rows[n : n + batch], float(n), WALL_S + n)]
    return [text for text in found if "step" in text and "First" not in text]


@pytest.mark.parametrize(
    ("path", "loss"),
    [("m.csv", "loss"), ("log/m.jsonl", "train_loss"), ("runs/iterations/events.out.tfevents.1", "Loss__train")],
)
def test_a_loss_that_becomes_nan_in_a_file_alone_is_a_divergence(path: str, loss: str) -> None:
    tag = loss.replace("__", "/")
    assert losing(path, loss) == [f"Diverged: {tag} has been nan in 5 readings in a row, since step 20."]


def test_a_step_of_before_somebody_else_wrote_the_file_too_is_told_with_the_doubt() -> None:
    one = OutputMonitor({}, 0.0)
    one.read_rows("m.csv", [row(1, loss=1.5)], 1.0, WALL_S)
    assert "left_out" not in one.progress_facts()
    one.read_rows("m.csv", [row(40, loss=0.1)], 2.0, WALL_S, "tw-2")
    facts = one.progress_facts()
    assert (facts["step"], facts["left_out"].partition(" works")[0]) == (1, "m.csv: tw-2")


def test_the_row_that_proves_a_divergence_begins_with_what_is_not_finite() -> None:
    one = OutputMonitor({}, 0.0)
    one.read_rows("m.csv", [row(n, lr=0.5, loss=float("nan") if n > 2 else 1.0) for n in range(1, 9)], 1.0, WALL_S)
    assert one.divergence.line == '{"loss": NaN, "step": 8, "lr": 0.5} in m.csv'


def test_a_nan_in_a_file_of_held_out_data_is_a_doubt_and_no_divergence() -> None:
    (text,) = losing("eval/m.csv", "loss", batch=40)
    assert text.startswith("eval/loss has been nan in 21 readings in a row, since step 20. By itself it proves no")


def test_a_component_in_a_file_proves_nothing_while_the_printed_total_is_finite() -> None:
    def events(line: bytes) -> list[str]:
        one = OutputMonitor({}, 0.0)
        found = []
        for n in range(1, 41):
            found += one.read_output(line % n, float(n))
            found += one.read_rows("m.csv", [row(n, loss__aux=float("nan"))], n + 0.5, WALL_S + n)
        return [event.kind for event in found if event.kind == "error_seen"]

    assert events(b"step %d | loss 0.5\n") == []
    assert events(b"step %d | lr 0.5\n") == ["error_seen"]


def test_a_program_that_logs_twice_diverges_once_and_has_recovered_when_both_have() -> None:
    one, found = OutputMonitor({}, 0.0), []
    for n in range(1, 61):
        loss = float("nan") if 20 <= n < 40 else 0.5
        found += one.read_output(b"step %d | loss %s\n" % (n, str(loss).encode()), float(n))
        if n % 10 == 0:  # its writer flushes late
            rows = [row(m, loss=float("nan") if 20 <= m < 40 else 0.5) for m in range(n - 9, n + 1)]
            found += one.read_rows("m.csv", rows, n + 0.5, WALL_S + n)
    assert [event.kind for event in found] == ["first_step", "error_seen", "resumed"]


def test_tags_of_one_step_in_an_event_file_are_read_together() -> None:
    nan = float("nan")
    rows = [one for n in range(1, 31) for one in (row(n, loss__policy=nan if n > 9 else 1.0), row(n, train__loss=0.5))]
    one = OutputMonitor({}, 0.0)
    assert not [event for event in one.read_rows("events", rows, 1.0, WALL_S) if event.kind == "error_seen"]


def test_another_training_in_a_file_of_its_own_forgets_the_divergence_of_the_one_before() -> None:
    one, found = OutputMonitor({}, 0.0), []
    for seed, loss in ((0, float("nan")), (1, 0.5)):
        for n in range(1, 31):
            found += one.read_rows(f"seed{seed}.csv", [row(n, loss=loss)], 100.0 * seed + n, WALL_S + 100 * seed + n)
    assert [event.kind for event in found][:2] == ["first_step", "error_seen"]
    assert not one.divergence.is_proven
