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
from mcp_server.record.state import Run
from mcp_server.runs.confirmation import describe_for_confirmation
from mcp_server.runs.services import describe_dependents, list_dependents
from mcp_server.runs.stop import StopResult, stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.store.sweep_store import SweepRun
from mcp_server.views.sweep_status import describe_sweep_for_confirmation

if TYPE_CHECKING:
    from mcp_server.sweeps.stop import SweepStop


def run(arguments: argparse.Namespace) -> int:
    """Ask for the run's id, stop the run, and return 0 if nothing survived, 1 if something did or nothing was done."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find_any(arguments.run_id)
    arguments.reason = mask_distinct_secrets(arguments.reason, os.environ, store.home.secrets)
    if isinstance(run, SweepRun):
        return _kill_sweep(run, store, arguments)
    leftovers = backend_of(run.spec).find_leftovers(run)
    if run.ended and not leftovers:
        return _report_ended(run, as_json=arguments.json)
    dependents = describe_dependents(list_dependents([run], store))
    if not _ask(run, f"{describe_for_confirmation(run, leftovers)}{dependents}"):
        return 1
    stopped = anyio.run(_stop, run, store, arguments.reason)
    if arguments.json:
        print_json(
            {
                "status": "killed" if stopped.is_complete else "incomplete",
                "run_id": run.run_id,
                "state": stopped.run.state,
                "signals_sent": list(stopped.signals_sent),
                "far_side": stopped.far_side or None,
                "survivors": None
                if stopped.far_side and not stopped.survivors
                else [{"pid": process.pid, "command": process.program} for process in stopped.survivors],
            }
        )
    else:
        print(f"{stopped.message} Sent: {', '.join(stopped.signals_sent) or 'nothing'}.")
    for process in stopped.survivors:
        print(f"Could not be stopped: {process.pid} {process.program}", file=sys.stderr)
    return 0 if stopped.is_complete else 1


def _report_ended(run: Run, *, as_json: bool) -> int:
    if as_json:
        print_json({"status": "already_ended", "run_id": run.run_id, "state": run.state})
    else:
        print(f"{run.run_id} has ended already: {run.state}.")
    return 0


def _ask(run: Run, question: str) -> bool:
    """Return whether a person typed the id.

    Raises:
        RunwardError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise RunwardError(f"Kill not confirmed: {run.run_id} is still {run.state}.", remedy="Type it on a terminal.")
    print(question, file=sys.stderr)
    print(f"Type {run.run_id} to stop it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() == run.run_id:
        return True
    print(f"Left alone: {run.run_id} is still {run.state}.", file=sys.stderr)
    return False


def _kill_sweep(run: SweepRun, store: RunStore, arguments: argparse.Namespace) -> int:
    if run.ended:
        return _report_ended(run, as_json=arguments.json)
    if not _ask(run, describe_sweep_for_confirmation(run.sweep)):
        return 1
    stop = anyio.run(_stop_sweep, run, store, arguments.reason)
    survivors = [process for result in stop.results.values() for process in result.survivors]
    if arguments.json:
        facts: dict[str, Any] = {"status": "killed" if stop.sweep.ended else "incomplete", "run_id": run.run_id}
        facts |= {"state": stop.sweep.state, "runs": list(stop.results), "problems": stop.problems}
        print_json({**facts, "survivors": [{"pid": each.pid, "command": each.program} for each in survivors]})
    else:
        cells = stop.sweep.count().get("skipped", 0)
        print(f"{len(stop.results)} runs were stopped; {cells} cells were not started. It is {stop.sweep.state}.")
    for name, problem in stop.problems.items():
        print(f"{name}: {problem}", file=sys.stderr)
    for process in survivors:
        print(f"Could not be stopped: {process.pid} {process.program}", file=sys.stderr)
    return 0 if stop.sweep.ended and not survivors and not stop.problems else 1


async def _stop_sweep(run: SweepRun, store: RunStore, reason: str) -> SweepStop:
    from mcp_server.sweeps.stop import stop_sweep  # noqa: PLC0415 - runs do without

    by = f"{store.home.owner(os.environ)}, on a terminal"
    with contextlib.closing(FileWatch()) as file_watch:
        return await stop_sweep(run.sweep, store, file_watch, os.environ, by=by, reason=reason, stopped_by="person")


async def _stop(run: Run, store: RunStore, reason: str) -> StopResult:
    by = f"{store.home.owner(os.environ)}, on a terminal"
    with contextlib.closing(FileWatch()) as file_watch:
        return await stop_run(run, store, file_watch, by=by, reason=reason, stopped_by="person")
