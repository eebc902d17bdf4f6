"""The stream of changes to one page: server-sent events, from the place on that the page has seen."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio

from mcp_server.page.board import Board
from mcp_server.page.sessions import Visitor

_ALIVE_S = 15.0  # a comment then, and a look whether the session still holds


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
