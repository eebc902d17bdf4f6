"""Successive halving of a sweep under way: reads the metric of its cells, and stops those that others leave behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.state import Run
from mcp_server.record.sweep_state import Sweep
from mcp_server.runs.stop import stop_run
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.figures import read_points
from mcp_server.sweeps.halving import find_stops, parse_halving
from mcp_server.threads import run_in_thread

_EVERY_S = 5.0


class HalvingWatch:
    """Reads what the cells report every few seconds. An ended cell is read once more, and then remembered."""

    def __init__(self, facts: Mapping[str, Any], store: RunStore, file_watch: FileWatch, scalars: Scalars) -> None:
        self._halving = parse_halving(facts)
        self._store, self._file_watch, self._scalars = store, file_watch, scalars
        self._ended: dict[str, list[tuple[int, float]]] = {}  # by run
        self._read_at_s = 0.0

    async def stop_worse(self, sweep: Sweep, live: Mapping[str, Run]) -> None:
        """Stop the live cells that are worse than others were at the same step."""
        if time.monotonic() < self._read_at_s + _EVERY_S:
            return
        reports = await run_in_thread(self._read_reports, sweep, live)
        self._read_at_s = time.monotonic()
        for stop in find_stops(reports, self._halving, sweep.spec.goal, live.keys()):
            with contextlib.suppress(RunwardError):
                await stop_run(
                    live[stop.cell],
                    self._store,
                    self._file_watch,
                    by="its sweep",
                    reason=stop.text,
                    stopped_by="sweep",
                )

    def _read_reports(self, sweep: Sweep, live: Mapping[str, Run]) -> dict[str, list[tuple[int, float]]]:
        reports = {}
        for cell in sweep.cells:
            name, run_id = cell.cell.name, cell.run_id
            if run_id is None or sweep.spec.metric is None:
                continue
            with contextlib.suppress(RunwardError, OSError):
                if name in live:
                    reports[name] = read_points(live[name], self._store, self._scalars, sweep.spec.metric)
                else:
                    if run_id not in self._ended:
                        run = self._store.observe(run_id)
                        self._ended[run_id] = read_points(run, self._store, self._scalars, sweep.spec.metric)
                    reports[name] = self._ended[run_id]
        return reports
