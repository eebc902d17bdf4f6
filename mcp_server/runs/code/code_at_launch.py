"""Keeps the state of the code at a launch, for runs whose supervisor starts later: jobs of Slurm, cells of sweeps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.command.configs import find_config_files
from mcp_server.record.code.code_state import add_digests, load_code_state, read_code_state
from mcp_server.record.run_directory import RunDir
from mcp_server.record.script import AttemptInputs, attempt_arguments
from mcp_server.record.spec import RunSpec
from mcp_server.record.sweeps.sweep_spec import SweepSpec
from mcp_server.store.state_home import StateHome

_MOST_CELLS = 100  # whose configurations are looked for


def keep_code_state(directory: RunDir, spec: RunSpec, home: StateHome) -> None:
    """Write the state into a run's directory: of a cell that of its sweep's start. Unreadable files are left out."""
    with contextlib.suppress(OSError):
        of_sweep = load_code_state(home.sweeps / spec.sweep) if spec.sweep and not spec.keep_code else None
        if of_sweep is None and spec.backend == "slurm":
            inputs = AttemptInputs(spec.params)
            arguments = attempt_arguments(spec, inputs)
            named = find_config_files(spec.command, spec.cwd or "/", {**os.environ, **spec.env}, arguments)
            of_sweep = add_digests(read_code_state([spec.cwd] if spec.cwd else [], named))
        if of_sweep is not None:
            of_sweep.write(directory.path)


def keep_sweep_code_state(directory: Path, spec: SweepSpec) -> None:
    """Write the state of the code of all cells into a sweep's directory. Files that cannot be read are left out."""
    with contextlib.suppress(OSError):
        launches = [cell.launch for cell in spec.cells if cell.launch.get("code") != "kept"]
        directories = dict.fromkeys(str(each["cwd"]) for each in launches if each.get("cwd"))
        add_digests(read_code_state(directories, _find_named(launches))).write(directory)


def _find_named(launches: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    for launch in launches[:_MOST_CELLS]:
        if launch.get("command") and launch.get("cwd"):
            given = RunSpec(params=launch.get("params") or {}, param_style=launch.get("param_style") or "--k v")
            arguments = attempt_arguments(given, AttemptInputs(given.params))
            env = {**os.environ, **(launch.get("env") or {})}
            yield from find_config_files(launch["command"], str(launch["cwd"]), env, arguments)
