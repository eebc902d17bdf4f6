"""Whether the supervisor of a job lives: the run's record, Slurm's queue, and what Slurm said of an end, together."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mcp_server.record.codec import decode
from mcp_server.record.events import ENDING, RecordEvent, parse_events
from mcp_server.record.run_directory import RunDir, forbid_launch, now, read_json, write_json
from mcp_server.record.slurm import queue
from mcp_server.record.slurm.commands import UNLISTED, SlurmError, describe_job, read_memory
from mcp_server.record.slurm.job_states import ABSENCE, WAITED, Job, RecordState, judge
from mcp_server.record.slurm.queue import Queue, QueueSnapshot
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, LivenessReport, posix
from mcp_server.system.files import is_absent, is_shared_filesystem, read_end
from mcp_server.system.lock_files import is_locked

HANDED_IN_WITHIN_S = 70.0  # of a launch: sbatch gets 60 s
_TAIL_BYTES = 65_536
_SETTLE_S = 60.0  # until a name that this host has looked for in vain appears on NFS
_JOB_ID = re.compile(r"[0-9]{1,20}(?:_[0-9]{1,10})?")
_LISTING_S = 20.0  # squeue takes, at most
# After Slurm's daemon has written into a job's output: it ends the job, within KillWait, which is 30 s by default.
_ENDS_WITHIN_S = 40.0
_STARTS_AGAIN_WITHIN_S = 20.0  # after an attempt: until Slurm lists a job as waiting whose end it has listed
_AHEAD_S = 60.0  # of this host's clock, which that of the launcher's may be


class JobWatch:
    """Judges jobs of one state directory, with one query of Slurm for all of them.

    Raises:
        OSError: the record cannot be read now.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._outputs: dict[str, tuple[int, float]] = {}  # by run: the size of its job's output, and since when

    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return what the record and Slurm say together. An end in the record needs no word of Slurm."""
        report = self._judge(directory, spec, asks=True)
        assert report is not None  # noqa: S101 - who asks hears
        return report

    def judge_by_last_answer(self, directory: RunDir, spec: RunSpec) -> LivenessReport | None:
        """Return what the record and Slurm's last answer say together, at once; None where that is too little."""
        return self._judge(directory, spec, asks=False)

    def _judge(self, directory: RunDir, spec: RunSpec, *, asks: bool) -> LivenessReport | None:
        record, written_s, is_doubted = _read_record_state(directory)
        report = self._weigh(directory, spec, record, written_s, asks=asks)
        if report is not None and is_doubted and report.liveness is not Liveness.DEAD:  # else the end is believed
            return LivenessReport(Liveness.ALIVE, job_id=report.job_id)
        return report

    def _weigh(
        self, directory: RunDir, spec: RunSpec, record: RecordState, written_s: float, *, asks: bool
    ) -> LivenessReport | None:
        if record == "ended" or (read_json(directory.stop) or {}).get("carried_out"):  # a stop saw it gone
            self._outputs.pop(directory.run_id, None)
            return LivenessReport(Liveness.DEAD, job_id=job_of(directory))
        snapshot = self._look(directory) if asks else self.queue.peek()
        if snapshot is None:
            return None
        facts = read_json(directory.job) or {}
        job_id = _id_of(facts)
        if not job_id:
            return self._judge_launch(directory, spec, snapshot, facts, record)
        submitted_s = _number(facts.get("submitted_s"))
        submitted_s = 0.0 if submitted_s > time.time() + _AHEAD_S else submitted_s  # POSIX
        if asks and job_id not in snapshot.jobs and submitted_s >= snapshot.asked_s:
            snapshot = self.queue.look(queue.EXPECTED_S)
        job_id, row, name = _find_row(directory, job_id, snapshot)
        if row is not None and row.is_other(name):
            return _describe_other(directory, row, name, record)
        if snapshot.error and (row is None or not row.is_final) and read_json(directory.job_end) is None:
            return _unreachable(job_id, record, snapshot)
        if row is None and submitted_s >= snapshot.asked_s:
            new = LivenessReport(Liveness.PENDING, "handed in to Slurm a moment ago", job_id=job_id)
            return LivenessReport(Liveness.ALIVE, job_id=job_id) if record == "live" else new
        if row is not None and not row.is_final:
            return judge(row, record, started_since=written_s > snapshot.asked_s)
        return _judge_end(directory, row, record, snapshot, job_id, name) if asks else None

    def _look(self, directory: RunDir) -> QueueSnapshot:
        return self.queue.look(queue.EXPECTED_S if self._is_end_near(directory) else None)

    def _is_end_near(self, directory: RunDir) -> bool:
        """Return whether the job's own output has grown lately: Slurm's daemon says there why it ends a job.

        Output that was there at the first look may be old.
        """
        try:
            size = (directory.path / "slurm.out").stat().st_size
        except OSError:
            size = 0
        now_s = time.monotonic()
        known, grown_s = self._outputs.get(directory.run_id, (size, -math.inf))
        grown_s = now_s if size > known else grown_s
        self._outputs[directory.run_id] = (size, grown_s)
        return now_s - grown_s < _ENDS_WITHIN_S

    def _judge_launch(
        self, directory: RunDir, spec: RunSpec, snapshot: QueueSnapshot, facts: Mapping[str, Any], record: RecordState
    ) -> LivenessReport:
        """Return what is known of a launch whose job is not noted: its server may have died while it handed it in."""
        job = snapshot.jobs.get(snapshot.find_job(spec.run_id, facts))
        if job is not None and not job.is_other(expected_name(directory, job.job_id)):
            with contextlib.suppress(OSError):  # Slurm forgets it, and a stop needs its number
                keep_job(directory, job.job_id)
            return judge(job, record)
        if record == "live":  # the command may have written the file
            text = "Its record does not name its job, and Slurm lists none of its name: this is the last known state."
            return LivenessReport(Liveness.ALIVE if _holds_lock(directory) else Liveness.UNKNOWN, text)
        created_s = _number(facts.get("prepared_s")) or posix(spec.created_at)
        if abs(time.time() - created_s) < HANDED_IN_WITHIN_S or snapshot.asked_s < created_s + HANDED_IN_WITHIN_S:
            return LivenessReport(Liveness.PENDING)
        with contextlib.suppress(OSError):
            if not directory.stop.exists():  # for a job that Slurm takes later still
                forbid_launch(directory, "its launch was cut off")
            directory.handover.unlink(missing_ok=True)
        return LivenessReport(Liveness.DEAD, "Its launch was cut off before it was handed in to Slurm.")


def _judge_end(
    directory: RunDir, row: Job | None, record: RecordState, snapshot: QueueSnapshot, job_id: str, name: str
) -> LivenessReport:
    """Return the report on a job that has ended as far as Slurm's queue says, by what else Slurm says."""
    if _starts_again(directory):
        return LivenessReport(Liveness.PENDING, "Slurm starts its job again", job_id=job_id)
    try:
        job, heard_s = _keep_end(directory, row, job_id, name, None if record != "none" else snapshot.left.get(job_id))
    except SlurmError as error:
        return _unreachable(job_id, record, snapshot, error.cause)
    if job.is_other(name):
        return _describe_other(directory, job, name, record)
    is_shared = is_shared_filesystem(directory.path)
    if not job.state and not is_shared and _holds_lock(directory):  # a shared disk may keep the lock of a dead node
        return LivenessReport(Liveness.ALIVE, job_id=job_id)
    is_settled = time.time() - heard_s >= _SETTLE_S or not is_shared
    report = judge(job, record, settled=is_settled)
    if report.end is not None:
        with contextlib.suppress(OSError):  # it may hold secrets, and no supervisor comes for it
            directory.handover.unlink(missing_ok=True)
    return report


def job_of(directory: RunDir) -> str:
    """Return the id of the run's job, empty where none was handed in."""
    return _id_of(read_json(directory.job) or {})


def _id_of(facts: Mapping[str, Any]) -> str:
    job_id = str(facts.get("job_id", ""))
    return job_id if _JOB_ID.fullmatch(job_id) else ""  # a run may write this file, and scancel takes options


def keep_job(directory: RunDir, job_id: str) -> None:
    """Write the id of the run's job."""
    write_json(directory.job, {"job_id": job_id, "submitted_at": now(), "submitted_s": time.time()})


def expected_name(directory: RunDir, job_id: str) -> str:
    """Return the name of a run's job: its id, or that of the array whose element ``job_id`` it is.

    Another job's number has another name, whatever the run writes into ``job.json``: an array links to its runs.
    """
    index = job_id.partition("_")[2]
    with contextlib.suppress(OSError):
        array = (directory.path / "batch.sh").readlink().parent
        if index and (array / index).samefile(directory.path):
            return array.name
    return directory.run_id


def _find_row(directory: RunDir, job_id: str, snapshot: QueueSnapshot) -> tuple[str, Job | None, str]:
    """Return id, job and expected name of the run's job: that of its number, else a live one of its name, noted."""
    row, name = snapshot.jobs.get(job_id), expected_name(directory, job_id)
    if row is None or row.is_other(name):
        job = snapshot.jobs.get(snapshot.names.get(directory.run_id, ""))
        if job is not None and not job.is_final:
            with contextlib.suppress(OSError):
                keep_job(directory, job.job_id)
            return job.job_id, job, directory.run_id
    return job_id, row, name


def _holds_lock(directory: RunDir) -> bool:
    """Return whether a supervisor of the run lives, as far as this host sees locks of others."""
    with contextlib.suppress(OSError):  # not every shared disk has locks
        return is_locked(directory.lock)
    return False


def _describe_other(directory: RunDir, job: Job, name: str, record: RecordState) -> LivenessReport:
    """Return the report on a run whose job's number another job has. A job that was renamed looks the same."""
    if _holds_lock(directory):
        return LivenessReport(Liveness.ALIVE, job_id=job.job_id)
    text = f"Slurm's job {job.job_id} is called {job.name[:60]!r}, not {name}: another job, or renamed."
    return LivenessReport(Liveness.PENDING if record == "none" else Liveness.UNKNOWN, text, job_id=job.job_id)


def _keep_end(
    directory: RunDir, row: Job | None, job_id: str, name: str, left: tuple[float, float] | None
) -> tuple[Job, float]:
    """Return how Slurm says that a job ended, and when this was heard first: Slurm forgets, so it is kept.

    ``left``: when a job that never wrote a record was listed last, as waiting, and when it was not any more.

    A job that Slurm has started again since is returned as it is, and not kept.
    """
    kept = read_json(directory.job_end)
    if kept is not None:
        with contextlib.suppress(ValueError):
            job = decode(Job, kept.get("job"), strict=True)
            if row is None or row.is_final:
                return job, _number(kept.get("heard_s"))
    try:
        job = describe_job(job_id)
    except SlurmError:
        if row is None:
            raise
        job = row
    if row is not None and not job.state:
        job = row
    if job.is_other(name):
        return job, 0.0
    output = _read_output(directory)
    job, heard_s = job.explain(output), time.time()
    if not job.state and not output and left is not None:
        job = _explain_absence(job, *left)
    if job.is_final or not job.state:
        with contextlib.suppress(OSError):
            write_json(directory.job_end, {"job": asdict(job), "heard_s": heard_s})
    return job, heard_s


def _explain_absence(job: Job, listed_s: float, missed_s: float) -> Job:
    """Return a forgotten job, as cancelled where it cannot have begun between two looks at the queue.

    Slurm keeps nothing of an element of an array that is cancelled while it waits. One that begins is listed
    until the controller forgets it, and by accounting and the jobs' log for long.
    """
    with contextlib.suppress(SlurmError):
        remembers_s, runs_since_s = read_memory()
        is_missed_soon = missed_s + _LISTING_S - listed_s < remembers_s
        is_unlisted = "_" in job.job_id and job.source == UNLISTED
        if runs_since_s < listed_s and (is_missed_soon or is_unlisted):  # a new controller may have lost its jobs
            return replace(job, state="CANCELLED", source=ABSENCE)
    return replace(job, source=WAITED)


def _unreachable(job_id: str, record: RecordState, snapshot: QueueSnapshot, why: str = "") -> LivenessReport:
    """Return the report on a job while Slurm does not answer: a job that waited may still wait."""
    why = why or snapshot.error
    facts = {"host": "Slurm", "since": snapshot.since, "why": why}
    liveness = Liveness.PENDING if record == "none" else Liveness.UNREACHABLE
    return LivenessReport(liveness, "Slurm does not answer: this is the last known state.", facts, job_id)


def has_end(directory: RunDir) -> bool:
    """Return whether the record says how the run ended; False where it cannot be read now."""
    with contextlib.suppress(OSError):
        return _read_record_state(directory)[0] == "ended"
    return False


def _starts_again(directory: RunDir) -> bool:
    """Return whether an attempt ended a moment ago, and its supervisor wrote that another one follows."""
    try:
        events, status = _read_newest_events(directory)
    except OSError:
        return False
    is_recent = time.time() - status.st_mtime < _STARTS_AGAIN_WITHIN_S
    return is_recent and bool(events) and events[-1]["kind"] == "retrying"


def _read_record_state(directory: RunDir) -> tuple[RecordState, float, bool]:
    """Return how far the record is, by a fresh look at its end, when it was written (POSIX), and a doubt of its end.

    The command can write an end too, while a supervisor holds the lock.
    """
    try:
        events, status = _read_newest_events(directory)
    except OSError as error:
        if is_absent(error):
            return "none", 0.0, False
        raise
    if not events:
        return ("live" if status.st_size else "none"), status.st_mtime, False
    has_end = events[-1]["kind"] in ENDING
    is_doubted = has_end and _holds_lock(directory)
    return ("ended" if has_end and not is_doubted else "live"), status.st_mtime, is_doubted


def _read_newest_events(directory: RunDir) -> tuple[Sequence[RecordEvent], os.stat_result]:
    with directory.events.open("rb") as file:
        status = os.fstat(file.fileno())
        offset = max(0, status.st_size - _TAIL_BYTES)
        return parse_events(os.pread(file.fileno(), _TAIL_BYTES, offset)), status


def _read_output(directory: RunDir) -> str:
    try:
        return read_end(directory.path / "slurm.out", _TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
