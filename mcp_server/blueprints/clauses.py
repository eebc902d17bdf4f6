"""The clauses of a text about a time, and their meaning for a limit. Pure.

Words of an open class ("on the big node") mean nothing for a limit and are kept as a note; words of a closed one
("until", "per", "at least", "or") may change it, and are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_server.text.durations import find_durations, normalize
from mcp_server.text.rows import read_blocks

_MAX_WORDS = 14  # beside a duration: a longer clause is a story
_CLAUSE = re.compile(
    r"\s*(?:[()（）;；，。|•]|,(?!\d{3})|(?<!\bincl)(?<!\binkl)(?<!\bmax)(?<!\bca)(?<!\bapprox)\.(?=\s|$)"
    r"|(?<!\d)/(?!\d)|(?<=\s)/|/(?=\s)|(?<=\s)[-–—]{1,2}(?=\s))\s*"
    r"|\s+(?=(?:including|incl|inklusive|inkl|davon|of which|dont)\b)"
)
MARK = "\x00"
_AGAIN = re.compile(r"[:：=＝]\s*$")  # a clause that ends so belongs to the next
_SORTS = {
    block[0][1]: "|".join(value for key, value in block if key == "words")
    for block in read_blocks("blueprints/clauses")
}


def _compile(*sorts: str) -> re.Pattern[str]:
    return re.compile("|".join(_SORTS[sort] for sort in sorts), re.IGNORECASE)


ADDRESS = _compile("address")
_AT_MOST = _compile("at most")
_TIMES = _compile("times")
_CONDITION = _compile("condition")
_IF = _compile("if")
_OVER = _compile("over")
_CHANGE = _compile("change")
_REPORT = _compile("report")
LIMIT = _compile("limit")
RULE = _compile("limit", "rule")
_ENDS_ITSELF = _compile("ends itself")
_GOES_FARTHER = _compile("goes farther")
_OF_WRITER = _compile("of writer")
_OF_POOL = _compile("of pool")
_CORRECTION = _compile("correction")
_MOMENT = _compile("moment")
_JOINT = re.compile(r"(?:or|plus|oder|ou)\b|或")
_DENIAL = re.compile(
    r"(?:\b(?:no|not|never|without|don'?t|kein\w*|nicht|ohne|sans|pas)|不要?|别|无需)\s*$", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.!?]+(?=\s|$)|[()。！？；;（）]")
_TIME_OF_DAY = re.compile(r"\b(?:at|um|à)\s+\d{1,2}:\d\d(?![:\d])", re.IGNORECASE)


@dataclass(frozen=True)
class Clause:
    """A text between two marks of punctuation: as written, and in normal form with ``MARK`` for each duration."""

    written: str
    text: str
    seconds: tuple[float, ...] = ()

    @property
    def is_report(self) -> bool:
        """Whether it only says how long something took, or should take."""
        is_about_time = _REPORT.search(self.text) or _TIME_OF_DAY.search(self.written)
        return bool(is_about_time) and RULE.search(self.text) is None

    @property
    def changes(self) -> bool:
        """Whether it has a word that changes the duration in it, or so many words that it tells something else."""
        words = re.findall(r"[^\W\d_\u4e00-\u9fff]+|[\u4e00-\u9fff]{1,4}", self.text)
        return bool(
            find_condition(self.text)
            or _CHANGE.search(self.text)
            or _MOMENT.search(self.written)
            or len(words) > _MAX_WORDS
        )

    @property
    def is_remark(self) -> bool:
        """Whether it has no duration, and changes none."""
        if "\x00" in self.text or ADDRESS.match(self.text):
            return "\x00" not in self.text
        limits = LIMIT.search(self.text)  # "then it is stopped" is no more, "10 at most" is
        changes = re.search(r"\d", self.text) if limits else _JOINT.match(self.text)
        return not (changes or _TIMES.fullmatch(self.text) or find_condition(self.text))


def is_aside(text: str, limit_s: float) -> bool:
    """Return whether a paragraph below a limit has durations of the writer or a quota alone, and none for the run.

    A quota that is smaller than the limit may be meant to end the run.
    """
    for sentence in _SENTENCE.split(re.sub(r"\((\d[^()]{0,14})\)", r", \1", normalize(text))):
        marked, seconds = mark_durations(sentence)
        is_elsewhere = _OF_WRITER.search(marked) or (_OF_POOL.search(marked) and min(seconds, default=0) >= limit_s)
        changes = bool(seconds) and (not is_elsewhere or RULE.search(_OF_POOL.sub(" ", marked)))
        if changes or _CORRECTION.search(marked) or not all(c.seconds or c.is_remark for c in split_clauses(sentence)):
            return False
    return True


def find_condition(text: str) -> bool:
    """Return whether a text has a word that may change a duration; "no extension" has none."""
    if not _GOES_FARTHER.search(text):
        text = _ENDS_ITSELF.sub(" ", text)
    if _IF.search(text) and not _OVER.search(text):
        return True
    return any(_DENIAL.search(text[: match.start()]) is None for match in _CONDITION.finditer(text))


def mark_durations(text: str) -> tuple[str, list[float]]:
    """Return a text in normal form with ``MARK`` for each duration, and their seconds."""
    marked, durations = normalize(text), find_durations(text)
    for each in reversed(durations):
        marked = f"{marked[: each.start]}{MARK}{marked[each.end :]}"
    return marked, [each.seconds for each in durations]


def split_clauses(text: str, *, keeps_durations: bool = True) -> list[Clause]:
    """Return the clauses of a text. ``keeps_durations``: the comma in ``1 day, 12:00:00`` separates nothing."""
    text = re.sub(r"\s*/\s*(?=(?:seed|arm|model|stage|phase|gpu|epoch|fold|task|job|cell|config)s?\b)", " per ", text)
    normal = normalize(text)
    written = text if len(text) == len(normal) else normal
    inside = [(each.start, each.end) for each in find_durations(text)] if keeps_durations else []
    marks = [m.span() for m in _CLAUSE.finditer(normal) if not any(a < m.end() and m.start() < b for a, b in inside)]
    clauses, start = [], 0
    for begin, end in [*marks, (len(normal), len(normal))]:
        if _AGAIN.search(normal[start:begin]):
            continue
        clause, seconds = mark_durations(normal[start:begin])
        if clause.strip():
            clause = _AT_MOST.sub("at most", clause).strip()
            clauses.append(Clause(written[start:begin].strip(), clause, tuple(seconds)))
        start = end
    return clauses
