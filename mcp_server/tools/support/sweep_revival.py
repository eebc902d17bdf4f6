"""Starts the conductors of sweeps that have none: a sweep continues whatever became of its machine's processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

import anyio

from mcp_server.errors import RunwardError
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import ServerContext

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0  # between two conductors of one sweep, when they die at once
_CALM_S = 60.0  # one that lived so long is replaced at once
_LONGEST_WAIT_S = 1.0  # of a call, for the end of a pause


@dataclass
class _Pause:
    """Until when no further conductor of a sweep is started, and the pause after the next one."""

    until_s: float
    next_s: float


_pauses: dict[str, _Pause] = {}


async def revive(server: ServerContext, runs: Iterable[Watched]) -> None:
    """Start a conductor for each of ``runs`` that is a sweep and has none. Its state shows an obstacle."""
    for run in runs:
        if not isinstance(run, Sweep) or run.ended or run.conducted:
            continue
        pause = _pauses.get(run.run_id)
        if pause is None or time.monotonic() > pause.until_s + _CALM_S:
            pause = _Pause(0.0, _FIRST_PAUSE_S)
        left_s = pause.until_s - time.monotonic()
        if left_s > _LONGEST_WAIT_S:
            continue
        _pauses[run.run_id] = _Pause(time.monotonic() + pause.next_s, min(_LONGEST_PAUSE_S, 2 * pause.next_s))
        await anyio.sleep(max(0.0, left_s))
        from mcp_server.sweeps.conducting import ensure_conductor  # noqa: PLC0415 - few servers meet a dead one

        with contextlib.suppress(RunwardError, OSError):
            await ensure_conductor(run, server.store, server.file_watch, server.environ)


async def revive_all(server: ServerContext) -> None:
    """Start a conductor for each unfinished sweep of this home that has none."""

    def find() -> list[Sweep]:
        if not server.home.sweeps.is_dir():
            return []
        return [sweep for sweep in server.store.sweeps.list_sweeps() if not sweep.ended]

    with contextlib.suppress(RunwardError, OSError):
        await revive(server, await run_in_thread(find))
