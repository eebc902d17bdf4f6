"""wait_run: waiting for the next event of runs."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field

from mcp_server.errors import BadArgument
from mcp_server.record.state import ENDED, Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.wait.client_calls import waited_before
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.metric_wait import MetricWait, check_possible
from mcp_server.runs.wait.selection import WaitSpec, look_once, select
from mcp_server.runs.wait.waiting import WaitOutcome, wait_for_runs
from mcp_server.scalars.from_log import LogMetrics, read_as_said
from mcp_server.store.freshness import refresh
from mcp_server.text.invisible import escape_unsendable
from mcp_server.threads import run_in_thread
from mcp_server.tools.support import context
from mcp_server.tools.support.schema import READ_ONLY, tool
from mcp_server.tools.support.wait_answer import WaitResult, describe_outcome
from mcp_server.views.progress_text import describe_progress

_REFRESH_S = 1.0  # between two looks at runs whose condition may hold: a supervisor writes progress every 6 s unasked
_COALESCE_S = 0.3  # several cells of a sweep often end together, and the last one ends it


async def wait_run(
    ctx: context.Call,
    run_ids: Annotated[str | list[str], Field(description="Ids, names, tag:NAME, live, a sweep")],
    timeout_s: Annotated[
        float | None, Field(ge=0, le=86400, description="Default: backoff 30 s to 16 min. 0: state now")
    ] = None,
    until: Annotated[
        str,
        Field(
            description="event: any news. decision: ends, and trouble that nobody deals with. "
            'first_step: all train. end: all ended. Or "loss is nan", "Train/mean_reward >= 20", "step >= 300", "50%"'
        ),
    ] = "event",
    since: Annotated[
        int | str | dict[str, int] | None,
        Field(description="cursor of an answer, or event number (per run). Default: your last answer"),
    ] = None,
) -> WaitResult:
    """Wait until training runs end, fail, stall, or make their first step.

    Prefer this to sleeping and reading logs: it returns at once with the reason, a failure's proof and what
    to do. Reason heartbeat: still running, call again. Never stops or restarts a run.
    """
    server, name = context.server_of(ctx), context.caller(ctx)
    names = [run_ids] if isinstance(run_ids, str) else run_ids
    async with context.naming_sessions(ctx):
        spec, runs = await run_in_thread(_plan, server, name, names, until, timeout_s, since)
    await context.revive(server, runs)
    condition = spec.condition
    metric = start_metric_wait(server, spec)
    outcome = None
    if (offer := context.TaskOffer.current()) is not None and timeout_s != 0:
        outcome = await look_once(runs, spec, waited_s=0, check_condition=metric.check if metric is not None else None)
        noted = spec if metric is None else replace(spec, positions=metric.positions)
        if outcome is None and await offer.accept(noted.to_facts(), runs):
            return WaitResult(reason="heartbeat", runs=[], waited_s=0, next_timeout_s=0)  # the task answers instead
    delivery = context.delivery_of(ctx)
    waited_s = waited_before()
    server.calls.begin_wait(spec.run_ids, until, hears_progress=context.hears_progress(ctx))
    with server.open_waits.open(name, spec.run_ids, is_bounded=delivery is None) as opened:
        with opened.scope, delivery.cancel_when_lost(opened.scope) if delivery is not None else nullcontext():
            outcome = outcome or await _block(ctx, spec, metric, timeout_s, waited_s)
            if outcome.runs and isinstance(outcome.runs[0], Sweep) and outcome.reason not in ("ended", "heartbeat"):
                await anyio.sleep(_COALESCE_S)
                waited_s = outcome.waited_s + _COALESCE_S
                together = await _block(ctx, spec, metric, 0, waited_s)
                # None is left where a proposal was noted that was wished for.
                is_over = together.reason != "heartbeat"
                outcome = together if is_over else await _block(ctx, spec, metric, timeout_s, waited_s)
        if outcome is None:  # given up, as far as this server can know
            opened.newest_for.clear()
            outcome = await _block(ctx, spec, metric, 0)
        shows_owner = context.identity(ctx) is not None
        answer, cursors = await describe_outcome(server, spec, outcome, metric, shows_owner=shows_owner)
        server.calls.end_wait()
        if delivery is None and (told := server.calls.tell_cut_off()) is not None:
            answer = answer.model_copy(update={"note": " ".join(filter(None, (answer.note, told)))})
        if answer.reason == "heartbeat" and timeout_s != 0 and await server.is_woken(ctx):
            answer = answer.model_copy(update={"note": " ".join(filter(None, (answer.note, context.WOKEN)))})
        # A later wait of this caller for the same run may have begun while the answer is made.
        newest = opened.newest_for and opened.newest_for | (cursors.keys() - set(spec.run_ids))
        seen = {run_id: cursor for run_id, cursor in cursors.items() if run_id in newest}

    def remember() -> None:
        server.cursors.remember(name, seen)
        if condition is not None and metric is not None:
            positions = {run_id: each for run_id, each in metric.positions.items() if run_id in seen}
            server.cursors.remember_positions(name, condition.text, positions)

    if delivery is None:  # nothing will show that the answer arrived
        seen = {run_id: cursor.unconfirmed(spec.cursors.get(run_id, Cursor())) for run_id, cursor in seen.items()}
    context.when_answered(ctx, remember)
    return answer


async def _block(
    ctx: context.Call, spec: WaitSpec, metric: MetricWait | None, timeout_s: float | None, waited_s: float = 0.0
) -> WaitOutcome:
    server = context.server_of(ctx)

    async def report(waited_s: float, limit_s: float, runs: Sequence[Watched]) -> None:
        await ctx.report_progress(waited_s, limit_s, escape_unsendable(describe_progress(runs, time.time())))

    async def observe(_: Sequence[str]) -> tuple[Watched, ...]:
        runs, directories = await run_in_thread(look)
        await context.revive(server, runs)
        subscription.extend(directories)
        return runs

    refreshed_s = -_REFRESH_S

    def look() -> tuple[tuple[Watched, ...], list[Path]]:
        nonlocal refreshed_s
        runs = spec.observe(server.store)
        if spec.condition is not None and time.monotonic() >= refreshed_s + _REFRESH_S:
            fresh = {run.run_id: run for run in refresh(server.store, [run for run in runs if isinstance(run, Run)])}
            runs, refreshed_s = tuple(fresh.get(run.run_id, run) for run in runs), time.monotonic()
        return runs, [server.store.directory_of(run.run_id) for run in runs]

    # Of an open selection also where those appear that join.
    parents: list[Path] = []
    if spec.selection is not None:
        mirrors = await run_in_thread(server.home.list_mirrors)
        parents = [server.home.runs, *(mirror / "runs" for mirror in mirrors)]
    with server.file_watch.subscribe(parents) as subscription:
        return await wait_for_runs(
            spec.run_ids,
            observe,
            subscription,
            spec.cursors,
            until=spec.mode,
            timeout_s=timeout_s,
            report=report,
            check_condition=metric.check if metric is not None else None,
            is_unknown=metric.tell_unknown if metric is not None else lambda _: False,
            waited_s=waited_s,
            longest_s=server.calls.longest_wait_s,
        )


def start_metric_wait(server: context.ServerContext, spec: WaitSpec) -> MetricWait | None:
    """Return what checks the condition of a wait, or None. BadArgument: ``until`` is neither word nor condition."""
    if (condition := spec.condition) is None:
        return None

    def read_printed(run: Run) -> LogMetrics:
        server.store.fetch_log(run)
        return read_as_said(run, server.store.run_directory(run.run_id), condition.tag)

    return MetricWait(server.scalars, condition, spec.run_ids, spec.positions, read_printed)


TOOL = tool(
    wait_run,
    title="Wait for runs",
    annotations=READ_ONLY,
    search_hint="wait for training, watch a training job, poll, sleep, tail, until it finishes, progress, wake me",
    always_loaded=True,
    drawn=True,
)


def _plan(
    server: context.ServerContext,
    name: str | None,
    names: list[str],
    until: str,
    timeout_s: float | None,
    since: int | str | dict[str, int] | None,
) -> tuple[WaitSpec, tuple[Watched, ...]]:
    """Return the wait that is asked for, and its runs as they are now. Blocks. BadArgument: it means nothing."""
    if isinstance(since, str) and since.isdigit():
        since = int(since)
    word = since if isinstance(since, str) else None
    seen = server.cursor_files.read(word) if word is not None else None

    def was_alive(run_id: str) -> bool:
        return server.cursors.saw_alive(name, run_id) if seen is None else _is_live(seen.runs.get(run_id))

    left_out = seen.left_out if seen is not None else None
    if left_out is not None and seen is not None:
        left_out = left_out | {run_id for run_id, position in seen.runs.items() if not _is_live(position)}
    selection, runs = select(server.store, names, left_out=left_out, was_alive=was_alive)
    if not runs and word is None:
        raise BadArgument("run_ids", "no run is live." if selection.live else "names no run.", "Call list_runs.")
    if any(isinstance(run, Sweep) for run in runs) and len(runs) > 1:
        raise BadArgument("run_ids", "a sweep is waited for alone.", "Pass its id and no other.")
    if until == "first_step" and any(isinstance(run, Sweep) for run in runs):
        cause = "first_step is for runs: the cells of a sweep begin one after the other."
        raise BadArgument("until", cause, 'Pass "decision" or "end", or the runs that list_runs(sweep="…") names.')
    cursors = {}
    for run in runs:
        cursor = server.cursors.recall(name, run)
        if seen is not None:
            seq, state = seen.runs.get(run.run_id, (0, ""))
            is_same = (cursor.seq, cursor.state) == (seq, state)
            cursors[run.run_id] = cursor if is_same else Cursor(seq, state)
        else:
            cursors[run.run_id] = _move(cursor, run, since)
    spec = WaitSpec(tuple(cursors), cursors, until, timeout_s, since=word)
    if (condition := spec.condition) is not None:  # which checks the runs that there are
        check_possible(condition, runs)
        return replace(spec, positions=server.cursors.recall_positions(name, cursors, condition.text)), runs
    return replace(spec, selection=selection if selection.is_open else None), runs


def _is_live(position: tuple[int, str] | None) -> bool:
    return position is not None and position[1] not in ENDED


def _move(cursor: Cursor, run: Watched, since: int | str | dict[str, int] | None) -> Cursor:
    """Return the cursor of a caller that says which event of ``run`` is the last it has seen."""
    seq = since.get(run.run_id, since.get(run.spec.name)) if isinstance(since, dict) else since
    if seq is None or isinstance(seq, str):
        return cursor
    return replace(cursor, seq=seq, repeated=0, state=run.state if seq >= run.last_seq else "")
