"""Job arrays: runs that differ in their commands alone become the elements of one job, handed in at once.

Each element is a run like any other, with its own directory. The array's directory names them by index: Slurm gives an
element nothing else to find itself by.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.backends.local import supervisor_argv
from mcp_server.backends.slurm.batch_script import list_shared_options
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.slurm.job import render_script, script_of
from mcp_server.record.spec import RunSpec


@dataclass(frozen=True)
class Element:
    """A run of an array: its directory, its spec, and what is handed over."""

    directory: RunDir
    spec: RunSpec
    handover: Handover


def are_alike(one: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs ask the same of Slurm, so that one script serves both."""
    return list_shared_options(one) == list_shared_options(other)


def list_array_options(spec: RunSpec, path: Path, count: int, most_at_once: int | None) -> dict[str, str]:
    """Return all options of an array of ``count`` runs like ``spec``, whose directory is ``path``."""
    own = str(path).replace("%", "%%")
    limit = f"%{most_at_once}" if most_at_once else ""
    return {
        "job-name": path.name,
        "chdir": str(path),
        "output": f"{own}/%a/slurm.out",
        "array": f"0-{count - 1}{limit}",
        **list_shared_options(spec),
    }


def render_array_script(options: Mapping[str, str], path: Path, supervisor: Sequence[str]) -> str:
    """Return the batch script of an array; ``supervisor`` starts that of any run of its state directory."""
    program = shlex.join(supervisor[:-1])
    return render_script(options, f'{program} "$(readlink {shlex.quote(str(path))}/"$SLURM_ARRAY_TASK_ID")"')


def preview_array(spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
    """Return the batch script of an array of ``count`` runs like ``spec``, which need not exist."""
    run_dir = Path(spec.run_dir)
    path = array_directory(run_dir.parents[1], name)
    options = list_array_options(spec, path, count, most_at_once)
    return render_array_script(options, path, supervisor_argv(sys.executable, run_dir))


def array_directory(home: Path, name: str) -> Path:
    """Return the directory of an array of this name, in the state directory."""
    return home / "slurm" / "arrays" / name


def make_array(home: Path, name: str, elements: Sequence[Element]) -> Path:
    """Make the directory of an array, with a link to each run by its index, and return it.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    path, number = array_directory(home, name), 1
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while path.exists():
        number += 1
        path = array_directory(home, f"{name}-{number}")
    path.mkdir(mode=0o700)
    try:
        for index, element in enumerate(elements):
            (path / str(index)).symlink_to(element.directory.path)
            script = script_of(element.directory.path)
            script.unlink(missing_ok=True)
            script.symlink_to(script_of(path))
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path
