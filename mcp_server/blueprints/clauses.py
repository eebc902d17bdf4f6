"""The clauses of a text about a time, and their meaning for a limit. Pure.

A clause that begins with a duration, or has words of a limit, states one. Any other has a subject of its own: its
duration is another thing's, unless words of a closed class ("until", "per", "at least", "or", "use") may change the
limit. Words of an open class ("on the big node") mean nothing for a limit, and are kept as a note.
"""

import re
from dataclasses import dataclass

from mcp_server.text.durations import find_durations, normalize
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("blueprints/patterns", "clauses")
_MAX_WORDS = 14  # beside a duration: a longer clause is a story
_MAX_LABEL_WORDS = 5  # "the run with 8 experts: 13 hours"
MARK = "\ue001"
_SORTS = {
    block[0][1]: "|".join(value for key, value in block if key == "words")
    for block in read_blocks("blueprints/clauses")
}


def _compile(*sorts: str) -> re.Pattern[str]:
    return re.compile("|".join(_SORTS[sort] for sort in sorts), re.IGNORECASE)


ADDRESS, LIMIT, RULE = _compile("address"), _compile("limit"), _compile("limit", "rule")
_AT_MOST, _TIMES, _IF, _OVER, _CHANGE = map(_compile, ("at most", "times", "if", "over", "change"))
_CONDITION, _REPORT, _MOMENT, _ORDER = map(_compile, ("condition", "report", "moment", "order"))
_ENDS_ITSELF, _GOES_FARTHER = _compile("ends itself"), _compile("goes farther")
_OF_ANOTHER, _BESIDE, _OF_WRITER = map(_compile, ("of another", "beside", "of writer"))
_OTHERS, _PART = _compile("machine", "part", "plan"), _compile("part")
_WORD = rf"(?:{_SORTS['limit']}|{_SORTS['filler']})"
_HEAD = re.compile(rf"(?:{_WORD}|[^\w{MARK}])*{MARK}", re.IGNORECASE)
PLAIN_HEAD = re.compile(rf"{_HEAD.pattern}(?:{_WORD}|\W)*", re.IGNORECASE)


@dataclass(frozen=True)
class Clause:
    """A text between two marks of punctuation: as written, and in normal form with ``MARK`` for each duration.

    ``is_aside``: it stands in brackets, or behind a #.
    """

    written: str
    text: str
    seconds: tuple[float, ...] = ()
    is_aside: bool = False

    @property
    def is_report(self) -> bool:
        """Whether it only says how long something took, or should take."""
        is_about_time = _REPORT.search(self.text) and not _RX.elsewhere.match(self.text)
        return bool(is_about_time or _RX.time_of_day.search(self.written)) and RULE.search(self.text) is None

    @property
    def head(self) -> tuple[float, ...]:
        """The duration that the clause begins with, apart from words of a limit."""
        is_other = self.is_report or self._is_compared
        return self.seconds[:1] if _HEAD.match(self.text) and not is_other else ()

    @property
    def _is_compared(self) -> bool:
        """Whether it has the time of another run in brackets: ``(2 days without bf16)``."""
        return self.is_aside and _RX.compared.match(self.text) is not None

    @property
    def is_own_time(self) -> bool:
        """Whether it says what the run itself needs: ``it runs for about 40 s``, which alone is a limit."""
        return _RX.own_time.fullmatch(self.text) is not None

    @property
    def conclusion(self) -> tuple[float, ...]:
        """The only duration of a clause that begins with "so"."""
        return self.seconds if _RX.conclusion.fullmatch(self.text) and not self.changes else ()

    def is_beside(self, limit_s: float, *, is_only: bool = False, is_plain: bool = False) -> bool:
        """Return whether its duration is another thing's, beside a clause that begins with the limit.

        ``is_only``: the limit is a conclusion, and other clauses are its premises. ``is_plain``: the limit is the whole
        run's, so that its parts take less. Time that others grant may end the run where it is shorter.
        """
        text = _RX.interval.sub(" ", self.text)
        is_shorter = max(self.seconds) < limit_s
        is_others = is_only or text != self.text
        if self._is_compared or (is_shorter and is_plain and self.is_own_time):
            return True
        if self.conclusion or _ORDER.search(text) or _HEAD.match(text):
            return False
        if is_shorter and not _PART.match(text):
            is_others, text = is_others or bool(_RX.of_part.search(text)), _RX.of_part.sub(" ", text)
        if _TIMES.fullmatch(text):
            return False
        if find_condition(text) or (_RX.placed.match(text) and not is_others):
            return False
        if _OF_ANOTHER.search(_RX.place.sub(" ", text)):
            return min(self.seconds) >= limit_s
        if RULE.search(text):
            return False
        label = text.partition(":")[0] if MARK not in text.partition(":")[0] else ""
        named = bool(re.search(r"\d", label)) and len(label.split()) <= _MAX_LABEL_WORDS
        said = text.removeprefix(f"{label}:")
        is_own = not (_OTHERS.search(text) or _CHANGE.search(said) or _RX.participle.match(text))
        is_part = is_shorter and is_plain and is_own and _RX.takes.match(text)
        return bool(is_others or is_part or (named and is_own) or _BESIDE.search(text) or _OF_WRITER.search(text))

    @property
    def changes(self) -> bool:
        """Whether it has a word that changes the duration in it, or so many words that it tells something else."""
        words = re.findall(r"[^\W\d_\u4e00-\u9fff]+|[\u4e00-\u9fff]{1,4}", self.text)
        changing = find_condition(self.text) or _CHANGE.search(self.text) or _MOMENT.search(self.written)
        return bool(changing) or len(words) > _MAX_WORDS

    @property
    def is_remark(self) -> bool:
        """Whether it has no duration, and changes none."""
        if MARK in self.text or ADDRESS.match(self.text):
            return MARK not in self.text
        text = _RX.of_part.sub(" ", self.text)
        limits = LIMIT.search(text)  # "then it is stopped" is no more, "10 at most" is
        changes = re.search(r"\d", text) if limits else _RX.joint.match(text)
        changes = changes or _RX.alternative.match(text) or (_RX.to_give.search(text) and re.search(r"\d", text))
        return not (changes or _TIMES.fullmatch(text) or find_condition(text))


def find_condition(text: str) -> bool:
    """Return whether a text has a word that may change a duration; "no extension" has none."""
    if not _GOES_FARTHER.search(text):
        text = _ENDS_ITSELF.sub(" ", text)
    if _IF.search(text) and not _OVER.search(text):
        return True
    return any(_RX.denial.search(text[: match.start()]) is None for match in _CONDITION.finditer(text))


def mark_durations(text: str) -> tuple[str, list[float]]:
    """Return a text in normal form with ``MARK`` for each duration, and their seconds."""
    marked, durations = normalize(text), find_durations(text)
    for each in reversed(durations):
        marked = f"{marked[: each.start]}{MARK}{marked[each.end :]}"
    return marked, [each.seconds for each in durations]


def split_clauses(text: str, *, keeps_durations: bool = True) -> list[Clause]:
    """Return the clauses of a text. ``keeps_durations``: the comma in ``1 day, 12:00:00`` separates nothing."""
    text = _RX.slash.sub(" per ", text)
    normal = normalize(text)
    written = text if len(text) == len(normal) else normal
    inside = [(each.start, each.end) for each in find_durations(text)] if keeps_durations else []
    marks = [m.span() for m in _RX.mark.finditer(normal) if not any(a < m.end() and m.start() < b for a, b in inside)]
    clauses: list[Clause] = []
    start, sign, is_aside = 0, "", False
    for begin, end in [*marks, (len(normal), len(normal))]:
        clause, seconds = mark_durations(normal[start:begin])
        is_colon = normal[begin:end].strip() in (":", "：") and bool(end > begin)
        is_value = not seconds or not keeps_durations or re.match(r"\W*(?:about |ca\.? )?\d", normal[end:])
        if _RX.again.search(normal[start:begin]) or (is_colon and is_value):
            continue
        if clause.strip():
            is_aside = (sign in "(（#" and bool(sign)) or (is_aside and sign in ",，;；")
            clause = _AT_MOST.sub("at most", clause.replace("more than enough", "enough")).strip()
            clause = _RX.by_limit.sub("", _RX.ended.sub("ended", clause))
            clause = clause if seconds else _RX.interval.sub(" ", clause)
            clause = clause if not seconds and LIMIT.search(clause) else _RX.cost.sub(" ", clause).strip()
            said = written[start:begin].strip()
            above = clauses[-1] if clauses else None
            if (
                clause == MARK
                and above
                and not above.seconds
                and not LIMIT.search(above.text)
                and (is_aside or _OF_WRITER.search(above.text))
            ):
                clauses.pop()  # "i'm in a meeting (90 min)"
                said, clause = f"{above.written}, {said}", f"{RULE.sub(' ', above.text)} takes {clause}"
            clauses.append(Clause(said, clause, tuple(seconds), is_aside))
        start, sign = end, normal[begin:end].strip()[:1]
    return clauses
