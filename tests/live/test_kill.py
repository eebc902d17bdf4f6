"""Stopping real process trees, after every kind of confirmation."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import ElicitResult

from mcp_server.record import run_directory, run_processes
from mcp_server.record.run_directory import write_json
from mcp_server.record.run_processes import REAP_STEP_S, Reaping, ThisHost
from mcp_server.runs.stop import stop_run as stop
from mcp_server.system import processes
from tests.support.sandbox import Agent, Sandbox, until, until_async
from tests.support.service import serve

pytestmark = pytest.mark.anyio

STUBBORN = """
trap '' INT TERM HUP
setsid bash -c "trap '' INT TERM HUP; while :; do sleep 1; done" &
(setsid env -i bash -c "trap '' INT TERM HUP; while :; do sleep 1; done" &)
bash -c "trap '' TERM; sleep 300" &
touch ready
while :; do sleep 1; done
"""


def gentle(sandbox: Sandbox) -> None:
    """Let stubborn trees be killed after half a second rather than five."""
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.25\n")


def survivors(sandbox: Sandbox) -> list[str]:
    return [p.command for p in sandbox.own_processes() if "sleep" in p.command or "bash" in p.command]


async def test_a_first_call_stops_nothing_and_a_token_stops_the_whole_tree(sandbox: Sandbox) -> None:
    gentle(sandbox)
    # Another process with the same command, outside the run.
    other_process = subprocess.Popen(["bash", "-c", "while :; do sleep 1; done"])
    try:
        async with sandbox.agent() as agent:
            run_id = await agent.launch(STUBBORN, cwd=str(sandbox.path))
            await until_async((sandbox.path / "ready").exists)
            confirmation = await agent.call("kill_run", run_id=run_id, reason="test")
            assert confirmation["status"] == "confirmation_required"
            assert run_id in confirmation["message"]
            assert sandbox.run(run_id).state == "running"
            done = await agent.call(
                "kill_run", run_id=run_id, confirm_token=confirmation["confirm_token"], reason="test password=hunter22x"
            )
            again = await agent.call("kill_run", run_id=run_id, confirm_token=confirmation["confirm_token"])
        assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])
        assert done["signals_sent"] == ["SIGINT", "SIGTERM", "SIGKILL"]
        assert again["status"] == "already_ended"
        assert survivors(sandbox) == []
        assert other_process.poll() is None
        assert "test" in sandbox.run(run_id).events[-1]["text"]
        files = sandbox.rundir(run_id).path.rglob("*.json*")
        assert not [each for each in files if "hunter22x" in each.read_text(errors="replace")]
    finally:
        other_process.kill()
        other_process.wait()


async def test_a_token_is_for_one_run_and_one_use(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        one, two = await agent.launch("sleep 300"), await agent.launch("sleep 300")
        token = (await agent.call("kill_run", run_id=one))["confirm_token"]
        refused = await agent.refusal("kill_run", run_id=two, confirm_token=token)
        assert f"is still running; the confirm_token is for another run ({one}), and is still valid for it" in refused
        assert (await agent.call("kill_run", run_id=one, confirm_token=token))["status"] == "killed"
        assert "still running" in await agent.refusal("kill_run", run_id=two, confirm_token=token), "used up"
    assert (sandbox.run(one).state, sandbox.run(two).state) == ("killed", "running")


A_PERSON_NEEDS_S = 0.6  # longer than a program that cancels


async def type_the_id(run_id: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"run_id": run_id})


async def type_another_id(_: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"run_id": "another"})


async def accept_the_empty_form(_: str) -> ElicitResult:
    return ElicitResult(action="accept", content={})


async def decline(_: str) -> ElicitResult:
    return ElicitResult(action="decline")


async def press_escape(_: str) -> ElicitResult:
    await anyio.sleep(A_PERSON_NEEDS_S)
    return ElicitResult(action="cancel")


async def cancel_at_once(_: str) -> ElicitResult:
    return ElicitResult(action="cancel")


@contextlib.asynccontextmanager
async def client(sandbox: Sandbox, habit: str, elicit: Any) -> AsyncIterator[Agent]:
    """A client with one of the habits: a protocol over a transport."""
    transport, era = habit.split()
    if transport == "stdio":
        async with sandbox.agent(elicit=elicit, legacy=era == "legacy") as agent:
            yield agent
        return
    with serve(sandbox) as service:
        async with service.agent(elicit=elicit, legacy=era == "legacy") as agent:
            yield agent


HABITS = ["stdio modern", "stdio legacy", "http modern", "http legacy"]


ANSWERS = (  # the one that stops the run comes last
    (type_another_id, "declined"),
    (accept_the_empty_form, "declined"),
    (decline, "declined"),
    (press_escape, "declined"),
    (type_the_id, "killed"),
)


@pytest.mark.parametrize("habit", HABITS)
async def test_a_person_is_asked_where_the_client_can(sandbox: Sandbox, habit: str) -> None:
    questions: list[Any] = []
    answers = [answer for answer, _ in ANSWERS]
    run_id = ""

    async def elicit(_context: Any, params: Any) -> ElicitResult:
        questions.append(params)
        return await answers[len(questions) - 1](run_id)

    async with client(sandbox, habit, elicit) as agent:
        run_id = await agent.launch("sleep 300")
        for number, (answer, status) in enumerate(ANSWERS):
            result = await agent.call("kill_run", run_id=run_id)
            assert len(questions) == number + 1
            assert result["status"] == status, (answer, result)
            assert "confirm_token" not in result
            assert (f"runward kill {run_id}" in result["message"]) == (status == "declined")
            assert sandbox.run(run_id).state == ("killed" if status == "killed" else "running")
    for question in questions:
        assert run_id in question.message
        # Codex shows no form with these.
        assert not {"title", "description"} & question.requested_schema.keys()


@pytest.mark.parametrize("habit", HABITS)
async def test_a_client_that_cancels_by_itself_gets_a_token(sandbox: Sandbox, habit: str) -> None:
    async def elicit(_context: Any, _params: Any) -> ElicitResult:
        return await cancel_at_once("")

    async with client(sandbox, habit, elicit) as agent:
        run_id = await agent.launch("sleep 300")
        for _ in range(50):  # a busy machine can make it as slow as a person, which stops nothing either
            result = await agent.call("kill_run", run_id=run_id)
            assert sandbox.run(run_id).state == "running"
            if result["status"] != "declined":
                break
        assert result["status"] == "confirmation_required"
        done = await agent.call("kill_run", run_id=run_id, confirm_token=result["confirm_token"])
    assert done["status"] == "killed"


@pytest.mark.parametrize("habit", HABITS)
async def test_a_question_that_nobody_answers_stops_nothing(sandbox: Sandbox, habit: str) -> None:
    asked = anyio.Event()

    async def elicit(_context: Any, _params: Any) -> ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with client(sandbox, habit, elicit) as agent:
        run_id = await agent.launch("sleep 300")
        async with anyio.create_task_group() as calls:
            calls.start_soon(partial(agent.call, "kill_run", run_id=run_id))
            await asked.wait()
            calls.cancel_scope.cancel()  # the client gives up
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"


@pytest.mark.parametrize("environ", [{}, {"RUNWARD_KILL_POLICY": "human"}], ids=["file", "environment"])
async def test_under_the_human_policy_no_token_is_given(sandbox: Sandbox, environ: dict[str, str]) -> None:
    if not environ:
        (sandbox.path / "state").mkdir(mode=0o700)
        (sandbox.path / "state" / "config.toml").write_text('kill_policy = "human"\n')
    sandbox.environ.update(environ)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        result = await agent.call("kill_run", run_id=run_id)
        assert "confirm_token" not in result
        assert f"runward kill {run_id}" in result["message"]
        assert "person" in await agent.refusal("kill_run", run_id=run_id, confirm_token="guessed")
    assert sandbox.run(run_id).state == "running"


async def test_a_configuration_that_cannot_be_read_holds_up_no_stop_and_leaves_it_to_people(sandbox: Sandbox) -> None:
    questions = []

    async def elicit(_: Any, question: Any) -> ElicitResult:
        questions.append(question.message)
        return ElicitResult(action="accept", content={"run_id": run_id})

    state = sandbox.path / "state"
    async with sandbox.agent() as agent, sandbox.agent(elicit=elicit) as of_person:
        run_id = await agent.launch("sleep 300")
        for name in ("config.toml", "hosts.toml", "secrets.env"):
            os.mkfifo(state / name, 0o600)
        asked = await agent.call("kill_run", run_id=run_id)
        assert "confirm_token" not in asked
        assert "only a person may stop runs, as its settings may say so and cannot be read" in asked["message"]
        assert "config.toml: [Errno 22] not a regular file" in asked["message"]
        told = await agent.refusal("launch_run", command="true", secrets=["KEY"])
        assert "not a regular file" in told
        assert "A person should fix the file" in told
        assert (await agent.call("list_runs"))["total"] == 1
        assert (await of_person.call("kill_run", run_id=run_id))["status"] == "killed"
        assert len(questions) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["events.jsonl", "spec.json"])
async def test_a_run_whose_record_lost_a_file_is_listed_and_stopped(sandbox: Sandbox, name: str) -> None:
    gentle(sandbox)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo begun; sleep 300")
        await until_async(lambda: "begun" in sandbox.log(run_id))
    (sandbox.rundir(run_id).path / name).unlink()
    async with sandbox.agent_in_process() as agent:
        assert [run["run_id"] for run in (await agent.call("list_runs"))["runs"]] == [run_id]
        stopped = await agent.kill(run_id, force_other_owner=True)
        assert (stopped["status"], stopped["message"]) == ("killed", f"{run_id} was stopped.")
        assert stopped["survivors"] == []
        assert (await agent.call("list_runs"))["runs"][0]["state"] == "killed"
    assert survivors(sandbox) == []


async def test_a_person_kills_by_typing_the_id_on_a_terminal(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
    assert sandbox.runward("kill", run_id).returncode == 2, "no terminal, no person to ask"
    for typed, status, state in (("wrong", 1, "running"), (run_id, 0, "killed")):
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "mcp_server", "kill", run_id]
        asking = subprocess.Popen(words, env=sandbox.environ, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, f"{typed}\n".encode())
        assert asking.wait(30) == status
        os.close(ours)
        assert sandbox.run(run_id).state == state


async def test_another_owners_run_needs_force(sandbox: Sandbox) -> None:
    async with sandbox.agent(RUNWARD_OWNER="alice") as agent:
        run_id = await agent.launch("sleep 300")
    async with sandbox.agent(RUNWARD_OWNER="bob") as agent:
        assert "belongs to 'alice'" in await agent.refusal("kill_run", run_id=run_id)
        assert sandbox.run(run_id).state == "running"
        done = await agent.kill(run_id, force_other_owner=True)
    assert done["status"] == "killed"


async def test_a_stuck_supervisor_does_not_save_its_run(sandbox: Sandbox) -> None:
    gentle(sandbox)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(STUBBORN, cwd=str(sandbox.path))
        await until_async((sandbox.path / "ready").exists)
        os.kill(sandbox.supervisor(run_id), signal.SIGSTOP)
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])
    assert survivors(sandbox) == []


async def test_what_a_dead_supervisor_left_behind_is_listed_and_can_be_stopped(sandbox: Sandbox) -> None:
    gentle(sandbox)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            "trap '' HUP INT TERM; touch ready; while :; do sleep 1; done", cwd=str(sandbox.path)
        )
        await until_async((sandbox.path / "ready").exists)
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        lost = (await agent.call("wait_run", run_ids=run_id, timeout_s=60))["runs"][0]
        assert lost["state"] == "lost"
        assert "exit_code" not in lost
        assert any(p["command"].startswith("/bin/bash") for p in lost["leftovers"])
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])
    assert survivors(sandbox) == []


async def test_what_no_environment_shows_is_stopped_although_the_guard_ends_first(sandbox: Sandbox) -> None:
    gentle(sandbox)
    deaf = "trap '' HUP INT TERM; touch ready; while :; do sleep 1; done"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f'env -i PATH="$PATH" bash -c "{deaf}" & wait', cwd=str(sandbox.path))
        await until_async((sandbox.path / "ready").exists)
        below_guard = processes.descendants(sandbox.run(run_id).at_start["guard_pid"])
        hidden = set(below_guard) - set(processes.find_by_variable("RUNWARD_RUN_ID", run_id))
        assert hidden
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])
    assert [p for p in hidden if processes.find_process(p.pid) == p] == []


async def test_what_no_environment_shows_is_stopped_if_the_supervisor_dies_after_the_run_was_read(
    sandbox: Sandbox,
) -> None:
    gentle(sandbox)
    deaf = "trap '' HUP INT TERM; touch ready; while :; do sleep 1; done"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f'env -i PATH="$PATH" bash -c "{deaf}" & wait', cwd=str(sandbox.path))
        await until_async((sandbox.path / "ready").exists)
        read = sandbox.run(run_id)
        assert read.state == "running"
        hidden = set(processes.descendants(read.at_start["guard_pid"]))
        supervisor = sandbox.supervisor(run_id)
        os.kill(supervisor, signal.SIGKILL)
        await until_async(lambda: processes.find_process(supervisor) is None)
        reaping = Reaping(ThisHost(), sandbox.path / "state" / "runs" / run_id, read)
        while (result := reaping.step()) is None:  # noqa: ASYNC110 - no event announces the end of a process
            await anyio.sleep(REAP_STEP_S)
    assert result.survivors == ()
    assert [p for p in hidden if processes.find_process(p.pid) == p] == []


async def test_an_ended_run_is_left_as_it_is(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3")
        await agent.end(run_id)
        assert (await agent.call("kill_run", run_id=run_id))["status"] == "already_ended"
    assert not sandbox.rundir(run_id).stop.exists()


def test_a_reused_number_is_never_signalled() -> None:
    child = subprocess.Popen(["sleep", "300"])
    try:
        process = until(lambda: processes.find_process(child.pid))
        earlier = processes.Process(process.pid, process.started - 1, process.parent, process.session)
        assert not processes.send_signal(earlier, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


# --- a supervisor in another process namespace: alive by its lock, and no signal reaches it


async def test_a_supervisor_that_no_signal_reaches_finds_the_request(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        monkeypatch.setattr(run_processes, "supervisor_of", lambda *_: None)
        done = await agent.kill(run_id)
    assert (done["status"], done["state"], done["survivors"]) == ("killed", "killed", [])


async def test_a_stop_that_nobody_answers_is_withdrawn_and_said(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def write_for_nobody(path: Path, value: dict[str, Any]) -> None:
        """The supervisor looks for the request too late: after it was withdrawn."""
        written.append(path)

    monkeypatch.setattr(stop, "_UNSEEN_ANSWER_WITHIN_S", 0.2)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.05; done", cwd=str(sandbox.path))
        monkeypatch.setattr(run_processes, "supervisor_of", lambda *_: None)
        monkeypatch.setattr(run_directory, "write_json", write_for_nobody)
        confirmation = await agent.call("kill_run", run_id=run_id)
        refusal = await agent.refusal("kill_run", run_id=run_id, confirm_token=confirmation["confirm_token"])
        assert "Not stopped: the supervisor of" in refusal
        assert written == [sandbox.rundir(run_id).stop]
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"


async def test_a_request_that_has_expired_stops_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.05; done", cwd=str(sandbox.path))
        write_json(sandbox.rundir(run_id).stop, {"by": "a server", "reason": "old", "expires_at": time.time() - 1})
        os.kill(sandbox.supervisor(run_id), signal.SIGWINCH)  # wakes it, as an attaching person does
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"
