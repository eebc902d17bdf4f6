"""`runward kill`: stop a run and all it started, or a sweep, after asking on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import anyio

from mcp_server.backends.base import backend_of
from mcp_server.cli.output import print_json
from mcp_server.errors import RunwardError
from mcp_server.hosts.environment import mask_distinct_secrets
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.stop.confirmation import describe_for_confirmation
from mcp_server.runs.stop.stop_run import StopResult, describe_dependents, list_dependents, stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import counted
from mcp_server.views.sweep_status import describe_sweep_for_confirmation

if TYPE_CHECKING:
    from mcp_server.sweeps.conducting import SweepStop


def run(arguments: argparse.Namespace) -> int:
    """Ask for the run's id, stop the run, and return 0 if nothing survived, 1 if something did or nothing was done."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find_any(arguments.run_id)
    reason = mask_distinct_secrets(arguments.reason, os.environ, store.home.secrets)
    if (question := describe_stop(run, store)) is None:
        facts = {"status": "already_ended", "run_id": run.run_id, "state": run.state}
        _print(arguments, describe_end(run), facts)
        return 0
    if not _ask(run, question):
        return 1
    stopped = anyio.run(stop, run, store, reason)
    message, facts, troubles = sum_up(stopped)
    _print(arguments, message, facts)
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    return 0 if stopped.is_complete else 1


def describe_stop(run: Watched, store: RunStore) -> str | None:
    """Return what a person is asked before a stop; None where it has ended, and nothing of it is left. Blocks."""
    if isinstance(run, Sweep):
        return None if run.ended else describe_sweep_for_confirmation(run, store)
    leftovers = backend_of(run.spec).find_leftovers(run)
    if run.ended and not leftovers:
        return None
    return f"{describe_for_confirmation(run, leftovers)}{describe_dependents(list_dependents([run], store))}"


def describe_end(run: Watched) -> str:
    """Return why there is nothing to stop."""
    return f"{run.run_id} has ended already: {run.state}."


def describe_refusal(run: Watched) -> str:
    """Return that a person did not confirm the stop."""
    return f"Left alone: {run.run_id} is still {run.state}."


def sum_up(stopped: StopResult | SweepStop) -> tuple[str, dict[str, Any], list[str]]:
    """Return how a stop ended: in words, as facts for scripts, and a line for each thing that could not be stopped."""
    run: Watched
    facts: dict[str, Any]
    if isinstance(stopped, StopResult):
        run, survivors, is_killed, problems = stopped.run, list(stopped.survivors), stopped.is_complete, {}
        facts = {"signals_sent": list(stopped.signals_sent), "far_side": stopped.far_side or None}
        is_known = bool(survivors or not stopped.far_side)
        message = f"{stopped.message} Sent: {', '.join(stopped.signals_sent) or 'nothing'}."
    else:
        run, survivors, is_killed = stopped.sweep, stopped.runs.survivors, stopped.sweep.ended
        problems = stopped.problems
        facts, is_known = {"runs": list(stopped.runs.results), "problems": problems}, True
        skipped = stopped.sweep.count().get("skipped", 0)
        ended, left = counted(len(stopped.runs.results), "run"), counted(skipped, "cell")
        message = f"Stopped: {ended}; not started: {left}. It is {run.state}."
    named = [{"pid": process.pid, "command": process.program} for process in survivors]
    start = {"status": "killed" if is_killed else "incomplete", "run_id": run.run_id, "state": run.state}
    troubles = [f"{name}: {problem}" for name, problem in problems.items()]
    troubles += [f"Could not be stopped: {process.pid} {process.program}" for process in survivors]
    return message, {**start, **facts, "survivors": named if is_known else None}, troubles


def _print(arguments: argparse.Namespace, message: str, facts: dict[str, Any]) -> None:
    if arguments.json:
        print_json(facts)
    else:
        print(message)


def _ask(run: Watched, question: str) -> bool:
    """Return whether a person typed the id. RunwardError: there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise RunwardError(f"Kill not confirmed: {run.run_id} is still {run.state}.", remedy="Type it on a terminal.")
    print(question, file=sys.stderr)
    print(f"Type {run.run_id} to stop it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() == run.run_id:
        return True
    print(describe_refusal(run), file=sys.stderr)
    return False


async def stop(run: Watched, store: RunStore, reason: str) -> StopResult | SweepStop:
    """Stop a run or a sweep whose stop a person has confirmed here, and return how that ended."""
    by = f"{store.home.owner(os.environ)}, on a terminal"
    with contextlib.closing(FileWatch()) as file_watch:
        if not isinstance(run, Sweep):
            return await stop_run(run, store, file_watch, by=by, reason=reason, stopped_by="person")
        from mcp_server.sweeps.conducting import stop_sweep  # noqa: PLC0415 - 12 ms; runs do without

        return await stop_sweep(run, store, file_watch, os.environ, by=by, reason=reason, stopped_by="person")
