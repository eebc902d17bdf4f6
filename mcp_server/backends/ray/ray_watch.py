"""The newest states, by the heads of clusters, of jobs that have no supervisor yet, asked for by one thread per head.

A run directory announces news only once its supervisor writes. Until then this thread asks the head once a second, and
announces a change by ``ray_job.json``, which it writes into the directory: a wait looks again then.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.errors import HostUnreachable
from mcp_server.record.ray.ray_head import RayHead, RayJob, RayRefused
from mcp_server.record.ray.ray_job import read_mark
from mcp_server.record.run_directory import RunDir, now, write_json
from mcp_server.record.state import JobEnd, Liveness, LivenessReport
from mcp_server.text.formatting import format_posix

FILE = "ray_job.json"
_PERIOD_S = 1.0
_FRESH_S = 1.5  # longer than a period: a look does not ask while the thread does
_SILENT_S = 5.0  # a head that did not answer is not asked again for so long


@dataclass(frozen=True)
class JobReport:
    """What is known of a job. ``job`` is None where the head does not know it, or was never heard of.

    ``silent``: why the head does not answer, and ``since`` when. ``wait``: what a pending job waits for.
    """

    job: RayJob | None = None
    silent: str = ""
    since: str = ""
    wait: str = ""
    asked_s: float = float("-inf")


@dataclass
class _Watched:
    directory: Path
    mark: str
    describe_wait: Callable[[dict[str, tuple[float, float]]], str]
    is_supervised: Callable[[], bool]
    report: JobReport


class RayWatch:
    """The jobs of one head that this process has looked at."""

    def __init__(self, head: RayHead) -> None:
        self._head, self._lock = head, threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._silence = JobReport()
        self._resources: dict[str, tuple[float, float]] = {}
        self._resources_s = float("-inf")

    def look(
        self,
        directory: Path,
        describe_wait: Callable[[dict[str, tuple[float, float]]], str],
        is_supervised: Callable[[], bool],
    ) -> JobReport:
        """Return what the head says of the job of a run, not much older than a second, and watch it from now on.

        ``is_supervised``: whether its supervisor has come, so that the head need not be asked any more.
        """
        watched = self._watched.get(directory.name)
        if watched is None:
            new = _Watched(directory, read_mark(RunDir(directory)), describe_wait, is_supervised, JobReport())
            with self._lock:
                watched = self._watched.setdefault(directory.name, new)
        age_s = time.monotonic() - watched.report.asked_s
        if age_s > (_SILENT_S if watched.report.silent else _FRESH_S):
            self._ask(watched)
        self._begin(watched)
        return watched.report

    def ask(self, directory: Path) -> None:
        """Let the next look ask the head."""
        with self._lock:
            if (watched := self._watched.get(directory.name)) is not None:
                watched.report = replace(watched.report, asked_s=float("-inf"))
                self._silence = JobReport()

    def _ask(self, watched: _Watched) -> None:
        former, asked_s = watched.report, time.monotonic()
        if asked_s - self._silence.asked_s < _SILENT_S:  # as it was for the job of another run
            silent, since, asked_s = self._silence.silent, self._silence.since, self._silence.asked_s
            watched.report = replace(former, silent=silent, since=former.since or since, asked_s=asked_s)
            return
        try:
            job = self._head.find(watched.directory.name, watched.mark)
        except (HostUnreachable, RayRefused) as error:
            why = error.why if isinstance(error, HostUnreachable) else error.cause
            watched.report = replace(former, silent=why, since=former.since or now(), asked_s=time.monotonic())
            if isinstance(error, HostUnreachable):
                self._silence = watched.report
            return
        wait = ""
        if job is not None and job.status == "PENDING":
            wait = watched.describe_wait(self._read_resources())
        watched.report = JobReport(job, wait=wait, asked_s=asked_s)

    def _read_resources(self) -> dict[str, tuple[float, float]]:
        """Return what the cluster has, which is asked for once however many jobs wait; empty where it does not say."""
        if time.monotonic() - self._resources_s > _FRESH_S:
            self._resources, self._resources_s = {}, time.monotonic()
            with contextlib.suppress(HostUnreachable, RayRefused):
                self._resources = self._head.read_resources()
        return self._resources

    def _begin(self, watched: _Watched) -> None:
        if _is_settled(watched.report):
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ray-jobs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_PERIOD_S)
            with self._lock:
                open_jobs = [each for each in self._watched.values() if not _is_settled(each.report)]
            for each in open_jobs:
                self._look_again(each)
            with self._lock:
                if all(_is_settled(each.report) for each in self._watched.values()):
                    self._thread = None
                    return

    def _look_again(self, watched: _Watched) -> None:
        former = watched.report
        if not watched.directory.is_dir() or watched.is_supervised():
            with self._lock:
                self._watched.pop(watched.directory.name, None)
            return
        if former.silent and time.monotonic() - former.asked_s < _SILENT_S:
            return
        self._ask(watched)
        report = watched.report
        if (report.job, report.silent, report.wait) != (former.job, former.silent, former.wait):
            facts = {"status": report.job.status if report.job else None, "silent": report.silent or None, "at": now()}
            with contextlib.suppress(OSError):
                write_json(watched.directory / FILE, facts)


def _is_settled(report: JobReport) -> bool:
    """Return whether nothing that the head will say is news: the job is over, or unknown to a head that answers."""
    return not report.silent and report.asked_s > float("-inf") and (report.job is None or report.job.ended)


_FORGOTTEN = "Ray does not know its job any more: the head was restarted, and its jobs ended with it."
_UNKNOWN = "Ray does not know its job: it was never submitted, or the head was restarted before the command started."
_NEVER_STARTED = "Ray ended the job before its supervisor started, so the command never ran"
_GAVE_UP = (
    "Ray ended the job, which had waited for resources as long as its head lets a job wait; the command never ran."
)
_WAIT_AGAIN = (
    "Launch it again to wait on, or with fewer resources. Who starts the head sets how long a job may wait: "
    "RAY_JOB_START_TIMEOUT_SECONDS, 900 by default."
)
_ENDS = {"FAILED": "failed", "STOPPED": "killed"}


def judge(
    report: JobReport, address: str, job_id: str, *, has_events: bool, is_here: bool, is_fresh: bool = False
) -> LivenessReport:
    """Return the liveness of a supervisor that does not hold its lock, as far as that can be seen here. Pure.

    | Ray says | no event yet | events, and the lock is free here | events, and the supervisor is on another node |
    | --- | --- | --- | --- |
    | PENDING | pending, with the reason | dead | pending |
    | RUNNING | pending: the supervisor starts | dead | alive |
    | SUCCEEDED, FAILED, STOPPED | dead, with Ray's words as the end | dead, with Ray's words | dead, with Ray's words |
    | it does not know the job | dead: the head was restarted | dead | dead: the head was restarted |
    | nothing | unreachable | dead | unreachable |

    ``is_here``: the supervisor was on this host. ``is_fresh``: the launch began seconds ago, and may not have submitted
    its job yet. A supervisor that holds its lock lives, whatever Ray says. A written end needs neither.
    """
    job = report.job
    if has_events and is_here:
        return LivenessReport(Liveness.DEAD, _describe_death(job), job_id=job_id)
    if report.silent:
        unreachable = {"host": address, "since": report.since, "why": report.silent}
        return LivenessReport(Liveness.UNREACHABLE, unreachable=unreachable, job_id=job_id)
    if job is None and is_fresh and not has_events:
        return LivenessReport(Liveness.PENDING, job_id=job_id)
    if job is None:
        return LivenessReport(Liveness.DEAD, _FORGOTTEN if has_events else _UNKNOWN, job_id=job_id)
    if not job.ended:
        if has_events and job.status == "RUNNING":
            return LivenessReport(Liveness.ALIVE, job_id=job_id)
        reason = report.wait or ("" if job.status == "RUNNING" else f"Ray says {job.status}.")
        return LivenessReport(Liveness.PENDING, reason, job_id=job_id)
    if has_events:
        return LivenessReport(Liveness.DEAD, _describe_death(job), job_id=job_id)
    return LivenessReport(Liveness.DEAD, job_id=job_id, end=_make_end(job))


def _describe_death(job: RayJob | None) -> str:
    """Return what Ray adds to the death of a supervisor that wrote no end. How the command ended stays unknown."""
    if job is None or not job.ended:
        return ""
    return f"Its supervisor is gone and wrote no end. Ray says {job.status}: {job.first_line or 'nothing more'}"


def _make_end(job: RayJob) -> JobEnd:
    ended_at = None if job.ended_ms is None else format_posix(job.ended_ms / 1000)
    if job.gave_up_waiting:
        why = {"kind": "ray_error", "line": job.first_line, "retryable": True, "action": "retry", "advice": _WAIT_AGAIN}
        return JobEnd("failed", _GAVE_UP, ended_at, "scheduler", why)
    text = f"{_NEVER_STARTED}: {job.first_line or job.status}"
    failure = None
    if job.status == "FAILED":
        advice = "read_log has nothing: see the job in Ray's dashboard. The head must see this run's directory."
        failure = {"kind": "ray_error", "line": job.first_line, "retryable": False, "action": "stop", "advice": advice}
    return JobEnd(
        _ENDS.get(job.status, "lost"),  # type: ignore[arg-type]
        text,
        ended_at,
        stopped_by="scheduler" if job.status == "STOPPED" or job.lost_its_place else None,
        failure=failure,
    )
