"""A real run, read as a resource by a real client over stdio."""

import json
import os
import re
import signal

import pytest
from mcp.types import ResourceTemplateReference, TextContent

from mcp_server.serve.app import INSTRUCTIONS
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
    assert log.text.rpartition("\n")[0].endswith("step 1\nstep 2")  # type: ignore[union-attr]
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
    assert log.text.rpartition("\n")[0].endswith("newest")  # type: ignore[union-attr]
    assert 200 < len(log.text.encode()) <= 8192  # type: ignore[union-attr]


async def test_a_wrong_policy_is_refused_with_the_language_and_the_guide_that_has_all_of_it(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("launch_run", command="true", recovery={"oom_gpu": "halve"})
        assert 'recovery.oom_gpu.do is "retry" or "stop", not \'halve\'. Nothing was done.' in refusal
        assert '"change": {"num_envs": "halve"}' in refusal
        (uri,) = re.findall(r"guide://\w+", refusal)
        (page,) = (await agent.client.read_resource(uri)).contents
        assert "`max_same_kind`" in page.text  # type: ignore[union-attr]
        assert (await agent.call("list_runs"))["total"] == 0


async def test_a_name_of_run_and_attempt_differs_for_every_run_and_every_attempt(sandbox: Sandbox) -> None:
    command = "echo --run_name $RUNWARD_RUN_ID-$RUNWARD_ATTEMPT; echo 'RuntimeError: CUDA out of memory.' >&2; exit 1"
    async with sandbox.agent_in_process() as agent:
        recovery = {"oom_gpu": {"do": "retry", "times": 1, "wait_s": 0}}
        runs = [await agent.launch(command, recovery=recovery, tags=["lr"], name=f"c{n}") for n in range(2)]
        names = set()
        for run_id in runs:
            assert (await agent.end(run_id))["attempt"] == 2
            for attempt in (1, 2):
                log = await agent.text("read_log", run_id=run_id, attempt=attempt, grep="--run_name")
                names |= set(re.findall(r"--run_name (\S+)", log.partition("\n")[2]))
        (sweep,) = (await agent.client.read_resource("sweep://lr")).contents
    assert names == {f"{run_id}-{attempt}" for run_id in runs for attempt in (1, 2)}
    assert json.loads(sweep.text)["states"] == {"failed": 2}  # type: ignore[union-attr]


async def test_a_client_is_given_the_instructions_at_the_start(sandbox: Sandbox) -> None:
    for legacy in (False, True):
        async with sandbox.agent(legacy=legacy) as agent:
            assert agent.client.instructions == INSTRUCTIONS
