"""A unique name is accepted wherever a run id is; an ambiguous one is refused with the ids."""

from __future__ import annotations

import pytest

from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio


async def test_a_unique_name_is_accepted_by_every_tool_verb_and_resource(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo hello; sleep 60", name="alone")
        assert f"run {run_id}" in await agent.text("capture_pane", run_id="alone")
        assert f"run {run_id}" in await agent.text("read_log", run_id="alone")
        assert run_id in await agent.refusal("read_tb", run_id="alone")
        assert run_id in str(await agent.call("gpu_check", run_id="alone"))
        assert run_id in str(await agent.call("compare_runs", run_ids=["alone", run_id]))
        await agent.launch("true", name="tagged", tags=["table"])
        grouped = str(await agent.call("compare_runs", run_ids=["tag:table", "live"]))
        assert "tagged-" in grouped
        assert run_id in grouped
        assert "no run has the tag" in await agent.refusal("compare_runs", run_ids=["tag:tabel"])
        now = await agent.call("wait_run", run_ids="alone", timeout_s=0, since={"alone": 1})
        assert now["runs"][0]["run_id"] == run_id
        assert (await agent.kill("alone"))["run_id"] == run_id
        finished = await agent.call("finish_blueprint", run_id="alone", result_dir=str(sandbox.path / "results"))
        assert (sandbox.path / "results" / "results.md").is_file(), finished
        for uri in ("run://alone", "run://alone/log"):
            assert run_id in (await agent.client.read_resource(uri)).contents[0].text  # type: ignore[union-attr]
    assert sandbox.runward("wait", "alone").stdout.startswith(run_id)
    assert "hello" in sandbox.runward("logs", "alone").stdout
    assert "already" in sandbox.runward("kill", "alone").stdout
    assert sandbox.runward("diagnose", "alone").returncode == 0


async def test_an_ambiguous_name_is_refused_with_the_ids_and_nothing_is_done(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        ids = [await agent.launch("sleep 60", name="twin") for _ in range(2)]
        for tool, arguments in (
            ("kill_run", {"run_id": "twin"}),
            ("wait_run", {"run_ids": "twin"}),
            ("read_log", {"run_id": "twin"}),
            ("capture_pane", {"run_id": "twin"}),
            ("read_tb", {"run_id": "twin"}),
            ("compare_runs", {"run_ids": ["twin"]}),
            ("gpu_check", {"run_id": "twin"}),
            ("finish_blueprint", {"run_id": "twin"}),
        ):
            refusal = await agent.refusal(tool, **arguments)
            assert all(run_id in refusal for run_id in ids), (tool, refusal)
        assert all(sandbox.run(run_id).state == "running" for run_id in ids)
    refused = sandbox.runward("wait", "twin")
    assert refused.returncode != 0
    assert all(run_id in refused.stderr for run_id in ids)
