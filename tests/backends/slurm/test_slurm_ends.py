"""What Slurm's programs say together of a job that is not in the queue; each is played by a script."""

import os
import time
from pathlib import Path

import pytest

from mcp_server.record.events import EventLog
from mcp_server.record.run_directory import RunDir, write_json
from mcp_server.record.slurm.commands import describe_job
from mcp_server.record.slurm.job import begin_cancel
from mcp_server.record.slurm.job_states import Job
from mcp_server.record.slurm.job_watch import JobWatch, job_of
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, LivenessReport
from mcp_server.system.lock_files import hold_lock

ELEMENT = "12_3"
NAME = "sweep-7kqz"
SPEC = RunSpec(run_id="cfm-7kqz")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's programs: the controller has run for an hour, forgets jobs after 300 s, and knows none."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    play(directory, "sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    play(directory, "scancel", "exit 0")
    play_controller(directory)
    return directory


def play(programs: Path, name: str, script: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def play_controller(
    programs: Path, says: str = "", *, remembers_s: int = 300, runs_for_s: int = 3600, log: str = ""
) -> None:
    kind = "jobcomp/filetxt" if log else "jobcomp/none"
    show = f"echo '{says}'" if says else "echo Invalid job id specified >&2; exit 1"
    config = f"BOOT_TIME = {int(time.time()) - runs_for_s}\\nMinJobAge = {remembers_s} sec\\n"
    config += f"JobCompType = {kind}\\nJobCompLoc = {log or '/var/log/slurm_jobcomp.log'}\\n"
    play(programs, "scontrol", f'[ "$2" = config ] && printf "{config}" && exit\n{show}')


def make_run(tmp_path: Path, job_id: str) -> RunDir:
    directory = RunDir(tmp_path / "runs" / "cfm-7kqz")
    directory.path.mkdir(parents=True)
    write_json(directory.job, {"job_id": job_id, "submitted_s": time.time() - 100})
    if "_" in job_id:
        array = tmp_path / "slurm" / "arrays" / NAME
        array.mkdir(parents=True)
        (array / "3").symlink_to(directory.path)
        (directory.path / "batch.sh").symlink_to(array / "batch.sh")
    return directory


def miss(tmp_path: Path, directory: RunDir, monkeypatch: pytest.MonkeyPatch, state: str = "PENDING") -> LivenessReport:
    """Return the report on a job that a query lists in ``state``, and the next one does not."""
    monkeypatch.setattr("mcp_server.record.slurm.queue.QUIET_S", 0.0)
    job_id = job_of(directory)
    first = JobWatch(Queue(tmp_path, lambda: {job_id: (Job.of(job_id, state), NAME if "_" in job_id else SPEC.run_id)}))
    assert first.liveness(directory, SPEC).liveness is (Liveness.PENDING if state == "PENDING" else Liveness.ALIVE)
    reports = [
        JobWatch(Queue(tmp_path, dict)).liveness(directory, SPEC) for _ in range(2)
    ]  # the second by what is kept
    assert reports[0] == reports[1]
    assert reports[0].liveness is Liveness.DEAD
    return reports[0]


def test_a_waiting_element_that_is_missed_before_slurm_forgets_an_end_was_cancelled(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = miss(tmp_path, make_run(tmp_path, ELEMENT), monkeypatch)
    assert report.end is not None
    assert report.end.state == "killed"
    assert report.end.reason == (
        "Slurm: job 12_3 left the queue while it waited: it was cancelled. The command never started."
    )


@pytest.mark.parametrize("source", ["sacct", "the jobs' log"])
def test_a_waiting_element_that_no_list_of_begun_jobs_has_was_cancelled(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    log = tmp_path / "jobs.log"
    log.write_text("JobId=90 ArrayJobId=12 ArrayTaskId=2 Name=sweep-7kqz JobState=COMPLETED\n")
    play_controller(programs, remembers_s=5, log=str(log) if source != "sacct" else "")
    if source == "sacct":
        play(programs, "sacct", "exit 0")
    report = miss(tmp_path, make_run(tmp_path, ELEMENT), monkeypatch)
    assert report.end is not None
    assert report.end.state == "killed"


@pytest.mark.parametrize(
    ("job_id", "remembers_s", "runs_for_s", "output", "lists"),
    [
        (ELEMENT, 5, 3600, "", False),  # it may have begun and ended meanwhile
        ("12", 5, 3600, "", True),  # a cancelled job would be in the list
        (ELEMENT, 300, -60, "", True),  # a new controller may have lost all jobs
        (ELEMENT, 300, 3600, "batch.sh: not found\n", True),  # it began
    ],
)
def test_a_missed_job_that_may_have_begun_is_lost(
    tmp_path: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_id: str,
    remembers_s: int,
    runs_for_s: int,
    output: str,
    *,
    lists: bool,
) -> None:
    play_controller(programs, remembers_s=remembers_s, runs_for_s=runs_for_s)
    if lists:
        play(programs, "sacct", "exit 0")
    directory = make_run(tmp_path, job_id)
    if output:
        (directory.path / "slurm.out").write_text(output)
    report = miss(tmp_path, directory, monkeypatch)
    assert report.end is not None
    assert report.end.state == "lost"
    assert ("it was cancelled, or could not begin" in report.end.reason) is (not output)


def test_a_job_that_ran_when_it_was_listed_last_is_lost(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_run(tmp_path, ELEMENT)
    EventLog(directory.events).append("started", "The command runs.", attempt=1)
    report = miss(tmp_path, directory, monkeypatch, "RUNNING")
    assert report.end is not None
    assert report.end.state == "lost"


def test_a_job_that_only_the_accounting_calls_live_is_not_running(programs: Path) -> None:
    play(programs, "sacct", "echo 'RUNNING|0:0|Unknown|n1|cfm-7kqz'")
    assert describe_job("12").state == ""
    play(programs, "sacct", "echo 'CANCELLED by 1000|0:0|1795446630|n1|cfm-7kqz'")
    job = describe_job("12")
    assert (job.state, job.by, job.ended_at) == ("CANCELLED", "user 1000", "2026-11-23T15:10:30Z")


def test_a_cancelled_job_is_gone_when_its_processes_are_although_the_accounting_has_its_end(
    tmp_path: Path, programs: Path
) -> None:
    play(programs, "sacct", "echo 'CANCELLED by 0|0:0|1795446630|n1|cfm-7kqz'")
    play_controller(programs, "JobId=12 JobName=cfm-7kqz JobState=COMPLETING Reason=None")
    departure = begin_cancel(make_run(tmp_path, "12"))
    assert departure is not None
    assert departure.step() is None
    play_controller(programs)
    assert departure.step() == ""


@pytest.mark.parametrize(
    ("controller", "age_s", "liveness"),
    [
        ("PENDING", 60, Liveness.PENDING),  # the end is that of the attempt before
        ("RUNNING", 60, Liveness.ALIVE),
        ("PREEMPTED", 5, Liveness.PENDING),  # Slurm ends the job a moment before it starts it again
        ("PREEMPTED", 60, Liveness.DEAD),
    ],
)
def test_a_job_that_slurm_starts_again_has_not_ended_although_queue_and_accounting_say_so(
    tmp_path: Path, programs: Path, controller: str, age_s: float, liveness: Liveness
) -> None:
    directory = make_run(tmp_path, "12")
    events = EventLog(directory.events)
    events.append("started", "The command runs.", attempt=1)
    events.append("retrying", "Attempt 1 failed. Slurm starts its job again.", attempt=1)
    os.utime(directory.events, (time.time() - age_s,) * 2)
    play(programs, "sacct", "echo 'PREEMPTED|0:0|1795446630|n1|cfm-7kqz'")
    play_controller(programs, f"JobId=12 JobName=cfm-7kqz JobState={controller} Reason=None")
    listed = {"12": (Job.of("12", "PREEMPTED"), SPEC.run_id)}
    report = JobWatch(Queue(tmp_path, lambda: listed)).liveness(directory, SPEC)
    assert report.liveness is liveness
    assert directory.job_end.exists() is (liveness is Liveness.DEAD)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "a state of tomorrow"])
def test_an_end_that_a_command_writes_is_doubted_whatever_slurm_says_of_its_job(
    tmp_path: Path, programs: Path, state: str
) -> None:
    directory = make_run(tmp_path, "12")
    EventLog(directory.events).append("ended", "finished", state="finished", exit_code=0)
    watch = JobWatch(Queue(tmp_path, lambda: {"12": (Job.of("12", state), SPEC.run_id)}))
    with hold_lock(directory.lock):
        assert watch.liveness(directory, SPEC) == LivenessReport(Liveness.ALIVE, job_id="12")
    assert watch.liveness(directory, SPEC).liveness is Liveness.DEAD
