"""Lines of training become a first step, a step count, a speed and headline metrics; other lines are ignored."""

import math
import time
from pathlib import Path

import pytest

from mcp_server.diagnosis.progress.formats import STEP_FORMATS
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.text.lines import split_lines
from tests.support.rows import for_each

SAMPLES = Path(__file__).parents[2] / "data" / "metric_lines"


def read(text: str, pattern: str | None = None) -> ProgressTracker:
    progress = ProgressTracker(pattern)
    progress.read_lines(split_lines(text))
    return progress


def bar(n: int, total: int, title: str = "", rest: str = "1.21it/s") -> str:
    filled = "█" * (10 * n // total)
    return f"{title}{100 * n // total:3}%|{filled:10}| {n}/{total} [00:40<02:19, {rest}]"


def samples(name: str) -> list[tuple[str, str]]:
    """Return the head and the text of each sample of a file; `@@` begins one, `\\r` and `\\e` are escapes."""
    text = (SAMPLES / name).read_text(encoding="utf-8").replace("\\r", "\r").replace("\\e", "\x1b")
    parts = [part.partition("\n") for part in text.split("@@ ")[1:]]
    return [(head, body) for head, _, body in parts]


# "name :: step of total :: headline=value, ..."; `-` is None.
STEPS = [(*head.split(" :: "), body) for head, body in samples("steps.txt")]
NO_STEPS = samples("no_steps.txt")


@for_each(STEPS)
def test_a_training_step_is_recognised_by_its_line(row: tuple[str, ...]) -> None:
    _, place, *headlines, text = row
    progress = read(text)
    assert progress.first_step_seen
    assert " of ".join("-" if n is None else str(n) for n in (progress.step, progress.total_steps)) == place
    expected = {
        name: float(value)
        for name, _, value in (pair.partition("=") for pair in ", ".join(headlines).split(", ") if pair)
    }
    assert {name: progress.metrics.get(name) for name in expected} == pytest.approx(expected, nan_ok=True)


@for_each(text for _, text in NO_STEPS)
def test_lines_of_other_work_are_not_a_first_step(text: str) -> None:
    progress = read(text)
    assert (progress.first_step_seen, progress.first_step_line) == (False, "")
    assert (progress.step, progress.total_steps, progress.advances) == (None, None, 0)


# --- which counter leads


def test_a_frameworks_line_precedes_a_bar_and_a_bar_precedes_a_custom_loop() -> None:
    progress = read("epoch 1 loss 2.5")
    assert progress.step == 1
    progress.read_lines([bar(40, 900, "Training: ")])
    assert (progress.step, progress.total_steps) == (40, 900)
    progress.read_lines(["epoch 2 loss 2.4"])
    assert progress.step == 40
    progress.read_lines([" iteration  7/ 100 | elapsed time per iteration (ms): 20.0 | lm loss: 2.1E+00 |"])
    assert (progress.step, progress.total_steps) == (7, 100)
    progress.read_lines([bar(41, 900, "Training: "), "epoch 3 loss 2.3"])
    assert (progress.step, progress.total_steps) == (7, 100)
    assert progress.metrics["loss"] == 2.3


def test_a_long_silent_counter_is_replaced_by_one_of_equal_rank() -> None:
    progress = read(bar(100, 100, "Training: "))
    progress.read_lines([bar(n, 800, "Epoch: ") for n in range(1, 40)])
    assert (progress.step, progress.total_steps) == (39, 800)


def test_lower_counters_are_signs_of_life_only_while_the_leading_one_is_silent() -> None:
    progress = read("step:5 - actor/pg_loss:0.1")
    before = progress.advances
    progress.read_lines([bar(5, 100, "Training Progress: ")])
    assert progress.advances == before
    progress.read_lines([bar(n, 100, "Training Progress: ") for n in range(6, 20)])
    assert progress.advances > before
    assert progress.step == 5


def test_lines_printed_by_every_rank_have_the_speed_of_one() -> None:
    progress = read("\n".join(f"[rank{rank}]: step: {n}  loss:  7.0" for n in range(1, 6) for rank in range(8)))
    assert (progress.step, progress.advances) == (5, 5)


def test_a_redrawn_bar_is_not_an_advance() -> None:
    progress = read("\r".join([bar(12, 100, "Epoch 3: ")] * 20))
    assert progress.advances == 1


# --- positions in epochs


def test_bars_that_restart_continue_the_count() -> None:
    progress = ProgressTracker()
    steps = []
    for epoch in range(3):
        for n in range(26):
            progress.read_lines([bar(n, 25, f"Epoch {epoch}: ")])
            steps.append(progress.step)
    assert progress.step == 75
    assert progress.advances == 75
    seen = [step for step in steps if step is not None]
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("before", "after", "total"),
    [
        ("", "Epoch {}: loss 0.{}", None),
        ("Epoch {}", "", None),
        ("Epoch {}/3", "", 75),
        ("", "epoch {}/3 loss 0.{}", 75),
    ],
)
def test_bars_that_restart_with_the_epochs_that_other_lines_name_continue_the_count(
    before: str, after: str, total: int | None
) -> None:
    progress = ProgressTracker()
    for epoch in (1, 2, 3):
        progress.read_lines([before.format(epoch)])
        progress.read_lines([bar(n, 25, "Train: ") for n in range(26)])
        progress.read_lines([after.format(epoch, epoch)])
    assert (progress.step, progress.total_steps, progress.round) == (75, total, 1)
    assert progress.advances >= 75


def test_epochs_count_from_zero_or_one_as_their_first_number_says() -> None:
    assert read("Epoch [1/10], Step [5/100], Loss: 1.5").step == 5
    assert read("Epoch [0/10], Step [5/100], Loss: 1.5\nEpoch [1/10], Step [5/100], Loss: 1.5").step == 105


def test_a_position_counts_through_the_run_until_it_restarts() -> None:
    progress = read("Epoch 7 | step 100/600 | loss 1.5")
    assert (progress.step, progress.total_steps) == (100, 600)
    progress.read_lines(["Epoch 7 | step 600/600 | loss 1.5", "Epoch 8 | step 100/600 | loss 1.5"])
    assert (progress.step, progress.total_steps) == (4900, None)


@pytest.mark.parametrize(
    ("heading", "line", "places"),
    [
        ("Epoch {e}", "batch {n} of 10 | loss 0.{n}", [(1, None), (10, None), (11, None), (20, None)]),
        ("=== epoch {e} of 3 ===", "batch {n} of 10: loss 0.{n}", [(1, 30), (10, 30), (11, 30), (20, 30)]),
        ("", "  Batch {n}/10 loss=0.{n}", [(1, None), (10, None)]),
        ("Epoch: {e}", "Iter {n}/10 loss 0.{n}", [(1, None), (10, None), (11, None), (20, None)]),
        ("", "epoch {e} batch {n} of 10 loss 0.{n}", [(1, None), (10, None), (11, None), (20, None)]),
    ],
)
def test_the_length_of_an_epoch_is_not_taken_for_that_of_the_run(
    heading: str, line: str, places: list[tuple[int, int | None]]
) -> None:
    progress, found = ProgressTracker(), []
    for e in range(1, 1 + len(places) // 2):
        progress.read_lines([heading.format(e=e)] if heading else [])
        for n in range(1, 11):
            progress.read_lines([line.format(e=e, n=n)])
            found += [(progress.step, progress.total_steps)] if n in (1, 10) else []
    assert found == places


def test_a_count_that_goes_on_through_the_next_epoch_has_the_total_of_the_run() -> None:
    progress = read("Epoch 1\n" + "\n".join(f"step {n}/300 loss 0.{n}" for n in range(1, 101)))
    assert (progress.step, progress.total_steps) == (100, None)
    progress.read_lines(["Epoch 2", "step 101/300 loss 0.3"])
    assert (progress.step, progress.total_steps) == (101, 300)


def test_a_step_that_continues_over_epochs_is_not_multiplied() -> None:
    lines = [f"Epoch [{1 + n // 100}/3], Step [{n}/300], Loss: 1.5" for n in range(10, 300, 10)]
    assert read("\n".join(lines)).step == 290


def test_a_batch_that_restarts_each_epoch_continues_the_count() -> None:
    lines = [f"Epoch {epoch} Batch {n} Loss 1.{n}" for epoch in (1, 2, 3) for n in range(0, 100, 10)]
    progress = read("\n".join(lines))
    assert progress.advances == 30
    assert progress.step == 270


def test_evaluations_between_steps_change_nothing() -> None:
    progress = read(f"{bar(0, 900)}\n{bar(100, 900)}")
    progress.read_lines([bar(n, 25) for n in range(26)])
    progress.read_lines([bar(n, 25, "Evaluating: ") for n in range(26)])
    progress.read_lines(["Test: [  0/196]\tTime  1.112 ( 1.112)\tLoss 6.9112e+00 (6.9112e+00)"])
    assert (progress.step, progress.total_steps, progress.advances) == (100, 900, 1)


@pytest.mark.parametrize("title", ["Reconnecting: ", "Retrying connection: ", "Waiting for workers: "])
def test_bars_of_waiting_are_no_sign_of_life(title: str) -> None:
    progress = read("\n".join(f"step {n}/100 loss 0.5" for n in range(1, 40)))
    before = progress.advances, progress.round
    for _ in range(5):
        progress.read_lines([bar(n, 3, title, "3.30it/s") for n in range(4)])
    assert (progress.advances, progress.round, progress.step) == (*before, 39)


def test_a_step_never_decreases_and_a_restart_from_a_checkpoint_is_a_sign_of_life() -> None:
    progress = read("\n".join(f"iter {n}: loss 2.5, time 10.0ms" for n in range(0, 110, 10)))
    before = progress.advances
    progress.read_lines([f"iter {n}: loss 2.5, time 10.0ms" for n in (50, 60, 70)])
    assert progress.step == 100
    assert progress.advances == before + 2


@pytest.mark.parametrize("heading", ["--- round {}", "=== Round {}/5 ===", "*** Iteration {} ***", "Epoch {}"])
def test_metrics_below_a_heading_have_its_number_as_their_step(heading: str) -> None:
    blocks = (f"{heading.format(n)}\n   total loss      : {1 / n:.3f}\n   images/s        : 9{n}" for n in range(1, 6))
    progress = read("\n".join(blocks))
    assert (progress.step, progress.metrics["loss"]) == (5, 0.2)


def test_losses_within_an_epoch_are_signs_of_life() -> None:
    progress = read("\n".join(f"Epoch 1, Loss: 0.{n}" for n in range(10, 20)))
    assert (progress.step, progress.advances) == (1, 10)
    progress.read_lines(["Epoch 1, Loss: 0.19"] * 5)
    assert progress.advances == 10


# --- rounds: several trainings in one run


def test_another_loss_at_a_rounded_step_is_a_sign_of_life() -> None:
    assert read("step:1M smpl:8M loss:0.31\nstep:1M smpl:8M loss:0.29").advances == 2
    assert read("step:1M smpl:8M loss:0.31\nstep:1M smpl:8M loss:0.31").advances == 1
    assert read("step:1001 loss:0.31\nstep:1001 loss:0.29").advances == 1  # another rank


def place(progress: ProgressTracker) -> tuple[int, int | None, int | None]:
    return progress.round, progress.step, progress.total_steps


def lines_of(template: str, *numbers: int, **values: object) -> list[str]:
    return [template.format(n=n, **values) for n in numbers]


STEP_OF = "step {n}/{total} loss 0.{n}"


@pytest.mark.parametrize(
    "template",
    [
        "step {n}/{total} loss 0.{n}",
        "epoch {n}/{total} loss 0.{n}",
        "iter {n}/{total}: loss 1.{n}, lr 0.1",
        "Train:  50%|#####     | {n}/{total} [00:40<02:19,  1.21it/s]",
        "Epoch 1/1: 50%|#####     | {n}/{total} [00:40<02:19,  1.21it/s, loss=0.{n}]",
        " iteration  {n}/ {total} | lm loss: 2.{n}E+00 |",
        '{{"current_steps": {n}, "total_steps": {total}, "loss": 0.{n}}}',
        "                      Learning iteration {n}/{total}                      ",
    ],
)
def test_a_count_that_starts_again_is_a_new_round_with_a_step_a_total_and_a_speed_of_its_own(template: str) -> None:
    progress = ProgressTracker()
    for seed in (1, 2, 3):
        for n in range(1, 13):
            progress.read_lines([f"seed {seed}"] if n == 1 else [])
            progress.read_lines(lines_of(template, n, total=12), seed * 1000.0 + n * seed)
            assert place(progress) == (seed, n, 12)
        assert progress.step_s == seed
    assert progress.advances == 36


def test_a_round_of_another_length_follows_a_complete_one_at_once() -> None:
    progress = ProgressTracker()
    for n, total in enumerate((12, 8, 40, 12), 1):
        for step in range(1, total + 1):
            progress.read_lines(lines_of(STEP_OF, step, total=total))
            assert place(progress) == (n, step, total)


def test_a_round_in_other_words_follows_a_complete_one_after_three_steps() -> None:
    progress = ProgressTracker()
    progress.read_lines(lines_of(" iteration  {n}/ 20 | lm loss: 2.{n}E+00 |", *range(1, 21)))
    progress.read_lines(lines_of("epoch {n}/9 loss 0.{n}", 1, 2))
    assert place(progress) == (1, 20, 20)
    progress.read_lines(["epoch 3/9 loss 0.3"])
    assert place(progress) == (2, 3, 9)


def test_a_count_that_stopped_early_starts_again_with_its_second_line() -> None:
    progress = ProgressTracker()
    progress.read_lines([*lines_of(STEP_OF, *range(1, 18), total=100), *lines_of(STEP_OF, 1, total=100)])
    assert place(progress) == (1, 17, 100)
    progress.read_lines(lines_of(STEP_OF, 2, total=100))
    assert place(progress) == (2, 2, 100)


def test_epochs_and_batches_start_again_together() -> None:
    progress = ProgressTracker()
    for seed in (1, 2, 3):
        for epoch in (1, 2, 3):
            progress.read_lines(lines_of("Epoch [{epoch}/3], Step [{n}/50], Loss: 1.{n}", 10, 30, 50, epoch=epoch))
        assert place(progress) == (seed, 150, 150)


def test_metrics_are_those_of_the_present_round() -> None:
    progress = read("\n".join(lines_of("epoch {n}/3 loss 0.{n} val_loss 9.5", 1, 2, 3)))
    progress.read_lines(["epoch 1/3 loss 0.75"])
    assert progress.metrics == {"loss": 0.75}


EVALUATIONS = lines_of("eval {n}/50 loss 1.0", *range(51))
BATCHES = lines_of("batch {n}/40 loss 1.{n}", 10, 20, 30, 40)
EVAL_BARS = [bar(n, 5, "Evaluating: ") for n in range(6)]
BARE_EVAL_BARS = [bar(n, 5) for n in range(6)]
PPO_BARS = [bar(n, 4, "Train epoch: ") for n in range(5)]
MICRO_STEPS = lines_of("micro step {n}/4 loss 1.{n}", 1, 2, 3, 4)
INNER = lines_of(STEP_OF, *range(1, 11), total=10)
READING = [bar(n, 40, "Loading data: ") for n in range(41)]


def nine_times(*parts: str | list[str]) -> list[str]:
    """Return the lines of nine steps: of each part, a line or several, in which {} is the step."""
    lines: list[str] = []
    for n in range(1, 10):
        for part in parts:
            lines += part if isinstance(part, list) else [part.format(n, n=n)]
    return lines


@pytest.mark.parametrize(
    "lines",
    [
        nine_times("step {}/9 loss 0.{n}", EVALUATIONS),
        nine_times("Training: | {}/9 [00:40<02:19, 1.2it/s]", EVAL_BARS),
        [
            "  0%|          | 0/90 [00:00<?, ?it/s]",
            *nine_times("  7%|#    | {}/90 [00:40<02:19, 1.2it/s]", BARE_EVAL_BARS),
        ],
        nine_times(MICRO_STEPS, "step {}/9 loss 0.{n}"),
        nine_times(PPO_BARS, "Episode: | {}/9 [00:40<02:19, 1.2it/s]"),
        nine_times("Epoch {}/9", BATCHES),
        nine_times(BATCHES, "epoch {} loss 0.5"),
        [f"[rank{rank}] step {n - rank}/90 loss 0.{n}" for n in range(4, 80) for rank in range(4)],
        [f"step {n if turn else n % 40 + 1}/90 loss 0.{n}" for n in range(1, 80) for turn in (1, 0)],  # a rank restarts
        lines_of(STEP_OF, *range(500, 520), *range(505, 540), total=900),  # back to a checkpoint
        [*lines_of(STEP_OF, *range(1, 30), total=90), *INNER, *lines_of(STEP_OF, 30, total=90)],
        [*READING, *(bar(n, 9, "Training: ") for n in range(1, 9))],
    ],
)
def test_other_counts_are_not_a_new_round(lines: list[str]) -> None:
    progress = ProgressTracker()
    for line in lines:
        progress.read_lines([line])
        assert progress.round == 1, line
    assert progress.step is not None


def test_the_batches_of_an_epoch_that_a_heading_names_count_through_the_epochs() -> None:
    progress = ProgressTracker()
    for epoch in (1, 2, 3):
        progress.read_lines([f"Epoch {epoch}/3", *lines_of("batch {n}/40 loss 1.{n}", 10, 20, 30, 40)])
    assert place(progress) == (1, 120, 120)
    progress.read_lines(["Epoch 1/3", *lines_of("batch {n}/40 loss 1.{n}", 10, 20)])
    assert progress.round == 2


JOB = [
    "Epoch 1/2",
    *lines_of("batch {n}/40 loss 1.{n}", 20, 40),
    "Epoch 2/2",
    *lines_of("batch {n}/40 loss 1.{n}", 20, 40),
]


@for_each(
    [
        ("[2026-01-02 03:04:05,678][HYDRA] \t#{} : model.lr=0.1 seed=2", ["epoch 0: train_loss=0.5"]),
        ("===== seed {} =====", ["epoch 0: train_loss=0.5", "epoch 1: train_loss=0.4"]),
        ("Fold {}/5", lines_of("step {n} loss 0.{n}", 10, 20, 30)),
        ("Run {}", JOB),
    ]
)
def test_a_job_that_a_heading_announces_is_a_round_from_its_first_line(row: tuple[str, list[str]]) -> None:
    heading, lines = row
    progress = ProgressTracker()
    for job in (1, 2, 3):
        progress.read_lines([heading.format(job)])
        progress.read_lines(lines[:2])
        assert progress.round == job
        progress.read_lines(lines[2:])
        assert progress.round == job


def test_a_table_of_fastai_is_a_round_of_its_own() -> None:
    head, row = "epoch     train_loss  valid_loss  time", "{n}         0.911210    0.412111    00:12"
    progress = read("\n".join([head, *lines_of(row, 0), head, *lines_of(row, 0, 1)]))
    assert place(progress) == (2, 1, None)


def test_one_step_that_two_tables_print_is_one() -> None:
    rows = [f"| {name} | {{n}} |" for name in ("ep_rew_mean", "total_timesteps", "mean_reward", "total_timesteps")]
    lines = [row.format(n=n) for n in (64, 128, 192) for row in (*rows[:2], "-----", *rows[2:], "-----")]
    assert place(read("\n".join(lines))) == (1, 192, None)


# --- before and after training


def test_an_evaluation_bar_that_ran_inside_the_training_bar_is_none_of_training_after_it() -> None:
    training, inner = [bar(n, 40) for n in range(41)], [bar(n, 7) for n in range(8)]
    lines = [*training[:20], *inner, *training[20:], *inner, "eval_loss = 0.5", *inner]
    assert place(read("\n".join(lines))) == (1, 40, 40)


def test_a_bar_without_losses_after_one_with_them_is_no_round() -> None:
    training = [line for n in range(1, 41) for line in (bar(n, 40), f"{{'loss': 0.{n}, 'epoch': 0.{n}}}")]
    assert place(read("\n".join([*training, *(bar(n, 90) for n in range(91))]))) == (1, 40, 40)


def test_a_bar_without_losses_before_one_with_them_is_no_round() -> None:
    training = [line for n in range(1, 41) for line in (bar(n, 40), f"{{'loss': 0.{n}, 'epoch': 0.{n}}}")]
    assert place(read("\n".join([*(bar(n, 90) for n in range(91)), *training]))) == (1, 40, 40)


def test_the_evaluation_of_keras_begins_without_an_epoch() -> None:
    line = "{n}/{per} ━━━━━━━━━━━━━━━━━━━━ 1s 9ms/step - accuracy: 0.5 - loss: 0.{n}"
    lines = [f"Epoch {epoch}/2\n" + "\n".join(lines_of(line, 10, 60, 100, per=100)) for epoch in (1, 2)]
    progress = read("\n".join([*lines, *lines_of(line, 1, 70, 313, per=313)]))
    assert place(progress) == (1, 200, 200)
    assert (progress.metrics["loss"], progress.metrics["val_loss"]) == (0.1, 0.313)


def test_a_training_bar_below_a_heading_of_validation_shows_that() -> None:
    lines = []
    for epoch in (0, 1):
        for work, total in (("Training", 50), ("Validating", 10)):
            lines += [f"03:04:05 - INFO - my.training.trainer - {work}"]
            lines += [bar(n, total, "accuracy: 0.5, loss: 0.4 ||: ") for n in range(0, total + 1, 10)]
        lines += [f"Epoch {epoch + 1}/1"]
    progress = read("\n".join(["Epoch 0/1", *lines]))
    assert (progress.step, progress.round, progress.metrics["val_loss"]) == (100, 1, 0.4)


def test_a_summary_after_the_last_step_changes_no_loss() -> None:
    lines = [*lines_of("step {n}/9 loss 0.{n}", *range(1, 10)), "***** train metrics *****", "  train_loss = 4.5"]
    assert read("\n".join(lines)).metrics == {"loss": 0.9}


@for_each(
    [
        ("\r  10% ━━━━━━━━━━ 2,000/20,000  [ 0:00:04 < 0:00:10 , 4,200 it/s ]", "step 2000 of 20000"),
        ("fit ━━━━━━━━╸━━━━━━━━━ 40% 120/300 0:00:03 loss: 1.61", "step 120 of 300"),
        ("fit 120/300 ━━━━━━━━╸━━━━━━━━━ 40% 0:00:03", "step 120 of 300"),
        ("Training... ━━━━━━━╸━━━━━━━━━━ 12/48 0:00:31", "step 12 of 48"),
        ("holdout ━━━━━━━━╸━━━━━━━━━ 40% 120/300 0:00:03", ""),
        ("Indexing corpus ━━━━━╸━━━━━━━━━ 40% 120/300 0:00:03", ""),
        ("weights ━━━━━━━━╸━━━━━━━━━ 40% 120/300 MB 0:00:03", ""),
        ("313/313 ━━━━━━━━━━━━━━━━━━━━ 1s 2ms/step", ""),
        (bar(40, 900, "fit: ", "1.21kit/s"), "step 40 of 900"),
        (bar(40, 900, "", "1.21kit/s"), "step 40 of 900"),
        (bar(40, 900, "", "72.3s/it"), "step 40 of 900"),
        (bar(40, 900, "", "91.2kit/s"), ""),
    ]
)
def test_bars_of_any_drawing_and_speed_are_judged_alike(row: tuple[str, str]) -> None:
    line, words = row
    assert read(line).place == words


# --- speed


def test_the_speed_is_the_median_over_recent_advances() -> None:
    progress, at_s = ProgressTracker(), 0.0
    for n in range(1, 40):
        at_s += 300.0 if n % 10 == 0 else 2.0  # an evaluation every ten steps
        progress.read_lines([f"step: {n}/100 loss: 2.5"], at_s)
    assert progress.step_s == 2.0


def test_losses_between_two_steps_do_not_shorten_the_step() -> None:
    progress = ProgressTracker()
    for n in range(30):
        progress.read_lines([f"Epoch {1 + n // 10} loss 0.{n + 10}"], n * 10.0)
    assert progress.step_s == 100.0


def test_lines_that_arrive_together_are_one_measurement() -> None:
    progress = ProgressTracker()
    for at_s in range(0, 50, 5):
        progress.read_lines([f"step {n} loss 2.5" for n in range(at_s * 2 + 1, at_s * 2 + 11)], float(at_s))
    assert progress.step_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "step_s"),
    [
        (bar(3, 100, "Training: ", "4.00it/s"), 0.25),
        (bar(3, 100, "Training: ", "2.50s/it"), 2.5),
        ("iter 10: loss 2.5, time 310.00ms, mfu 20.00%", 0.31),
        (" iteration 7/ 100 | elapsed time per iteration (ms): 865.2 | lm loss: 2.5E+00 |", 0.8652),
        ("step:125/1480 train_time:7691ms step_avg:61.53ms", 0.06153),
        ("completed step: 3, seconds: 4.512, TFLOP/s/device: 101.2, loss: 10.218", 4.512),
        ("01/02 03:04:05 - mmengine - INFO - Iter(train) [  50/20000]  lr: 1.0e-02  time: 0.4100  loss: 2.31", 0.41),
        ("03:04:05.678 [I] Progress on: 1.21kit/30.0kit rate:2.0it/s remaining:3:38:05 elapsed:09:10 postfix:-", 0.5),
        (" 10/20 [=====>....] - 1s 9ms/step - loss: 0.3112", 0.009),
        ("epoch 3 loss 0.41", None),
    ],
)
def test_without_measurements_the_speed_is_the_printed_one(text: str, step_s: float | None) -> None:
    assert read(text).step_s == pytest.approx(step_s)


def test_without_a_total_there_is_no_remaining_time() -> None:
    progress = read("iter 10: loss 2.5, time 310.00ms")
    assert (progress.step_s, progress.total_steps) == (0.31, None)


# --- metrics


def test_a_metric_line_has_the_numbers_of_its_line_by_name() -> None:
    line = "Epoch: 07 | Train Loss: nan | Val Loss: 0.52 | LR: 1e-4 | Grad Norm: inf"
    (metric_line,) = ProgressTracker().read_lines([line])
    assert (metric_line.step, metric_line.line, metric_line.skipped) == (7, line, None)
    assert math.isnan(metric_line.metrics["train loss"])
    assert metric_line.metrics["grad norm"] == math.inf
    assert (metric_line.metrics["val loss"], metric_line.metrics["lr"]) == (0.52, 1e-4)


def test_each_validation_on_a_line_of_its_own_is_read() -> None:
    lines = [
        line for n in (20, 40) for line in (f"it {n}/40 {{'nll': 1.{n}}}", f"VALIDATION it {n}: {{'val_nll': 2.{n}}}")
    ]
    progress = ProgressTracker()
    progress.read_lines(lines)
    assert (progress.step, progress.metrics) == (40, {"loss": 1.4, "val_loss": 2.4})


@for_each(
    [
        ("step 6 loss 0.25 val_loss 0.5", {"loss": 0.25, "val_loss": 0.5}, 6),
        ("epoch 0 | loss: nan", {"loss": math.nan}, 6),
        ("Evaluation: loss 0.5", {"val_loss": 0.5}, 6),
        ("Loaded a checkpoint with loss 0.5", {}, 6),
        ("(TaskRunner pid=1) step:7 - actor/pg_loss:-0.5 - actor/grad_norm:0.2", {"loss": -0.5, "grad_norm": 0.2}, 7),
    ]
)
def test_what_print_puts_behind_a_bar_is_read(row: tuple[str, dict[str, float], int]) -> None:
    printed, metrics, step = row
    progress = read("\r".join([*(bar(n, 90, "Training: ") for n in (0, 5, 6)), bar(6, 90, "Training: ") + printed]))
    assert progress.metrics == pytest.approx(metrics, nan_ok=True)
    assert (progress.step, progress.total_steps) == (step, 90)


def test_what_print_puts_behind_a_bar_is_a_line_of_its_own() -> None:
    behind = ProgressTracker().read_lines([bar(6, 90, "Training: ") + "loss nan"])
    assert [(one.step, one.line) for one in behind] == [(6, "loss nan")]


@for_each(
    [
        ("Epoch 1 batch 3/9 loss 0.41 (0.39)", 0.39),
        ("Epoch 1 batch 3/9 loss: 0.41 (avg: 0.39)", 0.39),
        ("Epoch: [1][3/9]  Loss 0.02 (0.39)  Acc@1 12.5 (10.1)", 0.39),
        ("step 3/9 loss 0.41 (0.02)", 0.41),  # a deviation
        ("step 3/9 loss 0.41 (12%) lr 0.1", 0.41),
        ("step 3/9 loss 0.41 (+1.2z)", 0.41),
    ]
)
def test_the_mean_in_brackets_is_the_figure(row: tuple[str, float]) -> None:
    assert read(row[0]).metrics["loss"] == row[1]


def test_metrics_of_an_evaluation_have_names_that_say_so() -> None:
    (metric_line,) = ProgressTracker().read_lines(["Test: loss = 19.4121 | f1 = 0.7498"])
    assert metric_line.metrics == {"val loss": 19.4121, "val f1": 0.7498}


def test_skipped_steps_are_in_the_unit_of_the_step() -> None:
    (metric_line,) = ProgressTracker().read_lines(
        ["[INFO] [Rank 0] step=120, skipped=120, lr=[1e-05], mom=[(0.9, 0.99)]"]
    )
    assert (metric_line.step, metric_line.skipped) == (120, 120)
    lines = [f" iteration {n}/ 90 | lm loss: 2.5E+00 | number of skipped iterations:   2 |" for n in (10, 20)]
    assert [metric_line.skipped for metric_line in ProgressTracker().read_lines(lines)] == [2, 4]


def test_the_four_most_important_headlines_are_kept() -> None:
    progress = read("step 3 loss 0.5 reward 2.0 val_loss 0.6 grad_norm 1.5 fps 90 accuracy 0.9")
    assert progress.metrics == {"loss": 0.5, "reward": 2.0, "val_loss": 0.6, "grad_norm": 1.5}


def test_measures_are_shown_under_their_own_names_where_no_headline_is() -> None:
    assert read("ep 1/8 it 3/40 gs=3 | denoise_mse=0.4 | gnorm=1.5").metrics == {"denoise_mse": 0.4, "grad_norm": 1.5}
    assert read("step 3 loss 0.4 aux_loss 1.5").metrics == {"loss": 0.4}
    assert read("step 3 policy_loss 0.4 value_loss 1.5").metrics == {"policy_loss": 0.4, "value_loss": 1.5}
    assert read("step 3 policy_loss 0.4 value_loss 1.5\nstep 4 loss 0.3").metrics == {"loss": 0.3}


def test_lines_without_a_step_or_a_metric_are_left_out() -> None:
    assert ProgressTracker().read_lines(["hello", "max_steps: 500", bar(3, 9, "Map: ", "1.2 examples/s")]) == []


# --- the user's own pattern


def test_the_users_pattern_alone_decides_the_first_step() -> None:
    progress = ProgressTracker(r"rollout (\d+) finished")
    progress.read_lines(["epoch 3 loss 0.4112", bar(40, 900, "Training: ")])
    assert not progress.first_step_seen
    assert progress.step == 40
    progress.read_lines(["rollout 12 finished"], 5.0)
    assert (progress.first_step_seen, progress.first_step_line) == (True, "rollout 12 finished")
    assert (progress.step, progress.total_steps) == (40, 900)


def test_the_number_in_the_users_pattern_is_the_step_where_the_output_has_no_total() -> None:
    progress = ProgressTracker(r"rollout (\d+) finished")
    for rollout in range(1, 4):
        progress.read_lines([bar(n, 10) for n in range(1, 11)])
        progress.read_lines([f"rollout {rollout} finished"])
    assert (progress.step, progress.total_steps) == (3, None)


@pytest.mark.parametrize(
    "pattern", ["lm loss", r"iteration\s+(\d+)", r"iteration\s+1/", "training starts", r"epoch (\d+) begins"]
)
def test_the_users_pattern_leaves_step_total_metrics_and_eta_to_the_built_in_readers(pattern: str) -> None:
    progress = ProgressTracker(pattern)
    progress.read_lines(["training starts", "epoch 0 begins"])
    for n in range(1, 60):
        progress.read_lines([f" iteration  {n}/ 100 | lm loss: 2.{n}E+00 |"], 2.0 * n)
        if n % 20 == 0:
            progress.read_lines([f"epoch {n // 20} begins"], 2.0 * n + 1)
    assert progress.first_step_seen
    assert (progress.step, progress.total_steps, progress.step_s) == (59, 100, 2.0)
    assert progress.metrics["loss"] == pytest.approx(2.59)


def test_the_users_pattern_in_the_lines_of_a_custom_loop_keeps_the_total() -> None:
    for pattern in ("loss", r"step (\d+)"):
        progress = ProgressTracker(pattern)
        progress.read_lines([f"step {n}/500 loss 0.{n}" for n in range(1, 9)])
        assert (progress.step, progress.total_steps) == (8, 500), pattern


def test_the_users_pattern_may_have_no_group_or_one_without_a_number() -> None:
    for pattern in ("dreamt", "(dreamt)", "(never)?dreamt"):
        progress = ProgressTracker(pattern)
        progress.read_lines(["dreamt once", "dreamt twice"])
        assert (progress.first_step_seen, progress.step, progress.advances) == (True, None, 2)


def test_the_users_pattern_does_not_change_the_step_of_a_framework() -> None:
    progress = ProgressTracker("dreamt")
    progress.read_lines(["dreamt once", " iteration  7/ 100 | lm loss: 2.1E+00 |"])
    assert progress.step == 7


def test_a_shorter_bar_after_a_full_one_is_a_sign_of_life_and_not_a_step() -> None:
    progress = read("\r".join(bar(n, 900) for n in range(901)))
    progress.read_lines([bar(n, 25) for n in range(26)])
    assert (progress.step, progress.total_steps) == (900, 900)
    assert progress.advances > 900


# --- robustness


HOSTILE = [
    *(
        "loss ",
        "a ",
        "a-b.",
        "epoch ",
        "epoch [0][1/2]",
        "iter: 1  ",
        "step:1 - ",
        "| train | ",
        "1/2 [00:00<",
        "%|",
        "[",
        "{'",
    ),
    *(
        "{'a': '1', ",
        "━",
        "loss(",
        "loss",
        "Epoch 1 ",
        "1 | loss ",
        " - loss",
        "train Epoch: 1 [1/2] ",
        "tensor(",
        "步",
        "(it/s",
    ),
    *(
        "progress 1.1.1.1/2.2.2.2 [0:1<it/s",
        "saved step ",
        "Epoch 1/2 ━ ",
        "cost at ",
        "loss/",
        "iteration 1/2 |",
        "第1轮",
    ),
    *(
        "1/1 [1:1<1,1it/s ",
        "loss: 1",
        "loss=9,",
        "20/20 [=] - loss:",
        " - 1 loss:",
        "loss (train) ",
        "val_loss_",
        "wandb: a/loss",
    ),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_line_takes_long(piece: str) -> None:
    lines = [(piece * 4000)[:4000], (piece + " " * 3990 + "loss: 1")[:4000], (f"loss 1 {piece}{'1' * 4000}")[:4000]]
    began = time.process_time()
    ProgressTracker().read_lines(lines)
    assert time.process_time() - began < 0.3


def test_numbers_of_any_length_and_form_are_read() -> None:
    for value in ("9" * 400, "1e999", "-inf", "1,2", "0x1f", "\uff11\uff12", "\u00b2", "1.2.3", "1_000"):
        place = f"{value}/{value} [00:01<00:02, {value}it/s]"
        progress = read(
            f"step {value} loss {value} | {place}\n 3%|  | {place}\nEpoch [{value}/{value}], Step {value}, Loss: 1"
        )
        assert progress.step_s is None or progress.step_s >= 0


def test_every_needle_is_part_of_every_line_of_its_format() -> None:
    """A pattern is tried only on lines with its needle, so a wrong needle would disable a format."""
    unseen = {step_format.name for step_format in STEP_FORMATS}
    for row in STEPS:
        for line in split_lines(row[-1]):
            matching = {step_format.name for step_format in STEP_FORMATS if step_format.pattern.search(line)}
            found = {
                step_format.name
                for step_format in STEP_FORMATS
                if step_format.needle in line and step_format.pattern.search(line)
            }
            assert matching == found, line
            unseen -= found
    assert unseen == set()


def test_memory_does_not_grow_with_what_is_printed() -> None:
    progress = ProgressTracker()
    words = ("alpha", "beta", "gamma", "delta")
    for n in range(1, 4000):
        word = words[n % 4] + chr(97 + n % 26) * (n % 31)
        progress.read_lines([f"{'x' * (n % 97)}{word}_loss: {n} {bar(n, 9000, word)}"])
    kept = [len(value) for value in vars(progress).values() if isinstance(value, dict | set)]
    assert max(kept) <= 512


@pytest.mark.parametrize(
    "line",
    [
        "step:5/100 train_loss:3.2 step_avg:...ms",
        "iter 10: loss 2.1, time ...ms, mfu -100.00%",
        "| step | 1.2.3 |",
        "| total_timesteps | 1.5e |",
        "completed step: 3, seconds: 1.2., loss: 1",
        " iteration 5/ 10 | elapsed time per iteration (ms): .. | lm loss: 1.0E+00 |",
        "[epoch:  1, iter:  ,]",
    ],
)
def test_text_that_only_looks_like_a_number_does_not_break_reading(line: str) -> None:
    progress = ProgressTracker()
    progress.read_lines([line, "step 7/100 loss 0.5"])
    assert progress.metrics["loss"] is not None


def test_a_status_table_of_tune_is_a_sign_of_life_only_where_a_trial_has_gone_on() -> None:
    def table(*iterations: int) -> list[str]:
        rows = [f"│ PPO_{n}   RUNNING   64   0.01   {at}   {at * 2.5}   12.5 │" for n, at in enumerate(iterations)]
        return ["╭──────╮", "│ Trial name   status   batch   lr   iter   total time (s)   reward │", *rows, "╰──────╯"]

    tracker = ProgressTracker()
    advances = []
    for lines in (table(), table(1, 1), table(5, 3), table(5, 3), table(5, 3), table(5, 4)):
        tracker.read_lines([*lines, "Trial status: 2 RUNNING"])
        advances.append(tracker.advances)
    assert (advances[0], tracker.step, tracker.metrics) == (0, 5, {"reward": 12.5})
    assert advances[1] < advances[2] == advances[3] == advances[4]
    reports = ProgressTracker()
    reports.read_lines(["Trial PPO_x_00000 reported num_healthy_workers=2.", "Trial PPO_x_00000 reported lr=0.1."] * 2)
    assert (reports.first_step_seen, reports.step, reports.advances) == (True, None, 4)


def test_a_count_below_a_part_of_several_has_the_total_of_all_parts_or_none() -> None:
    tracker, seen = ProgressTracker(), []
    for generation in (1, 2, 3):
        for at, line in enumerate(
            [f"=== generation {generation} / 6 ===", *(f"  games: {n}/20" for n in range(1, 21))]
        ):
            tracker.read_lines([line], 21.0 * generation + at)
        seen.append((tracker.step, tracker.total_steps, tracker.round))
    assert seen == [(20, None, 1), (40, 120, 1), (60, 120, 1)]


def test_dots_that_lead_to_a_loss_below_a_heading_make_its_last_epoch_count() -> None:
    tracker = read("\n".join(f"Epoch {n} of 4\n    triplet loss ... 0.4{n}\n    kept" for n in range(1, 5)))
    assert (tracker.step, tracker.total_steps, tracker.metrics) == (4, 4, {"triplet loss": 0.44})
    assert read("Loading ... 3 of 4 shards\nWaiting for loss ...\n").step is None


def test_a_fold_that_each_line_names_begins_a_round_and_interleaved_ones_do_not() -> None:
    folds = [f"[fold {k}/3] round {n}: C-index 0.7{k}{n}1" for k in (1, 2, 3) for n in (5, 10, 15)]
    assert [(line.round, line.step) for line in ProgressTracker().read_lines(folds)][-4:] == [
        (2, 15), (3, 5), (3, 10), (3, 15),
    ]  # fmt: skip
    trials = [f"[trial {k}/2] step {n} loss 0.{k}{n}" for n in (5, 10, 15, 20) for k in (1, 2)]
    assert {line.round for line in ProgressTracker().read_lines(trials)} == {1}
