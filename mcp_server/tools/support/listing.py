"""The tools as a client lists them. The module of each is imported at its first call, or soon after the start.

`schemas/` holds what the functions' signatures and docstrings give: to derive it took a fifth of a server's start.
`tests/contract/test_tools.py` compares the two, and writes the files anew on request.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata

from mcp_server.tools.support.schema import RunwardTool

SCHEMAS = Path(__file__).parents[1] / "schemas"
NAMES = (
    *("launch_run", "wait_run", "list_runs", "capture_pane", "read_log", "gpu_check", "read_tb", "kill_run"),
    *("check_blueprint", "preflight", "finish_blueprint", "compare_runs", "launch_sweep", "propose", "find_runs"),
)


class ListedTool(Tool):
    """A tool by its schema. A call imports its module, and is the call of the tool there."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Call the function. Errors and answers are those of its :class:`RunwardTool`."""
        return await import_tool(self.name).run(arguments, context, convert_result)


def list_tools() -> list[Tool]:
    """Return every tool, in the order that a person reads them."""
    return [_read_tool(name) for name in NAMES]


def import_tool(name: str) -> RunwardTool:
    """Return the tool ``name`` with its function."""
    return cast("RunwardTool", import_module(f"mcp_server.tools.{name}").TOOL)


def _read_tool(name: str) -> Tool:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return ListedTool(
        fn=import_tool,
        name=name,
        title=schema["title"],
        description=schema["description"],
        parameters=schema["inputSchema"],
        fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=schema.get("outputSchema")),
        is_async=True,
        context_kwarg=None,
        annotations=schema["annotations"],
        meta=schema["_meta"],
    )
