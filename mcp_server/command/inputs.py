"""The files that a command reads when it starts: programs, scripts, configs, checkpoints, data and models. Pure.

Only certain files are named. What a shell would expand, and what earlier commands of the line can make, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, Literal

from mcp_server.command.named_data import find_named_data, is_output_place, names_an_output, split_options
from mcp_server.command.shell import (
    PYTHON_LAUNCHERS,
    REDIRECTS,
    SHELL_BUILTINS,
    ShellCommand,
    SimpleCommand,
    is_literal,
    parse,
)

Kind = Literal["program", "script", "config", "checkpoint", "data file", "data directory", "model"]

# These make no files that a later command could read; directories do not count.
_MAKES_NO_FILES = frozenset(
    """export set unset ulimit umask echo printf true : date hostname pwd ls mkdir rm chmod which type nvidia-smi
    module ml hash free df uptime whoami id declare""".split()  # noqa: SIM905 - a list of words
)
# What may still run behind a program that failed, without being the work itself.
_REPORTS = frozenset("echo printf date exit true : wait hostname uptime".split())  # noqa: SIM905 - a list of words
# These start another program of the same line.
_WRAPPERS = frozenset(
    """timeout nice ionice stdbuf numactl taskset unbuffer xvfb-run chrt catchsegv conda mamba micromamba uv
    poetry""".split()  # noqa: SIM905 - as above
)
# The arguments of these are text, or paths on another machine or in a container.
REMOTE_PROGRAMS = frozenset(
    """ssh scp rsync sftp mosh docker podman singularity apptainer enroot kubectl sed perl awk grep ln srun sbatch
    mpirun ray git""".split()  # noqa: SIM905 - as above
)
# Sourced files of these names set variables and do nothing else.
_ACTIVATES = ("activate", "conda.sh", "setup.bash")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
# After these the PATH is what it was.
_LEAVES_PATH = frozenset("cd echo printf true : sleep date pwd ls mkdir nvidia-smi ulimit umask".split())  # noqa: SIM905
_SHELL_TEXT = re.compile(r"-[eux]*c")  # a login shell, -lc, may have another PATH
_DEFINES = re.compile(r"\(\s*\)|\b(?:function|alias)\b")  # a name that is no program
_NAME = re.compile(r"[A-Za-z][\w.+-]*")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_DIRECTORY_OPTIONS = ("--directory", "--cwd", "--chdir", "--wdir", "--project", "-C")

_CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".py")
_DOCUMENT_SUFFIXES = (".yaml", ".yml", ".toml")
_CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".zip", ".onnx", ".msgpack", ".th")
_CONFIG_FLAGS = frozenset(
    """config configs cfg conf config_file cfg_file config_yaml config_path cfg_path config_json yaml yaml_path
    yaml_file deepspeed deepspeed_config ds_config""".split()  # noqa: SIM905 - as above
)
_CHECKPOINT_FLAGS = frozenset(
    """checkpoint ckpt checkpoint_path ckpt_path checkpoint_file ckpt_file load load_path load_checkpoint load_ckpt
    load_from load_weights load_model resume resume_from resume_path resume_ckpt resume_checkpoint
    resume_from_checkpoint resume_from_path init_from init_checkpoint init_ckpt init_weights initial_checkpoint
    restore restore_from warm_start finetune_from weights weights_path pretrained pretrained_checkpoint
    pretrained_ckpt pretrained_weights model_checkpoint""".split()  # noqa: SIM905 - as above
)
# These can name a directory as well.
_LOADS = re.compile(r"load|resume_from|restore_from|init_from")
_READS = re.compile(r"load|resume|pretrained|init|restore|warm_start|finetune|weights")
# A checkpoint that the run itself writes: it does not exist before the first start of a series, and the program copes.
_NEWEST = re.compile(r"last|latest|current|newest|resume|checkpoint|ckpt|model")
_EVALUATES = re.compile(
    r"(?:^|[_\W])(?:eval\w*|tests?|play|infer\w*|generate|rollouts?|serve|demo|predict|validate)(?:[_\W]|$)"
)
_MAKES = re.compile(
    r"(?:gen|generate|make|create|write|dump|export|convert|init|new|build|prepare|preprocess"
    r"|download|record|collect|annotate|teleop\w*|save|merge|split|process|tokenize)(?:_|$)"
)
_TRAINS = re.compile(r"train|finetune|fine_tune|tune|eval|main|run|play|launch|sft|ppo|grpo|dpo|test")


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
class Program:
    """A program of a line that certainly runs with these ``words``: its ``script`` or ``module``, and its configs."""

    words: tuple[str, ...]
    base: tuple[str, ...]
    script: str = ""
    module: str = ""
    configs: tuple[str, ...] = ()
    evaluates: bool = False


def find_inputs(command: ShellCommand) -> list[Input]:
    """Return the files that must exist before ``command`` starts, as far as that is certain."""
    return [file for located in _locate_commands(command) if located.is_certain for file in _find_all_inputs(located)]


def find_program_names(command: ShellCommand) -> list[str]:
    """Return the programs that are looked for in the run's PATH, as far as it is certain that PATH is what it was."""
    names: list[str] = []
    if isinstance(command.source, str) and _DEFINES.search(command.source):
        return names
    for index, (simple, located) in enumerate(zip(command.commands, _locate_commands(command))):
        if not located.is_certain or simple.program in ("module", "ml"):
            break
        main = _find_main_program(located.words)
        words = () if main is None else dict.fromkeys((located.words[0], located.words[main]))
        is_plain = simple.words[: len(simple.words) - len(simple.program_words)] in ((), ("exec",), ("nohup",))
        if is_plain and _is_last_work(command.commands[index:]):
            names += [word for word in words if _NAME.fullmatch(word) and word not in SHELL_BUILTINS]
        if located.words and located.words[0] not in _LEAVES_PATH:
            break
    return names


def _is_last_work(commands: Sequence[SimpleCommand]) -> bool:
    """Return whether no other work of the line goes on where the first of ``commands`` fails."""
    rest = list(commands)
    while rest and rest[0].separator in ("&&", "|", "|&"):
        rest.pop(0)
    if not rest or rest[0].separator in ("||", "&"):
        return False
    return all(not each.program_words or each.program in _REPORTS for each in rest[1:])


def find_param_inputs(params: Mapping[str, Any], command: ShellCommand) -> list[Input]:
    """Return the files that the parameters of ``command`` name, as far as that is certain."""
    words = [f"{name}={value}" for name, value in params.items() if isinstance(value, str)]
    return [
        replace(file, base=last.base)
        for last in _locate_commands(command)[-1:]
        if last.is_certain
        for file in _find_option_values(words, evaluates=False)
    ]


def find_programs(command: ShellCommand) -> list[Program]:
    """Return the Python programs of ``command`` whose words mean what they say, in order."""
    programs = []
    for located in _locate_commands(command):
        main = _find_main_program(located.words) if located.is_certain else None
        if main is None:
            continue
        script, module = _find_script(located.words, main), _find_module(located.words, main)
        configs = [file.path for file in _find_program_inputs(located) if file.kind == "config"]
        name = located.words[script] if script is not None and is_literal(located.words[script]) else ""
        last = main if script is None else script
        evaluates = _evaluates(located.words, last)
        programs.append(Program(located.words, located.base, name, module, tuple(configs), evaluates))
    return programs


@dataclass(frozen=True)
class _LocatedCommand:
    """One program of a line. ``is_certain``: no earlier program can change what its words mean."""

    words: tuple[str, ...]
    is_certain: bool
    base: tuple[str, ...]


def _locate_commands(command: ShellCommand) -> list[_LocatedCommand]:
    """Return the programs of a command in order, each with the directory it runs in."""
    if not isinstance(command.source, str):
        return [_LocatedCommand(simple.program_words, True, ()) for simple in command.commands]
    located: list[_LocatedCommand] = []
    base: tuple[str, ...] = ()
    is_certain = True
    for simple in command.commands:
        # A program before || can fail by intention.
        certain_here = is_certain and simple.is_certain and simple.separator != "||"
        located.append(_LocatedCommand(simple.program_words, certain_here, base))
        is_certain, base = _follow(simple, base, is_certain=certain_here)
        # A file that `echo … > FILE` makes is there for what follows.
        is_certain = is_certain and not any(
            file.operator in REDIRECTS and file.target != "/dev/null" for file in simple.redirections
        )
    return located


def _follow(simple: SimpleCommand, base: tuple[str, ...], *, is_certain: bool) -> tuple[bool, tuple[str, ...]]:
    """Return whether the next program's words still mean what they say, and the directory it runs in."""
    program, first, *_ = (*simple.program_words, "", "")
    if program == "cd" and len(simple.program_words) == 2 and is_literal(first):  # noqa: PLR2004 - cd DIR
        return is_certain, (*base, first)
    if program in ("source", ".") and first:
        return is_certain and PurePath(first).name in _ACTIVATES, base
    changes_path = program in ("conda", "mamba", "micromamba") and first in ("activate", "deactivate")
    if not program or changes_path or (program == "ray" and first in ("start", "stop")):
        return is_certain, base
    return is_certain and program in _MAKES_NO_FILES, base


def _find_all_inputs(located: _LocatedCommand) -> Iterator[Input]:
    """Yield the inputs of a program; of a shell with ``-c`` those of the command in its text."""
    yield from _find_program_inputs(located)
    if (text := find_shell_text(located.words)) is not None:
        yield from (replace(file, base=(*located.base, *file.base)) for file in find_inputs(parse(text)))


def find_shell_text(words: Sequence[str]) -> str | None:
    """Return the command in ``bash -c TEXT``, where it means what it says; else None."""
    main = _find_main_program(words)
    if main is None or PurePath(words[main]).name not in _SHELLS:
        return None
    for option, text in zip(words[main + 1 :], words[main + 2 :]):
        if not option.startswith("-"):
            return None
        if _SHELL_TEXT.fullmatch(option):
            return text
    return None


def _find_program_inputs(located: _LocatedCommand) -> Iterator[Input]:
    words, base = located.words, located.base
    main = _find_main_program(words)
    if main is None:
        return
    for word in {words[0]: None, words[main]: None}:
        if "/" in word and is_literal(word):
            yield Input("program", word, base)
    script = _find_script(words, main)
    if script is not None and is_literal(words[script]):
        yield Input("script", words[script], base)
    last = main if script is None else script
    stem = PurePath(words[last]).stem
    if words[main] in _MAKES_NO_FILES or _MAKES.match(stem):
        return
    rest = words[last + 1 :]
    home = str(PurePath(words[script]).parent) if script is not None and is_literal(words[script]) else None
    if script and _TRAINS.search(stem) and rest and _is_document(rest[0]):
        yield Input("config", rest[0], base, home=home)
    for file in _find_option_values(words[main + 1 :], evaluates=_evaluates(words, last)):
        yield replace(file, base=base, home=home)


def _is_document(word: str) -> bool:
    is_option = word.startswith("-") or "=" in word
    return word.endswith(_DOCUMENT_SUFFIXES) and is_literal(word) and not is_option


def _evaluates(words: Sequence[str], last: int) -> bool:
    """Return whether a program, whose name ends at ``last``, reads a model rather than writes one."""
    return bool(_EVALUATES.search(" ".join(words[: last + 2]))) or not {"--eval", "--test"}.isdisjoint(words)


def _find_main_program(words: Sequence[str]) -> int | None:
    """Return the index of the program that does the work; None where it, or its directory, is not certain."""
    if not words or words[0].startswith("-"):
        return None
    first = PurePath(words[0]).name
    if first in REMOTE_PROGRAMS:
        return None
    if first not in _WRAPPERS:
        return 0
    index = next((i for i, word in enumerate(words) if i and (_is_interpreter(word) or _is_launcher(word))), None)
    if index is None or any(word.partition("=")[0] in _DIRECTORY_OPTIONS for word in words[:index]):
        return None
    return index


def find_arguments(words: Sequence[str]) -> Sequence[str]:
    """Return what the program gets that ``words`` start: behind its script or module, where an interpreter runs one."""
    main = 0
    if words and PurePath(words[0]).name in _WRAPPERS | REMOTE_PROGRAMS:
        main = next((i for i, word in enumerate(words) if _is_interpreter(word) or _is_launcher(word)), 0)
    if not words[main:] or not (_is_interpreter(words[main]) or _is_launcher(words[main])):
        return words[main + 1 :]
    if (script := _find_script(words, main)) is not None:
        return words[script + 1 :]
    module = _find_module(words, main)
    return words[words.index(module, main) + 1 :] if module else ()


def _is_interpreter(word: str) -> bool:
    name = PurePath(word).name
    return name in _SHELLS or bool(_PYTHON.fullmatch(name))


def _is_launcher(word: str) -> bool:
    return PurePath(word).name in PYTHON_LAUNCHERS


def _find_script(words: Sequence[str], main: int) -> int | None:
    """Return the index of the script that ``words[main]`` runs; None where it runs a module, a text or itself."""
    name = PurePath(words[main]).name
    if name in ("source", "."):
        return main + 1 if any("/" in word for word in words[main + 1 : main + 2]) else None
    if name in PYTHON_LAUNCHERS:
        script = next((i for i in range(main + 1, len(words)) if words[i].endswith(".py")), None)
        own = words[main:script]  # behind it they are the script's
        return None if not {"-m", "--module", "--no_python", "--no-python"}.isdisjoint(own) else script
    if not _is_interpreter(words[main]):
        return None
    return _find_first_argument(words, main, is_python=name not in _SHELLS)


def _find_module(words: Sequence[str], main: int) -> str:
    """Return the module that an interpreter or launcher runs; empty where it runs none."""
    runs_module = _is_launcher(words[main]) or _PYTHON.fullmatch(PurePath(words[main]).name)
    if not runs_module or _find_script(words, main) is not None:
        return ""
    options = zip_longest(words[main + 1 :], words[main + 2 :], fillvalue="")
    return next((after for word, after in options if word in ("-m", "--module") and is_literal(after)), "")


def _find_first_argument(words: Sequence[str], main: int, *, is_python: bool) -> int | None:
    """Return the index of an interpreter's first argument that is not an option; None where its program is elsewhere.

    ``-c TEXT``, ``-m MODULE``, ``-s`` and ``-`` give an interpreter its program in another way.
    """
    with_value, other_program = (("-W", "-X"), "cm") if is_python else (("-o", "-O", "--rcfile", "--init-file"), "cs")
    is_value = False
    for i in range(main + 1, len(words)):
        word = words[i]
        if is_value or word in with_value:
            is_value = not is_value
        elif not word.startswith(("-", "+")):
            return i
        elif word == "-" or (not word.startswith("--") and not set(word).isdisjoint(other_program)):
            return None
    return None


def _find_option_values(words: Sequence[str], *, evaluates: bool) -> Iterator[Input]:
    """Yield the values of options that name files."""
    for option, value in (*split_options(words), *_split_short_config(words)):
        name = option.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if names_an_output(option):
            continue
        if not value or value.startswith("-") or not is_literal(value):
            continue
        path = PurePath(value)
        if name in _CONFIG_FLAGS and path.suffix.lower() in _CONFIG_SUFFIXES:
            yield Input("config", value)
        elif name in _CHECKPOINT_FLAGS and _is_checkpoint(name, path, evaluates=evaluates):
            yield Input("checkpoint", value, may_be_output=not (evaluates or _READS.search(name)))
    for named in find_named_data(words, evaluates=evaluates):
        yield Input(named.kind, named.path, is_certain=named.is_certain, may_be_output=named.may_be_output)


def _split_short_config(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ``-c FILE.yaml``, the usual short form, as an option of a config."""
    for option, value in zip(words, words[1:]):
        if option == "-c" and PurePath(value).suffix.lower() in _CONFIG_SUFFIXES:
            yield "--config", value


def _is_checkpoint(name: str, path: PurePath, *, evaluates: bool) -> bool:
    # A run may find its own newest one there, or begin without it; but not below a directory that is nobody's output.
    is_own = _NEWEST.fullmatch(path.stem) and not (path.is_absolute() and _LOADS.search(name))
    if not evaluates and (is_own or (is_output_place(str(path.parent)) and _NEWEST.fullmatch(path.stem))):
        return False
    if not evaluates and _is_written(name, path):
        return False
    return path.suffix.lower() in _CHECKPOINT_SUFFIXES or (path.is_absolute() and bool(_LOADS.search(name)))


def _is_written(name: str, path: PurePath) -> bool:
    """Return whether a training writes this checkpoint: ``checkpoint_path=out/best.pt``, but not a step's file."""
    return not _READS.search(name) and is_output_place(str(path)) and not any(map(str.isdigit, path.stem))
