"""Stopping a sweep: no further cell starts, then its live runs are stopped side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio

from mcp_server.errors import RunwardError
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import Run
from mcp_server.record.sweep_state import LIVE, Sweep
from mcp_server.runs.stop import StopResult, stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conducting import ensure_conductor, resume_conductor
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread

_ANSWER_WITHIN_S = 15.0  # a conductor may be in the middle of a launch
_AT_ONCE = 8


@dataclass
class SweepStop:
    """The outcome of a sweep's stop: results by run, and why others could not be stopped."""

    sweep: Sweep
    results: dict[str, StopResult] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


async def stop_sweep(
    sweep: Sweep,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    *,
    by: str,
    reason: str,
    stopped_by: str,
) -> SweepStop:
    """Stop a sweep and its live runs, and verify. Call this only after confirmation.

    Raises:
        OSError: the request could not be written; nothing was stopped.
    """
    directory = store.sweeps.files_of(sweep)
    reason = mask_secrets(reason)  # it is kept in files
    request = {"by": by, "reason": reason, "stopped_by": stopped_by, "at": now()}
    stop = SweepStop(sweep)
    with file_watch.subscribe([directory.path]) as changes:
        await run_in_thread(write_json, directory.stop, request)

        async def observe() -> Sweep:
            return await run_in_thread(store.sweeps.observe, sweep.sweep_id)

        async def wait_until(is_done: Callable[[Sweep], bool]) -> None:
            with anyio.move_on_after(_ANSWER_WITHIN_S):
                while not is_done(await observe()):
                    await changes.next_change()

        try:
            await run_in_thread(resume_conductor, sweep)
            await ensure_conductor(await observe(), store, file_watch, environ)
            await wait_until(_is_stopping)  # from then on nothing is launched
        except RunwardError as error:
            stop.problems[sweep.sweep_id] = str(error)
        live = [cell.run_id for cell in (await observe()).cells if cell.state == LIVE and cell.run_id is not None]
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def stop_one(run_id: str) -> None:
            async with limiter:
                try:
                    run: Run = await run_in_thread(store.observe, run_id)
                    if not run.ended or run.abandoned:
                        stop.results[run_id] = await stop_run(
                            run, store, file_watch, by=by, reason=reason, stopped_by=stopped_by
                        )
                except RunwardError as error:
                    stop.problems[run_id] = str(error)

        async with anyio.create_task_group() as group:
            for run_id in live:
                group.start_soon(stop_one, run_id)
        await wait_until(lambda sweep: sweep.ended)
        stop.sweep = await observe()
    return stop


def _is_stopping(sweep: Sweep) -> bool:
    began = max((e["seq"] for e in sweep.events if e["kind"] == "conducting"), default=0)
    return sweep.ended or any(e["kind"] == "stopping" and e["seq"] > began for e in sweep.events)
