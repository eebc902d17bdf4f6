"""The value of a sweep's metric that a run has reached."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_server.record.state import Run
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_server.results.metrics import Metric


@dataclass(frozen=True)
class Figure:
    """The best value and the step at which it was reached, None where unknown. ``curves``: the files of its scalars."""

    value: float | None = None
    step: int | None = None
    curves: str | None = None


def measure(run: Run, store: RunStore, scalars: Scalars, metric: str | None, goal: str) -> Figure:
    """Return the best value of ``metric`` (a tag, a glob, or its last part) that a run has reached.

    Reads files: call it in a thread. An evaluation in a result file counts where no scalar has the name.
    """
    from mcp_server.results.metrics import PRINTED, read_metrics  # noqa: PLC0415 - numpy starts slowly

    metrics = read_metrics(run, scalars, [metric] if metric else ["*"], store.run_directory(run.run_id))
    curves = metrics.source if metrics.source not in ("", PRINTED) else None
    if metric is None:
        return Figure(curves=curves)
    value, step = _best_of(metrics.metrics, goal) or _best_evaluation(run, store, scalars, metric, goal) or (None, None)
    return Figure(value, step, curves)


def read_points(run: Run, store: RunStore, scalars: Scalars, metric: str) -> list[tuple[int, float]]:
    """Return the steps and values of ``metric`` that a run has written so far, or empty where it has none.

    Reads files: call it in a thread.
    """
    from mcp_server.scalars.condition import match_tags  # noqa: PLC0415 - with the readers of scalars, 20 ms
    from mcp_server.scalars.from_log import read_log_metrics  # noqa: PLC0415 - as above
    from mcp_server.scalars.run_scalars import NoScalars  # noqa: PLC0415 - as above

    locations = scalars.locate(run).locations
    with contextlib.suppress(NoScalars):
        series = scalars.read(locations, run.run_id).series if locations else {}
        for tag in match_tags(metric, series):
            return [(int(s), float(v)) for s, v in zip(series[tag].steps, series[tag].values, strict=True)]
    printed = read_log_metrics(store.run_directory(run.run_id), run.attempt, run.spec.first_step_pattern).points
    for name in match_tags(metric, printed):
        return [(step, value) for step, value in printed[name] if step is not None]
    return []


def _best_of(metrics: Sequence[Metric], goal: str) -> tuple[float, int | None] | None:
    for one in metrics:
        value = one.high if goal == "max" else one.low
        if value is None and isinstance(one.last, int | float):
            value = float(one.last)
        if value is not None and math.isfinite(value):
            step = one.best_step if value == one.best else one.last_step if value == one.last else None
            return float(value), step
    return None


def _best_evaluation(
    run: Run, store: RunStore, scalars: Scalars, metric: str, goal: str
) -> tuple[float, int | None] | None:
    from mcp_server.results import evaluations  # noqa: PLC0415 - only where no scalar has the metric
    from mcp_server.results.evaluation_series import build_series  # noqa: PLC0415 - as above
    from mcp_server.results.printed_evaluations import read_printed_evaluations  # noqa: PLC0415 - as above
    from mcp_server.scalars.condition import match_tags  # noqa: PLC0415 - as above

    own = scalars.attribution.of(run)
    files = evaluations.find_run_evaluations(run, own)
    printed = read_printed_evaluations(run, store.run_directory(run.run_id))
    series = {one.name: one for one in build_series([*printed, *files])}
    for name in match_tags(metric, series):
        points = [point for point in series[name].points if math.isfinite(point.value)]
        if points:
            best = (max if goal == "max" else min)(points, key=lambda point: point.value)
            return float(best.value), best.step
    return None
