"""What a plan means is what runs: several values in one text, switches, and cells with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.command.configs import unfold
from mcp_server.errors import BadArgument
from mcp_server.record.script import format_arguments
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.plan.plan import Phase, expand
from mcp_server.sweeps.plan.plan_checks import check_distinct, check_grid_values, check_multirun, spell_switches


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-4,1e-3", [1e-4, 1e-3]),
        ("range(1,4)", [1, 2, 3]),
        ("range(0, 10, 5)", [0, 5]),
        ("choice(adam, 'sgd', 3)", ["adam", "sgd", 3]),
        ("interval(0, 1)", []),
        ("a,b", ["a", "b"]),
        ("shuffle(range(1,4))", [1, 2, 3]),
        ("sort(3, 1, reverse=true)", [3, 1]),
        ("tag(fast, choice(1,2))", [1, 2]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("${oc.env:A,b}", None),
        ("[256,256]", None),
        ("{a: 1, b: 2}", None),
        ("'a,b'", None),
        ("walk", None),
    ],
)
def test_a_text_that_hydra_sweeps_over_is_unfolded(text: str, values: list[Any] | None) -> None:
    assert unfold(text) == values


def test_several_values_in_one_text_are_refused_with_the_list_that_they_mean() -> None:
    with pytest.raises(BadArgument, match=r'List them: {"n": \[1, 2, 3\]}'):
        check_grid_values("grid", "n", ["range(1,4)"], is_settings=False)
    with pytest.raises(BadArgument, match=r'List them: {"lr": \[0.1, 0.2\]}'):
        check_grid_values("grid", "lr", ["0.1,0.2"], is_settings=True)
    check_grid_values("grid", "layers", ["256,256"], is_settings=False)  # one value of an ordinary program
    check_grid_values("grid", "layers", ["[256,256]", 3, None], is_settings=True)


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("python train.py -m opt.lr=1e-4,1e-3", r'grid={"opt.lr": \[0.0001, 0.001\]}'),
        ("cd /w && python -m pkg.train --multirun 'seed=range(1,3)' | tee log", r'grid={"seed": \[1, 2\]}'),
        (["python", "train.py", "task=a,b", "-m"], r'grid={"task": \["a", "b"\]}'),
        ("torchrun --nproc_per_node=2 train.py --multirun", "as a grid"),
        ("srun torchrun --nproc_per_node=2 train.py -m lr=1,2", r'grid={"lr": \[1, 2\]}'),
        ("train -m a=1,2", r'grid={"a": \[1, 2\]}'),
        ("python train.py hydra.mode=MULTIRUN a=1,2", r'grid={"a": \[1, 2\]}'),
        ("python train.py 'lr=range(1,3)'", r'List them: {"lr": \[1, 2\]}'),
    ],
)
def test_a_multirun_in_a_command_is_refused_with_its_grid(command: str | list[str], meant: str) -> None:
    with pytest.raises(BadArgument, match=meant):
        check_multirun(command)


@pytest.mark.parametrize("command", ["python -m pkg.train lr=1", "torchrun -m pkg.train a=1", "python t.py -m resnet"])
def test_a_module_or_a_model_is_no_multirun(command: str) -> None:
    check_multirun(command)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ('"--amp", action="store_true"', False, []),
        ('"--amp", action=argparse.BooleanOptionalAction, default=True', False, ["--no-amp"]),
        ('"--amp", dest="amp"); p.add_argument("--no-amp", action="store_false"', False, ["--no-amp"]),
        ('"--amp", type=str2bool, default=True', False, ["--amp", "false"]),
        ('"--amp", type=float', None, []),
        ('"--amp", action="store_true"', True, ["--amp"]),
        ('"--amp", nargs="?", const=True, type=str2bool', True, ["--amp"]),
        ('"--amp", type=str2bool', True, ["--amp", "true"]),
        ('"--other"', True, ["--amp"]),
    ],
)
def test_a_switch_is_spelled_as_the_programs_parser_takes_it(
    option: str, value: bool | None, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import argparse\np = argparse.ArgumentParser()\np.add_argument({option})\n")
    cell = Cell("c", "1", launch={"command": "python train.py", "cwd": str(tmp_path), "params": {"amp": value}})
    assert format_arguments(spell_switches(cell).launch["params"], "--k v") == words


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ('"--other"', False),
        ('"--amp", action="store_true", default=True', False),
        ('"--amp", type=bool', False),  # every text is true
        ('"--amp", type=float, default=0.5', None),
        ('"--amp", required=True', None),
        ('"--amp", type=lambda s: s == "yes"', False),
    ],
)
def test_a_switch_of_unknown_form_is_refused_with_the_three_forms(
    option: str, value: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import argparse\np = argparse.ArgumentParser()\np.add_argument({option})\n")
    for command in ("python train.py", "./program"):
        cell = Cell("c", "1", launch={"command": command, "cwd": str(tmp_path), "params": {"amp": value}})
        with pytest.raises(BadArgument, match=r"`--amp (false|null)`.*`--no-amp`.*\{\}\]"):
            spell_switches(cell)
    hydra = Cell("c", "1", launch={"command": "python t.py", "param_style": "k=v", "params": {"amp": value}})
    assert spell_switches(hydra) == hydra


def test_a_value_that_a_parser_makes_of_a_text_of_its_own_is_refused(tmp_path: Path) -> None:
    option = '"--amp", type=lambda s: s == "yes"'
    (tmp_path / "train.py").write_text(f"import argparse\np = argparse.ArgumentParser()\np.add_argument({option})\n")
    cell = Cell("c", "1", launch={"command": "py train.py", "cwd": str(tmp_path), "params": {"amp": True}})
    with pytest.raises(BadArgument, match="amp=true: how the program takes that is not known"):
        spell_switches(cell)


def test_two_cells_with_one_command_are_refused_by_name() -> None:
    launch = {"command": "python train.py --out /o/{cell}", "params": {"lr": 1}}
    cells = [Cell(name, "1", launch={**launch, "command": f"python train.py --out /o/{name}"}) for name in ("a1", "b2")]
    with pytest.raises(BadArgument, match="cells a1 and b2 would run the same command"):
        check_distinct(cells)
    check_distinct([Cell("a", "1", launch={**launch, "env": {"SEED": seed}}) for seed in ("1", "2")])
    check_distinct([Cell("a", phase, launch=launch) for phase in ("1", "2")])


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (0.001, "1e-3"), (True, "true"), ("d/x", "/p/d/x")])
def test_two_cells_whose_values_mean_the_same_are_refused_however_they_are_written(one: object, other: object) -> None:
    """Else a table has them as two seeds of one setting."""
    for entries in ([{"v": one}, {"v": other}], [{"v": one, "seed": 1}, {"v": other, "seed": "1"}]):
        phase = Phase("1", {"command": "t.py --out {cell}", "cwd": "/p"}, cells=entries)
        with pytest.raises(BadArgument, match=r"would run the same command \(v is"):
            check_distinct(expand([phase], "s-abcd"))
    seeds = [{"v": one, "seed": 1}, {"v": other, "seed": 2}]
    check_distinct(expand([Phase("1", {"command": "t.py"}, cells=seeds)], "s-abcd"))


def test_names_of_cells_make_no_two_trainings_of_one() -> None:
    entries = [{"q": 1, "launch": {"name": name}} for name in ("a", "b")]
    with pytest.raises(BadArgument, match="cells a and b would run the same command"):
        check_distinct(expand([Phase("1", {"command": "python train.py --out /o/{cell}"}, cells=entries)], "s-abcd"))


def test_several_values_in_common_are_refused_where_its_program_takes_settings() -> None:
    command = "python train.py"
    with pytest.raises(BadArgument, match=r'List them: {"lr": \[1, 2\]}'):
        check_multirun(command, {"lr": "1,2"}, is_settings=True)
    check_multirun(command, {"lr": "1,2"})
    with pytest.raises(BadArgument, match="several trainings in one cell"):
        check_multirun(command, {"hydra.mode": "MULTIRUN"})
