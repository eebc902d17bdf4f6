"""A client of a server of its own, which prints each call with its answer. Agents' programs connect in the same way."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

Call = Callable[..., Awaitable[dict[str, Any]]]


class Refused(Exception):
    """What the server answered to a call that it did not carry out."""


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[Call]:
    """Give ``call("launch_run", command=...)``, which returns the answer as a dict, or raises ``Refused``."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server", "serve"], env=dict(os.environ))
    try:
        async with Client(stdio_client(server)) as client:
            yield partial(_call, client)
    except* Refused:
        sys.exit(1)


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    print(f"\n>>> {tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if block.type == "text")
    print(text)
    if result.is_error:
        raise Refused(text)
    return dict(result.structured_content or {})
