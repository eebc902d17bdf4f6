"""A server looks nothing up on its event loop: a disk that does not answer holds up only those who use it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from mcp_server.page.routes import Page, stream_changes
from mcp_server.page.sessions import Visitor
from mcp_server.store.tokens import Tokens
from mcp_server.tools.support.context import ServerContext
from tests.support.loop_lookups import record_lookups
from tests.support.sandbox import Sandbox
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BLUEPRINT = """## [exp_purpose]
Finish at once

## [exp_codebase_dir]
{code}

## [exp_launch_command]
bash train.sh

## [exp_result_dir]
{results}
"""


async def test_no_tool_looks_a_file_up_on_the_event_loop(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    code = sandbox.path
    (code / "train.sh").write_text("echo step 1 loss 0.5\n")
    (code / "params.yaml").write_text("lr: 0.1\n")
    blueprint = code / "short.md"
    blueprint.write_text(BLUEPRINT.format(code=code, results=code / "results"))
    async with sandbox.agent_in_process() as agent:
        lookups = record_lookups(monkeypatch, sandbox.path)
        there = {"cwd": str(code)}
        runs = [await agent.launch("echo step 1 loss 0.5; exec sleep 300", **there) for _ in range(3)]
        for key in ("a key", "a key"):
            await agent.call("launch_run", command="true", wait_s=60, idempotency_key=key, **there)
        end = (await agent.call("launch_run", blueprint=str(blueprint), gpus="cpu", queue=True))["run_id"]
        await agent.end(end)
        await agent.call("wait_run", run_ids="live", timeout_s=0.1)
        await agent.call("wait_run", run_ids=runs[0], until="loss < 0.1", timeout_s=0.1)
        for tool, arguments in _list_looks(runs[0], end, code):
            await agent.client.call_tool(tool, arguments)  # some are refused
        for address in (f"run://{runs[0]}", f"run://{runs[0]}/log"):
            await agent.client.read_resource(address)
        await agent.client.list_resources()
        await agent.call("finish_blueprint", run_id=end)
        assert (await agent.kill(runs[0]))["status"] == "killed"
        plan = {
            "name": "night",
            "common": {"command": "exec sleep 300", "gpus": "cpu", **there},
            "cells": [{}, {"launch": {"env": {"N": "2"}}}],
        }
        await agent.call("launch_sweep", dry_run=True, **plan)
        await agent.call("launch_sweep", **plan)
        await agent.call("launch_sweep", name="night", notes={"cell": "keep"})
        await agent.call("wait_run", run_ids="night", timeout_s=0.1)
        await agent.call("list_runs", sweep="night")
        await agent.call("compare_runs", sweep="night")
        assert (await agent.kill("night"))["status"] == "killed"
        several = await agent.call("kill_run", run_id=runs[1:])
        await agent.call("kill_run", run_id=runs[1:], confirm_token=several["confirm_token"])
    assert not lookups, "\n".join(sorted(lookups))


async def test_the_page_looks_no_file_up_on_the_event_loop(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sandbox.agent_in_process() as agent:
        server = ServerContext.of(sandbox.environ)
        page = Page(server, Tokens(server.home))
        cookie = page.sessions.redeem(page.sessions.make_link())
        lookups = record_lookups(monkeypatch, sandbox.path)
        there = {"cwd": str(sandbox.path)}
        run_id = await agent.launch("echo step 1 loss 0.5; exec sleep 300", **there)
        ended = (await agent.call("launch_run", command="echo step 1 loss 0.5", wait_s=60, **there))["run_id"]
        common = {"command": "exec sleep 300", "gpus": "cpu", **there}
        plan = {"name": "night", "common": common, "cells": [{}, {"launch": {"env": {"N": "2"}}}]}
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        transport = httpx2.ASGITransport(app=page)
        cookies = {page.sessions.cookie: str(cookie)}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", cookies=cookies) as http:
            own = {"x-runward": "page", "content-type": "application/json"}
            for address in (
                *("/", "/static/index.html", "/api/me", "/api/runs", "/api/gpus", f"/api/sweeps/{sweep_id}"),
                *(
                    f"/api/runs/{ended}{part}"
                    for part in ("", "/log", "/log?grep=step", "/scalars", "/scalars?tag=loss")
                ),
                *(f"/api/runs/{run_id}{part}" for part in ("", "/files", "/gpus", "/diff", f"/diff?other={ended}")),
                *(f"/api/sparks?run={run_id}", f"/api/compare?run={run_id}&run={ended}", "/open/x"),
            ):
                assert (await http.get(address)).status_code in (200, 404), address
            assert (await http.post(f"/api/runs/{run_id}/note", json={"text": "a"}, headers=own)).status_code == 200
            changes = stream_changes(
                page.board, None, Visitor(), lambda: page.find_visitor(Request({"type": "http", "headers": []}))
            )
            assert await anext(changes) == ": open\n\n"
            following = asyncio.ensure_future(anext(changes))
            for stopped in (f"/api/runs/{run_id}", f"/api/sweeps/{sweep_id}"):
                form = {"run_id": stopped.rpartition("/")[2]}
                assert (await http.post(f"{stopped}/kill", json=form, headers=own)).json()["state"] == "killed"
            assert "event: runs" in await following
            await changes.aclose()
            assert (await http.request("DELETE", "/api/session", headers=own)).status_code == 200
    assert not lookups, "\n".join(sorted(lookups))


@needs_sshd
async def test_nor_does_one_for_runs_on_another_host(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"cwd": str(far_host.path), "host": NAME}
    async with sandbox.agent_in_process() as agent:
        lookups = record_lookups(monkeypatch, sandbox.path)
        await agent.refusal("launch_run", command="true", cwd="/nowhere/at/all", host=NAME)
        await agent.call("launch_run", command="true", dry_run=True, **there)
        run_id = await agent.launch("echo step 1 loss 0.5; exec sleep 300", **there)
        ended = await agent.launch("echo step 1 loss 0.5", idempotency_key="a key", **there)
        await agent.end(ended)
        await agent.launch("true", idempotency_key="a key", **there)
        await agent.call("wait_run", run_ids="live", timeout_s=0.1)
        await agent.call("wait_run", run_ids=run_id, until="loss < 0.1", timeout_s=0.1)
        for tool, arguments in (
            ("read_tb", {"run_id": run_id}),
            ("capture_pane", {"run_id": run_id}),
            ("read_log", {"run_id": run_id}),
            ("compare_runs", {"run_ids": [run_id, ended]}),
            ("list_runs", {"host": NAME}),
            ("gpu_check", {"host": NAME}),
            ("gpu_check", {"run_id": run_id}),
            ("preflight", {"command": "true", **there}),
            ("finish_blueprint", {"run_id": ended, "result_dir": str(sandbox.path / "results")}),
        ):
            await agent.client.call_tool(tool, arguments)  # some are refused
        await agent.client.read_resource(f"run://{run_id}")
        await agent.client.read_resource(f"run://{run_id}/log")
        far_host.stop()
        await agent.call("list_runs")
        await agent.call("wait_run", run_ids=run_id, timeout_s=0.1)
        far_host.start()
        assert (await agent.kill(run_id))["status"] == "killed"
    assert not lookups, "\n".join(sorted(lookups))


def _list_looks(run_id: str, ended: str, code: Path) -> list[tuple[str, dict[str, Any]]]:
    paths = {"paths": [str(code / "params.yaml")], "params": str(code / "params.yaml")}
    return [
        ("read_tb", {"run_id": run_id}),
        ("read_tb", {"logdir": str(code)}),
        ("capture_pane", {"run_id": run_id}),
        ("read_log", {"run_id": run_id}),
        ("read_log", {"path": str(code / "short.md")}),
        ("check_blueprint", {"path": str(code / "short.md")}),
        ("compare_runs", {"run_ids": [run_id, ended]}),
        ("list_runs", {"others": True}),
        ("gpu_check", {"run_id": run_id}),
        ("preflight", {"blueprint": str(code / "short.md"), "imports": ["numpy"], "gpus": "cpu", **paths}),
        ("launch_run", {"command": "python train.py", "cwd": str(code), "dry_run": True, "params": paths["params"]}),
        ("launch_run", {"command": "true", "gpus": ["cpu-0", "cpu-0"]}),
    ]
