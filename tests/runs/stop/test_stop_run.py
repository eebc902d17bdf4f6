"""What the result of a stop says."""

import contextlib
import json
from pathlib import Path

import pytest

from mcp_server.record.run_processes import RunProcess
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.stop.stop_run import StopResult, check_gpu_memory, stop_run
from mcp_server.store.file_watch import FileWatch
from tests.support.ended_runs import Runs

RUN = Run(RunSpec(run_id="cfm-7kqz"), "killed")
SURVIVOR = RunProcess(812, "python train.py")
DAEMON = ". Its supervisor was dead: a daemon of it that had cleaned its environment could not be found"


@pytest.mark.parametrize(
    ("survivors", "unsupervised", "message"),
    [
        ((), False, "cfm-7kqz was stopped."),
        ((), True, f"cfm-7kqz was stopped{DAEMON}."),
        ((SURVIVOR,), False, "cfm-7kqz was stopped, but 1 process(es) could not be stopped."),
        ((SURVIVOR,), True, f"cfm-7kqz was stopped, but 1 process(es) could not be stopped{DAEMON}."),
    ],
)
def test_a_message_says_what_could_not_be_stopped_or_verified(
    survivors: tuple[RunProcess, ...], unsupervised: bool, message: str
) -> None:
    assert StopResult(RUN, ("SIGINT",), survivors, unsupervised).message == message


def test_a_stop_that_a_paused_supervisor_delays_is_not_complete() -> None:
    paused = StopResult(Run(RUN.spec, "running"), ("SIGKILL",), (SURVIVOR,), is_pending=True)
    assert paused.message == (
        "cfm-7kqz is not stopped yet, it is still running: python train.py (812) is paused or waits for a disk, where "
        "SIGKILL does nothing. It ends, as killed, once it goes on."
    )
    assert (paused.is_complete, StopResult(RUN, (), (SURVIVOR,)).is_complete) == (False, False)
    assert StopResult(RUN, ("SIGINT",), ()).is_complete


@pytest.mark.parametrize(
    ("command", "login"),
    [
        ("ssh -F config lab 'python t.py'", "`cd '/my code' && ssh -F config lab`"),
        ("ssh -F /etc/lab -p 2222 -J gate lab python t.py", "`ssh -F /etc/lab -p 2222 -J gate lab`"),
        ("ssh -i ~/.ssh/key lab python t.py", "`ssh -i ~/.ssh/key lab`"),
        ("bash start.sh", "`ssh lab`"),
    ],
)
def test_the_command_that_looks_at_a_far_side_reaches_it_as_the_run_did(command: str, login: str) -> None:
    run = Run(RunSpec(run_id="cfm-7kqz", command=command, cwd="/my code"), "lost")
    assert StopResult(run, (), (), far_side="lab").message.endswith(f"look there, e.g. with {login}.")


@pytest.mark.anyio
async def test_a_run_without_gpus_holds_no_gpu_memory_to_check() -> None:
    assert await check_gpu_memory(RUN, {}) is None


@pytest.mark.anyio
async def test_a_stop_that_was_seen_late_is_told_as_its_supervisor_recorded_it(tmp_path: Path) -> None:
    """A server that had no descriptor left while the supervisor stopped the run, in milliseconds."""
    runs = Runs(tmp_path)
    runs.add(state=None)
    running = Run(runs.store.observe("cfm-7kqz").spec, "running")
    end = {"seq": 9, "at": "2026-11-21T16:32:03.000Z", "kind": "ended", "text": "killed: SIGINT.", "state": "killed"}
    end |= {"attempt": 1, "elapsed_s": 3723.0, "signals_sent": ["SIGINT"]}
    with (runs.home.runs / "cfm-7kqz" / "events.jsonl").open("a") as file:
        file.write(json.dumps(end) + "\n")
    with contextlib.closing(FileWatch()) as watch:
        result = await stop_run(running, runs.store, watch, by="bob", reason="", stopped_by="agent")
    assert (result.message, result.signals_sent) == ("cfm-7kqz was stopped.", ("SIGINT",))


@pytest.mark.anyio
async def test_a_run_that_another_stop_has_ended_meanwhile_without_an_event_is_looked_at_once_more(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path)
    runs.add(state=None)
    running = Run(runs.store.observe("cfm-7kqz").spec, "running")
    (runs.home.runs / "cfm-7kqz" / "events.jsonl").write_text("")
    stop = {"by": "alice", "carried_out": {"at": "2026-11-21T16:32:03.000Z"}}
    (runs.home.runs / "cfm-7kqz" / "stop.json").write_text(json.dumps(stop))
    with contextlib.closing(FileWatch()) as watch:
        result = await stop_run(running, runs.store, watch, by="bob", reason="", stopped_by="agent")
    assert (result.run.state, result.survivors) == ("killed", ())
