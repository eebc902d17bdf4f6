"""Removes directories of aborted launches and closes screens of long-ended runs."""

from __future__ import annotations

import contextlib
import shutil
import time

from mcp_server.backends.base import backend_of
from mcp_server.record.spec import RunSpec
from mcp_server.store.run_store import RunStore
from mcp_server.threads import run_in_thread

_ABORTED_AFTER_S = 3600.0


async def clean_up(store: RunStore, spec: RunSpec) -> None:
    """Remove what servers left that were killed during a launch, and close the oldest screens of the kind of ``spec``.

    Raises:
        ScreenNotAnswering: the screens do not answer.
    """

    def ended() -> list[RunSpec]:
        return [run.spec for run in store.list_runs() if run.ended and run.state != "lost"]

    await run_in_thread(_remove_aborted_launches, store)
    await backend_of(spec).close_old_screens(spec, store.home.read_config().keep_sessions, ended)


def _remove_aborted_launches(store: RunStore) -> None:
    for directory in store.home.runs.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - directory.stat().st_mtime > _ABORTED_AFTER_S:
                shutil.rmtree(directory, ignore_errors=True)
