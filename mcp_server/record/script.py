"""The script that bash runs for a spec, and what a command is called. Pure."""

import re
import shlex
from pathlib import PurePath

from mcp_server.record.command_arguments import arguments, cd_line
from mcp_server.record.spec import RunSpec

LONGEST_NAME = 64
PARAMS = "{params}"

# `exec` in front of these would fail or change what they mean.
_SHELL_WORDS = frozenset(
    """
    . : [ [[ alias bg bind break builtin caller case cd command compgen complete continue coproc declare
    dirs disown do done echo elif else enable esac eval exec exit export false fc fg fi for function
    getopts hash help history if in jobs kill let local logout mapfile popd printf pushd pwd read
    readarray readonly return select set shift shopt source suspend test then time times trap true type
    typeset ulimit umask unalias unset until wait while { } !
    """.split()  # noqa: SIM905 - as bash lists them
)


def render(spec: RunSpec) -> str:
    """Return the script that runs a spec; a person may run it by hand as well.

    Parameters are its arguments, so that a retry may change them; by hand it has those of the first attempt.
    """
    lines = ["#!/usr/bin/env bash", "set -o pipefail", cd_line(spec.cwd)]
    lines[2:2] = [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.env.items())]
    lines += [f"# {name}: a secret, handed over in memory" for name in spec.secrets]
    if spec.params:
        words = shlex.join(arguments(spec.params, spec.param_style))
        lines.append(f'[ $# -gt 0 ] || [ "${{RUNWARD_ATTEMPT-}}" ] || set -- {words}')
    command = spec.command
    if isinstance(command, list):
        dashes = "-- " if command[0].startswith("-") else ""
        command_line = " ".join('"$@"' if word == PARAMS else shlex.quote(word) for word in command)
        lines.append(f"exec {dashes}{command_line}{_end(spec)}")
    else:
        run = f"exec {command}" if is_one_program(command) else command
        lines.append((run.replace(PARAMS, '"$@"') if takes_arguments(command) else run) + _end(spec))
    return "\n".join(lines) + "\n"


def _end(spec: RunSpec) -> str:
    """Return what follows the command: its parameters, unless it says itself where they go."""
    return ' "$@"' if (spec.params or spec.resume_args) and not _places(spec.command) else ""


def _places(command: str | list[str]) -> int:
    """Return how often ``command`` has ``{params}`` as a word of its own, outside quotes."""
    if isinstance(command, list):
        return command.count(PARAMS)
    lexer = shlex.shlex(command, posix=False, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer).count(PARAMS)
    except ValueError:
        return 0


def takes_arguments(command: str | list[str]) -> bool:
    """Whether parameters have a place: where the command says ``{params}``, or at the end of one program's line.

    In quotes, or inside another word, ``{params}`` is none: they are several words.
    """
    told = sum(word.count(PARAMS) for word in ([command] if isinstance(command, str) else command))
    if told:
        return told == _places(command)
    return isinstance(command, list) or is_one_program(command)


def is_one_program(command: str) -> bool:
    """Whether `exec` may stand before ``command``: then its signal is told exactly, with no shell between."""
    if "\n" in command or "$'" in command:
        return False
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        lexer.commenters = ""  # shlex would see one in the middle of a word
        words = list(lexer)
    except ValueError:
        return False
    if not words or any(word.startswith("#") or (word and set(word) <= set(";&|()")) for word in words):
        return False
    return bool(re.fullmatch(r"[\w./~+-]+", words[0])) and words[0] not in _SHELL_WORDS


def name_of(command: str | list[str]) -> str:
    """Return a label for a command: its script, its module, else its first word."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError:
        words = command.split() if isinstance(command, str) else []
    for before, word in zip(["", *words], words, strict=False):
        if word.endswith((".py", ".sh")):
            return PurePath(word).stem
        if before == "-m":
            return word.rpartition(".")[2]
    programs = (PurePath(word).name for word in words if "=" not in word)
    return next(filter(None, programs), "run")


def slug(name: str) -> str:
    """Return ``name`` as tmux and file systems take it: letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:LONGEST_NAME] or "run"
