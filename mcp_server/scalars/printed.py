"""The numbers that a run printed as series: for a run without any scalars in files."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mcp_server.record.state import Run
from mcp_server.scalars.from_log import LogPoints, read_log_metrics
from mcp_server.scalars.run_scalars import ScalarReading, Target
from mcp_server.scalars.series import FilePoints, Series, merge_files
from mcp_server.store.run_store import RunStore


def read_printed(run: Run, store: RunStore) -> tuple[Target, ScalarReading] | None:
    """Return the printed metrics of a run as a reading whose notes name the log, or None where it printed none.

    Wall times are unknown: a log does not keep them.
    """
    store.fetch_log(run)
    printed = read_log_metrics(run, store.run_directory(run.run_id))
    if printed.log is None:
        return None
    notes = [
        "Numbers that the run printed, read from its log: no event file or table is known to be its own. "
        "compare_runs shows their last and best beside other runs."
    ]
    notes += printed.notes
    reading = ScalarReading(run.run_id, _build_series(printed.points), tuple(notes))
    return Target(str(printed.log), [printed.log], run.run_id), reading


def _build_series(points: Mapping[str, LogPoints]) -> dict[str, Series]:
    series = {}
    for name, pairs in points.items():
        steps, last = [], 0
        for number, (step, _) in enumerate(pairs):
            last = step if step is not None else last if any(one is not None for one, _ in pairs) else number
            steps.append(last)
        values = np.array([value for _, value in pairs], np.float64)
        series[name] = merge_files([FilePoints(np.array(steps, np.int64), np.full(len(pairs), math.nan), values)])
    return series
