"""Many runs watched by one agent: it is woken when there is something to decide, and misses no end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.store.told_news import CursorFiles, SeenRuns
from tests.support.ended_runs import Runs
from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

# A training run that ends once its file is there, with the exit code in it.
TRAIN = (
    'for i in 1 2 3; do echo "step $i/3 loss 0.$i"; done; until test -s {name}; do sleep 0.02; done; exit $(cat {name})'
)
OOM = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; "


def tokens(answer: Any) -> int:
    openai = pytest.importorskip("rs_bpe").openai
    return int(openai.o200k_base().count(json.dumps(answer, ensure_ascii=False, separators=(",", ":"))))


async def launch(agent: Agent, sandbox: Sandbox, name: str, command: str = TRAIN, **arguments: Any) -> str:
    return await agent.launch(command.replace("{name}", name), name=name, cwd=str(sandbox.path), **arguments)


def end(sandbox: Sandbox, name: str, exit_code: int = 0) -> None:
    part = sandbox.path / f"{name}.part"
    part.write_text(f"{exit_code}\n")
    part.rename(sandbox.path / name)


async def test_seven_runs_to_their_ends_are_few_calls_and_few_tokens(sandbox: Sandbox) -> None:
    answers: list[dict[str, Any]] = []
    async with sandbox.agent() as agent:
        names = [f"qwen2-sft-lr{number}" for number in range(7)]
        ids = {await launch(agent, sandbox, name, tags=["sweep-a"]): name for name in names}
        for name in names:
            answers.append({})
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    since = {"since": answers[-2]["cursor"]} if len(answers) > 1 else {}
                    answers[-1] = await agent.call("wait_run", run_ids="tag:sweep-a", until="decision", **since)

                tasks.start_soon(wait)
                end(sandbox, name)
    assert [answer["reason"] for answer in answers] == ["ended"] * 7
    assert [ids[run["run_id"]] for answer in answers for run in answer["runs"]] == names
    assert [answer.get("unchanged", {}).get("running", 0) for answer in answers] == [6, 5, 4, 3, 2, 1, 0]
    assert len(answers) <= 8
    assert sum(map(tokens, answers)) <= 1500, [tokens(answer) for answer in answers]


async def test_starts_first_steps_and_retries_wake_nobody(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        first = "echo 'step 1/3 loss 0.5'; test -e second || { touch second; exit 1; }; "
        command = f"{first}until test -s cfm; do sleep 0.02; done"
        policy = {"any": {"do": "retry", "times": 2, "wait_s": 0}}
        run_id = await launch(agent, sandbox, "cfm", command, recovery=policy)
        other = await launch(agent, sandbox, "dp3")
        await until_async(lambda: sandbox.run(run_id).attempt == 2 and sandbox.run(run_id).stepped)
        beat = await agent.call("wait_run", run_ids=[run_id, other], until="decision", timeout_s=0)
        assert beat["reason"] == "heartbeat"
        assert beat["runs"] == []
        assert beat["unchanged"] == {"running": 2}
        assert tokens(beat) <= 45
        for _ in range(2):  # what was no decision is not repeated with every heartbeat
            alone = await agent.call("wait_run", run_ids=run_id, until="decision", timeout_s=0)
            assert alone["reason"] == "heartbeat"
            assert "events" not in alone["runs"][0]
            assert tokens(alone) <= 45
        told = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
        assert told["reason"] == "retrying", "a wait for every event returns what was no decision"
        end(sandbox, "cfm")
        last = await agent.call("wait_run", run_ids=[run_id, other], until="decision", timeout_s=60)
    assert [run["run_id"] for run in last["runs"]] == [run_id]
    assert last["unchanged"] == {"running": 1}


async def test_no_end_is_missed_and_none_is_answered_twice_across_servers(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        for name in ("a", "b"):
            await launch(agent, sandbox, name, tags=["night"])
        begun = await agent.call("wait_run", run_ids="tag:night", until="decision", timeout_s=0)
    # While no server lives, one ends; another one is begun and ends.
    end(sandbox, "a", 3)
    async with sandbox.agent() as agent:
        await launch(agent, sandbox, "c", tags=["night"])
        end(sandbox, "c")
        await until_async(lambda: sum(run.ended for run in sandbox.store.list_runs()) == 2)
    async with sandbox.agent() as agent:
        news = await agent.call("wait_run", run_ids="tag:night", until="decision", since=begun["cursor"])
        again = await agent.call("wait_run", run_ids="tag:night", until="decision", since=begun["cursor"])
    async with sandbox.agent() as agent:
        after = await agent.call("wait_run", run_ids="tag:night", until="decision", since=news["cursor"], timeout_s=0)
        end(sandbox, "b")
        last = await agent.call("wait_run", run_ids="tag:night", until="decision", since=after["cursor"])
    ends = [{run["run_id"][0]: run["state"] for run in answer["runs"]} for answer in (news, again, after, last)]
    assert ends[:2] == [{"a": "failed", "c": "finished"}] * 2, "an old cursor stands for the same news"
    assert ends[2:] == [{}, {"b": "finished"}]
    assert after["reason"] == "heartbeat"
    assert after["cursor"] == news["cursor"]
    assert last["unchanged"] == {"failed": 1, "finished": 1}


async def test_live_is_what_lives_and_what_began_and_ended_since(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        assert "no run is live" in await agent.refusal("wait_run", run_ids="live")
        old = await launch(agent, sandbox, "old", "exit 0")
        await agent.end(old)
        await launch(agent, sandbox, "a")
        begun = await agent.call("wait_run", run_ids="live", until="decision", timeout_s=0)
        short = await launch(agent, sandbox, "short", "exit 0")
        end(sandbox, "a")
        await until_async(lambda: all(run.ended for run in sandbox.store.list_runs()))
        news = await agent.call("wait_run", run_ids="live", until="decision", since=begun["cursor"])
        rest = await agent.call("wait_run", run_ids="live", until="decision", since=news["cursor"])
    assert begun["runs"] == [] or [run["run_id"][0] for run in begun["runs"]] == ["a"]
    assert {run["run_id"] for run in news["runs"]} == {
        short,
        *(r.run_id for r in sandbox.store.list_runs() if r.spec.name == "a"),
    }
    assert (rest["reason"], rest["runs"]) == ("ended", [])


@pytest.mark.parametrize("selector", ["tag:night", "live"])
async def test_a_run_that_joins_while_waiting_counts(sandbox: Sandbox, selector: str) -> None:
    async with sandbox.agent_in_process() as agent:
        await launch(agent, sandbox, "a", tags=["night"])
        answers = []

        async def wait() -> None:
            answers.append(await agent.call("wait_run", run_ids=selector, until="decision", timeout_s=60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            begun_s = time.monotonic()
            joined = await launch(agent, sandbox, "b", "exit 3", tags=["night"])
        assert time.monotonic() - begun_s < 50
        end(sandbox, "a")
    assert answers[0]["reason"] == "ended"
    assert [(run["run_id"], run["exit_code"]) for run in answers[0]["runs"]] == [(joined, 3)]
    assert answers[0]["unchanged"] == {"running": 1}


async def test_a_hundred_ended_runs_have_2000_tokens_and_none_is_left_out(tmp_path: Path, sandbox: Sandbox) -> None:
    runs = Runs(tmp_path / "many")
    failure = {
        "kind": "oom_gpu",
        "line": "torch.OutOfMemoryError: CUDA out of memory. " + "x" * 300,
        "advice": "y" * 200,
    }
    ids = [f"qwen2-sft-lr{number:02}-k{number:02}q" for number in range(100)]
    for number, run_id in enumerate(ids):
        runs.add(run_id, "finished" if number % 3 else "failed", failure=None if number % 3 else failure, tags=["big"])
    async with sandbox.agent(RUNWARD_HOME=str(runs.home.path)) as agent:
        for run_ids in ("tag:big", ids):
            answer = await agent.call("wait_run", run_ids=run_ids, until="decision", since=since_nothing(runs))
            seen = []
            for _ in range(5):
                assert tokens(answer) <= 2000
                seen += [run["run_id"] for run in answer["runs"]]
                seen += [line.split()[0] for line in answer.get("brief", ())]
                if "more" not in answer:
                    break
                answer = await agent.call("wait_run", run_ids=run_ids, until="decision", since=answer["cursor"])
            assert sorted(seen) == ids, "each once"
        listed = await agent.call("list_runs", limit=100)
    assert tokens(listed) <= 2000


def since_nothing(runs: Runs) -> str:
    return CursorFiles(runs.home).keep(SeenRuns())


async def test_a_wrong_cursor_is_refused_with_the_way_on(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await launch(agent, sandbox, "a")
        refused = await agent.refusal("wait_run", run_ids=run_id, since="cabcdefghjk")
        assert "is not a cursor of this machine" in refused
        assert "Leave since out" in refused
        assert (await agent.call("wait_run", run_ids=run_id, since="0", timeout_s=0))["runs"][0]["run_id"] == run_id
        end(sandbox, "a")
