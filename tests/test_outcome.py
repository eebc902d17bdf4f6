"""What a run came to in numbers: which value is best, and where they come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_server.outcome import better, numbers
from tests.ended_runs import BEGAN_S, Runs


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
        ("learning_rate", None),
        ("episode_length", None),
        ("std_reward", None),
    ],
)
def test_the_name_tells_which_value_is_best(tag: str, best: str | None) -> None:
    assert better(tag) == best


def test_without_files_the_printed_numbers_stand(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add(progress={"step": 40, "metrics": {"loss": 0.25, "phase": "warm"}})
    found = numbers(runs.ledger.observe("cfm-7kqz"), runs.scalars)
    assert [(one.tag, one.last, one.last_step, one.best) for one in found.metrics] == [
        ("loss", 0.25, 40, None),
        ("phase", "warm", 40, None),
    ]
    assert found.source == "the run's output"


def test_the_telling_ones_come_first_with_their_best_and_odd_points(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    path = runs.add() / "progress.csv"
    path.write_text("step,lr,loss,reward\n1,0.5,3,1\n2,0.25,nan,4\n3,0.125,2,2\n")
    os.utime(path, (BEGAN_S + 60,) * 2)
    found = numbers(runs.ledger.observe("cfm-7kqz"), runs.scalars)
    told = [(one.tag, one.first, one.last, one.best, one.best_step, one.best_is, one.odd) for one in found.metrics]
    assert told == [
        ("loss", 3, 2, 2, 3, "min", 1),
        ("reward", 1, 2, 4, 2, "max", 0),
        ("lr", 0.5, 0.125, None, None, None, 0),
    ]
    chosen = numbers(runs.ledger.observe("cfm-7kqz"), runs.scalars, ["rew*", "none"])
    assert [one.tag for one in chosen.metrics] == ["reward"]
