"""What a state of Slurm and a run's record mean together: one table, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from mcp_server.record.slurm_output import find_end, newest_output
from mcp_server.record.state import EndedState, JobEnd, Liveness, LivenessReport

_CUT = 5  # characters at least of a word that sacct cut off
RecordState = Literal["none", "live", "ended"]

# A job that waits, also again after a requeue.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
# A job that has nodes. COMPLETING: its processes end, and it may be requeued.
HELD = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"}
)

_FROM_CHECKPOINT = "Start it again from its last checkpoint"
_REQUEUE = 'backend_options={"requeue": true} lets Slurm do so by itself.'


class End(NamedTuple):
    """What a final state of Slurm means for a run whose supervisor wrote no end. ``kind``: of its failure."""

    state: EndedState
    kind: str = ""
    retryable: bool = False
    action: str = ""
    advice: str = ""


_NODE = End("failed", "killed", True, "retry", f"A node failed. {_FROM_CHECKPOINT}; {_REQUEUE}")
_TIME = End("timed_out", "timeout", True, "retry", f'{_FROM_CHECKPOINT}, or with more backend_options["time"].')
FINAL: Mapping[str, End] = {
    "COMPLETED": End("lost"),  # the batch script ended well, and its supervisor wrote nothing
    "FAILED": End("lost"),
    "CANCELLED": End("killed"),
    "REVOKED": End("killed"),
    "TIMEOUT": _TIME,
    "DEADLINE": _TIME,
    "OUT_OF_MEMORY": End(
        "failed",
        "oom_host",
        True,
        "retry_changed",
        'It used more memory than the job has: ask for more with backend_options={"mem": …}, or load less at once.',
    ),
    "PREEMPTED": End("failed", "killed", True, "retry", f"Another job took its nodes. {_FROM_CHECKPOINT}; {_REQUEUE}"),
    "NODE_FAIL": _NODE,
    "BOOT_FAIL": _NODE,
    "LAUNCH_FAILED": _NODE,
    "RECONFIG_FAIL": _NODE,
}


ABSENCE = "the queue"  # source of a job that left it while it waited
WAITED = "the queue, once"  # source of a job of which no more is known than that it waited
_KILLED = "0:9"  # by SIGKILL
_NOTE_CHARS = 160


@dataclass(frozen=True)
class Job:
    """A job as Slurm describes it. ``state`` is a word of the tables above, or empty where Slurm knows it no more.

    ``by``: who cancelled it, as ``user 1000``. ``start_at``: when it is expected to start. ``source`` named it.
    """

    job_id: str
    state: str
    reason: str = ""
    start_at: str = ""
    nodes: str = ""
    exit_code: str = ""
    ended_at: str = ""
    by: str = ""
    source: str = "squeue"
    note: str = ""  # the last line of the job's own output
    name: str = ""

    @classmethod
    def of(cls, job_id: str, words: str, **more: str) -> Job:
        """Return a job whose state Slurm writes as ``words``, e.g. ``CANCELLED by 1000`` or ``OUT_OF_ME+``."""
        match = re.fullmatch(r"([A-Z_]+)\+?(?: by (\d+))?", words.strip())
        word, uid = match.groups() if match else (words.strip(), None)
        if word not in WAITING | HELD | FINAL.keys():
            word = next((each for each in FINAL if len(word) > _CUT and each.startswith(word)), word)
        return cls(job_id, word, by=f"user {uid}" if uid else "", **more)

    def explain(self, output: str) -> Job:
        """Return the job with what its output proves: without cgroups, Slurm calls a job without memory FAILED."""
        lines = [line.strip() for line in newest_output(output).splitlines()]
        state = self.state
        if not state or (state in FINAL and FINAL[state].state == "lost"):
            state = find_end("\n".join(lines)) or state
        return replace(self, state=state, note=next(filter(None, reversed(lines)), "")[:_NOTE_CHARS])

    def is_other(self, name: str) -> bool:
        """Return whether it is another job than that of this name: Slurm gives numbers again, and people rename."""
        return bool(name and self.name) and self.name != name

    @property
    def is_final(self) -> bool:
        """Whether nothing follows in this state: Slurm forgets the job soon."""
        return self.state in FINAL

    @property
    def wait_text(self) -> str:
        """Why it waits, and when it is expected to start."""
        why = self.reason.strip("()").replace("_", " ")
        why = "" if why in ("None", "") else why
        start = f"expected to start {self.start_at}" if self.start_at else ""
        return ", ".join(filter(None, (why or "Slurm has not looked at it yet", start)))


def judge(job: Job, record: RecordState, *, started_since: bool = False, settled: bool = True) -> LivenessReport:
    """Return what is known of a run's supervisor. The record's word about an end comes first.

    ``started_since``: the supervisor wrote after Slurm was asked. ``settled``: what it may have written last has
    reached this host, which takes a minute on a shared disk.
    """
    job_id = job.job_id
    if record == "ended":
        return LivenessReport(Liveness.DEAD, job_id=job_id)
    if job.state in WAITING:
        if record == "live" and started_since:
            return LivenessReport(Liveness.ALIVE, job_id=job_id)
        return LivenessReport(Liveness.PENDING, job.wait_text, job_id=job_id)
    if job.state in HELD:
        if record == "none":
            return LivenessReport(Liveness.PENDING, f"Slurm says {job.state}: its supervisor starts", job_id=job_id)
        reason = f"Slurm says {job.state}." if job.state not in ("RUNNING", "COMPLETING") else ""
        return LivenessReport(Liveness.ALIVE, reason, job_id=job_id)
    end = FINAL.get(job.state)
    if job.state and end is None:
        return LivenessReport(
            Liveness.UNKNOWN,
            f"Slurm says {job.state[:40]}, a state unknown here: this is the last known.",
            job_id=job_id,
        )
    if not settled and (end is None or end.state == "lost"):
        text = f"Slurm says {job.state or 'nothing more of it'}; its record may follow within a minute"
        liveness = Liveness.PENDING if record == "none" else Liveness.UNKNOWN
        return LivenessReport(liveness, text, job_id=job_id)
    return LivenessReport(Liveness.DEAD, job_id=job_id, end=_end_of(job, end, record))


def _end_of(job: Job, end: End | None, record: RecordState) -> JobEnd:
    """Return how Slurm ended a job; without ``end`` Slurm knows nothing of it any more."""
    never = " The command never started." if record == "none" else ""
    if end is None:
        text = f"Slurm knows nothing of job {job.job_id} any more, and its record has no end."
        waited = " It waited when Slurm listed it last: it was cancelled, or could not begin."
        return JobEnd("lost", f"{text}{never or ' How it ended is unknown.'}{waited if job.source == WAITED else ''}")
    if job.source == ABSENCE:
        return JobEnd("killed", f"Slurm: job {job.job_id} left the queue while it waited: it was cancelled.{never}")
    line = " ".join(
        filter(
            None,
            (
                f"Slurm: {job.state} of job {job.job_id}",
                f"on {job.nodes}" if job.nodes else "",
                f"by {job.by}" if job.by else "",
                f"(exit code {job.exit_code})" if job.exit_code not in ("", "0:0") else "",
            ),
        )
    )
    if end.state == "lost":
        note = f" Its output ends: {job.note}" if job.note else ""
        note += _suspect_node(job) if job.exit_code == _KILLED else ""
        return JobEnd("lost", f"{line}; its supervisor wrote no end.{never}{note}", job.ended_at or None)
    failure: dict[str, Any] | None = None
    if end.kind:
        failure = {"kind": end.kind, "line": line, "retryable": end.retryable, "action": end.action}
        failure["advice"] = end.advice
    by = "person" if end.state == "killed" and job.by else None if end.state == "killed" else "scheduler"
    return JobEnd(end.state, f"{line}.{never}", job.ended_at or None, by, failure)


def _suspect_node(job: Job) -> str:
    """Return what is likely where something killed the batch process, and Slurm does not say what."""
    text = " Slurm does not say who sent SIGKILL: too little memory, trouble of the node, or a person."
    avoid = f'; backend_options={{"exclude": "{job.nodes}"}} avoids the node' if job.nodes else ""
    return f"{text} {_FROM_CHECKPOINT}{avoid}."
