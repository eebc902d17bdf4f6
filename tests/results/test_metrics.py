"""The metrics of a run: which value is best, and which files they are read from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.record.run_directory import RunDir
from mcp_server.results.metrics import read_metrics
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.tag_names import best_direction
from mcp_server.store.state_home import StateHome
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.scalar_runs import csv, live


@pytest.mark.parametrize(
    ("tag", "best"),
    [
        ("Train/mean_reward", "max"),
        ("Episode/rew_tracking", "max"),
        ("val-core/acc/mean@4", "max"),
        ("task_pass_rate@1", "max"),
        ("eval_f1", "max"),
        ("loss", "min"),
        ("valErr", "min"),
        ("train/reward_loss", "min"),
        ("eval/perplexity", "min"),
        ("val/cross_entropy", "min"),
        ("calibration/ece", "min"),
        ("train/bits_per_char", "min"),
        ("policy/entropy", None),
        ("learning_rate", None),
        ("episode_length", None),
        ("std_reward", None),
    ],
)
def test_the_best_value_follows_from_the_name(tag: str, best: str | None) -> None:
    assert best_direction(tag) == best


def test_without_files_the_printed_metrics_are_used(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add(progress={"step": 40, "metrics": {"loss": 0.25, "phase": "warm"}})
    metrics = read_metrics(runs.store.observe("cfm-7kqz"), runs.scalars)
    assert [(one.tag, one.last, one.last_step, one.best) for one in metrics.metrics] == [
        ("loss", 0.25, 40, None),
        ("phase", "warm", 40, None),
    ]
    assert metrics.source == "the run's output"


def test_metrics_with_a_best_value_are_first_and_odd_points_are_counted(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    path = runs.add() / "progress.csv"
    path.write_text("step,lr,loss,reward\n1,0.5,3,1\n2,0.25,nan,4\n3,0.125,2,2\n")
    os.utime(path, (BEGAN_S + 60,) * 2)
    metrics = read_metrics(runs.store.observe("cfm-7kqz"), runs.scalars)
    rows = [(one.tag, one.first, one.last, one.best, one.best_step, one.best_is, one.odd) for one in metrics.metrics]
    assert rows == [
        ("loss", 3, 2, 2, 3, "min", 1),
        ("reward", 1, 2, 4, 2, "max", 0),
        ("lr", 0.5, 0.125, None, None, None, 0),
    ]
    chosen = read_metrics(runs.store.observe("cfm-7kqz"), runs.scalars, ["rew*", "none"])
    assert [one.tag for one in chosen.metrics] == ["reward"]


def test_without_files_the_log_is_read_from_its_first_step_on(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add(progress={"step": 3, "metrics": {"loss": 0.5, "phase": "warm"}})
    rundir = runs.store.run_directory("cfm-7kqz")
    lines = ["use_kl_loss: True, kl_loss_coef: 0.001, lr: 1e-06"]
    values = [(1, 2.0, 0.1, 0.01), (2, 0.25, 0.4, float("nan")), (3, 0.5, 0.3, 0.03)]
    lines += [f"step:{n} - actor/loss:{a} - critic/rewards/mean:{b} - actor/kl_loss:{c}" for n, a, b, c in values]
    rundir.log(1).write_text("\n".join(lines) + "\n")
    metrics = read_metrics(runs.store.observe("cfm-7kqz"), runs.scalars, rundir=rundir)
    rows = {
        one.tag: (one.first, one.first_step, one.last, one.best, one.best_step, one.best_is, one.odd)
        for one in metrics.metrics
    }
    assert rows["actor/loss"] == (2.0, 1, 0.5, 0.25, 2, "min", 0)
    assert rows["critic/rewards/mean"] == (0.1, 1, 0.3, 0.4, 2, "max", 0)
    assert rows["actor/kl_loss"] == (0.01, 1, 0.03, 0.01, 1, "min", 1)
    assert "kl_loss_coef" not in rows
    assert rows["phase"] == (None, None, "warm", None, None, None, 0)
    assert (metrics.source, metrics.notes) == ("the run's output", ())


@pytest.mark.slow
def test_of_a_long_log_beginning_and_end_are_read(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add()
    rundir = runs.store.run_directory("cfm-7kqz")
    filler = ["x" * 1000] * 5000
    rundir.log(1).write_text(
        "\n".join(["step 1/9 loss 3.0", *filler, "step 5/9 loss 0.1", *filler, "step 9/9 loss 1.0\n"])
    )
    metrics = read_metrics(runs.store.observe("cfm-7kqz"), runs.scalars, rundir=rundir)
    assert [(one.tag, one.first, one.last, one.best) for one in metrics.metrics] == [("loss", 3.0, 1.0, 1.0)]
    assert metrics.notes == ("The log is long: only its beginning and end were read for metrics.",)


def test_a_live_runs_step_is_of_the_moment_of_its_curves(tmp_path: Path) -> None:
    path = csv(tmp_path, "step,loss", "130,0.8", "134,0.7")
    run = replace(live(tmp_path), progress={"step": 102, "metrics": {"loss": 0.9}})
    scalars, rundir = Scalars(StateHome(tmp_path / "state")), RunDir(tmp_path / "run")
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).write_text("step 102 loss 0.9\nstep 133 loss 0.72\n")
    run = replace(run, attempt=1)
    assert read_metrics(run, scalars, rundir=rundir).step == 134, "the output is behind the file"
    rundir.log(1).write_text("step 102 loss 0.9\nstep 138 loss 0.72\n")
    assert read_metrics(run, scalars, rundir=rundir).step == 138, "the file is written every few steps"
    path.write_text("step,loss\n13000,0.8\n13400,0.7\n")
    assert read_metrics(run, Scalars(StateHome(tmp_path)), rundir=rundir).step == 138, "samples are no steps"
    path.unlink()
    printed = read_metrics(run, Scalars(StateHome(tmp_path / "other")), rundir=rundir)
    assert (printed.step, [(one.tag, one.last, one.last_step) for one in printed.metrics]) == (
        138,
        [("loss", 0.72, 138)],
    )


def test_where_the_files_hold_no_scalars_the_printed_ones_count(tmp_path: Path) -> None:
    csv(tmp_path, "step 1/9, loss 0.5", "step 2/9, loss 0.25")
    rundir = RunDir(tmp_path / "run")
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).write_text("step 1/9 loss 0.5\nstep 2/9 loss 0.25 actor/clip=0.75\n")
    run = replace(live(tmp_path), attempt=1)
    scalars = Scalars(StateHome(tmp_path / "state"))
    metrics = read_metrics(run, scalars, rundir=rundir)
    assert [(one.tag, one.last, one.best) for one in metrics.metrics] == [("loss", 0.25, 0.25)]
    (own,) = read_metrics(run, scalars, ["actor/clip"], rundir=rundir).metrics
    assert (own.tag, own.last) == ("actor/clip", 0.75)


def test_what_is_asked_for_and_in_no_file_is_read_from_the_output(tmp_path: Path) -> None:
    csv(tmp_path, "step,loss", "1,0.5", "2,0.25")
    rundir = RunDir(tmp_path / "run")
    rundir.log(1).parent.mkdir(parents=True)
    rundir.log(1).write_text("step 1/9 loss 0.7 (ema 0.9)\nstep 2/9 loss 0.6 (ema 0.8)\n")
    run = replace(live(tmp_path), attempt=1)
    metrics = read_metrics(run, Scalars(StateHome(tmp_path / "state")), ["loss", "ema"], rundir=rundir).metrics
    assert {one.tag: (one.last, one.last_step) for one in metrics} == {"loss": (0.25, 2), "ema": (0.8, 2)}
