"""Numbers, durations, times and long texts as people and models read them, and how many tokens they take. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from mcp_server.text.regex import compile_lazily

FEWEST_DIGITS, _MOST_DIGITS = 3, 7  # significant ones, of figures in tables
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_MOST_WHOLE = 1e15  # of a number whose whole digits are shown
_WORD_CHARS = 300  # of a word in a message: longer ones are what somebody wrote, and no path or name
_CUT = " …"  # behind the last whole fact of a text that has more
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

# The blank part of a bar ends at its frame.
_GLYPHS = r"\u2501\u2578-\u257b\u2580-\u2595\u25a0-\u25ab"
_FACT_END = compile_lazily(r"(?<=[.;!?])\s+(?=\S)|\s*\n\s*")
_LONG_WORD = compile_lazily(rf"\S{{{_WORD_CHARS + 1},}}")
_BAR = compile_lazily(
    rf"[{_GLYPHS}#]{{3,}}[ .\u2500-]*(?=[|\]])|[{_GLYPHS}]{{3,}}|(?<=\|) {{6,}}(?=\|)|=*>?\.{{6,}}|={{12,}}"
)


def shorten_middle(text: str, chars: int, *, head: int | None = None) -> str:
    """Return ``text`` cut to ``chars`` characters: two thirds, or ``head``, from its beginning, others from its end."""
    if len(text) <= chars:
        return text
    head = chars * 2 // 3 if head is None else head
    return f"{text[:head]}…{text[len(text) - (chars - head - 1) :]}"


def shorten_facts(text: str, chars: int) -> str:
    """Return ``text`` in at most ``chars`` characters: its first sentences, clauses or lines, then " …" for others.

    Each is a fact. To cut out what is between two of them would join the beginning of one to the end of another. The
    first ends in "…" where it does not fit even alone.
    """
    if len(text) <= chars:
        return text
    facts = _FACT_END.split(text)
    if len(whole := " ".join(facts)) <= chars:
        return whole
    kept = facts[0]
    for fact in facts[1:]:
        if len(kept) + 1 + len(fact) + len(_CUT) > chars:
            break
        kept += f" {fact}"
    kept = kept.rstrip(";,")
    if len(facts) > 1 and len(kept) + len(_CUT) <= chars:
        return kept + _CUT
    words = kept[: chars - 1].rsplit(" ", 1)[0]
    return f"{words if len(words) >= chars // 2 else kept[: chars - 1]}…"


def shorten_line(text: str, chars: int) -> str:
    """Return a line of output in at most ``chars`` characters: its first facts, or its first one's beginning and end.

    The end of a message often states the cause. To join it to the beginning of another would make one of two facts.
    """
    first, *others = _FACT_END.split(text) if len(text) > chars else [text]
    left = _CUT if others else ""
    return (
        shorten_facts(text, chars)
        if len(first) + len(left) <= chars
        else f"{shorten_middle(first, chars - len(left))}{left}"
    )


def join_some(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first ``most`` of ``texts``, and how many it lacks: ``a, b and 4 more``."""
    return separator.join(texts[:most]) + (f" and {len(texts) - most:,} more" if len(texts) > most else "")


def shorten_quotes(message: str, chars: int) -> str:
    """Return a message with the long words that it quotes cut, and then itself, to at most ``chars`` characters."""
    return shorten_facts(_LONG_WORD.sub(lambda word: shorten_middle(word[0], _WORD_CHARS), message), chars)


def printable(text: str, instead: str = "·", *, keep: str = "") -> str:
    """Return ``text`` with ``instead`` for each control or invisible character, but for those to ``keep``."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else instead for sign in text)


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes, seconds: ``26:03:09``."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def duration(seconds: float) -> str:
    """Return a duration in the largest unit up to hours, with up to four digits: ``24 h``, ``20 min``, ``1.5 s``."""
    for size, unit in ((_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"


def ago(age_s: float) -> str:
    """Return an age in whole units: ``3 d ago``, ``12 min ago``. A negative age is ``0 s ago``."""
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if age_s >= size:
            return f"{age_s / size:.0f} {unit} ago"
    return f"{max(0.0, age_s):.0f} s ago"


def rough_duration(seconds: float) -> str:
    """Return a duration as people say it, with two digits: ``3 d``, ``2.4 h``, ``14 min``, ``8 s``."""
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= size * (2 if size == _DAY_S else 1):
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.2g} {unit}"  # noqa: PLR2004 - rounds to 10
    return f"{max(0.0, seconds):.0f} s"


def significant(value: float, digits: int = 4) -> float:
    """Return ``value`` rounded to ``digits`` significant digits: more is noise to a reader and costs tokens.

    The digits of a whole part stay, and one more behind it where none is left: 32770 for 32768 and 1864.0 for 1864.5
    read as if they were exact.
    """
    is_long = 10 ** (digits - 1) <= abs(value) < _MOST_WHOLE
    return round(float(value), int(abs(value) < 10**digits)) if is_long else float(f"{value:.{digits}g}")


def counted(number: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_digits(values: Iterable[float], least: int = FEWEST_DIGITS) -> int:
    """Return how many significant digits, at most 7, a column needs so that values that differ look different."""
    different = {float(value) for value in values if math.isfinite(value)}
    known = {float(f"{value:.{_MOST_DIGITS}g}") for value in different}
    digits = range(least, _MOST_DIGITS)
    return next((n for n in digits if len({f"{value:.{n}g}" for value in known}) == len(known)), _MOST_DIGITS)


def spread(mean: float | None, deviation: float | None, digits: int = 4) -> str:
    """Return ``24.5±0.71``, empty without a mean: two digits of the deviation, of the mean as many as that needs."""
    if mean is None:
        return ""
    if deviation is None or not (mean and deviation and math.isfinite(mean) and math.isfinite(deviation)):
        return f"{mean:.{digits}g}" + ("" if deviation is None else f"±{deviation:.2g}")
    ahead = math.floor(math.log10(abs(mean))) - math.floor(math.log10(abs(deviation)))
    return f"{mean:.{min(max(digits, ahead + 1), _MOST_DIGITS)}g}±{deviation:.2g}"


def plain_value(value: object) -> str:
    """Return the value of a setting as tables show it, None as ``-``."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def round_seconds(seconds: float) -> float:
    """Return a duration rounded to tenths below a minute and to whole seconds above, never negative."""
    return round(max(0.0, seconds), 1) if seconds < _MINUTE_S else float(round(seconds))


def round_known(seconds: float | None) -> float | None:
    """Return a duration rounded as above, None where it is unknown."""
    return None if seconds is None else round_seconds(seconds)


def join_ranges(numbers: Iterable[int], prefix: str = "") -> str:
    """Return ascending numbers as ranges: ``0-3, 5``. With a prefix ``cpu-``: ``cpu-0 to cpu-3, cpu-5``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    to = f" to {prefix}" if prefix else "-"
    return ", ".join(f"{prefix}{each[0]}{to}{each[-1]}" if len(each) > 1 else f"{prefix}{each[0]}" for each in ranges)


def format_size(size_bytes: int) -> str:
    """Return a size with three significant digits, such as ``1.23 GiB``."""
    power = 0
    while size_bytes >= 1000 * 1024**power and power < len(_SIZE_UNITS) - 1:
        power += 1
    return f"{size_bytes / 1024**power:.3g} {_SIZE_UNITS[power]}"


def fold_bars(text: str) -> str:
    """Return ``text`` with each drawn bar folded to an ellipsis: a glyph of a bar is a token or two."""
    return _BAR.sub("…", text)


def format_posix(at_s: float) -> str:
    """Return a POSIX time as ISO 8601 in UTC with milliseconds, e.g. ``2026-11-21T15:30:45.123Z``."""
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Return the time that an ISO 8601 text means, ``Z`` as UTC on every Python; another text is a ValueError."""
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)


_PIECES = compile_lazily(r"([A-Za-z]+)|(\d+)|(\s+)|([!-/:-@\[-`{-~]+)|(.)", re.DOTALL)
# A word of an answer is one token; the letters of an id are about two a token, digits three, punctuation three.
_WORD = compile_lazily(r"[a-z]{4,9}")
_LETTERS, _DIGITS, _MARKS = 2.2, 3, 3


def estimate_tokens(text: str) -> int:
    """Return about how many o200k tokens ``text`` has. For this server's answers it is 0 to 30 % too many."""
    tokens = 0.0
    for letters, digits, blanks, marks, other in _PIECES.findall(text):
        if letters:
            tokens += 1 if _WORD.fullmatch(letters) else -(-len(letters) // _LETTERS)
        elif digits:
            tokens += -(-len(digits) // _DIGITS)
        elif marks:
            tokens += -(-len(marks) // _MARKS)
        elif other:
            tokens += 1.5
        elif blanks != " ":
            tokens += 1
    return round(tokens)
