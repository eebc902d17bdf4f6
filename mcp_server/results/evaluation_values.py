"""Reads one figure as people and trainers write it: percentages, spreads, counts beside it. Pure."""

from __future__ import annotations

import re

Value = float | int | str | bool | None

_INTEGER = re.compile(r"[+-]?\d{1,300}")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf)", re.IGNORECASE)
PERCENT = re.compile(rf"({NUMBER.pattern})\s?[%\uff05]", re.IGNORECASE)
# 85.0 ± 1.2, 85 % (425/500), 425/500 (85 %), 0.85 (85 %), 12,345.6
_SPREAD = re.compile(rf"(?P<value>\S+(?:\s?[%\uff05])?)\s*(?:±|\+/-|\\pm)\s*(?:{NUMBER.pattern})\s?[%\uff05]?")
_SHARE = r"(?P<part>\d{1,9})\s?/\s?(?P<whole>\d{1,9})"
_COUNTED = (
    re.compile(rf"(?P<value>\S+(?:\s?[%\uff05])?)\s*\({_SHARE}(?:\s\w+)?\)"),
    re.compile(rf"{_SHARE}(?:\s*=\s*|\s*\()(?P<value>[^()]+)\)?"),
)
_TWICE = re.compile(rf"(?P<value>{NUMBER.pattern})\s*\((?P<percent>{NUMBER.pattern})\s?[%\uff05]\)", re.IGNORECASE)
FRACTION = re.compile(_SHARE)
_SUCCESS = re.compile(
    r"(?i)(?:^|[\s_/.-])(?:success(?:es)?|succ|solved|pass(?:ed)?|wins?|accuracy|acc|correct)(?:$|[\s_/.-])"
)
_ROUNDING = 0.006  # of a share that is written with two digits
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})")  # of 1,234 nobody knows what it is
_LONGEST_ANNOTATED = 60


class Percent(float):
    """A number that was written with a percent sign: 51.2 for ``51.2 %``. ``whole``: of how many it was counted."""

    whole: int | None = None

    def __str__(self) -> str:
        return f"{float(self):.15g}%"

    __repr__ = __str__


class Counted(float):
    """A share beside which stands of how many it is: 0.6 for ``12/20``."""

    whole: int | None = None


def parse_value(text: str) -> Value:
    """Return the text as a number where all of it is one, with its percent sign, or else the text."""
    plain = text.strip().strip("*`").strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    if NUMBER.fullmatch(plain):
        return float(plain)
    if percent := PERCENT.fullmatch(plain):
        return Percent(percent[1])
    if _THOUSANDS.fullmatch(plain):
        return float(plain.replace(",", ""))
    return _parse_annotated(plain)


def _parse_annotated(text: str) -> Value:
    """Return the number before a spread, which may be of any kind, or beside the fraction that it is, else the text."""
    if len(text) > _LONGEST_ANNOTATED:
        return text
    if match := _SPREAD.fullmatch(text):
        value = parse_value(match["value"])
        return value if isinstance(value, int | float) else text
    for pattern in _COUNTED:
        if (match := pattern.fullmatch(text)) and int(match["whole"]):
            value = parse_value(match["value"])
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            share = float(value) / 100 if isinstance(value, Percent) else float(value)
            if abs(int(match["part"]) / int(match["whole"]) - share) <= _ROUNDING:
                return _count_of(value, int(match["whole"]))
    if (match := _TWICE.fullmatch(text)) and abs(float(match["value"]) * 100 - float(match["percent"])) <= 1:
        return float(match["value"])
    return text


def _count_of(value: float, whole: int) -> Percent | Counted:
    counted = Percent(value) if isinstance(value, Percent) else Counted(value)
    counted.whole = whole
    return counted


def parse_rate(text: str) -> float | None:
    """Return the share that ``text`` states of successes, also as a bare fraction, or None."""
    value = parse_value(text)
    if (
        isinstance(value, str)
        and (match := FRACTION.fullmatch(value))
        and 0 < int(match["whole"]) >= int(match["part"])
    ):
        return _count_of(int(match["part"]) / int(match["whole"]), int(match["whole"]))
    return value if isinstance(value, int | float) else None


def parse_named(name: str, text: str) -> Value:
    """Return a value as :func:`parse_value` does; a fraction is a number where the name is one of successes."""
    value = parse_value(text)
    if isinstance(value, str) and _SUCCESS.search(name):
        return value if (rate := parse_rate(value)) is None else rate
    return value
