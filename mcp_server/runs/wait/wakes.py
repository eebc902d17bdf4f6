"""News of a project's runs for agents that wait for nothing: each is told once, in one line."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio

from mcp_server.errors import RunwardError
from mcp_server.record.events import NOTEWORTHY
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.waiting import find_decisions, needs_decision
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.told_news import ToldNews
from mcp_server.store.wait_files import WaitFiles
from mcp_server.text.formatting import printable
from mcp_server.threads import run_in_thread
from mcp_server.views.brevity import line_of

Positions = Mapping[str, tuple[int, str]]  # by run id the number of the last event, and the state
_LOOK_S = 30.0  # the death of a supervisor changes no file
# An open call is answered within a second. A client that polls a task does that every 0.5 to 6 s, and its server may
# have to be started anew.
_GRACE_S, _GRACE_OF_TASKS_S = 1.0, 30.0


def find_news(store: RunStore, told: ToldNews) -> tuple[list[tuple[Watched, Cursor]], list[Path]]:
    """Return the runs and sweeps with something to decide that nobody was told, and the directories of the live ones.

    An end that an agent has asked for is no news. Reads records.
    """
    news, directories = [], []
    for run_id, position in told.read_own().items():
        cursor = Cursor(*position)
        with contextlib.suppress(RunwardError, OSError):  # removed, or damaged
            run = store.observe_any(run_id)
            if not run.ended:
                directories.append(store.directory_of(run_id))
            if needs_decision(run, cursor) and not (
                run.state == "killed" and getattr(run, "stopped_by", None) == "agent"
            ):
                news.append((run, cursor))
    return news, directories


def describe_news(run: Watched, cursor: Cursor) -> str:
    """Return one line for a model: what happened, and the next call. Nothing that the run has printed is in it."""
    if isinstance(run, Sweep):
        count = ", ".join(f"{number} {state}" for state, number in run.count().items() if state != "total")
        text = f"{run.run_id} {run.state}: {count}"
    elif run.ended:
        text = line_of(run)
    else:
        kinds = find_decisions(run, cursor)
        text = f"{run.run_id} {next(kind for kind in NOTEWORTHY if kind in kinds)}"
    return printable(f'runward: {text}. Call wait_run("{run.run_id}", timeout_s=0).')


async def tell_news(
    store: RunStore, told: ToldNews, tell: Callable[[list[str], Positions], Awaitable[None]], ends: bool = False
) -> None:
    """Call ``tell`` with each news that no server has answered within a second, or by a task; it notes them.

    ``ends``: return once no run lives and all is told; else it never returns.
    """
    since_s: dict[str, float] = {}
    await run_in_thread(told.tell_own)
    with contextlib.closing(FileWatch()) as file_watch, file_watch.subscribe([told.directory]) as subscription:
        while True:
            news, directories = await run_in_thread(find_news, store, told)
            if ends and not news and not directories:
                return
            subscription.extend(directories)
            now_s = time.monotonic()
            since_s = {run.run_id: since_s.get(run.run_id, now_s) for run, _ in news}
            awaited = await run_in_thread(WaitFiles(store.home).find_awaited) if news else set[str]()
            due_s = {
                run_id: at_s + (_GRACE_OF_TASKS_S if run_id in awaited else _GRACE_S)
                for run_id, at_s in since_s.items()
            }
            due = [(run, cursor) for run, cursor in news if now_s >= due_s[run.run_id]]
            if due:
                positions = {run.run_id: (run.last_seq, run.state) for run, _ in due}
                await tell([describe_news(run, cursor) for run, cursor in due], positions)
                continue
            left_s = min((at_s - now_s for at_s in due_s.values()), default=_LOOK_S)
            with anyio.move_on_after(left_s):
                await subscription.next_change()
