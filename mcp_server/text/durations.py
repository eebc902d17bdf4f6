"""Durations as people write them: ``24 hours``, ``1 1/2 h``, ``2h30``, ``二十四小时``, ``12:00:00``, ``PT24H``. Pure.

A number counts as a whole: ``twenty-four hours`` is not ``four hours``, and ``10M frames`` is not ten minutes.
"""

# ruff: noqa: RUF001 - people write full-width punctuation, which these patterns match

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks

_WEEK_S, _DAY_S, _HOUR_S, _MINUTE_S = 604_800.0, 86_400.0, 3_600.0, 60.0
# First match wins: "minutes" begins with "m".
_UNITS = (
    (_WEEK_S, r"weeks?|wks?|w|wochen?|semaines?|星期|礼拜|周|週"),
    (_DAY_S, r"days?|d|tage?n?|jours?|天|日"),
    (_HOUR_S, r"hours?|hrs?|h|stunden?|std\.?|heures?|小时|小時|钟头|鐘頭|时|時"),
    (_MINUTE_S, r"minutes?|mins?|m|minuten?|分钟|分鐘|分"),
    (1.0, r"seconds?|secs?|s|sekunden?|secondes?|sek|秒钟?|秒鐘?"),
)
_UNIT = "|".join(f"(?P<u{n}>{words})" for n, (_, words) in enumerate(_UNITS))
_ANY_UNIT = "|".join(words for _, words in _UNITS)
# What a bare "m" in front of these counts is a million, or nothing that runs out with time.
COUNTED = (
    r"(?:env(?:ironment)?[\s_-]*)?(?:frames?|(?:time[\s_-]*)?steps?|iterations?|iters?|its|epochs?|episodes?|tokens?|samples?"
    r"|schritte|epochen|updates?|transitions?|interactions?|batch(?:es)?|rollouts?|trajectories|games|rounds?|帧|步|轮|个?epoch|回合|次迭代|次更新|样本)"
)
_ENGLISH, *_OTHERS = map(dict, read_blocks("text/durations"))
_ONES, _TENS = _ENGLISH["ones"].split(), _ENGLISH["tens"].split()


def _read_values(block: Mapping[str, str]) -> dict[str, float]:
    return {word: float(value) for word, _, value in (pair.partition("=") for pair in block["also"].split())}


_WORDS: dict[str, float] = {
    **{word: n for n, word in enumerate(_ONES, 1)},
    **{word: 10 * n for n, word in enumerate(_TENS, 2)},
    **_read_values(_ENGLISH),
}
_FOREIGN = {word: value for block in _OTHERS for word, value in _read_values(block).items()}
_SIGNS: dict[str, int] = {"零": 0, "〇": 0, "两": 2, "兩": 2, **dict(zip("一二三四五六七八九", range(1, 10)))}
_ONE = "|".join(sorted(_ONES, key=len, reverse=True))
_TEN = "|".join([*_TENS, "fourty"])
_BELOW_100 = rf"(?:(?:{_TEN})(?:[\s-]+(?:{'|'.join(_ONES[:9])})\b)?|{_ONE})"
_WORD_NUMBER = (
    rf"(?:(?:an?|{'|'.join(_ONES[:9])})[\s-]+hundred(?:[\s-]+(?:and[\s-]+)?{_BELOW_100})?|{_BELOW_100}|an?)\b"
)
_PART = compile_lazily(
    rf"""
    (?P<sign>(?<![\w)\]])[-−]\s?)?
    (?: (?P<whole>[0-9]+)(?:\s+|\s*-\s*|(?=\s*&))(?:and\s+|&\s*)?(?P<over>[0-9]{{1,2}})\s*[/⁄]\s*(?P<under>[1-9][0-9]?)
      | (?P<over2>[0-9]{{1,2}})\s*[/⁄]\s*(?P<under2>[1-9][0-9]?)
      | (?P<comma>[0-9]+,[0-9]{{1,2}})
      | (?P<n>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?|[0-9]*\.[0-9]+|[0-9]+)
      | (?P<signs>[{"".join(_SIGNS)}十百廿卅]+|半(?!天半))
      | (?P<half>half(?:[\s-]+(?:of[\s-]+)?an?\b)?
        |(?:an?[\s-]+|one[\s-]+)?(?P<quarter>quarter|(?P<three>three[\s-]+quarters))[\s-]+(?:of[\s-]+)?an?\b)
      | (?P<words>{_WORD_NUMBER})
      | (?P<foreign>(?:{"|".join(_FOREIGN)})\b)
    )
    (?P<and_half>[\s-]+and[\s-]+(?:a[\s-]+)?half)?
    (?:\s*-)?\s*(?P<gehalf>[个個]半)?[个個]?\s*
    (?:{_UNIT})
    (?:\(s\))?(?![a-z])(?(words)(?![0-9]))(?!\s?{COUNTED}\b)
    (?P<then_half>\s+and\s+a\s+half\b|\s+et\s+demie?\b|半(?!\s*[个個]?(?:{_ANY_UNIT})))?
    (?P<minutes>(?<=h)[0-5][0-9](?![\w.:%]))?
    """,
    re.VERBOSE,
)
_JOIN = compile_lazily(r"[\s,+&、]*(?:and\s+|plus\s+|und\s+|et\s+|又|零|和|加)?\s*")
_CLOCK = compile_lazily(
    r"(?<![\w:.])(?:(\d{1,3})-)?(\d{1,4}):([0-5]\d)(?::([0-5]\d)(?:\.0+)?)?(?![\d:])(?:\s*(?:hours?|hrs?|h)(?![a-z]))?",
    re.ASCII,
)
_ISO = compile_lazily(
    r"(?<![a-z\d])p(?:(\d{1,6})w)?(?:(\d{1,6})d)?(?:t(?:(\d{1,6}(?:\.\d+)?)h)?(?:(\d{1,6}(?:\.\d+)?)m)?(?:(\d{1,6})s)?)?(?![a-z\d])",
    re.ASCII,
)
_ISO_UNITS_S = (_WEEK_S, _DAY_S, _HOUR_S, _MINUTE_S, 1.0)
_MILLIONS = compile_lazily(r"(?<=[0-9])\s?M(?![a-zA-Z])")  # not minutes: "10M"
_FRACTIONS = {"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3", "⅛": " 1/8"}
_REPEATED = compile_lazily(rf"\b(?P<words>{_BELOW_100})\s*\(\s*(?P<n>[0-9]{{1,4}})\s*\)(?=\s*(?:{_ANY_UNIT})\b)")
_WHOLE = compile_lazily(
    r"\b(?:full|whole|entire)\s+(?=(?:days?|hours?|weeks?)\b)|(?<=[一两三四五六七八九十])整(?=[天周])"
)
_LONGEST_TEXT = 2_000


@dataclass(frozen=True)
class Duration:
    """A duration in seconds, negative if written so, and its position in the normal form of its text."""

    start: int
    end: int
    seconds: float


def normalize(text: str) -> str:
    """Return ``text`` as the positions of ``find_durations`` count it: lower case, no full-width letters."""
    text = "".join(_FRACTIONS.get(char, char) for char in text[:_LONGEST_TEXT])
    text = unicodedata.normalize("NFKC", text)
    if not re.match(r"\s*P(?:\d|T)", text):
        text = _MILLIONS.sub(" million", text)
    return _WHOLE.sub("", _REPEATED.sub(_drop_repetition, text.lower()))


def _drop_repetition(match: re.Match[str]) -> str:
    """Return the digits of ``forty-eight (48)`` where they repeat the words; contradictions stay."""
    return match["n"] if _english_number(match["words"]) == int(match["n"]) else match[0]


def find_durations(text: str) -> list[Duration]:
    """Return the durations in ``text`` in order: ``1 day, 12:00:00`` is one, ``D-HH:MM:SS`` is a clock."""
    text = normalize(text)
    durations: list[Duration] = []
    position = 0
    while position < len(text):
        candidates = [each for each in (_iso(text, position), _clock(text, position), _parts(text, position)) if each]
        if not candidates:
            break
        durations.append(min(candidates, key=lambda each: (each.start, -each.end)))
        position = durations[-1].end
    return durations


def find_duration(text: str) -> float | None:
    """Return the first duration in ``text`` in seconds, None if it has none, or negative if written so."""
    durations = find_durations(text)
    return durations[0].seconds if durations else None


def parse_with_unit(text: str, heading: str) -> float | None:
    """Return the seconds of a plain number whose unit is in its heading: ``Max time (hours)``, ``max_time_s``."""
    plain = re.fullmatch(r"[-−]?[0-9]+(?:\.[0-9]+)?", unicodedata.normalize("NFKC", text.strip()[:40]))
    heading = normalize(heading).strip()
    words = re.search(rf"[(\[]\s*(?:in\s+)?({_ANY_UNIT})\s*[)\]]", heading) or re.search(
        rf"(?<=[a-z])(?:_|\s+in\s+|\s+)({_ANY_UNIT})$", heading
    )
    return find_duration(f"{plain[0]} {words[1]}") if plain and words else None


def _parts(text: str, position: int) -> Duration | None:
    """Return the first duration made of numbers with units, from the largest unit to the smallest."""
    first = _PART.search(text, position)
    while first is not None and not _begins_a_number(text, first.start()):
        first = _PART.search(text, first.start() + 1)
    if first is None:
        return None
    total, smallest, end = 0.0, float("inf"), first.end()
    part: re.Match[str] | None = first
    while part is not None and _size(part) < smallest and not (part is not first and part["sign"]):
        smallest, end = _size(part), part.end()
        total += _number(part) * smallest
        if part["minutes"]:
            total += 60 * float(part["minutes"])
            break
        joint = _JOIN.match(text, end)
        following = joint.end() if joint else end
        clock = _CLOCK.match(text, following)
        if clock and smallest == _DAY_S and clock[4] and not clock[1]:
            total, end = total + _clock_seconds(clock), clock.end()
            break
        part = _PART.match(text, following)
    return Duration(first.start(), end, -total if first["sign"] else total)


def _begins_a_number(text: str, start: int) -> bool:
    """Return whether no number goes on to the left: not in ``1.5``, ``v24``, ``第一``, ``1/2``, ``twenty-four``."""
    before, last = text[:start], text[start - 1 : start]
    if text[start] in "-−":
        return True
    if re.search(r"[0-9](?:[.,/⁄]\s?|:)$|[a-z_]-$|[.:]$", before) or (
        last and last in "第" + "".join(_SIGNS) + "十百廿半几数"
    ):
        return False
    return not re.search(r"[0-9a-z_]$", before)


def _size(part: re.Match[str]) -> float:
    return next(seconds for n, (seconds, _) in enumerate(_UNITS) if part[f"u{n}"])


def _number(part: re.Match[str]) -> float:
    if part["over"]:
        number = float(part["whole"]) + float(part["over"]) / float(part["under"])
    elif part["over2"]:
        number = float(part["over2"]) / float(part["under2"])
    elif part["comma"]:
        number = float(part["comma"].replace(",", "."))
    elif part["foreign"]:
        number = next(value for word, value in _FOREIGN.items() if re.fullmatch(word, part["foreign"]))
    elif part["n"]:
        number = float(part["n"].replace(",", ""))
    elif part["signs"]:
        number = 0.5 if part["signs"] == "半" else _chinese_number(part["signs"])
    elif part["half"]:
        number = (0.75 if part["three"] else 0.25) if part["quarter"] else 0.5
    else:
        number = _english_number(part["words"])
    return number + (0.5 if part["and_half"] or part["gehalf"] or part["then_half"] else 0)


def _english_number(words: str) -> float:
    total = 0.0
    for word in re.split(r"[\s-]+", words):
        total = total * 100 if word == "hundred" else total + _WORDS.get(word, 0)
    return total


def _chinese_number(signs: str) -> float:
    total, digit = 0, 0
    for sign in signs.replace("廿", "二十").replace("卅", "三十"):
        if sign in "十百":
            total += (digit or 1) * (10 if sign == "十" else 100)
            digit = 0
        else:
            digit = 10 * digit + _SIGNS[sign] if digit else _SIGNS[sign]
    return total + digit


def _clock(text: str, position: int) -> Duration | None:
    match = _CLOCK.search(text, position)
    return Duration(match.start(), match.end(), _clock_seconds(match)) if match else None


def _clock_seconds(match: re.Match[str]) -> float:
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return days * _DAY_S + hours * _HOUR_S + minutes * 60 + seconds


def _iso(text: str, position: int) -> Duration | None:
    for match in _ISO.finditer(text, position):
        if any(match.groups()):
            seconds = sum(float(n or 0) * size for n, size in zip(match.groups(), _ISO_UNITS_S))
            return Duration(match.start(), match.end(), seconds)
    return None
