"""Supervisors as batch jobs of Slurm: handed in by sbatch, watched by their record, which a shared disk holds."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import anyio

from mcp_server.backends.base import GpuState, Record
from mcp_server.backends.local import supervisor_argv
from mcp_server.backends.slurm import batch_script
from mcp_server.backends.slurm.arrays import Element, list_array_options, make_array, render_array_script
from mcp_server.backends.slurm.batch_script import script_of
from mcp_server.errors import HostUnreachable, LaunchFailed, RunwardError, ScreenNotFound
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.events import ENDING, read_events
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, now, read_json, write_json
from mcp_server.record.run_processes import REAP_STEP_S, Reaping, ReapResult, RunProcess, ThisHost, name_processes
from mcp_server.record.slurm import queue
from mcp_server.record.slurm.commands import (
    SlurmError,
    describe_job,
    estimate,
    find_missing,
    is_unsure,
    run_program,
    submit,
)
from mcp_server.record.slurm.job_states import HELD, WAITING
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.slurm.watch import JobWatch, expected_name, has_end
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import LivenessReport, Run
from mcp_server.system.files import open_private, write_atomic
from mcp_server.threads import run_in_thread

_ROWS = 50  # of a screen
_SCREEN_BYTES = 2**20
_GONE_WITHIN_S = 120.0  # KillWait, and the epilogue of the site
_GONE_STEP_S = 0.5
_STOP_S = 5.0  # of a supervisor, beside the grace of two signals
_JOB_ID = re.compile(r"[0-9]{1,20}(?:_[0-9]{1,10})?")
_ON_NODES = HELD - {"COMPLETING"}


class SlurmBackend:
    """Hands runs in to the Slurm of this host, a login node. Slurm chooses nodes and GPUs."""

    leases_gpus = False

    def __init__(self) -> None:
        self._host = ThisHost()
        self._watches: dict[Path, JobWatch] = {}

    def check_request(self, request: LaunchRequest) -> None:
        """Check the options, and that GPUs are a count.

        Raises:
            BadArgument: see ``batch_script.check_request``.
        """
        batch_script.check_request(request)

    def check_usable(self) -> None:
        """Check that the programs of Slurm are installed.

        Raises:
            RunwardError: some are not.
        """
        if missing := find_missing():
            raise RunwardError(
                f"Slurm is not here: {', '.join(missing)} not found.",
                "Nothing was started.",
                "A person should run the server on a login node of the cluster, with Slurm's programs in its PATH.",
            )

    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        """Return the spec as it is: the job's name is the run's id, and it has no session."""
        del environ
        return spec

    def preview(self, spec: RunSpec) -> str:
        """Return the batch script, with Slurm's estimate of the start.

        Raises:
            LaunchFailed: Slurm would refuse it.
        """
        script = self._render(spec, Path(spec.run_dir))
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "batch.sh"
            path.write_text(script)
            try:
                text = estimate(path, list(batch_script.list_options(spec)))
            except SlurmError as error:
                raise _refusal(error) from error
        return f"{script}# Slurm: {text}\n"

    def create(self, directory: RunDir, spec: RunSpec) -> None:
        """Make the directory with the spec and the batch script.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        new = RunDir(directory.path.with_name(f".new-{spec.run_id}"))
        new.path.mkdir(mode=0o700)
        try:
            with open(script_of(new.path), "w", opener=open_private) as file:
                file.write(self._render(spec, directory.path))
            write_json(new.spec, spec.facts())
            new.path.rename(directory.path)
        except OSError:
            shutil.rmtree(new.path, ignore_errors=True)
            raise

    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Hand the job in. The environment waits for it in a file that this user alone can read.

        Raises:
            LaunchFailed: Slurm refused; or it did not answer, so that a job that starts later stops at once.
        """
        del first_event  # it may take days
        try:
            await run_in_thread(self._hand_in, directory, spec, handover)
        except SlurmError as error:
            raise await run_in_thread(self._take_back, directory, spec, error) from error
        await run_in_thread(self._queue(directory).look, queue.EXPECTED_S)

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Hand prepared runs in as one array of jobs, of which Slurm starts at most so many at once.

        Raises:
            LaunchFailed: Slurm refused, and nothing is left of the runs; or it did not answer, as in ``start``.
        """
        home = elements[0].directory.path.parents[1]
        try:
            await run_in_thread(self._hand_in_array, home, elements, name, most_at_once)
        except SlurmError as error:
            refusals = [await run_in_thread(self._take_back, each.directory, each.spec, error) for each in elements]
            raise refusals[0] from error
        except OSError as error:
            for each in elements:
                await self.discard(each.directory, each.spec)
            raise LaunchFailed(f"{home}: {error.strerror}.", "Nothing was started.") from error
        await run_in_thread(self._queue(elements[0].directory).look, queue.EXPECTED_S)

    def _hand_in_array(self, home: Path, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        path = make_array(home, name, elements)
        try:
            options = list_array_options(elements[0].spec, path, len(elements), most_at_once)
            script = render_array_script(options, path, supervisor_argv(sys.executable, elements[0].directory.path))
            write_atomic(script_of(path), script.encode())
            for index, each in enumerate(elements):  # found by this if this host dies now
                write_json(each.directory.job, {"array": path.name, "index": index})
                _keep_handover(each.directory, each.handover)
            job_id = submit(script_of(path), list(options))
        except (SlurmError, OSError) as error:
            if not _is_unknown(error):
                shutil.rmtree(path, ignore_errors=True)
            raise
        for index, each in enumerate(elements):
            _keep_job(each.directory, f"{job_id}_{index}", path.name)

    def _hand_in(self, directory: RunDir, spec: RunSpec, handover: Handover) -> None:
        _keep_handover(directory, handover)
        named = list(batch_script.list_options(spec))
        _keep_job(directory, submit(script_of(directory.path), named))

    def _take_back(self, directory: RunDir, spec: RunSpec, error: SlurmError) -> LaunchFailed:
        """Return the refusal of a launch. Where Slurm did not answer, its job may be there all the same."""
        if _is_unknown(error):
            with contextlib.suppress(OSError):
                write_json(directory.stop, {"by": "launch_run", "reason": "sbatch did not answer", "at": now()})
            return LaunchFailed(
                f"{error.cause} Whether {spec.run_id} was handed in is unknown.",
                "If its job starts later, it stops at once.",
                f"A person can look with: squeue --me --name={spec.run_id}",
            )
        shutil.rmtree(directory.path, ignore_errors=True)
        return _refusal(error)

    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove the directory of a refused launch."""
        del spec
        await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)

    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
        """Return whether its job was handed in, else leave a stop request for one that starts late.

        Raises:
            HostUnreachable: Slurm does not answer, so nobody knows.
        """
        return await run_in_thread(self._settle, directory, spec)

    def _settle(self, directory: RunDir, spec: RunSpec) -> bool:
        if job_of(directory):
            return True
        snapshot = self._queue(directory).look(0)
        if snapshot.error:
            raise HostUnreachable("Slurm", snapshot.error, "Nothing was started.")
        if job_id := snapshot.find_job(spec.run_id, read_json(directory.job) or {}):
            _keep_job(directory, job_id)
            return True
        write_json(directory.stop, {"by": "launch_run", "reason": "launched again with the same key", "at": now()})
        return False

    def open_record(self, directory: RunDir) -> Record:
        """Return the directory itself, on a disk that the nodes share."""
        return Record(directory)

    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return what the record and Slurm say together: see ``job_states.judge``."""
        return self._watch(directory).liveness(directory, spec)

    def check_stoppable(self, spec: RunSpec) -> None:
        """Check that Slurm's programs are here.

        Raises:
            RunwardError: they are not.
        """
        del spec
        self.check_usable()

    def put_stop_request(self, directory: RunDir, spec: RunSpec, request: Mapping[str, Any] | None) -> None:
        """Write or remove ``stop.json``.

        Raises:
            OSError: it cannot be written.
        """
        del spec
        if request is None:
            directory.stop.unlink(missing_ok=True)
        else:
            write_json(directory.stop, dict(request))

    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        """Let Slurm send SIGTERM to the batch step, which is the supervisor: it then reads ``stop.json``.

        Returns once the job has left its nodes, or after the time that a supervisor takes at most.
        """
        job_id = job_of(directory)
        try:
            # scancel is content with a job that has ended.
            if not job_id or await run_in_thread(_describe_own_job, directory, job_id) not in _ON_NODES:
                return False
            await run_in_thread(run_program, ["scancel", "--batch", "--signal=TERM", job_id])
        except SlurmError:
            return False
        await self._await_end(directory, job_id, 2 * run.spec.stop_grace_s + _STOP_S, _ON_NODES)
        return True

    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        """Cancel the job, also one that waits, and verify that it is gone. What it left on this host is stopped too."""
        job_id, state = job_of(directory), ""
        if job_id:
            with contextlib.suppress(SlurmError):  # it may be gone already: that is looked at next
                await run_in_thread(_describe_own_job, directory, job_id)
                await run_in_thread(run_program, ["scancel", job_id])
            state = await self._await_end(directory, job_id, _GONE_WITHIN_S, WAITING | HELD)
        await run_in_thread(self._queue(directory).look, 0)
        sent: tuple[str, ...] = ()
        survivors: tuple[RunProcess, ...] = ()
        if self._is_here(run):
            reaping = Reaping(self._host, directory.path, run)
            while (result := reaping.step()) is None:  # noqa: ASYNC110 - no event announces the end of a process
                await anyio.sleep(REAP_STEP_S)
            sent, survivors = result.signals_sent, result.survivors
        if state:
            survivors = (*survivors, RunProcess(0, f"job {job_id} ({state})"))
        was_started = run.started_at is not None
        return ReapResult(sent, survivors, unsupervised=was_started and run.abandoned)

    async def _await_end(self, directory: RunDir, job_id: str, longest_s: float, states: frozenset[str]) -> str:
        """Return empty once a job has left ``states``, or the state that it has after ``longest_s``.

        While Slurm does not answer, an end in the record is the job's.
        """
        state = "unknown"
        with anyio.move_on_after(longest_s):
            while True:
                try:
                    state = (await run_in_thread(describe_job, job_id)).state
                except SlurmError:
                    state = "" if await run_in_thread(has_end, directory) else "unknown"
                if state not in states | {"unknown"}:
                    return ""
                await anyio.sleep(_GONE_STEP_S)
        return state

    def find_leftovers(self, run: Run) -> list[RunProcess]:
        """Return what a run left on this host. On other nodes Slurm ends all that a job started."""
        return name_processes(self._host.find_leftovers(run)) if self._is_here(run) else []

    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        """Return the end of the newest log, and a line on how the run ended, or why it waits.

        Raises:
            ScreenNotFound: the run was removed.
        """
        return await run_in_thread(self._read_screen, RunDir(Path(spec.run_dir)), history=history)

    def _read_screen(self, directory: RunDir, *, history: bool) -> list[str]:
        if not directory.spec.is_file():
            raise ScreenNotFound(f"{directory.run_id} is gone.")
        lines: list[str] = []
        with contextlib.suppress(OSError), _newest_log(directory).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SCREEN_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        last = next(iter(read_events(directory.events)[-1:]), None)
        if last is not None and last["kind"] in ENDING:
            lines += ["", f"[runward] {directory.run_id} {last.get('text', '')}"]
        elif not lines:
            lines = [f"[runward] job {job_of(directory)} of {directory.run_id} has no output yet."]
        return lines if history else lines[-_ROWS:]

    def attach_command(self, spec: RunSpec) -> str:
        """Return the command that follows the log: a job has no screen."""
        return f"tail -n 200 -F {shlex.quote(str(_newest_log(RunDir(Path(spec.run_dir)))))}"

    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        """Become a program that follows the log."""
        del run
        os.execvp("tail", ["tail", "-n", "10000", "-F", str(_newest_log(directory))])

    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        """Return nothing: the GPUs are those of nodes that only a job may use."""
        del spec, env, near, query
        return GpuState(Snapshot(), {})

    def fetch_log(self, directory: RunDir, spec: RunSpec, attempt: int) -> Path:
        """Return the log itself."""
        del spec
        return directory.log(attempt)

    async def close_old_screens(self, spec: RunSpec, keep: int, ended: Callable[[], Sequence[RunSpec]]) -> None:
        """Do nothing: a job has no screen."""

    def _render(self, spec: RunSpec, path: Path) -> str:
        return batch_script.render_batch_script(replace(spec, run_dir=str(path)), supervisor_argv(sys.executable, path))

    def _is_here(self, run: Run) -> bool:
        """Return whether the run's newest supervisor was on this host, in this boot."""
        return bool(run.at_start.get("boot_id")) and run.at_start["boot_id"] == self._host.boot_id

    def _watch(self, directory: RunDir) -> JobWatch:
        home = directory.path.parents[1]
        return self._watches.setdefault(home, JobWatch(Queue(home)))

    def _queue(self, directory: RunDir) -> Queue:
        return self._watch(directory).queue


def job_of(directory: RunDir) -> str:
    """Return the id of the run's job, empty where none was handed in."""
    job_id = str((read_json(directory.job) or {}).get("job_id", ""))
    return job_id if _JOB_ID.fullmatch(job_id) else ""  # a run may write this file, and scancel takes options


def _describe_own_job(directory: RunDir, job_id: str) -> str:
    """Return the state of a run's job.

    Raises:
        RunwardError: another job has its number, or its name; nothing was signalled.
        SlurmError: Slurm does not answer.
    """
    job, name = describe_job(job_id), expected_name(directory, read_json(directory.job) or {})
    if job.is_other(name):
        raise RunwardError(
            f"Slurm's job {job_id} is called {job.name[:60]!r}, not {name}: another job has the number, or it was "
            "renamed.",
            "It was left alone.",
            f"A person can look with: scontrol show job {job_id}",
        )
    return job.state


def _keep_job(directory: RunDir, job_id: str, name: str = "") -> None:
    facts = {"job_id": job_id, "submitted_at": now(), "submitted_s": time.time(), "name": name or directory.run_id}
    write_json(directory.job, facts)


def _keep_handover(directory: RunDir, handover: Handover) -> None:
    with open(directory.handover, "wb", opener=open_private) as file:
        file.write(handover.encode())
        os.fsync(file.fileno())


def _is_unknown(error: Exception) -> bool:
    """Return whether Slurm may have taken a job all the same."""
    return isinstance(error, SlurmError) and is_unsure(error)


def _refusal(error: SlurmError) -> LaunchFailed:
    return LaunchFailed(
        f"Slurm: {error.cause}",
        "Nothing was started.",
        "sinfo shows partitions; backend_options names what it asks for.",
    )


def _newest_log(directory: RunDir) -> Path:
    attempts = [1]
    with contextlib.suppress(OSError):
        attempts += [int(path.name) for path in directory.attempt(1).parent.iterdir() if path.name.isdigit()]
    return directory.log(max(attempts))
