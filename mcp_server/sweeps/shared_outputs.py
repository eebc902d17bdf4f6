"""Which directories several cells of a sweep would write to: those that begin together may mix their files. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_server.record.output_directories import find_in_command
from mcp_server.record.sweep_spec import Cell

_OF_A_RUN = "{run_id}"
_MOST_NAMED = 3  # directories


def find_shared_outputs(cells: Sequence[Cell]) -> list[str]:
    """Return a warning for each directory that more than one cell names as an output, or as its TensorBoard directory.

    A cell whose command or parameters have ``{run_id}`` in them keeps its files apart, below whatever directory.
    """
    names: dict[str, list[str]] = {}
    for cell in cells:
        for directory in dict.fromkeys(_list_outputs(cell.launch)):
            names.setdefault(directory, []).append(cell.name)
    return [
        f"{len(sharing)} cells ({sharing[0]}, …) write to {directory}: put {_OF_A_RUN} into that path, else their "
        "files may mix."
        for directory, sharing in names.items()
        if len(sharing) > 1
    ][:_MOST_NAMED]


def _list_outputs(launch: Mapping[str, Any]) -> Iterator[str]:
    command, params, cwd = launch.get("command"), launch.get("params") or {}, launch.get("cwd") or ""
    if isinstance(command, str | list) and _OF_A_RUN not in json.dumps([command, params], default=str):
        yield from find_in_command(command, cwd, params)
        if (tensorboard := launch.get("tensorboard")) and "{" not in tensorboard:
            yield tensorboard
