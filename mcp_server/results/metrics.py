"""The metrics of a run: first, last and best value of each scalar."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.scalars.from_log import LogMetrics, LogPoints, count_alike, read_log_metrics
from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.scalars.series import describe_programs
from mcp_server.scalars.summary import summarise_series
from mcp_server.scalars.tag_names import Best, best_direction, match_tags

PRINTED = "the run's output"  # a source, beside files


@dataclass(frozen=True)
class Metric:
    """One scalar of a run. ``best_is``: whether higher or lower is better, or None where its name does not say so.

    ``low`` and ``high`` are over all points; ``odd`` is the number of NaN and infinite points.
    """

    tag: str
    last: float | str
    last_step: int | None = None
    first: float | None = None
    first_step: int | None = None
    best: float | None = None
    best_step: int | None = None
    best_is: Best | None = None
    low: float | None = None
    high: float | None = None
    odd: int = 0


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a run, those with a best value first. ``source``: their files. ``notes``: what limits them.

    ``step``: where the run was when they were read. ``doubts``: why some may be another program's.
    """

    metrics: tuple[Metric, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    step: int | None = None
    doubts: tuple[str, ...] = ()


def read_metrics(
    run: Run,
    scalars: Scalars,
    tags: Sequence[str] = (),
    rundir: RunDir | None = None,
    read_otherwise: Collection[str] = (),
) -> RunMetrics:
    """Return the scalars of a run that match ``tags`` (names or globs, by default all), or else its printed metrics.

    What is asked for and in no file is read from its output.
    Printed metrics are read from the log in ``rundir``; without it only the last values are known. Files that are left
    out are named, except ``read_otherwise``: evaluations that are surely the run's.
    """
    run_locations = scalars.locate(run)
    uncertain = tuple(path for path in run_locations.uncertain if path not in read_otherwise)
    note = replace(run_locations, uncertain=uncertain).note
    left_out = (note,) if note else ()
    try:
        if not run_locations.locations:
            return _read_printed(run, tags, rundir, left_out)
        reading = scalars.read(run_locations.locations, run.run_id)
    except NoScalars as error:
        return _read_printed(run, tags, rundir, (*left_out, str(error)))
    if not reading.series:
        return _read_printed(run, tags, rundir, (*left_out, *reading.notes))
    metrics = []
    for tag in select_tags(tags, reading.series):
        summary = summarise_series(reading.series[tag], now_s=time.time(), detail="range")
        if summary.last is None:
            continue
        best_is = best_direction(tag)
        high = best_is == "max"
        metrics.append(
            Metric(
                tag,
                last=summary.last,
                last_step=summary.last_step,
                first=summary.first,
                first_step=summary.first_step,
                best=(summary.max if high else summary.min) if best_is else None,
                best_step=(summary.max_step if high else summary.min_step) if best_is else None,
                best_is=best_is,
                low=summary.min,
                high=summary.max,
                odd=summary.nan + summary.inf,
            )
        )
    asked = [tag for tag in tags if not match_tags(tag, reading.series)]
    if asked and rundir is not None:
        printed = read_log_metrics(run, rundir)
        metrics += [_metric(name, points) for tag in asked for name, points in printed.select(tag).items()]
    metrics.sort(key=lambda one: one.best_is is None)
    return RunMetrics(
        tuple(metrics),
        ", ".join(str(getattr(p, "path", p)) for p in run_locations.locations[:3]),
        (*reading.notes, *left_out),
        _find_step(run, metrics, rundir),
        tuple(describe_programs(reading.series)),
    )


def select_tags(patterns: Sequence[str], tags: Mapping[str, object]) -> list[str]:
    """Return the tags that match names or globs, in their order, or all tags where none is given."""
    if not patterns:
        return list(tags)
    return list(dict.fromkeys(tag for pattern in patterns for tag in match_tags(pattern, tags)))


def _read_printed(run: Run, tags: Sequence[str], rundir: RunDir | None, notes: Sequence[str]) -> RunMetrics:
    """Return the metrics in the log, and the supervisor's last values. A run without a step has none."""
    printed = read_log_metrics(run, rundir) if rundir else LogMetrics({})
    chosen = {name: points for pattern in tags for name, points in printed.select(pattern).items()}
    metrics = [_metric(tag, points) for tag, points in (chosen if tags else printed.points).items()]
    metrics.sort(key=lambda one: one.best_is is None)
    last: Mapping[str, float | str] = (run.progress.get("metrics") or {}) if run.made_a_step else {}
    step = run.progress.get("step")
    if printed.step is not None and not run.ended:  # the log is newer than the supervisor's last note of it
        last, step = {name: v if math.isfinite(v) else str(v) for name, v in printed.headlines.items()}, printed.step
    steps = [one.last_step for one in metrics if one.last_step is not None]
    newest = max([step, *steps]) if isinstance(step, int) else max(steps, default=None)
    values = {one.last for one in metrics}  # the headline `reward` is often a printed `mean reward`
    more = [tag for tag in select_tags(tags, last) if tag not in printed.points and last[tag] not in values]
    metrics += [Metric(tag, last[tag], step if isinstance(step, int) else None) for tag in more]
    return RunMetrics(tuple(metrics), PRINTED if metrics else "", (*printed.notes, *notes), newest)


def _find_step(run: Run, metrics: Sequence[Metric], rundir: RunDir | None) -> int | None:
    """Return the step of a run: of its output, as it is now, else of files; never behind files that count alike."""
    step = run.progress.get("step")
    steps = [one.last_step for one in metrics if one.last_step is not None]
    if run.ended or not isinstance(step, int):
        return step if isinstance(step, int) else max(steps, default=None)
    if rundir is not None:
        printed = read_log_metrics(run, rundir)
        step = step if printed.step is None else printed.step
    if "round" in run.progress:  # the files may hold the rounds before
        return step
    return max([step, *(one for one in steps if count_alike(one, step))])


def _metric(tag: str, points: LogPoints) -> Metric:
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    step, last = points[-1]
    if not finite:
        return Metric(tag, str(last), step, odd=len(points))
    low, high = min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])
    best_is = best_direction(tag)
    best_step, best = (high if best_is == "max" else low) if best_is else (None, None)
    return Metric(
        tag,
        last=last if math.isfinite(last) else str(last),
        last_step=step,
        first=finite[0][1],
        first_step=finite[0][0],
        best=best,
        best_step=best_step,
        best_is=best_is,
        low=low[1],
        high=high[1],
        odd=len(points) - len(finite),
    )
