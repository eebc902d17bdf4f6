"""Stopping a sweep: no further cell starts, then its live runs are stopped side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from mcp_server.errors import RunwardError
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import LIVE, Sweep
from mcp_server.runs.stop.stop_run import Stops, stop_runs
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conducting import ensure_conductor, resume_conductor
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread

_ANSWER_WITHIN_S = 15.0  # a conductor may be in the middle of a launch


@dataclass
class SweepStop:
    """The outcome of a sweep's stop: the sweep afterwards, and the stops of its runs."""

    sweep: Sweep
    runs: Stops = field(default_factory=Stops)
    problem: RunwardError | None = None  # its conductor does not answer

    @property
    def problems(self) -> dict[str, str]:
        """Why the sweep or its runs could not be stopped, by id."""
        own = {self.sweep.sweep_id: self.problem} if self.problem is not None else {}
        return {name: str(error) for name, error in (own | self.runs.problems).items()}

    @property
    def is_complete(self) -> bool:
        """Whether the sweep has ended, and nothing of it is known to live."""
        return self.sweep.ended and not self.runs.survivors and not self.problems


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
            stop.problem = error
        live = [cell.run_id for cell in (await observe()).cells if cell.state == LIVE and cell.run_id is not None]
        runs, unreadable = await run_in_thread(_observe, live, store)
        stop.runs = await stop_runs(runs, store, file_watch, by=by, reason=reason, stopped_by=stopped_by)
        stop.runs.problems |= unreadable
        await wait_until(lambda sweep: sweep.ended)
        stop.sweep = await observe()
    return stop


def _observe(run_ids: Sequence[str], store: RunStore) -> tuple[list[Run], dict[str, RunwardError]]:
    """Return those runs that have not ended, and why others cannot be read."""
    runs, problems = [], dict[str, RunwardError]()
    for run_id in run_ids:
        try:
            run = store.observe(run_id)
        except RunwardError as error:
            problems[run_id] = error
        else:
            runs += [run] if not run.ended or run.abandoned else []
    return runs, problems


def _is_stopping(sweep: Sweep) -> bool:
    began = max((e["seq"] for e in sweep.events if e["kind"] == "conducting"), default=0)
    return sweep.ended or any(e["kind"] == "stopping" and e["seq"] > began for e in sweep.events)
