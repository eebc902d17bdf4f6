"""The page of a real server, asked as a browser asks: who gets in, what it shows, what it changes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest

from mcp_server.page.sessions import PageSessions
from mcp_server.store.state_home import StateHome
from tests.support import warm_start
from tests.support.sandbox import Sandbox, until, until_async
from tests.support.service import Service, free_port, serve, tokens

pytestmark = pytest.mark.anyio
OWN = {"x-runward": "page", "content-type": "application/json"}


@dataclass
class Browser:
    """A client with a session's cookie."""

    http: httpx2.AsyncClient
    seen: dict[str, Any] = field(default_factory=dict)

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, **form: Any) -> httpx2.Response:
        return await self.http.post(path, json=form, headers=OWN)

    async def events(self, cursor: str | None = None) -> AsyncGenerator[tuple[str, str, dict[str, Any]]]:
        """Yield id, name and data of each event of the stream."""
        address = "/api/events" + (f"?cursor={cursor}" if cursor else "")
        async with self.http.stream("GET", address) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name in ("id", "event", "data"):
                    event[name] = value
                elif not line and event:
                    yield event["id"], event["event"], json.loads(event["data"])
                    event = {}


@contextlib.asynccontextmanager
async def browse(service: Service, code: str | None = None) -> AsyncIterator[Browser]:
    """Open the page by a link, of the person at the machine unless ``code`` is another's."""
    sessions = PageSessions(StateHome(service.sandbox.path / "state"))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as http:
        opened = await http.get(f"/open/{code or sessions.make_link()}")
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        yield Browser(http)


async def test_a_link_opens_the_page_which_shows_the_runs_as_they_are(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        failed = await agent.launch("echo step 3/10 loss 0.5; echo 'RuntimeError: CUDA out of memory.'; exit 1")
        await agent.end(failed)
        live = await agent.launch("echo step 1/4 loss 0.25; sleep 600", name="live", tags=["paper"])
        await until_async(lambda: sandbox.run(live).progress.get("step") == 1, "the first step")
    with serve(sandbox) as service:
        async with browse(service) as browser:
            me = await browser.get("/api/me")
            assert (me["owner"], me["person"], me["control"]) == (None, True, True)
            told = await browser.get("/api/runs")
            rows = {row["id"]: row for row in told["runs"]}
            assert [row["id"] for row in told["runs"]] == [live, failed]
            assert (told["total"], told["older"], told["sweeps"]) == (2, False, [])
            assert (rows[live]["state"], rows[live]["live"], rows[live]["progress"]) == ("running", True, 0.25)
            assert (rows[live]["metric"], rows[live]["tags"]) == ({"tag": "loss", "value": 0.25}, ["paper"])
            assert (rows[failed]["cause"], rows[failed]["kind"]) == ("out of GPU memory", "oom_gpu")
            assert rows[failed]["line"] == "RuntimeError: CUDA out of memory."
            assert all(row["mine"] for row in told["runs"])


async def test_a_stream_tells_what_changes_and_goes_on_from_where_a_page_was(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with sandbox.agent() as agent, browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            states: list[str] = []
            ids: list[str] = []
            async with contextlib.aclosing(browser.events(cursor)) as events:
                run_id = await agent.launch("until test -e go; do sleep 0.05; done", cwd=str(sandbox.path))
                async for event_id, name, data in events:
                    assert name == "runs"
                    states += [row["state"] for row in data["runs"] if row["id"] == run_id]
                    ids.append(event_id)
                    if states[-1:] == ["running"]:
                        (sandbox.path / "go").touch()
                    if states[-1:] == ["finished"]:
                        break
            assert "running" in states
            async with contextlib.aclosing(browser.events(ids[0])) as events:
                _, name, data = await anext(events)
                assert (name, [row["state"] for row in data["runs"]]) == ("runs", ["finished"])


async def test_a_page_of_a_former_server_fetches_all_again_and_keeps_its_session(sandbox: Sandbox) -> None:
    with serve(sandbox, cold=True) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            service.stop(signal.SIGKILL)
            with serve(sandbox, port=service.port):
                async with contextlib.aclosing(browser.events(cursor)) as events:
                    assert (await anext(events))[1] == "reset"
                assert (await browser.get("/api/me"))["person"]


async def test_a_directory_that_is_removed_is_gone_from_the_page(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = (await agent.call("launch_run", command="true", wait_s=20))["run_id"]
    with serve(sandbox) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            async with contextlib.aclosing(browser.events(cursor)) as events:
                sandbox.rundir(run_id).path.rename(sandbox.path / "removed")
                assert (await anext(events))[2]["gone"] == [run_id]


async def test_a_stream_ends_with_its_server_at_once(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]

            async def listen() -> None:
                with contextlib.suppress(httpx2.HTTPError):
                    async for _ in browser.events(cursor):
                        pass

            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                await until_async(lambda: _count_connections(service) >= 1, "a stream")
                await anyio.to_thread.run_sync(service.stop)
            assert service.process.returncode == 0


def _count_connections(service: Service) -> int:
    found = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
    return len(re.findall(rf":{service.port:04X} \S+ 01 ", found))


# --- who gets in


async def test_without_a_session_there_is_no_data(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("ada")
    with serve(sandbox) as service:
        base = f"http://127.0.0.1:{service.port}"
        async with httpx2.AsyncClient(base_url=base) as http:
            for path in ("/api/me", "/api/runs", "/api/events"):
                assert (await http.get(path)).status_code == 401, path
            page = await http.get("/")
            assert page.status_code == 200
            assert "default-src 'self'" in page.headers["content-security-policy"]
            shown = await http.get("/api/me", headers={"authorization": f"Bearer {token}"})
            assert (shown.json()["owner"], shown.json()["control"]) == ("ada", False)
            assert (await http.post("/api/session", json={"token": "runward_x"}, headers=OWN)).status_code == 401
            logged_in = await http.post("/api/session", json={"token": token}, headers=OWN)
            assert logged_in.status_code == 200
            cookie = logged_in.headers["set-cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
            assert (await http.get("/api/me")).json()["control"]
            tokens(sandbox).remove("ada")
            assert (await http.get("/api/me")).status_code == 401


async def test_an_open_server_shows_and_lets_nobody_act(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}") as http:
            me = (await http.get("/api/me")).json()
            assert (me["owner"], me["person"], me["control"]) == (None, False, False)


# --- runward dash


@contextlib.contextmanager
def dash(sandbox: Sandbox, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*warm_start.command(), "dash", "--no-browser", *words]
    with (sandbox.path / "dash.log").open("w") as log:
        process = subprocess.Popen(command, env=sandbox.environ, stderr=log, text=True)
    try:
        told = until(lambda: re.search(r"http://\S+", (sandbox.path / "dash.log").read_text()), "a link")
        yield process, told[0]
    finally:
        process.kill()
        process.wait()


def test_dash_gives_a_link_of_the_server_that_runs(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        told = sandbox.runward("dash", "--no-browser")
        assert told.returncode == 0, told.stderr
        link = told.stdout.split()[0]
        assert link.startswith(f"http://127.0.0.1:{service.port}/open/")
        assert [httpx2.get(link).status_code for _ in range(2)] == [303, 404]


async def test_dash_serves_the_page_alone_to_who_has_its_link_until_ctrl_c(sandbox: Sandbox) -> None:
    port = free_port()
    with dash(sandbox, "--port", str(port)) as (process, link):
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/api/runs")).status_code == 401
            assert (await http.post("/mcp", json={})).status_code == 404
            assert (await http.get(link)).status_code == 303
            assert (await http.get("/api/runs")).json()["runs"] == []
        again = await anyio.to_thread.run_sync(sandbox.runward, "dash", "--no-browser")
        assert f":{port}/open/" in again.stdout
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait) == 0
    assert "runs go on" in (sandbox.path / "dash.log").read_text()


def test_a_server_over_stdio_does_not_load_the_page() -> None:
    code = (
        "import sys, mcp_server.serve.app as app; app.load_package();"
        "print(sum(n.startswith('mcp_server.tools.') for n in sys.modules),"
        "[n for n in sys.modules if n.startswith(('mcp_server.page.', 'mcp_server.serve.http'))])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, of_page = told.stdout.split(maxsplit=1)
    assert int(loaded) > 10
    assert of_page.strip() == "[]"
