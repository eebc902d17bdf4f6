"""The contract between runward and the place where a supervisor runs: a tmux session, a far host or a scheduler's job.

A backend says where a supervisor lives and how one hears of it. It decides nothing about a run: the truth is in the run
directory, which the supervisor writes. One suite, ``tests/contract/test_backends.py``, holds for every backend.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from mcp_server.command.outputs import list_redirected
from mcp_server.errors import BackendUnknown, BadArgument
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.run_directory import RunDir, put_stop_request

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_server.record.handover import Handover
    from mcp_server.record.run_processes import ReapResult, RunProcess
    from mcp_server.record.spec import LaunchRequest, RunSpec
    from mcp_server.record.state import LivenessReport, Run


ListEnded = Callable[[Sequence[str]], "Sequence[RunSpec]"]  # of those that ended, newest first, by their sessions


@dataclass(frozen=True)
class Record:
    """Read access to a run directory. ``behind_s`` is the age of a mirror. None where the directory is the original."""

    directory: RunDir
    behind_s: float | None = None


@dataclass(frozen=True)
class GpuState:
    """The GPUs of a host, and who holds leases of them and of its cpu slots, by UUID or slot."""

    snapshot: Snapshot
    holders: Mapping[str, str]


class Backend(Protocol):
    """Starts supervisors, reports whether they live, and stops runs.

    A method without ``async`` may block for some milliseconds. Methods with a body serve a backend whose run
    directories are on a disk of this host.
    """

    leases_gpus: bool  # GPUs and cpu slots are leased by runward; else a scheduler gives them

    def check_request(self, request: LaunchRequest) -> None:
        """Check the arguments of a launch that this backend understands in a way of its own.

        Raises:
            BadArgument: one of them, or an entry of ``backend_options``, cannot be used.
        """
        if given := ", ".join(request.backend_options):
            raise BadArgument("backend_options", f"{request.backend} has none: {given[:80]}.")

    def check_usable(self) -> None:
        """Raise RunwardError where a program is missing that this backend needs to start a run."""

    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        """Return ``spec`` with the fields that only this backend knows, e.g. the session's name."""

    def preview(self, spec: RunSpec) -> str:
        """Return what a dry run shows beside the command's script: how this backend would start it. Or empty.

        Raises:
            LaunchFailed: it would be refused.
        """
        del spec
        return ""

    def create(self, directory: RunDir, spec: RunSpec) -> None:
        """Make the run's directory appear whole, with spec and what ``start`` needs, or nothing, and raise OSError."""

    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Start a supervisor for a prepared run directory and pass it the handover.

        ``first_event`` returns when the supervisor has written its first event. A backend whose supervisor starts at
        once awaits it. A scheduler's backend returns as soon as the job is accepted.

        Raises:
            LaunchFailed: nothing runs. A start that never began leaves no directory and no session. A supervisor
                that comes after the time limit finds a stop request, and does not start its command.
        """

    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove the directory and the screen of a launch that its supervisor has refused."""

    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
        """Return whether a launch without events is under way. If not, it never starts from now on.

        Raises:
            HostUnreachable: nobody knows.
        """

    def open_record(self, directory: RunDir) -> Record:
        """Return read access to the run's record, on this host or mirrored from another."""
        return Record(directory)

    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return whether the supervisor lives, as far as this host can find out."""

    def check_stoppable(self, spec: RunSpec) -> None:
        """Raise RunElsewhere where only another host can stop the run."""

    def put_stop_request(self, directory: RunDir, spec: RunSpec, request: Mapping[str, Any] | None) -> None:
        """Write ``stop.json``. None withdraws the request.

        Raises:
            OSError: it cannot be written.
            HostUnreachable: nobody knows whether it was.
        """
        del spec
        put_stop_request(directory, request)

    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        """Ask a living supervisor to stop its run and return whether the request reached it.

        The supervisor finds reason and requester in the stop request, which the caller puts there first.
        """

    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        """Finish the job of a dead or stuck supervisor: find the run's processes by its id, stop them, and verify.

        A job that still waits in a scheduler's queue is cancelled.
        """

    def find_leftovers(self, run: Run) -> list[RunProcess]:
        """Return the processes that a run left behind when its supervisor died, none where no supervisor died."""

    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        """Return the lines that a person attached to the run sees. ``history`` adds lines that have scrolled away.

        Raises:
            ScreenNotFound: the run has no screen.
            ScreenNotAnswering: the screen does not answer.
        """

    def attach_command(self, spec: RunSpec) -> str:
        """Return the shell command that shows a person the run's screen."""

    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        """Replace this process by one that shows the run's screen, or its log where it has no screen any more.

        Raises:
            RunwardError: a program that this needs is missing.
        """

    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        """Return the GPUs of the host where the run is or will be. Without ``query``, only who holds cpu slots."""

    def fetch_log(self, directory: RunDir, spec: RunSpec, attempt: int) -> Path:
        """Return the path of an attempt's log, as new as it can be had now."""
        del spec
        return directory.log(attempt)

    def explain_old_log(self, directory: RunDir, run: Run, attempt: int) -> str:
        """Return why a log that was just fetched may not be all that its attempt wrote, empty where it is."""
        file = next(list_redirected(run.command, run.spec.cwd), None)
        with contextlib.suppress(OSError):
            if file is not None and not directory.log(attempt).stat().st_size:
                return f"Its command redirects output: read_log(path={file!r})."
        number, lost = 0, ""
        for event in run.events:
            number = event.get("attempt", 1) if event["kind"] == "started" else number
            if event["kind"] == "log_lost" and number == attempt:
                lost = f"{event['at'][:19]}Z: {event['text']}"
        return lost

    def fetch_record(self, directory: RunDir, run: Run) -> None:
        """Bring the mirrored log, kept code and use of GPUs of the newest attempt up to date."""
        del directory, run

    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        """Close screens of ended runs until at most ``keep`` of them are open.

        ``spec`` is a run of the same kind. ``ended`` is called only where more than ``keep`` screens are open.

        Raises:
            ScreenNotAnswering: they cannot be listed.
        """


class ScheduledGpus:
    """The GPUs of a backend whose scheduler gives them: those of nodes that only a job may use."""

    leases_gpus = False

    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        """Return nothing."""
        del spec, env, near, query
        return GpuState(Snapshot(), {})


_BACKENDS = {
    "tmux": "mcp_server.backends.local:LocalBackend",
    "ssh": "mcp_server.backends.ssh.ssh_backend:SshBackend",
    "ssh-slurm": "mcp_server.backends.slurm.far_slurm:FarSlurmBackend",
    "slurm": "mcp_server.backends.slurm.slurm_backend:SlurmBackend",
    "ray": "mcp_server.backends.ray.ray_backend:RayBackend",
}
_NOT_BY_NAME = frozenset({"ssh", "ssh-slurm"})  # follow from the host


def backend_of(spec: RunSpec) -> Backend:
    """Return the backend of a run: the one that its spec names, for one of a far host by ssh.

    Raises:
        BackendUnknown: a newer version started it.
    """
    name = _name_by_ssh(spec.backend) if spec.mirror else spec.backend
    if name not in _BACKENDS:
        raise BackendUnknown(name)
    return load_backend(name)


def find_far_backend(name: str) -> Backend:
    """Return the backend of a launch on a far host that names ``name``."""
    return load_backend(_name_by_ssh(name))


def _name_by_ssh(name: str) -> str:
    return "ssh-slurm" if name == "slurm" else "ssh"


def find_backend(name: str) -> Backend:
    """Return the backend that a launch names; another name is a BadArgument that lists them."""
    names = [each for each in _BACKENDS if each not in _NOT_BY_NAME]
    if name not in names:
        raise BadArgument("backend", f"{name!r:.40} is not one of {', '.join(names)}.")
    return load_backend(name)


@functools.cache
def load_backend(name: str) -> Backend:
    """Return the backend ``name``. Its module is imported by the first call, with the libraries that it needs."""
    module, _, factory = _BACKENDS[name].partition(":")
    return cast("Backend", getattr(importlib.import_module(module), factory)())
