"""From what Ray says of a job, and what the run's record holds, to the liveness of its supervisor. Pure.

| Ray says | no event yet | events, and the lock is free here | events, and the supervisor is on another node |
| --- | --- | --- | --- |
| PENDING | pending, with the reason | dead | pending |
| RUNNING | pending: the supervisor starts | dead | alive |
| SUCCEEDED, FAILED, STOPPED | dead, with Ray's words as the end | dead, with Ray's words | dead, with Ray's words |
| it does not know the job | dead: the head was restarted | dead | dead: the head was restarted |
| nothing | unreachable | dead | unreachable |

A supervisor that holds its lock lives, whatever Ray says. A written end needs neither.
"""

from dataclasses import dataclass

from mcp_server.backends.ray.ray_watch import JobReport
from mcp_server.record.ray.ray_head import RayJob
from mcp_server.record.state import JobEnd, Liveness, LivenessReport
from mcp_server.text.formatting import format_posix

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


@dataclass(frozen=True)
class Seen:
    """The record as it is here. ``is_here``: the supervisor was on this host, where its lock would be seen.

    ``is_fresh``: the launch began seconds ago, so that its job may not have been submitted yet.
    """

    has_events: bool
    is_here: bool
    is_fresh: bool = False


def judge(report: JobReport, address: str, job_id: str, seen: Seen) -> LivenessReport:
    """Return the liveness of a supervisor that does not hold its lock, as far as that can be seen here."""
    job, has_events = report.job, seen.has_events
    if has_events and seen.is_here:
        return LivenessReport(Liveness.DEAD, _describe_death(job), job_id=job_id)
    if report.silent:
        unreachable = {"host": address, "since": report.since, "why": report.silent}
        return LivenessReport(Liveness.UNREACHABLE, unreachable=unreachable, job_id=job_id)
    if job is None and seen.is_fresh and not has_events:
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
