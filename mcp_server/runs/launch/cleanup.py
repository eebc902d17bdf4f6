"""Removes directories of aborted launches and unused programs, and closes screens of long-ended runs."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from mcp_server.backends.base import backend_of
from mcp_server.backends.supervisor_copy import remove_unused_copies
from mcp_server.errors import RunwardError
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system.lock_files import take_lock
from mcp_server.threads import run_in_thread

_ABORTED_AFTER_S, _EVERY_S = 3600.0, 600.0
_SCREENS_EVERY_S = 2.0  # for the cells of a sweep: to list all screens for each of many short ones costs as much again
_cleaned_s: WeakKeyDictionary[RunStore, float] = WeakKeyDictionary()
_closed_s: WeakKeyDictionary[RunStore, float] = WeakKeyDictionary()


async def clean_up(store: RunStore, spec: RunSpec) -> None:
    """Remove what servers left that were killed during a launch, and close the oldest screens of the kind of ``spec``.

    Raises:
        ScreenNotAnswering: the screens do not answer.
    """

    def ended(sessions: Sequence[str]) -> list[RunSpec]:
        query = RunQuery("ended", sessions=sessions)
        return [run.spec for run in store.list_runs(query) if run.state != "lost"]

    if time.monotonic() - _cleaned_s.get(store, -math.inf) > _EVERY_S:
        _cleaned_s[store] = time.monotonic()
        await run_in_thread(_remove_remains, store)
    if spec.sweep and time.monotonic() - _closed_s.get(store, -math.inf) < _SCREENS_EVERY_S:
        return
    _closed_s[store] = time.monotonic()
    keep = (await run_in_thread(store.home.read_config)).keep_sessions
    await backend_of(spec).close_old_screens(spec, keep, ended)


def _remove_remains(store: RunStore) -> None:
    for directory in store.home.runs.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - directory.stat().st_mtime > _ABORTED_AFTER_S:
                shutil.rmtree(directory, ignore_errors=True)
    for run_id in store.list_ids(RunQuery(mirror="", cut_off=True)):
        with contextlib.suppress(OSError, RunwardError):
            _remove_cut_off_launch(store, store.observe(run_id))

    def runs_live() -> bool:
        return bool(store.list_ids(RunQuery("live"), 1) or store.unreadable)

    remove_unused_copies(store.home.path, runs_live)


def _remove_cut_off_launch(store: RunStore, run: Run) -> None:
    """Remove what a launch left that began over an hour ago, if no supervisor ever came."""
    directory = store.run_directory(run.run_id)
    if not store.is_cut_off_launch(run) or time.time() - directory.handover.stat().st_mtime < _ABORTED_AFTER_S:
        return
    lock = take_lock(directory.lock)  # a supervisor that comes now does not get it, and goes
    if lock is None:
        return
    try:
        if directory.handover.is_fifo() and not directory.events.exists():
            removed = directory.path.with_name(f".new-{run.run_id}")
            directory.path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
    finally:
        os.close(lock)
