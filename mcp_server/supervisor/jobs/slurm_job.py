"""The job of Slurm that a supervisor is the batch process of: why it is stopped, and how its run goes on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.gpus.request import DEVICE_ORDER, VISIBLE_DEVICES
from mcp_server.record.events import ENDING, read_events, read_record, read_stop
from mcp_server.record.exit_status import StopRequest
from mcp_server.record.handover import Handover, HandoverError, base_environment, receive_handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.slurm.commands import SlurmError, parse_facts, run_program
from mcp_server.record.slurm.job_states import FINAL, REASONS, REQUEUED, WAITING, find_end
from mcp_server.record.spec import RunSpec
from mcp_server.system import processes
from mcp_server.system.files import read_end
from mcp_server.system.processes import Process, Stage, send_signal
from mcp_server.text.regex import compile_lazily

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis

CHECKPOINT = signal.SIGUSR1
_ANSWER_WITHIN_S = 10.0
_ACCOUNT_WITHIN_S = 3.0  # the job is being ended meanwhile
_KILL_WAIT_S = 30.0  # Slurm's default between SIGTERM and SIGKILL
_RESERVE_S = 3.0  # of it, to write the end
_KILL_GRACE_S = 2.0
_OUTPUT_BYTES = 65_536
# What a node knows and a launcher cannot: of the job, of its devices, and of its own disk.
_OF_THE_NODE = compile_lazily(
    r"SLURMD?_.*|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|(?:ROCR|HIP)_VISIBLE_DEVICES"
    r"|ZE_AFFINITY_MASK|TMPDIR|HOSTNAME"
)
# Of the states in which Slurm ends a job that still runs.
_STOPS = {state: end for state, end in FINAL.items() if end.why}
_REQUEUE = StopRequest("failed", "", "Slurm requeues the job", "scheduler")


class SlurmJob:
    """The job that this process is in, by its environment."""

    def __init__(self, environ: Mapping[str, str], output: Path) -> None:
        self._environ = dict(environ)
        self._output, self._printed_before = output, _size(output)
        self.job_id = environ["SLURM_JOB_ID"]
        # Of an element of an array, the name that people use: its own id is shown nowhere else.
        array = (environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", ""))
        self._shown_id = "_".join(array) if all(array) else self.job_id
        self._restarts = _count(environ.get("SLURM_RESTART_COUNT"))
        self.is_requeued = False  # Slurm starts the batch script again

    @classmethod
    def of(cls, spec: RunSpec, environ: Mapping[str, str]) -> SlurmJob | None:
        """Return the job of a run that was launched as one; None where this process is in no job."""
        if spec.backend != "slurm" or not environ.get("SLURM_JOB_ID"):
            return None
        return cls(environ, Path(spec.run_dir) / "slurm.out")

    def join_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the launcher's environment with what the node knows better. An outer job's variables are left out."""
        own = {name: value for name, value in self._environ.items() if _OF_THE_NODE.fullmatch(name)}
        return {**{name: value for name, value in env.items() if not _OF_THE_NODE.fullmatch(name)}, **own}

    def explain_stop(self) -> StopRequest | None:
        """Return why Slurm ends the job now; None where it does not.

        The controller says it, and the step daemon, which writes it into the job's output before it signals: that
        counts where the controller does not answer, or says less.
        """
        facts, written = self._ask(), find_end(self._read_output())
        restarts, state = _count(facts.get("Restarts")), facts.get("JobState", "")
        if restarts > self._restarts or state in WAITING or written == REQUEUED:
            self.is_requeued = True
            return _REQUEUE
        if state not in _STOPS and facts.get("PreemptTime", "None") not in ("None", "N/A", "Unknown", "0", ""):
            state = "PREEMPTED"  # in its grace time
        if state == "COMPLETING":
            state = next(word for part, word in REASONS if part in facts.get("Reason", ""))
        if not facts or (written != "CANCELLED" and (state not in _STOPS or state == "CANCELLED")):
            state = written or state  # a plain CANCELLED is also what it writes of a signal by scancel
        if state not in _STOPS:
            return None
        end = _STOPS[state]
        if state != "CANCELLED":
            return StopRequest(end.state, "Slurm", end.why, "scheduler")
        person = self._find_canceller()
        by = f"by {person}" if person else "by whom is unknown, as no accounting says it"
        return StopRequest(end.state, "Slurm", f"{end.why}, {by}", "person" if person else "")

    def _find_canceller(self) -> str:
        """Return who cancelled the job: only the accounting knows, from the moment of the cancellation on."""
        text = self._run("sacct", "-n", "-P", "-X", "-o", "State", "-j", self._shown_id, limit_s=_ACCOUNT_WITHIN_S)
        found = re.match(r"CANCELLED by (\d{1,10})\b", text)
        return f"user {found[1]}" if found else ""

    def find_failure(self, request: StopRequest) -> Diagnosis | None:
        """Return the failure that a stop by Slurm is; a cancelled job has not failed."""
        from mcp_server.diagnosis.failure.diagnose import Diagnosis  # noqa: PLC0415 - 16 ms, of failed runs

        for state, end in _STOPS.items():
            if end.why == request.reason and (facts := end.describe_failure(f"Slurm: {state} of job {self._shown_id}")):
                return Diagnosis(**facts, line_number=None)
        return None

    def stop_stages(self) -> tuple[Stage, ...]:
        """Return the stages of a stop that Slurm began: it has sent SIGTERM to all, and kills all after KillWait."""
        found = re.search(r"^KillWait\s*=\s*(\d+)", self._run("scontrol", "show", "config"), re.MULTILINE)
        wait_s = float(found[1]) if found else _KILL_WAIT_S
        return (Stage(signal.SIGTERM, max(1.0, wait_s - _RESERVE_S)), Stage(signal.SIGKILL, _KILL_GRACE_S))

    def signal_checkpoint(self, living: Iterable[Process]) -> int:
        """Send SIGUSR1 to the processes that handle it, and return how many: it would end all others."""
        return sum(send_signal(process, CHECKPOINT) for process in living if _handles(process, CHECKPOINT))

    def requeue(self) -> bool:
        """Let Slurm start the job again and return whether it will."""
        self._run("scontrol", "requeue", self.job_id)
        facts = self._ask()
        self.is_requeued = _count(facts.get("Restarts")) > self._restarts or facts.get("JobState") in WAITING
        return self.is_requeued

    def _read_output(self) -> str:
        """Return what was printed since this process began: before, the job may have been started another time."""
        try:
            return read_end(self._output, _OUTPUT_BYTES, after=self._printed_before).decode(errors="replace")
        except OSError:
            return ""

    def _ask(self) -> dict[str, str]:
        return parse_facts(self._run("scontrol", "show", "job", self.job_id, "-o"))

    def _run(self, *words: str, limit_s: float = _ANSWER_WITHIN_S) -> str:
        with contextlib.suppress(SlurmError):
            return run_program(words, timeout_s=limit_s, env=self._environ)
        return ""


def _handles(process: Process, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0  # noqa: PLR2004 - of digits


# The scheduler may still be stopping the former job on this node.
_PROCESSES_PATIENCE_S, _PROCESSES_CHECK_S = 5.0, 0.1
_FINAL_STATES = ("finished", "killed", "timed_out")


@dataclass(frozen=True)
class FormerSupervision:
    """The record of a supervisor that died.

    ``attempt`` is the number of its newest attempt, 0 where it started none. ``params`` and ``environment`` are as its
    newest retry changed them, ``params`` None where there was no retry. ``attempt_ended``: it reported the end of
    that attempt, and died in the pause before the next one.
    """

    attempt: int = 0
    started_at: str = ""
    attempt_ended: bool = False
    params: dict[str, object] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def take_environment(rundir: RunDir, spec: RunSpec) -> tuple[Handover, str]:
        """Return the environment of a requeued run, and a sentence about it that is empty for a launcher's handover.

        Without a launcher the command inherits the environment of this process, as far as a run inherits one.
        """
        if rundir.handover.exists():
            try:
                return receive_handover(rundir.handover, keep=spec.backend == "slurm"), ""
            except HandoverError:
                pass  # the launcher is gone
        secrets = {name: os.environ[name] for name in spec.secrets if name in os.environ}
        text = "No launcher hands over an environment, so the command gets that of this process."
        if missing := [name for name in spec.secrets if name not in secrets]:
            text += f" It lacks these secrets: {', '.join(missing)}."
        return Handover(base_environment(os.environ), secrets, processes.read_umask()), text


def read_former_supervision(rundir: RunDir) -> FormerSupervision | None:
    """Return where a run continues that a scheduler starts again after its supervisor died; None if it must not.

    These are not continued: one with an end in ``events.jsonl``, one whose stop was carried out after the supervisor
    died, one whose newest attempt recorded that it finished, timed out, or was killed other than by the recovery policy
    or the scheduler, and one with processes that still live, which a new attempt would meet.
    """
    events = read_events(rundir.events)
    stop = read_stop(rundir.stop) or {}
    number = rundir.newest_attempt()
    record = read_record(rundir.exit(number)) or {}
    if any(event["kind"] in ENDING for event in events) or stop.get("carried_out"):
        return None
    is_final = record.get("state") in _FINAL_STATES and record.get("stopped_by") not in ("policy", "scheduler")
    if is_final or _has_processes(rundir.run_id):
        return None
    starts = [event for event in events if event["kind"] == "started"]
    retries: list[Mapping[str, Any]] = [event for event in events if event["kind"] == "retrying"]
    retry = retries[-1] if retries else {}
    params, environment = retry.get("params"), retry.get("environment")
    variables = environment.items() if isinstance(environment, dict) else ()  # the leases ended with that supervisor
    return FormerSupervision(
        attempt=number,
        started_at=starts[-1].get("at", "") if starts else "",
        attempt_ended=bool(number) and retry.get("attempt") == number,
        params=dict(params) if isinstance(params, dict) else None,
        environment={str(name): str(value) for name, value in variables if name not in (VISIBLE_DEVICES, DEVICE_ORDER)},
    )


def _has_processes(run_id: str) -> bool:
    """Return whether processes of the run live after five seconds of patience."""
    until_s = time.monotonic() + _PROCESSES_PATIENCE_S
    own = processes.ancestors(os.getpid())
    while any(p.pid not in own for p in processes.find_by_variable("RUNWARD_RUN_ID", run_id)):
        if time.monotonic() >= until_s:
            return True
        time.sleep(_PROCESSES_CHECK_S)
    return False
