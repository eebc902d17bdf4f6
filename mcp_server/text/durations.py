"""Durations as people write them: ``24 hours``, ``1.5h``, ``1d12h``, ``2天``, ``12:00:00``, ``PT24H``. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, which these patterns match

from __future__ import annotations

import re
import unicodedata

# First match wins: "minutes" begins with "m".
_UNITS = (
    (604_800.0, r"weeks?|wks?|w|个?星期|周"),
    (86_400.0, r"days?|d|天|日"),
    (3_600.0, r"hours?|hrs?|hr|h|个?小时|个?钟头|时"),
    (60.0, r"minutes?|mins?|m|分钟|分"),
    (1.0, r"seconds?|secs?|s|秒钟?"),
)
_UNIT = "|".join(f"(?P<u{n}>{words})" for n, (_, words) in enumerate(_UNITS))
_WORDS: dict[str, float] = {
    "half an": 0.5, "half a": 0.5, "an": 1, "a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6,
    "eight": 8, "ten": 10, "twelve": 12, "twenty": 20, "twenty-four": 24, "thirty": 30, "forty-eight": 48,
}  # fmt: skip
_SIGNS: dict[str, float] = dict(zip("半一二两三四五六七八九十", (0.5, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10)))
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
_NUMBER = (
    rf"[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+(?:\.[0-9]+)?|[{''.join(_SIGNS)}]|(?<![a-z-])(?:{_WORD})(?=[\s-]+[a-z]{{3}})"
)
_PART = re.compile(rf"(?P<sign>(?<![\w)\]])[-−]\s?)?(?P<n>{_NUMBER})(?:\s*-)?\s*(?:{_UNIT})(?![a-z])")
_JOIN = re.compile(r"[\s,+]*(?:and\s+|又|零|和)?")
_CLOCK = re.compile(r"(?<![\d:.])(?:(\d{1,3})-)?(\d{1,4}):([0-5]\d)(?::([0-5]\d))?(?![\d:])", re.ASCII)
_ISO = re.compile(r"(?<![a-z])p(?:(\d{1,6})d)?(?:t(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?)?(?![a-z\d])", re.ASCII)
_ISO_UNITS_S = (86_400, 3_600, 60, 1)
_LONGEST_TEXT = 2_000


def find_duration(text: str) -> float | None:
    """Return the first duration in ``text`` in seconds, None if it has none; negative if written so.

    A clock is ``HH:MM:SS``, ``HH:MM`` or ``D-HH:MM:SS``; ISO 8601 is ``P1DT12H``.
    """
    text = unicodedata.normalize("NFKC", text[:_LONGEST_TEXT]).lower()
    durations = [
        (match.start(), seconds)
        for match, seconds in (_iso(text), _clock(text), _parts(text))
        if match is not None and seconds is not None
    ]
    return min(durations)[1] if durations else None


def parse_with_unit(text: str, heading: str) -> float | None:
    """Return the seconds of a plain number whose unit is in its heading: ``Max time (hours)``."""
    plain = re.fullmatch(r"[-−]?[0-9]+(?:\.[0-9]+)?", unicodedata.normalize("NFKC", text.strip()[:40]))
    words = re.search(rf"[(（\[]\s*(?:in\s+)?({_UNIT})\s*[)）\]]", heading[:_LONGEST_TEXT].lower())
    return find_duration(f"{plain[0]} {words[1]}") if plain and words else None


def _parts(text: str) -> tuple[re.Match[str] | None, float | None]:
    first = part = _PART.search(text)
    if first is None:
        return None, None
    total, smallest = 0.0, float("inf")
    while part is not None and _size(part) < smallest:
        smallest = _size(part)
        total += _number(part["n"]) * smallest
        joint = _JOIN.match(text, part.end())
        part = _PART.match(text, joint.end() if joint else part.end())
    return first, -total if first["sign"] else total


def _size(part: re.Match[str]) -> float:
    return next(seconds for n, (seconds, _) in enumerate(_UNITS) if part[f"u{n}"])


def _number(text: str) -> float:
    return _WORDS.get(text) or _SIGNS.get(text) or float(text.replace(",", ""))


def _clock(text: str) -> tuple[re.Match[str] | None, float | None]:
    match = _CLOCK.search(text)
    if match is None:
        return None, None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return match, days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _iso(text: str) -> tuple[re.Match[str] | None, float | None]:
    for match in _ISO.finditer(text):
        if any(match.groups()):
            return match, float(sum(int(n or 0) * size for n, size in zip(match.groups(), _ISO_UNITS_S)))
    return None, None
