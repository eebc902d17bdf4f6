"""Supervisors as batch jobs of Slurm: handed in by sbatch, watched by their record, which a shared disk holds."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio

from mcp_server.backends.base import GpuState, ListEnded, Record
from mcp_server.backends.local import supervisor_argv
from mcp_server.backends.slurm import batch_script
from mcp_server.backends.slurm.arrays import Element
from mcp_server.errors import HostUnreachable, LaunchFailed, RunwardError, ScreenNotFound
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, now, read_json, write_json
from mcp_server.record.run_processes import REAP_STEP_S, Reaping, ReapResult, RunProcess, ThisHost, name_processes
from mcp_server.record.slurm import array, job, queue
from mcp_server.record.slurm.commands import SlurmError, find_missing
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.slurm.watch import JobWatch, job_of, keep_job
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import LivenessReport, Run
from mcp_server.threads import run_in_thread


class SlurmBackend:
    """Hands runs in to the Slurm of this host, a login node. Slurm chooses nodes and GPUs."""

    leases_gpus = False
    most_in_array = 1000  # Slurm's MaxArraySize is 1001 by default

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
        return job.preview(self._render(spec, Path(spec.run_dir)), list(batch_script.list_options(spec)))

    def create(self, directory: RunDir, spec: RunSpec) -> None:
        """Make the directory with the spec and the batch script.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        job.make_directory(directory, spec.facts(), self._render(spec, directory.path))

    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Hand the job in. The environment waits for it in a file that this user alone can read.

        Raises:
            LaunchFailed: Slurm refused; or it did not answer, so that a job that starts later stops at once.
        """
        del first_event  # it may take days
        try:
            await run_in_thread(job.hand_in, directory, handover, list(batch_script.list_options(spec)))
        except SlurmError as error:
            raise await run_in_thread(job.take_back, directory, error) from error
        await run_in_thread(self._queue(directory).look, queue.EXPECTED_S)

    def preview_array(self, spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs like ``spec``, which need not exist."""
        run_dir, options = Path(spec.run_dir), batch_script.list_shared_options(spec)
        program = supervisor_argv(sys.executable, run_dir)[:-1]
        return array.preview_array(run_dir.parents[1], name, count, options, most_at_once, lambda _: program)

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Hand prepared runs in as one array of jobs, of which Slurm starts at most so many at once.

        Raises:
            LaunchFailed: Slurm refused, and nothing is left of the runs; or it did not answer, as in ``start``.
        """
        first = elements[0]
        home = first.directory.path.parents[1]
        program = supervisor_argv(sys.executable, first.directory.path)[:-1]
        hand_in = partial(
            array.hand_in_array,
            home,
            name,
            [(each.directory, each.handover) for each in elements],
            batch_script.list_shared_options(first.spec),
            most_at_once,
            lambda _: program,
        )
        try:
            await run_in_thread(hand_in)
        except SlurmError as error:
            refusals = [await run_in_thread(job.take_back, each.directory, error) for each in elements]
            raise refusals[0] from error
        except OSError as error:
            for each in elements:
                await self.discard(each.directory, each.spec)
            raise LaunchFailed(f"{home}: {error.strerror}.", "Nothing was started.") from error
        await run_in_thread(self._queue(first.directory).look, queue.EXPECTED_S)

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
            keep_job(directory, job_id)
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
        """Let Slurm send SIGTERM to the supervisor. Returns once the job has left its nodes, or when that is due."""
        departure = await run_in_thread(job.begin_stop, directory, run)
        await _await_departure(departure)
        return departure is not None

    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        """Cancel the job, also one that waits, and verify that it is gone. Its processes here are stopped too."""
        departure = await run_in_thread(job.begin_cancel, directory)
        state = await _await_departure(departure)
        await run_in_thread(self._queue(directory).look, 0)
        here: ReapResult | None = None
        if job.was_started_in(run, self._host.boot_id):
            reaping = Reaping(self._host, directory.path, run)
            while (here := reaping.step()) is None:  # noqa: ASYNC110 - no event announces the end of a process
                await anyio.sleep(REAP_STEP_S)
        return job.describe_reap(run, here, departure.job_id if departure else "", state)

    def find_leftovers(self, run: Run) -> list[RunProcess]:
        """Return what a run left on this host. On other nodes Slurm ends all that a job started."""
        return name_processes(self._host.find_leftovers(run)) if job.was_started_in(run, self._host.boot_id) else []

    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        """Return the end of the newest log, and a line on how the run ended, or why it waits.

        Raises:
            ScreenNotFound: the run was removed.
        """
        directory = RunDir(Path(spec.run_dir))
        if not await run_in_thread(directory.spec.is_file):
            raise ScreenNotFound(f"{directory.run_id} is gone.")
        return await run_in_thread(partial(job.read_screen, directory, history=history))

    def attach_command(self, spec: RunSpec) -> str:
        """Return the command that follows the log: a job has no screen."""
        return job.follow_command(job.newest_log(RunDir(Path(spec.run_dir))))

    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        """Become a program that follows the log."""
        del run
        os.execvp("tail", ["tail", "-n", "10000", "-F", str(job.newest_log(directory))])

    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        """Return nothing: the GPUs are those of nodes that only a job may use."""
        del spec, env, near, query
        return GpuState(Snapshot(), {})

    def fetch_log(self, directory: RunDir, spec: RunSpec, attempt: int) -> Path:
        """Return the log itself."""
        del spec
        return directory.log(attempt)

    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        """Do nothing: a job has no screen."""

    def _render(self, spec: RunSpec, path: Path) -> str:
        return batch_script.render_batch_script(replace(spec, run_dir=str(path)), supervisor_argv(sys.executable, path))

    def _watch(self, directory: RunDir) -> JobWatch:
        home = directory.path.parents[1]
        return self._watches.setdefault(home, JobWatch(Queue(home)))

    def _queue(self, directory: RunDir) -> Queue:
        return self._watch(directory).queue


async def _await_departure(departure: job.Departure | None) -> str:
    """Return empty once a job has left its states, or the state that it has at the end of the time."""
    if departure is None:
        return ""
    while (state := await run_in_thread(departure.step)) is None:  # noqa: ASYNC110 - Slurm announces nothing
        await anyio.sleep(job.DEPARTURE_STEP_S)
    return state
