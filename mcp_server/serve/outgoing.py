"""The last place that every answer passes: results, errors, resources, prompts, completions, tasks.

A lone surrogate in one text would end the writer of the stdio server, and with it the server, for all its agents.
"""

from __future__ import annotations

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

from mcp_server.text.invisible import escape_all_unsendable, escape_unsendable


async def escape_answers(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Answer with texts that JSON can carry: middleware, outside all other."""
    try:
        answer = await call_next(ctx)
    except MCPError as error:
        message, data = escape_unsendable(error.error.message), escape_all_unsendable(error.error.data)
        raise MCPError(error.error.code, message, data) from error
    escaped: HandlerResult = escape_all_unsendable(answer)  # what the SDK has dumped: a dict, or None
    return escaped
