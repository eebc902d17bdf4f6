"""The files that a command reads when it starts: programs, scripts, configs, checkpoints, data and models. Pure.

Only certain files are named. Patterns of the shell, and files that earlier commands may make, are left out. A
name such as ``org/model`` can be one of a hub, and a program may make its directory of data: neither counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Any, Literal

from mcp_server.command.outputs import OPTION_WORDS, is_output_place, may_name_an_output
from mcp_server.command.programs import (
    MAKES_NO_FILES,
    PAUSES,
    REPORTS,
    SETTINGS,
    SHELL_BUILTINS,
    WRAPPERS,
    Entry,
    find_entry,
    find_main,
    is_interpreter,
    is_wrapper,
    keeps_path,
)
from mcp_server.command.shell import ReadCommand, SimpleCommand, is_literal, parse
from mcp_server.command.trainings import classify
from mcp_server.text.rows import read_patterns

_RX = read_patterns("command/patterns", "inputs")


Kind = Literal["program", "script", "config", "checkpoint", "data file", "data directory", "model"]

# Sourced files of these names set variables and do nothing else.
_ACTIVATES = ("activate", "conda.sh", "setup.bash")
_SHELL_TEXT = re.compile(r"-[eux]*c")  # a login shell, -lc, may have another PATH
_NAME = re.compile(r"[A-Za-z][\w.+-]*")

_CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".py")
_DOCUMENT_SUFFIXES = (".yaml", ".yml", ".toml")
_CHECKPOINT_SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".zip", ".onnx", ".msgpack", ".th", ".npz", ".tar"),
)
_EVALUATE = frozenset({"--eval", "--test"})

_LIST = re.compile(r"\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """A file that a command reads. ``path`` as written. ``base``: what it is relative to, by ``cd`` words from cwd.

    ``is_certain``: the program fails where it is missing; else it may look for it elsewhere. ``may_be_output``: the
    program may as well write it. ``home``: where the script is that reads it; None where another program does.
    """

    kind: Kind
    path: str
    base: tuple[str, ...] = ()
    is_certain: bool = False
    may_be_output: bool = False
    home: str | None = None


@dataclass(frozen=True)
class PlacedProgram:
    """A program of a line, and the directory it runs in: ``base``, by ``cd`` words from cwd.

    ``is_certain``: no earlier program can change what its words mean.
    """

    words: tuple[str, ...]
    is_certain: bool = True
    base: tuple[str, ...] = ()

    @functools.cached_property
    def main(self) -> int | None:
        """The index of the program that does the work."""
        return find_main(self.words)

    @functools.cached_property
    def entry(self) -> Entry | None:
        """Its interpreter's code."""
        entry = None if self.main is None else find_entry(self.words, self.main)
        is_word = entry is None or entry.kind != "script" or "/" in entry.value
        return entry if is_word or self.words[self.main or 0] not in ("source", ".") else None

    @property
    def script(self) -> str:
        """The script that it runs, as far as the word means itself."""
        return self.entry.value if self.entry and self.entry.kind == "script" and is_literal(self.entry.value) else ""

    @property
    def module(self) -> str:
        """The module that it runs."""
        return self.entry.value if self.entry and self.entry.kind == "module" and is_literal(self.entry.value) else ""

    @property
    def last(self) -> int:
        """The index of the word that names it best: the script, else the program."""
        return self.entry.at if self.entry and self.entry.kind == "script" else self.main or 0

    @property
    def evaluates(self) -> bool:
        """Whether it reads a model rather than writes one."""
        last = self.entry.at if self.module and self.entry else self.last
        return bool(_RX.evaluates.search(" ".join(self.words[: last + 2]))) or not _EVALUATE.isdisjoint(self.words)

    @property
    def writes_checkpoints(self) -> bool:
        """Whether it may write what it names as a checkpoint: no evaluation, or a training that evaluates as well."""
        return not self.evaluates or classify(self.words[self.main or 0 :]) == "training"

    @property
    def configs(self) -> list[str]:
        """The configs that it names."""
        return [file.path for file in _find_program_inputs(self) if file.kind == "config"]

    def find_directory(self, cwd: Path) -> Path:
        """Return the directory it runs in, where the command begins in ``cwd``."""
        return functools.reduce(lambda base, step: base / Path(step).expanduser(), self.base, cwd)

    def find_file(self, cwd: Path) -> Path | None:
        """Return the file of its script or module; None where it is elsewhere. Looks at the disk."""
        place, base = self.module.replace(".", "/"), self.find_directory(cwd)
        names = [self.script] if self.script else []
        names += [f"{place}.py", f"{place}/__main__.py", f"src/{place}.py"] if place else []
        return next((path for name in names if (path := base / Path(name).expanduser()).is_file()), None)


def find_inputs(command: ReadCommand) -> list[Input]:
    """Return the files that must exist before ``command`` starts, as far as that is certain."""
    return [file for program in _place_programs(command) if program.is_certain for file in _find_all_inputs(program)]


def find_program_names(command: ReadCommand) -> list[str]:
    """Return the programs that are looked for in the run's PATH, as far as it is certain that PATH is what it was."""
    names: list[str] = []
    if isinstance(command.source, str) and _RX.defines.search(command.source):
        return names
    for index, (simple, program) in enumerate(zip(command.commands, _place_programs(command))):
        if not program.is_certain:
            break
        is_wrapped = program.main is not None or simple.program in WRAPPERS
        words = dict.fromkeys((program.words[0], program.words[program.main or 0])) if is_wrapped else ()
        is_plain = simple.words[: len(simple.words) - len(simple.program_words)] in ((), ("exec",), ("nohup",))
        if is_plain and _is_last_work(command.commands[index:]):
            names += [word for word in words if _NAME.fullmatch(word) and word not in SHELL_BUILTINS | SETTINGS]
        if not keeps_path(simple.program, simple.words):
            break
    return names


def _is_last_work(commands: Sequence[SimpleCommand]) -> bool:
    """Return whether no other work of the line goes on where the first of ``commands`` fails."""
    rest = list(commands)
    while rest and rest[0].separator in ("&&", "|", "|&"):
        rest.pop(0)
    if not rest or rest[0].separator in ("||", "&"):
        return False
    return all(not each.program_words or each.program in REPORTS | PAUSES | {"exit"} for each in rest[1:])


def find_param_inputs(params: Mapping[str, Any], command: ReadCommand) -> list[Input]:
    """Return the files that the parameters of ``command`` name, as far as that is certain."""
    words = [f"{name}={value}" for name, value in params.items() if isinstance(value, str)]
    return [
        replace(file, base=last.base)
        for last in _place_programs(command)[-1:]
        if last.is_certain
        for file in find_named_files(words, last)
    ]


def find_placed_programs(command: ReadCommand) -> list[PlacedProgram]:
    """Return the programs of ``command`` whose words mean what they say, in order."""
    return [each for each in _place_programs(command) if each.is_certain and each.main is not None]


def _place_programs(command: ReadCommand) -> list[PlacedProgram]:
    if not isinstance(command.source, str):
        return [PlacedProgram(simple.program_words) for simple in command.commands]
    placed: list[PlacedProgram] = []
    is_certain = True
    for simple in command.commands:
        # A program before || can fail by intention.
        is_certain = is_certain and simple.is_certain and simple.separator != "||" and simple.base is not None
        placed.append(PlacedProgram(simple.program_words, is_certain, simple.base or ()))
        # A file that `echo … > FILE` makes is there for what follows.
        is_certain = is_certain and _makes_nothing(simple) and not simple.written_files
    return placed


def _makes_nothing(simple: SimpleCommand) -> bool:
    """Return whether the words of the next program still mean what they say."""
    program, first, *_ = (*simple.program_words, "", "")
    if program in ("source", ".") and first:
        return PurePath(first).name in _ACTIVATES
    changes_path = program in ("conda", "mamba", "micromamba") and first in ("activate", "deactivate")
    is_known = changes_path or (program == "ray" and first in ("start", "stop"))
    return not program or is_known or program == "cd" or program in MAKES_NO_FILES


def _find_all_inputs(program: PlacedProgram) -> Iterator[Input]:
    """Yield the inputs of a program; of a shell with ``-c`` those of the command in its text."""
    yield from _find_program_inputs(program)
    if (text := find_shell_text(program)) is not None:
        yield from (replace(file, base=(*program.base, *file.base)) for file in find_inputs(parse(text)))


def find_shell_text(program: PlacedProgram) -> str | None:
    """Return the command in ``bash -c TEXT``, where it means what it says; else None."""
    entry = program.entry
    is_text = entry is not None and entry.is_shell and entry.kind == "code"
    return entry.value if entry and is_text and _SHELL_TEXT.fullmatch(program.words[entry.at - 1]) else None


def _find_program_inputs(program: PlacedProgram) -> Iterator[Input]:
    words, base, main, script = program.words, program.base, program.main, program.script
    if main is None:
        return
    for word in {words[0]: None, words[main]: None}:
        if "/" in word and is_literal(word):
            yield Input("program", word, base)
    home = None
    if script:
        yield Input("script", script, base)
        home = str(PurePath(script).parent)
    stem = PurePath(words[program.last]).stem
    if words[main] in MAKES_NO_FILES or _RX.makes.match(stem):
        return
    rest = words[program.last + 1 :]
    if program.last > main and _RX.trains.search(stem) and rest and _is_document(rest[0]):
        yield Input("config", rest[0], base, home=home)
    for file in find_named_files(words[main + 1 :], program):
        yield replace(file, base=base, home=home)


def _is_document(word: str) -> bool:
    is_option = word.startswith("-") or "=" in word
    return word.endswith(_DOCUMENT_SUFFIXES) and is_literal(word) and not is_option


def find_arguments(words: Sequence[str]) -> Sequence[str]:
    """Return what the program gets that ``words`` start: behind its script or module, where an interpreter runs one."""
    is_wrapped = bool(words) and is_wrapper(words[0])
    main = next((at for at, word in enumerate(words) if is_wrapped and is_interpreter(word)), 0)
    entry = find_entry(words, main)
    return words[(main if entry is None else entry.at) + 1 :]


# --- options that name files


def find_named_files(words: Sequence[str], program: PlacedProgram) -> Iterator[Input]:
    """Yield what the options of ``program`` among ``words`` name."""
    evaluates, writes = program.evaluates, program.writes_checkpoints
    for option, value in (*_split_options(words), *_split_short_config(words)):
        name = option.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        is_output = may_name_an_output(option, writes_checkpoints=writes)
        if is_output or not value or value.startswith("-") or not is_literal(value):
            continue
        path = PurePath(value)
        if name in OPTION_WORDS["config"] and path.suffix.lower() in _CONFIG_SUFFIXES:
            yield Input("config", value)
        elif name in OPTION_WORDS["checkpoint"] and _is_checkpoint(name, path, evaluates=evaluates, writes=writes):
            yield Input("checkpoint", value, may_be_output=not (evaluates or _RX.reads.search(name)))
    yield from find_named_data(words, evaluates=evaluates)


def _split_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options among ``words`` with their values: ``--config x``, ``--config=x``, ``a.config=x``."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if equals or option.startswith("--"):
            yield option, value if equals else following


def _split_short_config(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ``-c FILE.yaml``, the usual short form, as an option of a config."""
    for option, value in zip(words, words[1:]):
        if option == "-c" and PurePath(value).suffix.lower() in _CONFIG_SUFFIXES:
            yield "--config", value


def _is_checkpoint(name: str, path: PurePath, *, evaluates: bool, writes: bool) -> bool:
    # A run may find its own newest one there, or begin without it; but not below a directory that is nobody's output.
    is_own = _RX.newest.fullmatch(path.stem) and not (path.is_absolute() and _RX.loads.search(name))
    if not evaluates and (is_own or (is_output_place(str(path.parent)) and _RX.newest.fullmatch(path.stem))):
        return False
    if not evaluates and _is_written(name, path):
        return False
    is_read = bool(_RX.loads.search(name)) or (evaluates and not (writes and is_output_place(str(path))))
    is_named = path.suffix.lower() in _CHECKPOINT_SUFFIXES or (bool(path.suffix) and _RX.of_step.match(path.stem))
    return bool(is_named) or (path.is_absolute() and is_read)


def _is_written(name: str, path: PurePath) -> bool:
    """Return whether a training writes this checkpoint: ``checkpoint_path=out/best.pt``, but not a step's file."""
    return not _RX.reads.search(name) and is_output_place(str(path)) and not any(map(str.isdigit, path.stem))


def find_named_data(words: Sequence[str], *, evaluates: bool) -> Iterator[Input]:
    """Yield the data files and models that options name: ``data.val_files=./val.json``, ``--model_path /models/7b``."""
    for option, value in _split_options(words):
        key = option.lstrip("-+").replace("-", "_").lower()
        for each in _split_list(value):
            if not may_name_an_output(key) and (named := _classify(key, each, evaluates=evaluates)) is not None:
                yield named


def _split_list(value: str) -> list[str]:
    match = _LIST.fullmatch(value)
    parts = match[1].split(",") if match else [value]
    paths = [part.strip().strip("'\"") for part in parts]
    return [path for path in paths if path and not path.startswith("-") and is_literal(path)]


def _classify(key: str, value: str, *, evaluates: bool) -> Input | None:
    group, _, name = key.rpartition(".")
    is_explicit = value.startswith(("/", "./", "../", "~/"))
    suffix = PurePath(value).suffix.lower()
    if suffix in OPTION_WORDS["data"]:
        if _RX.data_files.fullmatch(name) or (group and _RX.group_files.fullmatch(name)):
            return Input("data file", value, is_certain=True)
        if _RX.data_paths.fullmatch(name):
            return Input("data file", value, is_certain=value.startswith(("/", "~/")))
        return None
    if not is_explicit:
        return None
    if _RX.data_directories.fullmatch(name) and value.startswith("/"):
        return Input("data directory", value, is_certain=False)
    if _RX.model_sources.fullmatch(name) or (name == "path" and group.rpartition(".")[2] == "model"):
        return Input("model", value, is_certain=True)
    if not _RX.model_paths.fullmatch(name):
        return None
    if group or evaluates:
        return Input("model", value, is_certain=True)
    is_read = value.startswith(("/", "~/")) and not _RX.checkpoint_file.fullmatch(suffix) and not is_output_place(value)
    return Input("model", value, is_certain=True, may_be_output=True) if is_read else None
