"""How a wait stands that outlives its server: computed from the run directories, and kept once it has ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from mcp.types import CallToolResult, TextContent

from mcp_server.errors import RunUnreadable, RunwardError
from mcp_server.record.run_directory import now
from mcp_server.record.state import Run, posix
from mcp_server.runs.cursors import Cursor
from mcp_server.runs.wait import WaitOutcome
from mcp_server.runs.wait_spec import (
    WaitSpec,
    cursors_from_facts,
    cursors_to_facts,
    look_once,
    positions_from_facts,
    positions_to_facts,
)
from mcp_server.scalars.condition import parse_condition
from mcp_server.store.wait_files import WaitRecord, WaitUnreadable
from mcp_server.text.timestamps import format_time
from mcp_server.threads import run_in_thread
from mcp_server.tools import wait_run
from mcp_server.tools.context import ServerContext
from mcp_server.tools.wait_answer import describe_outcome
from mcp_server.views.progress_text import describe_progress

if TYPE_CHECKING:
    from mcp_server.runs.metric_wait import MetricPosition, MetricWait


@dataclass(frozen=True)
class WaitState:
    """How a wait stands. ``result``: that of wait_run, once completed; its caller has then seen ``cursors``.

    ``until`` and ``positions``: how far a condition was checked.
    """

    status: Literal["working", "completed", "cancelled"]
    updated_at: str
    message: str
    result: Mapping[str, Any] | None = None
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    positions: Mapping[str, MetricPosition] = field(default_factory=dict)
    until: str = ""

    def to_facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "status": self.status,
            "updated_at": self.updated_at,
            "message": self.message,
            "result": self.result,
            "cursors": cursors_to_facts(self.cursors),
            "positions": positions_to_facts(self.positions),
            "until": self.until,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> WaitState:
        """Return the state of :meth:`to_facts`.

        Raises:
            ValueError: these are not the facts of a wait that has ended.
        """
        try:
            status, result = facts["status"], facts["result"]
            if status not in ("completed", "cancelled") or isinstance(result, dict) != (status == "completed"):
                raise ValueError("neither completed with a result nor cancelled")
            return cls(
                status=status,
                updated_at=str(facts["updated_at"]),
                message=str(facts["message"]),
                result=result,
                cursors=cursors_from_facts(facts["cursors"]),
                positions=positions_from_facts(facts["positions"]),
                until=str(facts["until"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the end of a wait: {error!r}") from error


async def observe_wait(server: ServerContext, record: WaitRecord) -> WaitState:
    """Return how a wait stands. Its first end is kept, so that every server answers with the same from then on.

    Raises:
        WaitNotFound: it was removed.
        WaitUnreadable: its record is damaged, or cannot be read now.
    """
    if record.end is not None:
        return _read_end(record, record.end)
    state = await _look(server, record)
    return state if state.status == "working" else await _keep(server, record, state)


async def cancel_wait(server: ServerContext, record: WaitRecord) -> None:
    """End a wait, unless it has ended. Its runs go on.

    Raises:
        WaitNotFound: it was removed.
        WaitUnreadable: its record is damaged, or cannot be read now.
    """
    if record.end is None:
        await _keep(server, record, WaitState("cancelled", now(), "Cancelled by the client. Its runs go on."))


def remember_delivery(server: ServerContext, name: str | None, state: WaitState, *, is_confirmed: bool) -> None:
    """Note that the caller ``name`` has the result; what it has seen since through other answers stays seen.

    ``is_confirmed``: its arrival was seen. Otherwise the next answer repeats what was news.
    """
    cursors = state.cursors
    if is_confirmed:
        cursors = {run_id: replace(cursor, repeated=0) for run_id, cursor in cursors.items()}
    server.cursors.remember_newer(name, cursors)
    if state.until:
        server.cursors.remember_positions(name, parse_condition(state.until).text, state.positions)


async def _look(server: ServerContext, record: WaitRecord) -> WaitState:
    try:
        spec = WaitSpec.from_facts(record.facts)
    except ValueError as error:
        raise WaitUnreadable(record.wait_id, "it is damaged") from error
    try:
        runs = await run_in_thread(spec.observe, server.store)
        metric = wait_run.start_metric_wait(server, spec)
        check = metric.check if metric is not None else None
        outcome = await look_once(runs, spec, waited_s=record.age_s, check_condition=check)
    except (RunUnreadable, OSError) as error:  # the next poll may see more
        return WaitState("working", now(), str(error))
    except RunwardError as error:  # what the call itself would have answered
        refusal = CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        return WaitState("completed", now(), error.cause, _dump(refusal))
    if outcome is None:
        updated_at = await run_in_thread(_updated_at, server, record, runs)
        return WaitState("working", updated_at, describe_progress(runs, time.time()))
    return await _complete(server, spec, outcome, metric, shows_owner=record.facts.get("owner") is not None)


async def _complete(
    server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, metric: MetricWait | None, *, shows_owner: bool
) -> WaitState:
    answer, cursors = await describe_outcome(server, spec, outcome, metric, shows_owner=shows_owner)
    return WaitState(
        status="completed",
        updated_at=now(),
        message=f"{outcome.reason}: {describe_progress(outcome.runs, time.time())}",
        result=_dump(wait_run.TOOL.make_result(answer)),
        cursors={run_id: cursor.unconfirmed(spec.cursors.get(run_id, Cursor())) for run_id, cursor in cursors.items()},
        positions=metric.positions if metric is not None else {},
        until=spec.until if metric is not None else "",
    )


async def _keep(server: ServerContext, record: WaitRecord, state: WaitState) -> WaitState:
    """Return how the wait ended first: that is kept. On a full disk the news is answered all the same."""
    with contextlib.suppress(OSError):
        return _read_end(record, await run_in_thread(server.wait_files.end, record, state.to_facts()))
    return state


def _read_end(record: WaitRecord, facts: Mapping[str, Any]) -> WaitState:
    try:
        return WaitState.from_facts(facts)
    except ValueError as error:
        raise WaitUnreadable(record.wait_id, "its end is damaged") from error


def _updated_at(server: ServerContext, record: WaitRecord, runs: Sequence[Run]) -> str:
    """Return when the newest of a wait's beginning and its runs' events and output was."""
    times_s = [posix(record.created_at)]
    for run in runs:
        times_s += [posix(run.events[-1]["at"])] if run.events and "at" in run.events[-1] else []
        times_s.append(server.store.output_at_s(run) or 0.0)
    return format_time(datetime.fromtimestamp(max(times_s), UTC))


def _dump(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, exclude_none=True, mode="json")
