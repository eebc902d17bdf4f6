"""wait_run: waiting for the next event of runs."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mcp_server.answer import Answer
from mcp_server.errors import BadArgument
from mcp_server.record.state import Run
from mcp_server.runs.cursors import Cursor
from mcp_server.runs.wait import Reason, WaitOutcome, wait_for_runs
from mcp_server.runs.wait_spec import WaitSpec, look_once
from mcp_server.threads import run_in_thread
from mcp_server.tools.context import Call, ServerContext, caller, delivery_of, server_of, when_answered
from mcp_server.tools.schema import READ_ONLY, tool
from mcp_server.tools.task_offer import TaskOffer
from mcp_server.views.log_excerpt import tail_lines
from mcp_server.views.progress_text import describe_progress
from mcp_server.views.run_status import RunStatus, status_of

if TYPE_CHECKING:
    from mcp_server.runs.metric_wait import MetricWait

# Lines and bytes of output in an answer: a failure has 300 tokens, a heartbeat 100.
_TAIL = {"failed": (6, 440), "lost": (6, 440), "finished": (3, 300)}
_HEARTBEAT_TAIL = (1, 80)


class WaitResult(Answer):
    """Why the wait returned, and the runs then. ``note`` names a metric that no run has so far."""

    reason: Reason
    runs: list[RunStatus]
    met: str | None = None
    note: str | None = None
    waited_s: float
    next_timeout_s: float


async def wait_run(
    ctx: Call,
    run_ids: Annotated[str | list[str], Field(description="One run_id or several")],
    timeout_s: Annotated[
        float | None,
        Field(ge=0, le=86400, description="Default: backoff 30 s to 16 min. 0: state now"),
    ] = None,
    until: Annotated[
        str,
        Field(
            description="event: the first news of any run. first_step: all train. end: all have ended. "
            'Or a metric: "loss is nan", "Train/mean_reward >= 20"'
        ),
    ] = "event",
    since: Annotated[
        int | dict[str, int] | None,
        Field(description="Event number (per run) already seen. Default: your last answer"),
    ] = None,
) -> WaitResult:
    """Wait until a training run ends, fails, stalls, or makes its first step.

    Prefer this to sleeping and reading logs: one call watches the whole interval and returns at once
    with the reason, a failure's proof and what to do; reason heartbeat means still running, call again.
    Never stops or restarts a run.
    """
    server, name = server_of(ctx), caller(ctx)
    runs = await run_in_thread(server.store.resolve, [run_ids] if isinstance(run_ids, str) else run_ids)
    if not runs:
        raise BadArgument("run_ids", "names no run.")
    cursors = {run.run_id: _move(server.cursors.recall(name, run), run, since) for run in runs}
    spec = WaitSpec(tuple(cursors), cursors, until, timeout_s)
    if (condition := spec.condition) is not None:
        spec = replace(spec, positions=server.cursors.recall_positions(name, cursors, condition.text))
    metric = start_metric_wait(server, spec)
    outcome = None
    if (offer := TaskOffer.current()) is not None and timeout_s != 0:
        outcome = await look_once(runs, spec, waited_s=0, check_condition=metric.check if metric is not None else None)
        if outcome is None and await offer.accept(spec.after(metric).to_facts(), runs):
            return WaitResult(reason="heartbeat", runs=[], waited_s=0, next_timeout_s=0)  # the task answers instead
    delivery = delivery_of(ctx)
    with server.open_waits.open(name, spec.run_ids, is_bounded=delivery is None) as opened:
        with opened.scope, delivery.cancel_when_lost(opened.scope) if delivery is not None else nullcontext():
            outcome = outcome or await _block(ctx, spec, metric, timeout_s)
        if outcome is None:  # given up, as far as this server can know
            opened.newest_for.clear()
            outcome = await _block(ctx, spec, metric, 0)
        # A later wait of this caller for the same run may have begun while the answer is made.
        answer = await describe_outcome(server, spec, outcome, metric)
        seen = {run_id: cursor for run_id, cursor in outcome.cursors.items() if run_id in opened.newest_for}

    def remember() -> None:
        server.cursors.remember(name, seen)
        if condition is not None and metric is not None:
            positions = {run_id: each for run_id, each in metric.positions.items() if run_id in seen}
            server.cursors.remember_positions(name, condition.text, positions)

    if delivery is None:  # nothing will show that the answer arrived
        seen = {run_id: cursor.unconfirmed(cursors[run_id]) for run_id, cursor in seen.items()}
    when_answered(ctx, remember)
    return answer


async def _block(ctx: Call, spec: WaitSpec, metric: "MetricWait | None", timeout_s: float | None) -> WaitOutcome:
    """Wait until there is news, or ``timeout_s`` has passed; report progress meanwhile."""
    server = server_of(ctx)

    async def report(waited_s: float, limit_s: float, runs: Sequence[Run]) -> None:
        await ctx.report_progress(waited_s, limit_s, describe_progress(runs, time.time()))

    with server.file_watch.subscribe(server.home.runs / run_id for run_id in spec.run_ids) as subscription:
        return await wait_for_runs(
            spec.run_ids,
            lambda ids: run_in_thread(server.store.observe_all, ids),
            subscription,
            spec.cursors,
            until=spec.mode,
            timeout_s=timeout_s,
            report=report,
            check_condition=metric.check if metric is not None else None,
        )


def start_metric_wait(server: ServerContext, spec: WaitSpec) -> "MetricWait | None":
    """Return what checks the condition of a wait, None where it has none.

    Raises:
        BadArgument: ``until`` is neither a word nor a condition.
    """
    if (condition := spec.condition) is None:
        return None
    from mcp_server.runs.metric_wait import MetricWait  # noqa: PLC0415 - with the readers of scalars, 20 ms

    return MetricWait(server.scalars, condition, spec.run_ids, spec.positions)


async def describe_outcome(
    server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, metric: "MetricWait | None"
) -> WaitResult:
    """Return the answer to a wait that has ended so."""
    return WaitResult(
        reason=outcome.reason,
        runs=[
            await run_in_thread(_status, server, run, spec.cursors[run.run_id].listed_after(run))
            for run in outcome.runs
        ],
        met=outcome.met,
        note=metric.describe_missing_tag() if metric is not None and outcome.reason == "heartbeat" else None,
        waited_s=round(outcome.waited_s, 1),
        next_timeout_s=outcome.next_timeout_s,
    )


TOOL = tool(wait_run, title="Wait for runs", annotations=READ_ONLY)


def _move(cursor: Cursor, run: Run, since: int | dict[str, int] | None) -> Cursor:
    """Return the cursor of a caller that says which event of ``run`` is the last it has seen."""
    seq = since.get(run.run_id, since.get(run.spec.name)) if isinstance(since, dict) else since
    if seq is None:
        return cursor
    return replace(cursor, seq=seq, repeated=0, state=run.state if seq >= run.last_seq else "")


def _status(server: ServerContext, run: Run, since: int) -> RunStatus:
    # A failure has its own lines, and a step says more than the line that it was read from.
    explained = run.failure is not None or (not run.ended and "step" in run.progress)
    tail = [] if explained else _tail(server, run)
    return status_of(server.store, run, since=since, tail=tail, brief=not run.ended)


def _tail(server: ServerContext, run: Run) -> list[str]:
    lines, max_bytes = _TAIL.get(run.state, _HEARTBEAT_TAIL)
    path = server.store.run_directory(run.run_id).log(run.attempt)
    output = tail_lines(path, lines, label=run.run_id, numbered=False).body.splitlines() if path.is_file() else []
    return newest_lines([line for line in output if line], lines, max_bytes)


def newest_lines(lines: list[str], count: int, max_bytes: int) -> list[str]:
    """Return the last ``count`` lines that fit in ``max_bytes`` together, long ones shortened in the middle."""
    longest = max_bytes // 2 if count > 1 else max_bytes
    newest: list[str] = []
    for line in reversed(lines[-count:]):
        if len(line.encode()) > longest:
            data = line.encode()
            head, tail = data[: longest * 2 // 3], data[-(longest // 3 - 3) :]
            line = f"{head.decode(errors='ignore')}…{tail.decode(errors='ignore')}"  # noqa: PLW2901
        max_bytes -= len(line.encode())
        if max_bytes < 0:
            break
        newest.append(line)
    return newest[::-1]
