"""The MCP App in a real browser, in the sandboxed frame of a small host that speaks the protocol of the extension."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.types import TextResourceContents

from mcp_server.tools.support.schema import RUNS_APP
from tests.support.browser import open_tab, start_browser
from tests.support.sandbox import Agent, Sandbox

pytestmark = pytest.mark.anyio

MARKUP = "<img src=x onerror=\"parent.postMessage('hacked','*')\">"
# As hosts do without any domain of the resource: nothing may be fetched, scripts stand in the document.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
HOST = """([html, policy, tool, given, result]) => {
    const frame = document.createElement("iframe"), heard = (window.heard = [])
    frame.sandbox = "allow-scripts"
    frame.style = "width: 900px; height: 720px"
    addEventListener("message", async ({ source, data }) => {
        if (source !== frame.contentWindow) return
        heard.push(data)
        const send = (message) => source.postMessage({ jsonrpc: "2.0", ...message }, "*")
        const { id, method, params } = data
        if (method === "ui/initialize") send({ id, result: { protocolVersion: "2026-01-26",
            hostInfo: { name: "host", version: "1" }, hostCapabilities: { serverTools: {} },
            hostContext: { theme: "dark", toolInfo: { tool: { name: tool } } } } })
        else if (method === "ui/notifications/initialized") {
            send({ method: "ui/notifications/tool-input", params: { arguments: given } })
            send({ method: "ui/notifications/tool-result", params: result })
        } else if (method === "tools/call") send({ id, result: await callTool(params.name, params.arguments) })
    })
    frame.srcdoc = `<meta http-equiv="Content-Security-Policy" content="${policy}">` + html
    document.body.append(frame)
}"""


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Any]:
    async with start_browser() as started:
        yield started


async def open_app(tab: Any, agent: Agent, tool: str, **given: Any) -> tuple[Any, Any, list[str]]:
    """Return the host's page, the frame with the app that draws this call's answer, and the tools that it calls."""
    (content,) = (await agent.client.read_resource(RUNS_APP)).contents
    assert isinstance(content, TextResourceContents)
    assert content.mime_type == "text/html;profile=mcp-app"
    called: list[str] = []

    async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
        called.append(name)
        return (await agent.client.call_tool(name, arguments)).model_dump(mode="json", by_alias=True, exclude_none=True)

    page = await tab.new_page()
    await page.expose_function("callTool", call_tool)
    result = (await agent.client.call_tool(tool, given)).model_dump(mode="json", by_alias=True, exclude_none=True)
    await page.evaluate(HOST, [content.text, POLICY, tool, given, result])
    return page, page.frame_locator("iframe"), called


@pytest.mark.slow
async def test_an_app_draws_the_answer_and_asks_the_server_through_its_host(sandbox: Sandbox, browser: Any) -> None:
    async with sandbox.agent() as agent, open_tab(browser) as tab:
        lines = [f"step {step}/9 loss {0.9 / step:.3f}" for step in range(1, 10)]
        command = f"printf '%s\\n' {shlex.join(lines)} {shlex.quote(MARKUP)}; echo CUDA out of memory >&2; exit 1"
        run_id = await agent.launch(command, name=MARKUP[:60])
        await agent.end(run_id)
        page, app, called = await open_app(tab, agent, "list_runs", state="failed")
        row = app.locator(f'[data-id="{run_id}"]')
        await row.wait_for()
        assert "out of GPU memory" in await row.inner_text()
        assert called == [], "the answer came with the call"
        await row.get_by_role("link").click()
        assert "CUDA out of memory" in await app.locator(".why.bad").inner_text()
        await app.get_by_role("tab", name="Log").click()
        assert MARKUP in await app.locator(".lines").inner_text()
        await app.get_by_role("tab", name="Curves").click()
        await app.locator(".panel canvas").wait_for()
        assert {"list_runs", "read_log", "read_tb"} == set(called), "and nothing that changes a run"
        heard = await page.evaluate("window.heard")
        assert "hacked" not in heard
        assert any(one.get("method") == "ui/notifications/size-changed" for one in heard)
        assert await app.locator("html").get_attribute("data-theme") == "dark"


async def test_a_look_again_at_waited_runs_takes_no_news_from_the_agent(sandbox: Sandbox, browser: Any) -> None:
    async with sandbox.agent() as agent, open_tab(browser) as tab:
        run_id = await agent.launch("echo begun; sleep 600", name="waited")
        other = await agent.launch("sleep 600", name="other")
        _, app, called = await open_app(tab, agent, "wait_run", run_ids=run_id, timeout_s=0)
        row = app.locator(f'[data-id="{run_id}"]')
        await row.get_by_text("running").wait_for()
        await agent.kill(run_id)
        await app.get_by_role("button", name="Refresh").click()
        await row.get_by_text("killed").wait_for()
        assert await app.locator(f'[data-id="{other}"]').count() == 0
        assert set(called) == {"list_runs"}
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["reason"] == "ended"
        await agent.kill(other)


async def test_a_client_without_apps_reads_the_same_text(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("true", name="plain")
        await agent.end(run_id)
        answer = await agent.client.call_tool("list_runs", {})
        assert json.loads(answer.content[0].text) == answer.structured_content  # type: ignore[union-attr]
        assert run_id in answer.content[0].text  # type: ignore[union-attr]
        listed = {tool.name: (tool.meta or {}).get("ui") for tool in (await agent.client.list_tools()).tools}
        drawn = {name for name, app in listed.items() if app is not None}
        assert drawn == {"list_runs", "wait_run"}
        assert all(listed[name] == {"resourceUri": RUNS_APP} for name in drawn)
