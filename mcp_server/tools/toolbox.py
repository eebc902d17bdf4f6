"""What all tools share: the runs, what callers were told, and how a function becomes a tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from mcp_server.changes import Changes
from mcp_server.errors import RunwardError
from mcp_server.home import Home
from mcp_server.kill import Confirmations
from mcp_server.ledger import Ledger
from mcp_server.metrics import Scalars
from mcp_server.watch import Callers, Memory

LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


@dataclass
class Toolbox:
    """What the tools of one server work with."""

    home: Home
    environ: Mapping[str, str]
    ledger: Ledger
    changes: Changes = field(default_factory=Changes)
    callers: Callers = field(default_factory=Callers)
    confirmations: Confirmations = field(default_factory=Confirmations)
    scalars: Scalars = field(init=False)

    def __post_init__(self) -> None:
        self.scalars = Scalars(self.home)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Toolbox:
        """Return the toolbox of the state directory that ``environ`` names."""
        home = Home.of(environ)
        return cls(home, environ, Ledger(home))


def caller(ctx: Context[Any, Any]) -> str | None:
    """Return who calls: the one client of a stdio server, a session over HTTP, None over HTTP without sessions."""
    return "client" if ctx.headers is None else ctx.headers.get("mcp-session-id")


def remember(box: Toolbox, ctx: Context[Any, Any], known: Mapping[str, Memory]) -> None:
    """Note what the caller has been told, if it can be told apart from others."""
    if (name := caller(ctx)) is not None:
        for run_id, memory in known.items():
            box.callers.remember(name, run_id, memory)


class RunwardTool(Tool):
    """A tool that refuses unknown arguments, tells its errors in one plain sentence, and answers compactly."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Call the function; what it refuses reaches the model word for word."""
        try:
            result = await super().run(arguments, context, convert_result)
        except ToolError as error:
            if isinstance(error.__cause__, RunwardError):
                raise ToolError(str(error.__cause__)) from error
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_refusal(self.name, error.__cause__)) from error
            raise
        if isinstance(result, CallToolResult) and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
            pictures = [block for block in result.content if block.type == "image"]
            return result.model_copy(update={"content": [TextContent(type="text", text=text), *pictures]})
        return result


def tool(
    function: Callable[..., Any], *, title: str, annotations: ToolAnnotations, structured: bool | None = None
) -> Tool:
    """Turn a function into a tool; its docstring is what the model reads."""
    made = RunwardTool.from_function(function, title=title, annotations=annotations, structured_output=structured)
    made.description = " ".join(made.description.split())
    model = made.fn_metadata.arg_model
    model.model_config = {**model.model_config, "extra": "forbid", "coerce_numbers_to_str": True}
    model.model_rebuild(force=True)
    made.parameters = _compact(model.model_json_schema(by_alias=True))
    return made


def _refusal(name: str, error: ValidationError) -> str:
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'][:2])}: "
        + ("there is no such argument" if problem["type"] == "extra_forbidden" else problem["msg"])
        for problem in error.errors()[:5]
    )
    return f"{name} was not called: {problems}. Nothing was changed; call it again with arguments as its schema says."


def _compact(schema: Any) -> Any:
    """Leave out of a schema what only costs tokens: titles, and null as the default of what may be absent."""
    if isinstance(schema, list):
        return [_compact(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {
        name: {key: _compact(value) for key, value in part.items()} if name == "properties" else _compact(part)
        for name, part in schema.items()
        if name != "title" and not (name == "default" and part is None)
    }
    options = slim.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        del slim["anyOf"]
        slim = {**rest[0], **slim} if len(rest) == 1 else {"anyOf": rest, **slim}
    return slim
