"""The blueprints of a project by name: those in ``blueprints/`` of the server's directory, and those of former runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from mcp_server.blueprints.apply import read_blueprint_text
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.store.run_store import RunStore
from mcp_server.text.secret_patterns import mask_secrets

_DIRECTORY = "blueprints"
_DOCUMENTS = frozenset({"guide", "template"})  # runward's own
_MOST_NAMED = 20


def find_project_blueprints(directory: Path) -> dict[str, Path]:
    """Return the blueprints below ``directory`` by the name of their file."""
    files: list[Path] = []
    with suppress(OSError):
        files = sorted((directory / _DIRECTORY).glob("*.md"))
    return {file.stem: file for file in files if file.stem not in _DOCUMENTS}


def find_blueprints(store: RunStore, directory: Path) -> dict[str, Path]:
    """Return blueprints by the name of their file: those below ``directory`` first, then those of the newest runs."""
    paths = find_project_blueprints(directory)
    for blueprint in store.list_blueprints():
        if (path := Path(blueprint)).is_file():
            paths.setdefault(path.stem, path)
    return {name: path for name, path in paths.items() if name not in _DOCUMENTS}


def read_recipe(store: RunStore, directory: Path, name: str, environ: Mapping[str, str]) -> str:
    """Return the blueprint of this name with secrets masked, below a line with the call that launches it.

    Raises:
        ResourceNotFoundError: there is none; names those that there are.
        BlueprintUnreadable: it cannot be read.
    """
    paths = find_blueprints(store, directory)
    if name not in paths:
        near = difflib.get_close_matches(name, paths, n=3, cutoff=0.5)
        names = ", ".join(near or list(paths)[:_MOST_NAMED]) or f"none; write {directory / _DIRECTORY}/NAME.md"
        raise ResourceNotFoundError(f"Blueprint not found: {name[:80]!r}. There are: {names}.")
    path, text = read_blueprint_text(str(paths[name]))
    return mask_secrets(
        f"<!-- launch_run(blueprint={str(path)!r}) -->\n\n{text}", list_known_secrets(environ, store.home.secrets)
    )
