"""Conditions on scalars, as a wait is given them: ``Train/mean_reward >= 20``, ``loss is nan``. Pure."""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mcp_server.errors import BadArgument

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
# The tag is all that stands before the last comparison: tags hold spaces, slashes, even signs.
_COMPARISON = re.compile(r"(?P<tag>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<number>[^\s<>=!]+)", re.DOTALL)
_STATE = re.compile(r"(?P<tag>.+?)\s+is\s+(?P<kind>\w+)", re.DOTALL | re.IGNORECASE)
_QUOTED = re.compile(r"(?P<quote>['\"`])(?P<tag>.+)(?P=quote)", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")
_EXAMPLES = "'Train/mean_reward >= 20', 'loss < 0.1', 'loss is nan' (or inf, finite)"
_MOST_NAMED = 8
_LONGEST = 500  # characters: no tag needs more


class PointArrays(Protocol):
    """What is looked at of a series: numpy arrays of the same shape (n,)."""

    @property
    def steps(self) -> Any:
        """Integers."""

    @property
    def values(self) -> Any:
        """Floats."""


@dataclass(frozen=True)
class Condition:
    """``tag`` compared with ``number`` by ``sign``; or, where ``kind`` is given, ``tag`` of that kind."""

    text: str
    tag: str
    sign: str = ""
    number: float = 0.0
    kind: ValueKind | None = None

    @property
    def includes_past(self) -> bool:
        """Whether it is news whenever it held: a NaN is, a comparison only from now on."""
        return self.kind in ("nan", "inf")

    def __call__(self, values: Any) -> Any:
        """Tell whether it holds, of one float or of each of an array. No comparison holds for a NaN."""
        if self.kind == "nan":
            return values != values  # noqa: PLR0124 - so is NaN, of floats and arrays alike
        if self.kind == "inf":
            return abs(values) == math.inf
        if self.kind == "finite":
            return abs(values) < math.inf
        return _COMPARE[self.sign](values, self.number) & (values == values)  # noqa: PLR0124


def parse_condition(text: str) -> Condition:
    """Return the condition that ``text`` states: ``TAG SIGN NUMBER``, or ``TAG is nan|inf|finite``.

    A tag may hold anything, in quotes or without.

    Raises:
        BadArgument: it states none; shows examples.
    """
    stated = text.strip()
    if len(stated) > _LONGEST:
        raise BadArgument("until", f"is longer than {_LONGEST} characters. Conditions are {_EXAMPLES}.")
    if found := _STATE.fullmatch(stated):
        kind = _KINDS.get(found["kind"].lower())
        if kind is None:
            raise BadArgument("until", f"{found['kind']!r} is no state of a number. Conditions are {_EXAMPLES}.")
        return Condition(stated, _unquoted(found["tag"]), kind=kind)
    found = _COMPARISON.fullmatch(stated)
    if found is None:
        raise BadArgument("until", f"{text[:120]!r} is no condition. Conditions are {_EXAMPLES}.")
    try:
        number = float(found["number"].replace("_", ""))
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise BadArgument("until", f"{found['number'][:40]!r} is no number to compare with; {_EXAMPLES}.")
    return Condition(stated, _unquoted(found["tag"]), found["sign"], number)


def match_tags(pattern: str, tags: Iterable[str]) -> list[str]:
    """Return the tags that ``pattern`` means, the first of these that there are.

    The tag of exactly this name; those that the glob matches; the same without regard to case; those
    whose last part, after a slash, is this name.
    """
    known = list(tags)
    if pattern in known:
        return [pattern]
    lower = pattern.lower()
    if _GLOB.search(pattern):
        return [tag for tag in known if fnmatch.fnmatchcase(tag, pattern)] or [
            tag for tag in known if fnmatch.fnmatchcase(tag.lower(), lower)
        ]
    return [tag for tag in known if tag.lower() == lower] or [tag for tag in known if tag.lower().endswith(f"/{lower}")]


def resolve_tag(condition: Condition, tags: Sequence[str]) -> str | None:
    """Return the tag that a condition is about; None while there is no such tag.

    Raises:
        BadArgument: it could be several; lists them.
    """
    found = match_tags(condition.tag, tags)
    if len(found) > 1:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        listed = ", ".join(found[:_MOST_NAMED])
        raise BadArgument("until", f"{condition.tag!r} could be any of {listed}{more}. Write the whole tag.")
    return found[0] if found else None


def describe_match(condition: Condition, newest: Mapping[str, tuple[int | None, float]]) -> str | None:
    """Return what makes the condition true of the newest ``{tag: (step, value)}``; None when it does not hold.

    Raises:
        BadArgument: the tag could be several.
    """
    tag = resolve_tag(condition, list(newest))
    if tag is None:
        return None
    step, value = newest[tag]
    return describe_value(tag, value, step) if condition(value) else None


def first_match(condition: Condition, points: PointArrays, after: int = 0) -> int | None:
    """Return the index of the first point from index ``after`` on for which the condition holds; None if for none."""
    if len(points.values) <= after:
        return None
    held = condition(points.values[after:])
    first = int(held.argmax())
    return after + first if held[first] else None


def describe_value(tag: str, value: float, step: int | None) -> str:
    """Return what was found, e.g. ``Train/mean_reward = 20.4 at step 900``."""
    return f"{tag} = {value:.4g}" + ("" if step is None else f" at step {step}")


def _unquoted(tag: str) -> str:
    found = _QUOTED.fullmatch(tag.strip())
    return found["tag"] if found else tag.strip()
