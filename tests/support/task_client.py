"""A client that declares the Tasks extension, and shows what servers answer to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import anyio
from mcp.client import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.types import CallToolResult
from mcp_types import Request, RequestParams, Result
from pydantic import ConfigDict, TypeAdapter

from tests.support.sandbox import PATIENCE_S

IDENTIFIER = "io.modelcontextprotocol/tasks"
ANYTHING: Any = TypeAdapter(dict[str, Any])


class CreatedTask(Result):
    """A task in place of a tool's result."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class TaskParams(RequestParams):
    model_config = ConfigDict(extra="allow")


class TaskRequest(Request[TaskParams, str]):
    name_param: ClassVar[str | None] = "taskId"


class DeclaredTasks(ClientExtension):
    """The declaration of the extension; tasks are shown, never polled for the caller."""

    identifier = IDENTIFIER

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_refuse)]


async def _refuse(task: Any, context: Any) -> CallToolResult:
    raise NotImplementedError


TASKS: Sequence[ClientExtension] = [DeclaredTasks()]


@dataclass
class TaskClient:
    """Calls of a client with tasks, answered as they are on the wire."""

    client: Client

    async def call(self, tool: str, *, allow_input_required: bool = False, **arguments: Any) -> dict[str, Any]:
        """The answer to a call: a task, a result, or a question where that is allowed."""
        answer = await self.client.session.call_tool(
            tool, arguments, allow_claimed=True, read_timeout_seconds=90, allow_input_required=allow_input_required
        )
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def create(self, **arguments: Any) -> dict[str, Any]:
        """The task of a wait_run that has to wait."""
        task = await self.call("wait_run", **arguments)
        assert task["resultType"] == "task", task
        return task

    async def request(self, method: str, task_id: str, **more: Any) -> dict[str, Any]:
        request = TaskRequest(method=method, params=TaskParams.model_validate({"taskId": task_id, **more}))
        answer: dict[str, Any] = await self.client.session.send_request(request, ANYTHING, 90)
        return answer

    async def get(self, task_id: str) -> dict[str, Any]:
        return await self.request("tasks/get", task_id)

    async def poll(self, task_id: str) -> dict[str, Any]:
        """The task once it works no more."""
        give_up_s = time.monotonic() + PATIENCE_S
        while (task := await self.get(task_id))["status"] == "working":
            assert time.monotonic() < give_up_s, task
            await anyio.sleep(0.05)
        return task
