"""A real run, read as a resource by a real client over stdio."""

import json
import os
import signal

import pytest
from mcp.types import ResourceTemplateReference, TextContent

from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_run_can_be_read_completed_and_asked_about(sandbox: Sandbox, legacy: bool) -> None:
    async with sandbox.agent(legacy=legacy) as agent:
        run_id = await agent.launch("echo step 1; echo step 2; exit 3", name="cfm", cwd=str(sandbox.path))
        await agent.end(run_id)
        status = (await agent.client.read_resource(f"run://{run_id}")).contents[0]
        log = (await agent.client.read_resource(f"run://{run_id}/log")).contents[0]
        completed = await agent.client.complete(
            ResourceTemplateReference(uri="run://{run_id}"), {"name": "run_id", "value": "cf"}
        )
        prompt = (await agent.client.get_prompt("diagnose_run", {"run_id": run_id})).messages[0].content
    assert status.mime_type == "application/json"
    assert json.loads(status.text)["exit_code"] == 3  # type: ignore[union-attr]
    assert log.text.endswith("step 1\nstep 2")  # type: ignore[union-attr]
    assert completed.completion.values == [run_id]
    assert isinstance(prompt, TextContent)
    assert f"what is wrong with the run {run_id}." in prompt.text


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_live_run_and_a_lost_run_have_their_states(sandbox: Sandbox, legacy: bool) -> None:
    async with sandbox.agent(legacy=legacy) as agent:
        live, lost = [await agent.launch("seq -f 'öäü %g öäü öäü' 2000; echo newest; sleep 600") for _ in range(2)]
        os.kill(sandbox.supervisor(lost), signal.SIGKILL)
        await until_async(lambda: "newest" in sandbox.log(live) and sandbox.run(lost).state == "lost")
        for run_id, state in ((live, "running"), (lost, "lost")):
            (status,) = (await agent.client.read_resource(f"run://{run_id}")).contents
            assert json.loads(status.text)["state"] == state  # type: ignore[union-attr]
        (log,) = (await agent.client.read_resource(f"run://{live}/log")).contents
    assert log.text.endswith("newest")  # type: ignore[union-attr]
    assert 200 < len(log.text.encode()) <= 8192  # type: ignore[union-attr]
