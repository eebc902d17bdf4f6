"""What `change` makes of a launch that repeats a run: by the names that the run has, by value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.repeat import apply_change, repeat
from tests.support.ended_runs import Runs


@pytest.mark.parametrize(
    ("command", "change", "expected"),
    [
        ("python t.py --lr 0.1 --seed 1", {"lr": 0.01}, "python t.py --lr 0.01 --seed 1"),
        ("python t.py --lr=0.1", {"--lr": 0.01}, "python t.py --lr=0.01"),
        ("python t.py optim.lr=0.1 +x=1", {"optim.lr": 3e-4, "x": None}, "python t.py optim.lr=0.0003 +x=null"),
        ("cd a && python t.py --name 'a b' | cat", {"--name": "c d"}, "cd a && python t.py --name 'c d' | cat"),
        ("python t.py --amp --seed 1", {"amp": False}, "python t.py --seed 1"),
        ("python t.py --seed 1 --amp", {"amp": None}, "python t.py --seed 1"),
        ("python t.py --amp --seed 1", {"amp": True}, "python t.py --amp --seed 1"),
        ("python t.py --shift -1", {"shift": -2}, "python t.py --shift -2"),
        (["python", "t.py", "--lr", "0.1", "seed=1"], {"lr": 1, "seed": 2}, ["python", "t.py", "--lr", "1", "seed=2"]),
    ],
)
def test_an_option_of_the_command_is_set_where_it_stands(command: Any, change: Any, expected: Any) -> None:
    assert apply_change(LaunchRequest(command), change) == LaunchRequest(expected)


def test_a_parameter_wins_over_an_option_and_a_variable_has_a_dollar() -> None:
    request = LaunchRequest("python t.py", params={"lr": 0.1}, env={"A": "1"})
    changed = apply_change(request, {"lr": 0.2, "$A": 2, "$B": "x", "dropout": 0.1})
    assert changed.params == {"lr": 0.2, "dropout": 0.1}
    assert changed.env == {"A": "2", "B": "x"}


def test_an_argument_of_a_launch_is_replaced_and_tables_are_merged() -> None:
    request = LaunchRequest("python t.py", params={"lr": 0.1}, time_limit_s=60.0, gpus=1)
    changed = apply_change(request, {"time_limit_s": 90, "gpus": 2, "params": {"seed": 3}, "env": {"A": "1"}})
    assert (changed.time_limit_s, changed.gpus, changed.env) == (90, 2, {"A": "1"})
    assert changed.params == {"lr": 0.1, "seed": 3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_env": 64}, "Did you mean num_envs"),
        ({"num_evns": 64}, "Did you mean num_envs"),
        ({"lr": 1}, "Did you mean optim.lr"),
        ({"gpus": 2}, 'Write "--gpus"'),
        ({"seed": 2}, "stands 2 times"),
        ({"time_limit_s": "long"}, "time_limit_s: "),
        ({"owner_": 1, "tags": 3}, "tags: "),
    ],
)
def test_a_change_that_may_mean_another_thing_is_refused(change: dict[str, Any], says: str) -> None:
    command = "python a.py --seed 1 && python t.py --seed 1 --gpus 1 --optim.lr 0.1"
    with pytest.raises(BadArgument, match=says):
        apply_change(LaunchRequest(command, params={"num_envs": 8}), change, "cfm-7kqz")


def test_a_cell_with_another_seed_does_not_keep_a_name_that_says_its_seed(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add("grid-seed1-7kqz", name="grid-seed1", sweep="grid-aaaa", cell="seed1", params={"seed": 1})
    again = LaunchRequest(like="grid-seed1-7kqz")
    assert repeat(again, runs.store).name == "grid-seed1"
    assert repeat(replace(again, change={"seed": 7}), runs.store).name == "grid-again", "the sweep is grid"
    assert repeat(replace(again, change={"seed": 7}, name="mine"), runs.store).name == "mine"
