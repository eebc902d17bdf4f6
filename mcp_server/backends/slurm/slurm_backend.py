"""Supervisors as batch jobs of Slurm: handed in by sbatch, watched by their record, which a shared disk holds."""

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
from typing_extensions import override

from mcp_server.backends.base import Backend, ListEnded, ScheduledGpus
from mcp_server.backends.local import DISCARDED_WITHIN_S, supervisor_argv
from mcp_server.backends.slurm import batch_script
from mcp_server.backends.slurm.batch_script import Element
from mcp_server.errors import HostUnreachable, RunwardError, ScreenNotFound
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import LAUNCHED_AGAIN, RunDir, forbid_launch, read_json
from mcp_server.record.run_processes import REAP_STEP_S, Reaping, ReapResult, RunProcess, ThisHost, name_processes
from mcp_server.record.slurm import job, queue
from mcp_server.record.slurm.commands import find_missing
from mcp_server.record.slurm.job_watch import JobWatch, job_of, keep_job
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import LivenessReport, Run
from mcp_server.threads import run_in_thread


class SlurmBackend(ScheduledGpus, Backend):
    """Hands runs in to the Slurm of this host, a login node. Slurm chooses nodes and GPUs."""

    most_in_array = 1000  # Slurm's MaxArraySize is 1001 by default

    def __init__(self) -> None:
        self._host = ThisHost()
        self._watches: dict[Path, JobWatch] = {}

    @override
    def check_request(self, request: LaunchRequest) -> None:
        batch_script.check_request(request)

    @override
    def check_usable(self) -> None:
        if missing := find_missing():
            raise RunwardError(
                f"Slurm is not here: {', '.join(missing)} not found.",
                "Nothing was started.",
                "A person should run the server on a login node of the cluster, with Slurm's programs in its PATH.",
            )

    @override
    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        del environ
        return spec

    @override
    def preview(self, spec: RunSpec) -> str:
        return job.preview(self._render(spec, Path(spec.run_dir)), list(batch_script.list_options(spec)))

    @override
    def create(self, directory: RunDir, spec: RunSpec) -> None:
        job.make_directory(directory, spec.facts(), self._render(spec, directory.path))

    @override
    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        del first_event  # it may take days
        await run_in_thread(job.hand_in, directory, handover, list(batch_script.list_options(spec)))
        await run_in_thread(self._queue(directory).look, queue.EXPECTED_S)

    def preview_array(self, spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs like ``spec``, which need not exist."""
        run_dir, options = Path(spec.run_dir), batch_script.list_shared_options(spec)
        program = supervisor_argv(sys.executable, run_dir)[:-1]
        return job.preview_array(run_dir.parents[1], name, count, options, most_at_once, lambda _: program)

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Hand prepared runs in as one array of jobs, of which Slurm starts at most so many at once."""
        first, runs = elements[0], [(each.directory, each.handover) for each in elements]
        home, options = first.directory.path.parents[1], batch_script.list_shared_options(first.spec)
        program = supervisor_argv(sys.executable, first.directory.path)[:-1]
        await run_in_thread(job.hand_in_array, home, name, runs, options, most_at_once, lambda _: program)
        await run_in_thread(self._queue(first.directory).look, queue.EXPECTED_S)

    @override
    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        del spec
        with anyio.move_on_after(DISCARDED_WITHIN_S):
            while await run_in_thread(directory.path.exists):  # a job that has begun writes there
                await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)

    @override
    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
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
        forbid_launch(directory, LAUNCHED_AGAIN)
        return False

    @override
    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        return self._watch(directory).liveness(directory, spec)

    @override
    def check_stoppable(self, spec: RunSpec) -> None:
        del spec
        self.check_usable()

    @override
    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        """Let Slurm send SIGTERM to the supervisor. Returns once the job has left its nodes, or when that is due."""
        departure = await run_in_thread(job.begin_stop, directory, run)
        await _await_departure(departure)
        return departure is not None

    @override
    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        departure = await run_in_thread(job.begin_cancel, directory)
        state = await _await_departure(departure)
        await run_in_thread(self._queue(directory).look, 0)
        here: ReapResult | None = None
        if job.was_started_in(run, self._host.boot_id):
            reaping = Reaping(self._host, directory.path, run)
            while (here := reaping.step()) is None:  # noqa: ASYNC110 - no event announces the end of a process
                await anyio.sleep(REAP_STEP_S)
        return job.describe_reap(run, here, departure.job_id if departure else "", state)

    @override
    def find_leftovers(self, run: Run) -> list[RunProcess]:
        return name_processes(self._host.find_leftovers(run)) if job.was_started_in(run, self._host.boot_id) else []

    @override
    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        directory = RunDir(Path(spec.run_dir))
        if not await run_in_thread(directory.spec.is_file):
            raise ScreenNotFound(f"{directory.run_id} is gone.")
        return await run_in_thread(partial(job.read_screen, directory, history=history))

    @override
    def attach_command(self, spec: RunSpec) -> str:
        return job.follow_command(job.newest_log(RunDir(Path(spec.run_dir))))

    @override
    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        del run
        os.execvp("tail", ["tail", "-n", "10000", "-F", str(job.newest_log(directory))])

    @override
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
