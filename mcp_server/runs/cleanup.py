"""Clearing away what is no run any more, and nothing else."""

from __future__ import annotations

import contextlib
import shutil
import time

from mcp_server.backends import tmux_client
from mcp_server.store.run_store import RunStore

_CUT_OFF_S = 3600.0


def tidy(store: RunStore, socket: str) -> None:
    """Close the oldest sessions that only show an ended run: each holds some megabytes of tmux's memory.

    Also removes what servers that were killed in the middle of a launch have left.
    """
    for cut_off in store.home.runs.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - cut_off.stat().st_mtime > _CUT_OFF_S:
                shutil.rmtree(cut_off, ignore_errors=True)
    keep = store.home.config().keep_sessions
    open_ones = set(tmux_client.sessions(socket))
    if len(open_ones) <= keep:
        return
    shown = [run for run in store.runs() if run.ended and run.state != "lost" and run.spec.session in open_ones]
    for run in shown[keep:]:
        tmux_client.close(run.spec.session, socket=socket)
