"""Which directories several cells of a sweep would write to: those that begin together may mix their files.

A program that has an option for the name of a run gets one; one that writes somewhere that nobody names is warned of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.command.outputs import find_in_command
from mcp_server.command.shell import parse
from mcp_server.record.script import takes_arguments
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.plan_checks import read_script

_OF_A_RUN = "{run_id}"
_MOST_NAMED = 3  # directories
_RUN_NAME = re.compile(r"""["']--(run[_-]name)["']""")
_WRITES = re.compile(
    r"SummaryWriter\(|torch\.save\(|EventFileWriter\(|save_pretrained\(|\.save_weights\(|np\.save|joblib\.dump|pickle\.dump\("
    r"|default_root_dir|save_model\(|makedirs\(|\.mkdir\("
)
_OWN_PLACE = re.compile(r"RUNWARD_RUN_ID|mkdtemp|TemporaryDirectory|uuid|getpid\(|strftime|datetime\.now|time\.time\(")


def name_runs(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells, those of a program with the option ``--run_name`` with a name of their own for each run."""
    scripts = _Scripts()
    return tuple(_name_run(cell, scripts) if len(cells) > 1 else cell for cell in cells)


class _Scripts:
    """The texts of the scripts of a plan. Cells of one variant differ in parameters alone, and share theirs."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def read(self, cell: Cell) -> str:
        key = cell.phase, cell.variant
        if key not in self._texts:
            cwd = Path(str(cell.launch.get("cwd") or ".")).expanduser()
            self._texts[key] = read_script(cell.launch["command"], cwd)
        return self._texts[key]


def _name_run(cell: Cell, scripts: _Scripts) -> Cell:
    launch = cell.launch
    if not _is_open(launch) or launch.get("param_style") == "k=v":
        return cell
    command, params = parse(launch["command"]), launch.get("params") or {}
    if not takes_arguments(command):
        return cell
    if (option := _RUN_NAME.search(scripts.read(cell))) is None:
        return cell
    given = {name.replace("-", "_") for name in (*params, *command.split_options()[0])}
    if "run_name" in given:
        return cell
    return replace(cell, launch={**launch, "params": {**params, option[1]: "{run_id}-{attempt}"}})


def find_shared_outputs(cells: Sequence[Cell]) -> list[str]:
    """Return a warning for each directory that more than one cell names as an output, or as its TensorBoard directory.

    A cell whose command or parameters have ``{run_id}`` in them keeps its files apart, below whatever directory.
    """
    names: dict[str, list[str]] = {}
    for cell in cells:
        for directory in dict.fromkeys(_list_outputs(cell.launch)):
            names.setdefault(directory, []).append(cell.name)
    named = [
        f"{len(sharing)} cells ({sharing[0]}, …) write to {directory}: put {_OF_A_RUN} into that path, else their "
        "files may mix."
        for directory, sharing in names.items()
        if len(sharing) > 1
    ]
    return [*named[:_MOST_NAMED], *_find_unnamed(cells)]


def _find_unnamed(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield that the script of several cells writes files, and nothing says that each has a place of its own."""
    scripts, found = _Scripts(), dict[str, list[str]]()
    for cell in cells:
        if _is_open(cell.launch) and not list(_list_outputs(cell.launch)):
            text = scripts.read(cell)
            if (sign := _WRITES.search(text)) and not _OWN_PLACE.search(text):
                found.setdefault(sign[0].strip("(."), []).append(cell.name)
    for written, sharing in found.items():
        if len(sharing) > 1:
            yield (
                f"{len(sharing)} cells ({sharing[0]}, …) run a script that writes files ({written}), and name no "
                f"directory: if that is one for all, their files mix. Pass its option for outputs with {_OF_A_RUN}, or "
                "let it read RUNWARD_RUN_ID."
            )
            return


def _is_open(launch: Mapping[str, Any]) -> bool:
    """Return whether a cell runs a command here whose words keep no files apart."""
    command, params = launch.get("command"), launch.get("params") or {}
    is_command = isinstance(command, str | list) and bool(command) and not launch.get("host")
    return is_command and _OF_A_RUN not in json.dumps([command, params, launch.get("env")], default=str)


def _list_outputs(launch: Mapping[str, Any]) -> Iterator[str]:
    command, params, cwd = launch.get("command"), launch.get("params") or {}, launch.get("cwd") or ""
    if isinstance(command, str | list) and _OF_A_RUN not in json.dumps([command, params], default=str):
        yield from find_in_command(command, cwd, params)
        if (tensorboard := launch.get("tensorboard")) and "{" not in tensorboard:
            yield tensorboard
