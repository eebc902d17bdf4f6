"""The time limit of a blueprint, and the time to its first step. Pure.

Every duration has a part: the limit, a part of a total, a report of other runs, or the first step.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mcp_server.blueprints.clauses import (
    LIMIT,
    MARK,
    PLAIN_HEAD,
    RULE,
    Clause,
    find_condition,
    mark_durations,
    split_clauses,
)
from mcp_server.blueprints.fields import ABSENT, BlueprintReader, content_items
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.sections import Section, SectionItem, is_explanation, read_items
from mcp_server.errors import PatternError
from mcp_server.text.durations import COUNTED, find_durations, normalize, parse_with_unit
from mcp_server.text.formatting import duration
from mcp_server.text.regex import compile_user_pattern

MAX_TIME_S = 60 * 86_400.0
_REMEDY = "Write one duration, as 24 hours or 90 min"
_MAX_FIRST_STEP_LINES = 200  # of the notes; the rest of a pasted log is not read
_MAX_CHARS = 1_500
_FEW_WORDS = 4  # beside a duration: "at most 12 hours" needs no note
_MAX_PARTS = 4  # of a reckoning
_FIRST_STEP = re.compile(
    r"first[-_ ](?:training |optimi[sz]er |gradient |global )?(?:step|iteration|update)|first (?:\S+ ){0,3}loss"
    r"|erste[rnms]? (?:trainings)?schritt"
    r"|第一个?步|首个?步|(?:第一个|首个|第一次|第一条)(?=.{0,12}(?:loss|step|kl|步|迭代|指标|日志|输出|损失))",
    re.IGNORECASE,
)
_DUE = re.compile(r"\b(?:fail\w*|due|before|no later)\b|失败|内", re.IGNORECASE)
_AFTER = re.compile(r"\b(?:after|since|from|nach|ab)\s+(?:the |dem |der )?\x01|\x01[之以]?后")
_CONSEQUENCE = re.compile(r"(?:fail\w*|report\w*|stop\w*|abort\w*|look for .*|当.*|否则.*|\W*)")
_PLAIN_LABEL = re.compile(r"[\W\d_]*|(?:content|value|time|内容|值|时间)\s*\d*")
_PATTERN_LABEL = re.compile(r"first[-_ ]step[-_ ]pattern|首步(?:模式|正则)")
_LINE_WITH = re.compile(
    r"\bline (?:with|containing|that (?:has|contains|shows|names))\b|包含.{0,20}的(?:第一)?行", re.IGNORECASE
)
_QUOTED_NAME = re.compile(r"[`\"“「']([A-Za-z][\w /_.@-]{2,60})[`\"”」']")
_GROUPED = re.compile(
    r"(?<![\d.,:])[1-9]\d{0,2}(?:\.\d{3}(?![\d.])(?=\s*[a-zäöüß])|,\d{3}(?=\s*(?:minuten|stunden|sekunden|tage)))"
)
_UNIT_BEHIND = re.compile(r"(\d)\s*[(（](\w+)[)）]")  # `86400 (seconds)`
_SHORT_CLOCK = re.compile(r"(?:2[4-9]|[3-9]\d|\d{3,}):[0-5]\d")  # 24:00 and more: to Slurm, minutes and seconds
_SEVERAL = re.compile(r"[一二三四五六七八九两]{2,}(?=[个個小时時天日分周])")  # 三四个小时: three or four hours
_TO = r"\s*(?:-|~|–|—|to|bis|und|and|à|至|到|or|oder|ou|或|,)\s*"
_RANGE = re.compile(
    rf"[\d\x00]{_TO}\x00(?!\s*[=＝])|\d\s*(?:[a-z\u4e00-\u9fff]{{0,7}})(?!\s*(?:,|and|und)\s*){_TO}\d+(?:\.\d+)?\s*[a-z个小天分]"
)
_MAX_TIME_LABEL = re.compile(r"^\$?\{?max_?time\}?\s*(?:[=:：]-?)\s*", re.IGNORECASE)
_MACHINE_TIME = re.compile(r"\b(?:gpu|cpu|node|core|card)s?[- ]?(?:time|hours?)\b", re.IGNORECASE)
_COUNT = re.compile(
    rf"[0-9][0-9.,_]*(?:e[0-9]+)?\s*(?:k|m|b|million|billion|thousand|万|亿|百万|千)?\s*(?:个|次)?\s*{COUNTED}\b",
    re.IGNORECASE,
)
_OF_EACH = re.compile(rf"(?:{_COUNT.pattern})\s*(?:of|at|à|x|×|\*|zu|je|@|each)\s*\x00", re.IGNORECASE)
_COUNT_JOINT = re.compile(
    r"\b(?:or|and|whichever (?:comes|is|happens) (?:first|earlier|sooner)"
    r"|(?:whatever|which) comes first)\b|或者?|以先到者为准|先到(?:者)?为准",
    re.IGNORECASE,
)
# Signs that durations are parts of a whole, and that one is the whole.
_EQUALS = re.compile(
    r"[\x00\d][^=＝;；()（）,，]{0,60}?(?:=|＝|->|→|⇒|等于|\bmakes\b|\bmacht\b)\s*(?P<whole>\x00)"
    r"|(?P<front>\x00)\s*[(（]?\s*(?:=|＝)"
)
_TOTAL = (
    r"(?:total|overall|altogether|together|in all|insgesamt|zusammen|gesamt\w*|au total|en tout"
    r"|总共|一共|共计|合计|总计|共|总)"
)
_TOTALLED = re.compile(
    rf"{_TOTAL}\W{{0,3}}(?:is |of |about |约)?(?P<whole>\x00)|(?P<front>\x00) ?(?:in )?[(（]?{_TOTAL}(?!\s*\x00)"
)
_PRODUCT = re.compile(r"[x×*·+]|\b(?:mal|fois|plus|per|each|every|je|pro|par|times)\b|乘|每|各|个|/")
_PLUS = re.compile(r"(?<=\w)\s*\+|\b(?:plus|and|und|et)\b|加")
_RESERVE = re.compile(
    r"\b(?:reserve|buffer|margin|slack|spare|safety|headroom|overhead|extra|puffer|marge)\b|余量|缓冲|预留"
)
_DERIVED = re.compile(
    rf"(?P<limit>[^()=]*?)(?:\((?P<parts>(?!\W*(?:\+|plus\b))[^()]*(?:{_PLUS.pattern})[^()]*)\)|=(?P<sum>[^()=]+))\W*"
)
_LIMIT_ENDS = re.compile(r"\W*(?:(?:in )?total|max\w*|at most|wall[- ]?clock)?\W*")
_NUMBER_WORDS = "two three four five six seven eight nine ten".split()  # noqa: SIM905 - in order
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b")
_CHANGED = re.compile(r"\b[a-z]+ed from \x00 to (?=\x00)|从\s*\x00.{0,6}到\s*(?=\x00)")
_NO_ORDER = (
    r"(?:(?!\b(?:stop|kill|cancel|abort|extend|give|or|otherwise|else|sonst|oder|abbrechen)\b|[停杀终延])[^.;。；)）])*"
)
_REPORT_BACK = re.compile(  # "if it is still at 0 after 6 hours, tell me"
    r"(?:^|(?<=[.;!(。；！（]))\s*(?:注意[:：=\s]*)?(?:(?:if|when|once|in case|falls|wenn)\b|如果|若|一旦)"
    rf"{_NO_ORDER}(?:\b(?:tell|ping|call|notify|let) (?:me|us)|\bsag mir|告诉我|通知我|联系我)"
    rf"{_NO_ORDER}(?:[.;。；)）]|$)",
    re.IGNORECASE,
)
_UNIT_PART = re.compile(r"\b(?:per|each|every|je|pro|par)\b|每|各|/")


def read_time_limit(reader: BlueprintReader) -> float | None:
    """Return the time limit in seconds. None if the default applies."""
    entries = _read_clauses(reader)
    entries = _keep_total(reader, entries)
    clauses = [clause for _, clauses in entries for clause in clauses]
    has_named = any(len(set(clause.seconds)) == 1 and LIMIT.search(clause.text) for clause in clauses)
    heads = {seconds for clause in clauses for seconds in clause.head}
    is_plain = any(clause.head and PLAIN_HEAD.fullmatch(clause.text) for clause in clauses)
    stated = heads or {seconds for clause in clauses for seconds in clause.conclusion}
    limits: list[tuple[int, float]] = []
    for item, of_item in entries:
        remarks = [
            clause
            for clause in of_item
            if clause.is_report
            or (
                clause.seconds
                and len(stated) == 1
                and clause.is_beside(min(stated), is_only=not heads, is_plain=is_plain)
            )
            or (has_named and _RANGE.search(clause.text) and clause.seconds and not RULE.search(clause.text))
        ]
        for clause in remarks:
            reader.add_note("max_time", clause.written)
        limits += [
            (item.line, seconds) for seconds in _read_limits(reader, item, [c for c in of_item if c not in remarks])
        ]
        if any(fault.line == item.line and fault.fatal for fault in reader.faults):
            return None
    if entries and not limits:
        item = entries[0][0]
        cause = (
            "says how long it takes, not how long it may" if any(c.seconds for c in clauses) else "is not a duration"
        )
        reader.add_fault(item.line, f"[exp_max_time] {cause}: {item.text[:60]!r}. {_REMEDY}.")
    return _choose_time_limit(reader, limits)


_Entries = list[tuple[SectionItem, list[Clause]]]


def _read_clauses(reader: BlueprintReader) -> _Entries:
    """Return the items of the section with their clauses; none where one cannot be read, or says that there is none."""
    entries: _Entries = []
    for item in content_items(reader, "max_time"):
        if _FIRST_STEP.search(item.label) and not find_durations(item.label):
            continue
        if find_durations(item.label):  # "72 hours = 3 days" is one text
            is_value = re.match(r"\W*(?:about |ca\.? )?\d", item.text)
            is_open = item.label.count("(") > item.label.count(")")  # "16 hours (8 experts: 13 hours)"
            sign = (
                ";"
                if not is_value and not is_open
                else ":"
                if is_open or _FIRST_STEP.search(item.label) or re.search(_TOTAL, item.label)
                else " ="
            )
            item = replace(item, label="", text=f"{item.label}{sign} {item.text}")  # noqa: PLW2901
        value = _MAX_TIME_LABEL.sub("", item.text.strip("`*\"' ")).strip("`*\"' ")
        if back := _REPORT_BACK.search(value):
            reader.add_note("max_time", back[0])
            value = value.replace(back[0], " ")
        is_absent = ABSENT.fullmatch(value) and not find_durations(value)
        if is_absent and not any(clause.seconds for _, clauses in entries for clause in clauses):
            return []
        value, cause = ("", "") if is_absent else _read_value(value)
        if cause or reader.has_placeholder("max_time", item.line, value):
            if cause:
                reader.add_fault(item.line, f"[exp_max_time]{cause}. {_REMEDY}.")
            return []
        if (clauses := split_clauses(value)) or back:
            entries.append((replace(item, text=value), _add_label(item.label, clauses)))
    return entries


def _read_value(value: str) -> tuple[str, str]:
    """Return a text with its reckoning done and its first-step rule left out, and why it is none, or an empty text."""
    if len(value) > _MAX_CHARS:
        return "", f" is not a duration: it has {len(value):,} characters"
    value = _UNIT_BEHIND.sub(r"\1 \2", value)
    value = _take_first_step(value).rest if _FIRST_STEP.search(value) else value
    value, wrong = _reckon(value)
    unclear = wrong or _find_unclear_number(value)
    return value, f": {unclear}" if unclear else ""


def _reckon(text: str) -> tuple[str, str]:
    """Return the whole alone where a text has a whole and its parts, and why a reckoning is wrong.

    ``3 x 4 hours = 12 hours``, ``4 h per arm, 3 arms (12 h)``, ``10 h plus 2 h reserve = 12 h``: a text is one where a
    sign says so and its numbers make the whole, or where an equals sign is wrong about it. Any other stays as it is.
    """
    marked, seconds = mark_durations(text)
    if not 1 < len(seconds) <= _MAX_PARTS or len(set(seconds)) == 1:
        return text, ""
    if changed := _CHANGED.search(marked):  # "raised from 8 h to 12 h"
        now = find_durations(text)[marked[: changed.end()].count(MARK)]
        behind = normalize(text)[now.end :]
        is_kept = find_durations(behind) or find_condition(behind)
        return normalize(text)[now.start : None if is_kept else now.end], ""
    if limit := _find_derived(normalize(text), seconds):  # "13 hours (11 h + reserve)"
        return limit, ""
    equals, total = _EQUALS.search(marked), _TOTALLED.search(marked)
    sign = equals or total
    numbers = _NUMBER_WORD.sub(lambda word: str(_NUMBER_WORDS.index(word[0]) + 2), marked)
    counts = [float(n) for n in re.findall(r"(?<![\w.])[1-9]\d{0,3}(?![\w.]*\d|k)", numbers)]
    counts += [float(n) for n in re.findall(r"[x×*]\s*(\d\.\d+)", marked)]
    wholes = _find_wholes(marked, seconds, sign)
    if not wholes or find_condition(_PRODUCT.sub(" ", marked)):  # "4 h per arm, 12 h in total, extended if needed"
        return text, ""
    for whole in wholes:
        parts = [each for index, each in enumerate(seconds) if index != whole]
        is_unit = sign is not None and not counts and _UNIT_PART.search(marked)  # "4 h per seed, 12 h in total"
        if _makes(parts, counts, seconds[whole]) or (is_unit and max(parts) < seconds[whole]):
            each = find_durations(text)[whole]
            return normalize(text)[each.start : each.end], ""
    is_apart = re.search(r"[(.]", marked[marked.index(MARK) : sign.start()] if sign else "")  # of other durations
    if is_apart or (equals is None and (total is None or not counts)):
        return text, ""
    made = sum(each for index, each in enumerate(seconds) if index != wholes[0]) * math.prod(counts)
    return text, f"{normalize(text)[:60]!r} makes {duration(made)}, not {duration(seconds[wholes[0]])}"


def _find_wholes(marked: str, seconds: Sequence[float], sign: re.Match[str] | None) -> list[int]:
    """Return which durations may be the whole, the likeliest first."""
    if sign is not None:
        at = marked[: sign.start("whole") if sign["whole"] else sign.start("front")].count(MARK)
        return [at, *([0] if at and sign.re is _EQUALS and len(seconds) == 2 else [])]  # noqa: PLR2004 - either
    if _PRODUCT.search(marked):
        return [index for index, each in enumerate(seconds) if each == max(seconds)]
    is_sum = len(seconds) > 2 and math.isclose(sum(seconds[1:]), seconds[0])  # noqa: PLR2004 - "18 h (training 16 h, eval 2 h)"
    return [0] if is_sum else []


def _find_derived(text: str, seconds: Sequence[float]) -> str:
    """Return the limit alone where the parts in brackets, or with a reserve behind an equals sign, make no more."""
    match = _DERIVED.fullmatch(text)
    limits = find_durations(match["limit"]) if match else []
    if match is None or len(limits) != 1 or not _LIMIT_ENDS.fullmatch(match["limit"][limits[0].end :]):
        return ""
    parts = mark_durations(_PLUS.sub(" ", match["parts"] or match["sum"]))[0]
    is_other = match["sum"] and not _RESERVE.search(parts)  # "13 h = 11 h + 1 h" is wrong
    rest = _RESERVE.sub(" ", parts)
    is_other = is_other or re.search(r"\d|%", rest) or find_condition(rest) or RULE.search(rest)
    return "" if is_other or sum(seconds[1:]) > seconds[0] else match["limit"]


def _makes(parts: Sequence[float], counts: Sequence[float], whole: float) -> bool:
    """Return whether parts make a whole: their sum, each or all of them taken a number of times."""
    factors = {1, *counts[:_MAX_PARTS], math.prod(counts[:_MAX_PARTS])}
    sums = {
        sum(factor * part for factor, part in zip(chosen, parts, strict=True))
        for chosen in itertools.product(factors, repeat=len(parts))
    }
    return any(math.isclose(factor * each, whole) for each in sums for factor in factors)


def _keep_total(reader: BlueprintReader, entries: _Entries) -> _Entries:
    """Return the item of the total alone where a list has a total and its parts, which make it."""
    timed = [(item, clauses) for item, clauses in entries if any(clause.seconds for clause in clauses)]
    totals = [entry for entry in timed if _TOTALLED.search("; ".join(clause.text for clause in entry[1]))]
    if len(timed) < 2 or len(totals) != 1:  # noqa: PLR2004 - a part and the total
        return entries
    total = totals[0]
    text = "; ".join(f"{item.text} ({item.label})" for item, _ in timed)
    made, wrong = _reckon(text)
    if wrong or made == text:
        return entries
    for item, _ in entries:
        if item is not total[0]:
            reader.add_note("max_time", f"{item.label}: {item.text}" if item.label else item.text)
    return [total]


def _add_label(label: str, clauses: list[Clause]) -> list[Clause]:
    """Return the clauses of an item with its label in front, unless that says nothing about a time."""
    if is_explanation(label) or not label or _PLAIN_LABEL.fullmatch(label) or _FIRST_STEP.search(label):
        return clauses
    first, *others = clauses or [Clause("", "")]
    return [replace(first, written=f"{label}: {first.written}", text=f"{label}: {first.text}"), *others]


def _find_choice(seconds: Sequence[float], text: str, written: str) -> str:
    """Return why the durations of an item are more than one limit, or an empty text."""
    if _RANGE.search(text if seconds else normalize(written)):
        return f"is a range, {written[:60]!r}"
    if len(seconds) > 1:
        return f"names two durations, {duration(seconds[0])} and {duration(seconds[1])}, in {written[:60]!r}"
    return ""


def _read_limits(reader: BlueprintReader, item: SectionItem, clauses: list[Clause]) -> Iterator[float]:
    for heading in (reader.sections["max_time"].heading, item.label):
        if (
            clauses
            and not _MACHINE_TIME.search(heading)
            and (with_unit := parse_with_unit(item.text, heading)) is not None
        ):
            yield with_unit
            return
    seconds = list(dict.fromkeys(each for clause in clauses for each in clause.seconds))
    text = "; ".join(clause.text for clause in clauses)
    if cause := _find_choice(seconds, text, item.text):
        reader.add_fault(item.line, f"[exp_max_time] {cause}: write one duration.")
        return
    counts = [match[0].strip() for match in _COUNT.finditer(text)]
    if counts and seconds and (product := _OF_EACH.search(text)):
        cause = f"{product[0][:-1].strip()!r} is a part of the time: write the whole"
        reader.add_fault(item.line, f"[exp_max_time]: {cause}, as 24 hours or 90 min.")
        return
    if counts and seconds:
        cause = f"only the time is kept, not {' and '.join(map(repr, counts))}: write that into the command."
        reader.add_fault(item.line, f"[exp_max_time]: {cause}", fatal=False)
        clauses = [replace(c, text=_COUNT_JOINT.sub(" ", _COUNT.sub(" ", c.text))) for c in clauses]
    for clause in clauses:
        if clause.changes if clause.seconds else not clause.is_remark:
            if not seconds and not find_condition(clause.text):
                continue  # no duration at all is a fault of its own
            left = re.sub(r"\s*\x00\s*", " … ", clause.text).strip(" ,.:;…")
            cause = f"{left[:60]!r} cannot be kept beside a duration. {_REMEDY}; the rest is a note."
            reader.add_fault(item.line, f"[exp_max_time]: {cause}")
            return
        if not clause.seconds or len(clause.text.split()) > _FEW_WORDS:
            reader.add_note("max_time", clause.written)
    yield from seconds


@dataclass(frozen=True)
class _TimedText:
    """A text without its first-step rule. ``first_step_s`` is that of the rule, ``rule`` its words."""

    rest: str
    first_step_s: float | None = None
    rule: str = ""


def _take_first_step(text: str) -> _TimedText:
    """Split a text from its first-step rule: ``24h / first step 20min`` has the rest ``24h``."""
    rest: list[str] = []
    seconds: float | None = None
    rule = ""
    awaits_time = False
    for clause in split_clauses(text, keeps_durations=False):
        phrase = _FIRST_STEP.search(clause.text)
        if phrase and _AFTER.search(f"{clause.text[: phrase.start()]}\x01{clause.text[phrase.end() :]}"):
            phrase = None  # a limit that begins there
        if phrase and len(set(clause.seconds)) > 1:  # "24 hours with 20 min for the first step"
            marks = [mark.start() for mark in re.finditer(MARK, clause.text)]
            chosen = min(range(len(marks)), key=lambda n: max(marks[n] - phrase.end(), phrase.start() - marks[n]))
            seconds = clause.seconds[chosen] if seconds is None else seconds
            rule = rule or clause.written
            normal = normalize(clause.written)
            taken = find_durations(clause.written)[chosen]
            rest.append(_FIRST_STEP.sub(" ", f"{normal[: taken.start]} {normal[taken.end :]}"))
        elif phrase or (awaits_time and clause.seconds):  # as in "first step, within 20 min"
            seconds = clause.seconds[0] if clause.seconds and seconds is None else seconds
            awaits_time = not clause.seconds
            rule = ", ".join(filter(None, (rule, clause.written)))
        elif rule and clause.seconds and set(clause.seconds) == {seconds}:
            continue  # the rule again: "if none is seen after 20 minutes, it failed"
        elif clause.seconds or not _CONSEQUENCE.fullmatch(clause.text):
            rest.append(clause.written)
    return _TimedText(", ".join(rest), seconds, rule)


def _find_unclear_number(value: str) -> str:
    """Return why a number means one thing to one reader and another to the next, or an empty text."""
    text = normalize(value)
    if grouped := _GROUPED.search(text):
        return f"{grouped[0]!r} is one number in English and another in German"
    if clock := _SHORT_CLOCK.fullmatch(text.strip()):
        return f"{clock[0]!r} may be hours and minutes, or minutes and seconds"
    if several := _SEVERAL.search(text):
        return f"{several[0]!r} is more than one number"
    return ""


def read_first_step(reader: BlueprintReader, notes: Sequence[SourceLine]) -> tuple[float | None, str | None]:
    """Return the time to the first step in seconds and the pattern of its line. None for what is absent."""
    limit_section = reader.sections.get("max_time")
    items = list(read_items(limit_section)) if limit_section and limit_section.exact is None else []
    items += read_items(Section("notes", 0, lines=_lines_about_first_step(notes)))
    rules: list[tuple[int, float, str | None]] = []
    line_pattern: str | None = None  # of a rule that names the line and no time
    candidates = [item for item in items if len(item.text) < _MAX_CHARS and _FIRST_STEP.search(_words(item))]
    for item in candidates[:_MAX_FIRST_STEP_LINES]:
        words = _words(item)
        timed = _take_first_step(words)
        seconds = timed.first_step_s
        if seconds is None and _FIRST_STEP.search(item.label) and not _PATTERN_LABEL.search(item.label):
            seconds = parse_with_unit(item.text.strip("`*\"' "), item.label)
            if seconds is None and re.fullmatch(r"[`*\"' ]*[\d.]+[`*\"' ]*", item.text):
                text = f"the time to the first step has no unit: {item.text[:40]!r}. Write e.g. 20 min."
                reader.add_fault(item.line, text, section="first_step")
                continue
        if seconds is None and _LINE_WITH.search(words):
            line_pattern = line_pattern or _pattern_of_name(words)
        if seconds is None or (Clause(timed.rule, timed.rule).is_report and not _DUE.search(timed.rule)):
            continue
        if not 0 < seconds <= MAX_TIME_S:
            text = f"the time to the first step is not usable: {duration(seconds)}. Write e.g. 20 min."
            reader.add_fault(item.line, text, section="first_step")
            continue
        start = _FIRST_STEP.search(words)
        rules.append((item.line, seconds, _pattern_of_name(words[start.start() :] if start else words)))
    for line, seconds, _ in rules[1:]:
        if seconds != rules[0][1]:
            text = (
                f"the first step is due in {duration(rules[0][1])} in line {rules[0][0]}, "
                f"in {duration(seconds)} here: write one."
            )
            reader.add_fault(line, text, section="first_step")
            break
    pattern = next((name for _, _, name in rules if name), None) or line_pattern
    return (rules[0][1] if rules else None), _read_pattern(reader, items) or pattern


def _lines_about_first_step(notes: Sequence[SourceLine]) -> list[SourceLine]:
    """Return the lines of the notes that may hold the rule: those that name it, and the lines below them."""
    chosen: dict[int, SourceLine] = {}
    for index, line in enumerate(notes):
        if len(line.text) < _MAX_CHARS and (_FIRST_STEP.search(line.text) or _PATTERN_LABEL.search(line.text)):
            chosen |= {number: notes[number] for number in range(index, min(index + 3, len(notes)))}
            if len(chosen) > 3 * _MAX_FIRST_STEP_LINES:
                break
    return [chosen[index] for index in sorted(chosen)]


def _words(item: SectionItem) -> str:
    return f"{item.label}: {item.text}" if item.label else item.text


def _read_pattern(reader: BlueprintReader, items: Sequence[SectionItem]) -> str | None:
    for item in items:
        if _PATTERN_LABEL.search(item.label):
            written = item.text.strip().strip("`\"'")
            try:
                compile_user_pattern(written)
            except PatternError as error:
                reader.add_fault(item.line, f"first_step_pattern is not usable: {error.why}.")
            else:
                return written
    return None


def _choose_time_limit(reader: BlueprintReader, limits: Sequence[tuple[int, float]]) -> float | None:
    if not limits:
        return None
    line, limit_s = limits[0]
    reader.lines["max_time"] = line
    if not 0 < limit_s <= MAX_TIME_S:
        reader.add_fault(line, f"[exp_max_time] is {'longer than 60 days' if limit_s > 0 else 'not above zero'}.")
        return None
    for other_line, other_s in limits[1:]:
        if other_s != limit_s:
            here, there = duration(other_s), duration(limit_s)
            reader.add_fault(other_line, f"[exp_max_time] is {there} in line {line}, {here} here: write one.")
            break
    return limit_s


def _pattern_of_name(words: str) -> str | None:
    """Return a pattern for the quoted name in ``words``: "kl loss" matches ``actor/kl_loss``, not ``use_kl_loss``."""
    if (quoted := _QUOTED_NAME.search(words)) is None:
        return None
    name = r"[\s_/-]*".join(re.escape(part) for part in re.split(r"[\s_/-]+", quoted[1].strip()))
    # Settings such as use_kl_loss and kl_loss_coef are printed before any step.
    return rf"(?i)(?<![a-z\d_]){name}(?![a-z\d_])"
