"""Reads a launch's parameters from a YAML or JSON file: its nested names become ``section.key``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp_server.blueprints.front_matter import YamlFault, compose, to_data
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.system.files import read_regular_file

_ARGUMENT = "params"
_MAX_BYTES = 2_000_000


def read_params_file(path: str, cwd: str | None) -> tuple[Path, dict[str, Any]]:
    """Return the file at ``path``, relative to ``cwd``, and its values by flat names, in the file's order.

    A list, or an empty table, is one value, written as JSON.

    Raises:
        BadArgument: it cannot be read, or holds no table of names and values.
    """
    file = Path(path).expanduser()
    if not file.is_absolute():
        if cwd is None:
            raise BadArgument(_ARGUMENT, f"names the file {path[:200]!r} by a relative path, and cwd is not given.")
        file = Path(cwd).expanduser() / file
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
    return file, values


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, dict | list):
            yield name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            yield name, value
