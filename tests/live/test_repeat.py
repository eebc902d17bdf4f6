"""A run starts again as it was: `launch_run(like=RUN, change=...)`, with the code as it is now, or as it was kept."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from tests.support.sandbox import Agent, Sandbox

pytestmark = pytest.mark.anyio

# Runs out of memory above 4, so that recovery halves it.
HALVED = """
import sys
batch = int(sys.argv[sys.argv.index("--batch_size") + 1])
print("batch", batch, "of", *sys.argv, flush=True)
if batch > 4:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
    sys.exit(1)
"""
RECOVERY = {"oom_gpu": {"do": "retry", "times": 3, "change": {"batch_size": "halve"}, "wait_s": 0}}
OF_ONE_RUN = ("run_id", "created_at", "session", "run_dir", "like", "change", "idempotency_key", "boot_id")


def same(spec: RunSpec, other: RunSpec, **changed: Any) -> bool:
    """Whether two runs were launched alike, but for ``changed`` in the second."""
    own = {name: getattr(other, name) for name in OF_ONE_RUN} | changed
    return replace(spec, **own) == other


async def repeat(agent: Agent, **arguments: Any) -> str:
    return str((await agent.call("launch_run", **arguments))["run_id"])


async def test_a_run_is_repeated_as_it_was_and_by_the_attempt_that_ended_it(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(HALVED)
    sandbox.environ["GIFT_TOKEN"] = "hf_9sKdmQ2xZ81LpWvT"
    launch = {
        "command": f"{sys.executable} train.py --lr 0.1",
        "cwd": str(sandbox.path),
        "env": {"SHADE": "a"},
        "secrets": ["GIFT_TOKEN"],
        "params": {"batch_size": 8, "out": "runs/{run_id}"},
        "tensorboard": "tb/{run_id}",
        "recovery": RECOVERY,
        "gpus": "cpu",
        "time_limit_s": 500,
        "stall_timeout_s": 400,
        "tags": ["cube"],
        "name": "cfm",
    }
    async with sandbox.agent_in_process() as agent:
        first = await repeat(agent, **launch, idempotency_key="k")
        await agent.end(first)
        again = await repeat(agent, like=first)
        whole = await repeat(agent, like=f"{first}@1", change={"lr": 0.2, "$SHADE": "b", "time_limit_s": 600})
        for run_id in (again, whole):
            await agent.end(run_id)
        spec = sandbox.run(first).spec
        board = {run_id: str(sandbox.path / "tb" / run_id) for run_id in (again, whole)}
        params = {"batch_size": 4, "out": "runs/{run_id}"}
        assert same(spec, sandbox.run(again).spec, params=params, tensorboard=board[again])
        assert sandbox.run(again).spec.like == f"{first}@2"
        changed = {"command": f"{sys.executable} train.py --lr 0.2", "env": {**spec.env, "SHADE": "b"}}
        other = sandbox.run(whole).spec
        assert same(spec, other, **changed, time_limit_s=600, tensorboard=board[whole])
        assert (sandbox.run(again).attempt, sandbox.run(whole).attempt) == (1, 2)
        assert f"batch 4 of train.py --lr 0.1 --batch_size 4 --out runs/{again}" in sandbox.log(again)


async def test_a_repetition_that_cannot_be_meant_starts_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch("echo step 1", name="one", cwd=str(sandbox.path), params={})
        await agent.end(first)
        for arguments, says in (
            ({"like": "two"}, "Run not found: 'two'"),
            ({"like": f"{first}@2"}, f"names attempt 2, and {first} has 1"),
            ({"like": first, "command": "true"}, f"is that of {first}"),
            ({"change": {"lr": 1}}, "Pass like too"),
            ({"like": first, "change": {"time_limits": 3}}, "Did you mean time_limit_s?"),
        ):
            assert says in await agent.refusal("launch_run", **arguments)
        assert (await agent.call("list_runs"))["total"] == 1
        rehearsed = await agent.call("launch_run", like=first, change={"gpus": "cpu"}, dry_run=True)
        assert "echo step 1" in rehearsed["dry_run_script"]
        assert (await agent.call("list_runs"))["total"] == 1


async def test_a_cell_of_a_sweep_is_repeated_as_a_run_of_its_own(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        common = {"command": "echo seed {seed} of {run_id}", "cwd": str(sandbox.path)}
        sweep = await agent.call("launch_sweep", name="grid", common=common, grid={"seed": [1, 2]})
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end")
        cells = (await agent.call("list_runs", sweep=sweep["sweep_id"]))["runs"]
        again = await repeat(agent, like=cells[0]["run_id"])
        assert (await agent.end(again))["state"] == "finished"
        assert sandbox.run(again).spec.sweep is None
        seed = sandbox.log(cells[0]["run_id"]).split(" of ")[0]
        assert f"{seed} of {again}" in sandbox.log(again)
