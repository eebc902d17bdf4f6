"""Conditions on scalars for ``wait_run(until=…)``: ``Train/mean_reward >= 20``, ``loss is nan``. Pure."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mcp_server.diagnosis.progress.named_values import HEADLINES
from mcp_server.errors import BadArgument
from mcp_server.scalars.tag_names import is_held_out, match_tags
from mcp_server.text.formatting import join_some

ValueKind = Literal["nan", "inf", "finite"]

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_KINDS: Mapping[str, ValueKind] = {"nan": "nan", "inf": "inf", "finite": "finite", "infinite": "inf"}
# The tag is everything before the last comparison: tags contain spaces, slashes, even comparison signs.
_COMPARISON = re.compile(r"(?P<tag>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<number>[^\s<>=!]+)", re.DOTALL)
_STATE = re.compile(r"(?P<tag>.+?)\s+is\s+(?P<kind>\w+)", re.DOTALL | re.IGNORECASE)
_QUOTED = re.compile(r"(?P<quote>['\"`])(?P<tag>.+)(?P=quote)", re.DOTALL)
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?%")
_PERCENT = 100
# In a name without quotes: a second comparison, or the beginning of an operator such as `=>`.
_SEVERAL = re.compile(r"\s(?:and|or|&&|\|\||,)\s|[<>=!~]\s*$|\s[<>=!]=?\s", re.IGNORECASE)
_EXAMPLES = "'Train/mean_reward >= 20', 'step >= 300', '50%', 'elapsed_s > 600', 'loss is nan' (or inf, finite)"
PROGRESS = "progress"  # steps made of all
_MOST_LISTED = 8
_LONGEST = 500  # characters: no tag needs more


class PointArrays(Protocol):
    """The points that a condition is checked on: numpy arrays of the same shape (n,)."""

    @property
    def steps(self) -> Any:
        """Integers."""

    @property
    def values(self) -> Any:
        """Floats."""


@dataclass(frozen=True)
class Condition:
    """Compares ``tag`` with ``number`` by ``sign``, or where ``kind`` is given checks that ``tag`` is of that kind."""

    text: str
    tag: str
    sign: str = ""
    number: float = 0.0
    kind: ValueKind | None = None

    @property
    def includes_past(self) -> bool:
        """Whether points from before the wait meet it: a NaN does, a comparison only from now on."""
        return self.kind in ("nan", "inf")

    def names(self, tag: str) -> bool:
        """Return whether ``tag``, or its last part, is the condition's own, whatever the case."""
        return f"/{tag}".lower().endswith(f"/{self.tag}".lower())

    def is_reached(self, count: float) -> bool:
        """Return whether a count that only rises, such as a step, has come to ``number``: it may jump past it."""
        return count >= self.number if self.sign == "==" else bool(self(count))

    def __call__(self, values: Any) -> Any:
        """Return whether it holds, for one float or for each value of an array. No comparison holds for a NaN."""
        if self.kind == "nan":
            return values != values  # noqa: PLR0124 - true for NaN, in floats and arrays alike
        if self.kind == "inf":
            return abs(values) == math.inf
        if self.kind == "finite":
            return abs(values) < math.inf
        return _COMPARE[self.sign](values, self.number) & (values == values)  # noqa: PLR0124


def parse_condition(text: str) -> Condition:
    """Return the condition in ``text``, ``TAG SIGN NUMBER`` or ``TAG is nan|inf|finite``, else raise BadArgument."""
    stripped = text.strip()
    if len(stripped) > _LONGEST:
        raise BadArgument("until", f"is longer than {_LONGEST} characters. Conditions are {_EXAMPLES}.")
    if match := _STATE.fullmatch(stripped):
        kind = _KINDS.get(match["kind"].lower())
        if kind is None:
            raise BadArgument("until", f"{match['kind']!r} is not a kind of number. Conditions are {_EXAMPLES}.")
        return Condition(stripped, _unquote(match["tag"]), kind=kind)
    if match := _SHARE.fullmatch(stripped):
        return _check_share(Condition(stripped, PROGRESS, ">=", float(match[1]) / _PERCENT))
    match = _COMPARISON.fullmatch(stripped)
    if match is None:
        raise BadArgument("until", f"{text[:120]!r} is not a condition. Conditions are {_EXAMPLES}.")
    tag = _unquote(match["tag"])
    if tag == match["tag"].strip() and _SEVERAL.search(tag):
        raise BadArgument("until", f"{text[:120]!r} has several parts: one comparison is taken, e.g. {_EXAMPLES}.")
    share = _SHARE.fullmatch(match["number"]) if tag.lower() == PROGRESS else None
    try:
        number = float(share[1]) / _PERCENT if share else float(match["number"].replace("_", ""))
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise BadArgument("until", f"{match['number'][:40]!r} is not a number to compare with; {_EXAMPLES}.")
    return _check_share(Condition(stripped, tag, match["sign"], number))


def _check_share(condition: Condition) -> Condition:
    """Refuse a share of the steps that no run reaches."""
    is_above = condition.number > 1 or (condition.number == 1 and condition.sign == ">")
    if condition.tag.lower() == PROGRESS and condition.sign in (">=", ">", "==") and is_above:
        raise BadArgument("until", "progress is from 0 to 1, or 0% to 100%: this is never met.", f"E.g. {_EXAMPLES}.")
    return condition


def resolve_tag(condition: Condition, tags: Sequence[str]) -> str | None:
    """Return the tag of a condition, None while none matches; where several do, BadArgument lists them."""
    matches = match_tags(condition.tag, tags)
    if len(matches) > 1 and condition.tag.lower() in HEADLINES and not any(map(condition.names, matches)):
        return None  # wait_run shows one number of several under this word
    if len(matches) > 1:
        raise BadArgument(
            "until", f"{condition.tag!r} could be any of {join_some(matches, _MOST_LISTED)}. Write the whole tag."
        )
    if condition.tag.lower() == "loss" and any(map(is_held_out, matches)):
        return None  # the training's may be written later
    return matches[0] if matches else None


def first_match(condition: Condition, points: PointArrays, after: int = 0) -> int | None:
    """Return the index of the first point from index ``after`` on that meets the condition, or None without one."""
    if len(points.values) <= after:
        return None
    matches = condition(points.values[after:])
    first = int(matches.argmax())
    return after + first if matches[first] else None


def describe_value(tag: str, value: float, step: int | None, unit: str = "") -> str:
    """Return a value as text, such as ``Train/mean_reward = 20.4 at step 900``."""
    return f"{tag} = {value:.4g}{unit}" + ("" if step is None else f" at step {step}")


def _unquote(tag: str) -> str:
    match = _QUOTED.fullmatch(tag.strip())
    return match["tag"] if match else tag.strip()
