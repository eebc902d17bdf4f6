"""The meaning of Slurm's state and a run's record together: one table, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from mcp_server.record.state import EndedState, JobEnd, Liveness, LivenessReport
from mcp_server.text.rows import read_blocks

REQUEUED = "REQUEUED"
# By the state that a line proves. First match wins.
_PROOFS = (
    (re.compile(r"exceeded (?:(?:job|step) )?memory limit|oom[-_ ]kill", re.IGNORECASE), "OUT_OF_MEMORY"),
    (re.compile(r"DUE TO TIME LIMIT"), "TIMEOUT"),
    (re.compile(r"DUE TO PREEMPTION"), "PREEMPTED"),
    (re.compile(r"DUE TO NODE FAILURE"), "NODE_FAIL"),
    (re.compile(r"DUE TO JOB REQUEUE"), REQUEUED),
    (re.compile(r"\*\*\* JOB \d+ .*CANCELLED AT"), "CANCELLED"),
)
_REQUEUE = "DUE TO JOB REQUEUE"


def newest_output(output: str) -> str:
    """Return what was printed since Slurm started the job last."""
    return output.rpartition(_REQUEUE)[2]


def find_end(output: str) -> str:
    """Return the state that the daemon's lines prove, ``REQUEUED`` for a job that starts again, empty for none."""
    daemon = "\n".join(line for line in output.splitlines() if line.startswith("slurmstepd"))
    return next((state for pattern, state in _PROOFS if pattern.search(daemon)), "")


_CUT = 5  # characters at least of a word that sacct cut off
RecordState = Literal["none", "live", "ended"]


class End(NamedTuple):
    """The meaning of a final state of Slurm for a run whose supervisor wrote no end: a block of `states.rows`."""

    state: EndedState
    why: str = ""
    kind: str = ""
    action: str = ""
    advice: str = ""

    def describe_failure(self, line: str) -> dict[str, Any] | None:
        """Return the failure that this end is, proved by ``line``; None where nothing failed."""
        facts = {"kind": self.kind, "line": line, "retryable": True, "action": self.action, "advice": self.advice}
        return facts if self.kind else None


_BLOCKS = [dict(block) for block in read_blocks("record/slurm/states")]
WAITING, HELD = (frozenset(one["state"].split()) for one in _BLOCKS if "phase" in one)
FINAL: Mapping[str, End] = {
    word: End(cast("EndedState", one["ends"]), *(one.get(key, "") for key in ("why", "kind", "do", "say")))
    for one in _BLOCKS
    if "ends" in one
    for word in one["state"].split()
}
# While a job is COMPLETING: what its reason says, and the state that this means. First match wins.
REASONS = tuple((part, one["state"]) for one in _BLOCKS if "has" in one for part in (one["has"].split() or [""]))
_FROM_CHECKPOINT = "Start it again from its last checkpoint"
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
    by = "person" if end.state == "killed" and job.by else None if end.state == "killed" else "scheduler"
    return JobEnd(end.state, f"{line}.{never}", job.ended_at or None, by, end.describe_failure(line))


def _suspect_node(job: Job) -> str:
    """Return what is likely where something killed the batch process, and Slurm does not say what."""
    text = " Slurm does not say who sent SIGKILL: too little memory, trouble of the node, or a person."
    avoid = f'; backend_options={{"exclude": "{job.nodes}"}} avoids the node' if job.nodes else ""
    return f"{text} {_FROM_CHECKPOINT}{avoid}."
