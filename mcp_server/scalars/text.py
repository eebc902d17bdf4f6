"""How scalars are told to a model: few tokens, four significant digits, one line a tag. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mcp_server.answer import Answer

if TYPE_CHECKING:
    from mcp_server.scalars.summary import SeriesSummary

Number = float | str  # JSON has no NaN: "nan", "inf", "-inf"

COLUMNS = "tag last[@step] slope/1k min[@step] max[@step] shape"
BUDGET = 735  # tokens of all lines together, as estimated; an answer has 800
# What gives way when lines have no room: the steps of minimum and maximum, the shape's width, then both.
_FORMS = ((32, "steps"), (32, "values"), (16, "values"), (8, "values"), (8, "none"))
_FAR = 50  # times as far from the mean as the other extreme: a spike, whose step is told all the same
_ARROWS = {"up": "↑", "down": "↓", "flat": "~"}
_WORDS = re.compile(r"[A-Za-z]+|\d{1,3}|\s(?=\d)|[^\sA-Za-z\d]")
_LONGEST_TAG = 120  # characters
_LETTERS_A_TOKEN, _CAPITALS_A_TOKEN = 8, 3
_PLAIN = 1e6  # below it an integer is written out rather than with an exponent: no dearer, and easier to read


class TagFigures(Answer):
    """One scalar in figures.

    ``slope``: units per 1,000 steps over the last tenth. ``restarts``: steps from which a restart went on.
    ``points``: [step, value].
    """

    last: Number | None = None
    last_step: int | None = None
    trend: str | None = None
    slope: Number | None = None
    min: Number | None = None
    min_step: int | None = None
    max: Number | None = None
    max_step: int | None = None
    mean: Number | None = None
    first: Number | None = None
    first_step: int | None = None
    ema: Number | None = None
    count: int
    nan: int = 0
    first_nan_step: int | None = None
    inf: int = 0
    first_inf_step: int | None = None
    plateau: int | None = None
    shape: str
    age_s: float | None = None
    steps_per_s: Number | None = None
    restarts: list[int] | None = None
    writers: int | None = None
    points: list[tuple[int, Number]] | None = None


def format_digits(value: float, significant: int = 4) -> str:
    """Write so many significant digits, without what an exponent does not need: ``2.5e-5``."""
    if 10**significant <= abs(value) < _PLAIN:
        return f"{value:.0f}"
    return re.sub(r"e([+-])0*", lambda found: "e" + found[1].strip("+"), f"{value:.{significant}g}")


def json_number(value: float | None) -> Number | None:
    """Round to four significant digits; what JSON has no number for becomes its name."""
    if value is None:
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else str(float(value))


def build_tag_figures(figures: SeriesSummary, points: Sequence[tuple[int, float]] | None = None) -> TagFigures:
    """Return the figures as a typed answer."""
    return TagFigures(
        last=json_number(figures.last),
        last_step=figures.last_step,
        trend=figures.trend,
        slope=json_number(figures.slope),
        min=json_number(figures.min),
        min_step=figures.min_step,
        max=json_number(figures.max),
        max_step=figures.max_step,
        mean=json_number(figures.mean),
        first=json_number(figures.first),
        first_step=figures.first_step,
        ema=json_number(figures.ema),
        count=figures.count,
        nan=figures.nan,
        first_nan_step=figures.first_nan_step,
        inf=figures.inf,
        first_inf_step=figures.first_inf_step,
        plateau=figures.plateau,
        shape=figures.shape,
        age_s=seconds(figures.age_s),
        steps_per_s=json_number(figures.steps_per_s),
        restarts=list(figures.restarts) or None,
        writers=figures.writers if figures.writers > 1 else None,
        points=None if points is None else [(step, json_number(value) or 0.0) for step, value in points],
    )


def seconds(value_s: float | None) -> float | None:
    """Round to tenths below a minute, to whole seconds above."""
    return None if value_s is None else round(value_s, 1 if value_s < 60 else None)  # noqa: PLR2004


def common_step(told: Mapping[str, SeriesSummary]) -> int | None:
    """Return the last step that most tags share, so that it need not be said at each."""
    steps = Counter(figures.last_step for figures in told.values() if figures.last_step is not None)
    return steps.most_common(1)[0][0] if steps else None


def tag_lines(told: Mapping[str, SeriesSummary], budget: int = BUDGET) -> list[str]:
    """Return one line a tag, as ``COLUMNS`` says, with as much detail as fits into ``budget`` tokens.

    A last step that is not the common one, NaNs and infinities are named where they are.
    """
    step = common_step(told)
    for width, extremes in _FORMS:
        made = [_line(tag, figures, step, width, extremes) for tag, figures in told.items()]
        if sum(map(estimate_tokens, made)) <= budget:
            break
    return made


def last_value_lines(told: Mapping[str, SeriesSummary], budget: int = BUDGET) -> tuple[list[str], str | None]:
    """Return ``tag last`` of as many tags as fit, in the given order, and what is left out, counted by prefix."""
    step = common_step(told)
    made: list[str] = []
    left = list(told)
    for tag, figures in told.items():
        line = f"{_name(tag)} {_last(figures, step)}{_odd(figures)}"
        budget -= estimate_tokens(line)
        if budget < 0:
            break
        made.append(line)
        left.pop(0)
    if not left:
        return made, None
    groups = Counter(tag.rpartition("/")[0] for tag in left)
    named = [f"{prefix}/* {count}" if prefix else f"without / {count}" for prefix, count in groups.most_common(8)]
    more = f", and {len(groups) - len(named)} more groups" if len(groups) > len(named) else ""
    return made, f"{len(left)} more tags: {', '.join(named)}{more}. Name them in tags, globs allowed."


def comparison_lines(runs: Sequence[Mapping[str, SeriesSummary]], budget: int = BUDGET) -> tuple[list[str], int]:
    """Return one line a tag with one column a run, and how many tags had no room.

    A column holds the last value, its step, and the trend; with the range and the shape as far as they fit.
    """
    tags = list(dict.fromkeys(tag for told in runs for tag in told))
    for detail in (2, 1, 0):
        made = [f"{_name(tag)} | " + " | ".join(_cell(told.get(tag), detail) for told in runs) for tag in tags]
        if sum(map(estimate_tokens, made)) <= budget:
            return made, 0
    kept: list[str] = []
    for line in made:
        budget -= estimate_tokens(line)
        if budget < 0:
            break
        kept.append(line)
    return kept, len(made) - len(kept)


def _name(tag: str) -> str:
    """Shorten a tag that would fill the answer; its ends are told."""
    return tag if len(tag) <= _LONGEST_TAG else f"{tag[: _LONGEST_TAG // 2]}…{tag[-_LONGEST_TAG // 2 :]}"


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a line costs, rather too many: its words, triples of digits, and signs."""
    words: list[str] = _WORDS.findall(text)
    return 2 + sum(1 + len(word) // (_CAPITALS_A_TOKEN if word.isupper() else _LETTERS_A_TOKEN) for word in words)


def _cell(figures: SeriesSummary | None, detail: int) -> str:
    if figures is None or not figures.count:
        return "-"
    text = f"{_last(figures, None)} {_trend(figures)}"
    if detail and figures.min is not None and figures.max is not None:
        text += f" {format_digits(figures.min)}..{format_digits(figures.max)}"
    return text + (f" {figures.shape}" if detail > 1 else "") + _odd(figures)


def _line(tag: str, figures: SeriesSummary, step: int | None, width: int, extremes: str) -> str:
    if not figures.count:
        return f"{_name(tag)} no points"
    text = f"{_name(tag)} {_last(figures, step)} {_trend(figures)}"
    if figures.min is not None and figures.max is not None and figures.mean is not None:
        below, above = figures.mean - figures.min, figures.max - figures.mean
        for value, at, far in (
            (figures.min, figures.min_step, below / _FAR > above),
            (figures.max, figures.max_step, above / _FAR > below),
        ):
            told = far or extremes != "none"
            text += (f" {format_digits(value)}" if told else "") + (f"@{at}" if far or extremes == "steps" else "")
    return f"{text} {narrow_shape(figures.shape, width)}{_odd(figures)}"


def _last(figures: SeriesSummary, step: int | None) -> str:
    value = format_digits(figures.last) if figures.last is not None else "-"
    return value if figures.last_step == step else f"{value}@{figures.last_step}"


def _trend(figures: SeriesSummary) -> str:
    arrow = _ARROWS[figures.trend]
    return (
        arrow if figures.slope is None or figures.trend == "flat" else f"{arrow}{format_digits(abs(figures.slope), 2)}"
    )


def _odd(figures: SeriesSummary) -> str:
    """Name what must not be overlooked."""
    text = f" {figures.nan} NaN from {figures.first_nan_step}" if figures.nan else ""
    return text + (f" {figures.inf} Inf from {figures.first_inf_step}" if figures.inf else "")


def narrow_shape(shape: str, width: int) -> str:
    """Join neighbours of a shape until it is no wider than ``width``; what is odd or extreme stays."""
    while len(shape) > width:
        pairs = [shape[i : i + 2] for i in range(0, len(shape), 2)]
        shape = "".join(next((sign for sign in "x90" if sign in pair), max(pair)) for pair in pairs)
    return shape
