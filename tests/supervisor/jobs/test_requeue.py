"""Where a run goes on after its supervisor died, and which runs do not go on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.events import EventKind, EventLog
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, now
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.jobs import slurm_job
from mcp_server.supervisor.jobs.slurm_job import FormerSupervision, read_former_supervision
from mcp_server.system import processes
from mcp_server.system.processes import Process

AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "cfm-7kqz")


def leave(rundir: RunDir, *events: tuple[EventKind, dict[str, Any]], attempts: int = 1, state: str = "") -> None:
    """Write what a supervisor left: its events, the directories of its attempts, the newest one's exit record."""
    for number in range(1, attempts + 1):
        rundir.attempt(number).mkdir(parents=True)
    rundir.path.mkdir(exist_ok=True)
    log = EventLog(rundir.events)
    for kind, facts in events:
        log.append(kind, "a text", **facts)
    if state:
        rundir.exit(attempts).write_text(json.dumps({"exit_code": 1, "state": state, "ended_at": AT}))


STARTED: tuple[EventKind, dict[str, Any]] = ("started", {"attempt": 1})
RETRYING: tuple[EventKind, dict[str, Any]] = (
    "retrying",
    {
        "attempt": 1,
        "params": {"num_envs": 2048},
        "environment": {"MASTER_PORT": "29501", "CUDA_VISIBLE_DEVICES": "GPU-x"},
    },
)


def test_a_run_goes_on_after_its_newest_attempt(rundir: RunDir) -> None:
    leave(rundir, STARTED, ("started", {"attempt": 2}), attempts=2)
    former = read_former_supervision(rundir)
    assert former is not None
    assert (former.attempt, former.attempt_ended, former.params, former.environment) == (2, False, None, {})
    assert former.started_at


def test_the_changes_of_the_newest_retry_stay_except_for_gpus_whose_leases_have_ended(rundir: RunDir) -> None:
    leave(rundir, STARTED, RETRYING, state="failed")
    former = read_former_supervision(rundir)
    assert former is not None
    assert (former.params, former.environment) == ({"num_envs": 2048}, {"MASTER_PORT": "29501"})
    assert former.attempt_ended, "it died in the pause"


def test_an_attempt_whose_directory_alone_is_there_is_counted(rundir: RunDir) -> None:
    leave(rundir, ("queued", {"position": 1}), attempts=1)
    assert read_former_supervision(rundir) == FormerSupervision(attempt=1)


def test_a_run_that_only_waited_for_gpus_starts_its_first_attempt(rundir: RunDir) -> None:
    leave(rundir, ("queued", {"position": 1}), attempts=0)
    assert read_former_supervision(rundir) == FormerSupervision()


@pytest.mark.parametrize("kind", ["ended", "refused"])
def test_a_run_with_an_end_does_not_go_on(rundir: RunDir, kind: EventKind) -> None:
    leave(rundir, STARTED, (kind, {"state": "failed"}))
    assert read_former_supervision(rundir) is None


@pytest.mark.parametrize("state", ["finished", "killed", "timed_out"])
def test_a_run_whose_command_finished_or_was_stopped_does_not_go_on(rundir: RunDir, state: str) -> None:
    leave(rundir, STARTED, state=state)
    assert read_former_supervision(rundir) is None


@pytest.mark.parametrize("state", ["failed", "lost"])
def test_a_run_whose_command_failed_as_its_supervisor_died_goes_on(rundir: RunDir, state: str) -> None:
    leave(rundir, STARTED, state=state)
    assert read_former_supervision(rundir) is not None


def test_a_run_whose_stop_was_carried_out_does_not_go_on(rundir: RunDir) -> None:
    leave(rundir, STARTED)
    rundir.stop.write_text(json.dumps({"by": "alice", "carried_out": {"at": now()}}))
    assert read_former_supervision(rundir) is None


def test_a_run_with_living_processes_does_not_go_on(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(rundir, STARTED)
    living = [Process(pid=2**22 + 1, started=1, parent=1, session=1)]
    monkeypatch.setattr(slurm_job, "_PROCESSES_PATIENCE_S", 0.2)
    monkeypatch.setattr(processes, "find_by_variable", lambda *_: living)
    assert read_former_supervision(rundir) is None
    monkeypatch.setattr(processes, "find_by_variable", lambda *_: [])
    assert read_former_supervision(rundir) is not None


def test_without_a_launcher_the_environment_is_that_of_this_process(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir.path.mkdir()
    for name, value in {"MINE": "1", "MY_TOKEN": "abcdefgh", "OTHER_TOKEN": "ijklmnop", "TMUX": "x"}.items():
        monkeypatch.setenv(name, value)
    before = os.umask(0o027)
    try:
        handover, text = FormerSupervision.take_environment(rundir, RunSpec(secrets=["MY_TOKEN", "LOST_TOKEN"]))
    finally:
        os.umask(before)
    assert (handover.env["MINE"], handover.secrets, handover.umask) == ("1", {"MY_TOKEN": "abcdefgh"}, 0o027)
    assert not {"MY_TOKEN", "OTHER_TOKEN", "TMUX"} & handover.env.keys()
    assert text == (
        "No launcher hands over an environment, so the command gets that of this process. "
        "It lacks these secrets: LOST_TOKEN."
    )


def test_a_launcher_that_still_waits_hands_its_environment_over(rundir: RunDir) -> None:
    rundir.path.mkdir()
    os.mkfifo(rundir.handover)
    launcher = os.open(rundir.handover, os.O_RDWR)
    try:
        os.write(launcher, Handover({"A": "1"}, {}).encode())
        handover, text = FormerSupervision.take_environment(rundir, RunSpec())
    finally:
        os.close(launcher)
    assert (handover.env, text) == ({"A": "1"}, "")


def test_a_launcher_that_has_died_is_done_without(rundir: RunDir) -> None:
    rundir.path.mkdir()
    os.mkfifo(rundir.handover)
    assert FormerSupervision.take_environment(rundir, RunSpec())[1].startswith("No launcher")
