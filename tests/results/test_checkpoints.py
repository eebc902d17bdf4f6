"""Checkpoints as trainers name them: path, step, size."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from mcp_server.results.checkpoints import epoch_in_name, find_checkpoints, find_run_checkpoints, step_in_name
from mcp_server.results.run_files import limited_scan
from mcp_server.text.formatting import format_size
from tests.support.ended_runs import BEGAN_S, Runs


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("checkpoint_000010", 10),
        ("global_step_100", 100),
        ("global_step100", 100),
        ("ckpt_2500.pt", 2500),
        ("ckpt_000300.json", 300),
        ("model_1500.pt", 1500),
        ("epoch=3-step=100.ckpt", 100),
        ("rl_model_5000_steps.zip", 5000),
        ("iter_0000300", 300),
        ("step-42.safetensors", 42),
        ("best_step_7.pth", 7),
        ("model-00001-of-00002.safetensors", None),
        ("epoch_3.pt", None),
        ("model.pt", None),
        ("best.ckpt", None),
        ("llama3_8b.pt", None),
        ("resnet50.pth", None),
    ],
)
def test_the_step_is_read_from_the_name(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_the_epoch_is_read_from_the_name() -> None:
    names = ("epoch=3-step=100.ckpt", "epoch_12.pt", "checkpoint-500", "ckpt_ep7.pt", "step3")
    assert [epoch_in_name(name) for name in names] == [3, 12, None, 7, None]


def write(path: Path, size_bytes: int = 10, at_s: float = BEGAN_S) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    os.utime(path, (at_s, at_s))


def test_a_directory_is_one_checkpoint_and_files_are_single_ones_newest_first(tmp_path: Path) -> None:
    write(tmp_path / "out/checkpoint-500/model-00001-of-00002.safetensors", 1000, BEGAN_S + 5)
    write(tmp_path / "out/checkpoint-500/model-00002-of-00002.safetensors", 500, BEGAN_S + 5)
    write(tmp_path / "out/checkpoint-500/optimizer.pt", 200, BEGAN_S + 5)
    write(tmp_path / "out/checkpoint-500/global_step500/bf16.pt", 20, BEGAN_S + 5)
    write(tmp_path / "verl/global_step_100/actor/model_world_size_2_rank_0.pt", 70, BEGAN_S + 4)
    write(tmp_path / "verl/global_step_100/data.pt", 7, BEGAN_S + 4)
    write(tmp_path / "final/config.json", 1, BEGAN_S + 3)
    write(tmp_path / "final/model.safetensors", 99, BEGAN_S + 3)
    write(tmp_path / "logs/model_1500.pt", 30, BEGAN_S + 2)
    write(tmp_path / "lightning/epoch=3-step=100.ckpt", 40, BEGAN_S + 1)
    write(tmp_path / "rl_model_5000_steps.zip", 50, BEGAN_S)
    rows = [
        (str(one.path.relative_to(tmp_path)), one.step, one.epoch, one.size_bytes) for one in find_checkpoints(tmp_path)
    ]
    assert rows == [
        ("out/checkpoint-500", 500, None, 1720),
        ("verl/global_step_100", 100, None, 77),
        ("final", None, None, 100),
        ("logs/model_1500.pt", 1500, None, 30),
        ("lightning/epoch=3-step=100.ckpt", 100, 3, 40),
        ("rl_model_5000_steps.zip", 5000, None, 50),
    ]


def test_json_is_a_checkpoint_where_its_name_is_that_of_one_and_has_a_number(tmp_path: Path) -> None:
    for name in (
        "ckpt_000300.json",
        "policy_r6.json",
        "step_100.json",
        "policy.json",
        "metrics_5.json",
        "model_1.json",
    ):
        write(tmp_path / name)
    assert {one.path.name for one in find_checkpoints(tmp_path)} == {"ckpt_000300.json", "policy_r6.json"}


def test_other_files_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("data.zip", "vocab.bin", "step_1/video.mp4", "epoch_3/log.txt", ".cache/model.pt", "venv/model.pt"):
        write(tmp_path / name)
    write(tmp_path / "model.pt")
    write(tmp_path / "optimizer.pt")
    (tmp_path / "checkpoint-9").symlink_to(tmp_path / "venv")
    os.mkfifo(tmp_path / "ckpt_5.pt")
    assert [one.path.name for one in find_checkpoints(tmp_path)] == ["model.pt"]


def test_a_file_of_a_general_kind_is_one_in_a_directory_of_checkpoints_or_named_by_a_count(tmp_path: Path) -> None:
    own = ("a/ckpt/epoch_001.npz", "a/checkpoints/best.npz", "b/epoch_002.npz", "b/iter-30.pkl", "weights/last.h5")
    others = ("c/ckpt/stats.npz", "samples/epoch_003.npz", "c/metrics/epoch_4.npz", "c/mean_5.npz", "ckpt/log.csv")
    for name in (*own, *others):
        write(tmp_path / name)
    assert {str(one.path.relative_to(tmp_path)) for one in find_checkpoints(tmp_path)} == set(own)


def test_an_archive_of_any_name_is_a_model_by_its_content_and_data_beside_a_model_is_none(tmp_path: Path) -> None:
    for name, member in (("CartPole-v1.zip", "policy.pth"), ("results.zip", "rows.csv")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, b"x")
    for name in ("rl_model_replay_buffer_1000_steps.pkl", "rl_model_vecnormalize_1000_steps.pkl", "policy_dataset.npz"):
        write(tmp_path / name)
    assert [one.path.name for one in find_checkpoints(tmp_path)] == ["CartPole-v1.zip"]


def test_where_a_run_saved_below_the_directory_that_it_named_a_file_elsewhere_is_anothers(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add(command="python train.py --output_dir out/a")
    write(cwd / "out/a/ckpt_20.pt", at_s=BEGAN_S + 60)
    write(cwd / "other/ckpt_30.pt", at_s=BEGAN_S + 60)
    run = runs.store.observe("cfm-7kqz")
    assert [one.step for one in find_run_checkpoints(run, runs.scalars.attribution.of(run))] == [20]


def test_the_search_of_a_huge_tree_is_cut(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"{number:02}" / "ckpt_1.pt")
    walk = limited_scan(max_directories=11)
    assert len(find_checkpoints(tmp_path, walk)) == 10
    assert walk.cut
    whole = limited_scan()
    assert len(find_checkpoints(tmp_path, whole)) == 30
    assert not whole.cut


def test_a_run_owns_the_checkpoints_written_while_it_ran(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    elsewhere = tmp_path / "scratch" / "checkpoint-30"
    cwd = runs.add(progress={"checkpoint": str(elsewhere)})
    write(cwd / "ckpt_10.pt", at_s=BEGAN_S - 60)
    write(cwd / "ckpt_20.pt", at_s=BEGAN_S + 60)
    write(elsewhere / "model.safetensors", at_s=BEGAN_S + 120)
    write(cwd / "ckpt_40.pt", at_s=BEGAN_S + 86400)
    run = runs.store.observe("cfm-7kqz")
    assert [one.step for one in find_run_checkpoints(run, runs.scalars.attribution.of(run))] == [30, 20]


def test_a_run_in_the_home_directory_has_what_its_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add(command="python train.py --output_dir out/a")
    monkeypatch.setenv("HOME", str(cwd))
    write(cwd / "out/a/ckpt_20.pt", at_s=BEGAN_S + 60)
    write(cwd / "other/ckpt_30.pt", at_s=BEGAN_S + 60)
    run = runs.store.observe("cfm-7kqz")
    assert [one.step for one in find_run_checkpoints(run, runs.scalars.attribution.of(run))] == [20]


def test_sizes_have_three_digits() -> None:
    sizes = (0, 999, 1000, 1024 * 1024, 4_563_402_752, 5 * 1024**5)
    assert [format_size(one) for one in sizes] == ["0 B", "999 B", "0.977 KiB", "1 MiB", "4.25 GiB", "5.12e+03 TiB"]
