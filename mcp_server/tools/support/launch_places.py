"""Checks which files and directories a launch may use, for callers with a token.

Its owner may read what is in a run's directories from then on. So where config.toml has ``read_roots``, all of them
must be below these, or in directories of the owner's runs. Without, a launch may run anywhere, and shows whether
``cwd`` exists, as its command could.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.blueprints.apply import read_blueprint
from mcp_server.blueprints.paths import resolve_paths
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.runs.launch.params_file import split_files
from mcp_server.tools.support.context import Call, identity, server_of

_PARAMETER = re.compile(r"\{(?!(?:run_id|attempt|cell|sweep)\})")  # of a cell of a sweep; those are plain words


def check_launch_places(ctx: Call, arguments: Mapping[str, Any], *, dry_run: bool) -> None:
    """Refuse a launch with places that a caller with a token may not read, without a look at them. Blocks."""
    if identity(ctx) is None:
        return
    server = server_of(ctx)
    cwd, blueprint = arguments.get("cwd"), arguments.get("blueprint")
    server.check_readable(ctx, {"blueprint": blueprint, "params": list_params_files(arguments.get("params_file"))}, cwd)
    has_roots = bool(server.home.read_config().read_roots)
    if not (has_roots or dry_run):
        return
    directory = str(Path.cwd()) if has_roots and cwd is None and blueprint is None else cwd  # the server's
    places = {"cwd": directory, "tensorboard": arguments.get("tensorboard")}
    for argument, place in places.items():
        if isinstance(place, str) and _PARAMETER.search(place):
            raise BadArgument(argument, "holds a parameter, which may lead out of what this token may read.")
    server.check_readable(ctx, places, cwd)
    if blueprint is not None:
        server.check_readable(ctx, {"blueprint": _list_directories(blueprint, cwd)}, cwd)


def list_params_files(params: object) -> list[str] | None:
    """Return the files that ``params`` names, each of which is read; None where it is a table."""
    if not isinstance(params, str):
        return None
    return split_files(params)


def _list_directories(blueprint: str, cwd: str | None) -> list[str]:
    try:
        paths = resolve_paths(*read_blueprint(blueprint, cwd))
    except (RunwardError, OSError):
        return []
    own = (None if cwd else paths.codebase_dir, paths.result_dir, paths.tensorboard)
    return [str(path) for path in own if path is not None]
