"""What a command line reads before it does anything: programs, scripts, configs and checkpoints. Pure.

Only what is certain is told: whatever a shell would expand, and whatever earlier words could have made, is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, Literal

from mcp_server.record.script import is_one_program

_OPERATORS = ";&|()<>\n"
What = Literal["program", "script", "config", "checkpoint"]

# What a shell, or runward itself, would still put something else in place of; or several paths, or one elsewhere.
_EXPANDS = re.compile(r"[$`*?\[\]{}<>|;&,:\s]|^~[^/]|^-$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_BEFORE = frozenset({"exec", "nohup", "time", "env", "command"})
# They make no files that a later command could read; directories do not count.
_MAKES_NOTHING = frozenset(
    """export set unset ulimit umask echo printf true : sleep date hostname pwd ls mkdir rm chmod which type nvidia-smi
    module ml hash free df uptime whoami id declare""".split()  # noqa: SIM905 - a list of words
)
# They start another program of this line; the second kind takes a script of Python itself.
_WRAPPERS = frozenset(
    """timeout nice ionice stdbuf numactl taskset unbuffer xvfb-run chrt catchsegv conda mamba micromamba uv
    poetry""".split()  # noqa: SIM905 - as above
)
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun"})
# Their words mean files elsewhere, or text.
FAR = frozenset(
    """ssh scp rsync sftp mosh docker podman singularity apptainer enroot kubectl sed perl awk grep ln srun sbatch
    mpirun ray git""".split()  # noqa: SIM905 - as above
)
# They change variables, and nothing else.
_ACTIVATES = ("activate", "conda.sh", "setup.bash")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_OTHER_DIRECTORY = ("--directory", "--cwd", "--chdir", "--wdir", "--project", "-C")

_CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".py")
_DOCUMENT_SUFFIXES = (".yaml", ".yml", ".toml")
_CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".zip", ".onnx", ".msgpack", ".th")
_CONFIG_FLAGS = frozenset(
    """config configs cfg conf config_file cfg_file config_yaml config_path cfg_path config_json yaml yaml_path
    yaml_file deepspeed deepspeed_config ds_config""".split()  # noqa: SIM905 - as above
)
_CHECKPOINT_FLAGS = frozenset(
    """checkpoint ckpt checkpoint_path ckpt_path checkpoint_file ckpt_file load load_path load_checkpoint load_ckpt
    load_from resume resume_from resume_path resume_ckpt resume_checkpoint resume_from_checkpoint resume_from_path
    pretrained_checkpoint pretrained_ckpt model_checkpoint""".split()  # noqa: SIM905 - as above
)
# A directory is meant as well.
_LOADS = re.compile(r"load|resume_from")
# The first of a series of starts has none yet, and says so by itself.
_NEWEST = re.compile(r"last|latest|current|newest|resume|checkpoint|ckpt|model")
_EVALUATES = re.compile(
    r"(?:^|[_\W])(?:eval\w*|tests?|play|infer\w*|generate|rollouts?|serve|demo|predict|validate)(?:[_\W]|$)"
)
_MAKES = re.compile(
    r"(?:gen|generate|make|create|write|dump|export|convert|init|new|build|prepare|download|record)(?:_|$)"
)
_TRAINS = re.compile(r"train|finetune|fine_tune|tune|eval|main|run|play|launch|sft|ppo|grpo|dpo|test")


@dataclass(frozen=True)
class Input:
    """A file that a command reads. ``path`` as written; ``base``: what it is relative to, by ``cd`` words from cwd."""

    what: What
    path: str
    base: tuple[str, ...] = ()


def inputs(command: str | Sequence[str]) -> list[Input]:
    """Return the files that must be there before ``command`` starts, as far as that is certain."""
    if not isinstance(command, str):
        return list(_of_program(Simple(tuple(command), known=True)))
    return [found for simple in simple_commands(command) if simple.known for found in _of_program(simple)]


def of_params(params: Mapping[str, Any], command: str | Sequence[str]) -> list[Input]:
    """Return the configs and checkpoints that the parameters of ``command`` name, as far as that is certain."""
    last = simple_commands(command)[-1:] if isinstance(command, str) else [Simple((), known=True)]
    words = [f"{name}={value}" for name, value in params.items() if isinstance(value, str)]
    return [replace(found, base=each.base) for each in last if each.known for found in _named(words, evaluates=False)]


@dataclass(frozen=True)
class Simple:
    """One program with its arguments. ``known``: nothing before it could change what its words mean.

    ``redirected``: the files that it reads from or writes to by ``<`` and ``>``.
    """

    words: tuple[str, ...]
    known: bool
    base: tuple[str, ...] = ()
    redirected: tuple[str, ...] = ()


def simple_commands(line: str) -> list[Simple]:
    """Return the programs of a shell line, in order; none of a line whose quotes do not match."""
    try:
        tokens = [*_tokens(line), ";"]
    except ValueError:
        return []
    found: list[Simple] = []
    words: list[str] = []
    redirected: list[str] = []
    base: tuple[str, ...] = ()
    known, skip = True, False
    for token in tokens:
        if not token or token.strip(_OPERATORS):
            (redirected if skip else words).append(token)
            skip = False
            continue
        skip = False
        if "<" in token or ">" in token:
            known, skip = known and "<<" not in token and "(" not in token, True
            continue
        if words:
            # What may fail is no mistake where something else is said for that case.
            found.append(Simple(tuple(words), known and "||" not in token, base, tuple(redirected)))
            known, base = _after(found[-1])
        known = known and not set(token) & set("()")
        words, redirected = [], []
    return found


def _tokens(line: str) -> Iterator[str]:
    """Yield words without quotes, and operators between them, also the ends of lines; comments are left out.

    Raises:
        ValueError: quotes do not match.
    """
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    told = True
    for word in lexer:
        told = (word.strip(_OPERATORS) == "" and "\n" in word) or (told and not word.startswith("#"))
        if told:
            yield word


def _after(simple: Simple) -> tuple[bool, tuple[str, ...]]:
    """Return whether the next command's words still mean what they say, and what they are relative to."""
    known, base = simple.known, simple.base
    match _program(simple.words):
        case []:
            return known, base
        case ["cd", path] if not _EXPANDS.search(path):
            return known, (*base, path)
        case ["source" | ".", path, *_]:
            return known and PurePath(path).name in _ACTIVATES, base
        case ["conda" | "mamba" | "micromamba", "activate" | "deactivate", *_] | ["ray", "start" | "stop", *_]:
            return known, base
        case [program, *_]:
            return known and program in _MAKES_NOTHING, base
    return False, base


def _program(words: Sequence[str]) -> list[str]:
    """Return ``words`` from the program on, without variables and what only stands before it."""
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _BEFORE):
        rest.pop(0)
    return rest


def program_of(simple: Simple) -> str:
    """Return the name of a command's program, without its directory; empty where there is none."""
    words = _program(simple.words)
    return PurePath(words[0]).name if words else ""


def first_program(command: str | Sequence[str]) -> str:
    """Return the program that ``command`` is, as written; empty where a shell has more to do than to start it."""
    if not isinstance(command, str):
        return next((word for word in command[:1] if not _EXPANDS.search(word)), "")
    words = _program(shlex.split(command)) if is_one_program(command) else []
    return "" if not words or words[0].startswith("-") or _EXPANDS.search(words[0]) else words[0]


def _of_program(simple: Simple) -> Iterator[Input]:
    words = _program(simple.words)
    at = _started(words)
    if at is None:
        return
    for word in {words[0]: None, words[at]: None}:
        if "/" in word and _is_plain(word):
            yield Input("program", word, simple.base)
    script = _script(words, at)
    if script is not None and _is_plain(words[script]):
        yield Input("script", words[script], simple.base)
    last = at if script is None else script
    stem = PurePath(words[last]).stem
    if words[at] in _MAKES_NOTHING or _MAKES.match(stem):
        return
    rest = words[last + 1 :]
    if script and _TRAINS.search(stem) and rest and rest[0].endswith(_DOCUMENT_SUFFIXES) and _is_plain(rest[0]):
        yield Input("config", rest[0], simple.base)
    evaluates = bool(_EVALUATES.search(" ".join(words[: last + 2]))) or not {"--eval", "--test"}.isdisjoint(words)
    for found in _named(words[at + 1 :], evaluates=evaluates):
        yield replace(found, base=simple.base)


def _started(words: Sequence[str]) -> int | None:
    """Return where the program stands that does the work; None where that, or where it looks, is not certain."""
    if not words or words[0].startswith("-"):
        return None
    first = PurePath(words[0]).name
    if first in FAR:
        return None
    if first not in _WRAPPERS:
        return 0
    at = next((i for i, word in enumerate(words) if i and (_is_interpreter(word) or _is_launcher(word))), None)
    if at is None or any(word.partition("=")[0] in _OTHER_DIRECTORY for word in words[:at]):
        return None
    return at


def _is_interpreter(word: str) -> bool:
    name = PurePath(word).name
    return name in _SHELLS or bool(_PYTHON.fullmatch(name))


def _is_launcher(word: str) -> bool:
    return PurePath(word).name in _LAUNCHERS


def _script(words: Sequence[str], at: int) -> int | None:
    """Return where the script stands that ``words[at]`` runs; None where it runs a module, a text or itself."""
    name = PurePath(words[at]).name
    if name in ("source", "."):
        return at + 1 if any("/" in word for word in words[at + 1 : at + 2]) else None
    if name in _LAUNCHERS:
        if not {"-m", "--module", "--no_python", "--no-python"}.isdisjoint(words):
            return None
        return next((i for i in range(at + 1, len(words)) if words[i].endswith(".py")), None)
    if not _is_interpreter(words[at]):
        return None
    return _first_argument(words, at, is_python=name not in _SHELLS)


def _first_argument(words: Sequence[str], at: int, *, is_python: bool) -> int | None:
    """Return where an interpreter's first word stands that is no option; None where it gets its program otherwise."""
    takes, otherwise = (("-W", "-X"), "cm") if is_python else (("-o", "-O", "--rcfile", "--init-file"), "cs")
    skip = False
    for i in range(at + 1, len(words)):
        word = words[i]
        if skip or word in takes:
            skip = not skip
        elif not word.startswith(("-", "+")):
            return i
        elif word == "-" or (not word.startswith("--") and not set(word).isdisjoint(otherwise)):
            return None
    return None


def _named(words: Sequence[str], *, evaluates: bool) -> Iterator[Input]:
    """Yield what stands behind a flag of a config or a checkpoint: ``--config x``, ``--config=x``, ``a.config=x``."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if not equals:
            if not flag.startswith("--"):
                continue
            value = after
        name = flag.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if not value or value.startswith("-") or not _is_plain(value):
            continue
        path = PurePath(value)
        if name in _CONFIG_FLAGS and path.suffix.lower() in _CONFIG_SUFFIXES:
            yield Input("config", value)
        elif name in _CHECKPOINT_FLAGS and _is_checkpoint(name, path, evaluates=evaluates):
            yield Input("checkpoint", value)


def _is_checkpoint(name: str, path: PurePath, *, evaluates: bool) -> bool:
    if not evaluates and _NEWEST.fullmatch(path.stem):
        return False
    return path.suffix.lower() in _CHECKPOINT_SUFFIXES or (path.is_absolute() and bool(_LOADS.search(name)))


def _is_plain(word: str) -> bool:
    """Whether a word is a path that means itself."""
    return not _EXPANDS.search(word) and len(word) < 4096  # noqa: PLR2004 - PATH_MAX
