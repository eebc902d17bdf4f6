"""Two live runs that write to one place are named to whoever launches the second."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.live_outputs import warn_of_shared_outputs


def live(command: str, **more: Any) -> Run:
    spec = RunSpec(run_id="one-abcd", command=command, cwd=more.pop("cwd", "/p"), **more)
    return Run(spec, "running")


SHARED = [
    ("python train.py --logdir runs/a", "python train.py --logdir /p/runs/a --lr 2", "/p/runs/a"),
    ("python train.py --output_dir=out", "python other.py --output-dir ./out", "/p/out"),
    ("cd sub && python train.py --logdir /data/a", "python train.py --logdir /data/a", "/data/a"),
    ("python train.py > train.log 2>&1", "python train.py --lr 2 | tee train.log", "/p/train.log"),
    ("python train.py --logdir a --run_name x", "python train.py --logdir a --run_name x", "/p/a"),
]
APART = [
    ("python train.py --logdir runs/a", "python train.py --logdir runs/b"),
    ("python train.py", "python train.py"),
    ("python train.py --logdir .", "python train.py --logdir ."),
    ("cd a && python train.py --logdir runs", "cd b && python train.py --logdir runs"),
    ("python train.py --logdir runs/{run_id}", "python train.py --logdir runs/{run_id}"),
    ("python train.py --logdir runs --run_name a", "python train.py --logdir runs --run_name b"),
    ("python train.py --logdir runs/a", "tensorboard --logdir runs/a"),
    ("python train.py > /dev/null", "python train.py > /dev/null"),
    ("python train.py --data_dir data", "python train.py --data_dir data"),
]


@pytest.mark.parametrize(("first", "second", "place"), SHARED)
def test_two_live_runs_that_name_one_place_are_warned_of(first: str, second: str, place: str) -> None:
    (warning,) = warn_of_shared_outputs(RunSpec(run_id="two-abcd", command=second, cwd="/p"), [live(first)])
    assert warning == (
        f"one-abcd is live and writes to {place} too: their files may mix. Put {{run_id}} into that path."
    )


@pytest.mark.parametrize(("first", "second"), APART)
def test_runs_that_may_write_to_different_places_are_not(first: str, second: str) -> None:
    assert warn_of_shared_outputs(RunSpec(run_id="two-abcd", command=second, cwd="/p"), [live(first)]) == []


def test_another_hosts_run_and_the_run_itself_share_nothing() -> None:
    spec = RunSpec(run_id="two-abcd", command="python t.py --logdir a", cwd="/p")
    assert warn_of_shared_outputs(spec, [live("python t.py --logdir a", mirror="/m/other")]) == []
    itself = RunSpec(run_id="one-abcd", command=spec.command, cwd="/p")
    assert warn_of_shared_outputs(itself, [live("python t.py --logdir a")]) == []
