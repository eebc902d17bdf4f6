"""Starts the conductors of sweeps that have none: a sweep continues whatever became of its machine's processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from mcp_server.errors import RunwardError
from mcp_server.record.state import Run
from mcp_server.store.sweep_store import SweepRun
from mcp_server.threads import run_in_thread
from mcp_server.tools.context import ServerContext

_AGAIN_S = 5.0
_tried_s: dict[str, float] = {}


async def revive(server: ServerContext, runs: Iterable[Run]) -> None:
    """Start a conductor for each of ``runs`` that is a sweep and has none. What prevents it is seen in its state."""
    for run in runs:
        if not isinstance(run, SweepRun) or run.sweep.ended or run.sweep.conducted:
            continue
        if time.monotonic() - _tried_s.get(run.run_id, -_AGAIN_S) < _AGAIN_S:
            continue
        _tried_s[run.run_id] = time.monotonic()
        from mcp_server.sweeps.conducting import ensure_conductor  # noqa: PLC0415 - few servers meet a dead one

        with contextlib.suppress(RunwardError, OSError):
            await ensure_conductor(run.sweep, server.store, server.file_watch, server.environ)


async def revive_all(server: ServerContext) -> None:
    """Start a conductor for each unfinished sweep of this home that has none."""

    def find() -> list[Run]:
        if not server.home.sweeps.is_dir():
            return []
        return [SweepRun.of(sweep) for sweep in server.store.sweeps.list_sweeps() if not sweep.ended]

    with contextlib.suppress(RunwardError, OSError):
        await revive(server, await run_in_thread(find))
