"""What all tools share: the runs, what callers were told, and how a function becomes a tool."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.state import Run
from mcp_server.runs.metric_wait import Watcher
from mcp_server.runs.stop import Confirmations, check_owner
from mcp_server.runs.wait import Callers, Memory
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.file_watch import Changes
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome

LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


@dataclass
class ServerContext:
    """What the tools of one server work with."""

    home: StateHome
    environ: Mapping[str, str]
    store: RunStore
    changes: Changes = field(default_factory=Changes)
    callers: Callers = field(default_factory=Callers)
    confirmations: Confirmations = field(default_factory=Confirmations)
    scalars: Scalars = field(init=False)
    watchers: dict[tuple[str, str, str], Watcher] = field(default_factory=dict)
    waits: int = 0  # open now

    def __post_init__(self) -> None:
        self.scalars = Scalars(self.home)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ServerContext:
        """Return the context of the state directory that ``environ`` names."""
        home = StateHome.of(environ)
        return cls(home, environ, RunStore(home))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one more open wait."""
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1

    def actor(self, ctx: Call) -> str:
        """Return on whose behalf a call acts: the name of its token, else whoever this server belongs to."""
        return identity(ctx) or self.home.owner(self.environ)

    def owner(self, ctx: Call, asked: str | None) -> str | None:
        """Return the owner of what a call starts; None leaves it to the server.

        Raises:
            BadArgument: another owner than the name of the caller's token was asked for.
        """
        if (name := identity(ctx)) is None or asked in (None, name):
            return name or asked
        raise BadArgument("owner", f"your token is {name!r}'s: leave owner out.")

    def key(self, ctx: Call, asked: str | None) -> str | None:
        """Return an idempotency key that no other owner's is: what another started is not this caller's to be given."""
        name = identity(ctx)
        return asked if asked is None or name is None else f"{name}: {asked}"  # no token's name holds a colon

    def check_owner(self, ctx: Call, run: Run, *, force: bool = False) -> None:
        """Refuse to change another owner's run; ``force`` counts only where no tokens tell callers apart.

        Raises:
            ForeignRun: the run is not the caller's, who did not or cannot insist.
            ReadOnlyRun: the same, where no insisting helps.
        """
        if (name := identity(ctx)) is None:
            check_owner(run, self.actor(ctx), force=force)
        elif run.spec.owner != name:
            raise ReadOnlyRun(run, name)


class ReadOnlyRun(RunwardError):
    """The run is another owner's, and the caller came with a token of its own."""

    def __init__(self, run: Run, name: str) -> None:
        owner = repr(run.spec.owner) if run.spec.owner else "nobody known"
        super().__init__(
            f"Run {run.run_id!r} belongs to {owner}, your token is {name!r}'s; it was left alone, still {run.state}. "
            "You can look at it; its owner, or a person on the machine, can change it."
        )
        self.run_id, self.owner = run.run_id, run.spec.owner


Call = Context[ServerContext, Any]


def server_of(ctx: Call) -> ServerContext:
    """Return what the tools of the called server work with."""
    return ctx.request_context.lifespan_context


def identity(ctx: Call) -> str | None:
    """Return the name of the caller's token; None over stdio, and over HTTP where no tokens are needed."""
    request = ctx.request_context.request
    user = request.scope.get("user") if request is not None else None
    return user.username if isinstance(user, AuthenticatedUser) else None


def caller(ctx: Call) -> str | None:
    """Return who calls: the one client of a stdio server, a token's name and a session over HTTP as far as it has them.

    None: it cannot be told apart from others.
    """
    if ctx.headers is None:
        return "client"
    return " ".join(part for part in (identity(ctx), ctx.headers.get("mcp-session-id")) if part) or None


def remember(server: ServerContext, ctx: Call, known: Mapping[str, Memory]) -> None:
    """Note what the caller has been told, if it can be told apart from others."""
    if (name := caller(ctx)) is not None:
        for run_id, memory in known.items():
            server.callers.remember(name, run_id, memory)


class RunwardTool(Tool):
    """A tool that refuses unknown arguments, tells its errors in one plain sentence, and answers compactly."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Call the function; what it refuses reaches the model word for word."""
        try:
            result = await super().run(arguments, context, convert_result)
        except ToolError as error:
            cause = error.__cause__
            while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
                cause = cause.exceptions[0]
            if isinstance(cause, RunwardError):
                raise ToolError(str(cause)) from error
            if isinstance(cause, ValidationError):
                raise ToolError(_refusal(self.name, cause)) from error
            if isinstance(cause, OSError):  # a full disk, a name that is too long: not this server's doing
                why = cause.strerror or type(cause).__name__
                raise ToolError(f"{self.name} was cut off: {why}. Runs go on; list_runs names them.") from error
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
