"""A launch that may end live runs starts only after the confirmation that a kill takes."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from mcp.types import ElicitResult

from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio

STOPS_RAY = "[ -e never ] && ray stop; true"  # nothing of this machine is stopped by these tests


async def test_a_launch_that_may_end_live_runs_needs_a_token_that_is_bound_to_command_and_runs(
    sandbox: Sandbox,
) -> None:
    async with sandbox.agent_in_process() as agent:
        alone = await agent.call("launch_run", command=STOPS_RAY)
        assert "every Ray" in alone["warnings"][0], "with nothing alive it starts, and warns"
        assert (await agent.end(alone["run_id"]))["state"] == "finished"
        bobs = await agent.launch("sleep 300", name="train", owner="bob")
        before = len(sandbox.store.list_runs())
        asked = await agent.call("launch_run", command=STOPS_RAY)
        assert asked["status"] == "confirmation_required"
        assert (asked["runs_at_risk"], "run_id" in asked) == ([bobs], False)
        assert "`ray stop`" in asked["warnings"][0]
        assert f"{bobs} (running, owner bob)" in asked["next_step"]
        assert len(sandbox.store.list_runs()) == before
        token = asked["confirm_token"]
        other = f"{STOPS_RAY} # another"
        assert "another command" in await agent.refusal("launch_run", command=other, confirm_token=token)
        kept = await agent.call("launch_run", command=STOPS_RAY, confirm_token=token)  # it is still that command's own
        assert (await agent.end(kept["run_id"]))["state"] == "finished"
        assert "nothing was started" in await agent.refusal("launch_run", command=STOPS_RAY, confirm_token=token)
        token = (await agent.call("launch_run", command=STOPS_RAY))["confirm_token"]
        joined = await agent.launch("sleep 300", name="joined")
        again = await agent.call("launch_run", command=STOPS_RAY, confirm_token=token)
        assert again["runs_at_risk"] == [joined, bobs], "another run has begun since"
        run = await agent.call("launch_run", command=STOPS_RAY, confirm_token=again["confirm_token"])
        assert (await agent.end(run["run_id"]))["state"] == "finished"
        assert sandbox.run(bobs).state == "running"
        dry = await agent.call("launch_run", command=STOPS_RAY, dry_run=True)
        assert "every Ray" in dry["warnings"][0]
        for run_id in (bobs, joined):
            await agent.kill(run_id, force_other_owner=True)


async def test_a_variable_of_a_launch_may_hold_what_ends_others(sandbox: Sandbox) -> None:
    word = f"w{secrets.token_hex(6)}"
    (sandbox.path / "before").write_text(f"[ -e never ] && pkill -f {word}; true\n")
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"exec -a {word} sleep 300")
        for env in ({"ACT": f"[ -e never ] && pkill -f {word}"}, {"BASH_ENV": str(sandbox.path / "before")}):
            asked = await agent.call("launch_run", command='bash -c "$ACT"', env=env)
            assert asked.get("runs_at_risk") == [run_id], env
        changed = {"ACT": f"pkill -f {word}"}
        told = await agent.refusal(
            "launch_run", command='bash -c "$ACT"', env=changed, confirm_token=asked["confirm_token"]
        )
        assert "another command" in told
        await agent.kill(run_id)


async def test_a_pattern_puts_only_runs_with_such_processes_at_risk(sandbox: Sandbox) -> None:
    word = f"w{secrets.token_hex(6)}"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"exec -a {word} sleep 300")
        started = await agent.call("launch_run", command=f"[ -e never ] && pkill -f {word}x; true")
        assert (await agent.end(started["run_id"]))["state"] == "finished"
        asked = await agent.call("launch_run", command=f"[ -e never ] && pkill -9 -f {word}; true")
        assert asked["runs_at_risk"] == [run_id]
        checked = await agent.call("preflight", command=f"[ -e never ] && pkill -9 -f {word}; true")
        (problem,) = [each for each in checked["problems"] if "pkill" in each["text"]]
        assert run_id in problem["text"]
        await agent.kill(run_id)


async def test_closing_the_session_of_a_live_run_is_a_kill_and_that_of_another_name_is_not(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.call("launch_run", command="sleep 300", name="victim")
        command = f"[ -e never ] && tmux kill-session -t {run['session']}; true"
        asked = await agent.call("launch_run", command=command)
        assert (asked["status"], asked["runs_at_risk"]) == ("confirmation_required", [run["run_id"]])
        other = await agent.call("launch_run", command="[ -e never ] && tmux kill-session -t mine; true")
        assert (await agent.end(other["run_id"]))["state"] == "finished"
        await agent.kill(run["run_id"])


async def test_under_the_policy_human_no_token_is_given(sandbox: Sandbox) -> None:
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text('kill_policy = "human"\n')
    async with sandbox.agent_in_process() as agent:
        await agent.launch("sleep 300", name="train")
        asked = await agent.call("launch_run", command=STOPS_RAY)
        assert asked["status"] == "confirmation_required"
        assert "confirm_token" not in asked
        assert "only a person" in asked["next_step"]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("says", ["the id", "no", "another"])
async def test_a_person_at_the_client_is_asked_in_place_of_a_token(sandbox: Sandbox, legacy: bool, says: str) -> None:
    questions = []
    bobs: list[str] = []

    async def elicit(_context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        if says == "no":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"run_id": bobs[0] if says == "the id" else "yes"})

    async with sandbox.agent(elicit=elicit, legacy=legacy) as agent:
        bobs.append(await agent.launch("sleep 300", owner="bob"))
        answer = await agent.call("launch_run", command=STOPS_RAY)
        assert len(questions) == 1
        assert bobs[0] in questions[0]
        if says == "the id":
            assert (await agent.end(answer["run_id"]))["state"] == "finished"
        else:
            assert answer["status"] == "declined"
            assert "run_id" not in answer


async def test_a_sweep_with_such_cells_asks_once(sandbox: Sandbox) -> None:
    plan = {"name": "s", "common": {"command": f"{STOPS_RAY} {{seed}}"}, "grid": {"seed": [1, 2]}}
    async with sandbox.agent_in_process() as agent:
        bobs = await agent.launch("sleep 300", owner="bob")
        asked = await agent.call("launch_sweep", **plan)
        assert (asked["status"], asked["runs_at_risk"]) == ("confirmation_required", [bobs])
        assert not list((sandbox.path / "state" / "sweeps").glob("s-*"))
        started = await agent.call("launch_sweep", **plan, confirm_token=asked["confirm_token"])
        ended = await agent.call("wait_run", run_ids=started["sweep_id"], until="end", timeout_s=60)
        assert ended["sweep"]["cells"]["finished"] == 2
        await agent.kill(bobs, force_other_owner=True)
