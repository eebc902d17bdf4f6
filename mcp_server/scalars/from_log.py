"""Reads the metrics that a run printed to its log: the only ones of a run that writes no scalars to files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.record.run_directory import RunDir
from mcp_server.text.lines import split_lines

_MOST_BYTES = 2 << 20  # at each end of a log, which takes half a second
_MOST_NAMES = 200

LogPoints = list[tuple[int | None, float]]


@dataclass(frozen=True)
class LogMetrics:
    """``points`` by name, each with its step where one was printed. ``cut``: the middle of the log was not read."""

    points: Mapping[str, LogPoints]
    cut: bool = False


def read_log_metrics(rundir: RunDir, attempts: int, first_step_pattern: str | None = None) -> LogMetrics:
    """Return the metrics of the last attempt that reached a step, printed from its first step on."""
    for number in range(attempts, 0, -1):
        try:
            metrics = _read_log(rundir.log(number), first_step_pattern)
        except OSError:  # the log was removed
            continue
        if metrics.points:
            return metrics
    return LogMetrics({})


def _read_log(log: Path, first_step_pattern: str | None) -> LogMetrics:
    progress = ProgressTracker(first_step_pattern)
    points: dict[str, LogPoints] = {}
    parts, cut = _read_ends(log)
    for part in parts:
        for line in split_lines(part.decode(errors="replace")):
            for reading in progress.read_lines([line]):
                for name, value in reading.metrics.items() if progress.first_step_seen else ():
                    if name in points or len(points) < _MOST_NAMES:
                        points.setdefault(name, []).append((progress.step, value))
    return LogMetrics(points, cut)


def _read_ends(log: Path) -> tuple[list[bytes], bool]:
    """Return the whole log, or its beginning and its end in complete lines."""
    with log.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * _MOST_BYTES:
            return [file.read()], False
        head = file.read(_MOST_BYTES).rpartition(b"\n")[0]
        file.seek(size - _MOST_BYTES)
        return [head, file.read().partition(b"\n")[2]], True
