"""Runs as Ray jobs: their supervisor is the entrypoint where the cluster sees the run directories.

Where it does not, the supervisor is in tmux on this host, and its command is a program that has Ray run the job
(``supervisor/jobs/ray_mirror``).
"""

import contextlib
import functools
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import anyio
from typing_extensions import override

from mcp_server.backends.base import ListEnded, ScheduledGpus
from mcp_server.backends.local import LocalBackend, supervisor_argv
from mcp_server.backends.ray import job_request
from mcp_server.backends.ray.ray_watch import JobReport, RayWatch, judge
from mcp_server.errors import BadArgument, HostUnreachable, LaunchFailed, ScreenNotFound
from mcp_server.record.events import ENDING, read_new_events
from mcp_server.record.handover import Handover
from mcp_server.record.ray import ray_job
from mcp_server.record.ray.ray_head import RayHead, RayRefused, Withdrawals
from mcp_server.record.run_directory import LAUNCHED_AGAIN, RunDir, boot_id, forbid_launch, now, read_json, write_json
from mcp_server.record.run_processes import ReapResult, RunProcess, supervisor_of
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import STARTING_S, Liveness, LivenessReport, Run, attempt_of, posix
from mcp_server.system import processes
from mcp_server.system.files import open_regular, whole_directory, write_atomic
from mcp_server.system.lock_files import is_locked, may_be_locked, release_lock, take_lock
from mcp_server.system.ports import is_own_address
from mcp_server.text.log_text import clean_lines
from mcp_server.text.secret_patterns import holds_a_secret
from mcp_server.threads import run_in_thread

_STOPPED_WITHIN_S = 15.0
_POLL_S = 0.1
_SCREEN_LINES, _HISTORY_LINES, _SCREEN_BYTES = 50, 2000, 262_144
_SEES = 'If it sees this machine\'s state directory under the same path, pass backend_options={"shared_disk": true}.'
_NO_DISK = f"{_SEES} Else the job reads them from its own environment."


class RayBackend(ScheduledGpus, LocalBackend):
    """Starts supervisors as Ray jobs, whose submission id is the run's id. Ray decides when and on which node."""

    @override
    def check_request(self, request: LaunchRequest) -> None:
        job_request.check_request(request)

    @override
    def check_usable(self) -> None:
        """Nothing is needed on this host: whether the head answers shows when the job is submitted."""

    @override
    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        address = job_request.find_address(spec, environ)
        given = spec.backend_options.get(job_request.SHARED)
        shared = is_own_address(urlsplit(address).hostname or "") if given is None else bool(given)
        if not shared and spec.secrets:
            raise BadArgument(
                "secrets", f"{address} may share no disk with this machine, so they cannot reach it.", _NO_DISK
            )
        if not shared and spec.keep_code:
            cause = f"{address} may share no disk with this machine, so the job would not find the copy."
            raise BadArgument("code", cause, f"{_SEES} Else leave code out: the job runs in cwd as it is there.")
        for name, value in {} if shared else spec.env.items():
            if holds_a_secret("", value):
                raise BadArgument("env", f"{name:.40} holds a password, and Ray shows the job to everybody.", _NO_DISK)
        options = {**spec.backend_options, job_request.ADDRESS: address, job_request.SHARED: shared}
        env = {name: value for name, value in spec.env.items() if name not in job_request.VARIABLES}
        spec = replace(spec, backend_options=options, env=env)
        return replace(spec, session="", tmux_socket="") if shared else super().complete_spec(spec, environ)

    @override
    def create(self, directory: RunDir, spec: RunSpec) -> None:
        if ray_job.is_mirrored(spec):
            super().create(directory, spec)
            write_json(ray_job.request_file(directory), ray_job.mark_request(job_request.make_request(spec, ())))
            return
        with whole_directory(directory.path) as path:
            new = RunDir(path)
            write_json(new.spec, spec.facts())
            write_json(ray_job.request_file(new), ray_job.mark_request(_make_request(directory, spec)))

    @override
    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Submit the job, and return when Ray has accepted it.

        The handover waits in a file of the run directory that only this user may read, until the supervisor takes it.

        Raises:
            LaunchFailed: Ray did not accept it, and nothing is left; or whether it did is unknown, and a supervisor
                that comes finds a stop request.
        """
        if ray_job.is_mirrored(spec):
            await self._start_mirror(directory, spec, handover, first_event)
            return
        try:
            await run_in_thread(write_atomic, directory.handover, handover.encode())
            await run_in_thread(lambda: _head_of(spec).submit(ray_job.read_request(directory)))
        except OSError as error:
            await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
            raise LaunchFailed(f"{directory.path}: {error.strerror}.", "Nothing was started.") from error
        except RayRefused as error:
            await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
            raise LaunchFailed(f"{error.cause.rstrip('.')}.", "Nothing was started.", error.remedy) from error
        except HostUnreachable as error:
            await self._give_up(directory, spec, error)

    async def _start_mirror(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Start a supervisor here, unless the head does not answer now."""
        try:
            await run_in_thread(_head_of(spec).find, spec.run_id, ray_job.read_mark(directory))
        except (HostUnreachable, RayRefused) as error:
            await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
            raise LaunchFailed(error.cause, "Nothing was started.", error.remedy) from error
        await super().start(directory, spec, handover, first_event)

    async def _give_up(self, directory: RunDir, spec: RunSpec, error: HostUnreachable) -> NoReturn:
        """Leave nothing of a launch that the head certainly does not have, else a stop request."""
        cause = f"{error.host} cannot be reached: {error.why}."
        try:
            job = await run_in_thread(_head_of(spec).find, spec.run_id, ray_job.read_mark(directory))
            is_unknown = job is None
        except RayRefused:
            is_unknown = False
        except HostUnreachable:
            # Refused connections never carried the request.
            is_unknown = "refused" in error.why.lower()
        if is_unknown:
            await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
            raise LaunchFailed(cause, "Nothing was started.", "Is this the address of the head's dashboard?") from error
        with contextlib.suppress(OSError):
            await run_in_thread(forbid_launch, directory, "whether Ray had accepted it was unknown")
        raise LaunchFailed(
            cause, "If it starts later, it stops at once.", "Try again once the head answers."
        ) from error

    @override
    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove the directory of a refused launch, once its supervisor has exited."""
        if ray_job.is_mirrored(spec):
            await super().discard(directory, spec)
            return
        with anyio.move_on_after(_STOPPED_WITHIN_S):
            while await run_in_thread(may_be_locked, directory.lock):  # noqa: ASYNC110 - no event announces that
                await anyio.sleep(_POLL_S)
            while await run_in_thread(directory.path.exists):  # it writes for a moment after its lock is free
                await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
        await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)

    @override
    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
        if ray_job.is_mirrored(spec):
            return await super().settle_launch(directory, spec)
        if await run_in_thread(may_be_locked, directory.lock):
            return True
        job = await run_in_thread(_head_of(spec).find, spec.run_id, ray_job.read_mark(directory))
        if job is not None and not job.ended:
            return True
        await run_in_thread(forbid_launch, directory, LAUNCHED_AGAIN)
        return False

    @override
    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        if ray_job.is_mirrored(spec):
            return self._judge_mirror(directory, spec)
        alive = LivenessReport(Liveness.ALIVE, job_id=spec.run_id)
        if is_locked(directory.lock):
            return alive
        has_events, is_here = directory.events.exists(), _runs_here(directory)
        if not has_events and (read_json(directory.stop) or {}).get("carried_out"):
            return LivenessReport(Liveness.DEAD, job_id=spec.run_id)
        report = JobReport() if has_events and is_here else self._look(directory, spec)
        if is_locked(directory.lock):  # it came meanwhile
            return alive
        is_fresh = abs(time.time() - posix(spec.created_at)) < STARTING_S
        return judge(report, _address(spec), spec.run_id, has_events=has_events, is_here=is_here, is_fresh=is_fresh)

    def _judge_mirror(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return what is known of the supervisor here, with what Ray says of a job that waits or is out of reach."""
        here = super().liveness(directory, spec)
        if here.liveness is not Liveness.ALIVE or attempt_of(read_new_events(directory.events).events) > 1:
            return replace(here, job_id=spec.run_id)
        report = self._look(directory, spec)
        if report.silent:
            unreachable = {"host": _address(spec), "since": report.since, "why": report.silent}
            return replace(here, job_id=spec.run_id, unreachable=unreachable)
        if report.job is not None and report.job.status == "PENDING":
            return LivenessReport(Liveness.PENDING, report.wait, job_id=spec.run_id)
        return replace(here, job_id=spec.run_id)

    def _look(self, directory: RunDir, spec: RunSpec) -> JobReport:
        return _watch_of(_address(spec)).look(
            directory.path,
            lambda resources: job_request.describe_wait(spec, resources),
            lambda: is_locked(directory.lock) and not ray_job.is_mirrored(spec),
        )

    @override
    def check_stoppable(self, spec: RunSpec) -> None:
        if ray_job.is_mirrored(spec):
            super().check_stoppable(spec)

    @override
    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        """Signal a supervisor of this host. One of another node finds the stop request by itself within 5 s.

        A job of a mirrored run that waits is taken back meanwhile, with those of other runs that are stopped now.
        """
        if not ray_job.is_mirrored(run.spec) and not await run_in_thread(_runs_here, directory):
            return False
        supervisor = await run_in_thread(supervisor_of, directory.path, run)
        is_reached = supervisor is not None and processes.send_signal(supervisor, signal.SIGTERM)
        if is_reached and ray_job.is_mirrored(run.spec):
            with contextlib.suppress(HostUnreachable, RayRefused):
                mark = await run_in_thread(ray_job.read_mark, directory)
                await end_job(_head_of(run.spec), ray_job.submission_id(run.run_id, run.attempt), mark)
        return is_reached

    @override
    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        """Stop what is left here, and have Ray stop the job; return when Ray says that it is over.

        A job of a mirrored run is stopped first: it may be on this host too.

        Raises:
            HostUnreachable: the head does not answer, so whether the job was stopped is unknown.
        """
        is_here, mirrored = await run_in_thread(_runs_here, directory), ray_job.is_mirrored(run.spec)
        result = ReapResult((), (), unsupervised=False)
        if is_here and not mirrored:
            result = await super().reap(directory, run)
        head, mark = _head_of(run.spec), await run_in_thread(ray_job.read_mark, directory)
        job_id, note = ray_job.submission_id(run.run_id, run.attempt if mirrored else 1), ""
        try:
            await run_in_thread(head.stop, job_id, mark)
            never_starts = not mirrored and await run_in_thread(_forbid_start, directory)
            is_over = await end_job(head, job_id, mark)
            if not is_over:
                then = "ends without its command once it starts" if never_starts else "Ray stops it once it starts"
                note = await run_in_thread(describe_pending, head, job_id, mark, then)
        except (HostUnreachable, RayRefused) as error:
            if is_here and not mirrored:  # all its processes were here
                return result
            raise HostUnreachable(head.address, getattr(error, "why", str(error))) from error
        finally:
            _watch_of(head.address).ask(directory.path)
        if is_here and mirrored:
            result = await super().reap(directory, run)
        if is_over or never_starts:
            return replace(result, note=note, far_side_ended=is_over)
        return replace(result, survivors=(*result.survivors, RunProcess(0, f"the Ray job {job_id}")), note=note)

    @override
    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        if ray_job.is_mirrored(spec):
            return await super().screen(spec, history=history)
        return await run_in_thread(_read_screen, Path(spec.run_dir), _HISTORY_LINES if history else _SCREEN_LINES)

    @override
    def attach_command(self, spec: RunSpec) -> str:
        if ray_job.is_mirrored(spec):
            return super().attach_command(spec)
        log = _newest_log(Path(spec.run_dir)) or RunDir(Path(spec.run_dir)).log(1)
        return f"tail -n {_SCREEN_LINES} -F {shlex.quote(str(log))}"

    @override
    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        if ray_job.is_mirrored(run.spec):
            super().attach(directory, run)
        os.execlp("tail", "tail", "-n", "10000", "-F", str(directory.log(run.attempt)))

    @override
    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        if ray_job.is_mirrored(spec):
            await super().close_old_screens(spec, keep, ended)


def _address(spec: RunSpec) -> str:
    return str(spec.backend_options.get(job_request.ADDRESS) or "")


def _head_of(spec: RunSpec) -> RayHead:
    return RayHead(_address(spec))


@functools.cache
def _watch_of(address: str) -> RayWatch:
    return RayWatch(RayHead(address))


def _make_request(directory: RunDir, spec: RunSpec) -> dict[str, Any]:
    here = is_own_address(urlsplit(_address(spec)).hostname or "")
    argv = supervisor_argv(sys.executable if here else "python3", directory.path)
    return job_request.make_request(spec, argv)


def _forbid_start(directory: RunDir) -> bool:
    """Take a job that still waits the right to start its command, and return whether there was such a job."""
    lock = take_lock(directory.lock)
    if lock is None:
        return False
    try:
        if directory.events.exists():
            return False
        write_json(directory.stop, {**(read_json(directory.stop) or {}), "carried_out": {"at": now()}})
        directory.handover.unlink(missing_ok=True)
    finally:
        release_lock(lock)
    return True


def _runs_here(directory: RunDir) -> bool:
    """Return whether the supervisor, as it recorded itself, is or was a process of this host."""
    events = read_new_events(directory.events).events
    at_start: dict[str, object] = next((event["at_start"] for event in reversed(events) if "at_start" in event), {})
    return at_start.get("boot_id") == boot_id() or at_start.get("host") == socket.gethostname()


def _newest_log(path: Path) -> Path | None:
    log = RunDir(path).log(RunDir(path).newest_attempt())
    return log if log.is_file() else None


def _read_screen(path: Path, count: int) -> list[str]:
    log = _newest_log(path)
    if log is None:
        raise ScreenNotFound(f"{path.name} has printed nothing yet.", remedy="Call wait_run.")
    with open_regular(log) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SCREEN_BYTES))
        data = file.read()
    if size > _SCREEN_BYTES:
        data = data.partition(b"\n")[2]
    lines = [line.text for line in clean_lines(data)]
    events = read_new_events(RunDir(path).events).events
    lines += [f"[runward] {event.get('text', '')}" for event in events if event["kind"] in ENDING]
    return lines[-count:]


_ENDED_WITHIN_S = 15.0  # Ray terminates a job, and kills it 3 s later
_WAITS_S = 2.0  # a job that is still PENDING then waits for resources
_ASK_S = 0.1


async def end_job(head: RayHead, job_id: str, mark: str) -> bool:
    """Return whether a job that was asked to stop is over, or unknown to the head. One that waits is taken back."""
    if await _await_end(head, job_id, mark, waits_s=_WAITS_S):
        return True
    is_near = await run_in_thread(_withdraw, head, job_id, mark)
    return is_near and await _await_end(head, job_id, mark, waits_s=_ENDED_WITHIN_S)


def describe_pending(head: RayHead, job_id: str, mark: str, then: str) -> str:
    """Return what Ray keeps of a job that it was asked to stop while it waits. ``then``: what becomes of it."""
    job = head.find(job_id, mark)
    if job is None or job.status != "PENDING":
        return ""
    return f"Ray did not take back the job, which waits: it stays PENDING there, and {then}."


async def _await_end(head: RayHead, job_id: str, mark: str, *, waits_s: float) -> bool:
    """Return whether the job is over within 15 s. One that waits for longer than ``waits_s`` does not end."""
    begun_s = time.monotonic()
    with anyio.move_on_after(_ENDED_WITHIN_S):
        while True:
            job = await run_in_thread(head.find, job_id, mark)
            if job is None or job.ended:
                return True
            if job.status == "PENDING" and time.monotonic() - begun_s > waits_s:
                return False
            await anyio.sleep(_ASK_S)
    return False


def _withdraw(head: RayHead, job_id: str, mark: str) -> bool:
    """Take back a job that waits, and return whether its end is near."""
    job = head.find(job_id, mark)
    if job is None or job.status != "PENDING":
        return False
    with contextlib.suppress(HostUnreachable, RayRefused):
        return _withdrawals_of(head.address).withdraw(job_id)
    return False


@functools.cache
def _withdrawals_of(address: str) -> Withdrawals:
    return Withdrawals(RayHead(address))
