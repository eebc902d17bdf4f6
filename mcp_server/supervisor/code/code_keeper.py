"""Keeps what an attempt runs: a process beside the command that copies configuration, commit, changes and versions.

The command starts first and does not wait for it. The process never touches the run: it has no file of the supervisor
open, changes nothing outside the attempt's directory, and is killed after 60 s, or 3 s after the command's end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from mcp_server.system import processes
from mcp_server.system.time_bounds import within

_LIMIT_S, _AFTER_THE_END_S = 60.0, 3.0
_NICE = 10
_PR_SET_PDEATHSIG = 1


class CodeKeeper:
    """The process that keeps what an attempt runs. Without a pid there is none.

    ``done_fd`` becomes readable once all is kept that a reader waits for.
    """

    def __init__(self, pid: int | None = None, done_fd: int | None = None) -> None:
        self._process: processes.Process | None = None
        with contextlib.suppress(OSError):  # without a descriptor to look with, it ends as a leftover of the command
            self._process = processes.find_process(pid) if pid is not None else None
        self._done_fd = done_fd
        self._due_s: float | None = None

    @property
    def pid(self) -> int | None:
        """Its pid, perhaps after its end. Any thread may ask."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def living_pid(self) -> int | None:
        """Its pid while it lives."""
        if self._process is not None and processes.find_process(self._process.pid) != self._process:
            self._process = None
        return self.pid

    def end(self, now_s: float) -> bool:
        """Return whether it has ended, after the command has: then it has 3 s (from the first call on) to be done."""
        if self.living_pid is None:
            return True
        if self._due_s is None:
            self._due_s = now_s + _AFTER_THE_END_S
        if now_s < self._due_s and self._done_fd is not None and not select.select([self._done_fd], [], [], 0)[0]:
            return False
        self.kill()
        return self.living_pid is None

    def kill(self) -> None:
        """Kill it and what it started, and close its pipe."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # it ends by itself after a minute
                for process in [self._process, *processes.descendants_of_threads(self._process.pid)]:
                    processes.send_signal(process, signal.SIGKILL)
        if self._done_fd is not None:
            os.close(self._done_fd)
            self._done_fd = None


def start_code_keeper(keep: Callable[[Callable[[], None]], None]) -> CodeKeeper:
    """Call ``keep`` in a process of its own, with a function to call once all is kept that a reader waits for."""
    done_fd, done_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # too many processes: the run matters more
        os.close(done_fd)
        os.close(done_end)
        return CodeKeeper()
    if pid == 0:
        _run(keep, done_end)
    os.close(done_end)
    return CodeKeeper(pid, done_fd)


def _run(keep: Callable[[Callable[[], None]], None], done_end: int) -> NoReturn:
    """Call ``keep`` apart from everything that the supervisor has, and exit."""
    try:
        processes.leave_parent([done_end], is_orphan=False)
        os.nice(_NICE)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        within(_LIMIT_S, lambda: keep(lambda: os.close(done_end)))
    finally:
        os._exit(0)
