"""Raw commands for which runward has a call, and ordinary ones, to which it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.cli.setup.hook import may_be_habit
from mcp_server.command.habits import find_habit, stops_a_training
from mcp_server.command.killers import Killer
from mcp_server.command.started import find_programs

_DATA = Path(__file__).parents[1] / "data" / "habits"
RAW, ORDINARY = (
    [line.replace("\\n", "\n") for line in (_DATA / f"{name}.txt").read_text().splitlines()]
    for name in ("raw", "ordinary")
)


def kind_of(command: str) -> str | None:
    habit = find_habit(command)
    return None if habit is None or (habit.kind == "stop" and not stops_a_training(habit)) else habit.kind


def test_every_raw_command_is_caught_and_no_ordinary_one() -> None:
    assert (len(RAW) >= 140, len(ORDINARY) >= 480) == (True, True)
    assert [command for command in RAW if kind_of(command) is None] == []
    assert [command for command in ORDINARY if kind_of(command) is not None] == []


def test_a_command_that_the_reader_is_not_asked_about_has_no_habit() -> None:
    assert [command for command in RAW if not may_be_habit(command)] == []
    assert not may_be_habit("git status")


@pytest.mark.parametrize(
    ("command", "kind", "text", "cwd", "gpus"),
    [
        ("cd /x && CUDA_VISIBLE_DEVICES=0,1 nohup uv run train.py > o 2>&1 &", "launch", "uv run train.py", "/x", 2),
        ("tmux send-keys -t a 'python train.py --lr 1' C-m", "launch", "python train.py --lr 1", "", 0),
        ("for s in 1 2; do python train.py --seed $s; done", "sweep", "python train.py --seed $s", "", 0),
        ("tmux send-keys -t a C-c", "stop", "tmux send-keys -t a C-c", "", 0),
        ("sleep 60; tail train.log", "wait", "tail train.log", "", 0),
        ("sleep 5; nvidia-smi", "gpu", "nvidia-smi", "", 0),
        ("pkill -f train.py; nohup python train.py &", "stop", "pkill -f train.py", "", 0),
    ],
)
def test_a_habit_has_the_command_to_launch_its_place_and_its_gpus(
    command: str, kind: str, text: str, cwd: str, gpus: int
) -> None:
    habit = find_habit(command)
    assert habit is not None
    assert (habit.kind, habit.text, habit.cwd, habit.gpus) == (kind, text, cwd, gpus)


def test_an_unknown_script_in_the_background_is_one_as_the_client_says_it() -> None:
    assert find_habit("python main.py") is None
    assert find_habit("python main.py", in_background=True) is not None
    assert find_habit("pytest -q", in_background=True) is None


@pytest.mark.parametrize(
    ("command", "is_certain"),
    [
        ("pkill -f train", True),
        ("pkill -f other", False),
        ("pkill train", False),
        ("killall python", True),
        ("kill -9 77", True),
        ("kill 78", False),
        ("kill $(pgrep -f train.py)", True),
        ("ps aux | grep train.py | awk '{print $2}' | xargs kill", True),
        ("kill $(lsof -t -i:80)", False),
        ("kill -9 -1", True),
        ("pkill -f $NAME", False),
    ],
)
def test_a_stop_hits_a_process_only_where_its_words_prove_it(command: str, is_certain: bool) -> None:
    killers = [
        Killer(program, "") for program in find_programs(command) if program.name in ("pkill", "killall", "kill")
    ]
    assert any(killer.surely_hits(77, "python", "python train.py --lr 1") for killer in killers) is is_certain
