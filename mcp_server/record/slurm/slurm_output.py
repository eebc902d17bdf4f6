"""The step daemon's lines in a job's output when it ends the job: Slurm's word without the controller. Pure."""

from __future__ import annotations

import re

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
