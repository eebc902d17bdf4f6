"""Waits whose client has gone or given up: their news is not lost, and they do not pile up."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from mcp_server.runs.wait.cursors import MOST_ALIKE
from mcp_server.system import processes
from tests.support import hostile_requests
from tests.support.sandbox import COLD, PATIENCE_S, Agent, Sandbox, until, until_async
from tests.support.service import Service, serve, tokens

pytestmark = pytest.mark.anyio

COMMAND = "read -r < {gate}; echo first of steps; sleep 600"


@pytest.fixture
def gate(sandbox: Sandbox) -> Path:
    """The run makes its first step when somebody writes into this."""
    os.mkfifo(path := sandbox.path / "gate")
    return path


async def launch(agent: Agent, gate: Path) -> str:
    return await agent.launch(COMMAND.format(gate=gate), first_step_pattern="first of steps")


def has_stepped(sandbox: Sandbox, run_id: str) -> bool:
    return "first_step" in [event["kind"] for event in sandbox.run(run_id).events]


def wait_request(
    service: Service, token: str, run_id: str, session: str | None = None, *, timeout_s: int = 600, number: int = 7
) -> bytes:
    """The bytes of a wait_run of the stateless protocol, or of the older one in a session."""
    params = {"name": "wait_run", "arguments": {"run_ids": run_id, "timeout_s": timeout_s}}
    if session is None:
        request = hostile_requests.modern("tools/call", params, host="localhost")
    else:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
        request = in_session(session, body)
    return request.replace(b"{alice}", token.encode())


def in_session(session: str, body: bytes) -> bytes:
    headers: dict[str, Any] = {"Mcp_Session_Id": session, "MCP_Protocol_Version": "2025-11-25"}
    return hostile_requests.request(body, host="localhost", **headers)


def open_session(service: Service, token: str) -> str:
    session = service.open_session(token)
    ready = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
    assert service.send(in_session(session, ready).replace(b"{alice}", token.encode()))[0] == 202
    return session


def ask_state(service: Service, token: str, run_id: str, session: str | None) -> dict[str, Any]:
    """The answer to a wait_run that does not wait."""
    status, told = service.send(wait_request(service, token, run_id, session, timeout_s=0))
    assert status == 200, told
    decoded = json.JSONDecoder().raw_decode(told[told.index(b'{"') :].decode())[0]
    content: dict[str, Any] = decoded["result"]["structuredContent"]
    return content


@pytest.mark.parametrize("legacy", [False, True], ids=["stateless", "sessions"])
async def test_what_happens_after_the_connection_of_a_wait_was_dropped_is_news_to_the_next_wait(
    sandbox: Sandbox, gate: Path, legacy: bool
) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        async with service.agent(token) as alice:
            run_id = await launch(alice, gate)
        session = open_session(service, token) if legacy else None
        if session is not None:
            ask_state(service, token, run_id, session)  # this caller knows that the run runs
        with socket.create_connection((service.host, service.port)) as dropped:
            dropped.sendall(wait_request(service, token, run_id, session))
            await until_async(lambda: service.health()["waits"] == 1, "the wait")
        await until_async(lambda: service.health()["waits"] == 0, "the end of the wait")
        gate.write_text("\n")
        await until_async(lambda: has_stepped(sandbox, run_id), "the first step")
        reasons = [ask_state(service, token, run_id, session)["reason"] for _ in range(2)]
        assert reasons == ["first_step", "heartbeat"]
        assert "Traceback" not in service.log.read_text()


@pytest.mark.slow
async def test_waits_whose_connections_are_dropped_do_not_pile_up(sandbox: Sandbox, gate: Path) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        async with service.agent(token) as alice:
            run_id = await launch(alice, gate)
        session = open_session(service, token)
        for which in (None, session):
            with contextlib.ExitStack() as stack:
                for number in range(100):
                    connection = stack.enter_context(socket.create_connection((service.host, service.port)))
                    connection.sendall(wait_request(service, token, run_id, which, number=number))
                await until_async(lambda: service.health()["waits"] > 50, "many waits")
            await until_async(lambda: service.health()["waits"] == 0, "the end of all waits")


async def test_a_wait_says_nothing_any_more_once_its_token_was_removed(sandbox: Sandbox, gate: Path) -> None:
    known = tokens(sandbox)
    token = known.add("alice")
    with serve(sandbox) as service:
        async with service.agent(token) as alice:
            run_id = await launch(alice, gate)
        with ThreadPoolExecutor() as pool:
            open_wait = pool.submit(service.send, wait_request(service, token, run_id), 60)
            await until_async(lambda: service.health()["waits"] == 1, "the wait")
            known.remove("alice")
            gate.write_text("\n")
            status, told = open_wait.result(60)
        assert status == 401
        assert b"first_step" not in told
        assert service.health()["waits"] == 0


# --- over stdio, where a client that gives up need not say so


@dataclass
class Pipe:
    """A client of a server over stdio that writes and reads lines, and no more."""

    process: subprocess.Popen[str]
    last_id: int = 0

    def send(self, method: str, params: Any, *, answered: bool = True) -> int:
        self.last_id += 1
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({"id": self.last_id} if answered else {})
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self.last_id

    def call(self, tool: str, **arguments: Any) -> int:
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return the next answer: its id and its content."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "id" in (message := json.loads(line)):
                return message["id"], message["result"].get("structuredContent", {})
        raise AssertionError("the server ended")

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to this call; others are thrown away, as a client does that has given them up."""
        wanted = self.call(tool, **arguments)
        return next(content for number, content in iter(self.read, None) if number == wanted)


@pytest.fixture
def pipe(sandbox: Sandbox) -> Iterator[Pipe]:
    words = [sys.executable, "-m", "mcp_server"]
    with subprocess.Popen(
        words, env=sandbox.environ, cwd=sandbox.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pipe = Pipe(process)
        pipe.send("initialize", json.loads(hostile_requests.INITIALIZE)["params"])
        pipe.read()
        pipe.send("notifications/initialized", {}, answered=False)
        yield pipe
        process.kill()


def kinds_in(answer: dict[str, Any]) -> list[str]:
    return [event["kind"] for event in answer["runs"][0].get("events", ())]


@pytest.mark.slow
def test_news_that_only_a_given_up_wait_answered_is_in_the_next_answer(
    sandbox: Sandbox, gate: Path, pipe: Pipe
) -> None:
    command = COMMAND.format(gate=gate)
    run_id = pipe.ask("launch_run", command=command, first_step_pattern="first of steps")["run_id"]
    given_up = pipe.call("wait_run", run_ids=run_id, timeout_s=600)
    gate.write_text("\n")
    assert pipe.read()[0] == given_up
    answer = pipe.ask("wait_run", run_ids=run_id, timeout_s=0)
    assert (answer["reason"], kinds_in(answer)) == ("heartbeat", ["first_step"])
    answer = pipe.ask("wait_run", run_ids=run_id, timeout_s=0)
    assert (answer["reason"], kinds_in(answer)) == ("heartbeat", [])


@pytest.mark.slow
def test_waits_that_were_given_up_do_not_pile_up_and_take_no_news_from_later_ones(
    sandbox: Sandbox, gate: Path, pipe: Pipe
) -> None:
    command = COMMAND.format(gate=gate)
    run_id = pipe.ask("launch_run", command=command, first_step_pattern="first of steps")["run_id"]
    waits = [pipe.call("wait_run", run_ids=run_id, timeout_s=600) for _ in range(100)]
    ended = [pipe.read() for _ in range(100 - MOST_ALIKE)]
    assert {answer["reason"] for _, answer in ended} == {"heartbeat"}
    gate.write_text("\n")
    rest = [pipe.read() for _ in range(MOST_ALIKE)]
    # The server opens them in an order of its own: which are the oldest is a test of values.
    assert sorted(number for number, _ in [*ended, *rest]) == waits
    assert {answer["reason"] for _, answer in rest} == {"first_step"}
    until(lambda: pipe.ask("wait_run", run_ids=run_id, timeout_s=0)["reason"] == "heartbeat", "no more news")


@pytest.mark.slow
def test_a_search_ends_with_its_client_without_a_word(sandbox: Sandbox) -> None:
    with (sandbox.path / "endless.log").open("wb") as file:
        file.truncate(1 << 40)
    server = subprocess.Popen(
        COLD,
        env=sandbox.environ,
        cwd=sandbox.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a client", "version": "1"}}
    search = {"name": "read_log", "arguments": {"path": "endless.log", "grep": "a.*b"}}
    for message in (
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": search},
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
    server.stdout.readline()
    endless = os.path.realpath(sandbox.path / "endless.log")

    def is_searched() -> bool:
        descriptors = [each for p in processes.descendants(server.pid) for each in Path(f"/proc/{p.pid}/fd").iterdir()]
        return endless in map(os.path.realpath, descriptors)

    until(is_searched, "the search")
    server.stdin.close()
    server.stdout.close()
    with server.stderr:
        assert (server.wait(PATIENCE_S), server.stderr.read()) == (0, b"")


@pytest.mark.slow
async def test_after_a_client_has_cut_a_wait_its_heartbeats_come_before_that_and_no_news_is_lost(
    sandbox: Sandbox,
) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch(f"until [ -e {sandbox.path}/go ]; do sleep 0.1; done; exit 3")
        with pytest.raises(MCPError, match="timed out"):
            await agent.client.call_tool("wait_run", {"run_ids": run_id}, read_timeout_seconds=4)
        beat = await agent.call("wait_run", run_ids=run_id)
        assert beat["reason"] == "heartbeat"
        assert beat["next_timeout_s"] < 4.5
        assert "gave a call up after about 4" in beat["note"]
        assert "note" not in await agent.call("wait_run", run_ids=run_id)
        (sandbox.path / "go").touch()
        while (told := await agent.call("wait_run", run_ids=run_id))["reason"] == "heartbeat":
            pass
        assert told["reason"] == "ended"
