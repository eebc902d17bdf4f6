"""`runward monitor`: a line for each news of this project's runs that no answer has told: a client wakes its model."""

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import anyio

from mcp_server.runs.wait.wakes import Positions, tell_news
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import ToldNews
from mcp_server.threads import run_in_thread

# An open call is answered within a second; a task is polled every 0.5 to 6 s.
_GRACE_S, _GRACE_OF_TASKS_S = 1.0, 8.0
_TASKS_ARE_OFF = "CLAUDE_CODE_DISABLE_MCP_TASKS"


def run(arguments: argparse.Namespace) -> int:
    """Print news until the reader goes, or a signal ends the process."""
    del arguments
    home = StateHome.of(os.environ)
    grace_s = _GRACE_S if os.environ.get(_TASKS_ARE_OFF) else _GRACE_OF_TASKS_S
    told = ToldNews(home, Path.cwd())
    anyio.run(tell_news, RunStore(home), told, grace_s, _Printer(told).tell)
    return 0


class _Printer:
    """Prints, and notes what was printed before a signal ends the process: the next monitor would print it again."""

    def __init__(self, told: ToldNews) -> None:
        self._told = told
        self._is_telling = self._is_called_off = False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._end)

    async def tell(self, lines: Sequence[str], positions: Positions) -> None:
        """Print the news and note them."""
        self._is_telling = True
        print("\n".join(lines), flush=True)
        await run_in_thread(self._told.note, positions)
        self._is_telling = False
        if self._is_called_off:
            os._exit(0)

    def _end(self, *_: object) -> None:
        if not self._is_telling:
            os._exit(0)
        self._is_called_off = True
