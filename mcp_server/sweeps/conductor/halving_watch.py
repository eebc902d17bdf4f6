"""Successive halving of a sweep under way: notes which rungs cells reach, and stops those that others leave behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from anyio.abc import TaskGroup

from mcp_server.errors import RunwardError
from mcp_server.record.events import EventLog
from mcp_server.record.state import Run
from mcp_server.record.sweep_state import CellState, Sweep
from mcp_server.runs.stop import stop_run
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.figures import read_points
from mcp_server.sweeps.halving import Stop, find_reached, find_stops, parse_halving
from mcp_server.threads import run_in_thread

_EVERY_S = 5.0


class HalvingWatch:
    """Reads what the cells report every few seconds; an ended cell is read once more. What it noted decides."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        store: RunStore,
        file_watch: FileWatch,
        scalars: Scalars,
        events: EventLog,
        read: Callable[[], Sweep],
    ) -> None:
        self._halving = parse_halving(facts)
        self._store, self._file_watch, self._scalars = store, file_watch, scalars
        self._events, self._read = events, read
        self._ended: set[str] = set()  # runs that will not report any more
        self._stopping: set[str] = set()  # runs
        self._read_at_s = 0.0

    async def stop_worse(self, live: Mapping[str, Run], group: TaskGroup) -> None:
        """Stop the live cells that are worse than others were at the same step, in tasks of ``group``."""
        if time.monotonic() < self._read_at_s + _EVERY_S:
            return
        stops = await run_in_thread(self._find_stops, live)
        self._read_at_s = time.monotonic()
        for stop in stops:
            if (run := live[stop.cell]).run_id not in self._stopping:
                self._stopping.add(run.run_id)
                group.start_soon(self._stop, run, stop)

    async def _stop(self, run: Run, stop: Stop) -> None:
        with contextlib.suppress(RunwardError, OSError):
            await stop_run(run, self._store, self._file_watch, by="its sweep", reason=stop.text, stopped_by="sweep")
        self._stopping.discard(run.run_id)

    def _find_stops(self, live: Mapping[str, Run]) -> list[Stop]:
        """Note the rungs that cells have reached since the last look, and return whom Optuna stops now."""
        sweep = self._read()
        if sum([self._note_rungs(cell, live, sweep.spec.metric) for cell in sweep.cells]):
            sweep = self._read()
        reached = {cell.cell.name: cell.rungs for cell in sweep.cells}
        return find_stops(reached, self._halving, sweep.spec.goal, live.keys())

    def _note_rungs(self, cell: CellState, live: Mapping[str, Run], metric: str | None) -> int:
        """Note the rungs that a cell has reached, and no event says so; return how many they are."""
        run_id, name = cell.run_id, cell.cell.name
        steps = [step for step in self._halving.steps if step not in cell.rungs]
        if run_id is None or metric is None or run_id in self._ended or not steps:
            return 0
        try:
            run = live[name] if name in live else self._store.observe(run_id)
            found = find_reached(read_points(run, self._store, self._scalars, metric), steps)
        except (RunwardError, OSError):
            return 0
        if run.ended:
            self._ended.add(run_id)
        for step, value in found.items():
            shown = "no number" if value is None else f"{value:g}"
            text = f"{name} has {shown} at step {step:,}."
            self._events.append("rung_reached", text, cell=name, run_id=run_id, rung=step, value=value)
        return len(found)
