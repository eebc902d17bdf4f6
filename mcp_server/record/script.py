"""The script that bash runs for a spec, and what a command is called. Pure."""

import re
import shlex
from pathlib import PurePath

from mcp_server.record.command_arguments import arguments, cd_line
from mcp_server.record.spec import RunSpec
from mcp_server.text.shell import ShellCommand, parse

LONGEST_NAME = 64
PARAMS = "{params}"


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
    command, parsed = spec.command, parse(spec.command)
    end = ' "$@"' if (spec.params or spec.resume_args) and not parsed.count_word(PARAMS) else ""
    if isinstance(command, list):
        dashes = "-- " if command[0].startswith("-") else ""
        command_line = " ".join('"$@"' if word == PARAMS else shlex.quote(word) for word in command)
        lines.append(f"exec {dashes}{command_line}{end}")
    else:
        run = f"exec {command}" if parsed.is_one_program else command
        lines.append((run.replace(PARAMS, '"$@"') if takes_arguments(parsed) else run) + end)
    return "\n".join(lines) + "\n"


def takes_arguments(command: ShellCommand) -> bool:
    """Return whether the command has a position for arguments: at ``{params}``, or at the end of one program's line.

    ``{params}`` counts only as a word of its own outside quotes, since it is replaced by several words.
    """
    source = [command.source] if isinstance(command.source, str) else command.source
    if mentions := sum(word.count(PARAMS) for word in source):
        return mentions == command.count_word(PARAMS)
    return command.is_one_program


def name_of(command: ShellCommand) -> str:
    """Return a label for a command: its script, its module, else its first program."""
    words = command.words
    for before, word in zip(["", *words], words):  # noqa: B905 - strict= needs Python 3.10
        if word.endswith((".py", ".sh")):
            return PurePath(word).stem
        if before == "-m":
            return word.rpartition(".")[2]
    programs = (PurePath(word).name for word in words if "=" not in word)
    return next(filter(None, programs), "run")


def slug(name: str) -> str:
    """Return ``name`` as tmux and file systems take it: letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:LONGEST_NAME] or "run"
