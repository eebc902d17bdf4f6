"""`runward monitor`: each news of this project's runs that no answer has told, so that a client wakes its model.

It prints a line for each. Or it tells one conversation by a command, until no run of that lives.
"""

import argparse
import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio

from mcp_server.runs.wait.wakes import Positions, find_news, tell_news
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import ToldNews, name_session
from mcp_server.system.captured_run import run_captured
from mcp_server.system.lock_files import release_lock, take_lock
from mcp_server.threads import run_in_thread

_COMMAND_LIMIT_S, _MOST_BYTES = 30.0, 1 << 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _MOST_FAILURES = 1.0, 120.0, 20  # of a command: about half an hour in all
_MOST_LINES = 3  # of one message: 120 tokens


def run(arguments: argparse.Namespace) -> int:
    """Tell news until the reader goes, a signal ends the process, or nothing of the conversation is left to tell."""
    home = StateHome.of(os.environ)
    store = RunStore(home)
    if arguments.conversation is None:
        told = ToldNews(home, Path.cwd(), name_session(os.environ))
        printer = _Printer(told)
        threading.Thread(target=_end_with_reader, daemon=True).start()
        anyio.run(tell_news, store, told, printer.tell)
        return 0
    told = ToldNews(home, arguments.conversation)
    teller = _Messenger(told, arguments.words)
    # A server starts a monitor where it sees no lock: what it noted before is told by this one.
    while any(find_news(store, told)) and (lock := take_lock(told.monitor_lock)) is not None:
        anyio.run(tell_news, store, told, teller.tell, True)
        release_lock(lock)
    return 0


def _end_with_reader() -> None:
    """End the process once nobody reads its output: a client that was killed sends no signal."""
    poll = select.poll()
    poll.register(1, 0)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)


class _Printer:
    """Prints, and notes what was printed before a signal ends the process: the next monitor would print it again."""

    def __init__(self, told: ToldNews) -> None:
        self._told = told
        self._is_telling = self._is_called_off = False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._end)

    async def tell(self, lines: Sequence[str], positions: Positions) -> None:
        """Pass the news on, and note them."""
        self._is_telling = True
        more = [f"runward: {len(lines) - _MOST_LINES} more. Call list_runs."] if lines[_MOST_LINES:] else []
        if await self._pass_on("\n".join([*lines[:_MOST_LINES], *more])):
            await run_in_thread(self._told.note, positions)
        self._is_telling = False
        if self._is_called_off:
            os._exit(0)

    async def _pass_on(self, message: str) -> bool:
        print(message, flush=True)
        return True

    def _end(self, *_: object) -> None:
        if not self._is_telling:
            os._exit(0)
        self._is_called_off = True


class _Messenger(_Printer):
    """Runs a command with the news as its last word. Exit status 0: the conversation has them."""

    def __init__(self, told: ToldNews, command: Sequence[str]) -> None:
        super().__init__(told)
        self._command, self._failures, self._pause_s = command, 0, _FIRST_PAUSE_S

    async def _pass_on(self, message: str) -> bool:
        if await run_in_thread(self._send, message):
            self._failures, self._pause_s = 0, _FIRST_PAUSE_S
            return True
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            os._exit(1)  # the next call of the conversation starts another monitor
        self._is_telling = False
        await anyio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return False

    def _send(self, message: str) -> bool:
        try:
            words = [*self._command, message]
            return run_captured(words, os.environ, most_bytes=_MOST_BYTES, limit_s=_COMMAND_LIMIT_S).code == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
