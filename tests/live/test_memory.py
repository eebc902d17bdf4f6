"""find_runs as an agent uses it: a run launched for a reason, judged, and found again by another server."""

import sys

import pytest

from mcp_server.tools import find_runs, launch_run
from tests.support.sandbox import Sandbox
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = pytest.mark.anyio

TRAINING = """
import sys
rate = float(sys.argv[sys.argv.index("--lr") + 1])
for step in range(1, 11):
    print(f"step {step}/10 reward {step * rate}", flush=True)
"""


async def test_a_run_is_found_by_its_reason_its_settings_and_the_verdict_on_it(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(TRAINING)
    async with sandbox.agent_in_process() as agent:
        found = []
        for rate in ("0.5", "2"):
            command = [sys.executable, "train.py", "--lr", rate]
            found.append(await agent.launch(command, name="try", cwd=str(sandbox.path), why=f"critic at {rate}"))
            await agent.end(found[-1])
        await agent.call("finish_blueprint", run_id=found[0], summary="too slow\n\nmore", verdict="discard")
        table = await agent.call("compare_runs", run_ids=found)
    assert any("why: critic at 0.5 | discard: too slow (" in line for line in table["findings"])
    async with sandbox.agent_in_process() as agent:
        best = await agent.call("find_runs", query="best reward critic")
        discarded = await agent.call("find_runs", query="verdict:discard lr < 1")
        none = await agent.call("find_runs", query="verdict:keep")
    assert [line.partition(" ")[0] for line in best["runs"]] == found[::-1]
    assert "reward=20@10" in best["runs"][0]
    assert [line.partition(" ")[0] for line in discarded["runs"]] == found[:1]
    assert "lr=0.5" in discarded["runs"][0]
    assert "discard: too slow" in discarded["runs"][0]
    assert none == {"runs": [], "total": 0, "notes": ["No run matches all parts; there are 2 without verdict:keep."]}


async def test_a_launch_that_was_tried_before_is_told_so(sandbox: Sandbox) -> None:
    script = sandbox.path / "train.py"
    script.write_text(TRAINING)

    async def launch(*options: str) -> tuple[str, list[str]]:
        command = [sys.executable, "train.py", "--lr", *options]
        answer = await agent.call("launch_run", command=command, cwd=str(sandbox.path), name="try")
        await agent.end(answer["run_id"])
        return answer["run_id"], [text for text in answer.get("warnings", ()) if text.startswith("Tried before: ")]

    async with sandbox.agent_in_process() as agent:
        first, none = await launch("0.5", "--seed", "1", "--logdir", "a")
        other, also_none = await launch("1", "--seed", "1", "--logdir", "b")
        assert none + also_none == []
        await agent.call("finish_blueprint", run_id=first, summary="too slow", verdict="discard")
        (exact,) = (await launch("5e-1", "--seed", "1", "--logdir", "c"))[1]
        (seed,) = (await launch("1.0", "--seed", "2", "--logdir", "d"))[1]
        plan = {"command": [sys.executable, "train.py", "--lr", "{lr}", "--seed", "1"], "cwd": str(sandbox.path)}
        rehearsed = await agent.call("launch_sweep", name="grid", common=plan, grid={"lr": [0.25, 1, 3]}, dry_run=True)
        script.write_text(TRAINING + "print('changed')\n")
        (changed,) = (await launch("1", "--seed", "1", "--logdir", "e"))[1]
    assert exact.startswith(f"Tried before: {first} ran exactly this, launched ")
    assert "finished, reward 5; discard: too slow (" in exact
    assert f"{other} ran this with another seed" in seed
    assert f"{other} ran these settings with other code (train.py changed since)" in changed
    (cells,) = (text for text in rehearsed["warnings"] if text.startswith("Tried before"))
    assert cells.startswith(f"Tried before, 1 of 3 cells: lr1: {other} ran exactly this, launched ")


async def test_a_token_hears_of_no_run_of_another_owner(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    (sandbox.path / "train.py").write_text(TRAINING)
    launch = {"command": [sys.executable, "train.py", "--lr", "1"], "cwd": str(sandbox.path), "name": "try"}
    async with sandbox.agent_in_process() as agent:
        first = (await agent.call("launch_run", owner="ada", **launch))["run_id"]
        await agent.end(first)
        for module in (launch_run, find_runs):
            monkeypatch.setattr(module, "identity", lambda _: "bob")
        again = await agent.call("launch_run", dry_run=True, **launch)
        assert not any(text.startswith("Tried before") for text in again.get("warnings", ()))
        assert (await agent.call("find_runs", query="lr=1"))["total"] == 0
        monkeypatch.setattr(find_runs, "identity", lambda _: "ada")
        assert (await agent.call("find_runs", query="lr=1"))["total"] == 1


@pytest.mark.slow
@needs_sshd
async def test_a_run_on_another_host_is_found_by_what_its_record_there_says(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    (sandbox.path / "train.py").write_text(TRAINING)
    command = [sys.executable, "train.py", "--lr", "2"]
    async with sandbox.agent() as agent:
        launch = {"cwd": str(sandbox.path), "name": "far", "host": NAME, "why": "critic from afar"}
        run_id = await agent.launch(command, **launch)
        await agent.end(run_id)
    async with sandbox.agent() as agent:
        for query in (f"host:{NAME} lr=2 finished", "best reward afar"):
            found = await agent.call("find_runs", query=query)
            assert [line.partition(" ")[0] for line in found["runs"]] == [run_id], found
        assert "reward=20" in found["runs"][0]


async def test_a_cell_is_found_by_its_own_reason(sandbox: Sandbox) -> None:
    cells = [{"lr": rate, "launch": {"why": f"whether {rate} diverges"}} for rate in ("0.5", "2")]
    (sandbox.path / "train.py").write_text(TRAINING)
    common = {"command": f"{sys.executable} train.py --lr {{lr}}", "cwd": str(sandbox.path)}
    async with sandbox.agent() as agent:
        sweep = await agent.call("launch_sweep", name="rates", common=common, cells=cells, why="of all")
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end")
        found = await agent.call("find_runs", query="why:diverges lr=2")
        assert found["total"] == 1
        assert "why: whether 2 diverges" in found["runs"][0]
