"""`runward wait`: wait until a run has ended; exit with its exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Awaitable, Sequence

import anyio

from mcp_server.cli.output import print_json
from mcp_server.record.exit_status import shell_status
from mcp_server.record.state import Run
from mcp_server.runs.cursors import Cursor
from mcp_server.runs.wait import wait_for_runs
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.threads import run_in_thread
from mcp_server.views.run_status import status_of

_GAVE_UP = 124  # as timeout(1) exits, and as no training run does


def run(arguments: argparse.Namespace) -> int:
    """Wait, print the end, and return the exit status that ``_exit_status`` defines."""
    store = RunStore(StateHome.of(os.environ))
    limit_s = float("inf") if arguments.timeout is None else arguments.timeout
    run = anyio.run(_until_end, store, store.find(arguments.run_id).run_id, limit_s)
    if arguments.json:
        print_json(status_of(store, run).model_dump(mode="json"))
    elif run.ended:
        last_text = run.events[-1].get("text", run.state) if run.events else run.state
        print(f"{run.run_id} {run.state}: {run.reason}" if run.reason else f"{run.run_id} {last_text}")
    else:
        print(f"{run.run_id} is still {run.state} after {limit_s:g} s", file=sys.stderr)
    return _exit_status(run)


async def _until_end(store: RunStore, run_id: str, limit_s: float) -> Run:
    directory = store.run_directory(run_id).path
    with contextlib.closing(FileWatch()) as file_watch, file_watch.subscribe([directory]) as subscription:
        cursors = {run_id: Cursor()}

        def observe(run_ids: Sequence[str]) -> Awaitable[tuple[Run, ...]]:
            return run_in_thread(store.observe_all, run_ids)

        outcome = await wait_for_runs([run_id], observe, subscription, cursors, until="end", timeout_s=limit_s)
        return outcome.runs[0]


def _exit_status(run: Run) -> int:
    """Return the run's exit code; 128 + n for signal n as shells do, 124 if it is live, 125 if its end is unknown."""
    return shell_status(run.exit_code, run.signal) if run.ended else _GAVE_UP
