"""Forms and queries, JSON, and errors in three parts, as they pass between the page and its server."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.requests import Request
from starlette.responses import Response

from mcp_server.errors import BadArgument, NotOfSweeps, RunNotFound, RunwardError, SweepNotFound
from mcp_server.page.sessions import NotAllowed
from mcp_server.store.tokens import TokensUnusable
from mcp_server.text.invisible import escape_all_unsendable

_LARGEST_FORM, _FORM_S = 32 << 10, 30.0


class Raw(str):
    """A text that was cleaned already, and keeps its colours."""

    __slots__ = ()


def to_json(value: Any) -> str:
    """Return JSON whose texts can be sent, with ``"nan"``, ``"inf"`` and ``"-inf"`` for numbers that it lacks."""
    return json.dumps(_sendable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _sendable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {escape_all_unsendable(str(name)): _sendable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(part) for part in value]
    return value if isinstance(value, Raw) else escape_all_unsendable(value)


class NoVisitor(RunwardError):
    """A request with neither a session nor a token."""

    def __init__(self) -> None:
        super().__init__("Not logged in.", "", "Run runward dash on the machine, or log in with a token.")


class NotConfirmed(RunwardError):
    """A confirmation names another thing than the one that is to be changed."""


_STATUSES: tuple[tuple[type[RunwardError], int], ...] = (
    (NoVisitor, 401),
    (NotAllowed, 403),
    (NotConfirmed, 409),
    (RunNotFound, 404),
    (SweepNotFound, 404),
    (NotOfSweeps, 404),
    (TokensUnusable, 503),
    (RunwardError, 400),
)


def answer_json(value: Any, status: int = 200) -> Response:
    """Return a response with JSON whose texts can be sent."""
    return Response(to_json(value), status, media_type="application/json")


def read_number(request: Request, name: str) -> int | None:
    """Return a number of the query, None where it is left out. BadArgument: it is no number from 1 on."""
    if (text := request.query_params.get(name)) is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise BadArgument(name, "is not a number.")
    return int(text)


async def read_form(request: Request) -> Mapping[str, Any]:
    """Return the JSON object that a request carries. BadArgument: it carries none."""
    body = b""
    with anyio.move_on_after(_FORM_S):
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_FORM:
                break
    try:
        form = json.loads(body) if len(body) <= _LARGEST_FORM else None
    except (ValueError, RecursionError):
        form = None
    if not isinstance(form, dict):
        raise BadArgument("body", f"is not a JSON object of at most {_LARGEST_FORM >> 10} KiB.")
    return form


def check_own_page(request: Request) -> None:
    """Refuse a change that a page of another site could have sent. NotAllowed."""
    headers = request.headers
    is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    origin = headers.get("origin")
    is_own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    from_site = headers.get("sec-fetch-site", "same-origin")
    if not (is_json and is_own and from_site == "same-origin" and headers.get("x-runward") == "page"):
        raise NotAllowed("Not sent by this server's own page.", "Nothing was done.")


def refuse(error: RunwardError) -> Response:
    """Return the answer that says why a request was refused."""
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    if isinstance(error, TokensUnusable):  # its text is for the operator
        error = RunwardError("The token file of this server is unusable.", "", "Its operator sees the reason.")
    return answer_json({"error": {"cause": error.cause, "state": error.state, "remedy": error.remedy}}, status)
