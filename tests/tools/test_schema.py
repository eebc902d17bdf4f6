"""What a tool's failure tells the model: a sentence with the cause, never a traceback and never nothing."""

import errno
from pathlib import Path

import anyio
import pytest
from mcp.client import Client
from mcp.types import TextContent

from mcp_server.serve.app import build
from mcp_server.tools.schema import READ_ONLY, tool

pytestmark = pytest.mark.anyio


async def _full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/data/secret-name")


async def fill() -> str:
    """Fill the disk."""
    await _full()
    return ""


async def fill_in_parts() -> str:
    """Fill the disk in a task of its own."""
    async with anyio.create_task_group() as group:
        group.start_soon(_full)
    return ""


async def test_what_the_machine_cannot_do_is_said_without_a_file_s_name(tmp_path: Path) -> None:
    server = build({"RUNWARD_HOME": str(tmp_path)})
    for function in (fill, fill_in_parts):
        server._tool_manager._tools[function.__name__] = tool(function, title="Fill", annotations=READ_ONLY)
    async with Client(server) as client:
        for name in ("fill", "fill_in_parts"):
            result = await client.call_tool(name, {})
            (block,) = result.content
            assert result.is_error
            assert isinstance(block, TextContent)
            assert block.text == f"{name} was cut off: No space left on device. Runs go on; list_runs names them."
