"""The request gateway: checks an HTTP request before the MCP endpoint sees any of it."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_server import __version__
from mcp_server.page.routes import Page
from mcp_server.store.tokens import Tokens, TokensUnusable
from mcp_server.tools.support.context import Delivery

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH = "/mcp"
LARGEST_HEAD, LARGEST_BODY = 32 << 10, 4 << 20
# A slower body only occupies a connection.
_BODY_S = 30.0
# Ordinary calls take milliseconds and may finish. Open waits are then ended; a later wait_run returns their news.
_FINISH_S = 0.7
# Headers that must not repeat: two readers of the request could each believe a different one.
_ONCE = (
    *(b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding", b"content-type"),
    *(b"content-encoding", b"mcp-session-id", b"mcp-protocol-version"),
)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?", re.IGNORECASE)
MOST_SESSIONS, MOST_OF_TOKEN = 2000, 200
# The SDK ends a session then, without a word.
IDLE_SESSION_S = 1800.0


class RequestRefused(Exception):
    """A request that is answered with ``status`` and not read any further."""

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


def _user_named(name: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))  # the token itself is not kept


def _stopping() -> RequestRefused:
    return RequestRefused(503, "Stopping", (b"retry-after", b"5"))


def _token_required(challenge: bytes = b'Bearer error="invalid_token"') -> RequestRefused:
    return RequestRefused(401, "Bearer token required", (b"www-authenticate", challenge))


@dataclass
class _Session:
    holder: str | None
    used_s: float
    requests: int = 0


@dataclass
class Sessions:
    """All open sessions, the longest unused first. A holder is the name of a token, None where none is needed."""

    most: int = MOST_SESSIONS
    most_of_token: int = MOST_OF_TOKEN
    _sessions: dict[str, _Session] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session_id: str, holder: str | None) -> None:
        """Know a session that was opened."""
        self._sessions[session_id] = _Session(holder, time.monotonic())

    def discard(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._sessions.pop(session_id, None)

    @contextlib.contextmanager
    def use(self, session_id: str) -> Iterator[None]:
        """Keep the session while a request of it is answered. Other ids are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            yield
            return
        self._sessions[session_id] = session
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.used_s = time.monotonic()

    def make_room(self, holder: str | None) -> list[tuple[str, str | None]] | None:
        """Return and forget the sessions to end before ``holder`` opens one. None where too many are in use."""
        ended_s = time.monotonic() - IDLE_SESSION_S
        for session_id, session in list(self._sessions.items()):
            if not session.requests and session.used_s < ended_s:
                del self._sessions[session_id]
        counts: dict[str | None, int] = {}
        for session in self._sessions.values():
            counts[session.holder] = counts.get(session.holder, 0) + 1
        if holder is not None and counts.get(holder, 0) >= self.most_of_token:
            return self._end_one(holder)
        if len(self._sessions) >= self.most:
            return self._end_one(max(counts, key=lambda each: counts[each]))
        return []

    def _end_one(self, holder: str | None) -> list[tuple[str, str | None]] | None:
        for session_id, session in self._sessions.items():
            if session.holder == holder and not session.requests:
                del self._sessions[session_id]
                return [(session_id, holder)]
        return None


@dataclass
class RequestGateway:
    """The ASGI application in front of the MCP endpoint ``inner``, None where there is the page alone, and of the page.

    ``names`` are the accepted host names. The address that a request arrived at is accepted too, since only names can
    be rebound. ``waiting`` returns the number of open waits.
    """

    inner: App | None
    tokens: Tokens
    names: frozenset[str]
    waiting: Callable[[], int]
    page: Page
    stopping: bool = False
    sessions: Sessions = field(default_factory=Sessions)
    _open: set[anyio.CancelScope] = field(default_factory=set)
    _reported: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await (self.inner or _live)(scope, receive, send)
            return
        began = ended = False
        delivery, connection = Delivery.attach(scope), scope.get("state", {}).get("connection")
        refusal_of_rest = _stopping

        async def answer(message: Message) -> None:
            nonlocal began, ended, refusal_of_rest
            if not self._is_still_allowed(scope):
                refusal_of_rest = _token_required
                scope_of_request.cancel()
                await anyio.lowlevel.checkpoint()
            if connection is not None and connection.is_gone:
                delivery.lose()
            began = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)
            if ended:
                delivery.finish()

        async def hear() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not ended:
                delivery.lose()
            return message

        with anyio.CancelScope() as scope_of_request:
            self._open.add(scope_of_request)
            try:
                await self._serve(scope, hear, answer)
            except RequestRefused as refusal:
                await _refuse(refusal, answer)
            finally:
                self._open.discard(scope_of_request)
                delivery.lose()  # unless it was sent
        # A stop cancels the request, or makes it return without ending its response.
        if not ended and (scope_of_request.cancel_called or self.stopping):
            await _end(send, refusal_of_rest(), began=began)

    def _is_still_allowed(self, scope: Scope) -> bool:
        """Return whether the token that a request has shown is still its caller's: it may be removed meanwhile."""
        if (user := scope.get("user")) is None:
            return True
        with contextlib.suppress(TokensUnusable):
            authorization = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            return bool(self.tokens.holder(_bearer(authorization)) == user.username)
        return False

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RequestRefused(404, "Not found")
        if scope["http_version"] not in ("1.0", "1.1"):
            raise RequestRefused(505, "Unsupported HTTP version; use HTTP/1.1")
        headers = _headers(scope)
        self._check_host(scope, headers)
        if scope["path"] == "/healthz":
            await self._send_health(scope, send)
            return
        if self.stopping:
            raise _stopping()
        if scope["path"] != PATH:
            await self.page(scope, receive, send)
            return
        if self.inner is None:
            raise RequestRefused(404, "Not found")
        await self._serve_endpoint(self.inner, headers, scope, receive, send)

    async def _serve_endpoint(
        self, inner: App, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if (user := self._user(headers.get(b"authorization"))) is not None:
            scope["user"] = user
        connection = scope.get("state", {}).get("connection")
        if connection is not None and not connection.prove(user.username if user is not None else None):
            raise RequestRefused(503, "Too many connections of this token", (b"retry-after", b"5"))
        body = await _body(headers, receive)
        holder = user.username if user is not None else None
        if (session := headers.get(b"mcp-session-id")) is not None:
            with self.sessions.use(session.decode("latin-1")):
                await inner(scope, _replay(body, receive), send)
        elif _may_open_session(headers):
            await self._open_session(inner, scope, holder, _replay(body, receive), send)
        else:
            await inner(scope, _replay(body, receive), send)

    async def _open_session(self, inner: App, scope: Scope, holder: str | None, receive: Receive, send: Send) -> None:
        """Pass on a request that may open a session; the longest idle one ends where its holder has too many."""
        if (surplus := self.sessions.make_room(holder)) is None:
            raise RequestRefused(503, "Too many open sessions of this token", (b"retry-after", b"60"))
        for session_id, of_holder in surplus:
            await self._end_session(inner, scope, session_id, of_holder)

        async def note_session(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:  # noqa: PLR2004 - of HTTP
                for name, value in message["headers"]:
                    if name.lower() == b"mcp-session-id":
                        self.sessions.add(value.decode("latin-1"), holder)
            await send(message)

        await inner(scope, receive, note_session)

    async def _end_session(self, inner: App, scope: Scope, session_id: str, holder: str | None) -> None:
        headers = [(b"host", b"localhost"), (b"mcp-session-id", session_id.encode("latin-1"))]
        request = {name: value for name, value in scope.items() if name not in ("user", "state", "headers", "method")}
        request |= {"method": "DELETE", "headers": headers, "state": {}}
        if holder is not None:
            request["user"] = _user_named(holder)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            del message

        await inner(request, receive, send)

    def _check_host(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Refuse requests that a browser could be tricked into: DNS rebinding and pages of other sites."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if not self._is_ours(host, scope):
            raise RequestRefused(421, "Unknown Host header; a person can add the name to http_hosts in config.toml")
        scheme, separator, site = origin.partition("://")
        if origin and not (separator and scheme in ("http", "https") and self._is_ours(site, scope)):
            raise RequestRefused(403, "Foreign Origin")

    def _is_ours(self, host: str, scope: Scope) -> bool:
        if (match := _HOST.fullmatch(host)) is None:
            return False
        name = match["name"].lower()
        address = (scope.get("server") or ("",))[0]
        return name in self.names or name == (f"[{address}]" if ":" in address else address)

    def _user(self, authorization: bytes | None) -> AuthenticatedUser | None:
        try:
            if not self.tokens.required:
                return None
            name = self.tokens.holder(_bearer(authorization))
        except TokensUnusable as error:
            if str(error) != self._reported:  # once, not for every request
                self._reported = str(error)
                print(f"runward: {error}", file=sys.stderr, flush=True)
            text = "The token file of this server is unusable; its operator sees the reason"
            raise RequestRefused(503, text) from error
        if name is None:
            raise _token_required(b"Bearer") if authorization is None else _token_required()
        return _user_named(name)

    async def _send_health(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise RequestRefused(405, "Method not allowed", (b"allow", b"GET, HEAD"))
        health = {"status": "stopping" if self.stopping else "ok", "version": __version__, "waits": self.waiting()}
        await _respond(send, 200, json.dumps(health).encode(), b"application/json")

    async def close(self) -> None:
        """Give requests in progress a moment to finish, then cancel them. New requests are refused."""
        self.stopping = True
        with anyio.move_on_after(_FINISH_S):
            while len(self._open) > self.waiting() + self.page.streams:  # noqa: ASYNC110 - for under a second, once
                await anyio.sleep(0.02)
        for request in tuple(self._open):
            request.cancel()


async def _live(_: Scope, receive: Receive, send: Send) -> None:
    """Answer the messages about start and stop, where no MCP endpoint does."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def _bearer(authorization: bytes | None) -> str:
    scheme, _, token = (authorization or b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _may_open_session(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the SDK takes a request without a session for one of the older protocol, which has sessions."""
    version = headers.get(b"mcp-protocol-version")
    return version is None or version.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS


def _headers(scope: Scope) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    # The parser limits only heads that arrive in parts.
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
        raise RequestRefused(431, "Request headers too large")
    for name, value in scope["headers"]:
        if name in headers and name in _ONCE:
            raise RequestRefused(400, f"{name.decode('latin-1')} appears more than once")
        headers[name] = value
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise RequestRefused(400, "content-length and transfer-encoding exclude each other")
    if b"content-encoding" in headers:
        raise RequestRefused(415, "Send the body without content-encoding")
    return headers


async def _body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    if int(headers.get(b"content-length", b"0")) > LARGEST_BODY:
        raise RequestRefused(413, "Request body too large")
    body = bytearray()
    with anyio.move_on_after(_BODY_S):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestRefused(400, "The client disconnected before the end of the request")
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                raise RequestRefused(413, "Request body too large")
            if not message.get("more_body", False):
                return bytes(body)
    raise RequestRefused(408, "The request took too long to arrive")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive channel that yields the whole body first, then the client's disconnect."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _refuse(refusal: RequestRefused, send: Send) -> None:
    # The rest of the request stays unread, so the connection cannot carry another one.
    headers = (*refusal.headers, (b"connection", b"close"))
    await _respond(send, refusal.status, refusal.text.encode(), b"text/plain; charset=utf-8", *headers)


async def _end(send: Send, refusal: RequestRefused, *, began: bool) -> None:
    """End a response that was cut short: with ``refusal``, where it has not begun."""
    if began:
        with contextlib.suppress(Exception):  # the client may have disconnected
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await _refuse(refusal, send)


async def _respond(send: Send, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    common = [(b"content-type", kind), (b"content-length", length), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*common, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
