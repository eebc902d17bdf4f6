"""A server over stdio that is killed while its client waits, launches and stops: the client notices nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import ElicitResult

from mcp_server.system import processes
from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ERAS = pytest.mark.parametrize("legacy", [False, True], ids=["stateless", "handshake"])


def find_server() -> int:
    """Return the process that serves the client of this test."""
    every = processes.list_processes()
    parents = [p.pid for p in every if p.parent == os.getpid() and p.command.endswith("-m mcp_server")]
    (server,) = [p.pid for p in every if p.parent in parents]
    return server


async def kill_server() -> None:
    pid = await until_async(lambda: _found(find_server), "a server")
    os.kill(pid, signal.SIGKILL)
    await until_async(lambda: not Path(f"/proc/{pid}").exists(), "its end")  # the next one to be killed is another


def _found(find: Callable[[], int]) -> int:
    try:
        return find()
    except ValueError:  # between two
        return 0


@asynccontextmanager
async def answer_of(agent: Agent, tool: str, **arguments: Any) -> AsyncIterator[dict[str, Any]]:
    """Call a tool beside the block; its answer is there behind it."""
    answer: dict[str, Any] = {}

    async def call() -> None:
        answer.update(await agent.call(tool, **arguments))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        yield answer


@ERAS
async def test_a_wait_is_answered_and_tells_nothing_twice_though_its_server_is_killed(
    sandbox: Sandbox, legacy: bool
) -> None:
    async with sandbox.agent(cold=True, legacy=legacy) as agent:
        go, end = sandbox.path / "go", sandbox.path / "end"
        command = (
            f"until [ -e {go} ]; do sleep 0.05; done; echo 'step 1/2 loss 1'; until [ -e {end} ]; do sleep 0.05; done"
        )
        run_id = await agent.launch(command)
        async with answer_of(agent, "wait_run", run_ids=run_id, timeout_s=60) as told:
            await kill_server()
            go.touch()
        assert told["reason"] == "first_step"
        await kill_server()
        beat = await agent.call("wait_run", run_ids=run_id, timeout_s=0.1)
        assert beat["reason"] == "heartbeat", "the step is known"
        async with answer_of(agent, "wait_run", run_ids=run_id, timeout_s=60) as told:
            await kill_server()
            await kill_server()
            end.touch()
        assert told["reason"] == "ended"
        assert len((await agent.call("list_runs"))["runs"]) == 1


@pytest.mark.parametrize("moment", ["called", "recorded", "begun"])
async def test_a_launch_whose_server_is_killed_is_answered_with_its_one_run(sandbox: Sandbox, moment: str) -> None:
    async with sandbox.agent(cold=True) as agent:
        await agent.call("list_runs")
        runs = sandbox.path / "state" / "runs"
        events = {"called": "", "recorded": "[!.]*/spec.json", "begun": "*/events.jsonl"}[moment]
        async with answer_of(agent, "launch_run", command="sleep 60", name="one") as launched:
            await until_async(lambda: not events or list(runs.glob(events)), "the launch")
            await kill_server()
        assert launched["state"] == "running", launched
        listed = await agent.call("list_runs")
        assert [run["run_id"] for run in listed["runs"] if run["state"] == "running"] == [launched["run_id"]]
        run_id = launched["run_id"]  # the run of the first server may have ended, without its command
        stopped = await agent.call("kill_run", run_id=run_id)
        await kill_server()
        done = await agent.call("kill_run", run_id=run_id, confirm_token=stopped["confirm_token"])
        assert done["status"] == "killed"


@ERAS
async def test_a_person_is_asked_again_where_the_server_dies_before_the_answer(sandbox: Sandbox, legacy: bool) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await anyio.sleep(0.6)  # who answers within half a second is taken for a program
        if len(asked) == 1:
            await kill_server()
        return ElicitResult(action="accept", content={"run_id": run_id})

    async with sandbox.agent(cold=True, elicit=answer, legacy=legacy) as agent:
        run_id = await agent.launch("sleep 60", name="asked")
        done = await agent.call("kill_run", run_id="asked")
    assert done["status"] == "killed"
    assert asked[0] == asked[-1]


async def test_a_client_that_ends_leaves_no_server(sandbox: Sandbox) -> None:
    async with sandbox.agent(cold=True) as agent:
        await agent.call("list_runs")
        await kill_server()
        await agent.call("list_runs")
        server = find_server()
    await until_async(lambda: not Path(f"/proc/{server}").exists(), "the end of the server")
