"""The states of services that are jobs of Slurm or Ray, on whatever node they are.

A thread asks: a scheduler that does not answer holds up no output and no stop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mcp_server.errors import HostUnreachable
from mcp_server.record.events import read_new_events
from mcp_server.record.ray.ray_head import RayHead, RayRefused
from mcp_server.record.ray.ray_job import is_mirrored, read_mark, submission_id
from mcp_server.record.run_directory import RunDir, boot_id
from mcp_server.record.slurm.job_watch import JobWatch
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import LivenessReport, attempt_of
from mcp_server.system.ports import is_loopback

_SLURM_S = 1.0  # between two looks; Slurm itself is asked once in 30 s for all runs of the state directory
_RAY_S = 5.0

Answer = TypeVar("Answer")


class ServiceJobs(Generic[Answer]):
    """The jobs of services, of which ``ask`` says what is known now. It may block."""

    def __init__(self, ask: Callable[[RunDir, RunSpec], Answer], period_s: float) -> None:
        self._ask, self._period_s = ask, period_s
        self._answers: dict[str, Answer] = {}
        self._watched: dict[str, tuple[RunDir, RunSpec]] = {}
        self._is_more = threading.Event()
        threading.Thread(target=self._ask_all, daemon=True).start()

    def report(self, directory: RunDir, spec: RunSpec) -> Answer | None:
        """Return the newest answer about a service, None before the first."""
        if directory.run_id not in self._watched:
            self._watched[directory.run_id] = (directory, spec)
            self._is_more.set()
        return self._answers.get(directory.run_id)

    def _ask_all(self) -> None:
        while True:
            for run_id, (directory, spec) in list(self._watched.items()):
                with contextlib.suppress(OSError):  # the disk does not answer now
                    self._answers[run_id] = self._ask(directory, spec)
            self._is_more.wait(self._period_s)
            self._is_more.clear()


def watch_slurm(home: Path) -> ServiceJobs[LivenessReport]:
    """Return what record and Slurm say of services, which are runs of the state directory ``home``."""
    return ServiceJobs(JobWatch(Queue(home)).liveness, _SLURM_S)


class RayWord(NamedTuple):
    """A job by the word of its head. ``is_over``: None where no head that is certainly the right one answers."""

    is_over: bool | None
    text: str


def watch_ray() -> ServiceJobs[RayWord]:
    """Return what Ray says of services."""
    return ServiceJobs(ask_ray, _RAY_S)


def ask_ray(directory: RunDir, spec: RunSpec) -> RayWord:
    """Return what the head of a run's job says of it. Blocks for up to two seconds."""
    address = str(spec.backend_options.get("address") or "")
    attempt = attempt_of(read_new_events(directory.events).events) if is_mirrored(spec) else 1
    try:
        job = RayHead(address).find(submission_id(directory.run_id, attempt), read_mark(directory))
    except (HostUnreachable, RayRefused) as error:
        return RayWord(None, f"Ray at {address} does not say ({getattr(error, 'why', '') or error.cause})")
    if job is not None:
        return RayWord(job.ended, f"Ray says {job.status} of its job")
    # Another node has another loopback, and another head may listen there.
    is_right_head = spec.boot_id == boot_id() or not is_loopback(urlsplit(address).hostname or "")
    return RayWord(True if is_right_head else None, f"Ray at {address} does not know its job any more")
