"""Leases of cpu slots on a machine without GPUs: leased, refused, queued for and released as GPUs are."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.gpus.leases import Leases
from mcp_server.record.state import posix
from tests.support.sandbox import Agent, Sandbox, text_of, until, until_async

pytestmark = pytest.mark.anyio

# Ends when a file of its name appears, which ``go`` creates.
WAITS = 'until [ -e "$1" ]; do sleep 0.05; done'


def waits(sandbox: Sandbox, name: str) -> list[str]:
    return ["bash", "-c", WAITS, "waits", str(sandbox.path / name)]


def go(sandbox: Sandbox, name: str) -> None:
    (sandbox.path / name).touch()


@pytest.fixture
def one_slot(sandbox: Sandbox) -> Sandbox:
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\n")
    return sandbox


def held(sandbox: Sandbox) -> dict[str, str]:
    return {uuid: holder.run_id for uuid, holder in Leases(sandbox.path / "leases").holders().items()}


async def test_a_slot_is_exclusive_and_free_once_the_end_of_its_run_is_reported(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        first = await agent.call("launch_run", command=waits(sandbox, "a"), gpus="cpu", name="first")
        assert first["gpus"] == ["cpu-0"]
        refused = await agent.refusal("launch_run", command="true", gpus="cpu")
        assert first["run_id"] in refused
        assert "queue=true" in refused
        assert len(list((sandbox.path / "state" / "runs").iterdir())) == 1
        go(sandbox, "a")
        assert (await agent.end(first["run_id"]))["state"] == "finished"
        second = await agent.call("launch_run", command="true", gpus="cpu")  # at once: the end came after the release
        assert second["gpus"] == ["cpu-0"]


async def test_the_queue_is_served_in_order(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        first = await agent.call("launch_run", command=waits(sandbox, "a"), gpus="cpu", name="first")
        line: list[dict[str, Any]] = [
            await agent.call("launch_run", command=waits(sandbox, name), gpus="cpu", queue=True, name=f"run-{name}")
            for name in "bcd"
        ]
        assert [(run["state"], run["queue_position"]) for run in line] == [("queued", n) for n in (1, 2, 3)]
        status = await agent.call("wait_run", run_ids=line[1]["run_id"], timeout_s=0)
        assert status["runs"][0]["queue_position"] == 2
        assert "overtake" not in await agent.refusal("launch_run", command="true", gpus=["cpu-0"])
        holder = first["run_id"]
        for name, run in zip("abc", line, strict=True):
            go(sandbox, name)
            news = await agent.call("wait_run", run_ids=run["run_id"], timeout_s=30)
            assert (news["reason"], news["runs"][0]["gpus"]) == ("started", ["cpu-0"])
            assert (await agent.end(holder))["state"] == "finished"
            assert held(sandbox) == {"cpu-0": run["run_id"]}
            holder = run["run_id"]
        go(sandbox, "d")
        assert (await agent.end(holder))["state"] == "finished"
    *_, last = [sandbox.run(run["run_id"]) for run in line]
    began_s = posix(str(next(event for event in last.events if event["kind"] == "queued")["at"]))
    end, started_s = last.events[-1], posix(str(last.started_at))
    assert end["elapsed_s"] < posix(str(end["at"])) - began_s, "to wait in line is no part of a run"
    assert end["elapsed_s"] <= posix(str(end["at"])) - started_s + 0.01


async def test_a_run_that_waits_can_be_stopped_and_leaves_the_queue(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        second = await agent.launch("touch never", cwd=str(sandbox.path), gpus="cpu", queue=True)
        third = await agent.launch("true", gpus="cpu", queue=True)
        assert (await agent.kill(second))["status"] == "killed"
        await until_async(lambda: sandbox.run(third).queue_position == 1, "the next in line")
        go(sandbox, "a")
        assert (await agent.end(third))["state"] == "finished"
        assert sandbox.run(first).state == "finished"
        assert sandbox.run(second).state == "killed"
        assert not (sandbox.path / "never").exists()


@pytest.mark.parametrize("who", ["holder", "waiter"])
async def test_the_slot_of_a_killed_supervisor_is_free_once_its_command_ends_and_its_ticket_at_once(
    one_slot: Sandbox, who: str
) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        second = await agent.launch("true", gpus="cpu", queue=True)
        third = await agent.launch("true", gpus="cpu", queue=True)
        if who == "holder":
            os.kill(sandbox.supervisor(first), signal.SIGKILL)
            await until_async(lambda: sandbox.run(first).state == "lost", "the end of the supervisor")
            assert f"leased by {first}" in await agent.refusal("launch_run", command="true", gpus=["cpu-0"])
            assert sandbox.run(second).state == "queued"
            assert (await agent.kill(first))["survivors"] == []  # what is left of it
            assert (await agent.end(second))["state"] == "finished"
        else:
            pid = Leases(sandbox.path / "leases").waiters()[0].holder.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until_async(lambda: sandbox.run(second).state == "lost", "the end of the killed one")
            go(sandbox, "a")
        assert (await agent.end(third))["state"] == "finished"


async def test_placeholders_in_the_command_are_replaced_by_the_leased_slots(sandbox: Sandbox) -> None:
    script = (
        "import os, sys; print(sys.argv[1:], os.environ['MINE'], [os.environ.get(n) for n in "
        "('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'RUNWARD_GPUS')])"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            [sys.executable, "-c", script, "--on={gpus}", "{params}"],
            gpus=["cpu-1", "cpu-0"],
            env={"MINE": "{gpu_indices}"},
            params={"devices": "{gpu_indices}"},
        )
        assert (await agent.end(run_id))["exit_code"] == 0
    leased = "['--on=cpu-0,cpu-1', '--devices', '0,1'] 0,1 ['', 'PCI_BUS_ID', 'cpu-0,cpu-1']"
    assert leased in sandbox.log(run_id)


async def test_a_run_that_requests_zero_gpus_sees_none_and_a_run_without_a_request_sees_its_launchers(
    sandbox: Sandbox,
) -> None:
    async with sandbox.agent(CUDA_VISIBLE_DEVICES="3") as agent:
        for arguments, output in (({"gpus": 0}, "<>"), ({"gpus": "none"}, "<>"), ({}, "<3>")):
            run_id = await agent.launch('echo "<$CUDA_VISIBLE_DEVICES>"', **arguments)
            await agent.end(run_id)
            assert output in sandbox.log(run_id), arguments


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more than there are": ({"gpus": "cpu:2"}, "has 1 cpu slot"),
    "no driver": ({"gpus": 1}, "driver"),
    "no driver, and nothing to wait for": ({"gpus": 1, "queue": True}, "driver"),
    "not understood": ({"gpus": "two"}, "names no GPU"),
    "a misspelt requirement": ({"gpus": 1, "require": {"memory": 3}}, "free_memory_mib"),
    "a requirement of nothing": ({"require": {"power_limit_w": 400}}, "`queue` and `require` need `gpus`"),
    "two settings of the same variable": ({"gpus": "cpu", "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "set by gpus"),
}


async def test_a_refused_launch_creates_nothing(one_slot: Sandbox) -> None:
    async with one_slot.agent() as agent:
        for name, (arguments, words) in REFUSED.items():
            assert words in await agent.refusal("launch_run", command="true", **arguments), name
    assert list((one_slot.path / "state" / "runs").iterdir()) == []
    assert not Path(one_slot.path / "leases").exists()


async def test_a_repeated_key_returns_the_run_that_waits(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        holder = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        first = await agent.launch("true", gpus="cpu", queue=True, idempotency_key="cell-7")
        assert await agent.launch("true", gpus="cpu", queue=True, idempotency_key="cell-7") == first
        await agent.kill(first)
        assert await agent.launch("true", gpus="cpu", queue=True, idempotency_key="cell-7") == first
        go(sandbox, "a")
        await agent.end(holder)


async def test_of_many_launches_at_once_one_gets_the_slot_and_the_others_leave_nothing(one_slot: Sandbox) -> None:
    sandbox = one_slot
    answers: list[Any] = []

    async def launch(agent: Agent) -> None:
        arguments = {"command": waits(sandbox, "a"), "gpus": "cpu"}
        answers.append(await agent.client.call_tool("launch_run", arguments, read_timeout_seconds=60))

    async with sandbox.agent_in_process() as one, sandbox.agent() as other, anyio.create_task_group() as at_once:
        for agent in (one, other) * 4:
            at_once.start_soon(launch, agent)
    (served,) = [answer.structured_content["run_id"] for answer in answers if not answer.is_error]
    for refused in (text_of(answer) for answer in answers if answer.is_error):
        assert refused.startswith("cpu slots not free: ")
        assert f"leased by {served}" in refused
        assert refused.endswith("Nothing was started. Pass queue=true to wait in line.")
    assert [path.name for path in (sandbox.path / "state" / "runs").iterdir()] == [served]
    assert [line.partition(":")[0] for line in sandbox.tmux("ls").splitlines()] == [served]
    go(sandbox, "a")


async def test_a_suspended_waiter_can_be_killed(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        holder = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        stuck = await agent.launch("true", gpus="cpu", queue=True)
        behind = await agent.launch("true", gpus="cpu", queue=True)
        os.kill(sandbox.supervisor(stuck), signal.SIGSTOP)
        killed = await agent.kill(stuck)
        assert (killed["status"], killed["state"]) == ("killed", "killed")
        go(sandbox, "a")
        assert (await agent.end(behind))["state"] == "finished"
        assert sandbox.run(holder).state == "finished"


async def test_the_stop_of_a_waiting_run_is_reported_and_shown_with_its_cause(one_slot: Sandbox) -> None:
    sandbox = one_slot
    async with sandbox.agent_in_process() as agent:
        holder = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        run_id = await agent.launch("true", gpus="cpu", queue=True)
        sandbox.tmux("send-keys", "-t", f"={run_id}:", "C-c")
        end = await agent.end(run_id)
        text = "Never started: it was stopped before (Ctrl-C; a person at the terminal)."
        assert (end["state"], end["events"][-1]["text"]) == ("killed", text)
        assert text in await agent.text("capture_pane", run_id=run_id)
        go(sandbox, "a")
        await agent.end(holder)


@pytest.mark.slow
async def test_a_mutex_that_is_held_for_long_does_not_end_the_wait(one_slot: Sandbox) -> None:
    sandbox = one_slot
    leases = Leases(sandbox.path / "leases")
    async with sandbox.agent_in_process() as agent:
        holder = await agent.launch(waits(sandbox, "a"), gpus="cpu")
        first = await agent.launch("true", gpus="cpu", queue=True)
        with leases.mutex():
            go(sandbox, "a")
            await agent.end(holder)
            await anyio.to_thread.run_sync(_is_shut_out, sandbox.supervisor(first))
        assert (await agent.end(first))["state"] == "finished"


def _is_shut_out(pid: int) -> None:
    """Return when the process has given up a try to take the mutex: it opens the file again for every try."""
    opened = until(lambda: _opened(pid), "a try to take the mutex")
    until(lambda: _opened(pid) != opened, "the end of the try")


def _opened(pid: int) -> list[str]:
    opened = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            opened += [fd.name] if str(fd.readlink()).endswith("/.door") else []
    return opened
