"""Stopping several runs by one confirmation, which is bound to exactly the runs that it named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.state import Run, RunState
from mcp_server.runs.selection import LIVE, TAG, select
from mcp_server.runs.services import describe_dependents, list_dependents
from mcp_server.runs.stop import StopResult, check_gpu_memory, stop_run
from mcp_server.text.formatting import shorten_middle
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread
from mcp_server.tools.context import Call, ServerContext, server_of

MOST_RUNS = 100
_AT_ONCE = 8
_COMMAND_CHARS, _FEWEST_COMMAND_CHARS = 800, 24  # of all commands in a question, and of each


@dataclass(frozen=True)
class Targets:
    """The runs that a call names: those to stop, and those that have ended."""

    runs: tuple[Run, ...]
    ended: tuple[Run, ...]
    dependents: tuple[str, ...] = ()  # other runs that need one of them

    @property
    def attempts(self) -> dict[str, int]:
        """The attempt of each run to stop."""
        return {run.run_id: run.attempt for run in self.runs}

    @property
    def question(self) -> str:
        """The subject of a confirmation: how many, and which. No elapsed time is in it."""
        chars = max(_FEWEST_COMMAND_CHARS, _COMMAND_CHARS // max(1, len(self.runs)))
        named = "; ".join(
            f"{run.run_id} ({run.state}, owner {run.spec.owner or 'unknown'}): "
            + shorten_middle(mask_secrets(run.command), chars)
            for run in self.runs
        )
        return f"{len(self.runs)} runs: {named}{describe_dependents(self.dependents)}"


@dataclass
class Stops:
    """The outcome of the stops: results by run, why others could not be stopped, and runs outside the question."""

    results: dict[str, StopResult] = field(default_factory=dict)
    gpu_memory: dict[str, tuple[bool, str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def are_several(words: Sequence[str]) -> bool:
    """Return whether these words may name several runs."""
    return len(set(words)) != 1 or words[0].startswith(TAG) or words[0] == LIVE


def find_targets(server: ServerContext, ctx: Call, words: Sequence[str], *, force: bool) -> Targets:
    """Return the runs that a call names, all of which its caller may stop. Blocks.

    Raises:
        RunNotFound, BadArgument: the words name no runs, or too many.
        ForeignRun, ReadOnlyRun: one of the runs is another owner's.
        RunElsewhere: only another host can stop one of them.
    """
    if LIVE in words:
        raise BadArgument(
            "run_id", "live is not taken here, because runs of others live as well.", "Name runs or a tag."
        )
    if not words:
        raise BadArgument("run_id", "names no run.")
    _, runs = select(server.store, words)
    stoppable = tuple(run for run in runs if not is_over(run))
    if len(stoppable) > MOST_RUNS:
        raise BadArgument("run_id", f"names {len(stoppable)} runs; at most {MOST_RUNS} are stopped at once.")
    for run in stoppable:
        backend_of(run.spec).check_stoppable(run.spec)
        server.check_owner(ctx, run, force=force)
    ended = tuple(run for run in runs if run not in stoppable)
    return Targets(stoppable, ended, tuple(list_dependents(stoppable, server.store)))


async def stop_several(ctx: Call, runs: Sequence[Run], *, by: str, reason: str, stopped_by: str) -> Stops:
    """Stop the runs side by side. Call this only after confirmation. What cannot be stopped holds up no other."""
    server, stops, limiter = server_of(ctx), Stops(), anyio.CapacityLimiter(_AT_ONCE)

    async def stop(run: Run) -> None:
        async with limiter:
            try:
                result = await stop_run(
                    run, server.store, server.file_watch, by=by, reason=reason, stopped_by=stopped_by
                )
                stops.results[run.run_id] = result
                if (memory := await check_gpu_memory(result.run, server.environ)) is not None:
                    stops.gpu_memory[run.run_id] = memory
            except RunwardError as error:
                stops.problems[run.run_id] = str(error)

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(partial(stop, run))
    return stops


def state_after(stops: Stops, run: Run) -> RunState:
    """Return the state of ``run`` after the stops."""
    return stops.results[run.run_id].run.state if run.run_id in stops.results else run.state


def is_over(run: Run) -> bool:
    """Return whether nothing is left to stop: a lost run may have left processes behind.

    Raises:
        HostUnreachable: only its host, which does not answer, knows what it left.
    """
    if run.abandoned and run.spec.mirror:
        backend_of(run.spec).check_stoppable(run.spec)
    return run.ended and not backend_of(run.spec).find_leftovers(run)


async def find_targets_in_thread(ctx: Call, words: Sequence[str], *, force: bool) -> Targets:
    """Return what :func:`find_targets` returns."""
    return await run_in_thread(partial(find_targets, server_of(ctx), ctx, words, force=force))
