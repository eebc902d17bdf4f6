"""Clients that listen hear of runs that join the list, and of those that change."""

from __future__ import annotations

import anyio
import pytest
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from tests.support.sandbox import PATIENCE_S, Sandbox

pytestmark = pytest.mark.anyio


async def test_a_launched_run_joins_the_resources_and_its_end_is_announced(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent, sandbox.agent() as other:
        with anyio.fail_after(2 * PATIENCE_S):
            async with agent.client.listen(resources_list_changed=True) as listed:
                run_id = await other.launch(f"until [ -e {sandbox.path}/go ]; do sleep 0.1; done", name="joins")
                uri = f"run://{run_id}"
                async for event in listed:
                    assert event == ResourcesListChanged()
                    if uri in [str(each.uri) for each in (await agent.client.list_resources()).resources]:
                        break
            async with agent.client.listen(resource_subscriptions=[uri]) as changed:
                (sandbox.path / "go").touch()
                async for event in changed:
                    assert event == ResourceUpdated(uri=uri)
                    contents = (await agent.client.read_resource(uri)).contents
                    if "finished" in str(contents[0]):
                        break
