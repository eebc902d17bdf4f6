"""Reads days, nights, weeks and months as people write them: ``last night``, ``the first week of November``. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from mcp_server.errors import BadArgument
from mcp_server.text.durations import find_duration

_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()  # noqa: SIM905
_MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_VERBS = ("march", "may")  # months only after "in" and "from"
_NTH = ("first", "second", "third", "fourth", "last")
_MONTH = "|".join([*_MONTHS, *(month[:3] + r"\.?" for month in _MONTHS)])
DAY = (
    rf"(?:the\s+)?week\s+of\s+(?:{_MONTH})\s+\d{{1,2}}(?:st|nd|rd|th)?\b"
    r"|(?:the\s+)?day\s+before\s+yesterday|last night|tonight|today|yesterday|this morning"
    r"|this week|last week|this month|last month"
    rf"|(?:last\s+|this\s+)?(?:{'|'.join(_DAYS)})(?:\s+night)?|\d{{4}}-\d\d-\d\d|(?:{_MONTH})\s+\d{{1,2}}(?:st|nd|rd|th)?\b"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?(?:{_MONTH})\b|(?:\d+|an?|one|two|three|four|five|six)\s+(?:hour|day|week)s?\s+ago"
    rf"|(?:{'|'.join(month for month in _MONTHS if month not in _VERBS)})\b|(?<=in |om )(?:{'|'.join(_VERBS)})\b"
    rf"|(?:the\s+)?(?:{'|'.join(_NTH)})\s+week\s+(?:of|in)\s+(?:{'|'.join(_MONTHS)})\b"
)
DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::\d{2})?)?Z?")
_NIGHT_BEGINS, _NIGHT_ENDS, _MORNING = 18, 10, 5  # hours of this machine's clock


def find_day(text: str, now: datetime) -> tuple[datetime, datetime]:
    """Return when the last such day, night, week or month began, and when it ended or will end.

    ``text``: what ``DAY`` finds. BadArgument: a date that no calendar has.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    day, word = timedelta(days=1), " ".join(text.lower().split()).removeprefix("the ")
    monday, first = midnight - day * midnight.weekday(), midnight.replace(day=1)
    if word == "last night":
        return midnight - timedelta(hours=24 - _NIGHT_BEGINS), midnight + timedelta(hours=_NIGHT_ENDS)
    hours = {"tonight": _NIGHT_BEGINS, "this morning": _MORNING, "today": 0}
    spans = {
        **{name: (midnight + timedelta(hours=hour), midnight + day) for name, hour in hours.items()},
        "yesterday": (midnight - day, midnight),
        "day before yesterday": (midnight - 2 * day, midnight - day),
        "this week": (monday, monday + 7 * day),
        "last week": (monday - 7 * day, monday),
        "this month": (first, first + 31 * day),
        "last month": ((first - day).replace(day=1), first),
    }
    if word in spans:
        return spans[word]
    if ago := re.fullmatch(r"(\S+)\s+(hour|day|week)s?\s+ago", word):
        span = timedelta(seconds=find_duration(f"{ago[1]} {ago[2]}s") or 0.0)
        then = now - span
        return (then, now) if ago[2] == "hour" else ((d := midnight - span), d + day)
    if date := DATE.fullmatch(word):
        begin = _make_date(now, int(date[1]), int(date[2]), int(date[3]))
        return begin, begin + day
    for number, name in enumerate(_DAYS):
        if name in word:
            begin = midnight - day * ((midnight.weekday() - number) % 7 or 7 * ("last" in word))
            return (
                (begin + timedelta(hours=_NIGHT_BEGINS), begin + day + timedelta(hours=_NIGHT_ENDS))
                if ("night" in word)
                else (begin, begin + day)
            )
    month = next(number for number, name in enumerate(_MONTHS, 1) if name[:3] in word)
    if found := re.search(r"\d+", word):
        begin = _make_date(now, now.year, month, int(found[0]))
        begin = begin if begin <= now else _make_date(now, now.year - 1, month, int(found[0]))
        if "week" in word:
            begin -= day * begin.weekday()
            return begin, begin + 7 * day
        return begin, begin + day
    begin = first.replace(month=month, year=now.year - (month > now.month))
    end = (begin + 31 * day).replace(day=1)
    if "week" in word:
        number = next(number for number, name in enumerate(_NTH) if name in word)
        return (
            (end - 7 * day, end)
            if _NTH[number] == "last"
            else (begin + 7 * number * day, begin + 7 * (number + 1) * day)
        )
    return begin, end


def _make_date(now: datetime, year: int, month: int, day: int) -> datetime:
    try:
        return now.replace(year=year, month=month, day=day, hour=0, minute=0, second=0, microsecond=0)
    except ValueError as error:
        raise BadArgument("query", f"{year}-{month}-{day}: {error}.") from error
