"""find_runs as an agent uses it: a run launched for a reason, judged, and found again by another server."""

import sys

import pytest

from tests.support.sandbox import Sandbox

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
