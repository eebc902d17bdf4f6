"""Scalars as text for a model: one line per tag, four significant digits, within a budget of tokens. Pure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mcp_server.scalars.curve_answers import Number, TagFigures
from mcp_server.scalars.summary import PER_STEPS, SeriesSummary, slope_unit
from mcp_server.text.formatting import round_known, shorten_middle, significant

BUDGET = 735  # estimated tokens of all lines together; an answer has 800
# What is dropped when lines have no room: the steps of minimum and maximum, the width of the shape, then both.
_FORMS = ((32, "steps"), (32, "values"), (16, "values"), (8, "values"), (8, "none"))
_FAR = 50  # times as far from the mean as the other extreme: a spike, whose step is always shown
_ARROWS = {"up": "↑", "down": "↓", "flat": "~", None: "?"}
_WORDS = re.compile(r"[A-Za-z]+|\d{1,3}|\s(?=\d)|[^\sA-Za-z\d]")
_NUMBERS = ("last", "slope", "min", "max", "mean", "first", "ema", "steps_per_s")  # real ones of a summary
_LONGEST_TAG = 121  # characters
_LETTERS_A_TOKEN, _CAPITALS_A_TOKEN = 8, 3
_PLAIN = 1e6  # an integer below it is written without an exponent: as cheap, and easier to read


def format_digits(value: float, digits: int = 4) -> str:
    """Return ``value`` with so many significant digits and the shortest exponent: ``2.5e-5``."""
    if 10**digits <= abs(value) < _PLAIN:
        return f"{value:.0f}"
    return re.sub(r"e([+-])0*", lambda exponent: "e" + exponent[1].strip("+"), f"{value:.{digits}g}")


def json_number(value: float | None) -> Number | None:
    """Return ``value`` with four significant digits, or the name of a NaN or infinity, which JSON lacks."""
    if value is None:
        return None
    return significant(value) if math.isfinite(value) else str(float(value))


def build_tag_figures(summary: SeriesSummary, points: Sequence[tuple[int, float]] | None = None) -> TagFigures:
    """Return the summary as a typed answer."""
    own = TagFigures.model_fields.keys() - {"points", "slope_steps"}
    facts = {name: getattr(summary, name) for name in own}
    facts["slope_steps"] = None if summary.slope is None else slope_unit([summary])
    if summary.slope is not None:
        facts["slope"] = summary.slope * slope_unit([summary]) / PER_STEPS
    facts |= {name: json_number(facts[name]) for name in _NUMBERS}
    facts |= {"age_s": round_known(summary.age_s), "restarts": list(summary.restarts) or None}
    facts["writers"] = summary.writers if summary.writers > 1 else None
    if points is not None:
        facts["points"] = [(step, json_number(value) or 0.0) for step, value in points]
    return TagFigures(**facts)


def common_step(summaries: Mapping[str, SeriesSummary]) -> int | None:
    """Return the last step that most tags share, so that a line needs no step of its own."""
    steps = Counter(summary.last_step for summary in summaries.values() if summary.last_step is not None)
    return steps.most_common(1)[0][0] if steps else None


def tag_lines(summaries: Mapping[str, SeriesSummary], budget: int = BUDGET) -> list[str]:
    """Return a line per tag in the form of ``name_columns``, with as much detail as fits into ``budget`` tokens."""
    step, unit = common_step(summaries), slope_unit(summaries.values())
    for width, extremes in _FORMS:
        lines = [_line(tag, summary, step, width, extremes, unit) for tag, summary in summaries.items()]
        if sum(map(estimate_tokens, lines)) <= budget:
            break
    return lines


def name_columns(summaries: Iterable[SeriesSummary]) -> str:
    """Return the names of the columns of ``tag_lines``: a slope is told per as many steps as the runs have."""
    return f"tag last[@step] slope/{_name_unit(slope_unit(summaries))} min[@step] max[@step] shape"


def name_compared_columns(runs: Sequence[Mapping[str, SeriesSummary]]) -> str:
    """Return the names of the columns of ``comparison_lines``."""
    unit = slope_unit(one for run in runs for one in run.values())
    return f"tag | for each run: last@step slope/{_name_unit(unit)} min..max shape"


def _name_unit(unit: int) -> str:
    return "1k" if unit == PER_STEPS else "step" if unit == 1 else str(unit)


def last_value_lines(summaries: Mapping[str, SeriesSummary], budget: int = BUDGET) -> tuple[list[str], str | None]:
    """Return ``tag last`` of as many tags as fit, in the given order, and the count of the others by prefix."""
    step = common_step(summaries)
    lines: list[str] = []
    left_out = list(summaries)
    for tag, summary in summaries.items():
        line = f"{_fit_tag(tag)} {_last(summary, step)}{_odd(summary)}"
        budget -= estimate_tokens(line)
        if budget < 0:
            break
        lines.append(line)
        left_out.pop(0)
    if not left_out:
        return lines, None
    groups = Counter(tag.rpartition("/")[0] for tag in left_out)
    counts = [f"{prefix}/* {count}" if prefix else f"without / {count}" for prefix, count in groups.most_common(8)]
    more = f", and {len(groups) - len(counts)} more groups" if len(groups) > len(counts) else ""
    return lines, f"{len(left_out)} more tags: {', '.join(counts)}{more}. Name them in tags, globs allowed."


def comparison_lines(runs: Sequence[Mapping[str, SeriesSummary]], budget: int = BUDGET) -> tuple[list[str], int]:
    """Return one line per tag with a column per run, in as much detail as fits, and how many tags had no room."""
    tags = list(dict.fromkeys(tag for summaries in runs for tag in summaries))
    unit = slope_unit(one for run in runs for one in run.values())
    for detail in (2, 1, 0):
        lines = [f"{_fit_tag(tag)} | " + " | ".join(_cell(run.get(tag), detail, unit) for run in runs) for tag in tags]
        if sum(map(estimate_tokens, lines)) <= budget:
            return lines, 0
    fitting: list[str] = []
    for line in lines:
        budget -= estimate_tokens(line)
        if budget < 0:
            break
        fitting.append(line)
    return fitting, len(lines) - len(fitting)


def _fit_tag(tag: str) -> str:
    """Return a tag that cannot fill the answer. Both of its ends are kept, half and half."""
    return shorten_middle(tag, _LONGEST_TAG, head=_LONGEST_TAG // 2)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a line costs, rather too many: its words, triples of digits, and signs."""
    words: list[str] = _WORDS.findall(text)
    return 2 + sum(1 + len(word) // (_CAPITALS_A_TOKEN if word.isupper() else _LETTERS_A_TOKEN) for word in words)


def _cell(summary: SeriesSummary | None, detail: int, unit: int) -> str:
    if summary is None or not summary.count:
        return "-"
    text = f"{_last(summary, None)} {_trend(summary, unit)}"
    if detail and summary.min is not None and summary.max is not None:
        text += f" {format_digits(summary.min)}..{format_digits(summary.max)}"
    return text + (f" {summary.shape}" if detail > 1 else "") + _odd(summary)


def _line(tag: str, summary: SeriesSummary, step: int | None, width: int, extremes: str, unit: int) -> str:
    if not summary.count:
        return f"{_fit_tag(tag)} no points"
    text = f"{_fit_tag(tag)} {_last(summary, step)} {_trend(summary, unit)}"
    if summary.min is not None and summary.max is not None and summary.mean is not None:
        below, above = summary.mean - summary.min, summary.max - summary.mean
        for value, at, is_spike in (
            (summary.min, summary.min_step, below / _FAR > above),
            (summary.max, summary.max_step, above / _FAR > below),
        ):
            text += f" {format_digits(value)}" if is_spike or extremes != "none" else ""
            text += f"@{at}" if is_spike or extremes == "steps" else ""
    return f"{text} {narrow_shape(summary.shape, width)}{_odd(summary)}"


def _last(summary: SeriesSummary, step: int | None) -> str:
    value = format_digits(summary.last) if summary.last is not None else "-"
    return value if summary.last_step == step else f"{value}@{summary.last_step}"


def _trend(summary: SeriesSummary, unit: int) -> str:
    slope = 0.0 if summary.slope is None else significant(abs(summary.slope) * unit / PER_STEPS, 2)
    return _ARROWS[summary.trend] + (format_digits(slope, 2) if slope else "")


def _odd(summary: SeriesSummary) -> str:
    """Return the counts of NaN and infinite values, which a reader must not overlook."""
    text = f" {summary.nan} NaN from {summary.first_nan_step}" if summary.nan else ""
    return text + (f" {summary.inf} Inf from {summary.first_inf_step}" if summary.inf else "")


def narrow_shape(shape: str, width: int) -> str:
    """Join neighbours of a shape until it is at most ``width`` wide. NaN marks and extremes are kept."""
    while len(shape) > width:
        pairs = [shape[i : i + 2] for i in range(0, len(shape), 2)]
        shape = "".join(next((sign for sign in "x90" if sign in pair), max(pair)) for pair in pairs)
    return shape
