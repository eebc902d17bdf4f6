"""Questions about one curve, each a word: its value at a step, the mean of its end, where it first crosses. Pure.

``loss@300``, ``best:loss``, ``mean10%:loss`` (the last tenth), ``mean50:loss`` (50 points), ``first:loss<0.3``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mcp_server.errors import BadArgument
from mcp_server.scalars.condition import Condition, first_match, parse_condition
from mcp_server.scalars.series import Points
from mcp_server.text.formatting import significant

_MEAN = r"mean\d{1,6}%?"
_QUESTION = re.compile(
    rf"(?:(?P<before>last|best|{_MEAN}):)?(?P<tag>.+?)(?:@(?P<behind>last|best|{_MEAN}))?", re.DOTALL
)
_AT = re.compile(r"(?P<tag>.+)@(?P<step>\d{1,15})", re.DOTALL)
_FIRST = "first:"
_PERCENT = 100


@dataclass(frozen=True)
class CurveQuestion:
    """``kind``: ``last``, ``best``, ``mean10%`` and so on, ``at`` a ``step``, ``first`` where ``condition`` holds."""

    tag: str
    kind: str = "last"
    step: int = 0
    condition: Condition | None = None


@dataclass(frozen=True)
class CurveFigure:
    """The answer of a curve: a value and its step. ``before``: of a mean, that of as many points before."""

    value: float
    step: int | None
    count: int = 1
    before: float | None = None


def parse_ranking(text: str) -> tuple[str, str]:
    """Return the tag of ``TAG``, ``last:TAG``, ``best:TAG``, ``mean10%:TAG`` or ``TAG@best``, and which value ranks."""
    found = _QUESTION.fullmatch(text)
    return (found["tag"], found["before"] or found["behind"] or "last") if found else (text, "last")


def parse_question(text: str) -> CurveQuestion:
    """Return the question in ``text``, which may be a tag alone. BadArgument: a crossing that is no comparison."""
    if text.startswith(_FIRST):
        try:
            condition = parse_condition(text.removeprefix(_FIRST))
        except BadArgument as error:
            raise BadArgument("tags", f"{text[:120]!r} compares nothing: write it as first:loss<0.3.") from error
        return CurveQuestion(condition.tag, "first", condition=condition)
    if (at := _AT.fullmatch(text)) is not None:
        return CurveQuestion(at["tag"], "at", int(at["step"]))
    return CurveQuestion(*parse_ranking(text))


def collect_points(pairs: Iterable[tuple[int | None, float]]) -> Points:
    """Return those of steps and values that have a step as points."""
    known = [(step, value) for step, value in pairs if step is not None]
    steps, values = np.array([step for step, _ in known], np.int64), np.array([value for _, value in known], np.float64)
    return Points(steps, np.full(len(known), np.nan), values)


def answer(question: CurveQuestion, points: Points, goal: Literal["max", "min"] = "max") -> CurveFigure | None:
    """Return the figure of a curve, in the order of its points; None where it has none, or has not come so far."""
    steps, values = points.steps, points.values
    if question.condition is not None:
        index = first_match(question.condition, points)
        return None if index is None else CurveFigure(float(values[index]), int(steps[index]))
    if question.kind == "at":
        known = np.flatnonzero(steps <= question.step)
        if not len(known) or int(steps.max()) < question.step:
            return None
        index = int(known[np.flatnonzero(steps[known] == steps[known].max())[-1]])
        return CurveFigure(float(values[index]), int(steps[index])) if np.isfinite(values[index]) else None
    if question.kind.startswith("mean"):
        return _mean(question.kind, steps, values)
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return None
    if question.kind == "best":
        index = int(finite[(np.argmax if goal == "max" else np.argmin)(values[finite])])
        return CurveFigure(float(values[index]), int(steps[index]))
    return CurveFigure(float(values[-1]), int(steps[-1])) if finite[-1] == len(values) - 1 else None


def _mean(kind: str, steps: NDArray[np.int64], values: NDArray[np.float64]) -> CurveFigure | None:
    count = count_tail(kind, len(values))
    last, before = values[-count:], values[max(0, len(values) - 2 * count) : len(values) - count]
    last, before = last[np.isfinite(last)], before[np.isfinite(before)]
    if not len(last):
        return None
    return CurveFigure(float(last.mean()), int(steps[-1]), count, float(before.mean()) if len(before) else None)


def count_tail(kind: str, points: int) -> int:
    """Return of how many of so many points ``mean10%`` or ``mean50`` is the mean: of at least one."""
    number = kind.removeprefix("mean")
    count = points * int(number[:-1]) // _PERCENT if number.endswith("%") else int(number)
    return min(max(1, count), points)


def describe_figure(question: CurveQuestion, tag: str, points: Points, goal: Literal["max", "min"] | None) -> str:
    """Return the answer of a curve as a sentence, also where it has none. No goal: its best is both of its ends."""
    figure, least = answer(question, points, goal or "max"), answer(question, points, "min")
    if goal is None and question.kind == "best" and figure and least:
        ends = f"max {figure.value:.4g} (step {figure.step}), min {least.value:.4g} (step {least.step})"
        return f"{tag}: {ends}; which is better is not known"
    known = f"its last step is {int(points.steps[-1])}"
    if question.condition is not None:
        condition = question.condition
        text = f"{condition.sign} {condition.number:g}" if condition.sign else f"is {condition.kind}"
        if figure is None:
            return f"{tag} {text}: never, {known}"
        return f"{tag} {text}: first at step {figure.step}, {figure.value:.4g}"
    name = f"at step {question.step}" if question.kind == "at" else question.kind
    if figure is None:
        return f"{tag} {name}: no number, {known}"
    text = f"{tag} {name}: {figure.value:.4g}"
    if question.kind.startswith("mean"):
        text += f" ({figure.count} points to step {figure.step})"
        if figure.before is not None:
            text += f", before {figure.before:.4g} ({significant(figure.value - figure.before, 2):+g})"
        return text
    return text if question.kind == "at" and figure.step == question.step else f"{text} (step {figure.step})"
