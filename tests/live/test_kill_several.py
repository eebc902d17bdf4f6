"""Several runs are stopped by one confirmation, and exactly those that it named."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.types import ElicitResult

from mcp_server.store.run_index import RunQuery
from tests.support.sandbox import Agent, Sandbox

pytestmark = pytest.mark.anyio


async def launch(agent: Agent, count: int, tag: str = "night", **arguments: Any) -> list[str]:
    return [await agent.launch("sleep 300", name=f"cell{n}", tags=[tag], **arguments) for n in range(count)]


def states(sandbox: Sandbox, ids: list[str]) -> list[str]:
    return [sandbox.run(run_id).state for run_id in ids]


async def test_a_token_stops_the_runs_that_it_named_and_none_that_joined(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        ids = await launch(agent, 3)
        asked = await agent.call("kill_run", run_id="tag:night")
        assert asked["status"] == "confirmation_required"
        assert "3 runs: " in asked["message"]
        assert all(run_id in asked["message"] for run_id in ids)
        assert states(sandbox, ids) == ["running"] * 3
        joined = await agent.launch("sleep 300", tags=["night"])
        token = asked["confirm_token"]
        other = await agent.refusal("kill_run", run_id=ids, confirm_token=token)
        assert "for other runs" in other
        asked = await agent.call("kill_run", run_id="tag:night")
        assert "used" in await agent.refusal("kill_run", run_id="tag:night", confirm_token=token), (
            "the older one is void"
        )
        late = await agent.launch("sleep 300", tags=["night"])
        done = await agent.call("kill_run", run_id="tag:night", confirm_token=asked["confirm_token"], reason="over")
    assert (done["status"], done["survivors"]) == ("killed", [])
    assert states(sandbox, [*ids, joined, late]) == ["killed"] * 4 + ["running"]
    assert f"Left alone, because not in the question: {late}." in done["message"]
    problems = {run["run_id"]: run.get("problem", "") for run in done["runs"]}
    assert problems == {**dict.fromkeys([*ids, joined], ""), late: "It was not in the question: left alone."}
    assert "over" in str(sandbox.run(ids[0]).events[-1]["text"]) + sandbox.rundir(ids[0]).stop.read_text()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("answer", "is_stopped"),
    [
        (ElicitResult(action="accept", content={"run_id": "2"}), True),
        (ElicitResult(action="accept", content={"run_id": "3"}), False),
        (ElicitResult(action="accept", content={"run_id": ""}), False),
        (ElicitResult(action="decline"), False),
    ],
)
async def test_a_person_confirms_several_by_their_number(
    sandbox: Sandbox, answer: ElicitResult, is_stopped: bool, legacy: bool
) -> None:
    questions: list[str] = []

    async def elicit(_context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        await agent.launch("sleep 300", name="late", tags=["night"])  # joins the tag while the person reads
        return answer

    async with sandbox.agent(elicit=elicit, legacy=legacy) as agent:
        ids = await launch(agent, 2)
        result = await agent.call("kill_run", run_id="tag:night")
        late = [run.run_id for run in sandbox.store.list_runs() if run.spec.name == "late"]
    assert len(questions) == 1
    assert "2 runs: " in questions[0]
    assert result["status"] == ("killed" if is_stopped else "declined"), result
    assert "confirm_token" not in result
    assert states(sandbox, [*ids, *late]) == ["killed" if is_stopped else "running"] * 2 + ["running"]


async def test_what_has_ended_and_what_is_another_owners_is_left_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        ended = await agent.launch("exit 0", name="done", tags=["night"])
        await agent.end(ended)
        over = await agent.call("kill_run", run_id=["done", "tag:night"])
        assert over["status"] == "already_ended"
        ids = await launch(agent, 2)
        theirs = await agent.launch("sleep 300", name="bobs", owner="bob", tags=["night"])
        refused = await agent.refusal("kill_run", run_id="tag:night")
        assert "bob" in refused
        assert "live is not taken" in await agent.refusal("kill_run", run_id="live")
        assert "no run has the tag" in await agent.refusal("kill_run", run_id="tag:nightly-x")
        asked = await agent.call("kill_run", run_id=[*ids, ended])
        done = await agent.call("kill_run", run_id=[*ids, ended], confirm_token=asked["confirm_token"])
    assert done["status"] == "killed"
    assert states(sandbox, [*ids, theirs, ended]) == ["killed", "killed", "running", "finished"]


async def test_under_the_human_policy_several_get_no_token(sandbox: Sandbox) -> None:
    async with sandbox.agent(RUNWARD_KILL_POLICY="human") as agent:
        ids = await launch(agent, 2)
        asked = await agent.call("kill_run", run_id="tag:night")
    assert asked["status"] == "confirmation_required"
    assert "confirm_token" not in asked
    assert "runward kill RUN_ID" in asked["message"]
    assert states(sandbox, ids) == ["running"] * 2


async def test_a_list_may_name_a_sweep_beside_a_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        started = await agent.call(
            "launch_sweep", name="pair", common={"command": "sleep 30{seed}"}, grid={"seed": [1, 2]}, max_parallel=1
        )
        sweep_id = started["sweep_id"]
        run_id = await agent.launch("sleep 300")
        asked = await agent.call("kill_run", run_id=[run_id, sweep_id])
        assert f"{sweep_id} (sweep, owner" in asked["message"]
        done = await agent.call("kill_run", run_id=[run_id, sweep_id], confirm_token=asked["confirm_token"])
    assert {run["run_id"]: run["state"] for run in done["runs"]} == {run_id: "killed", sweep_id: "killed"}
    assert not sandbox.store.list_ids(RunQuery("live"))
