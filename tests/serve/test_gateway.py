"""The request gateway: which requests reach the MCP endpoint. Pure ASGI, no sockets."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from mcp_server.errors import RunwardError
from mcp_server.page.routes import Page
from mcp_server.serve import gateway, http
from mcp_server.serve.connections import ConnectionLimits, Connections
from mcp_server.serve.gateway import RequestGateway
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from mcp_server.tools.support.context import ServerContext

pytestmark = pytest.mark.anyio
LOCAL = ("127.0.0.1", 8765)


class Inner:
    """Answers 200 with the caller's name and the size of the body, or holds the request as long as it is told to."""

    def __init__(self) -> None:
        self.held = False
        self.begins = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        if self.begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if self.held:
            await anyio.sleep_forever()
        name = getattr(scope.get("user"), "username", "anybody")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{name} {len(body)}".encode()})


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def endpoint(tmp_path: Path, inner: Inner) -> RequestGateway:
    tokens, names = Tokens(StateHome(tmp_path)), frozenset(("localhost", "127.0.0.1", "[::1]", "train.lan"))
    return RequestGateway(
        inner, tokens, names, lambda: 0, Page(ServerContext.of({"RUNWARD_HOME": str(tmp_path)}), tokens)
    )


async def ask(
    endpoint: RequestGateway,
    headers: Mapping[str, str] | None = None,
    *,
    path: str = "/mcp",
    method: str = "POST",
    server: tuple[str, int] = LOCAL,
    parts: tuple[bytes, ...] = (b"{}",),
    hangs: bool = False,
) -> tuple[int, bytes]:
    """Return the status and the body of the answer to one request."""
    told: list[Any] = []
    left = list(parts)

    async def receive() -> Any:
        if not left:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or hangs}

    async def send(message: Any) -> None:
        told.append(message)

    given = {"host": "localhost:8765", **(headers or {})}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "server": server,
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await endpoint(scope, receive, send)
    return told[0]["status"], b"".join(message.get("body", b"") for message in told)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9000", "[::1]", "[::1]:8765", "train.lan", "10.1.2.3:8765"],
)
async def test_a_host_by_which_the_server_is_called_is_let_in(endpoint: RequestGateway, host: str) -> None:
    assert await ask(endpoint, {"host": host}, server=("10.1.2.3", 8765)) == (200, b"anybody 2")


@pytest.mark.parametrize(
    "host", ["", "evil.example", "10.9.9.9", "localhost.", "localhost:x", "a@localhost", "::1", "[::2]"]
)
async def test_another_host_is_not(endpoint: RequestGateway, host: str) -> None:
    assert (await ask(endpoint, {"host": host}, server=("10.1.2.3", 8765)))[0] == 421


async def test_the_address_that_a_request_came_in_by_may_be_ipv6(endpoint: RequestGateway) -> None:
    assert (await ask(endpoint, {"host": "[fd00::5]:8765"}, server=("fd00::5", 8765)))[0] == 200
    assert (await ask(endpoint, {"host": "[fd00::6]:8765"}, server=("fd00::5", 8765)))[0] == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:6274", 200),
        ("https://train.lan", 200),
        ("http://[::1]:3000", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("localhost", 403),
        ("ftp://localhost", 403),
        ("http://localhost@evil.example", 403),
        ("http://localhost/path", 403),
    ],
)
async def test_a_page_of_another_site_is_refused(endpoint: RequestGateway, origin: str, status: int) -> None:
    assert (await ask(endpoint, {"origin": origin}))[0] == status


async def test_with_tokens_a_caller_has_the_name_of_its_token(endpoint: RequestGateway) -> None:
    token = endpoint.tokens.add("alice")
    assert await ask(endpoint, {"authorization": f"Bearer {token}"}) == (200, b"alice 2")
    assert (await ask(endpoint, {"authorization": f"bearer  {token} "}))[0] == 200
    assert (await ask(endpoint))[0] == 401
    assert (await ask(endpoint, {"authorization": "Bearer x"}))[0] == 401


async def test_health_needs_no_token_and_tells_no_name(endpoint: RequestGateway) -> None:
    endpoint.tokens.add("alice")
    status, body = await ask(endpoint, path="/healthz", method="GET")
    assert status == 200
    assert b'"waits": 0' in body
    assert b"alice" not in body


async def test_a_body_in_parts_arrives_whole_and_one_that_is_too_large_does_not(endpoint: RequestGateway) -> None:
    mib = b"x" * (1 << 20)
    assert await ask(endpoint, parts=(mib,) * 4) == (200, b"anybody 4194304")
    assert (await ask(endpoint, parts=(mib, mib, mib, mib, b"x")))[0] == 413
    assert (await ask(endpoint, {"content-length": "4194305"}))[0] == 413


async def test_a_body_that_never_ends_is_given_up(endpoint: RequestGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_BODY_S", 0.01)
    assert (await ask(endpoint, parts=(b"{",), hangs=True))[0] == 408


@pytest.mark.parametrize(("begins", "status"), [(False, 503), (True, 200)])
async def test_a_stop_ends_what_is_held_and_refuses_what_comes_after(
    endpoint: RequestGateway, inner: Inner, monkeypatch: pytest.MonkeyPatch, begins: bool, status: int
) -> None:
    monkeypatch.setattr(gateway, "_FINISH_S", 0.01)
    inner.held, inner.begins = True, begins
    answers: list[tuple[int, bytes]] = []

    async def hold(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        answers.append(await ask(endpoint))

    async with anyio.create_task_group() as tasks:
        await tasks.start(hold)
        await anyio.wait_all_tasks_blocked()
        await endpoint.close()
    assert [answer[0] for answer in answers] == [status]
    assert (await ask(endpoint))[0] == 503
    assert (await ask(endpoint, path="/healthz", method="GET"))[0] == 200


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:8765", ("127.0.0.1", 8765)),
        (":8765", ("127.0.0.1", 8765)),
        ("8765", ("127.0.0.1", 8765)),
        ("[::1]:80", ("::1", 80)),
        ("train.lan:1", ("train.lan", 1)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parsed: tuple[str, int]) -> None:
    assert http._parse(address) == parsed


@pytest.mark.parametrize("address", ["", "localhost", "::1:80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "a:²"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(RunwardError, match="Nothing is served"):
        http._parse(address)


def test_an_address_that_this_machine_lacks_does_not_keep_it_from_the_others() -> None:
    connections = Connections(ConnectionLimits.within(1024))
    lacks, has = (socket.AF_INET, ("192.0.2.1", 0)), (socket.AF_INET, ("127.0.0.1", 0))
    for addresses in ([lacks, has], [has, lacks]):
        (listener,) = http._listen(addresses, "localhost:0", connections)
        assert listener.getsockname()[0] == "127.0.0.1"
        taken = listener.getsockname()
        with pytest.raises(RunwardError, match=r"Cannot listen at localhost:0: Address already in use"):
            http._listen([lacks, (socket.AF_INET, taken)], "localhost:0", connections)
        listener.close()
    with pytest.raises(RunwardError, match=r"Cannot listen at train.lan:0: "):
        http._listen([lacks], "train.lan:0", connections)
