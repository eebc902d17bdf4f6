"""A run as it was when a condition on it was met: its step, its metrics and the value that met it are of one moment.

The value comes from the run's files or log, which are newer than its supervisor's last note of progress. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp_server.record.state import Run
from mcp_server.scalars.from_log import LogMetrics, count_alike


@dataclass(frozen=True)
class MetPoint:
    """The point of a curve that met a condition."""

    run_id: str
    tag: str
    value: float
    step: int


def show_moment(run: Run, met: MetPoint, log: LogMetrics) -> Run:
    """Return a live ``run`` as its ``log`` has it now, and at the step of ``met`` where that is further on.

    A step that counts something else, such as samples, or one of several trainings, leaves the run as it is.
    """
    known = run.progress.get("step")
    if run.ended or not isinstance(known, int) or met.step <= known or "round" in run.progress:
        return run
    step, metrics = known, run.progress.get("metrics")
    if log.step is not None and log.step >= step:
        step, metrics = log.step, {name: _plain(value) for name, value in log.headlines.items()}
    if met.step > step and count_alike(met.step, step):
        step, metrics = met.step, {met.tag: _plain(met.value)}
    return replace(run, progress={**run.progress, "step": step, "metrics": metrics, **_shorten_rest(run, step - known)})


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _shorten_rest(run: Run, steps: int) -> Mapping[str, Any]:
    """Return the time that is left after so many further steps, where it is known."""
    eta_s, step_s = run.progress.get("eta_s"), run.progress.get("step_s")
    if not isinstance(eta_s, int | float) or not isinstance(step_s, int | float):
        return {}
    return {"eta_s": max(0.0, eta_s - steps * step_s)}
