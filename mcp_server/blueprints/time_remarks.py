"""What people write beside a time limit: how long other runs took, and how they reckoned. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import math
import re

from mcp_server.text.durations import find_durations, normalize
from mcp_server.text.formatting import duration

# Sentences, and what is in brackets or behind a comma: each says one thing.
_CLAUSE = re.compile(r"(?:[()（）;；。，]|\.(?=\s|$)|,(?=\s)|(?<=\s)[-–—]{1,2}(?=\s))\s*")
# What other runs took, or this one is expected to take.
_REPORT = re.compile(
    r"\b(?:took|takes|needed|ran|lasted|used|required|finished|ended|converged|was|were|had|did"
    r"|last (?:time|run|week|month|year)"
    r"|previous(?:ly)?|earlier (?:runs?|ones?|experiments?|attempts?)"
    r"|usual(?:ly)?|typical(?:ly)?|normal(?:ly)?|on average"
    r"|including|incl|of which|inklusive|inkl|davon|dont"
    r"|expect(?:ed)? to|expected|estimated?|baseline|so far"
    r"|brauchte|dauerte|lief|war|zuletzt|letzte[sn]? mal|bisher|normalerweise|üblicherweise|erwartet|geschätzt"
    r"|a (?:pris|duré)|d'habitude|la dernière fois|normalement|prévue?s?|estimée?s?)\b"
    r"|上次|上一次|上回|之前|以前|此前|通常|一般|往常|平时|预计|预期|估计|实际(?:用|花|需)|其中|包括|包含",
    re.IGNORECASE,
)
# A report with one of these words may change the limit.
_RULE = re.compile(
    r"\b(?:max(?:imum|imal)?|limit|at most|up to|within|must|should|shall|stop|stopped|kill|killed|abort|until|till"
    r"|unless|if|but|except|when|as long as|longer|as needed|extend\w*|allow\w*"
    r"|may|can|could|plus|more|add|give|please|instead|now|or|and|then"
    r"|höchstens|maximal|bis|falls|wenn|aber|sonst|oder|und"
    r"|jusqu|si|mais|ou|et|au plus)\b"
    r"|最长|最多|上限|限制|不超过|停止|终止|直到|除非|如果|若|则|但|延长|可以|或者?|改为|现在|并",
    re.IGNORECASE,
)
_TIME_OF_DAY = re.compile(r"\b(?:at|um|à)\s+\d{1,2}:\d\d(?![:\d])", re.IGNORECASE)
_AGAIN = re.compile(r"[:：=＝]\s*$")  # a clause that ends so belongs to the next
_UNITS = r"\s*(?:[^\W\d_]+\s*)"  # what is counted, as "seeds"
_TIMES = r"\s*(?:[x×*·]|mal|fois|乘以?)\s*"
_RECKONING = re.compile(
    rf"(?:(?P<count1>\d{{1,4}}){_UNITS}{{0,2}}{_TIMES}\x00|\x00{_TIMES}(?P<count2>\d{{1,4}}){_UNITS}{{0,2}}?"
    rf"|(?P<sum>\x00(?:{_UNITS}){{0,2}}(?:\s*(?:\+|plus)\s*\x00(?:{_UNITS}){{0,2}})+))"
)
_EQUALS = r"\s*(?:=|＝|->|→|等于|共)\s*"
_MARK = "\x00"


def is_report(text: str) -> bool:
    """Return whether a text only says how long something took, or should take."""
    if _REPORT.search(text) is None and _TIME_OF_DAY.search(text) is None:
        return False
    normal = normalize(text)
    for each in reversed(find_durations(text)):  # "4 hours and 50 minutes" has no rule
        normal = f"{normal[: each.start]}{_MARK}{normal[each.end :]}"
    return _RULE.search(normal) is None


def split_remarks(text: str) -> tuple[str, list[str]]:
    """Return a time limit without the clauses that only report a time, and these clauses.

    Nothing is a remark where no duration would remain.
    """
    parts: list[str] = []
    start = 0
    for end in [*(match.end() for match in _CLAUSE.finditer(text)), len(text)]:
        if end > start and not _AGAIN.search(text[start:end]):
            parts.append(text[start:end])
            start = end
    remarks = [part for part in parts if is_report(part)]
    kept = "".join(part for part in parts if part not in remarks).strip(" \t,;，；(（")
    if not remarks or not find_durations(kept):
        return text, []
    return kept, [remark.strip(" \t,;，；。.()（）") for remark in remarks]


def resolve_reckoning(text: str) -> tuple[str, str]:
    """Return ``3 x 4 hours = 12 hours`` as ``12 hours``, and why a reckoning is wrong; text without one as it is."""
    normal = normalize(text)
    durations = find_durations(text)
    if len(durations) < 2:  # noqa: PLR2004 - a part and the whole
        return text, ""
    marked, end = "", 0
    for each in durations:
        marked += normal[end : each.start] + _MARK
        end = each.end
    marked += normal[end:]
    for match in _RECKONING.finditer(marked):
        behind = re.match(rf"{_EQUALS}\x00", marked[match.end() :])
        before = re.search(rf"\x00\s*(?:{_EQUALS}|[(（]\s*(?:=\s*)?)$", marked[: match.start()])
        if not (behind or before):
            continue
        first = marked[: match.start()].count(_MARK)
        used = match[0].count(_MARK)
        count = int(match["count1"] or match["count2"] or 1)
        reckoned = count * sum(each.seconds for each in durations[first : first + used])
        whole = durations[first + used] if behind else durations[first - 1]
        if not math.isclose(reckoned, whole.seconds):
            return text, f"{normal[:60]!r} makes {duration(reckoned)}, not {duration(whole.seconds)}"
        head = marked[: before.start() if before else match.start()]
        tail = marked[match.end() + (behind.end() if behind else 0) :]
        kept = [*durations[: head.count(_MARK)], whole, *durations[len(durations) - tail.count(_MARK) :]]
        left = f"{head}{_MARK}{tail}"
        for each in kept:
            left = left.replace(_MARK, f" {normal[each.start : each.end]} ", 1)
        return re.sub(r"^\s*[)）]|(?<=\s)[)）]", " ", left).strip(), ""
    return text, ""
