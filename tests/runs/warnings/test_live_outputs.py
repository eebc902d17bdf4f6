"""Two live runs that write to one place are named to whoever launches the second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.written_files import Outputs, WrittenFile, write_outputs
from mcp_server.runs.warnings.warning_inputs import (
    warn_of_former_files,
    warn_of_former_outputs,
    warn_of_options,
    warn_of_shared_outputs,
)
from tests.support.ended_runs import Runs


def other(command: str, **more: Any) -> RunSpec:
    return RunSpec(run_id="one-abcd", command=command, cwd=more.pop("cwd", "/p"), **more)


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
    (warning,) = warn_of_shared_outputs(RunSpec(run_id="two-abcd", command=second, cwd="/p"), [other(first)])
    assert warning == (
        f"one-abcd is live and writes to {place} too: their files may mix. Put {{run_id}} into that path."
    )


@pytest.mark.parametrize(("first", "second"), APART)
def test_runs_that_may_write_to_different_places_are_not(first: str, second: str) -> None:
    assert warn_of_shared_outputs(RunSpec(run_id="two-abcd", command=second, cwd="/p"), [other(first)]) == []


def test_another_hosts_run_and_the_run_itself_share_nothing() -> None:
    spec = RunSpec(run_id="two-abcd", command="python t.py --logdir a", cwd="/p")
    assert warn_of_shared_outputs(spec, [other("python t.py --logdir a", mirror="/m/other")]) == []
    itself = RunSpec(run_id="one-abcd", command=spec.command, cwd="/p")
    assert warn_of_shared_outputs(itself, [other("python t.py --logdir a")]) == []


TRAIN = "tensorboard --logdir out --port 7 &\npython train.py --logdir {place}"


def test_a_rerun_into_the_directory_of_an_ended_run_names_it_unless_it_resumes(tmp_path: Path) -> None:
    former = other(TRAIN.format(place="out"), cwd=str(tmp_path))
    again = RunSpec(run_id="two-abcd", command=TRAIN.format(place="out"), cwd=str(tmp_path))
    assert warn_of_former_outputs(again, lambda _: [former]) == []  # it left nothing
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "eval.json").write_text("{}")
    (warning,) = warn_of_former_outputs(again, lambda _: [former])
    assert warning == (
        f"The files of one-abcd, which has ended, lie in {tmp_path}/out: this run may overwrite its evaluations and "
        "checkpoints. Put {run_id} into that path, or name another."
    )
    for command in (f"{again.command} --resume", TRAIN.format(place="out/{run_id}"), TRAIN.format(place="other")):
        assert warn_of_former_outputs(replace(again, command=command), lambda _: [former]) == []


def test_a_rerun_into_the_result_directory_of_an_ended_run_names_it(tmp_path: Path) -> None:
    former = other("python train.py", result_dir=str(tmp_path))
    again = RunSpec(run_id="two-abcd", command="python train.py", cwd="/p", result_dir=str(tmp_path))
    (tmp_path / "experiment_log.md").write_text("")
    assert warn_of_former_outputs(again, lambda _: [former]) == []
    (tmp_path / "results.md").write_text("")
    assert "The files of one-abcd" in warn_of_former_outputs(again, lambda _: [former])[0]


def test_the_same_command_again_names_a_file_that_the_former_run_wrote_wherever_it_chose_to(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add("one-abcd", command="python lm.py", params={"lr": 0.1})
    files = [cwd / "out_20261128_113905" / "a.pt", cwd / "out_lr0.1" / "ckpt_300.json"]
    for file in files:
        file.parent.mkdir()
        file.touch()
    written = tuple(WrittenFile(str(file), 1, 0, 0) for file in files)
    write_outputs(runs.store.run_directory("one-abcd").outputs(1), Outputs(files=written))
    again = RunSpec(run_id="two-efgh", command="python lm.py", params={"lr": 0.1}, cwd=str(cwd))
    (warning,) = warn_of_former_files(again, runs.store)
    assert warning.startswith(f"one-abcd ran the same command and wrote {files[1]}: this run may overwrite its files.")
    assert warn_of_former_files(replace(again, run_id="one-abcd"), runs.store) == []  # it has ended itself by now
    assert warn_of_former_files(replace(again, cwd="/copy", like="one-abcd"), runs.store) == [warning]
    for others in (replace(again, params={"lr": 0.2}), replace(again, cwd="/p"), replace(again, command="python b.py")):
        assert warn_of_former_files(others, runs.store) == []
    files[1].unlink()
    assert warn_of_former_files(again, runs.store) == []


def test_the_command_of_a_former_run_as_it_ran_is_warned_of(tmp_path: Path) -> None:
    former = other(TRAIN.format(place="out/{run_id}"), cwd=str(tmp_path))
    again = replace(former, run_id="two-efgh", command=TRAIN.format(place=f"out/{former.run_id}"))
    (tmp_path / "out" / former.run_id).mkdir(parents=True)
    (tmp_path / "out" / former.run_id / "model.pt").touch()
    assert f"The files of {former.run_id}" in warn_of_former_outputs(again, lambda _: [former])[0]
    assert warn_of_former_outputs(replace(former, run_id="two-efgh"), lambda _: [former]) == []


def test_a_live_run_with_the_same_result_directory_is_named_whatever_its_seed() -> None:
    one = RunSpec(run_id="one-abcd", command="python t.py --seed 1", cwd="/p", result_dir="/p/out")
    two = replace(one, run_id="two-abcd", command="python t.py --seed 2")
    told = ["one-abcd is live and has /p/out for its results too: the documents mix."]
    assert warn_of_shared_outputs(two, [one]) == told
    assert warn_of_shared_outputs(replace(two, result_dir="/p/other"), [one]) == []


def test_an_option_that_stands_in_the_command_and_in_params_with_two_values_is_named(tmp_path: Path) -> None:
    spec = RunSpec(run_id="one-abcd", command="python t.py --epochs 8", params={"epochs": 16}, cwd=str(tmp_path))
    assert warn_of_options(spec) == ["epochs stands twice: 8 in the command and 16 in params, which come later."]
    assert warn_of_options(replace(spec, params={"epochs": 8, "lr": 1})) == []
