"""The recipes of Makefiles: which are made, and how they reach the warnings of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.command.killers import find_warnings
from mcp_server.command.texts import find_makefile, select_recipes
from mcp_server.runs.warnings.warning_inputs import read_scripts

MAKEFILE = """PYTHON := python
# pkill in a comment
.PHONY: train clean all
all: train
train: data | out
\t@$(PYTHON) train.py --seed $$SEED
data:
\t-ray stop
clean: ; pkill -f train
unused::
\tkillall python
"""


@pytest.mark.parametrize(
    ("words", "directory", "names", "targets"),
    [
        (["make"], "", 3, ()),
        (["make", "-j", "4", "train", "CONFIG=a.yaml"], "", 3, ("train",)),
        (["make", "-j", "train"], "", 3, ("train",)),
        (["make", "-C", "sub", "-f", "build.mk", "a", "b"], "sub/", 1, ("a", "b")),
        (["make", "--directory=sub/", "--file=x"], "sub/", 1, ()),
    ],
)
def test_the_makefile_of_a_command_is_found(
    words: list[str], directory: str, names: int, targets: tuple[str, ...]
) -> None:
    found = find_makefile(words)
    assert (found.directory, len(found.names), found.targets) == (directory, names, targets)


def test_the_recipes_of_a_target_and_of_what_it_needs_keep_their_lines() -> None:
    assert {n: line for n, line in enumerate(select_recipes(MAKEFILE, ()).split("\n"), 1) if line} == {
        6: "${PYTHON} train.py --seed $SEED",
        8: "ray stop",
    }
    assert select_recipes(MAKEFILE, ["clean"]).strip() == "pkill -f train"
    assert select_recipes(MAKEFILE, ["none"]).strip() == select_recipes("", ()) == ""


@pytest.mark.parametrize(
    ("command", "places"),
    [
        ("make", ["Makefile line 8"]),
        ("make clean", ["Makefile line 9"]),
        ("make -C . unused", ["./Makefile line 11"]),
        ("make unused clean && python train.py", ["Makefile line 11", "Makefile line 9"]),
        ("make none", []),
    ],
)
def test_a_killer_in_a_recipe_is_warned_of_where_it_is_made(tmp_path: Path, command: str, places: list[str]) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    warnings = find_warnings(command, read_scripts(command, tmp_path))
    assert sorted(warning.partition("(")[2].partition(")")[0] for warning in warnings) == sorted(places)


@pytest.mark.parametrize(
    "command", ["source ./setup && python train.py", ". setup; python train.py", "bash setup", "sbatch --wait setup"]
)
def test_a_killer_two_files_deep_is_found_whatever_their_names(tmp_path: Path, command: str) -> None:
    (tmp_path / "setup").write_text("export A=1\nsource ./common/env\n")
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "env").write_text(". ./last\n")
    (tmp_path / "last").write_text("\nray stop --force\n")
    (warning,) = find_warnings(command, read_scripts(command, tmp_path))
    assert "`ray stop --force` (./last line 2)" in warning
