"""Job arrays: runs that differ in their commands alone become the elements of one job, handed in at once.

Each element is a run like any other, with its own directory. The array's directory names them by index: Slurm gives an
element nothing else to find itself by.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, write_json
from mcp_server.record.slurm.commands import SlurmError, is_unsure, submit
from mcp_server.record.slurm.job import keep_handover, render_script, script_of, taken_back
from mcp_server.record.slurm.job_watch import keep_job
from mcp_server.system.files import write_atomic


def hand_in_array(
    home: Path,
    name: str,
    elements: Sequence[tuple[RunDir, Handover]],
    shared_options: Mapping[str, str],
    most_at_once: int | None,
    find_program: Callable[[Path], Sequence[str]],
) -> None:
    """Hand prepared runs in as one job, of which Slurm starts at most so many at once.

    ``find_program`` returns what runs the supervisor of any run of ``home``, for the directory of the array.

    Raises:
        LaunchFailed: Slurm refused, and nothing is left of the runs; or it did not answer, see ``job.take_back``.
    """
    directories = [directory for directory, _ in elements]
    with taken_back(directories):
        path = _make_array(home, name, directories)
        try:
            options = _list_options(path, len(elements), shared_options, most_at_once)
            write_atomic(script_of(path), _render(options, path, find_program(path)).encode())
            for index, (directory, handover) in enumerate(elements):  # found by this if this host dies now
                write_json(directory.job, {"array": path.name, "index": index})
                keep_handover(directory, handover)
            job_id = submit(script_of(path), list(options))
        except (SlurmError, OSError) as error:
            if not (isinstance(error, SlurmError) and is_unsure(error)):
                shutil.rmtree(path, ignore_errors=True)
            raise
    for index, (directory, _) in enumerate(elements):
        keep_job(directory, f"{job_id}_{index}")


def preview_array(
    home: Path,
    name: str,
    count: int,
    shared_options: Mapping[str, str],
    most_at_once: int | None,
    find_program: Callable[[Path], Sequence[str]],
) -> str:
    """Return the batch script of an array of ``count`` runs, which need not exist."""
    path = _array_directory(home, name)
    return _render(_list_options(path, count, shared_options, most_at_once), path, find_program(path))


def _list_options(
    path: Path, count: int, shared_options: Mapping[str, str], most_at_once: int | None
) -> dict[str, str]:
    own = str(path).replace("%", "%%")
    limit = f"%{most_at_once}" if most_at_once else ""
    return {
        "job-name": path.name,
        "chdir": str(path),
        "output": f"{own}/%a/slurm.out",
        "array": f"0-{count - 1}{limit}",
        **shared_options,
    }


def _render(options: Mapping[str, str], path: Path, program: Sequence[str]) -> str:
    run_dir = f'"$(readlink {shlex.quote(str(path))}/"$SLURM_ARRAY_TASK_ID")"'
    return render_script(options, f"{shlex.join(program)} {run_dir}")


def _array_directory(home: Path, name: str) -> Path:
    return home / "slurm" / "arrays" / name


def _make_array(home: Path, name: str, directories: Sequence[RunDir]) -> Path:
    """Make the directory of an array, with a link to each run by its index, and return it."""
    path, number = _array_directory(home, name), 1
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while path.exists():
        number += 1
        path = _array_directory(home, f"{name}-{number}")
    path.mkdir(mode=0o700)
    try:
        for index, directory in enumerate(directories):
            (path / str(index)).symlink_to(directory.path)
            script = script_of(directory.path)
            script.unlink(missing_ok=True)
            script.symlink_to(script_of(path))
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path
