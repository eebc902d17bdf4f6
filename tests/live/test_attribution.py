"""What is said of a run is that run's: eight runs beside each other, while they run and after their ends."""

from typing import Any

import pytest

from mcp_server.record.outputs import read_outputs
from tests.support.neighbours import HALF, KINDS, STEPLESS, STEPS, Neighbours
from tests.support.sandbox import Agent, Sandbox, text_of, until_async

pytestmark = pytest.mark.anyio


def asking(agent: Agent) -> Any:
    async def try_call(tool: str, **arguments: Any) -> str:
        result = await agent.client.call_tool(tool, arguments, read_timeout_seconds=90)
        return text_of(result)

    return try_call


async def test_no_answer_about_a_run_has_a_figure_of_another(sandbox: Sandbox) -> None:
    directory = sandbox.path / "project"
    directory.mkdir()
    async with sandbox.agent_in_process() as agent:
        beside = Neighbours(directory, agent.call)
        await beside.launch()
        await until_async(beside.are_ready, "half of all runs")
        await beside.ask(asking(agent))
        assert beside.foreign == []
        assert beside.own > 0
        for number in (1, 2, 3, 4):
            waited = await agent.call("wait_run", run_ids=beside.run_ids[number], until=f"reward > {100 * number + 5}")
            assert f"reward = {100 * number + HALF} " in waited["met"]
        beside.go()
        for run_id in beside.run_ids.values():
            await agent.end(run_id)
    async with sandbox.agent_in_process() as another:  # which has seen nothing
        after = Neighbours(directory, another.call, beside.run_ids)
        await after.ask(asking(another))
        await after.finish(sandbox.path / "results")
        assert after.foreign == []
        for number, kind in enumerate(KINDS, 1):
            answer = await asking(another)("read_tb", run_id=after.run_ids[number], tags=["reward"])
            if kind in STEPLESS:
                assert "No scalars are known" in answer
            elif kind != "lines":
                assert f"{100 * number + STEPS}" in answer, (kind, answer)
    outputs = read_outputs(sandbox.rundir(beside.run_ids[3]).outputs(1))
    assert outputs is not None
    assert len(outputs.pids) > 1, "the child is one of its processes"
