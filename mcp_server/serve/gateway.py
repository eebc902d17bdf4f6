"""The door in front of the MCP endpoint: looks at an HTTP request before anything of it is used."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from mcp_server import __version__
from mcp_server.store.tokens import Tokens, TokensUnusable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH = "/mcp"
LARGEST_HEAD, LARGEST_BODY = 32 << 10, 4 << 20
# Whoever sends slower than this holds a connection and says nothing.
_BODY_S = 30.0
# Ordinary calls take milliseconds and may finish; then open waits are ended: nothing is lost with them.
_FINISH_S = 0.7
# Of these a second one means that two readers of the same request would see two requests.
_ONCE = (
    *(b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding", b"content-type"),
    *(b"content-encoding", b"mcp-session-id", b"mcp-protocol-version"),
)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?", re.IGNORECASE)


class Refused(Exception):
    """A request that is answered with ``status`` and read no further."""

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


@dataclass
class Door:
    """The ASGI application in front of the MCP endpoint: looks at a request before anything of it is used.

    ``names`` are the hosts by which it may be called; the address that a request came in by counts as well, since
    only names can be rebound.
    """

    inner: App
    tokens: Tokens
    names: frozenset[str]
    waiting: Callable[[], int]
    stopping: bool = False
    _open: set[anyio.CancelScope] = field(default_factory=set)
    _complaint: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        begun = ended = False

        async def answer(message: Message) -> None:
            nonlocal begun, ended
            begun = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        with anyio.CancelScope() as visit:
            self._open.add(visit)
            try:
                await self._serve(scope, receive, answer)
            except Refused as refusal:
                await _refuse(refusal, answer)
            finally:
                self._open.discard(visit)
        # At a stop what is inside is cancelled, or returns without ending its response.
        if not ended and (visit.cancel_called or self.stopping):
            await _end(send, begun=begun)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise Refused(404, "Not found")
        if scope["http_version"] not in ("1.0", "1.1"):
            raise Refused(505, "HTTP/1.1 is spoken here")
        headers = _headers(scope)
        self._check_host(scope, headers)
        if scope["path"] == "/healthz":
            await self._tell_health(scope, send)
            return
        if scope["path"] != PATH:
            raise Refused(404, "Not found")
        if self.stopping:
            raise Refused(503, "Stopping", (b"retry-after", b"5"))
        if (user := self._user(headers.get(b"authorization"))) is not None:
            scope["user"] = user
        body = await _body(headers, receive)
        await self.inner(scope, _replay(body, receive), send)

    def _check_host(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a browser could be tricked into sending: DNS rebinding, other sites' pages."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if not self._is_ours(host, scope):
            raise Refused(421, "This server is not called so; a person may add it to http_hosts in config.toml")
        scheme, separator, site = origin.partition("://")
        if origin and not (separator and scheme in ("http", "https") and self._is_ours(site, scope)):
            raise Refused(403, "Foreign Origin")

    def _is_ours(self, host: str, scope: Scope) -> bool:
        if (match := _HOST.fullmatch(host)) is None:
            return False
        name = match["name"].lower()
        address = (scope.get("server") or ("",))[0]
        return name in self.names or name == (f"[{address}]" if ":" in address else address)

    def _user(self, authorization: bytes | None) -> AuthenticatedUser | None:
        """Return who calls; None where no token is needed."""
        try:
            if not self.tokens.required:
                return None
            scheme, _, token = (authorization or b"").decode("latin-1").partition(" ")
            name = self.tokens.holder(token.strip()) if scheme.lower() == "bearer" else None
        except TokensUnusable as error:
            if str(error) != self._complaint:  # once, not with every request
                self._complaint = str(error)
                print(f"runward: {error}", file=sys.stderr, flush=True)
            raise Refused(503, "The server's file of tokens is unusable; it says why to its operator") from error
        if name is None:
            challenge = b"Bearer" if authorization is None else b'Bearer error="invalid_token"'
            raise Refused(401, "A bearer token is needed", (b"www-authenticate", challenge))
        return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))  # the token itself is kept nowhere

    async def _tell_health(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "Method not allowed", (b"allow", b"GET, HEAD"))
        health = {"status": "stopping" if self.stopping else "ok", "version": __version__, "waits": self.waiting()}
        await _respond(send, 200, json.dumps(health).encode(), b"application/json")

    async def close(self) -> None:
        """Let what is under way finish for a moment, then end it; new requests are refused."""
        self.stopping = True
        with anyio.move_on_after(_FINISH_S):
            while len(self._open) > self.waiting():  # noqa: ASYNC110 - for a moment, once
                await anyio.sleep(0.02)
        for visit in tuple(self._open):
            visit.cancel()


def _headers(scope: Scope) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    # The parser's own limit is for heads that come in parts.
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
        raise Refused(431, "Request headers too large")
    for name, value in scope["headers"]:
        if name in found and name in _ONCE:
            raise Refused(400, f"{name.decode('latin-1')} appears more than once")
        found[name] = value
    if b"content-length" in found and b"transfer-encoding" in found:
        raise Refused(400, "content-length beside transfer-encoding")
    if b"content-encoding" in found:
        raise Refused(415, "Send the body as it is")
    return found


async def _body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    if int(headers.get(b"content-length", b"0")) > LARGEST_BODY:
        raise Refused(413, "Request body too large")
    body = bytearray()
    with anyio.move_on_after(_BODY_S):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise Refused(400, "Gone before the end of the request")
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                raise Refused(413, "Request body too large")
            if not message.get("more_body", False):
                return bytes(body)
    raise Refused(408, "The request took too long to arrive")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the whole body first, and then tells when the client has gone."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


async def _refuse(refusal: Refused, send: Send) -> None:
    # The rest of the request is not read, so the connection can carry no other.
    headers = (*refusal.headers, (b"connection", b"close"))
    await _respond(send, refusal.status, refusal.text.encode(), b"text/plain; charset=utf-8", *headers)


async def _end(send: Send, *, begun: bool) -> None:
    """End a response that is cut short by a stop."""
    if begun:
        with contextlib.suppress(Exception):  # its client may have gone
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await _refuse(Refused(503, "Stopping", (b"retry-after", b"5")), send)


async def _respond(send: Send, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    common = [(b"content-type", kind), (b"content-length", length), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*common, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
