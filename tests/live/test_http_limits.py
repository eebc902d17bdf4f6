"""What a caller without a token, or with one, can take from the others: sockets, descriptors, sessions."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.serve.gateway import MOST_OF_TOKEN
from tests.support import hostile_requests
from tests.support.ports import free_port
from tests.support.sandbox import Sandbox, until, until_async
from tests.support.service import Service, serve, tokens

pytestmark = pytest.mark.anyio

DESCRIPTORS = 128


@contextlib.contextmanager
def flood(service: Service, count: int, words: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that send ``words`` and nothing more."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((service.host, service.port), timeout=20))
            with contextlib.suppress(ConnectionError):
                connection.sendall(words)
            connections.append(connection)
        yield connections


def open_descriptors(service: Service) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("words", [b"", b"POST /mcp HTTP/1.1\r\nHost: local"], ids=["silent", "half a head"])
async def test_more_idle_connections_than_descriptors_cost_a_caller_with_a_token_nothing(
    sandbox: Sandbox, words: bytes
) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox, descriptors=DESCRIPTORS) as service:
        async with service.agent(token) as alice:
            run_id = await alice.launch("echo begun; sleep 600")
            with flood(service, 300, words):
                assert open_descriptors(service) < DESCRIPTORS
                assert (await alice.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"
                async with service.agent(token) as another:
                    assert (await another.call("list_runs"))["total"] == 1
                    assert (await another.kill(run_id))["status"] == "killed"
                assert service.health()["status"] == "ok"
            assert (await alice.call("list_runs"))["total"] == 1
        assert service.process.poll() is None
        assert service.log.read_text().count("\n") == 1, service.log.read_text()


@pytest.mark.slow
async def test_where_no_descriptor_is_left_the_server_serves_on_as_soon_as_there_are_some(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox, cold=True) as service:
        pid = service.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        async with service.agent(token) as alice:
            assert (await alice.call("list_runs"))["total"] == 0
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            with flood(service, 20):
                await until_async(lambda: "Too many open files" in service.log.read_text(), "the shortage")
                assert service.process.poll() is None
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
                assert (await alice.call("list_runs"))["total"] == 0
                async with service.agent(token) as another:
                    assert (await another.call("list_runs"))["total"] == 0
        assert service.log.read_text().count("Too many open files") == 1
        assert "Traceback" not in service.log.read_text()


@pytest.mark.slow
def test_a_connection_without_a_token_is_closed_when_it_is_idle_after_an_answer(sandbox: Sandbox) -> None:
    tokens(sandbox).add("alice")
    with serve(sandbox) as service, socket.create_connection((service.host, service.port), timeout=40) as connection:
        connection.sendall(hostile_requests.request(line="GET /healthz HTTP/1.1", token=None, host="localhost"))
        told = b""
        while part := connection.recv(1 << 16):
            told += part
    assert told.startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_the_connections_of_one_token_take_no_others_places(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    with serve(sandbox, descriptors=DESCRIPTORS) as service:
        request = hostile_requests.plain(host="localhost").replace(b"{alice}", alices.encode())
        with flood(service, 100, request) as connections:
            for connection in connections[-10:]:  # 503: its others are all being answered
                assert connection.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503")
            assert open_descriptors(service) < DESCRIPTORS
            async with service.agent(bobs) as bob:
                assert (await bob.call("list_runs"))["total"] == 0


def test_a_server_whose_loop_is_left_without_a_signal_exits_with_status_1(sandbox: Sandbox) -> None:
    program = """
import asyncio, threading
from mcp_server.serve import http

def leave():
    raise KeyboardInterrupt

class Broken(http._Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)  # holds an orderly exit up
        asyncio.get_running_loop().call_later(0.1, leave)

http._Server = Broken
http.serve_http("127.0.0.1:%d", is_open=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program % free_port()],
        env={**sandbox.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "stopped without a signal" in ended.stderr


# --- the token that a server makes


def test_a_server_without_tokens_makes_one_for_its_user_and_lets_nobody_else_in(sandbox: Sandbox) -> None:
    with serve(sandbox, words=()) as service:
        request = hostile_requests.plain(token=None, host="localhost")
        assert service.send(request)[0] == 401
        assert service.health()["status"] == "ok"
        greeting = service.log.read_text()
        assert re.findall(r"runward_[\w-]{43}", greeting) == []  # a service's journal keeps it for years
        (file,) = re.findall(r"is in (\S+) \(mode 0600\)", greeting)
        assert Path(file).stat().st_mode & 0o777 == 0o600
        token = Path(file).read_text().strip()
        assert re.fullmatch(r"runward_[\w-]{43}", token)
        assert (
            service.send(request.replace(b"\r\n", b"\r\nAuthorization: Bearer " + token.encode() + b"\r\n", 1))[0]
            == 200
        )
        (name,) = tokens(sandbox).names
        assert f"A token for {name}" in greeting
        assert "--open" in greeting
        assert f"claude mcp add --transport http runward {service.url}" in greeting
        assert tokens(sandbox).file.stat().st_mode & 0o777 == 0o600
        assert token not in tokens(sandbox).file.read_text()
    with serve(sandbox, words=()) as service:
        assert service.log.read_text().removeprefix(greeting).strip().endswith("(tokens: 1)")


@pytest.mark.slow
def test_a_token_that_a_server_makes_is_shown_on_a_terminal(sandbox: Sandbox) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "mcp_server", "serve", "--http", f"127.0.0.1:{free_port()}"]
    process = subprocess.Popen(words, env=sandbox.environ, stdin=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        while b"More agents" not in told:
            told += os.read(ours, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    (token,) = re.findall(r"runward_[\w-]{43}", told.decode())
    (name,) = tokens(sandbox).names
    assert tokens(sandbox).holder(token) == name
    assert (sandbox.path / "state" / f"token-{name}").read_text() == f"{token}\n"


def test_an_open_server_is_one_that_somebody_asked_for_and_never_beside_tokens(sandbox: Sandbox) -> None:
    tokens(sandbox).add("alice")
    refused = sandbox.runward("serve", "--http", f"127.0.0.1:{free_port()}", "--open")
    assert (refused.returncode, "every request needs a token" in refused.stderr) == (2, True)
    refused = sandbox.runward("serve", "--open")
    assert (refused.returncode, "--http" in refused.stderr) == (2, True)


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_over_stdio_whose_client_holds_stdin_open(
    sandbox: Sandbox, number: signal.Signals
) -> None:
    reader, writer = os.pipe()
    try:
        with subprocess.Popen(
            ["env", "--default-signal=INT,TERM", sys.executable, "-m", "mcp_server"],  # a shell's & ignores SIGINT
            env=sandbox.environ,
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as server:
            os.write(writer, hostile_requests.INITIALIZE + b"\n")
            assert server.stdout is not None
            assert b'"result"' in server.stdout.readline()
            server.send_signal(number)
            assert server.wait(30) == -number
            assert server.stderr is not None
            assert b"Traceback" not in server.stderr.read()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.slow
def test_a_server_over_http_stops_on_a_signal_during_a_flood(sandbox: Sandbox) -> None:
    with serve(sandbox, descriptors=DESCRIPTORS) as service, flood(service, 200):
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.process.poll() is not None, "the end")
        assert service.process.returncode == 0


# --- sessions


def test_the_sessions_of_one_token_take_no_others_places(sandbox: Sandbox) -> None:
    known = tokens(sandbox)
    alices, bobs = known.add("alice"), known.add("bob")
    with serve(sandbox) as service:

        def ping(session: str, token: str) -> int:
            ping_ = b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}'
            headers: dict[str, Any] = {"Mcp_Session_Id": session, "MCP_Protocol_Version": "2025-11-25"}
            request = hostile_requests.request(ping_, host="localhost", **headers)
            return service.send(request.replace(b"{alice}", token.encode()))[0]

        of_bob = service.open_session(bobs)
        opened = [service.open_session(alices) for _ in range(MOST_OF_TOKEN + 20)]
        assert [ping(session, alices) for session in (opened[0], opened[19], opened[20], opened[-1])] == [
            404,
            404,
            200,
            200,
        ]
        assert ping(of_bob, bobs) == 200
        assert ping(service.open_session(bobs), bobs) == 200
        assert "Traceback" not in service.log.read_text()


_BROKEN = b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
_BEGUN = b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{{}"


@pytest.mark.parametrize("host", [b"localhost", b"evil.example"])
@pytest.mark.parametrize("line", [b"GET /healthz HTTP/1.1\r\n", b"POST /mcp HTTP/1.1\r\n", b"PUT /x HTTP/1.1\r\n"])
async def test_a_request_that_breaks_off_in_the_midst_gets_one_answer_and_writes_nothing_to_the_log(
    sandbox: Sandbox, host: bytes, line: bytes
) -> None:
    tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        before = service.log.read_text()
        for _ in range(20):
            status, told = service.send(line + _BROKEN.replace(b"{host}", host))
            assert (status, told.count(b"HTTP/1.1 ")) == (400, 1)
        with socket.create_connection((service.host, service.port), timeout=10) as connection:
            connection.sendall(line + _BEGUN.replace(b"{host}", host))
            answer = connection.recv(1 << 16)  # before the request is whole: refused, or the health
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"ZZ\r\nZZ\r\n")
                answer += connection.recv(1 << 16)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert service.health()["status"] == "ok"
        assert service.log.read_text() == before


async def test_notifications_that_cannot_be_read_are_written_to_the_log_once(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        session = service.open_session(token)
        lines = service.log.read_text().count("\n")
        for number in range(30):
            body = json.dumps(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [number]}}
            )
            sent = hostile_requests.request(body.encode(), host="localhost", token=token, Mcp_Session_Id=session)
            assert service.send(sent)[0] in (202, 400)
        async with service.agent(token) as alice:
            assert (await alice.call("list_runs"))["total"] == 0
        assert service.log.read_text().count("\n") <= lines + 1, service.log.read_text()
