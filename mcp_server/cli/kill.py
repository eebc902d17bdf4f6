"""`runward kill`: stop a run and all it started, after asking on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import anyio

from mcp_server.backends.base import backend_of
from mcp_server.cli.output import print_json
from mcp_server.errors import RunwardError
from mcp_server.record.state import Run
from mcp_server.runs.confirmation import describe_for_confirmation
from mcp_server.runs.stop import StopResult, stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome


def run(arguments: argparse.Namespace) -> int:
    """Ask for the run's id, stop the run; return 0 if nothing survived, 1 if something did or nothing was done."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find(arguments.run_id)
    leftovers = backend_of(run.spec).find_leftovers(run)
    if run.ended and not leftovers:
        if arguments.json:
            print_json({"status": "already_ended", "run_id": run.run_id, "state": run.state})
        else:
            print(f"{run.run_id} has ended already: {run.state}.")
        return 0
    if not sys.stdin.isatty():
        raise RunwardError(f"Kill not confirmed: {run.run_id} is still {run.state}.", remedy="Type it on a terminal.")
    print(describe_for_confirmation(run, leftovers), file=sys.stderr)
    print(f"Type {run.run_id} to stop it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != run.run_id:
        print(f"Left alone: {run.run_id} is still {run.state}.", file=sys.stderr)
        return 1
    stopped = anyio.run(_stop, run, store, arguments.reason)
    if arguments.json:
        print_json(
            {
                "status": "killed",
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
    return 1 if stopped.survivors else 0


async def _stop(run: Run, store: RunStore, reason: str) -> StopResult:
    by = f"{store.home.owner(os.environ)}, on a terminal"
    with contextlib.closing(FileWatch()) as file_watch:
        return await stop_run(run, store, file_watch, by=by, reason=reason, stopped_by="person")
