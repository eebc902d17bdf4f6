"""The Hydra configs that a shell script chooses by its arguments: ``bash run_embodiment.sh maniskill_ppo``.

The script is read, never run. What it computes in any other way than the few below is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mcp_server.command.hydra import read_hydra_options
from mcp_server.command.inputs import find_programs
from mcp_server.command.shell import ShellCommand, is_literal
from mcp_server.hosts.hydra_configs import find_hydra_configs
from mcp_server.system.files import read_regular_file

_MOST_BYTES, _MOST_SCRIPTS = 256 * 1024, 4
_SHELLS = ("bash", "sh", "zsh", "dash")
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$", re.MULTILINE)
_ARGUMENT = re.compile(r"[\"']?\$(?:(?P<number>\d)|\{(?P<braced>\d)(?::?-(?P<default>[\w./-]*))?\})[\"']?")
# cd "$(dirname "${BASH_SOURCE[0]}")" && pwd, and its short forms: the directory of the script.
_OWN_DIRECTORY = re.compile(r"[\"']?\$\((?:[^()]|\([^()]*\))*\)[\"']?")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def find_script_configs(command: ShellCommand, cwd: Path) -> list[Path]:
    """Return the configs that exist, of the ``--config-path`` and ``--config-name`` in the scripts of ``command``."""
    files: dict[Path, None] = {}
    for program in find_programs(command)[:_MOST_SCRIPTS]:
        base = cwd
        for step in program.base:
            base /= Path(step).expanduser()
        word = program.script if Path(program.words[0]).name in _SHELLS else program.words[0]
        if word not in program.words or not is_literal(word):
            continue
        script = base / Path(word).expanduser()
        arguments = program.words[program.words.index(word) + 1 :]
        with suppress(OSError, ValueError):
            if script.suffix in (".sh", ".bash") and script.is_file():
                text = read_regular_file(script, max_bytes=_MOST_BYTES).decode(errors="replace")
                for words in _list_settings(text, script, arguments):
                    files |= dict.fromkeys(find_hydra_configs(words, None, base).files)
    return list(files)


def _list_settings(text: str, script: Path, arguments: Sequence[str]) -> list[list[str]]:
    """Return the options of each line that starts Hydra with a config by path and name, where both are known."""
    variables = _read_variables(text, script, arguments)
    found = []
    for line in text.splitlines():
        if "--config-path" not in line or "--config-name" not in line or line.lstrip().startswith("#"):
            continue
        options = read_hydra_options(line.replace('"', " ").replace("'", " ").split())
        path, name = (_expand(options.get(key, ""), variables, arguments) for key in ("path", "name"))
        if path and name and Path(path).is_absolute():
            found.append(["--config-path", path, "--config-name", name])
    return found


def _read_variables(text: str, script: Path, arguments: Sequence[str]) -> dict[str, str]:
    """Return the variables of a script whose values are certain. One set from a given argument keeps that value."""
    variables: dict[str, str] = {}
    given: set[str] = set()
    for match in _ASSIGNMENT.finditer(text):
        name, value = match["name"], match["value"].strip()
        argument = _ARGUMENT.fullmatch(value)
        if argument is not None:
            number = int(argument["number"] or argument["braced"])
            chosen = arguments[number - 1] if 0 < number <= len(arguments) else argument["default"]
            if chosen:
                variables[name] = chosen
                given.add(name)
        elif name not in given:
            is_own = _OWN_DIRECTORY.fullmatch(value) and value.count("dirname") == 1
            if is_own and re.search(r"BASH_SOURCE|\$\{?0", value) and ".." not in value:
                variables[name] = str(script.parent)
            else:
                variables[name] = _expand(value.strip("\"'"), variables, arguments)
    return variables


def _expand(text: str, variables: dict[str, str], arguments: Sequence[str]) -> str:
    """Return ``text`` with its variables filled in; empty where one is unknown, or more than variables is in it."""
    argument = _ARGUMENT.fullmatch(text)
    if argument is not None:
        number = int(argument["number"] or argument["braced"])
        return arguments[number - 1] if 0 < number <= len(arguments) else argument["default"] or ""
    is_known = all(variables.get(braced or plain) for braced, plain in _VARIABLE.findall(text))
    filled = _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)
    return filled if is_known and is_literal(filled) else ""
