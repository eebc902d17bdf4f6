"""kill_run: stopping runs and sweeps, confirmed by a person or by a token. One run is a set of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult, Resolve
from mcp.types import ToolAnnotations
from pydantic import Field

from mcp_server.answer import Answer
from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument, KillNotConfirmed
from mcp_server.record.state import Run, RunState
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.stop.confirmation import describe_for_confirmation
from mcp_server.runs.stop.stop_run import Stops, describe_dependents, list_dependents, stop_runs
from mcp_server.runs.wait.selection import LIVE, TAG, select
from mcp_server.sweeps.conducting import SweepStop, stop_sweep
from mcp_server.text.formatting import counted, shorten_middle
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, caller, naming_sessions, server_of
from mcp_server.tools.support.launch_approval import Confirm, can_ask, find_people_rule, put_question, read_answer
from mcp_server.tools.support.schema import tool
from mcp_server.views.brevity import line_of
from mcp_server.views.run_status import Leftover
from mcp_server.views.sweep_status import describe_continuation, describe_sweep_for_confirmation

_MOST_RUNS = 100
_COMMAND_CHARS, _FEWEST_COMMAND_CHARS = 800, 24  # of all commands in a question, and of each
_FOR_PEOPLE = "A person can stop each on this machine: runward kill RUN_ID"
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


@dataclass(frozen=True)
class _Targets:
    """The runs and sweeps that a call names, to stop or ended, with the ``key`` of its question; ``one``: it alone."""

    key: tuple[str, ...]
    runs: tuple[Watched, ...]
    ended: tuple[Watched, ...]
    one: Watched | None

    @property
    def attempts(self) -> dict[str, int]:
        return {run.run_id: run.attempt for run in self.runs}

    def answer(self, status: KillStatus, message: str, **more: Any) -> KillResult:
        """Return a result that leaves all as it is."""
        named: dict[str, Any] = {}
        if self.one is not None:
            named = {"run_id": self.one.run_id, "state": self.one.state}
        return KillResult(status=status, message=message, **named, **more)


@dataclass
class _Stopped:
    runs: Stops
    sweeps: dict[str, SweepStop] = field(default_factory=dict)


async def _ask_person(
    run_id: str | list[str], confirm_token: str | None, force_other_owner: bool, ctx: Call
) -> Confirm | Elicit[Confirm]:
    # Called once per round of the conversation: it only reads.
    server, name, words = server_of(ctx), caller(ctx), _list_words(run_id)
    if confirm_token is not None or not can_ask(ctx):
        return Confirm(run_id="")
    is_first = not ctx.input_responses
    if not is_first and (asked := server.confirmations.find_question(name, words)) is not None:
        return put_question(asked)  # whatever has joined since
    if not is_first and _are_several(words):
        return Confirm(run_id="")
    async with naming_sessions(ctx):
        targets = await run_in_thread(partial(_find_targets, server, ctx, words, force=force_other_owner))
    if not targets.runs:
        return Confirm(run_id="")
    kind, about = await run_in_thread(_describe, server, targets)
    question = f"Stop {kind}? {about}"
    if is_first:
        server.confirmations.ask(name, targets.key, targets.attempts, question)
    return put_question(question)


async def kill_run(
    run_id: Annotated[str | list[str], Field(description="A run or its name, several, tag:NAME, or a sweep")],
    answer: Annotated[ElicitationResult[Confirm], Resolve(_ask_person)],
    ctx: Call,
    reason: Annotated[str, Field(description="Why; kept with the run")] = "",
    confirm_token: Annotated[str | None, Field(description="From confirmation_required")] = None,
    force_other_owner: Annotated[bool, Field(description="Also another owner's run")] = False,
) -> KillResult:
    """Stop a run, or several by one confirmation, and all that they started. Irreversible.

    A person is asked where possible. Otherwise you get confirm_token, and nothing is stopped yet: check
    that this is the run you mean, then call again with it. Waits for the processes to be gone.
    """
    server, words = server_of(ctx), _list_words(run_id)
    reason = await run_in_thread(server.mask, reason) if reason else ""
    async with naming_sessions(ctx):
        targets = await run_in_thread(partial(_find_targets, server, ctx, words, force=force_other_owner))
    asked, came_at_once = None, False
    if confirm_token is None:
        asked, came_at_once = server.confirmations.answer(caller(ctx), targets.key)
    attempts: Mapping[str, int | None]
    if not targets.runs:
        return targets.answer("already_ended", _describe_ended(targets))
    by, stopped_by = await run_in_thread(server.actor, ctx), "agent"
    if confirm_token is not None:
        if rule := await run_in_thread(find_people_rule, server):
            raise KillNotConfirmed(await run_in_thread(_describe_for_people, server, targets, rule))
        attempts = server.confirmations.redeem_token(confirm_token, targets.key, targets.one).attempts
    else:
        named = asked.attempts if asked is not None else targets.attempts if targets.one is not None else {}
        allowed = {*named} if targets.one is not None else {str(len(named)), f"{len(named)} runs"} if named else ()
        decision = read_answer(answer, allowed, came_at_once=came_at_once) if can_ask(ctx) else None
        if decision is None:
            return await run_in_thread(_require_confirmation, server, targets)
        if decision == "declined":
            return targets.answer("declined", _describe_refusal(targets))
        attempts = dict.fromkeys(named)  # a person means the run, whatever its attempt
        by, stopped_by = "a person, asked through the client", "person"
    chosen = [run for run in targets.runs if attempts.get(run.run_id, 0) in (None, run.attempt)]
    stopped = await _stop(server, chosen, by=by, reason=reason, stopped_by=stopped_by)
    if isinstance(targets.one, Sweep):
        return _describe_sweep(stopped.sweeps[targets.one.run_id])
    return _describe_one(stopped, targets.one) if targets.one else _describe_several(targets, attempts, stopped)


_DESTRUCTIVE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

TOOL = tool(
    kill_run,
    title="Kill run",
    annotations=_DESTRUCTIVE,
    search_hint="stop, cancel, abort, terminate a training job, scancel, pkill",
)


def _list_words(run_id: str | list[str]) -> list[str]:
    words = [run_id] if isinstance(run_id, str) else run_id
    return words if _are_several(words) else words[:1]


def _are_several(words: Sequence[str]) -> bool:
    return len(set(words)) != 1 or words[0].startswith(TAG) or words[0] == LIVE


def _find_targets(server: ServerContext, ctx: Call, words: Sequence[str], *, force: bool) -> _Targets:
    """Return what a call names, all of which its caller may stop; else the refusal. Blocks."""
    if LIVE in words:
        cause = f"{LIVE} is not taken here: it means whatever lives when the call comes, also what others started."
        raise BadArgument("run_id", cause, "Name runs by their ids, or a tag.")
    if not words:
        raise BadArgument("run_id", "names no run.")
    runs: tuple[Watched, ...]
    one, key = None, tuple(words)
    if _are_several(words):
        _, runs = select(server.store, words)
    else:
        one = server.store.find_any(words[0])
        runs, key = (one,), (one.run_id,)
    live = tuple(run for run in runs if not _is_over(run))
    if len(live) > _MOST_RUNS:
        raise BadArgument("run_id", f"names {len(live)} runs; at most {_MOST_RUNS} are stopped at once.")
    for run in live:
        if not isinstance(run, Sweep):
            backend_of(run.spec).check_stoppable(run.spec)
        server.check_owner(ctx, run, force=force)
    return _Targets(key, live, tuple(run for run in runs if run not in live), one)


def _is_over(run: Watched) -> bool:
    """Return whether nothing is left to stop. HostUnreachable: only its host knows what a lost run left."""
    if isinstance(run, Sweep):
        return run.ended
    if run.abandoned and run.spec.mirror:
        backend_of(run.spec).check_stoppable(run.spec)
    return run.ended and not backend_of(run.spec).find_leftovers(run)


def _describe(server: ServerContext, targets: _Targets) -> tuple[str, str]:
    """Return what is to be confirmed: its kind, and which runs. No elapsed time is in it."""
    if isinstance(targets.one, Sweep):
        return "this sweep", describe_sweep_for_confirmation(targets.one, server.store)
    runs = [run for run in targets.runs if isinstance(run, Run)]
    dependents = describe_dependents(list_dependents(runs, server.store))
    if targets.one is not None:
        leftovers = backend_of(targets.one.spec).find_leftovers(targets.one)
        return "this run", f"{describe_for_confirmation(targets.one, leftovers)}{dependents}"
    chars = max(_FEWEST_COMMAND_CHARS, _COMMAND_CHARS // len(targets.runs))
    named = "; ".join(
        describe_sweep_for_confirmation(run, server.store)
        if isinstance(run, Sweep)
        else f"{run.run_id} ({run.state}, owner {run.spec.owner or 'unknown'}): "
        + shorten_middle(mask_secrets(run.command), chars)
        for run in targets.runs
    )
    return "these runs", f"{len(targets.runs)} runs: {named}{dependents}"


def _describe_ended(targets: _Targets) -> str:
    if isinstance(targets.one, Run):
        return f"It has ended already: {line_of(targets.one)}."
    return f"All {len(targets.ended)} have ended already."


def _require_confirmation(server: ServerContext, targets: _Targets) -> KillResult:
    """Return a token to confirm with; under the policy ``human``, the command for a person to type."""
    if rule := find_people_rule(server):
        return targets.answer("confirmation_required", _describe_for_people(server, targets, rule))
    _, about = _describe(server, targets)
    which = "To stop it, call" if targets.one is not None else "To stop exactly these, call"
    still = f"still {targets.one.state}" if targets.one is not None else "all still live"
    message = f"Kill not confirmed: {still}. {about}. {which} again with confirm_token."
    token = server.confirmations.grant_token(targets.key, targets.attempts)
    return targets.answer("confirmation_required", message, confirm_token=token)


def _describe_for_people(server: ServerContext, targets: _Targets, rule: str) -> str:
    if (run := targets.one) is not None:
        call = f"runward kill {run.run_id}"
        return f"Kill not confirmed: {run.run_id} is still {run.state}. {rule}: ask one to type: {call}"
    return f"Kill not confirmed: {_describe(server, targets)[1]}. {rule}. {_FOR_PEOPLE}"


def _describe_refusal(targets: _Targets) -> str:
    if (run := targets.one) is None:
        was = "declined, dismissed, or another number was typed"
        return f"Kill not confirmed: {was}. No run was stopped. {_FOR_PEOPLE}"
    return (
        f"Kill not confirmed: declined, dismissed, or another id was typed. {run.run_id} is still {run.state}. "
        f"A person can stop it on this machine: runward kill {run.run_id}"
    )


async def _stop(server: ServerContext, chosen: Sequence[Watched], *, by: str, reason: str, stopped_by: str) -> _Stopped:
    """Stop the runs side by side, then the sweeps with their live runs, which the question counted."""
    runs = [run for run in chosen if not isinstance(run, Sweep)]
    stop = partial(stop_runs, by=by, reason=reason, stopped_by=stopped_by, environ=server.environ)
    stopped = _Stopped(await stop(runs, server.store, server.file_watch))
    for run in chosen:
        if isinstance(run, Sweep):
            stop_one = partial(stop_sweep, run, by=by, reason=reason, stopped_by=stopped_by)
            stopped.sweeps[run.run_id] = await stop_one(server.store, server.file_watch, server.environ)
    return stopped


def _describe_one(stopped: _Stopped, run: Run) -> KillResult:
    if run.run_id in stopped.runs.problems:
        raise stopped.runs.problems[run.run_id]
    result = stopped.runs.results[run.run_id]
    one = _Targets((run.run_id,), (), (), result.run)
    if result.run.ended and result.run.state not in ("killed", "lost") and not result.signals_sent:
        return one.answer("already_ended", f"{run.run_id} ended by itself: {result.run.state}.")
    released, memory_text = stopped.runs.gpu_memory.get(run.run_id, (None, ""))
    unknown = result.far_side and not result.survivors
    return one.answer(
        "killed" if result.is_complete else "incomplete",
        f"{result.message} {memory_text}".strip(),
        signals_sent=list(result.signals_sent),
        survivors=None if unknown else [Leftover.of(process) for process in result.survivors],
        gpu_memory_released=released,
    )


def _describe_sweep(stop: SweepStop) -> KillResult:
    counts = stop.sweep.count()
    skipped = counts.get("skipped", 0) + counts.get("queued", 0)
    runs = [StoppedRun(run_id=run_id, state=result.run.state) for run_id, result in stop.runs.results.items()]
    runs += [StoppedRun(run_id=name, state="running", problem=problem) for name, problem in stop.problems.items()]
    unstarted = f"; not started: {counted(skipped, 'cell')}" if skipped else ""
    return KillResult(
        status="killed" if stop.is_complete else "incomplete",
        run_id=stop.sweep.sweep_id,
        state=stop.sweep.state,
        message=f"Stopped: {counted(len(stop.runs.results), 'run')}{unstarted}. {describe_continuation(stop.sweep)}",
        runs=runs or None,
        survivors=[Leftover.of(process) for process in stop.runs.survivors],
    )


def _describe_several(targets: _Targets, attempts: Mapping[str, int | None], stopped: _Stopped) -> KillResult:
    runs = [_describe_outcome(run, attempts, stopped) for run in targets.runs]
    results = [*stopped.runs.results.values()]
    results += [result for stop in stopped.sweeps.values() for result in stop.runs.results.values()]
    ended = [run.run_id for run in targets.ended if run.run_id in attempts]
    joined = [run.run_id for run in runs if run.run_id not in attempts]
    told = [result.message for result in results if result.far_side or result.unsupervised or not result.run.ended]
    memory = stopped.runs.gpu_memory.values()
    parts = [
        f"Stopped: {counted(sum(result.run.ended for result in results), 'run')}.",
        f"{len(ended)} had ended before: {', '.join(ended)}." if ended else "",
        f"Left alone, because not in the question: {', '.join(joined)}." if joined else "",
        *told,
        *(text for released, text in memory if not released),
    ]
    stopping = [run for run in runs if run.run_id in attempts]
    is_whole = not any(run.problem for run in stopping) and all(result.is_complete for result in results)
    return KillResult(
        status="already_ended" if not stopping else "killed" if is_whole else "incomplete",
        message=" ".join(filter(None, parts)),
        runs=runs,
        signals_sent=list(dict.fromkeys(sign for result in results for sign in result.signals_sent)),
        survivors=[Leftover.of(process) for result in results for process in result.survivors],
        gpu_memory_released=all(released for released, _ in memory) if memory else None,
    )


def _describe_outcome(run: Watched, attempts: Mapping[str, int | None], stopped: _Stopped) -> StoppedRun:
    """Return one of several runs or sweeps, with the reason where it was left as it is."""
    state, problem = run.state, None
    if run.run_id in stopped.sweeps:
        stop = stopped.sweeps[run.run_id]
        state, problem = stop.sweep.state, "; ".join(f"{name}: {text}" for name, text in stop.problems.items()) or None
    elif run.run_id in stopped.runs.results:
        state = stopped.runs.results[run.run_id].run.state
    elif run.run_id in stopped.runs.problems:
        problem = str(stopped.runs.problems[run.run_id])
    elif run.run_id in attempts:
        problem = "Another attempt runs since the question: left alone."
    else:
        problem = "It was not in the question: left alone."
    return StoppedRun(run_id=run.run_id, state=state, problem=problem)
