"""Keeps the leases of a run whose processes outlive it: one that waits for a disk cannot be killed, and still computes.

A process of its own holds the locks until the last of them has ended. A reboot releases them with the processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from mcp_server.gpus.leases import HeldLeases
from mcp_server.system import lock_files, processes
from mcp_server.system.process_title import lease_keeper_title, set_title

_CHECK_S = 1.0


def keep_leases(leases: HeldLeases, survivors: Sequence[processes.Process], run_id: str) -> None:
    """Hand ``leases`` over to a process that holds them until all ``survivors`` have ended.

    Raises:
        OSError: there are too many processes; ``leases`` is unchanged.
    """
    child = os.fork()
    if child == 0:
        _detach(leases.fds, survivors, run_id)
    os.waitpid(child, 0)
    leases.hand_over()


def wait_for_ends(survivors: Sequence[processes.Process], sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once all of these processes have ended. Another one with the number of one of them does not count."""
    while any(processes.find_process(process.pid) == process for process in survivors):
        sleep(_CHECK_S)


def _detach(fds: Sequence[int], survivors: Sequence[processes.Process], run_id: str) -> NoReturn:
    """Become a process of its own that has nothing of the supervisor but the leases."""
    try:
        processes.leave_parent(fds, ignored=[signal.SIGHUP])
        os.chdir("/")
        set_title(lease_keeper_title(run_id))
        wait_for_ends(survivors)
        for fd in fds:
            lock_files.write_text(fd, "")
    finally:
        os._exit(0)
