"""The options of a script are read from its text; where there may be others, none is called unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.command.script_options import find_unknown_options, read_options
from mcp_server.command.shell import parse

PARSER = """import argparse
{first}
def main(argv=None):
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("training")
    group.add_argument("--heat", type=float)
    parser.add_argument("-b", "--batch-size", type=int)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
    {more}
    args = parser.parse_args(argv)
"""
CLICK = """import click
@click.command()
@click.option("--heat", "heat", type=float)
@click.option("--amp/--no-amp")
{more}
def main(heat, amp): ...
"""
FIELDS = """from dataclasses import dataclass, field
from torch.optim import OptimConfig
@dataclass
class Base:
    heat: float = 1.0
@dataclass
class Config(Base):
    batch_size: int = 4
    optim: OptimConfig = field(default_factory=OptimConfig)
"""


@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        (PARSER, "--heatt 1 -b 2", ["--heatt: near is --heat"]),
        (PARSER, "--batch_size 4", ["--batch_size: near is --batch-size"]),
        (PARSER, "--batch 4 --no-amp --heat=2 --help -- --zzz", []),  # a beginning; what follows -- is no option
        (PARSER, "--zzz=1 --zzz 2", ["--zzz"]),
        (PARSER.replace("Parser()", "Parser(allow_abbrev=False)"), "--batch 4", ["--batch: near is --batch-size"]),
        (PARSER.format(more="rest = parser.parse_known_args()", first=""), "--zzz 1", []),
        (PARSER.format(more="Trainer.add_arguments(parser)", first=""), "--zzz 1", []),
        (PARSER.format(more="add(parser)", first='def add(p):\n    p.add_argument("--wide")'), "--wid 1", []),
        (
            PARSER.format(more="add(parser)", first='def add(p):\n    p.add_argument("--wide")'),
            "--widt 1",
            ["--widt: near is --wide"],
        ),
        (PARSER.format(more="for each in NAMES: parser.add_argument(each)", first=""), "--zzz 1", []),
        (PARSER.format(more="a = parser.add_argument; a('--zzz')", first=""), "--zzz 1", []),
        ("import argparse, pkg\nargs = pkg.build().parse_args()", "--zzz 1", []),
        ("import sys\nprint(sys.argv)", "--zzz 1", []),
        ("def (", "--zzz 1", []),
        (CLICK, "--heatt 1 --no-amp", ["--heatt: near is --heat"]),
        (CLICK.format(more="@shared_options('x')"), "--zzz 1", []),
        (FIELDS + "import tyro\ntyro.cli(Config)", "--batch-size 1 --batch_size 2 --optim.lr 1", []),
        (FIELDS + "import tyro\ntyro.cli(Config)", "--heatt 1 --zzz 3", ["--heatt: near is --heat", "--zzz"]),
        (FIELDS + "HfArgumentParser((Config, TrainingArguments)).parse_args_into_dataclasses()", "--zzz 1", []),
        (FIELDS + "HfArgumentParser(Config).parse_args_into_dataclasses()", "--zzz 1", ["--zzz"]),
        ("import tyro\ndef main(heat: float = 1): ...\ntyro.cli(main)", "--heatt 1", ["--heatt: near is --heat"]),
    ],
)
def test_an_option_that_a_script_certainly_lacks_is_named(
    tmp_path: Path, script: str, options: str, told: list[str]
) -> None:
    text = script.format(more="", first="") if "{more}" in script else script
    (tmp_path / "train.py").write_text(text)
    found = list(find_unknown_options(parse(f"torchrun --nproc-per-node=2 train.py {options} | tee log"), tmp_path))
    assert [
        one.removeprefix("train.py has no option ").removesuffix(". It would refuse to start.") for one in found
    ] == told


def test_options_of_a_module_beside_a_script_count(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(PARSER.format(more="return parser", first=""))
    (tmp_path / "train.py").write_text("from options import main\nargs = main()\n")
    assert not list(find_unknown_options(parse("python train.py --heat 1"), tmp_path))
    assert len(list(find_unknown_options(parse("cd . && python train.py --heatt 1"), tmp_path))) == 1


def test_how_an_option_is_defined_is_read_whatever_else_is_taken() -> None:
    options = read_options(CLICK.format(more=""), "sys.argv")
    assert not options.is_whole
    assert "type=float" in options.defined["heat"]
    assert {"amp", "no-amp"} <= options.defined.keys()
