"""What each reader of a command says of one: the columns of the snapshot in tests/data/commands."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mcp_server.blueprints import command as blueprint
from mcp_server.command import configs, python
from mcp_server.command.configs import read_hydra_options
from mcp_server.command.inputs import (
    PlacedProgram,
    find_arguments,
    find_inputs,
    find_placed_programs,
    find_program_names,
    find_shell_text,
)
from mcp_server.command.killers import find_killers, find_warnings
from mcp_server.command.outputs import configuration_words, find_in_command, find_mentioned, list_redirected
from mcp_server.command.shell import find_directory, leave_out_helpers, name_helpers, parse
from mcp_server.command.ssh_command import parse_ssh
from mcp_server.command.started import Program, find_programs
from mcp_server.command.trainings import classify, name_program
from mcp_server.record.script import name_of, takes_arguments
from mcp_server.record.spec import RunSpec
from mcp_server.runs.warnings.warning_inputs import _list_names, _list_scripts, computes, find_pins
from mcp_server.supervisor.outputs.outsiders import _may_train
from mcp_server.sweeps.sources.source import propose_run_name

Command = str | list[str]


def _facts(value: Any) -> Any:
    """A value as JSON without its defaults."""
    if dataclasses.is_dataclass(value):
        named = ((field.name, field.default, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _facts(own) for name, default, own in named if own != default}
    if isinstance(value, (list, tuple)):
        return [_facts(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _write_program(program: Program) -> str:
    """A program in one line: what it says beside its words follows them."""
    facts = _facts(program)
    words = facts.pop("words", [])
    return " ".join([*words, *(f"⟨{name} {value}⟩" for name, value in facts.items() if name != "name")])


def _write_python_program(program: PlacedProgram) -> list[str]:
    return [program.script, program.module, *program.base, *program.configs, "evaluates" * program.evaluates]


def _spec(command: Command) -> RunSpec:
    return RunSpec.from_facts({"run_id": "a-run", "command": command, "cwd": "/w"})


def _find_python(command: Command) -> str:
    with patch.object(python, "resolve_python", lambda word, program, cwd, search: f"{word} {program} {search}"):
        return python.find_python(command, "/w", {"PATH": "/p"})


def _find_configs(command: Command) -> list[str]:
    with ExitStack() as patches:
        for module in (configs, configs):
            patches.enter_context(patch.object(module, "is_file", lambda path: path.suffix != ""))
            patches.enter_context(patch.object(module, "read_text", lambda path: ""))
        return [str(path) for path in configs.find_config_files(command, "/w", {"HOME": "/h", "N": "7"}, ["lr=1"])]


def _in_foreground(command: str) -> list[Any]:
    faults: list[str] = []

    def say(_line: int, cause: str) -> None:
        faults.append(cause)

    text = blueprint._keep_in_foreground(1, command, say, say)
    return [text if text != command else "", *faults]


def _simple(reader: Callable[[Sequence[str]], Any]) -> Callable[[Command], Any]:
    return lambda command: [reader(each.program_words) for each in parse(command).commands]


_OF_ANY: dict[str, Callable[[Command], Any]] = {
    "shell": lambda c: [
        " ".join([*(f"{r.operator}{r.target}" for r in each.redirections), each.separator, "?" * (not each.is_certain)])
        for each in parse(c).commands
    ],
    "open_quote": lambda c: parse(c).open_quote,
    "comments": lambda c: parse(c).comments,
    "one_program": lambda c: parse(c).is_one_program,
    "background": lambda c: parse(c).ends_in_background,
    "options": lambda c: parse(c).split_options()[0],
    "without_helpers": lambda c: "" if leave_out_helpers(c) == c else leave_out_helpers(c),
    "helpers": name_helpers,
    "directory": lambda c: find_directory(c, "").strip("."),
    "programs": lambda c: [_write_program(dataclasses.replace(each, wrappers=())) for each in find_programs(c)],
    "warnings": find_warnings,
    "killers": lambda c: len(find_killers(c, closes_sessions=True)),
    "pins": lambda c: [[pin.text, pin.is_absolute] for pin in find_pins(c)],
    "computes": computes,
    "scripts": lambda c: [[each.word, each.base] for each in _list_scripts(find_programs(c), Path("/w"))],
    "inputs": lambda c: [
        [each.kind, each.path, *each.base, "certain" * each.is_certain, "output" * each.may_be_output, each.home]
        for each in find_inputs(parse(c))
    ],
    "names": lambda c: find_program_names(parse(c)),
    "python_programs": lambda c: [_write_python_program(each) for each in find_placed_programs(parse(c))],
    "arguments": _simple(lambda words: len(find_arguments(words))),
    "shell_text": _simple(lambda words: find_shell_text(PlacedProgram(tuple(words)))),
    "outputs": lambda c: find_in_command(c, "/w"),
    "mentioned": lambda c: find_mentioned(c, "/w"),
    "config_words": configuration_words,
    "configs": _find_configs,
    "written": lambda c: list(list_redirected(c, "/w")),
    "run_names": lambda c: _list_names(_spec(c)),
    "hydra": lambda c: read_hydra_options(parse(c).words),
    "python": _find_python,
    "ssh": _simple(parse_ssh),
    "name": lambda c: name_of(parse(c)),
    "takes_arguments": lambda c: takes_arguments(parse(c)),
    "proposed": lambda c: propose_run_name(c, {}),
    "class": _simple(classify),
    "class_name": _simple(lambda words: name_program(words) if classify(words) else ""),
    "may_train": _simple(lambda words: _may_train(list(words))),
}
_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "prepares": blueprint._only_prepares,
    "command": blueprint.looks_like_command,
    "foreground": _in_foreground,
}


def answer(command: Command) -> dict[str, Any]:
    """Return what all readers say of a command, as far as they say anything, as JSON."""
    readers: dict[str, Callable[[Any], Any]] = {**_OF_ANY, **(_OF_TEXT if isinstance(command, str) else {})}
    answers = {name: json.loads(json.dumps(_facts(reader(command)))) for name, reader in readers.items()}
    return {name: value for name, value in answers.items() if not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return not value or (isinstance(value, list) and all(map(_is_empty, value)))
