"""The value of a metric by which a run ranks: its last, its best, or the mean of its last tenth."""

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mcp_server.record.state import Run
from mcp_server.results.evaluations import evaluations
from mcp_server.results.evaluations.evaluation_series import build_series
from mcp_server.results.evaluations.printed_evaluations import read_printed_evaluations
from mcp_server.results.metrics import PRINTED, read_metrics
from mcp_server.scalars.curve_questions import (
    CurveQuestion,
    answer,
    collect_points,
    count_tail,
    parse_question,
    parse_ranking,
)
from mcp_server.scalars.from_log import read_log_metrics
from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.scalars.tag_names import best_direction, match_tags
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.store.run_store import RunStore
from mcp_server.text.near_names import find_near_names

RANKINGS = ("last", "best", "mean10%")
NO_GOALS: Mapping[str, str] = MappingProxyType({})
ANY_COUNT = "any:"  # before a metric: settings with fewer seeds do not rank behind
EVERY_EVALUATION = ("eval", "evaluation", "evaluations")  # the word before their columns

Points = list[tuple[int | None, float]]


def choose_goal(tag: str, goal: str | None = None) -> str:
    """Return ``goal``, or where it is None whether more or less of ``tag`` is better, by its name, else max."""
    return goal or best_direction(tag) or "max"


@dataclass(frozen=True)
class Figure:
    """The value of a metric that ranks, and its step; None where unknown.

    ``figures``: the value and step by each ranking. ``bad_end``: "nan" or "inf" where the metric ended so, and has no
    value. ``curves``: the files of the run's scalars. ``tags``: the metrics that a run without this one has, and
    ``left_out``: which files may be another run's.
    """

    value: float | None = None
    step: int | None = None
    figures: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)
    bad_end: str | None = None
    curves: str | None = None
    tags: tuple[str, ...] = ()
    left_out: str = ""


def measure(
    run: Run, store: RunStore, scalars: Scalars, metric: str | None, goal: str, ranking: str = "last"
) -> Figure:
    """Return the value of ``metric`` (a tag, a glob, or its last part) by which a run ranks.

    Reads files: call it in a thread. An evaluation in a result file counts where no scalar has the name.
    """
    found = read_metrics(run, scalars, ["*"] if metric is None else [metric], store.run_directory(run.run_id))
    curves = found.source if found.source not in ("", PRINTED) else None
    if metric is None:
        return Figure(curves=curves)
    points = next(iter(_read(run, store, scalars, metric).values()), None)
    if not points:
        every = read_metrics(run, scalars, (), store.run_directory(run.run_id)).metrics
        tags = [*(one.tag for one in every), *_read_evaluations(run, store, scalars, "*")]
        left_out = describe_uncertain(scalars.locate(run).uncertain) or ""
        return Figure(curves=curves, tags=tuple(tags), left_out=left_out)
    return replace(summarise(points, goal, ranking), curves=curves)


def _read(run: Run, store: RunStore, scalars: Scalars, pattern: str) -> dict[str, Points]:
    return _read_curves(run, store, scalars, pattern) or _read_evaluations(run, store, scalars, pattern)


def read_values(
    run: Run, store: RunStore, scalars: Scalars, name: str, goals: Mapping[str, str] = NO_GOALS
) -> Iterator[tuple[str, float, bool]]:
    """Yield each column of a question such as ``mean10%:TAG`` or ``TAG@300``, its value, and if it is at a step.

    A tag that has an @ of its own, such as ``pass@1``, is meant where the run has it. ``goals``: as somebody said them.
    Where neither they nor its name say whether more or less is better, its best is both of ``TAG max`` and ``TAG min``.
    """
    tag, ranking = parse_ranking(name)
    curves = _read(run, store, scalars, tag)
    for found, points in curves.items():
        goal = goals.get(tag) or best_direction(found)
        is_unclear = ranking == "best" and goal is None
        for one in ("max", "min") if is_unclear else (goal or "max",):
            figure = summarise(points, one, ranking)
            if figure.value is not None:
                yield f"{found} {one if is_unclear else ranking}", figure.value, False
    question = parse_question(name)
    if not curves and (question.kind == "at" or question.condition is not None):
        at = f"@{question.step}" if question.condition is None else question.condition.text.removeprefix(question.tag)
        for found, points in _read(run, store, scalars, question.tag).items():
            if (met := answer(question, collect_points(points))) is not None and question.condition is None:
                yield f"{found} {at}", met.value, True
            elif met is not None and met.step is not None:
                yield f"{found} first{at}", float(met.step), True


def names_value(name: str) -> bool:
    """Return whether ``name`` says which value of a metric is meant: ``best:TAG``, ``TAG@300``."""
    return parse_question(name) != CurveQuestion(name)


def explain_missing_metric(name: str, tags: Sequence[str], whose: str) -> str:
    """Return why no run has the metric ``name``: none has it, none has come to that step, or it has no number."""
    question = parse_question(name)
    tag = question.tag
    if match_tags(tag, tags):
        if question.kind == "at":
            return f"No {whose} has {tag} at step {question.step}: none has come that far."
        if question.condition is not None:
            return f"No {whose} has met {question.condition.text}."
        return f"No {whose} has a number as {question.kind} of {tag}: it ended as nan or inf."
    near = ", ".join(find_near_names(tag, tags))
    return f"No metric {name!r} in these runs." + (f" Near: {near}." if near else "")


def measure_evaluations(run: Run, store: RunStore, scalars: Scalars) -> dict[str, float]:
    """Return the newest figure of each evaluation in a run's result files and output. Reads files, as above."""
    found = {name: points[-1][1] for name, points in _read_evaluations(run, store, scalars, "*").items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def summarise(points: Points, goal: str, ranking: str) -> Figure:
    """Return the figure of a curve, in the order of its steps. Pure."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    figures: dict[str, tuple[float, int | None]] = {}
    if finite:
        step, value = (max if goal == "max" else min)(finite, key=lambda point: point[1])
        figures["best"] = value, step
    last_step, last = points[-1]
    if not math.isfinite(last):
        return Figure(figures=figures, step=last_step, bad_end="nan" if math.isnan(last) else "inf")
    figures["last"] = last, last_step
    for kind in {RANKINGS[-1], ranking if ranking.startswith("mean") else RANKINGS[-1]}:
        tail = [value for _, value in points[-count_tail(kind, len(points)) :] if math.isfinite(value)]
        figures[kind] = statistics.fmean(tail), last_step
    return Figure(*figures[ranking], figures=figures)


def read_points(run: Run, store: RunStore, scalars: Scalars, metric: str) -> Points:
    """Return the steps and values of ``metric`` that a run has written so far, or empty where it has none.

    Reads files: call it in a thread.
    """
    return next(iter(_read_curves(run, store, scalars, metric).values()), [])


def _read_curves(run: Run, store: RunStore, scalars: Scalars, pattern: str) -> dict[str, Points]:
    locations = scalars.locate(run).locations
    with contextlib.suppress(NoScalars):
        series = scalars.read(locations, run.run_id).series if locations else {}
        if tags := match_tags(pattern, series):
            return {
                tag: [(int(s), float(v)) for s, v in zip(series[tag].steps, series[tag].values, strict=True)]
                for tag in tags
            }
    printed = read_log_metrics(run, store.run_directory(run.run_id))
    return {name: list(points) for name, points in printed.select(pattern).items() if points}


def _read_evaluations(run: Run, store: RunStore, scalars: Scalars, pattern: str) -> dict[str, Points]:
    own = scalars.attribution.of(run)
    files = evaluations.find_run_evaluations(run, own)
    printed = read_printed_evaluations(run, store.run_directory(run.run_id), [pattern])
    series = {one.name: one for one in build_series([*printed, *files])}
    if not (names := match_tags(pattern, series, held_out=True)):
        names = list(series) if pattern.lower() in EVERY_EVALUATION else []
    found = {name: [(p.step, float(p.value)) for p in series[name].points] for name in names}
    return {name: points for name, points in found.items() if points}
