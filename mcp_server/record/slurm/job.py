"""A run's job on a login node: handing it in at most once, stopping it, and showing its output.

Job arrays: runs that differ in their commands alone become the elements of one job, handed in at once.

Each element is a run like any other, with its own directory. The array's directory names them by index: Slurm gives an
element nothing else to find itself by.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.errors import LaunchFailed, RunwardError
from mcp_server.record.events import ENDING, read_events
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, forbid_launch, write_json
from mcp_server.record.run_processes import ReapResult, RunProcess
from mcp_server.record.slurm.commands import SlurmError, ask_controller, estimate, is_unsure, run_program, submit
from mcp_server.record.slurm.job_states import HELD, WAITING
from mcp_server.record.slurm.job_watch import expected_name, has_end, job_of, keep_job
from mcp_server.record.state import Run
from mcp_server.system.files import open_private, read_end, whole_directory, write_atomic

DEPARTURE_STEP_S = 0.5
_GONE_WITHIN_S = 120.0  # KillWait, and the epilogue of the site
_STOP_S = 5.0  # of a supervisor, beside the grace of two signals
_ON_NODES = HELD - {"COMPLETING"}
_ROWS = 50  # of a screen
_SCREEN_BYTES = 2**20
_SIMPLE = re.compile(r"[\w@%+=:,./\[\]*&|()<>!~^-]+")


# --- the batch script


def list_place_options(run_id: str, path: Path) -> dict[str, str]:
    """Return the options of a job that say which run it is, and where its directory is."""
    output = f"{path}/slurm.out".replace("%", "%%")
    return {"job-name": run_id, "chdir": str(path), "output": output}


def render_script(options: Mapping[str, str], program: str) -> str:
    """Return a batch script with ``options``, whose process becomes ``program``, as a shell writes it.

    It holds neither environment nor secret.
    """
    lines = [f"#SBATCH --{name}={_quote(value)}" if value else f"#SBATCH --{name}" for name, value in options.items()]
    return "\n".join(["#!/bin/bash", *lines, f"exec {program}", ""])


def preview(script: str, named: Sequence[str]) -> str:
    """Return a batch script with Slurm's estimate of its start, or raise LaunchFailed. ``named``: its options."""
    with tempfile.TemporaryDirectory() as directory:
        path = script_of(Path(directory))
        path.write_text(script)
        try:
            text = estimate(path, named)
        except SlurmError as error:
            raise _refusal(error) from error
    return f"{script}# Slurm: {text}\n"


def script_of(directory: Path) -> Path:
    """Return where a run's batch script is."""
    return directory / "batch.sh"


def _quote(value: str) -> str:
    return value if _SIMPLE.fullmatch(value) else f'"{value}"'


# --- handing in


def make_directory(
    directory: RunDir, facts: Mapping[str, Any], script: str, files: Mapping[str, Path] | None = None
) -> None:
    """Make a run's directory appear whole, with its spec, its batch script, and ``files`` by their names in it."""
    with whole_directory(directory.path, anew=True) as own:
        with open(script_of(own), "w", opener=open_private) as file:
            file.write(script)
        for name, path in (files or {}).items():
            link_or_copy(path, own / name)
        new = RunDir(own)
        write_json(new.spec, dict(facts))
        write_json(new.job, {"prepared_s": time.time()})  # by the clock of this host, not of the launcher's


def link_or_copy(path: Path, copy: Path) -> None:
    """Make ``copy`` a file of the same content."""
    try:
        os.link(path, copy)
    except OSError:  # a file system without links, or with too many of this file
        shutil.copyfile(path, copy)


def keep_handover(directory: RunDir, handover: Handover) -> None:
    """Keep the environment for the job in a file that this user alone can read."""
    with open(directory.handover, "wb", opener=open_private) as file:
        file.write(handover.encode())
        os.fsync(file.fileno())


def hand_in(directory: RunDir, handover: Handover, named: Sequence[str]) -> None:
    """Hand a prepared run in.

    Raises:
        LaunchFailed: Slurm refused it, and nothing is left; or did not answer, so that a job that starts later stops.
    """
    with taken_back([directory]):
        keep_handover(directory, handover)
        job_id = submit(script_of(directory.path), named)
    with contextlib.suppress(OSError):  # else it is found by its name
        keep_job(directory, job_id)


@contextlib.contextmanager
def taken_back(directories: Sequence[RunDir]) -> Iterator[None]:
    """Take prepared runs back where the block does not hand them in.

    Raises:
        LaunchFailed: the refusal of the first. Where Slurm did not answer, their jobs may be there all the same.
    """
    try:
        yield
    except SlurmError as error:
        refusals = [_take_back(directory, error) for directory in directories]
        raise refusals[0] from error
    except OSError as error:
        for directory in directories:
            shutil.rmtree(directory.path, ignore_errors=True)
        home = directories[0].path.parents[1]
        raise LaunchFailed(f"{home}: {error.strerror}.", "Nothing was started.") from error


def _take_back(directory: RunDir, error: SlurmError) -> LaunchFailed:
    if is_unsure(error):
        with contextlib.suppress(OSError):
            forbid_launch(directory, "sbatch did not answer")
        return LaunchFailed(
            f"{error.cause} Whether {directory.run_id} was handed in is unknown.",
            "If its job starts later, it stops at once.",
            f"A person can look with: squeue --me --name={directory.run_id}",
        )
    shutil.rmtree(directory.path, ignore_errors=True)
    return _refusal(error)


def _refusal(error: SlurmError) -> LaunchFailed:
    return LaunchFailed(
        f"Slurm: {error.cause}",
        "Nothing was started.",
        "sinfo shows partitions; backend_options names what it asks for.",
    )


# --- stopping


class Departure:
    """Waits for a job to leave some states. Call ``step`` every ``DEPARTURE_STEP_S`` until it returns a text."""

    def __init__(self, directory: RunDir, job_id: str, states: frozenset[str], longest_s: float) -> None:
        self.job_id = job_id
        self._directory, self._states = directory, states
        self._give_up_s = time.monotonic() + longest_s

    def step(self) -> str | None:
        """Return empty once the job has left, or the state that it still has at the end of the time.

        While Slurm does not answer, an end in the record is the job's.
        """
        try:
            state = ask_controller(self.job_id).state
        except SlurmError:
            state = "" if has_end(self._directory) else "unknown"
        if state not in self._states | {"unknown"}:
            return ""
        return state if time.monotonic() >= self._give_up_s else None


def begin_stop(directory: RunDir, run: Run) -> Departure | None:
    """Let Slurm send SIGTERM to the batch step, which is the supervisor: it then reads ``stop.json``.

    The departure takes as long as a supervisor at most. None: the job has no nodes, Slurm does not answer, or another
    job has its number: nothing was signalled, and a supervisor that lives reads ``stop.json`` by itself.
    """
    job_id = job_of(directory)
    try:
        # scancel is content with a job that has ended.
        if not job_id or _describe_own_job(directory, job_id) not in _ON_NODES:
            return None
        run_program(["scancel", "--batch", "--signal=TERM", job_id])
    except RunwardError:
        return None
    return Departure(directory, job_id, _ON_NODES, 2 * run.spec.stop_grace_s + _STOP_S)


def begin_cancel(directory: RunDir) -> Departure | None:
    """Cancel the job of a run, also one that waits. None: it has no job.

    Raises:
        RunwardError: another job has its number, or its name; nothing was cancelled.
    """
    job_id = job_of(directory)
    if not job_id:
        return None
    with contextlib.suppress(SlurmError):  # it may be gone already: that is looked at next
        _describe_own_job(directory, job_id)
        run_program(["scancel", job_id])
    return Departure(directory, job_id, WAITING | HELD, _GONE_WITHIN_S)


def describe_reap(run: Run, here: ReapResult | None, job_id: str, state: str) -> ReapResult:
    """Return the result of a cancelled job. ``here``: what of it was on this host; ``state``: that it still has."""
    survivors = here.survivors if here else ()
    if state:
        survivors = (*survivors, RunProcess(0, f"job {job_id} ({state})"))
    was_started = run.started_at is not None
    return ReapResult(here.signals_sent if here else (), survivors, unsupervised=was_started and run.abandoned)


def was_started_in(run: Run, boot_id: str) -> bool:
    """Return whether the run's newest supervisor was on the host of this boot."""
    return bool(run.at_start.get("boot_id")) and run.at_start["boot_id"] == boot_id


def _describe_own_job(directory: RunDir, job_id: str) -> str:
    """Return the state of a run's job."""
    job, name = ask_controller(job_id), expected_name(directory, job_id)
    if job.is_other(name):
        raise RunwardError(
            f"Slurm's job {job_id} is called {job.name[:60]!r}, not {name}: another job has the number, or it was "
            "renamed.",
            "It was left alone.",
            f"A person can look with: scontrol show job {job_id}",
        )
    return job.state


# --- its output


def read_screen(directory: RunDir, *, history: bool) -> list[str]:
    """Return the end of the newest log, and a line on how the run ended, or that it has no output yet."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = read_end(newest_log(directory), _SCREEN_BYTES).decode(errors="replace").splitlines()
    last = next(iter(read_events(directory.events)[-1:]), None)
    if last is not None and last["kind"] in ENDING:
        lines += ["", f"[runward] {directory.run_id} {last.get('text', '')}"]
    elif not lines:
        lines = [f"[runward] job {job_of(directory)} of {directory.run_id} has no output yet."]
    return lines if history else lines[-_ROWS:]


def newest_log(directory: RunDir) -> Path:
    """Return the log of the newest attempt, which may not exist yet."""
    return directory.log(directory.newest_attempt() or 1)


def follow_command(log: Path) -> str:
    """Return the shell command that follows a log: a job has no screen."""
    return f"tail -n 200 -F {shlex.quote(str(log))}"


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
