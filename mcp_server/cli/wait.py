"""`runward wait`: wait until a run, or a sweep, has ended. Exit with the run's exit code.

On a terminal, a line of progress is drawn again and again meanwhile, on standard error.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Sequence

import anyio
from rich.cells import set_cell_size

from mcp_server.cli.output import print_json
from mcp_server.record.exit_status import shell_status
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.waiting import wait_for_runs
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conducting import ensure_conductor
from mcp_server.text.formatting import printable, shorten_middle
from mcp_server.threads import run_in_thread
from mcp_server.views.progress_text import describe_progress
from mcp_server.views.run_status import status_of
from mcp_server.views.sweep_status import describe_sweep

_LOOK_S, _SHOW_S = 30.0, 2.0  # between two looks at a sweep's conductor; between two lines of progress
_FEWEST_ID_CHARS = 12
_GAVE_UP = 124  # as timeout(1) exits, and as no training run does


def run(arguments: argparse.Namespace) -> int:
    """Wait, print the end, and return the exit status that ``_exit_status`` defines."""
    store = RunStore(StateHome.of(os.environ))
    limit_s = float("inf") if arguments.timeout is None else arguments.timeout
    run = anyio.run(_until_end, store, store.find_any(arguments.run_id), limit_s)
    if arguments.json and isinstance(run, Sweep):
        print_json(describe_sweep(run, store).model_dump(mode="json"))
    elif arguments.json and isinstance(run, Run):
        print_json(status_of(store, run).model_dump(mode="json"))
    elif run.ended:
        last_text = str(run.events[-1].get("text", run.state) if run.events else run.state)
        if isinstance(run, Run) and run.earlier:
            last_text += f" Before: {run.earlier}."
        print(f"{run.run_id} {run.state}: {run.reason}" if run.reason else f"{run.run_id} {last_text}")
    else:
        print(f"{run.run_id} is still {run.state} after {limit_s:g} s", file=sys.stderr)
    return _exit_status(run)


async def _until_end(store: RunStore, run: Watched, limit_s: float) -> Watched:
    run_id, look_s = run.run_id, _LOOK_S if isinstance(run, Sweep) else float("inf")
    is_shown = sys.stderr.isatty()
    look_s = _SHOW_S if is_shown else look_s
    directory = store.directory_of(run_id)
    with contextlib.ExitStack() as stack:
        file_watch = stack.enter_context(contextlib.closing(FileWatch()))
        subscription = stack.enter_context(file_watch.subscribe([directory]))
        if is_shown:
            stack.callback(_show)
        cursors = {run_id: Cursor()}

        def observe(run_ids: Sequence[str]) -> Awaitable[tuple[Watched, ...]]:
            return run_in_thread(store.observe_all, run_ids)

        until_s = anyio.current_time() + limit_s
        while True:
            if is_shown:
                _show(run_id, describe_progress([run], time.time()))
            left_s = max(0.0, until_s - anyio.current_time())
            if isinstance(run, Sweep):
                await ensure_conductor(run, store, file_watch, os.environ)
            timeout_s = min(left_s, look_s)
            outcome = await wait_for_runs([run_id], observe, subscription, cursors, until="end", timeout_s=timeout_s)
            run = outcome.runs[0]
            if run.ended or left_s <= look_s:
                return run


def _show(run_id: str = "", progress: str = "") -> None:
    """Draw a line in place of the one before, as far as it fits; without a run, remove it."""
    width = max(os.get_terminal_size(sys.stderr.fileno()).columns - 1, 1)
    line = f"{shorten_middle(run_id, max(width // 3, _FEWEST_ID_CHARS))}: {printable(progress)}" if run_id else ""
    sys.stderr.write(f"\r{set_cell_size(line, width).rstrip()}\x1b[K")
    sys.stderr.flush()


def _exit_status(run: Watched) -> int:
    """Return the run's exit code; 128 + n for a signal, 124 live, 125 unknown. A sweep: 1 if a cell failed."""
    if not run.ended:
        return _GAVE_UP
    if isinstance(run, Sweep):
        return 0 if run.state == "finished" and not run.failed else 1
    return shell_status(run.exit_code, run.signal)
