"""The form in which a program takes parameters, where its launch leaves it open: ``--k v``, or ``k=v`` for Hydra."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from mcp_server.command.hydra import OPTIONS, read_hydra_decorator
from mcp_server.command.inputs import find_programs
from mcp_server.command.shell import ShellCommand
from mcp_server.hosts.config_contents import find_script_file
from mcp_server.system.files import read_regular_file

_MOST_BYTES = 1_000_000
_SETTING = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=.*", re.DOTALL)
_VERL = re.compile(r"verl\.trainer\.main_\w+")  # Hydra programs of an installed package, which is not read


def takes_settings(command: ShellCommand, names: Iterable[str], cwd: Path) -> bool:
    """Return whether the last Python program of ``command`` certainly takes its parameters as ``section.key=value``.

    Its script has Hydra's decorator and no other parser of arguments, or the command has such settings already.
    ``names``: of the parameters; those of Hydra's own options are not settings. Reads the script, never runs it.
    """
    programs = find_programs(command)
    if not programs or any(name.startswith("-") or f"--{name}" in OPTIONS for name in names):
        return False
    program = programs[-1]
    if _has_other_options(program.words):
        return False
    if _VERL.fullmatch(program.module) or any(map(_SETTING.fullmatch, program.words)):
        return True
    base = cwd
    for step in program.base:
        base /= Path(step).expanduser()
    script = find_script_file(program.script, program.module, base)
    with suppress(OSError, ValueError):
        text = read_regular_file(script, max_bytes=_MOST_BYTES).decode(errors="replace") if script else ""
        return read_hydra_decorator(text) is not None and "argparse" not in text
    return False


def _has_other_options(words: Sequence[str]) -> bool:
    """Return whether a program has options behind its script or module that are not Hydra's."""
    start = next((at for at, word in enumerate(words) if word == "-m" or word.endswith(".py")), 0)
    names = (word.partition("=")[0] for word in words[start + 1 :] if word.startswith("--"))
    return not set(names) <= {*OPTIONS, "--multirun"}
