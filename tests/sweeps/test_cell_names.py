"""Names of a phase's cells, by value."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.sweeps.plan.cell_names import name_cells
from mcp_server.sweeps.plan.filling import make_request
from mcp_server.sweeps.plan.plan import expand, parse_phases


def name_grid(**grid: list[Any]) -> list[str]:
    return name_cells([dict(zip(grid, map(str, values), strict=True)) for values in itertools.product(*grid.values())])


@pytest.mark.parametrize(
    ("grid", "first", "last"),
    [
        ({"lr": ["0.001", "0.0003"]}, "lr0.001", "lr0.0003"),
        ({"amp": ["true", "false"]}, "amp-true", "amp-false"),
        (
            {"config": ["configs/fine.json", "configs/nan.json"], "num_envs": [2048, 8192], "seed": [1, 2]},
            "config-fine-num_envs2048-seed1",
            "config-nan-num_envs8192-seed2",
        ),
        ({"ckpt": ["/data/run-01/model.pt", "/data/run-02/model.pt"]}, "ckpt-run-01", "ckpt-run-02"),
        ({"file": ["a/train.yaml", "a/train"]}, "file-train.yaml", "file-train"),
        (
            {"learning_rate": ["0.0003"], "weight_decay": [1e-4], "batch_size": [512], "num_layers": [24], "seed": [1]},
            "lr0.0003-wd0.0001-bs512-nl24-s1",
            "lr0.0003-wd0.0001-bs512-nl24-s1",
        ),
        (
            {"model": ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"], "seed": [1]},
            "model-Qwen-Qwen2.5-7B-Instruct-seed1",
            "model-meta-llama-Llama-3.1-8B-seed1",
        ),
        (
            {"prompt": ["you are helpful and answer at length", "you are helpful and answer at once"], "seed": [1, 12]},
            "prompt-and-answer-at-length-seed1",
            "prompt-helpful-and-answer-at-once-seed12",
        ),
        ({"p": ["x" * 60 + n + "y" * 60 for n in "12"]}, f"p-{'x' * 34}-1", f"p-{'x' * 34}-2"),
    ],
)
def test_a_name_shows_where_values_differ_and_never_half_a_word(grid: dict[str, Any], first: str, last: str) -> None:
    names = name_grid(**grid)
    assert (names[0], names[-1]) == (first, last)
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 40


def test_one_value_is_written_alike_in_all_cells_however_long_the_others_are() -> None:
    names = name_grid(dataset=["libero_spatial_and_a_long_name", "libero"], lr=[0.1, 0.0003], seed=[1, 1000000])
    assert {name.partition("-lr")[0] for name in names} == {"dataset-a_long_name", "dataset-libero"}


def test_the_name_of_a_cell_is_whole_in_its_run_and_that_of_a_long_sweep_is_not() -> None:
    command = {"command": "python t.py", "cwd": "/w"}
    grid = {"dataset": ["libero_spatial_and_a_long_name", "libero_object"], "seed": [1, 2]}
    (cell, *_) = expand(parse_phases(None, {"grid": grid}, command), "s")
    spec = SweepSpec(sweep_id="night-abcd", name=("night-" * 7)[:40])
    name = make_request(spec, cell, 1).name or ""
    assert name.endswith(f"-{cell.name}")
    assert len(name) <= 59


def test_the_cell_of_a_promoted_run_is_named_for_the_letters_of_its_run() -> None:
    phase = {"promote": "night-config-fine-num_envs8192-seed2-w6rs", "grid": {"seed": [21, 22]}}
    cells: tuple[Cell, ...] = expand(parse_phases(None, phase, {"command": "python t.py", "cwd": "/w"}), "s")
    assert [cell.name for cell in cells] == ["from-w6rs-seed21", "from-w6rs-seed22"]


def test_paths_of_many_parts_are_told_apart_in_time_by_their_length() -> None:
    many = 50_000  # each common part was taken away alone: 9 s
    labels = [{"path": f"{many * '/a'}/{name}/c.json"} for name in "bd"]
    assert name_cells(labels) == ["path-b", "path-d"]
