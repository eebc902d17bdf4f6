"""What a text says about a time, clause by clause. Pure.

Words of an open class ("on the big node") mean nothing for a limit and are kept as a note; words of a closed one
("until", "per", "at least", "or") may change it, and are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_server.text.durations import find_durations, normalize

_MAX_WORDS = 14  # beside a duration: a longer clause is a story
_CLAUSE = re.compile(
    r"\s*(?:[()（）;；，。|•]|,(?!\d{3})|(?<!\bincl)(?<!\binkl)(?<!\bmax)(?<!\bca)(?<!\bapprox)\.(?=\s|$)"
    r"|(?<!\d)/(?!\d)|(?<=\s)/|/(?=\s)|(?<=\s)[-–—]{1,2}(?=\s))\s*"
    r"|\s+(?=(?:including|incl|inklusive|inkl|davon|of which|dont)\b)"
)
MARK = "\x00"
_AGAIN = re.compile(r"[:：=＝]\s*$")  # a clause that ends so belongs to the next
_ADDRESS = re.compile(
    r"(?:let me know|tell me|ask me|ping me|feel free|happy to|thanks|would you|sag mir|有问题|如有)\b"
)
_JOINT = re.compile(r"(?:or|plus|oder|ou)\b|或")
# "Do not run it longer than" says no more than "at most".
_AT_MOST = re.compile(
    r"(?:\b(?:not?|never|don'?t|nicht|kein\w*|pas|ne)\b|[不勿别])[^\x00;]{0,30}?"
    r"(?:\b(?:more|longer|exceed\w*|over|beyond|above|mehr|länger|plus)\b(?: (?:than|als|de|longtemps))?"
    r"|超过|超出|多于)",
    re.IGNORECASE,
)
# A clause with a bare number, or one that counts parts, each of which may take the time.
_TIMES = re.compile(
    r"\W*\d+\W*|.*\d\s*(?:x|×|\*|times|mal|fois|次)(?![a-z]).*"
    r"|.*\d\s*(?:\w+ )?(?:seed|run|arm|model|stage|phase|task|fold|job|cell|config|experiment|trial"
    r"|repeat|lauf|läufe).*"
    r"|.*\d\s*个?(?:种子|任务|模型|阶段|实验|组|折).*"
)
# The closed class of words that may change what a duration means, wherever they are.
_CONDITION = re.compile(
    r"\b(?:until(?! \x00)|unless|converge\w*|plateau\w*|earl(?:y|ier)|extend\w*|extension|(?<!au )(?<!pas )plus|soft"
    r"|(?:no|without|ohne|sans) (?:(?:time|upper|fixed|hard) ?)?limite?|not sure|unsure|unclear|raise|increase|bump"
    r"|lower|reduce|shorten|halve|adjust|continue|keep (?:it )?(?:going|running)|(?:run|go|carry) on|let it run|renew"
    r"|erhöh\w*|weiterlaufen"
    r"|(?:otherwise|else|sonst|sinon)\b.{0,20}\b(?:longer|more|shorter|less|länger|mehr|\d+)"
    r"|unlimited|endless\w*|forever|indefinite\w*|unbegrenzt|except|whichever|additional(?:ly)?|extra|at least"
    r"|no[t]? less than|minimum|another|remaining|depend(?:s|ing)|as needed|if needed|twice|double|half"
    r"|per (?!run|experiment|job|training|single)\w+|each(?! run| experiment| job)(?= \w)"
    r"|every(?! run| experiment| job)|mindestens|wenigstens|verlänger\w*|außer|zusätzlich"
    r"|(?:je|pro) (?!lauf|experiment|versuch)\w+|jeweils|es sei denn"
    r"|au moins|sauf|prolong\w*|jusqu'à(?! \x00)|par (?!run|exp)\w+)\b"
    r"|直到|除非|不限|无限|不设|没有(?:时间)?限制|不够|再[加续跑说]|追加|商量|另议|看情况|继续|增加|缩短|加到|放宽|不确定|待定|收敛|提前|延长|[至最]少|起码|最低|不[少低小]于|另外|额外|加上|视情况|翻倍|每(?!次|个?(?:实验|任务|运行))|各",
    re.IGNORECASE,
)
# A condition is harmless where it only says when the run is over.
_IF = re.compile(
    r"(?<!even )(?<!auch )(?<!même )\b(?:if|when|once|in case|falls|wenn|sofern|si)\b|若|如果|要是|的话|一旦",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"\b(?:fail\w*|stop\w*|kill\w*|abort\w*|cancel\w*|terminat\w*|ends?|hang\w*|crash\w*|stuck|done|finish\w*|tell|report"
    r"|time[sd]? ?out|reach\w*|exceed\w*|over|abgebrochen|abbrechen|hängt|fertig)\b"
    r"|失败|停|结束|终止|卡|告诉|超时|超过|跑完|完成",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    r"(?:\b(?:no|not|never|without|don'?t|kein\w*|nicht|ohne|sans|pas)|不要?|别|无需)\s*$", re.IGNORECASE
)
# ... and those that do so only beside it.
_CHANGE = re.compile(
    r"\b(?:more|longer|mehr|länger)\b|\bover\b|(?<!pas )\bplus de\b"
    r"|\b(?:guess|maybe|perhaps|might|possibly|vielleicht|vermutlich|peut-être)\b|可能|也许"
    r"|\bas (?:long|much|many) as\b|\bminus\b|\d\W{0,3}\x00|\x00\W{0,3}\d|\d\s*x\b"
    r"|\x00 (?:after|nach|ab)\b(?! (?:the )?(?:start|launch|begin))"
    r"|\b(?:or|oder|ou) (?!killed|stopped|terminated|less|so\b|thereabouts|weniger|moins)|或(?!更少|更短)"
    r"|\b(?:gpu|cpu|node|core|card)s?[- ]?(?:time|hours?)\b|\b(?:queue|checkpoint\w*|interval|cooldown)\b|排队"
    r"|而非\s*\x00|以上|\x00\s*起|\x00.*[?？]"
    r"|\b(?:not|never|can't|won't|isn't|keine?|nicht|pas)\b|不(?!超)|没"
    r"|[×%*≥]|(?<![-=])>|\b(?:start\w*|begin\w*) (?:in|after) \x00|\b(?:in|for) the (?:next|first|last) \x00"
    r"|\x00 (?:left|old|ago|apart)\b"
)
# What other runs took, or this one is expected to take.
_REPORT = re.compile(
    r"\b(?:took|takes|needed|ran|lasted|used|required|finished|ended|converged|was|were|had|did|done in"
    r"|last (?:time|run|week|month|year)|previous(?:ly)?|earlier (?:runs?|ones?|experiments?|attempts?)"
    r"|usual(?:ly)?|typical(?:ly)?|normal(?:ly)?|on average|measured|mostly|often|meist(?:ens)?|oft|gemessen|mesurée?s?"
    r"|including|incl|of which|inklusive|inkl|davon|dont|expect(?:ed)? to|expect(?:ed)?|estimated?|eta|baseline|so far"
    r"|brauchte|dauerte|lief|war|zuletzt|letzte[sn]? mal|bisher|normalerweise|üblicherweise|erwartet|geschätzt"
    r"|a (?:pris|duré)|d'habitude|la dernière fois|normalement|prévue?s?|estimée?s?)\b"
    r"|上次|上一次|上回|之前|以前|此前|通常|一般|往常|平时|预计|预期|估计|实际(?:用|花|需)|其中|包括|包?含|实测|跑了|用了|花了",
    re.IGNORECASE,
)
LIMIT = re.compile(
    r"\b(?:max(?:imum|imal|imale)?|limit|at most|up to|within|no more than|timeout|cap|capped|stop|stopped"
    r"|kill|killed|abort|budget|höchstens|obergrenze|spätestens|plafond|au plus)\b"
    r"|最长|最多|最大|上限|限制|不超过|停止|终止|超时|以内",
    re.IGNORECASE,
)
# A report with one of these words may change the limit.
RULE = re.compile(
    rf"{LIMIT.pattern}|\b(?:must|should|shall|until|till"
    r"|unless|if|but|except|when|as long as|longer|as needed|extend\w*|allow\w*"
    r"|may|can|could|plus|more|add|give|please|instead|now|or|and|then"
    r"|bis|falls|wenn|aber|sonst|oder|und|jusqu|si|mais|ou|et)\b"
    r"|直到|除非|如果|若|则|但|延长|可以|或者?|改为|现在|并",
    re.IGNORECASE,
)
_TIME_OF_DAY = re.compile(r"\b(?:at|um|à)\s+\d{1,2}:\d\d(?![:\d])", re.IGNORECASE)
_MOMENT = re.compile(
    r"\b(?:at|by|until|till|before|um|bis|vor|à|avant|deadline)\s+(?:\w+ )?\d{1,2}:\d\d(?![:\d])"
    r"|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:到|至|截止)\D{0,4}\d{1,2}:\d\d",
    re.IGNORECASE,
)


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
        if "\x00" in self.text or _ADDRESS.match(self.text):
            return "\x00" not in self.text
        limits = LIMIT.search(self.text)  # "then it is stopped" is no more, "10 at most" is
        changes = re.search(r"\d", self.text) if limits else _JOINT.match(self.text)
        return not (changes or _TIMES.fullmatch(self.text) or find_condition(self.text))


def find_condition(text: str) -> bool:
    """Return whether a text has a word that may change a duration; "no extension" has none."""
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
