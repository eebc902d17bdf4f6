"""Slurm's words and a run's record become one report; a launch becomes one batch script. Nothing is started."""

import asyncio
import json
import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.slurm import slurm_backend
from mcp_server.backends.slurm.batch_script import (
    check_request,
    list_options,
    read_directives,
    render_batch_script,
    warn_of_directives,
)
from mcp_server.cli.setup import doctor
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.events import EventLog
from mcp_server.record.run_directory import RunDir, write_json
from mcp_server.record.slurm import job, job_watch
from mcp_server.record.slurm.commands import (
    PROGRAMS,
    SlurmError,
    clean_environment,
    is_unsure,
    parse_facts,
    parse_queue,
    read_time,
    submit,
)
from mcp_server.record.slurm.job_states import FINAL, HELD, WAITING, Job, RecordState, judge
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.store.state_home import StateHome
from mcp_server.supervisor.jobs.slurm_job import SlurmJob

UNKNOWN = "by whom is unknown, as no accounting says it"
SPEC = RunSpec(run_id="cfm-7kqz", run_dir="/home/a b/runs/cfm-7kqz", backend="slurm")

# Slurm state, record -> liveness, and the run's state where Slurm alone says how it ended.
TABLE: list[tuple[str, RecordState, Liveness, str]] = [
    ("PENDING", "none", Liveness.PENDING, ""),
    ("PENDING", "live", Liveness.PENDING, ""),  # requeued
    ("CONFIGURING", "none", Liveness.PENDING, ""),
    ("REQUEUE_HOLD", "live", Liveness.PENDING, ""),
    ("RUNNING", "none", Liveness.PENDING, ""),
    ("RUNNING", "live", Liveness.ALIVE, ""),
    ("SUSPENDED", "live", Liveness.ALIVE, ""),
    ("COMPLETING", "live", Liveness.ALIVE, ""),
    ("COMPLETED", "live", Liveness.DEAD, "lost"),
    ("COMPLETED", "none", Liveness.DEAD, "lost"),
    ("FAILED", "live", Liveness.DEAD, "lost"),
    ("CANCELLED", "none", Liveness.DEAD, "killed"),
    ("CANCELLED by 1000", "live", Liveness.DEAD, "killed"),
    ("TIMEOUT", "live", Liveness.DEAD, "timed_out"),
    ("DEADLINE", "live", Liveness.DEAD, "timed_out"),
    ("OUT_OF_MEMORY", "live", Liveness.DEAD, "failed"),
    ("OUT_OF_ME+", "live", Liveness.DEAD, "failed"),
    ("PREEMPTED", "live", Liveness.DEAD, "failed"),
    ("NODE_FAIL", "live", Liveness.DEAD, "failed"),
    ("BOOT_FAIL", "none", Liveness.DEAD, "failed"),
    ("", "live", Liveness.DEAD, "lost"),  # forgotten
    ("", "none", Liveness.DEAD, "lost"),
    ("TELEPORTING", "live", Liveness.UNKNOWN, ""),
]


@pytest.mark.parametrize(("words", "record", "liveness", "state"), TABLE)
def test_a_state_of_slurm_and_the_record_are_one_report(
    words: str, record: RecordState, liveness: Liveness, state: str
) -> None:
    report = judge(Job.of("12", words), record)
    assert (report.liveness, report.end.state if report.end else "", report.job_id) == (liveness, state, "12")


@pytest.mark.parametrize("word", sorted(WAITING | HELD | FINAL.keys() | {"", "TELEPORTING"}))
def test_an_end_in_the_record_needs_no_word_of_slurm(word: str) -> None:
    report = judge(Job.of("12", word), "ended")
    assert (report.liveness, report.end) == (Liveness.DEAD, None)


def test_the_output_of_the_job_proves_what_its_state_does_not_say() -> None:
    killed = "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-23T02:19:43"
    memory = "slurmstepd-n1: error: StepId=12.batch exceeded memory limit (235 > 209), being killed"
    assert Job.of("12", "FAILED").explain(f"{memory}\n{killed} ***\n").state == "OUT_OF_MEMORY"
    assert Job.of("12", "").explain(f"{killed} DUE TO TIME LIMIT ***").state == "TIMEOUT"
    assert Job.of("12", "FAILED").explain(f"{memory}\n{killed} DUE TO JOB REQUEUE ***\n").state == "FAILED"
    assert Job.of("12", "NODE_FAIL").explain(f"{killed} ***").state == "NODE_FAIL"
    nobody = judge(Job.of("12", "FAILED", nodes="n2", exit_code="0:9"), "live").end
    assert nobody is not None
    assert nobody.reason.startswith("Slurm: FAILED of job 12 on n2 (exit code 0:9); its supervisor wrote no end.")
    assert nobody.reason.endswith('backend_options={"exclude": "n2"} avoids the node.')
    report = judge(Job.of("12", "FAILED").explain("batch.sh: line 9: python3.9: not found\n"), "none")
    assert report.end is not None
    assert report.end.reason.endswith(
        "The command never started. Its output ends: batch.sh: line 9: python3.9: not found"
    )


@pytest.mark.parametrize(
    ("controller", "daemon", "why"),
    [
        ("JobState=COMPLETING Restarts=1 Reason=None", "", "Slurm requeues the job"),
        ("", "DUE TO JOB REQUEUE ***", "Slurm requeues the job"),  # it does not answer
        ("JobState=COMPLETING Restarts=0 Reason=None", "DUE TO JOB REQUEUE ***", "Slurm requeues the job"),
        ("", "DUE TO PREEMPTION ***", "another job took its nodes (preempted)"),
        ("JobState=COMPLETING Reason=None", "DUE TO TIME LIMIT ***", "the time limit of its job has passed"),
        ("JobState=COMPLETING Reason=TimeLimit", "***", "the time limit of its job has passed"),
        ("JobState=CANCELLED", "***", f"its job was cancelled in Slurm, {UNKNOWN}"),
        ("", "***", f"its job was cancelled in Slurm, {UNKNOWN}"),
        ("JobState=RUNNING Restarts=0", "***", None),  # a signal by scancel
        ("JobState=RUNNING Restarts=0", "", None),
        ("", "", None),
    ],
)
def test_why_slurm_ends_a_job_is_its_own_word_whoever_says_it(
    tmp_path: Path, controller: str, daemon: str, why: str | None
) -> None:
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{controller}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "slurm.out").write_text(
        "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT … DUE TO JOB REQUEUE ***\n"
    )
    job = SlurmJob.of(replace(SPEC, run_dir=str(tmp_path)), {"PATH": str(tmp_path), "SLURM_JOB_ID": "12"})
    assert job is not None
    with (tmp_path / "slurm.out").open("a") as file:
        file.write(
            f"slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-23T06:12:48 {daemon}\n" if daemon else ""
        )
    stop = job.explain_stop()
    assert (stop.reason if stop else None) == why
    assert job.is_requeued is (why == "Slurm requeues the job")


@pytest.mark.parametrize(
    ("says", "by", "stopper"),
    [
        ("CANCELLED by 0", "by user 0", "person"),
        ("CANCELLED by 987654321", "by user 987654321", "person"),
        ("CANCELLED", UNKNOWN, ""),
        ("COMPLETING", UNKNOWN, ""),
    ],
)
def test_who_cancelled_a_job_that_ran_is_the_word_of_the_accounting(
    tmp_path: Path, says: str, by: str, stopper: str
) -> None:
    for program, text in (("scontrol", "JobState=COMPLETING Reason=None"), ("sacct", says)):
        (tmp_path / program).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / program).chmod(0o755)
    job = SlurmJob.of(replace(SPEC, run_dir=str(tmp_path)), {"PATH": str(tmp_path), "SLURM_JOB_ID": "12"})
    assert job is not None
    (tmp_path / "slurm.out").write_text("slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-23T06:12:48 ***\n")
    stop = job.explain_stop()
    assert stop is not None
    assert (stop.reason, stop.stopped_by) == (f"its job was cancelled in Slurm, {by}", stopper)


def test_a_supervisor_that_wrote_after_slurm_was_asked_has_started() -> None:
    assert judge(Job.of("12", "PENDING"), "live", started_since=True).liveness is Liveness.ALIVE
    assert judge(Job.of("12", "PENDING"), "none", started_since=True).liveness is Liveness.PENDING


def test_what_a_shared_disk_may_still_hold_back_is_waited_for() -> None:
    for words, liveness in (("COMPLETED", Liveness.UNKNOWN), ("", Liveness.UNKNOWN), ("TIMEOUT", Liveness.DEAD)):
        assert judge(Job.of("12", words), "live", settled=False).liveness is liveness
    assert judge(Job.of("12", "FAILED"), "none", settled=False).liveness is Liveness.PENDING


def test_the_end_by_slurm_says_what_who_and_what_to_do() -> None:
    cancelled = judge(Job.of("12", "CANCELLED by 1000", ended_at="2026-11-23T02:00:00Z"), "none").end
    assert cancelled is not None
    assert cancelled.reason == "Slurm: CANCELLED of job 12 by user 1000. The command never started."
    assert (cancelled.stopped_by, cancelled.ended_at) == ("person", "2026-11-23T02:00:00Z")
    memory = judge(Job.of("12", "OUT_OF_MEMORY", nodes="n1", exit_code="0:125"), "live").end
    assert memory is not None
    assert memory.failure is not None
    assert memory.failure["line"] == "Slurm: OUT_OF_MEMORY of job 12 on n1 (exit code 0:125)"
    assert (memory.failure["kind"], memory.failure["action"]) == ("oom_host", "retry_changed")
    assert judge(Job.of("12", "PENDING", reason="(Resources)", start_at="2026-11-23T05:00:00Z"), "none").reason == (
        "Resources, expected to start 2026-11-23T05:00:00Z"
    )


# --- what its programs print


def test_doctor_says_what_a_slurm_is_and_whether_its_nodes_see_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "sbatch": "echo slurm 22.05.8",
        "sinfo": f"printf 'debug|up|{platform.node()}\\nold|inact|n1\\ndebug|up|n1\\n'",
        "scontrol": "printf 'AccountingStorageType   = accounting_storage/none\\nMinJobAge               = 300 sec\\n'",
    }
    for program in (*PROGRAMS, "sinfo"):
        (tmp_path / program).write_text(f"#!/bin/sh\n{answers.get(program, 'exit 1')}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, disk = list(doctor._slurm(StateHome(tmp_path)))
    assert (found.verdict, found.detail) == (
        "ok",
        "22.05.8; partitions up: debug; no accounting: an ended job is forgotten after 300 s",
    )
    assert (disk.verdict, disk.detail) == (
        "warning",
        f"{tmp_path} is on a disk of this host, which n1 and other nodes may not see",
    )
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    (away,) = doctor._slurm(StateHome(tmp_path))
    assert (away.verdict, away.detail) == ("warning", "Unable to contact slurm controller.")


def test_a_queue_is_read_by_its_fields_whatever_other_jobs_are_called() -> None:
    text = "12|PENDING|1795399628||Priority|cfm-7kqz\n13_4|RUNNING|1795399628|n1|None|a|b name\nnoise\n"
    jobs = parse_queue(text)
    assert list(jobs) == ["12", "13_4"]
    assert jobs["12"][0].wait_text == "Priority, expected to start 2026-11-23T02:07:08Z"
    assert jobs["13_4"][1] == "a|b name"
    assert read_time("N/A") == read_time("Unknown") == read_time("0") == ""


def test_facts_of_scontrol_are_pairs() -> None:
    facts = parse_facts("JobId=12 JobName=x JobState=TIMEOUT ExitCode=0:15 TRES=cpu=1,mem=4M EndTime=1795399628")
    assert (facts["JobState"], facts["ExitCode"], facts["TRES"]) == ("TIMEOUT", "0:15", "cpu=1,mem=4M")


def test_the_job_inherits_neither_secrets_nor_an_outer_job() -> None:
    environ = {"PATH": "/bin", "HF_TOKEN": "x", "SLURM_JOB_ID": "7", "SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": "lab"}
    environ |= {"SBATCH_PARTITION": "cpu", "SBATCH_SIGNAL": "B:9@1"}
    assert clean_environment(environ, ["partition"]) == {
        "PATH": "/bin",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_TIME_FORMAT": "%s",
    }


def test_one_query_serves_all_runs_and_servers_and_a_failure_keeps_what_was_known(tmp_path: Path) -> None:
    answers: list[dict[str, tuple[Job, str]] | SlurmError] = [{"12": (Job.of("12", "RUNNING"), "cfm-7kqz")}]
    asked = []

    def ask() -> dict[str, tuple[Job, str]]:
        asked.append(time.time())
        if isinstance(answer := answers[-1], SlurmError):
            raise answer
        return answer

    one, other = Queue(tmp_path, ask), Queue(tmp_path, ask)
    for _ in range(500):
        assert one.look().jobs["12"].state == "RUNNING"
        assert other.look().names == {"cfm-7kqz": "12"}
    assert len(asked) == 1
    answers.append(SlurmError("Unable to contact slurm controller."))
    failed = one.look(0)
    assert (failed.jobs["12"].state, failed.error) == ("RUNNING", "Unable to contact slurm controller")
    assert other.look(0).since >= failed.since
    assert len(asked) == 3


# --- the batch script


def test_a_launch_becomes_this_batch_script() -> None:
    spec = replace(
        SPEC, gpus=2, time_limit_s=3600, backend_options={"partition": "a100", "mem": "40G", "requeue": True}
    )
    assert render_batch_script(spec, ["/usr/bin/python3", "/home/a b/supervisor"]) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=cfm-7kqz\n"
        '#SBATCH --chdir="/home/a b/runs/cfm-7kqz"\n'
        '#SBATCH --output="/home/a b/runs/cfm-7kqz/slurm.out"\n'
        "#SBATCH --open-mode=append\n"
        "#SBATCH --signal=B:USR1@120\n"
        "#SBATCH --gres=gpu:2\n"
        "#SBATCH --time=64\n"
        "#SBATCH --partition=a100\n"
        "#SBATCH --mem=40G\n"
        "#SBATCH --requeue\n"
        "exec /usr/bin/python3 '/home/a b/supervisor'\n"
    )


def test_a_run_is_requeued_only_where_somebody_asked_for_retries() -> None:
    assert "no-requeue" in list_options(SPEC)
    assert "requeue" in list_options(replace(SPEC, recovery={"rules": [{"when": {}, "steps": []}]}))
    assert list_options(replace(SPEC, gpus=8, backend_options={"nodes": 2}))["gpus"] == "8"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backend_options": {"partitions": "a100"}}, "'partitions' is not a long option of sbatch"),
        ({"backend_options": {"job_name": "x"}}, "job-name is set by runward"),
        ({"backend_options": {"nodefile": "/etc/passwd"}}, "nodefile reads a file"),
        ({"backend_options": {"array": "1-9"}}, "array is set by runward"),
        ({"backend_options": {"comment": 'a"\n#SBATCH --uid=0'}}, "cannot stand in a script"),
        ({"gpus": [0, 1]}, "Slurm chooses them"),
        ({"gpus": 2, "backend_options": {"gres": "gpu:2"}}, "both ask for GPUs"),
        ({"gpus": 1, "require": {"power_limit_w": 300}}, "Slurm chooses the GPUs"),
    ],
)
def test_what_sbatch_does_not_know_or_runward_sets_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgument, match=says):
        check_request(LaunchRequest("true", backend="slurm", **arguments))


def test_slurm_is_asked_at_once_when_its_daemon_writes_that_a_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.record.slurm.queue.EXPECTED_S", 0.0)
    directory, asked = RunDir(tmp_path / "runs" / "cfm-7kqz"), []
    directory.path.mkdir(parents=True)
    write_json(directory.job, {"job_id": "12", "submitted_s": time.time() - 100})
    EventLog(directory.events).append("started", "The command runs.", attempt=1)
    (directory.path / "slurm.out").write_text("the prolog of the site\n")

    def ask() -> dict[str, tuple[Job, str]]:
        asked.append("squeue")
        return {"12": (Job.of("12", "RUNNING"), "cfm-7kqz")}

    jobs = job_watch.JobWatch(Queue(tmp_path, ask))
    for _ in range(5):
        assert jobs.liveness(directory, SPEC).liveness is Liveness.ALIVE
    assert len(asked) == 1
    with (directory.path / "slurm.out").open("a") as file:
        file.write("slurmstepd-n1: error: StepId=12.batch exceeded memory limit\n")
    for _ in range(3):
        jobs.liveness(directory, SPEC)
    assert len(asked) == 4


def test_an_end_that_slurm_told_is_kept_once_it_has_forgotten_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir(tmp_path / "runs" / "cfm-7kqz")
    directory.path.mkdir(parents=True)
    write_json(directory.job, {"job_id": "12", "submitted_s": time.time() - 100})
    EventLog(directory.events).append("started", "The command runs.", attempt=1)
    directory.handover.write_text("secret")
    known = [Job.of("12", "NODE_FAIL", nodes="n1")]
    monkeypatch.setattr(job_watch, "describe_job", lambda job_id: known.pop() if known else Job(job_id, ""))
    for _ in range(2):
        report = job_watch.JobWatch(Queue(tmp_path, dict)).liveness(directory, SPEC)
        assert report.end is not None
        assert report.end.failure is not None
        assert report.end.failure["line"] == "Slurm: NODE_FAIL of job 12 on n1"
    assert not directory.handover.exists()


# --- answers that lie, flood, or are of another job


def test_a_number_that_another_job_has_is_neither_believed_nor_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, spec = RunDir(tmp_path / "cfm-7kqz"), RunSpec(run_id="cfm-7kqz", created_at="2026-11-23T09:00:00Z")
    directory.path.mkdir()
    directory.events.write_text('{"seq": 1, "kind": "started", "at": "2026-11-23T09:00:00Z"}\n')
    write_json(directory.job, {"job_id": "12", "submitted_s": 1.0})
    theirs = parse_queue("12|CANCELLED|N/A|n1|None|theirs\n")
    report = job_watch.JobWatch(Queue(tmp_path, lambda: theirs)).liveness(directory, spec)
    assert (report.liveness, report.end) == (Liveness.UNKNOWN, None)
    assert "job 12 is called 'theirs', not cfm-7kqz" in report.reason
    monkeypatch.setattr(job, "ask_controller", lambda _: Job("12", "RUNNING", name="theirs"))
    sent: list[object] = []
    monkeypatch.setattr(job, "run_program", sent.append)
    with pytest.raises(RunwardError, match="It was left alone"):
        asyncio.run(slurm_backend.SlurmBackend().reap(directory, Run(spec, "running")))
    assert sent == []
    write_json(directory.job, {"job_id": "--user=alice"})
    assert job_watch.job_of(directory) == ""


def test_a_name_with_a_false_line_or_false_facts_changes_no_other_job() -> None:
    rows = parse_queue("12|RUNNING|N/A|n1|None|cfm-7kqz\n13|RUNNING|N/A|n1|None|x\n12|CANCELLED|N/A|n1|None|x\n")
    assert sorted(rows) == ["13"]
    facts = parse_facts("JobId=12 JobName=cfm JobState=RUNNING ExitCode=0:0 Comment=x JobState=FAILED JobId=13")
    assert (facts["JobId"], facts["JobState"]) == ("12", "RUNNING")
    ((job, _),) = parse_queue(f"12|PENDING|{'9' * 5000}|n1|\x1b[31mBad\x07{'x' * 900}|cfm\n").values()
    assert (job.start_at, job.reason) == ("", f"[31mBad{'x' * 93}")


@pytest.mark.parametrize(
    ("script", "says", "unsure"),
    [
        ("echo 7; echo Welcome", "did not answer with the id of a job", True),
        ("echo Socket timed out on send/recv operation >&2; exit 1", "Socket timed out", True),
        ("echo invalid partition >&2; exit 1", "invalid partition", False),
        ("yes", "printed more than 16 MiB", False),
    ],
)
def test_what_sbatch_says_is_bounded_and_a_job_that_may_be_there_is_not_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str, unsure: bool
) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SlurmError, match=says) as caught:
        submit(tmp_path / "batch.sh", [])
    assert is_unsure(caught.value) is unsure


SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --exclusive   # both
#SBATCH -p a100 -t12:00:00
#SBATCH --gres gpu:8
#SBATCH --job-name=cfm --output=%j.out

srun python train.py
#SBATCH --mem=1G
"""


def test_directives_are_those_before_the_first_command_that_a_launch_may_pass() -> None:
    assert read_directives(SCRIPT) == {
        "nodes": "2",
        "exclusive": True,
        "partition": "a100",
        "time": "12:00:00",
        "gres": "gpu:8",
    }
    assert read_directives("#!/bin/bash\n#SBATCH --comment='open\nsrun x\n") == {}


def test_directives_that_a_job_does_not_have_are_named_with_what_to_pass() -> None:
    (warning,) = warn_of_directives(SPEC, {"job.sh": SCRIPT})
    assert warning.startswith("job.sh: only sbatch reads its #SBATCH lines")
    options = json.loads(warning.partition("backend_options=")[2].removesuffix("."))
    check_request(LaunchRequest("bash job.sh", backend_options=options))
    assert list(warn_of_directives(replace(SPEC, backend_options=options), {"job.sh": SCRIPT})) == []
    (rest,) = warn_of_directives(
        replace(SPEC, gpus=16, time_limit_s=60.0, backend_options={"nodes": 2, "exclusive": True}), {"job.sh": SCRIPT}
    )
    assert rest.endswith('pass backend_options={"partition": "a100"}.')
    assert list(warn_of_directives(SPEC, {"run.sh": "srun python train.py\n"})) == []
