"""Directories that several cells would write to, by value."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.record.sweep_spec import Cell
from mcp_server.sweeps.shared_outputs import find_shared_outputs


def make(*launches: dict[str, Any]) -> list[Cell]:
    return [Cell(f"c{n}", "1", launch={"cwd": "/w", **launch}) for n, launch in enumerate(launches)]


@pytest.mark.parametrize(
    "launch",
    [
        {"command": "python train.py --logdir tb/x"},
        {"command": "python train.py", "params": {"output_dir": "tb/x"}},
        {"command": "python train.py", "tensorboard": "/w/tb/x"},
        {"command": ["python", "train.py", "--logdir", "/w/tb/x"], "tensorboard": "/w/tb/x"},
    ],
)
def test_a_directory_that_two_cells_name_as_their_output_is_named_once(launch: dict[str, Any]) -> None:
    (warning,) = find_shared_outputs(make(launch, launch))
    assert warning.startswith("2 cells (c0, …) write to /w/tb/x: put {run_id} into that path")


@pytest.mark.parametrize(
    "launches",
    [
        [{"command": "python train.py --logdir tb/0"}, {"command": "python train.py --logdir tb/1"}],
        [{"command": "python train.py --logdir tb/{run_id}", "tensorboard": "/w/tb/{run_id}"}] * 2,
        [{"command": "python train.py --log_dir logs", "params": {"run_name": "{run_id}-{attempt}"}}] * 2,
        [{"command": "python train.py --data_dir data --load_run runs/7"}] * 2,
        [{"blueprint": "/w/a.md"}] * 2,
    ],
)
def test_cells_that_keep_their_files_apart_are_not_warned_of(launches: list[dict[str, Any]]) -> None:
    assert find_shared_outputs(make(*launches)) == []
