"""The progress of live runs at this moment: a supervisor writes it every few seconds, and at once when it is asked."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.record.events import read_record
from mcp_server.record.run_directory import boot_id
from mcp_server.record.run_processes import supervisor_of
from mcp_server.record.state import Run, posix
from mcp_server.store.run_store import RunStore

# A window that changes its size is news that every supervisor expects, and that does nothing to a process that is none.
LOOK_NOW = signal.SIGWINCH
_WITHIN_S, _LOOK_S = 0.25, 0.005
_NEWER_S = -0.01  # of output against the progress, whose time is one of milliseconds


def refresh(store: RunStore, runs: Sequence[Run]) -> list[Run]:
    """Return ``runs`` with the progress of this moment, so that all figures of a row, and of all rows, are of it.

    Supervisors on this host whose runs have printed since are asked to look; one that does not answer within a quarter
    of a second, or is another user's, leaves its run as it was. Blocks.
    """
    asked: dict[int, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        if _is_behind(store, run) and _ask(store, run):
            asked[index] = _read(store, run)
    fresh = list(runs)
    until_s = time.monotonic() + _WITHIN_S
    waiting = set(asked)
    while waiting:
        is_last = time.monotonic() >= until_s
        for index in list(waiting):
            progress = _read(store, runs[index])
            if progress != asked[index] or is_last:
                fresh[index] = replace(runs[index], progress=progress)
                waiting.discard(index)
        if waiting:
            time.sleep(_LOOK_S)
    return fresh


def _is_behind(store: RunStore, run: Run) -> bool:
    if run.ended or not run.attempt or run.spec.mirror or run.at_start.get("boot_id") != boot_id():
        return False
    at_s = run.progress.get("at")  # of a run that has printed nothing there is no progress to wait for
    followed = str(run.progress.get("read_from") or "").partition("output; ")[0]
    noted_s = posix(at_s) + _NEWER_S if isinstance(at_s, str) else 0.0
    for path in (store.record_of(run).log(run.attempt), Path(run.spec.cwd or "/") / followed if followed else None):
        with contextlib.suppress(OSError):
            status = path.stat() if path else None
            if status and status.st_size > 0 and status.st_mtime > noted_s:
                return True
    return False


def _ask(store: RunStore, run: Run) -> bool:
    supervisor = supervisor_of(store.record_of(run).path, run)
    with contextlib.suppress(OSError):
        if supervisor is not None:
            os.kill(supervisor.pid, LOOK_NOW)
            return True
    return False


def _read(store: RunStore, run: Run) -> dict[str, Any]:
    try:
        return read_record(store.record_of(run).progress(run.attempt)) or run.progress
    except OSError:
        return run.progress
