"""kill_run: stopping a run, confirmed by a person or by a token."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult, Resolve
from mcp.types import ToolAnnotations
from pydantic import Field

from mcp_server.answer import Answer
from mcp_server.backends.base import backend_of
from mcp_server.errors import KillNotConfirmed
from mcp_server.record.state import Run, RunState
from mcp_server.runs.confirmation import describe_for_confirmation
from mcp_server.runs.services import describe_dependents, list_dependents
from mcp_server.runs.stop import StopResult, check_gpu_memory, stop_run
from mcp_server.store.sweep_store import SweepRun
from mcp_server.threads import run_in_thread
from mcp_server.tools.asking import Confirm, can_ask, find_people_rule, put_question
from mcp_server.tools.context import Call, ServerContext, caller, server_of
from mcp_server.tools.kill_several import (
    Stops,
    Targets,
    are_several,
    find_targets_in_thread,
    is_over,
    state_after,
    stop_several,
)
from mcp_server.tools.kill_sweep import find_sweep
from mcp_server.tools.schema import tool
from mcp_server.views.run_status import Leftover
from mcp_server.views.sweep_status import describe_continuation, describe_sweep_for_confirmation

KillStatus = Literal["killed", "incomplete", "declined", "confirmation_required", "already_ended"]


class StoppedRun(Answer):
    """One of several runs, and why it was left as it is."""

    run_id: str
    state: RunState
    problem: str | None = None


class KillResult(Answer):
    """Result of a kill. ``survivors`` must be empty after killed. ``runs``: of several, each."""

    status: KillStatus
    run_id: str | None = None
    state: RunState | None = None
    message: str
    runs: list[StoppedRun] | None = None
    confirm_token: str | None = None
    signals_sent: list[str] | None = None
    survivors: list[Leftover] | None = None
    gpu_memory_released: bool | None = None


async def _ask_person(
    run_id: str | list[str], confirm_token: str | None, force_other_owner: bool, ctx: Call
) -> Confirm | Elicit[Confirm]:
    # Called once per round of the conversation: it only reads.
    server = server_of(ctx)
    if isinstance(run_id, list) and not are_several(run_id):
        run_id = run_id[0]
    if isinstance(run_id, list) or are_several([run_id]):
        words = run_id if isinstance(run_id, list) else [run_id]
        return await _ask_about_several(ctx, words, confirm_token, force=force_other_owner)
    if (sweep := await run_in_thread(find_sweep, server, run_id)) is not None:
        if confirm_token is not None or sweep.ended or not can_ask(ctx):
            return Confirm(run_id="")
        await run_in_thread(server.check_owner, ctx, sweep, force=force_other_owner)
        if not ctx.input_responses:
            server.questions.ask(caller(ctx), sweep.run_id)
        return put_question(f"Stop this sweep? {describe_sweep_for_confirmation(sweep.sweep)}")
    run = await run_in_thread(server.store.find, run_id)
    if confirm_token is not None or await run_in_thread(is_over, run) or not can_ask(ctx):
        return Confirm(run_id="")
    await run_in_thread(server.check_owner, ctx, run, force=force_other_owner)
    about = await run_in_thread(_describe, server, run)
    if not ctx.input_responses:
        server.questions.ask(caller(ctx), run.run_id)
    return put_question(f"Stop this run? {about}")


def _describe(server: ServerContext, run: Run) -> str:
    """Return what is to be confirmed."""
    facts = describe_for_confirmation(run, backend_of(run.spec).find_leftovers(run))
    return f"{facts}{describe_dependents(list_dependents([run], server.store))}"


async def _ask_about_several(
    ctx: Call, words: list[str], confirm_token: str | None, *, force: bool
) -> Confirm | Elicit[Confirm]:
    server, name = server_of(ctx), caller(ctx)
    if confirm_token is not None or not can_ask(ctx):
        return Confirm(run_id="")
    if not ctx.input_responses:
        targets = await find_targets_in_thread(ctx, words, force=force)
        if not targets.runs:
            return Confirm(run_id="")
        server.run_sets.ask(name, words, targets.attempts, f"Stop these runs? {targets.question}")
        server.questions.ask(name, " ".join(words))
    # In a later round it is the question that was asked, whatever has joined since.
    question = server.run_sets.find_question(name, words)
    return Confirm(run_id="") if question is None else put_question(question)


async def kill_run(
    run_id: Annotated[str | list[str], Field(description="A run or its name, several, tag:NAME, or a sweep")],
    answer: Annotated[ElicitationResult[Confirm], Resolve(_ask_person)],
    ctx: Call,
    reason: Annotated[str, Field(description="Why; kept with the run")] = "",
    confirm_token: Annotated[str | None, Field(description="From an earlier confirmation_required")] = None,
    force_other_owner: Annotated[bool, Field(description="Also another owner's run")] = False,
) -> KillResult:
    """Stop a run, or several by one confirmation, and all that they started. Irreversible.

    A person is asked where possible. Otherwise nothing is stopped yet: you get confirm_token; check that
    this is the run you mean, then call again with it. Waits for the processes to be gone.
    """
    words = [run_id] if isinstance(run_id, str) else run_id
    reason = await run_in_thread(server_of(ctx).mask, reason) if reason else ""
    if are_several(words):
        return await _kill_several(ctx, words, answer, reason, confirm_token, force=force_other_owner)
    server = server_of(ctx)
    sweep = await run_in_thread(find_sweep, server, words[0])
    run: Run = sweep if sweep is not None else await run_in_thread(server.store.find, words[0])
    came_at_once = server.questions.answer(caller(ctx), run.run_id)
    if sweep.ended if sweep is not None else await run_in_thread(is_over, run):
        return _result("already_ended", run, f"{run.run_id} has ended already: {run.state}.")
    if sweep is None:
        await run_in_thread(backend_of(run.spec).check_stoppable, run.spec)
    await run_in_thread(server.check_owner, ctx, run, force=force_other_owner)
    by, stopped_by = await run_in_thread(server.actor, ctx), "agent"
    if confirm_token is not None:
        if rule := await run_in_thread(find_people_rule, server):
            raise KillNotConfirmed(_for_people(run, rule))
        server.confirmations.redeem_token(confirm_token, run)
    else:
        decision = _read_decision(answer, run, came_at_once=came_at_once) if can_ask(ctx) else None
        if decision == "declined":
            return _result("declined", run, _describe_refusal(run))
        if decision is None:
            return await run_in_thread(_require_confirmation, server, run)
        by, stopped_by = "a person, asked through the client", "person"
    if sweep is not None:
        return await _kill_sweep(server, sweep, by=by, reason=reason, stopped_by=stopped_by)
    result = await stop_run(run, server.store, server.file_watch, by=by, reason=reason, stopped_by=stopped_by)
    return _describe_result(result, await check_gpu_memory(result.run, server.environ))


_DESTRUCTIVE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

TOOL = tool(
    kill_run,
    title="Kill run",
    annotations=_DESTRUCTIVE,
    search_hint="stop, cancel, abort, terminate a training job, scancel, pkill",
)


async def _kill_sweep(server: ServerContext, run: SweepRun, *, by: str, reason: str, stopped_by: str) -> KillResult:
    """Stop a sweep and its live runs, which the question counted."""
    from mcp_server.sweeps.stop import stop_sweep  # noqa: PLC0415 - a server starts without sweeps

    stop = await stop_sweep(
        run.sweep, server.store, server.file_watch, server.environ, by=by, reason=reason, stopped_by=stopped_by
    )
    survivors = [Leftover.of(process) for result in stop.results.values() for process in result.survivors]
    whole = stop.sweep.ended and not survivors and not stop.problems
    counts = stop.sweep.count()
    skipped = counts.get("skipped", 0) + counts.get("queued", 0)
    runs = [StoppedRun(run_id=run_id, state=result.run.state) for run_id, result in stop.results.items()]
    runs += [StoppedRun(run_id=name, state="running", problem=problem) for name, problem in stop.problems.items()]
    return KillResult(
        status="killed" if whole else "incomplete",
        run_id=run.run_id,
        state=stop.sweep.state,
        message=f"{len(stop.results)} runs were stopped; {skipped} cells were not started. "
        f"{describe_continuation(stop.sweep)}",
        runs=runs or None,
        survivors=survivors,
    )


async def _kill_several(
    ctx: Call,
    words: list[str],
    answer: ElicitationResult[Confirm],
    reason: str,
    confirm_token: str | None,
    *,
    force: bool,
) -> KillResult:
    """Stop the runs that a question or a token named, whatever the words mean by now."""
    server, name = server_of(ctx), caller(ctx)
    targets = await find_targets_in_thread(ctx, words, force=force)
    by, stopped_by = await run_in_thread(server.actor, ctx), "agent"
    if confirm_token is not None:
        if rule := await run_in_thread(find_people_rule, server):
            raise KillNotConfirmed(_describe_several_for_people(targets, rule))
        confirmed = server.run_sets.redeem_token(confirm_token, words)
        attempts: Mapping[str, int | None] = confirmed.attempts
    elif not can_ask(ctx):
        return await run_in_thread(_require_confirmation_of_several, server, words, targets)
    else:
        came_at_once = server.questions.answer(name, " ".join(words))
        question = server.run_sets.answer(name, words)
        if question is None and not targets.runs:
            return KillResult(status="already_ended", message=f"All {len(targets.ended)} have ended already.")
        if answer.action == "cancel" and came_at_once:
            return await run_in_thread(_require_confirmation_of_several, server, words, targets)
        typed = answer.data.run_id.strip() if answer.action == "accept" else ""
        if question is None or typed not in (str(len(question.attempts)), f"{len(question.attempts)} runs"):
            return KillResult(
                status="declined",
                message="Kill not confirmed: declined, dismissed, or another number was typed. No run was stopped. "
                f"{_COMMANDS_FOR_PEOPLE}",
            )
        attempts = dict.fromkeys(question.attempts)  # a person means the run, whatever its attempt
        by, stopped_by = "a person, asked through the client", "person"
    chosen = [run for run in targets.runs if attempts.get(run.run_id, 0) in (None, run.attempt)]
    stops = await stop_several(ctx, chosen, by=by, reason=reason, stopped_by=stopped_by)
    return _describe_stops(targets, attempts, stops)


_COMMANDS_FOR_PEOPLE = "A person can stop each on this machine: runward kill RUN_ID"


def _require_confirmation_of_several(server: ServerContext, words: list[str], targets: Targets) -> KillResult:
    if not targets.runs:
        return KillResult(status="already_ended", message=f"All {len(targets.ended)} have ended already.")
    if rule := find_people_rule(server):
        return KillResult(status="confirmation_required", message=_describe_several_for_people(targets, rule))
    message = f"Kill not confirmed: all still live. {targets.question}. To stop exactly these, call again with "
    token = server.run_sets.grant_token(words, targets.attempts)
    return KillResult(status="confirmation_required", message=f"{message}confirm_token.", confirm_token=token)


def _describe_several_for_people(targets: Targets, rule: str) -> str:
    return f"Kill not confirmed: {targets.question}. {rule}. {_COMMANDS_FOR_PEOPLE}"


def _describe_stops(targets: Targets, attempts: Mapping[str, int | None], stops: Stops) -> KillResult:
    runs, joined = [], []
    for run in targets.runs:
        problem = stops.problems.get(run.run_id)
        if run.run_id not in attempts:
            joined.append(run.run_id)
            problem = "It was not in the question: left alone."
        elif run.run_id not in stops.results and problem is None:
            problem = "Another attempt runs since the question: left alone."
        runs.append(StoppedRun(run_id=run.run_id, state=state_after(stops, run), problem=problem))
    ended = [run.run_id for run in targets.ended if run.run_id in attempts]
    results = stops.results.values()
    survivors = [Leftover.of(process) for result in results for process in result.survivors]
    told = [result.message for result in results if result.far_side or result.unsupervised or not result.run.ended]
    parts = [
        f"{sum(result.run.ended for result in results)} runs were stopped.",
        f"{len(ended)} had ended before: {', '.join(ended)}." if ended else "",
        f"Left alone, because not in the question: {', '.join(joined)}." if joined else "",
        *told,
        *(text for released, text in stops.gpu_memory.values() if not released),
    ]
    stopping = [run for run in runs if run.run_id in attempts]
    is_whole = not any(run.problem for run in stopping) and all(result.is_complete for result in results)
    return KillResult(
        status="already_ended" if not stopping else "killed" if is_whole else "incomplete",
        message=" ".join(filter(None, parts)),
        runs=runs,
        signals_sent=list(dict.fromkeys(sign for result in stops.results.values() for sign in result.signals_sent)),
        survivors=survivors,
        gpu_memory_released=all(released for released, _ in stops.gpu_memory.values()) if stops.gpu_memory else None,
    )


def _read_decision(
    answer: ElicitationResult[Confirm], run: Run, *, came_at_once: bool
) -> Literal["confirmed", "declined"] | None:
    """Return the person's decision; None where no person answered: a program cancels at once.

    Esc and a closed dialog are a cancel as well, and a person's no.
    """
    if answer.action == "accept":
        return "confirmed" if answer.data.run_id.strip() == run.run_id else "declined"
    return None if answer.action == "cancel" and came_at_once else "declined"


def _describe_refusal(run: Run) -> str:
    return (
        f"Kill not confirmed: declined, dismissed, or another id was typed. {run.run_id} is still {run.state}. "
        f"A person can stop it on this machine: runward kill {run.run_id}"
    )


def _require_confirmation(server: ServerContext, run: Run) -> KillResult:
    """Return a token to confirm with; under the policy ``human``, the command for a person to type."""
    if rule := find_people_rule(server):
        return _result("confirmation_required", run, _for_people(run, rule))
    about = describe_sweep_for_confirmation(run.sweep) if isinstance(run, SweepRun) else _describe(server, run)
    message = f"Kill not confirmed: still {run.state}. {about}. To stop it, call again with confirm_token."
    return _result("confirmation_required", run, message, confirm_token=server.confirmations.grant_token(run))


def _describe_result(stopped: StopResult, gpu_memory: tuple[bool, str] | None) -> KillResult:
    if stopped.run.ended and stopped.run.state not in ("killed", "lost") and not stopped.signals_sent:
        return _result("already_ended", stopped.run, f"{stopped.run.run_id} ended by itself: {stopped.run.state}.")
    released, memory_text = gpu_memory or (None, "")
    return _result(
        "killed" if stopped.is_complete else "incomplete",
        stopped.run,
        f"{stopped.message} {memory_text}".strip(),
        signals_sent=list(stopped.signals_sent),
        survivors=None
        if stopped.far_side and not stopped.survivors
        else [Leftover.of(process) for process in stopped.survivors],
        gpu_memory_released=released,
    )


def _result(status: KillStatus, run: Run, message: str, **more: Any) -> KillResult:
    return KillResult(status=status, run_id=run.run_id, state=run.state, message=message, **more)


def _for_people(run: Run, rule: str) -> str:
    return f"Kill not confirmed: {run.run_id} is still {run.state}. {rule}: ask one to type: runward kill {run.run_id}"
