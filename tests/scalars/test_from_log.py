"""Printed metrics: of the last attempt with a step, with the baseline that was evaluated before it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.record.written_files import Outputs, WrittenFile, write_outputs
from mcp_server.scalars import from_log
from mcp_server.scalars.from_log import read_as_said, read_log_metrics, read_printed_value
from mcp_server.store.attribution.timed_search import TimedSearch

STEPS = [f"step {step}/9 loss: {1 / step:.3f} reward: {step}" for step in range(1, 10)]


def make_run(first_step_pattern: str | None = None, *, attempts: int = 1, command: str = "train") -> Run:
    return Run(RunSpec(command, first_step_pattern=first_step_pattern), "finished", attempt=attempts)


def read(tmp_path: Path, *attempts: list[str]) -> dict[str, list[tuple[int | None, float]]]:
    rundir = RunDir(tmp_path)
    for number, lines in enumerate(attempts, 1):
        rundir.log(number).parent.mkdir(parents=True)
        rundir.log(number).write_text("\n".join(lines) + "\n")
    return dict(read_log_metrics(make_run(attempts=len(attempts)), rundir).points)


@pytest.mark.parametrize(
    "lines",
    [
        ["Initial validation metrics: {'pass_n': 4, 'total_tasks': 57, 'mean_reward': 0.31, 'std_reward': 0.46}"],
        [
            "Evaluation of math",
            "┌─────────────┬──────┐",
            "│ pass_n      │ 4    │",
            "│ mean_reward │ 0.31 │",
            "└─────────────┴──────┘",
        ],
        ["[EVAL @ step 0] math  mean_reward=0.31  std_reward=0.46"],
    ],
)
def test_an_evaluation_before_the_first_step_is_at_step_0(tmp_path: Path, lines: list[str]) -> None:
    points = read(tmp_path, ["Loading", *lines, *STEPS])
    assert points["mean_reward"] == [(0, 0.31)]
    assert points["reward"][0] == (1, 1.0)


def test_figures_in_a_dict_with_a_step_belong_to_that_step(tmp_path: Path) -> None:
    line = "{{'global_steps': {}, 'total_tasks': 57, 'mean_reward': {}}}".format
    points = read(tmp_path, [*STEPS[:2], line(3, 0.5), *STEPS[2:]])
    assert points["mean_reward"] == [(3, 0.5)]


def points_of(tmp_path: Path, name: str, lines: list[str]) -> list[tuple[int | None, float]]:
    return read(tmp_path, lines)[name]


def test_a_line_that_names_a_step_is_at_that_step_also_beside_another_counter(tmp_path: Path) -> None:
    lines = ["step 0: train loss 4.30, val loss 4.40"]
    for n in range(21):
        if n in (10, 20):
            lines.append(f"step {n}: train loss {3 - n / 100}, val loss {3.1 - n / 100}")
        lines += [f"micro step {k}/2 loss 1.{k}" for k in (1, 2)]
        lines.append(f"iter {n}: loss {4 - n / 10:.4f}, time 20.00ms, mfu -100.00%")
    assert points_of(tmp_path, "train loss", lines) == [(0, 4.3), (10, 2.9), (20, 2.8)]
    assert points_of(tmp_path / "b", "val loss", lines) == [(0, 4.4), (10, 3.0), (20, 2.9)]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("name", ["total_timesteps", "step", "iteration"])
def test_the_numbers_of_a_table_are_at_its_own_step_wherever_that_stands(tmp_path: Path, name: str, at: int) -> None:
    lines = []
    for n in (100, 200, 300):
        rows = [f"| loss | {n / 100} |", f"| ep_rew_mean | {n / 10} |"]
        rows.insert(at, f"| {name} | {n} |")
        lines += ["+------+------+", *rows, "+------+------+"]
    assert points_of(tmp_path, "ep_rew_mean", lines) == [(100, 10.0), (200, 20.0), (300, 30.0)]
    assert points_of(tmp_path / "b", "loss", lines) == [(100, 1.0), (200, 2.0), (300, 3.0)]


def test_the_numbers_of_a_table_of_evaluation_say_so(tmp_path: Path) -> None:
    rows = "| rollout/ | |", "| ep_rew_mean | 20 |", "| total_timesteps | {} |"
    evaluated = "| eval/ | |", "| mean_reward | 99 |", "| time/ | |", "| total_timesteps | {} |"
    lines = [row.format(n) for n in (64, 128) for row in (*rows, "-------", *evaluated, "-------")]
    points = read(tmp_path, lines)
    assert points["eval/mean_reward"] == [(64, 99.0), (128, 99.0)]
    assert points["ep_rew_mean"] == [(64, 20.0), (128, 20.0)]


def test_a_value_at_the_end_of_an_epoch_is_at_its_last_step(tmp_path: Path) -> None:
    lines = []
    for epoch in (1, 2):
        lines += [f"Train Epoch: {epoch} [{n}/6000 (0%)]\tLoss: 0.{epoch}" for n in range(0, 6000, 640)]
        lines += [f"Test set: Average loss: {epoch}.5, Accuracy: 900/1000 (90%)"]
    assert points_of(tmp_path, "val average loss", lines) == [(6000, 1.5), (12000, 2.5)]
    assert points_of(tmp_path / "b", "loss", lines)[:2] == [(0, 0.1), (640, 0.1)]


def test_a_held_out_value_that_stays_the_same_is_at_each_step_of_its_own_and_once_behind_a_bar(tmp_path: Path) -> None:
    rows = [f"{{'epoch': {n}, 'train_loss': {1 / n}, 'val_acc': 0.5}}" for n in (1, 2, 3)]
    assert points_of(tmp_path, "val_acc", rows) == [(1, 0.5), (2, 0.5), (3, 0.5)]
    bars = [f"train:  {n}0%|███| {n}/10 [00:0{n}<00:40, 1.0it/s, loss={1 / n}, val_acc=0.5]" for n in range(1, 9)]
    assert points_of(tmp_path / "bar", "val_acc", bars) == [(1, 0.5)]


def test_a_value_amid_an_epoch_is_at_the_step_before_it(tmp_path: Path) -> None:
    lines = [f"Epoch: [1][{n}/90] loss {n}" for n in range(10, 50, 10)]
    assert points_of(tmp_path, "val loss", [*lines, "val loss 0.5", "Epoch: [1][50/90] loss 3"]) == [(40, 0.5)]


def test_the_baseline_of_verl_begins_its_series(tmp_path: Path) -> None:
    lines = [f"step:{step} - val-core/gsm8k/reward/mean@1:{0.3 + step / 10} - actor/pg_loss:0.1" for step in range(3)]
    points = read(tmp_path, lines)
    assert [step for step, _ in points["val-core/gsm8k/reward/mean@1"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "line",
    ["reward: 0.5", "eval_interval: 10", "| reward | 0.5 |", "loss = 3", "Evaluation is off", "score_threshold=0.5"],
)
def test_settings_before_the_first_step_are_not_a_baseline(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, [line, *STEPS])["reward"][0] == (1, 1.0)
    assert all(pairs[0][0] != 0 for pairs in read(tmp_path / "b", [line, *STEPS]).values())


def test_a_run_without_a_step_has_no_metrics(tmp_path: Path) -> None:
    assert read(tmp_path, ["Initial validation metrics: {'mean_reward': 0.31}", "Traceback"]) == {}


def test_a_number_is_known_by_the_name_that_the_program_prints(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    rundir.log(1).parent.mkdir(parents=True)
    lines = [
        "Learning iteration 1/9",
        "  Mean reward: 3.5",
        "  Surrogate loss: 0.0167",
        "{'eval loss': 0.31, 'acc': 1}",
    ]
    rundir.log(1).write_text("\n".join([*lines, "Learning iteration 2/9", "  Surrogate loss: 0.01"]) + "\n")
    printed = read_log_metrics(make_run(), rundir).printed
    assert [value for _, value in printed["Surrogate loss"]] == [0.0167, 0.01]
    assert printed["eval loss"][0][1] == 0.31
    assert printed["Mean reward"][0][1] == 3.5


def test_the_worker_that_ray_puts_before_a_line_is_no_name(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).write_text("(TaskRunner pid=123, ip=10.0.0.3) step:1 - critic/score/mean:0.25 - own_figure:7\n")
    printed = read_log_metrics(make_run(), rundir).printed
    assert printed["own_figure"] == [(1, 7.0)]
    assert not [name for name in printed if "pid" in name or "ip" in name.split()]


def test_redirected_output_is_read_where_nobody_else_has_written_it(tmp_path: Path) -> None:
    rundir, log = RunDir(tmp_path / "r"), tmp_path / "train.log"
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).touch()
    log.write_text("\n".join(STEPS))
    status = log.stat()
    run = make_run(command="train > train.log 2>&1")
    file = WrittenFile(str(log), status.st_ino, status.st_size, status.st_mtime_ns)
    write_outputs(rundir.outputs(1), Outputs(ended=True, files=(file,)))
    assert read_log_metrics(run, rundir).points["loss"][0] == (1, 1.0)
    assert not read_log_metrics(make_run(command="train"), rundir).points
    for other in (replace(file, unsure=True), replace(file, append=True), replace(file, size=1)):
        write_outputs(rundir.outputs(1), Outputs(ended=True, files=(other,)))
        assert not read_log_metrics(run, rundir).points


def test_an_attempt_without_a_step_does_not_hide_the_one_before(tmp_path: Path) -> None:
    points = read(tmp_path, STEPS, ["Initial validation metrics: {'mean_reward': 0.31}"])
    assert len(points["reward"]) == 9


def test_a_pattern_that_could_match_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_log, "TimedSearch", lambda pattern, _: TimedSearch(pattern, 0.2))
    rundir = RunDir(tmp_path)
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).write_text("\n".join([*STEPS, "a" * 9_000, *STEPS]) + "\n")
    hostile = read_log_metrics(make_run(r"step (\d+)/|a.*a.*a.*a.*b"), rundir)
    assert hostile.points["loss"][0] == (1, 1.0)
    assert [note for note in hostile.notes if "first_step_pattern took longer" in note]
    assert not read_log_metrics(make_run(r"step (\d+)/"), rundir).notes


def test_a_log_that_grows_is_read_on_as_if_it_were_read_anew(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    log = rundir.log(1)
    log.parent.mkdir(parents=True)
    text = "".join(f"step {step}/900 loss {step / 7:.3f}\r\nprogress {step}\r" for step in range(900)).encode()
    log.write_bytes(b"")
    begun = 0
    for end in (10, 11, 500, 501, 4_000, 20_000, len(text)):
        with log.open("ab") as file:
            file.write(text[begun:end])
        begun = end
        last = read_log_metrics(replace(make_run(), state="running" if end < len(text) else "finished"), rundir)
    anew = RunDir(tmp_path / "other")
    anew.log(1).parent.mkdir(parents=True)
    anew.log(1).write_bytes(text)
    whole = read_log_metrics(make_run(), anew)
    assert (last.points, last.printed, last.step) == (whole.points, whole.printed, whole.step)
    assert last.points["loss"][-1] == (899, 128.429)


def test_a_log_that_was_cut_off_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    log = rundir.log(1)
    log.parent.mkdir(parents=True)
    log.write_text("step 1/9 loss 5.0\nstep 2/9 loss 4.0\n")
    assert read_log_metrics(make_run(), rundir).points["loss"] == [(1, 5.0), (2, 4.0)]
    log.write_text("step 1/9 loss 3.0\n")
    assert read_log_metrics(make_run(), rundir).points["loss"] == [(1, 3.0)]
    log.write_text("step 1/9 loss 2.0\n")
    assert read_log_metrics(make_run(), rundir).points["loss"] == [(1, 2.0)], "of the same length"
    other = tmp_path / "other"
    other.write_text("step 1/9 loss 1.0\nstep 2/9 loss 0.5\nstep 3/9 loss 0.25\n")
    other.replace(log)
    assert read_log_metrics(make_run(), rundir).points["loss"] == [(1, 1.0), (2, 0.5), (3, 0.25)]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("val_loss 0.49623", 0.49623),
        ("step 5 val_loss 0.4 val_acc 0.9", 0.4),
        ("eval/val_loss 2.5e-3 after 3 epochs", 0.0025),
        ("val_loss 12", 12.0),
        ("val_loss: 0.3, before val_loss 0.4", 0.3),
        ("val_loss 3 epochs without a gain", None),
        ("val_loss 7/10, mean return 153.85", 0.7),
        ("val_loss: 7 of 10", 0.7),
        ("average val_loss ......... 0.5365 bpp", 0.5365),
        ("val-loss ........... 22 of 24 (91.7 %)", 22 / 24),
        ("Outcome: 24 of 50 trials val_loss (48 %), 17 timed out", 0.48),
        ("trial 20 of 50: val_loss", None),
        ("val_loss 2026-11-28", None),
        ("val_loss 11/28/2026", None),
        ("val_loss_of 0.4", None),
    ],
)
def test_a_number_is_found_behind_the_name_that_somebody_said(tmp_path: Path, line: str, value: float | None) -> None:
    (tmp_path / "log").write_text(f"val_loss: 9\n---\n{line}\n")
    assert read_printed_value(tmp_path / "log", "val_loss", "---") == value


def test_numbers_behind_a_space_are_known_by_name_at_the_step_of_their_line(tmp_path: Path) -> None:
    lines = [f"ep 01/02 it {step:05d}/00040 :: loss 0.{step} (ema 0.7{step}) | lr 3.00e-04" for step in (10, 20)]
    read(tmp_path, lines)
    metrics = read_log_metrics(make_run(), RunDir(tmp_path))
    assert metrics.select("ema") == {"ema": [(10, 0.71), (20, 0.72)]}
    assert metrics.select("lr") == {"lr": [(10, 3e-4), (20, 3e-4)]}


def test_a_name_that_somebody_said_has_its_numbers_of_all_lines_and_no_setting(tmp_path: Path) -> None:
    read(tmp_path, ['config {"FID-5k": 9}', "64 images at 50, FID-5k 118.45", "64 images at 100, fid5k: nan"])
    (first, at), (second, nan) = read_as_said(make_run(), RunDir(tmp_path), "FID-5k").printed["FID-5k"]
    assert (first, at, second, math.isnan(nan)) == (None, 118.45, None, True)
    assert "::" not in read_as_said(make_run(), RunDir(tmp_path), "::").printed


def test_a_part_of_so_many_that_rises_by_one_is_counted_and_any_other_is_a_share(tmp_path: Path) -> None:
    def of(name: str) -> list[float]:
        return [value for _, value in read_as_said(make_run(), RunDir(tmp_path), name).printed.get(name, [])]

    lines = [f"[fold {k}/3] step {n}: loss 0.{k}{n}, solved {n}/40" for k in (1, 2, 3) for n in (10, 20)]
    read(tmp_path, lines)
    assert (of("fold"), of("solved")) == ([1, 1, 2, 2, 3, 3], [0.25, 0.5, 0.25, 0.5, 0.25, 0.5])
    RunDir(tmp_path).log(1).write_text("".join(f"{line}\n" for line in lines[:2]))
    live = replace(make_run(), state="running")
    assert "fold" not in read_as_said(live, RunDir(tmp_path), "fold").printed  # a share or a count is not known yet


def test_a_number_before_fps_is_no_count_and_bounds_behind_a_value_are_no_names(tmp_path: Path) -> None:
    lines = [f"{n}k/2.00M frames  3072 fps  return {n}.2 [-0.6, 57.1] (n=12)  ent 1.3" for n in range(1, 9)]
    read(tmp_path, lines)
    log = read_log_metrics(make_run(), RunDir(tmp_path))
    assert log.step == 8000
    assert not [name for name in log.printed if "[" in name]


def test_the_epoch_of_the_best_value_is_not_how_many_there_were(tmp_path: Path) -> None:
    lines = [f"Epoch {n} of 24 took 0.7 seconds: MAE {1 / n:.3f} (best was 0.5 in epoch 2)" for n in range(1, 25)]
    read(tmp_path, [*lines, "Training is over. The best MAE was 0.5, in epoch 2; FID-5k 9.1"])
    log = read_as_said(make_run(), RunDir(tmp_path), "Epoch")
    assert (log.counts["epoch"][-1], "Epoch" in log.printed) == ((None, 24.0), False)
    found = read_as_said(make_run(), RunDir(tmp_path), "fid 5k").select("fid 5k")
    assert [value for points in found.values() for _, value in points] == [9.1]


def test_a_figure_that_its_line_calls_the_best_is_not_the_last_and_counts_nothing(tmp_path: Path) -> None:
    lines = [f"Epoch {n} of 9\n  loss 0.{n}\n  F1: 0.3{9 - n} (best 0.38, epoch 1)" for n in range(1, 10)]
    read(tmp_path, [*"\n".join(lines).splitlines(), "best F1: 0.38, kept", "best recall@1 32.4 % (epoch 7)"])
    log = RunDir(tmp_path).log(1)
    assert read_as_said(make_run(), RunDir(tmp_path), "epoch").counts["epoch"][-1] == (None, 9.0)
    assert (read_printed_value(log, "F1"), read_printed_value(log, "best F1")) == (0.3, 0.38)
    assert read_printed_value(log, "recall@1") == 32.4  # nothing else is said of it


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("══ iteration {} of 60 ══\n║ loss {} ║", "iteration"),
        ("--- round {}\n   total loss : {}", "round"),
        ("[10:00:01] ep {}/9 it 00780/00800 :: loss {}", "ep"),
        ("Train Epoch [{}/9] loss {}", "epoch"),
        ("epoch | loss | AP\n {}/9 | {} | 0.5", "epoch"),
    ],
)
def test_a_program_s_own_word_for_its_count_has_that_count(tmp_path: Path, form: str, word: str) -> None:
    lines = [line for n in range(1, 9) for line in form.format(n, 1 / n).splitlines()]
    RunDir(tmp_path).log(1).parent.mkdir(parents=True)
    RunDir(tmp_path).log(1).write_text("\n".join([*lines, "learning rate decays at epoch 500", ""]))
    counts = read_log_metrics(make_run(), RunDir(tmp_path)).counts[word]
    assert [value for _, value in counts][-3:] == [6.0, 7.0, 8.0]


def test_values_below_a_heading_are_at_its_step_from_the_first_on(tmp_path: Path) -> None:
    form = (
        "INFO\t[step={0}/460,epoch=0]\n    optim/total_grad_norm=0.{0}\n    train/loss=3.{0}\n    piqa_len_norm=0.6{0}"
    )
    read(tmp_path, [line for n in (301, 310, 320) for line in form.format(n).splitlines()])
    metrics = read_log_metrics(make_run(), RunDir(tmp_path))
    norms = [(301, 0.301), (310, 0.310), (320, 0.320)]
    assert metrics.select("total_grad_norm") == {"optim/total_grad_norm": norms}
    assert list(metrics.own_series) == ["piqa_len_norm"]


def test_lists_and_long_names_are_curves_by_the_program_s_own_names(tmp_path: Path) -> None:
    ap = "Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ]"
    lines = [
        f"Epoch {n}\ntrain_loss 0.{n}\nPseudo dice [np.float32(0.6{n}), np.float32(0.5{n})]\n {ap} = 0.3{n}"
        for n in (1, 2)
    ]
    read(tmp_path, [line for one in lines for line in one.splitlines()])
    series = read_log_metrics(make_run(), RunDir(tmp_path)).own_series
    assert series["Pseudo dice[1]"] == [(1, 0.51), (2, 0.52)]
    assert series[" ".join(ap.split())] == [(1, 0.31), (2, 0.32)]


def test_a_window_and_a_share_are_parts_of_the_figure_of_their_line(tmp_path: Path) -> None:
    form = "step {0} loss 0.{0}\nAvg. loss per last 25 batches: 0.3{0}\nHellaSwag: {0}/10 = 0.{0}"
    read(tmp_path, [line for n in (1, 2) for line in form.format(n).splitlines()])
    series = read_log_metrics(make_run(), RunDir(tmp_path)).own_series
    assert series["Avg. loss per last 25 batches"] == [(1, 0.31), (2, 0.32)]
    assert series["HellaSwag"] == [(1, 0.1), (2, 0.2)]


def test_the_figures_of_step_0_and_of_an_evaluation_before_it_are_at_0(tmp_path: Path) -> None:
    read(tmp_path, ["val loss 11.5", *(f"  Iteration {n} (0.2 s): objective={90 - n}" for n in range(3))])
    points = read_log_metrics(make_run(), RunDir(tmp_path)).points
    assert points == {"val loss": [(0, 11.5)], "objective": [(0, 90), (1, 89), (2, 88)]}


def test_names_printed_in_per_cent_are_known(tmp_path: Path) -> None:
    form = "step {0}/9 loss: 0.{0}, success: {0}.5 %, top-1 accuracy 1{0}%\n║ wins    {0}.25 % ║\nrest 10%|█ | 1/9"
    lines = [form.format(n) for n in range(1, 10)]
    RunDir(tmp_path).log(1).parent.mkdir(parents=True)
    RunDir(tmp_path).log(1).write_text("\n".join([*lines, ""]))
    assert read_log_metrics(make_run(), RunDir(tmp_path)).percents == {"success", "top-1 accuracy", "wins"}
