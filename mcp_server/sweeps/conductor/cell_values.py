"""The values of the cells of a sweep under way, noted once their runs have ended."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.events import EventLog
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import CellState, Sweep
from mcp_server.results.figures import Figure, measure
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conductor.trial_watch import TrialWatch
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.text.near_names import find_near_names
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
