"""The addresses of the page, and who may use which: the rules of /mcp, with a browser's cookie in place of a token."""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files

import anyio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from mcp_server import __version__
from mcp_server.errors import RunwardError
from mcp_server.page.board import Board
from mcp_server.page.exchange import NoVisitor, answer_json, check_own_page, read_form, read_number, refuse
from mcp_server.page.run_routes import list_run_routes
from mcp_server.page.sessions import SESSION_S, NotAllowed, PageSessions, Visitor
from mcp_server.record.run_directory import now
from mcp_server.store.tokens import Tokens
from mcp_server.threads import run_in_thread, use_threads_of
from mcp_server.tools.support.context import ServerContext

_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
_HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_FILE = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/){0,3}[A-Za-z0-9_-][A-Za-z0-9_.-]*\.([a-z]+)")
_MOST_ROWS = 1_000
_SPENT = (
    "<!doctype html><meta charset=utf-8><title>runward</title><p>This link is spent: it opens the page once, within "
    "ten minutes.<p>For another one, run <code>runward dash</code> on the machine, or log in with a token: "
    '<a href="/">runward</a>.\n'
)

Act = Callable[[Request, Visitor], Awaitable[Response]]
_ALIVE_S = 15.0  # a comment then, and a look whether the session still holds


class Page:
    """The ASGI application of all addresses but /mcp and /healthz. ``is_closed``: every visitor needs a session.

    The gateway in front has checked Host and Origin.
    """

    def __init__(self, server: ServerContext, tokens: Tokens, *, is_closed: bool = False) -> None:
        self.server, self.board = server, Board(server)
        self.sessions = PageSessions(server.home, tokens)
        self._tokens, self._is_closed = tokens, is_closed
        self._router = Router(
            [
                Route("/", self._serve_index),
                Route("/static/{path:path}", self._serve_static),
                Route("/open/{code}", self._open_link, methods=["GET"]),
                Route("/api/session", self._log_in, methods=["POST"]),
                Route("/api/session", self._log_out, methods=["DELETE"]),
                self._api("/api/me", self._tell_me),
                self._api("/api/runs", self._list_runs),
                self._api("/api/events", self._stream),
                *(self._api(*each) for each in list_run_routes(self.server, self.board)),
            ],
            redirect_slashes=False,
        )

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self.board.pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_data = not scope["path"].startswith("/static/")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = {**_HEADERS, **({b"cache-control": b"no-store"} if is_data else {})}
                if scope["method"] not in ("GET", "HEAD") and message["status"] >= HTTPStatus.BAD_REQUEST:
                    more[b"connection"] = b"close"  # its body may be unread
                kept = [(name, value) for name, value in message["headers"] if name not in more]
                message = {**message, "headers": [*kept, *more.items()]}
            await send(message)

        try:
            await self._router(scope, receive, answer)
        except RunwardError as error:
            await refuse(error)(scope, receive, answer)

    # --- who asks

    async def find_visitor(self, request: Request) -> Visitor | None:
        """Return who sends a request, by the session of its cookie, else by its token."""
        cookie, authorization = request.cookies.get(self.sessions.cookie), request.headers.get("authorization")

        def find() -> Visitor | None:
            known = self.sessions.find(cookie) if cookie else None
            if known is not None:
                return known
            if self._tokens.required:
                scheme, _, token = (authorization or "").partition(" ")
                name = self._tokens.holder(token.strip()) if scheme.lower() == "bearer" else None
                return None if name is None else Visitor(name)
            return None if self._is_closed else Visitor()

        return await run_in_thread(find)

    def _api(self, path: str, act: Act, method: str = "GET") -> Route:
        """Return a route for visitors, whose changes only come from our own page."""

        async def serve(request: Request) -> Response:
            if method != "GET":
                check_own_page(request)
            elif request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise NotAllowed("Another site's page asks for this.")
            if (visitor := await self.find_visitor(request)) is None:
                raise NoVisitor
            connection = request.scope.get("state", {}).get("connection")
            if connection is not None and not connection.prove(visitor.owner):
                raise RunwardError("Too many connections of this visitor.", "", "Close other pages.")
            with use_threads_of(f"page {visitor.owner or ''}"):
                return await act(request, visitor)

        return Route(path, serve, methods=[method])

    async def _log_in(self, request: Request) -> Response:
        check_own_page(request)
        token = (await read_form(request)).get("token")
        cookie = await run_in_thread(self.sessions.log_in, token) if isinstance(token, str) else None
        if cookie is None:
            raise NoVisitor
        return self._with_cookie(answer_json({}), cookie, request)

    async def _log_out(self, request: Request) -> Response:
        check_own_page(request)
        await run_in_thread(self.sessions.log_out, request.cookies.get(self.sessions.cookie, ""))
        return self._with_cookie(answer_json({}), "", request)

    async def _open_link(self, request: Request) -> Response:
        if request.method != "GET":  # a look at a link does not spend it
            return Response(status_code=405)
        cookie = await run_in_thread(self.sessions.redeem, request.path_params["code"])
        if cookie is None:
            return Response(_SPENT, 404, media_type="text/html")
        return self._with_cookie(RedirectResponse("/", 303), cookie, request)

    def _with_cookie(self, response: Response, cookie: str, request: Request) -> Response:
        response.set_cookie(
            self.sessions.cookie,
            cookie,
            max_age=SESSION_S if cookie else 0,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    # --- files of the page, without any data

    async def _serve_index(self, request: Request) -> Response:
        return await _send_file(request, "index.html")

    async def _serve_static(self, request: Request) -> Response:
        return await _send_file(request, request.path_params["path"])

    # --- all runs

    async def _tell_me(self, _: Request, visitor: Visitor) -> Response:
        mirrors = await run_in_thread(self.server.home.list_mirrors)
        facts = {"owner": visitor.owner, "person": visitor.is_person, "control": visitor.may_act}
        more = {"version": __version__, "now": now(), "hosts": [path.name for path in mirrors]}
        return answer_json({**facts, **more, "pages": self.board.pages})

    async def _list_runs(self, request: Request, visitor: Visitor) -> Response:
        limit = min(_MOST_ROWS, read_number(request, "limit") or 500)
        text = await self.board.list_rows(visitor, limit, request.query_params.get("before"))
        return Response(text, media_type="application/json")

    async def _stream(self, request: Request, visitor: Visitor) -> Response:
        cursor = request.headers.get("last-event-id") or request.query_params.get("cursor")

        async def find_visitor() -> Visitor | None:
            return await self.find_visitor(request)

        async def lines() -> AsyncIterator[str]:
            async for line in stream_changes(self.board, cursor, visitor, find_visitor):
                yield line

        return StreamingResponse(lines(), media_type="text/event-stream")


async def _send_file(request: Request, name: str) -> Response:
    found = await run_in_thread(_read_file, name) if (match := _FILE.fullmatch(name)) else None
    if match is None or found is None or (kind := _TYPES.get(match[1])) is None:
        return Response("Not found", 404, media_type="text/plain")
    body, mark = found
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(body, headers={**headers, "content-type": kind})


def _read_file(name: str) -> tuple[bytes, str] | None:
    file = files("mcp_server.page").joinpath("static", *name.split("/"))
    if not file.is_file():
        return None
    body = file.read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


async def stream_changes(
    board: Board, cursor: str | None, visitor: Visitor, find_visitor: Callable[[], Awaitable[Visitor | None]]
) -> AsyncGenerator[str, None]:
    """Yield events since ``cursor``: ``runs`` with rows, or ``reset`` where a page has to fetch all rows again.

    It ends once the page's session does. A page that reads slowly gets several changes in one event.
    """
    with board.open_page():
        version = board.version if cursor is None else board.read_cursor(cursor)
        if version is None:
            version = board.version
            yield f"id: {board.name_place(version)}\nevent: reset\ndata: {{}}\n\n"
        else:
            yield ": open\n\n"
        checked_s = anyio.current_time()
        while True:
            is_late = True
            with anyio.move_on_after(_ALIVE_S):
                await board.next_change(version)
                is_late = False
            if anyio.current_time() - checked_s >= _ALIVE_S:
                checked_s = anyio.current_time()
                if await find_visitor() != visitor:
                    return
            changes = None
            if not is_late:
                version, changes = board.changes_since(version, visitor)
            place = board.name_place(version)
            yield ": alive\n\n" if changes is None else f"id: {place}\nevent: runs\ndata: {changes}\n\n"
