"""The values of the cells of a sweep under way: at their ends, and at the rungs of a successive halving."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyio.abc import TaskGroup

from mcp_server.errors import RunwardError
from mcp_server.record.events import EventLog
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import name_setting
from mcp_server.record.sweeps.sweep_state import CellState, Sweep
from mcp_server.results.figures import Figure, measure, read_points
from mcp_server.runs.stop.stop_run import stop_run
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conductor.trial_watch import TrialWatch
from mcp_server.sweeps.plan.halving import Reached, Stop, find_reached, find_stops, parse_halving
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.text.near_names import find_near_names
from mcp_server.threads import run_in_thread
from mcp_server.views.log_excerpt import read_tail

_MOST_TAGS, _LINE_BYTES = 8, 160


@dataclass
class CellValues:
    """``read``: returns the sweep as its directory proves it now. ``due``: runs that ended, and are not measured."""

    store: RunStore
    scalars: Scalars
    events: EventLog
    read: Callable[[], Sweep]
    trials: TrialWatch | None = None
    due: list[tuple[CellState, Run]] = field(default_factory=list)

    def measure_live(self, run: Run) -> Figure:
        """Return the value of a live run so far."""
        spec = self.read().spec
        return measure(run, self.store, self.scalars, spec.metric, spec.goal, spec.ranking)

    def measure_next(self, sweep: Sweep) -> bool:
        """Note the value of the run that ended first. Return False where none is left, or trials are measured."""
        if not self.due or self.trials is not None:
            return False
        self._measure(sweep, *self.due.pop(0))
        return True

    def measure_all(self, sweep: Sweep) -> None:
        """Note the values of all runs that have ended; those that cannot be read now stay due."""
        self.due = [each for each in self.due if not self._measure(sweep, *each)]

    def _measure(self, sweep: Sweep, cell: CellState, run: Run) -> bool:
        """Note the value of a run that has ended. Return False where that could not be read now."""
        spec, name = sweep.spec, cell.cell.name
        with contextlib.suppress(RunwardError, OSError):
            more: dict[str, Any] = {}
            if self.trials is not None:
                figure, more = self.trials.measure(sweep, cell, run)
            else:
                figure = measure(run, self.store, self.scalars, spec.metric, spec.goal, spec.ranking)
            text = f"{name}: no value."
            if figure.value is not None:
                text = f"{name}: {spec.ranked_by} {figure.value:g}"
            elif figure.bad_end:
                text = f"{name}: {spec.metric} ended as {figure.bad_end}."
            self.events.append(
                "cell_measured",
                text,
                cell=name,
                run_id=run.run_id,
                value=figure.value,
                value_step=figure.step,
                figures=dict(figure.figures) or None,
                bad_end=figure.bad_end,
                curves=figure.curves,
                **more,
            )
            if self.trials is not None:
                self.trials.drop(OpenPlan.of(spec), name, run)
            else:
                self._note_missing_metric(sweep, cell, run, figure)
            return True
        return False

    def _quote_end(self, run: Run) -> str:
        """Return the last line of a run without a metric: its figures may stand there in words."""
        last = "".join(read_tail(self.store, run, 1, _LINE_BYTES)[-1:])
        if not last:
            return "It has no metrics."
        return f"It has no metric that is known by itself. Its output ends: {last!r}; a name beside its number is read."

    def _note_missing_metric(self, sweep: Sweep, cell: CellState, run: Run, figure: Figure) -> None:
        metric, now_known = sweep.spec.metric, self.read()
        if metric is None or figure.value is not None or figure.bad_end or run.state != "finished":
            return
        is_told = any(event["kind"] == "metric_missing" for event in now_known.events)
        if is_told or any(each.value is not None or each.bad_end for each in now_known.cells):
            return
        near, tags = ", ".join(find_near_names(metric, figure.tags)), ", ".join(figure.tags[:_MOST_TAGS])
        known = f"Near: {near}." if near else f"It has {tags}." if tags else self._quote_end(run)
        text = f"{cell.cell.name} has ended without {metric!r}. {known} {figure.left_out}".rstrip()
        if sweep.spec.depends_on_metric:
            text += " Nothing is searched, halved or promoted: kill_run it, and start it with the right metric."
        self.events.append("metric_missing", text, cell=cell.cell.name, run_id=run.run_id)


_EVERY_S = 5.0


@dataclass
class HalvingWatch:
    """Reads what the cells report every few seconds; an ended cell is read once more. What it noted decides."""

    facts: Mapping[str, Any]
    store: RunStore
    file_watch: FileWatch
    scalars: Scalars
    events: EventLog
    read: Callable[[], Sweep]
    _ended: set[str] = field(default_factory=set)  # runs that will not report any more
    _stopping: set[str] = field(default_factory=set)  # runs
    _read_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._halving = parse_halving(self.facts)

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
            await stop_run(run, self.store, self.file_watch, by="its sweep", reason=stop.text, stopped_by="sweep")
        self._stopping.discard(run.run_id)

    def _find_stops(self, live: Mapping[str, Run]) -> list[Stop]:
        sweep = self.read()
        found = [each for cell in sweep.cells for each in self._find_rungs(cell, live, sweep.spec.metric)]
        for step, cell, run_id, value in sorted(found, key=lambda each: each[0]):  # lower ones first: by the order
            shown = "no number" if value is None else f"{value:g}"
            late = "" if cell in live and not live[cell].ended else " It had ended before it was compared."
            text = f"{cell} has {shown} at step {step:,}.{late}"
            self.events.append("rung_reached", text, cell=cell, run_id=run_id, rung=step, value=value)
        if found:
            sweep = self.read()
        lost = ("failed", "lost")
        reached = {
            cell.cell.name: Reached(name_setting(cell), cell.rungs, cell.rung_order)
            for cell in sweep.cells
            if cell.runs and cell.state not in lost
        }
        more = any(not cell.done and cell.cell.name not in live for cell in sweep.cells)
        return find_stops(reached, self._halving, sweep.spec.goal, live.keys(), more=more)

    def _find_rungs(
        self, cell: CellState, live: Mapping[str, Run], metric: str | None
    ) -> list[tuple[int, str, str, float | None]]:
        """Return the rungs that a cell has reached, and no event says so: step, cell, run and value."""
        run_id, name = cell.run_id, cell.cell.name
        steps = [step for step in self._halving.steps if step not in cell.rungs]
        if run_id is None or metric is None or run_id in self._ended or not steps:
            return []
        try:
            run = live[name] if name in live else self.store.observe(run_id)
            points = read_points(run, self.store, self.scalars, metric)
        except (RunwardError, OSError):
            return []
        if run.ended:
            self._ended.add(run_id)
        found = find_reached([(step, value) for step, value in points if step is not None], steps)
        return [(step, name, run_id, value) for step, value in found.items()]
