"""The Tasks extension of the protocol: a call that would block answers at once with a task, which is polled.

A task is a file of the state directory (:mod:`mcp_server.store.wait_files`), and how it stands is read from the run
directories, so that any server of the same home answers for it, also after its own server died. The specification is
``io.modelcontextprotocol/tasks`` of the protocol 2026-07-28.
"""

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams
from mcp_types import CLIENT_CAPABILITIES_META_KEY, MISSING_REQUIRED_CLIENT_CAPABILITY, RequestParams, Result
from mcp_types.jsonrpc import HEADER_MISMATCH
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_server.store.wait_files import WaitNotFound, WaitRecord, WaitUnreadable
from mcp_server.threads import run_in_thread, use_threads_of
from mcp_server.tools.support import context
from mcp_server.views.progress_text import describe_progress

IDENTIFIER = "io.modelcontextprotocol/tasks"
_POLL_S, _LONGEST_POLL_S = 0.5, 5.0
_POLL_SHARE_OF_AGE = 0.01  # an hour's wait need not hear of its end within half a second
_POLL_S_PER_TASK = 0.013  # a poll takes 3 ms of a core: so many tasks at once take no more than a quarter of it
_POLL_SPREAD = 0.2  # tasks of one moment would otherwise be polled at one moment for ever
_LISTEN = "subscriptions/listen"

T = TypeVar("T")
Request = ServerRequestContext[context.ServerContext, Any]


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to what a task asked."""

    input_responses: dict[str, Any]


class _Task(Result):
    task_id: str
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int


class CreatedTask(_Task):
    """A task in place of a tool's result."""

    result_type: Literal["task"] = "task"
    status: Literal["working"] = "working"


class TaskAnswer(_Task):
    """The state of a task. ``result`` is what the call would have returned."""

    result_type: Literal["complete"] = "complete"
    status: Literal["working", "completed", "cancelled"]
    result: Mapping[str, Any] | None = None


class Acknowledgement(Result):
    """An empty result."""

    result_type: Literal["complete"] = "complete"


class Tasks(Extension):
    """Serves tasks/get, tasks/update and tasks/cancel, and offers a task to tools that would block."""

    identifier = IDENTIFIER

    def __init__(self, server: context.ServerContext) -> None:
        self._server = server
        self._polled = RecentTasks()

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of the extension. Older protocols have none of them."""
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", UpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        """Offer a task to the tool, and answer with it where the tool accepted."""
        del params
        if not _declares_tasks(ctx):
            return await call_next(ctx)
        offer = context.TaskOffer(self._server.wait_files, context.identity(_call(ctx)))
        with offer.open():
            result = await call_next(ctx)
        if (record := offer.record) is None:
            return result
        return CreatedTask(
            task_id=record.wait_id,
            status_message=describe_progress(offer.runs, time.time()),
            created_at=record.created_at,
            last_updated_at=record.created_at,
            ttl_ms=_milliseconds(record.ttl_s),
            poll_interval_ms=choose_poll_interval_ms(0.0, self._polled.note(record.wait_id), _chance()),
        )

    async def _get(self, ctx: Request, params: TaskParams) -> TaskAnswer:
        from mcp_server.serve.wait_state import observe_wait, remember_delivery  # noqa: PLC0415 - 213 ms, with the tools

        call = _call(ctx)
        with use_threads_of(context.caller(call)):
            _check(call, params)
            record, state = await _answer(observe_wait(self._server, params.task_id, context.identity(call)))
        if state.status == "completed":
            is_confirmed = context.delivery_of(call) is not None
            context.when_answered(
                call, lambda: remember_delivery(self._server, context.caller(call), state, is_confirmed=is_confirmed)
            )
            self._server.calls.keep()
            await self._server.note_told()
        return TaskAnswer(
            task_id=record.wait_id,
            status=state.status,
            status_message=state.message,
            created_at=record.created_at,
            last_updated_at=state.updated_at,
            ttl_ms=_milliseconds(record.ttl_s),
            poll_interval_ms=choose_poll_interval_ms(record.age_s, self._polled.note(record.wait_id), _chance()),
            result=state.result,
        )

    async def _update(self, ctx: Request, params: UpdateParams) -> Acknowledgement:
        # A wait asks nothing, so no answer is outstanding: the specification ignores others.
        call = _call(ctx)
        with use_threads_of(context.caller(call)):
            await self._find(call, params)
        return Acknowledgement()

    async def _cancel(self, ctx: Request, params: TaskParams) -> Acknowledgement:
        from mcp_server.serve.wait_state import cancel_wait  # noqa: PLC0415 - 213 ms, as above

        call = _call(ctx)
        with use_threads_of(context.caller(call)):
            await _answer(cancel_wait(self._server, await self._find(call, params)))
        return Acknowledgement()

    async def _find(self, call: context.Call, params: TaskParams) -> WaitRecord:
        """Return the wait that a request names. MCPError: there is no such task of its owner."""
        _check(call, params)
        return await _answer(run_in_thread(self._server.wait_files.read, params.task_id, context.identity(call)))


class RecentTasks:
    """Counts the tasks that clients of this server poll now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s: dict[str, float] = {}  # the task that was asked about last is the last one

    def note(self, task_id: str) -> int:
        """Note that a client was just answered about a task, and return the number of tasks that are polled."""
        now_s = self._clock()
        self._asked_s.pop(task_id, None)
        self._asked_s[task_id] = now_s
        while now_s - next(iter(self._asked_s.values())) > 2 * _LONGEST_POLL_S:
            del self._asked_s[next(iter(self._asked_s))]
        return len(self._asked_s)


def choose_poll_interval_ms(age_s: float, tasks: int, chance: float) -> int:
    """Return after how many ms to ask again for a wait of this age, one of so many, by a ``chance`` from 0 to 1."""
    seconds = min(max(_POLL_S, age_s * _POLL_SHARE_OF_AGE, tasks * _POLL_S_PER_TASK), _LONGEST_POLL_S)
    return _milliseconds(seconds * (1 + _POLL_SPREAD * (2 * chance - 1)))


async def refuse_undeclared_subscriptions(ctx: Request, call_next: CallNext) -> HandlerResult:
    """Refuse a subscription to tasks by a client without tasks, as the specification demands: middleware."""
    kinds = (ctx.params or {}).get("notifications") if ctx.method == _LISTEN else None
    if isinstance(kinds, Mapping) and kinds.get("taskIds"):
        _require_declaration(ctx)
    return await call_next(ctx)


def _call(ctx: Request) -> context.Call:
    return context.Call(request_context=ctx)


def _declares_tasks(ctx: Request) -> bool:
    """Return whether this request declares tasks: what its client declared on others does not count."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    declared: Any = ctx.params or {}
    for name in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions"):
        declared = declared.get(name) if isinstance(declared, Mapping) else None
    return isinstance(declared, Mapping) and IDENTIFIER in declared


def _chance() -> float:
    return random.random()  # noqa: S311 - not a secret


def _check(call: context.Call, params: TaskParams) -> None:
    """Refuse a request that does not declare the extension, or whose header for routing names another task."""
    _require_declaration(call.request_context)
    name = (call.headers or {}).get(MCP_NAME_HEADER)
    if name is not None and decode_header_value(name) != params.task_id:
        raise MCPError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} does not name the task of the request.")


def _require_declaration(ctx: Request) -> None:
    if not _declares_tasks(ctx):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {IDENTIFIER: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"This request does not declare {IDENTIFIER}.", required)


async def _answer(work: Awaitable[T]) -> T:
    """Return what ``work`` returns, with its refusals as errors of the protocol."""
    try:
        return await work
    except WaitNotFound as error:
        raise MCPError(INVALID_PARAMS, str(error)) from error
    except WaitUnreadable as error:
        raise MCPError(INTERNAL_ERROR, str(error)) from error


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
