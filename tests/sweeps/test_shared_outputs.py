"""Directories that several cells would write to, by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.plan.plan_checks import find_shared_outputs, name_runs


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


RUN_NAME = "import cli_args\nlog_dir = f'logs/{cli_args.args.run_name}'\ntorch.save(model, log_dir)\n"
OWN = "out = os.environ['RUNWARD_RUN_ID']\ntorch.save(model, out)\n"


def planned(
    directory: Path, script: str, command: str = "python scripts/go/train.py --lr {lr}", **launch: Any
) -> list[Cell]:
    (directory / "scripts" / "go").mkdir(parents=True)
    (directory / "scripts" / "go" / "train.py").write_text(script)
    (directory / "scripts" / "go" / "cli_args.py").write_text('parser.add_argument("--run_name", default="")')
    common = {"cwd": str(directory), **launch}
    return [Cell(f"c{n}", "1", launch={**common, "command": command.format(lr=n)}, variant="v") for n in range(3)]


def test_a_script_with_an_option_for_the_name_of_a_run_gets_one_whatever_its_path(tmp_path: Path) -> None:
    cells = name_runs(planned(tmp_path, RUN_NAME))
    assert [cell.launch["params"] for cell in cells] == [{"run_name": "{run_id}-{attempt}"}] * 3
    assert find_shared_outputs(cells) == []


@pytest.mark.parametrize("command", ["python scripts/go/train.py --run_name mine", "python scripts/go/train.py > {lr}"])
def test_a_given_name_stays_and_so_does_a_command_without_that_option(tmp_path: Path, command: str) -> None:
    script = RUN_NAME if "mine" in command else OWN
    cells = planned(tmp_path, script, command)
    assert "params" not in name_runs(cells)[0].launch or "run_name" not in name_runs(cells)[0].launch["params"]


def test_a_script_that_writes_somewhere_is_warned_of_once(tmp_path: Path) -> None:
    (warning,) = find_shared_outputs(planned(tmp_path, "torch.save(model, 'model.pt')\n"))
    assert warning.startswith("3 cells (c0, …) run a script that writes files (torch.save), and name no directory")


def test_the_main_of_a_module_that_is_imported_for_a_function_writes_nothing(tmp_path: Path) -> None:
    helper = (
        "def values():\n    return 1\n\n\ndef main():\n    os.makedirs('out')\n\n\nif __name__ == '__main__': main()\n"
    )
    for script, count in (("import cli_args\ncli_args.values()\n", 0), ("from cli_args import main\nmain()\n", 1)):
        cells = planned(tmp_path / str(count), script)
        (tmp_path / str(count) / "scripts" / "go" / "cli_args.py").write_text(helper)
        assert len(find_shared_outputs(cells)) == count


def test_one_directory_under_a_name_that_may_be_an_input_is_told_as_a_condition(tmp_path: Path) -> None:
    (warning,) = find_shared_outputs(planned(tmp_path, "os.makedirs(a.dir)\n", "python scripts/go/train.py --dir out"))
    assert "(makedirs), and all have --dir out: if they write there, their files mix." in warning


def test_a_directory_named_by_the_second_is_no_place_of_its_own(tmp_path: Path) -> None:
    dated = "began = time.time()\nos.makedirs(time.strftime('logs/%Y-%m-%d_%H-%M-%S'))\n"
    (warning,) = find_shared_outputs(planned(tmp_path, dated))
    assert "(makedirs), and name no directory: if two have one (a fixed path, a name by the second)" in warning


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (OWN, "python scripts/go/train.py --lr {lr}"),
        ("print(1)\n", "python scripts/go/train.py --lr {lr}"),
        ("torch.save(model, out)\n", "python scripts/go/train.py --out /w/{lr}"),
        ("torch.save(model, out)\n", "python scripts/go/train.py --out runs/{{run_id}}"),
        ("os.makedirs(a.dir)\n", "python scripts/go/train.py --dir out/{lr}"),
    ],
)
def test_a_script_that_keeps_files_apart_or_writes_none_is_not_warned_of(
    tmp_path: Path, script: str, command: str
) -> None:
    assert find_shared_outputs(planned(tmp_path, script, command)) == []
