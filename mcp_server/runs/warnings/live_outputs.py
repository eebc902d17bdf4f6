"""Directories and files that a launch writes into while another live run does, or where a former run left its files.

Only what both name counts: the same absolute path, by commands that give their runs no names of their own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from mcp_server.command.outputs import RUN_NAMES, find_in_command, list_redirected
from mcp_server.command.shell import leave_out_helpers, parse
from mcp_server.record.results.result_directory import EXPERIMENT_LOG, FINISH_FLAG
from mcp_server.record.spec import RunSpec

_NAMES = (*RUN_NAMES, "name", "version", "trial")
# What makes a path, or a name below it, one of a run alone.
_OWN = ("{run_id}", "RUNWARD_RUN_ID", "$(date", "`date", "${now", "{attempt}")
_MOST_NAMED = 3
_MOST_FORMER = 300  # the newest ended runs, whose commands are read
_RESUMES = re.compile(r"resum|--?continue\b|load_checkpoint", re.IGNORECASE)
_OF_RUNWARD = (EXPERIMENT_LOG, FINISH_FLAG)


def warn_of_shared_outputs(spec: RunSpec, live: Iterable[RunSpec]) -> list[str]:
    """Return a warning for each live run of the same host that writes where ``spec`` does, at most three."""
    own = _list_outputs(spec)
    warnings = []
    for other in live if own else ():
        if other.run_id == spec.run_id or other.mirror != spec.mirror or _list_names(spec) != _list_names(other):
            continue
        shared = [path for path in own if path in _list_outputs(other)]
        if shared:
            warnings.append(
                f"{other.run_id} is live and writes to {shared[0]} too: their files may mix. Put {{run_id}} into that "
                "path."
            )
    return warnings[:_MOST_NAMED]


def warn_of_former_outputs(spec: RunSpec, list_ended: Callable[[int], Iterable[RunSpec]]) -> list[str]:
    """Return a warning that names the newest ended run with files where ``spec`` writes, unless it resumes."""
    own = [
        path for path in (*_list_outputs(spec), *([spec.result_dir] if spec.result_dir else [])) if _holds_files(path)
    ]
    if not own or spec.mirror or _RESUMES.search(json.dumps([spec.command, spec.params], default=str)):
        return []
    for other in map(_as_it_ran, list_ended(_MOST_FORMER)):
        if other.run_id == spec.run_id or _list_names(spec) != _list_names(other):
            continue
        theirs = {*_list_outputs(other), other.result_dir}
        if (path := next((path for path in own if path in theirs), None)) is not None:
            return [
                f"The files of {other.run_id}, which has ended, lie in {path}: this run may overwrite its evaluations "
                "and checkpoints. Put {run_id} into that path, or name another."
            ]
    return []


def _as_it_ran(spec: RunSpec) -> RunSpec:
    """Return a spec with its own id in place of ``{run_id}``: so a later launch names its files."""
    facts = {"command": spec.command, "params": spec.params, "env": spec.env, "tensorboard": spec.tensorboard}
    text = json.dumps(facts, default=str)
    return replace(spec, **json.loads(text.replace("{run_id}", spec.run_id))) if "{run_id}" in text else spec


def _holds_files(path: str) -> bool:
    """Return whether a path is a file, or a directory with any entry but those that runward writes."""
    try:
        with os.scandir(path) as entries:
            return any(entry.name not in _OF_RUNWARD for entry in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _list_outputs(spec: RunSpec) -> list[str]:
    spec = replace(spec, command=leave_out_helpers(spec.command))
    text = json.dumps([spec.command, spec.params, spec.env], default=str)
    if any(mark in text for mark in _OWN):
        return []
    named = find_in_command(spec.command, spec.cwd, spec.params)
    paths = [*named, *list_redirected(spec.command, spec.cwd), *([spec.tensorboard] if spec.tensorboard else [])]
    return [path for path in dict.fromkeys(paths) if path not in (spec.cwd, os.path.expanduser("~"))]  # noqa: PTH111


def _list_names(spec: RunSpec) -> list[tuple[str, str]]:
    settings = {**parse(spec.command).split_options()[0], **spec.params}
    return sorted(
        (name, str(value))
        for name, value in settings.items()
        if name.lstrip("+-~").rpartition(".")[2].replace("-", "_").lower() in _NAMES
    )
