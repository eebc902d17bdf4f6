"""State of a wait that outlives its server: computed from the run directories, and kept once it has ended."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp.types import CallToolResult, TextContent
from pydantic import TypeAdapter

from mcp_server.errors import RunUnreadable, RunwardError
from mcp_server.record.run_directory import now
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.runs.wait.cursors import Cursor, MetricPosition
from mcp_server.runs.wait.metric_wait import MetricWait
from mcp_server.runs.wait.selection import WaitSpec, look_once, to_json
from mcp_server.runs.wait.waiting import WaitOutcome
from mcp_server.scalars.condition import parse_condition
from mcp_server.store.wait_files import WaitRecord, WaitUnreadable
from mcp_server.text.formatting import format_posix
from mcp_server.threads import run_in_thread
from mcp_server.tools import wait_run
from mcp_server.tools.support.context import ServerContext, revive
from mcp_server.tools.support.wait_answer import describe_outcome
from mcp_server.views.progress_text import describe_progress


@dataclass(frozen=True)
class WaitState:
    """How a wait stands. ``result``: that of wait_run, whose caller has then seen ``cursors`` and ``positions``."""

    status: Literal["working", "completed", "cancelled"]
    updated_at: str
    message: str
    result: Mapping[str, Any] | None = None
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    positions: Mapping[str, MetricPosition] = field(default_factory=dict)
    until: str = ""


async def observe_wait(server: ServerContext, wait_id: str, owner: str | None) -> tuple[WaitRecord, WaitState]:
    """Return a wait of ``owner`` and its state. Its first end is kept. WaitNotFound, WaitUnreadable: damaged."""
    record, observation = await run_in_thread(_read, server, wait_id, owner)  # once: clients poll often
    state = observation if isinstance(observation, WaitState) else await _decide(server, record, observation)
    if record.end is None and state.status != "working":
        state = await _keep(server, record, state)
    return record, state


async def cancel_wait(server: ServerContext, record: WaitRecord) -> None:
    """End a wait, unless it has ended. Its runs go on. WaitNotFound, WaitUnreadable: damaged."""
    if record.end is None:
        await _keep(server, record, WaitState("cancelled", now(), "Cancelled by the client. Its runs go on."))


def remember_delivery(server: ServerContext, name: str | None, state: WaitState, *, is_confirmed: bool) -> None:
    """Note that the caller ``name`` has the result; unless ``is_confirmed``, the next answer repeats the news."""
    cursors = state.cursors
    if is_confirmed:
        cursors = {run_id: replace(cursor, repeated=0) for run_id, cursor in cursors.items()}
    server.cursors.remember_newer(name, cursors)
    if state.until:
        server.cursors.remember_positions(name, parse_condition(state.until).text, state.positions)


@dataclass(frozen=True)
class _Observation:
    """The purpose of an open wait, its runs now, and when the newest of their events and output was."""

    spec: WaitSpec
    runs: tuple[Watched, ...]
    updated_at: str


def _read(server: ServerContext, wait_id: str, owner: str | None) -> tuple[WaitRecord, WaitState | _Observation]:
    record = server.wait_files.read(wait_id, owner)
    if record.end is not None:
        return record, _read_end(record, record.end)
    try:
        spec = WaitSpec.from_facts(record.facts)
    except ValueError as error:
        raise WaitUnreadable(record.wait_id, "it is damaged") from error
    try:
        runs = spec.observe(server.store)
        return record, _Observation(spec, runs, _updated_at(server, record, runs))
    except (RunwardError, OSError) as error:
        return record, _refuse(error)


async def _decide(server: ServerContext, record: WaitRecord, observation: _Observation) -> WaitState:
    """Return the state of an open wait, by the rules of a blocking one."""
    try:
        await revive(server, observation.runs)
        metric = wait_run.start_metric_wait(server, observation.spec)
        check = metric.check if metric is not None else None
        outcome = await look_once(observation.runs, observation.spec, waited_s=record.age_s, check_condition=check)
        if outcome is None:
            return WaitState("working", observation.updated_at, describe_progress(observation.runs, time.time()))
        shows_owner = record.facts.get("owner") is not None
        return await _complete(server, observation.spec, outcome, metric, shows_owner=shows_owner)
    except (RunwardError, OSError) as error:
        return _refuse(error)


def _refuse(error: RunwardError | OSError) -> WaitState:
    """Return the state of a wait whose runs gave ``error``, as a blocking wait answers, unless it may pass."""
    if isinstance(error, RunUnreadable | OSError):
        return WaitState("working", now(), str(error))
    refusal = CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
    return WaitState("completed", now(), error.cause, _dump(refusal))


async def _complete(
    server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, metric: MetricWait | None, *, shows_owner: bool
) -> WaitState:
    answer, cursors = await describe_outcome(server, spec, outcome, metric, shows_owner=shows_owner)
    return WaitState(
        status="completed",
        updated_at=now(),
        message=f"{answer.reason}: {describe_progress(outcome.runs, time.time())}",
        result=_dump(wait_run.TOOL.make_result(answer)),
        cursors={run_id: cursor.unconfirmed(spec.cursors.get(run_id, Cursor())) for run_id, cursor in cursors.items()},
        positions=metric.positions if metric is not None else {},
        until=spec.until if metric is not None else "",
    )


async def _keep(server: ServerContext, record: WaitRecord, state: WaitState) -> WaitState:
    """Return how the wait ended first: that is kept. On a full disk the news is answered all the same."""
    with contextlib.suppress(OSError):
        return _read_end(record, await run_in_thread(server.wait_files.end, record, to_json(state)))
    return state


def _read_end(record: WaitRecord, facts: Mapping[str, Any]) -> WaitState:
    try:
        state = TypeAdapter(WaitState).validate_python(facts)
    except ValueError as error:
        raise WaitUnreadable(record.wait_id, "its end is damaged") from error
    if state.status == "working" or (state.result is not None) != (state.status == "completed"):
        raise WaitUnreadable(record.wait_id, "its end is damaged")
    return state


def _updated_at(server: ServerContext, record: WaitRecord, runs: Sequence[Watched]) -> str:
    times_s = [posix(record.created_at)]
    for run in runs:
        times_s += [posix(run.events[-1]["at"])] if run.events and "at" in run.events[-1] else []
        times_s.append((server.store.output_at_s(run) if isinstance(run, Run) else None) or 0.0)
    return format_posix(max(times_s))


def _dump(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, exclude_none=True, mode="json")
