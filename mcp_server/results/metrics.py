"""What a run came to in numbers: each scalar first, last and best."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.scalars.condition import match_tags
from mcp_server.scalars.from_log import LogMetrics, LogPoints, read_log_metrics
from mcp_server.scalars.run_scalars import NoScalars, Scalars

Best = Literal["max", "min"]

# First match wins, on the words of a tag: a reward's loss is a loss.
_BETTER: tuple[tuple[Best, frozenset[str]], ...] = (
    (
        "min",
        frozenset(
            """loss losses error errors err perplexity ppl nll mse mae rmse mape cer wer fid regret crossentropy
            bpb bpc violation violations collision collisions failure failures""".split()  # noqa: SIM905 - words
        ),
    ),
    (
        "max",
        frozenset(
            """reward rewards return returns rew ret success successes succ accuracy acc score scores pass passed win
            wins f1 auc auroc bleu rouge map iou psnr ssim precision recall reached solved solve correct em exact match
            top1 top5 r2""".split()  # noqa: SIM905 - words
        ),
    ),
)
_SPREAD = frozenset({"std", "stddev", "var", "variance", "min", "max", "coef", "weight", "scale"})
_WORDS = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|[a-z]\d")


@dataclass(frozen=True)
class Metric:
    """One scalar of a run. ``best_is``: whether more or less of it is better; unknown for most names.

    ``low`` and ``high`` are over all points; ``odd`` counts NaN and infinite ones.
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
    """The metrics of a run, the telling ones first; ``source``: where they were read, ``notes``: how sure they are."""

    metrics: tuple[Metric, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()


def best_direction(tag: str) -> Best | None:
    """Return whether more (``max``) or less (``min``) of what ``tag`` names is better; None where nobody can tell."""
    words = [word.lower() for word in _WORDS.findall(tag.rpartition("/")[2])] or [tag.lower()]
    words += [word.lower() for word in _WORDS.findall(tag.rpartition("/")[0])]
    if _SPREAD & set(words):
        return None
    return next((best for best, names in _BETTER if names & set(words)), None)


def read_metrics(run: Run, scalars: Scalars, tags: Sequence[str] = (), rundir: RunDir | None = None) -> RunMetrics:
    """Return the scalars of a run that ``tags`` (names or globs; none: all) mean; else the numbers it printed.

    ``rundir`` is the run's: its log is read; without it only the last numbers are known.
    """
    from mcp_server.scalars.summary import summarise_series  # noqa: PLC0415 - brings numpy, which takes a while

    locations = scalars.locations_of(run)
    try:
        if not locations:
            return _printed(run, tags, rundir)
        reading = scalars.read(locations, run.run_id)
    except NoScalars as error:
        found = _printed(run, tags, rundir)
        return RunMetrics(found.metrics, found.source, (*found.notes, str(error)))
    metrics = []
    for tag in select_tags(tags, reading.series):
        figures = summarise_series(reading.series[tag], now_s=time.time())
        if figures.last is None:
            continue
        best_is = best_direction(tag)
        high = best_is == "max"
        metrics.append(
            Metric(
                tag,
                last=figures.last,
                last_step=figures.last_step,
                first=figures.first,
                first_step=figures.first_step,
                best=(figures.max if high else figures.min) if best_is else None,
                best_step=(figures.max_step if high else figures.min_step) if best_is else None,
                best_is=best_is,
                low=figures.min,
                high=figures.max,
                odd=figures.nan + figures.inf,
            )
        )
    metrics.sort(key=lambda one: one.best_is is None)
    return RunMetrics(tuple(metrics), ", ".join(str(getattr(p, "path", p)) for p in locations[:3]), reading.notes)


def select_tags(patterns: Sequence[str], tags: Mapping[str, object]) -> list[str]:
    """Return the tags that names or globs mean, in their order; all where none is given."""
    if not patterns:
        return list(tags)
    return list(dict.fromkeys(tag for pattern in patterns for tag in match_tags(pattern, tags)))


def _printed(run: Run, tags: Sequence[str], rundir: RunDir | None) -> RunMetrics:
    """Return what the log tells; of what only the supervisor has read, the last value."""
    found = read_log_metrics(rundir, run.attempt, run.spec.first_step_pattern) if rundir else LogMetrics({})
    metrics = [_of_points(tag, found.points[tag]) for tag in select_tags(tags, found.points)]
    metrics.sort(key=lambda one: one.best_is is None)
    last: Mapping[str, float | str] = run.progress.get("metrics") or {}
    step = run.progress.get("step")
    more = [tag for tag in select_tags(tags, last) if tag not in found.points]
    metrics += [Metric(tag, last[tag], step if isinstance(step, int) else None) for tag in more]
    notes = ("The log is long: only its beginning and end were read for metrics.",) if found.cut else ()
    return RunMetrics(tuple(metrics), "the run's output" if metrics else "", notes)


def _of_points(tag: str, points: LogPoints) -> Metric:
    sound = [(step, value) for step, value in points if math.isfinite(value)]
    step, last = points[-1]
    if not sound:
        return Metric(tag, str(last), step, odd=len(points))
    low, high = min(sound, key=lambda point: point[1]), max(sound, key=lambda point: point[1])
    best_is = best_direction(tag)
    best_step, best = (high if best_is == "max" else low) if best_is else (None, None)
    return Metric(
        tag,
        last=last if math.isfinite(last) else str(last),
        last_step=step,
        first=sound[0][1],
        first_step=sound[0][0],
        best=best,
        best_step=best_step,
        best_is=best_is,
        low=low[1],
        high=high[1],
        odd=len(points) - len(sound),
    )
