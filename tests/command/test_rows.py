"""Blocks of `programs.rows`, `options.rows` and `words.rows`, each on its own `seen` line."""

import re
from collections.abc import Callable, Sequence

import pytest

from mcp_server.command.habits import classify_launch, find_habit
from mcp_server.command.inputs import PlacedProgram, find_named_files
from mcp_server.command.killers import find_killers
from mcp_server.command.outputs import is_output_place, may_name_an_output, names_an_output
from mcp_server.command.programs import find_entry, find_main, keeps_path, list_assignments, unwrap
from mcp_server.command.python import find_programs_of_python
from mcp_server.command.shell import leave_out_helpers, parse
from mcp_server.command.started import find_programs
from mcp_server.text.rows import read_blocks

PROGRAMS = [dict(block) for block in read_blocks("command/programs")]
OPTIONS = [dict(block) for block in read_blocks("command/options")]
WORDS = [dict(block) for block in read_blocks("command/words")]


def starts_python(words: Sequence[str]) -> bool:
    return unwrap(words)[0] == ("python", "train.py")


def is_no_work(words: Sequence[str]) -> bool:
    command = " ".join(words)
    return leave_out_helpers(f"python train.py & {command}") == f"python train.py & {command}"


SORTS: dict[str, Callable[[Sequence[str]], bool]] = {
    "shell": lambda words: bool((entry := find_entry(words)) and entry.is_shell),
    "launcher": lambda words: bool((entry := find_entry(words)) and entry.value == "train.py"),
    "container": lambda words: not find_killers(words) and bool(find_killers(words[-2:])),
    "remote": lambda words: find_main(words) is None,
    "text": lambda words: not find_killers(words) and bool(find_killers(words[-2:])),
    "builtin": lambda words: not parse(" ".join(words)).is_one_program,
    "report": is_no_work,
    "setting": is_no_work,
    "pause": is_no_work,
    "viewer": is_no_work,
    "variable": lambda words: list_assignments(words) == ("SEED=1",),
    "prepare": lambda words: keeps_path(words[0], words),
    "path": lambda words: not keeps_path(words[0], words),
    "cluster": starts_python,
    "runner": starts_python,
    "task": lambda words: classify_launch(find_programs(words)[0]) == "training",
    "elsewhere": lambda words: starts_python(words) and find_main(words) == 0,
}
TRAINING = PlacedProgram(("python", "train.py"))
OPTION_SORTS: dict[str, Callable[[str], bool]] = {
    "config": lambda seen: [file.kind for file in find_named_files(seen.split(), TRAINING)] == ["config"],
    "checkpoint": lambda seen: [f.kind for f in find_named_files(seen.split(), TRAINING)] == ["checkpoint"],
    "data": lambda seen: [file.kind for file in find_named_files(seen.split(), TRAINING)] == ["data file"],
    "input": lambda seen: not names_an_output(seen) and names_an_output(seen.replace("data.", "")),
    "output": names_an_output,
    "place": names_an_output,
    "alone": names_an_output,
    "write": may_name_an_output,
    "written": is_output_place,
}
HABITS = {
    **dict.fromkeys(("progress", "look", "loop"), "wait"),
    **dict.fromkeys(("detaches", "types", "opens"), "launch"),
    **dict.fromkeys(("asks", "rehearses"), None),
    "stop key": "stop",
}


@pytest.mark.parametrize("block", PROGRAMS)
def test_a_block_of_programs_is_true_of_its_own_line(block: dict[str, str]) -> None:
    words = parse(block["seen"]).words
    sort, names = next(iter(block.items()))
    assert words[0] in block.get("names", names).split()
    if sort == "wraps":
        assert starts_python(words)
    elif sort == "ends":
        assert [killer.program.name for killer in find_killers(block["seen"])] == [words[0]]
    else:
        assert SORTS[names](words)


@pytest.mark.parametrize("block", OPTIONS)
def test_a_block_of_options_is_true_of_its_own_line(block: dict[str, str]) -> None:
    assert OPTION_SORTS[block["sort"]](block["seen"])


@pytest.mark.parametrize("block", WORDS)
def test_a_block_of_words_is_true_of_its_own_line(block: dict[str, str]) -> None:
    sort, seen, names = block["sort"], block["seen"], block["words"].split()
    without = re.sub(
        r"[^\s;.()]+", lambda word: "another" * (sort not in HABITS) if word[0] in names else word[0], seen
    )
    assert without != seen
    if sort in HABITS:
        habit, other = find_habit(seen), find_habit(without)
        assert (habit.kind if habit else None) == HABITS[sort]
        assert (other.kind if other else None) != HABITS[sort]
    else:
        read = find_programs if sort == "window" else find_programs_of_python
        assert {program.name for program in read(seen)} & {"pkill", "process_iter"}
        assert not {program.name for program in read(without)} & {"pkill", "process_iter"}


def test_a_program_has_one_block_of_a_sort() -> None:
    for sort in ("wraps", "ends"):
        names = [name for block in PROGRAMS for name in block.get(sort, "").split()]
        assert len(names) == len(set(names))
    assert len({block["sort"] for block in PROGRAMS if "sort" in block}) == len(SORTS)
