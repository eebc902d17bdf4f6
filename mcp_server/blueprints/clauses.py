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
    r"|(?<=\bmax)\.(?=\s+[^\d\s])"
    r"|(?<!\d)/(?!\d)|(?<=\s)/|/(?=\s)|(?<=\s)[-–—]{1,2}(?=\s))\s*"
    r"|\s+(?=(?:including|incl|inklusive|inkl|davon|of which|dont|because|weil|parce que)\b)"
    r"|\s*(?=因为|由于)"
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
_OF_ANOTHER = _compile("of another")
_BESIDE = _compile("beside")
_OF_WRITER = _compile("of writer")
_ORDER = _compile("order")
_ORDER_TO_GIVE = re.compile(r"\b(?:give|allow|allot|grant)\b")
_HEAD = re.compile(rf"(?:(?:{_SORTS['limit']}|{_SORTS['filler']})|[^\w{MARK}])*{MARK}", re.IGNORECASE)
_CONCLUSION = re.compile(
    rf"(?:(?:so|hence|thus|therefore|also|daher|donc)\b|所以|因此)[^{MARK}]*{MARK}[^{MARK}]*", re.IGNORECASE
)
PLAIN_HEAD = re.compile(rf"{_HEAD.pattern}(?:(?:{_SORTS['limit']}|{_SORTS['filler']})|\W)*", re.IGNORECASE)
_INTERVAL = re.compile(
    rf"\b(?:every|alle|toutes les)\s+(?:~|about )?\s*(?:{MARK}|[\d.,]+\s*k? ?(?:steps|iterations|epochs|updates)\b)"
    rf"|每隔?\s*(?:{MARK}|\d+\s*(?:步|轮))",
    re.IGNORECASE,
)
_OF_PART = re.compile(
    r"\b(?:per|each|every|an?) (?:epoch|step|iteration)\b|每个?\s*(?:epoch|step|轮|步)", re.IGNORECASE
)
_TAKES = re.compile(r"\b(?:takes?|lasts?)\b|占|需要?")
_NUMBERED = re.compile(r"(?:stage|phase|part|arm|seed|run|model)s? \d|it\b|第.", re.IGNORECASE)
_PLACED = re.compile(r"(?:on|with|without|in|for|if|at|auf|mit|ohne|bei|für|sur|avec|sans)\b|[在用若]", re.IGNORECASE)
_ENDED = re.compile(  # of an earlier run: no limit of this one
    r"\b(?:was|were|got|i|we) (?:killed|stopped|aborted|cancell?ed|terminated|cut(?: off)?|timed out)\b"
    r"(?:[^\x00]*? by (?:the|its) (?:time ?)?(?:limit|timeout))?"
    r"|(?<=\w )(?<!be )(?<!is )(?:finished|done|through|completed|converged) within\b(?!.*\blatest\b)"
)
_BY_LIMIT = re.compile(r"(?<=\x00) by (?:the|its) (?:time ?)?(?:limit|timeout)\b")
_ALTERNATIVE = re.compile(
    r"\d+(?:\.\d+)? (?:with|on|for|if|without|at|in|mit|auf|bei)\b"
    r"|(?:with|on|for|without|mit|auf|bei) (?:the|an?|dem|der)\b.* \d+$"
)
_ELSEWHERE = re.compile(r"(?:on|with|without|auf|mit|ohne)\b(?! average)", re.IGNORECASE)
_PLACE = re.compile(
    r"\b(?:on|in|at|with|auf)\s+(?:\w+\s+){0,2}(?:node|server|cluster|partition|queue)\b", re.IGNORECASE
)
_MOMENT = _compile("moment")
_JOINT = re.compile(r"(?:or|plus|oder|ou)\b|或")
_DENIAL = re.compile(
    r"(?:\b(?:no|not|never|without|don'?t|kein\w*|nicht|ohne|sans|pas)|不要?|别|无需)\s*$", re.IGNORECASE
)
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
        is_about_time = (_REPORT.search(self.text) and not _ELSEWHERE.match(self.text)) or _TIME_OF_DAY.search(
            self.written
        )
        return bool(is_about_time) and RULE.search(self.text) is None

    @property
    def head(self) -> tuple[float, ...]:
        """The duration that the clause begins with, apart from words of a limit."""
        return self.seconds[:1] if _HEAD.match(self.text) and not self.is_report else ()

    @property
    def conclusion(self) -> tuple[float, ...]:
        """The only duration of a clause that begins with "so"."""
        return self.seconds if _CONCLUSION.fullmatch(self.text) and not self.changes else ()

    def is_beside(self, limit_s: float, *, is_only: bool = False, is_plain: bool = False) -> bool:
        """Return whether its duration is another thing's, beside a clause that begins with the limit.

        ``is_only``: the limit is a conclusion, and other clauses are its premises. ``is_plain``: the limit is the whole
        run's, so that parts may take less. Time that others grant may end the run where it is shorter.
        """
        text = _INTERVAL.sub(" ", self.text)
        is_part = max(self.seconds) < limit_s and not _NUMBERED.match(text)
        is_others = is_only or text != self.text or (is_part and _OF_PART.search(text) is not None)
        if (_PLACED.match(text) and not is_others) or self.conclusion or _ORDER.search(text):
            return False
        is_head = _HEAD.match(text)
        text = _OF_PART.sub(" ", text) if is_part else text
        if is_head or _TIMES.fullmatch(text) or find_condition(text):
            return False
        if _OF_ANOTHER.search(_PLACE.sub(" ", text)):
            return min(self.seconds) >= limit_s
        is_others = is_others or bool(is_part and is_plain and _TAKES.search(text))
        return bool((is_others or _BESIDE.search(text) or _OF_WRITER.search(text)) and RULE.search(text) is None)

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
        changes = (
            changes
            or _ALTERNATIVE.match(self.text)
            or (_ORDER_TO_GIVE.search(self.text) and re.search(r"\d", self.text))
        )
        return not (changes or _TIMES.fullmatch(self.text) or find_condition(self.text))


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
    clauses: list[Clause] = []
    start = 0
    for begin, end in [*marks, (len(normal), len(normal))]:
        if _AGAIN.search(normal[start:begin]):
            continue
        clause, seconds = mark_durations(normal[start:begin])
        if clause.strip():
            clause = _AT_MOST.sub("at most", clause.replace("more than enough", "enough")).strip()
            clause = _BY_LIMIT.sub("", _ENDED.sub("ended", clause))
            clause = clause if seconds else _INTERVAL.sub(" ", clause)
            said = written[start:begin].strip()
            if clause == MARK and clauses and not clauses[-1].seconds and _OF_WRITER.search(clauses[-1].text):
                above = clauses.pop()  # "i'm in a meeting (90 min)"
                said, clause = f"{above.written}, {said}", f"{above.text} {clause}"
            clauses.append(Clause(said, clause, tuple(seconds)))
        start = end
    return clauses
