"""Reads a launch's parameters from YAML or JSON files: nested names become ``section.key``.

Several files, with commas between them, are parts of one configuration: later ones win.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.blueprints.front_matter import YamlFault, compose, to_data
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.runs.launch.verl_names import NotOfVerl, runs_verl, use_verl_names
from mcp_server.system.files import read_regular_file

_ARGUMENT = "params"
_MAX_BYTES = 2_000_000


def split_files(text: str) -> list[str]:
    """Return the files that ``a.yaml,b.yaml`` names, in their order."""
    return [word for word in map(str.strip, text.split(",")) if word] or [text]


def read_params_file(path: str, cwd: str | None) -> tuple[str, dict[str, Any]]:
    """Return the files at ``path``, and their values by flat names. A list, or an empty table, is one JSON value."""
    files, values = [], dict[str, Any]()
    for word in split_files(path):
        file = _find_file(word, cwd)
        own = _read_values(file)
        for name in own:
            if inner := next((other for other in values if _is_inside(name, other)), None):
                cause = f"{file} has {name[:200]!r}, and a file before it {inner[:200]!r}: a value and a table."
                raise BadArgument(_ARGUMENT, cause)
        values |= own
        files.append(file)
    return ",".join(map(str, files)), values


def name_for_program(params: Mapping[str, Any], files: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``files`` by the program's own names. BadArgument: VERL's names are not certain."""
    if not runs_verl(words):
        return dict(params)
    try:
        return use_verl_names(params)[0]
    except NotOfVerl as error:
        raise BadArgument(_ARGUMENT, f"{files}: {error}.") from None


def _is_inside(one: str, other: str) -> bool:
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _find_file(word: str, cwd: str | None) -> Path:
    file = Path(word).expanduser()
    if file.is_absolute():
        return file
    if cwd is None:
        raise BadArgument(_ARGUMENT, f"names the file {word[:200]!r} by a relative path, and cwd is not given.")
    return Path(cwd).expanduser() / file


def _read_values(file: Path) -> dict[str, Any]:
    try:
        text = read_regular_file(file, max_bytes=_MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise BadArgument(_ARGUMENT, f"{file} is not UTF-8 text.") from None
    except OSError as error:
        cause = f"{str(file)[:200]} cannot be read: {error.strerror}. It is a table, or a file of one."
        raise BadArgument(_ARGUMENT, cause, suggest_names(file)) from None
    try:
        table = to_data(compose(text, 1), 1)
    except YamlFault as fault:
        raise BadArgument(_ARGUMENT, f"{file}, line {fault.line}: {fault.text}.") from None
    if not isinstance(table, dict):
        raise BadArgument(_ARGUMENT, f"{file} holds no table of names and values.")
    values: dict[str, Any] = {}
    for name, value in _flatten(table, ""):
        if name in values:
            raise BadArgument(_ARGUMENT, f"{file} has {name[:200]!r} twice: as one name, and as names in names.")
        values[name] = value
    return values


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, dict | list):
            yield name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            yield name, value
