"""The time limit of a blueprint, and the time to its first step. Pure.

A text is read clause by clause. Every word beside a duration is kept as a note, or refused.
"""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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

_FIRST_STEP = re.compile(
    r"first[-_ ](?:training |optimi[sz]er |gradient |global )?(?:step|iteration|update)|first (?:\S+ ){0,3}loss"
    r"|erste[rnms]? (?:trainings)?schritt"
    r"|第一个?步|首个?步|(?:第一个|首个|第一次|第一条)(?=.{0,12}(?:loss|step|kl|步|迭代|指标|日志|输出|损失))",
    re.IGNORECASE,
)
_EXPECTATION = re.compile(
    r"\b(?:takes?|took|usually|typically|normally|earlier runs?|last time)\b|通常|一般|大约需要|往常", re.IGNORECASE
)
_AFTER = re.compile(r"\b(?:after|since|from|nach|ab)\s+(?:the |dem |der )?\x01|\x01[之以]?后")
_LIMIT_WORD = re.compile(
    r"within|timeout|time[- ]?limit|at most|max|fail|must|should|due|before|until|no later|innerhalb|spätestens"
    r"|不超过|之内|以内|内|最多|超时|失败",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"\s*(?:[()（）;；，。|•]|,(?!\d{3})|(?<!\bincl)(?<!\binkl)(?<!\bmax)(?<!\bca)(?<!\bapprox)\.(?=\s|$)"
    r"|(?<!\d)/(?!\d)|(?<=\s)/|/(?=\s)|(?<=\s)[-–—]{1,2}(?=\s))\s*"
    r"|\s+(?=(?:including|incl|inklusive|inkl|davon|of which|dont)\b)"
)
_MARK = "\x00"
_AGAIN = re.compile(r"[:：=＝]\s*$")  # a clause that ends so belongs to the next
_CONSEQUENCE = re.compile(r"(?:fail\w*|report\w*|stop\w*|abort\w*|look for .*|当.*|否则.*|\W*)")
_PLAIN_LABEL = re.compile(r"[\W\d_]*|(?:content|value|time|内容|值|时间)\s*\d*")
_JOINT = re.compile(r"(?:or|and|then|but|plus|或|和|然后|但)\b")
_PATTERN_LABEL = re.compile(r"first[-_ ]step[-_ ]pattern|首步(?:模式|正则)")
_LINE_WITH = re.compile(
    r"\bline (?:with|containing|that (?:has|contains|shows|names))\b|包含.{0,20}的(?:第一)?行", re.IGNORECASE
)
_QUOTED_NAME = re.compile(r"[`\"“「']([A-Za-z][\w /_.@-]{2,60})[`\"”」']")
_GROUPED = re.compile(
    r"(?<![\d.,:])[1-9]\d{0,2}(?:\.\d{3}(?![\d.])(?=\s*[a-zäöüß])|,\d{3}(?=\s*(?:minuten|stunden|sekunden|tage)))"
)
_SHORT_CLOCK = re.compile(r"(?:2[4-9]|[3-9]\d|\d{3,}):[0-5]\d")  # 24:00 and more: to Slurm, minutes and seconds
_SEVERAL = re.compile(r"[一二三四五六七八九两]{2,}(?=[个個小时時天日分周])")  # 三四个小时: three or four hours
_RANGE = re.compile(
    r"[\d\x00]\s*(?:-|~|–|—|to|至|到|or|或|,)\s*\x00"
    r"|\d\s*(?:[a-z\u4e00-\u9fff]{0,7})\s*(?:-|~|–|—|to|至|到|or|或)\s*\d+(?:\.\d+)?\s*[a-z个小天分]"
)
_MAX_TIME_LABEL = re.compile(r"^\$?\{?max_?time\}?\s*(?:[=:：]-?)\s*", re.IGNORECASE)
# Words that leave the meaning of a duration as it is.
_PLAIN_WORDS = frozenset(
    """a about above after all allotted allowed an and any approx approximately are around at automatically be been
    budget by cap clock completely content cut default defaults does done duration each elapsed end ends entire
    every exactly exceed exceeded exceeding exceeds exp experiment experiments finish finished for forced
    forcefully forcibly full full-time get gets hard has have if in inside into is it its job kill killed less
    limit limited long longest max maximal maximum maxtime may more most must needs no not of off once one only or
    our overall per please reach reached reaches reaching real run running runs runtime shall should single stop
    stopped such take takes terminate terminated terminates than that the then this time timed timeout to total
    training up upper value wait wall wallclock walltime whatever happens when whole will with within work works would
    höchstens maximale maximaler insgesamt gesamt etwa ungefähr circa ca lang dauer laufzeit spätestens nach zu bis
    wird abgebrochen beendet tops plenty enough suffice suffices reichen reicht genügen genügt sollten sollte au plus
    obergrenze grenze plafond pas de durée maximale limite temps environ suffit suffisent tout compris""".split()  # noqa: SIM905 - as people write them
)
_PLAIN_SIGNS = re.compile(
    r"本次|本实验|实验|训练|任务|每个|每次|单次|运行|执行|时间|时长|总共|一共|共计|总计|总|共|最长|最多|最大|最晚|上限|限制|限|不超过|不得超过|不能超过"
    r"|不要超过|超过|不超|大约|大概|约|左右|上下|以内|之内|内|强制|后|之后|终止|停止|结束|杀掉|杀死|必须|需要|应该|应当|应|则|如果|若|将|会|被|到|时|为|是|即|在"
    r"|设为|设定|默认|为止|整|就|要|的|了|给|预算|都|并|且|可以|可|跑|等于|也就是|请|完成|完"
)
# A clause without a duration that changes what a duration means.
_CONDITION = re.compile(
    r"\b(?:until|unless|converge\w*|plateau\w*|earl(?:y|ier)|extend\w*|extension|plus|except|whichever|longer"
    r"|additional(?:ly)?|extra|at least"
    r"|minimum|per (?:seed|model|stage|phase|gpu|epoch)|for each|as needed|depends|depending|twice|double|half)\b"
    r"|直到|除非|收敛|提前|延长|至少|另外|额外|加上|视情况|翻倍",
    re.IGNORECASE,
)
_CHANGES = re.compile(
    r"(?<!no )(?<!not )(?<!never )\b(?:more|longer) than\b|\bover\b"
    r"|\bor (?!killed|stopped|terminated|less)|\bat least\b|\bper (?!run|experiment|job|training|single)"
)
_DENIED = re.compile(r"\b(?:not|keine?|pas)\s*\x00|(?:不是|而非)\s*\x00|\bevery\s*\x00|\x00.*[?？]")
_COUNT = re.compile(
    rf"[0-9][0-9.,_]*(?:e[0-9]+)?\s*(?:k|m|b|million|billion|thousand|万|亿|百万|千)?\s*(?:个|次)?\s*{COUNTED}\b",
    re.IGNORECASE,
)
_COUNT_JOINT = re.compile(
    r"\b(?:or|and|whichever (?:comes|is|happens) (?:first|earlier|sooner)"
    r"|(?:whatever|which) comes first)\b|或者?|以先到者为准|先到为准",
    re.IGNORECASE,
)
# What other runs took, or this one is expected to take.
_REPORT = re.compile(
    r"\b(?:took|takes|needed|ran|lasted|used|required|finished|ended|converged|was|were|had|did"
    r"|last (?:time|run|week|month|year)"
    r"|previous(?:ly)?|earlier (?:runs?|ones?|experiments?|attempts?)"
    r"|usual(?:ly)?|typical(?:ly)?|normal(?:ly)?|on average"
    r"|measured|mostly|often|meist(?:ens)?|oft|gemessen|mesurée?s?|including|incl|of which|inklusive|inkl|davon|dont"
    r"|expect(?:ed)? to|expected|estimated?|baseline|so far"
    r"|brauchte|dauerte|lief|war|zuletzt|letzte[sn]? mal|bisher|normalerweise|üblicherweise|erwartet|geschätzt"
    r"|a (?:pris|duré)|d'habitude|la dernière fois|normalement|prévue?s?|estimée?s?)\b"
    r"|上次|上一次|上回|之前|以前|此前|通常|一般|往常|平时|预计|预期|估计|实际(?:用|花|需)|其中|包括|包含|实测",
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
_UNITS = r"\s*(?:[^\W\d_]+\s*)"  # what is counted, as "seeds"
_TIMES = r"\s*(?:[x×*·]|mal|fois|乘以?)\s*"
_RECKONING = re.compile(
    rf"(?:(?P<count1>\d{{1,4}}){_UNITS}{{0,2}}{_TIMES}\x00|\x00{_TIMES}(?P<count2>\d{{1,4}}){_UNITS}{{0,2}}?"
    rf"|(?P<sum>\x00(?:{_UNITS}){{0,2}}(?:\s*(?:\+|plus)\s*\x00(?:{_UNITS}){{0,2}})+))"
)
_EQUALS = r"\s*(?:=|＝|->|→|等于|共)\s*"


@dataclass(frozen=True)
class _Clause:
    """A text between two marks of punctuation: as written, and in normal form with ``_MARK`` for each duration."""

    written: str
    text: str
    seconds: tuple[float, ...] = ()

    @property
    def is_report(self) -> bool:
        """Whether it only says how long something took, or should take."""
        is_about_time = _REPORT.search(self.text) or _TIME_OF_DAY.search(self.written)
        return bool(is_about_time) and _RULE.search(self.text) is None

    @property
    def is_remark(self) -> bool:
        """Whether it has no duration, and changes none."""
        changes = re.search(r"[\d\x00]", self.text) or _CONDITION.search(self.text) or _JOINT.match(self.text)
        return not changes


def _split_clauses(text: str, *, keeps_durations: bool = True) -> list[_Clause]:
    """Return the clauses of a text. ``keeps_durations``: the comma in ``1 day, 12:00:00`` separates nothing."""
    text = re.sub(r"\s*/\s*(?=(?:seed|model|stage|phase|gpu|epoch|fold|task|job)s?\b)", " per ", text)
    normal = normalize(text)
    written = text if len(text) == len(normal) else normal
    inside = [(each.start, each.end) for each in find_durations(text)] if keeps_durations else []
    marks = [m.span() for m in _CLAUSE.finditer(normal) if not any(a < m.end() and m.start() < b for a, b in inside)]
    clauses, start = [], 0
    for begin, end in [*marks, (len(normal), len(normal))]:
        clause = normal[start:begin]
        if _AGAIN.search(clause):
            continue
        durations = find_durations(clause)
        for each in reversed(durations):
            clause = f"{clause[: each.start]}{_MARK}{clause[each.end :]}"
        if clause.strip():
            seconds = tuple(each.seconds for each in durations)
            clauses.append(_Clause(written[start:begin].strip(), clause.strip(), seconds))
        start = end
    return clauses


def read_time_limit(reader: BlueprintReader) -> float | None:
    """Return the time limit in seconds. None if the default applies."""
    entries = _read_clauses(reader)
    has_limit = any(clause.seconds and not clause.is_report for _, clauses in entries for clause in clauses)
    limits: list[tuple[int, float]] = []
    for item, clauses in entries:
        remarks = [clause for clause in clauses if has_limit and clause.is_report]
        for clause in remarks:
            reader.add_note("max_time", clause.written)
        kept = [clause for clause in clauses if clause not in remarks]
        limits += [(item.line, seconds) for seconds in _read_limits(reader, item, kept)]
        if any(fault.line == item.line and fault.fatal for fault in reader.faults):
            return None
    if entries and not limits:
        item = entries[0][0]
        reader.add_fault(item.line, f"[exp_max_time] is not a duration: {item.text[:60]!r}. {_REMEDY}.")
    return _choose_time_limit(reader, limits)


def _read_clauses(reader: BlueprintReader) -> list[tuple[SectionItem, list[_Clause]]]:
    """Return the items of the section with their clauses; none where one cannot be read, or says that there is none."""
    entries: list[tuple[SectionItem, list[_Clause]]] = []
    for item in content_items(reader, "max_time"):
        if _FIRST_STEP.search(item.label) and not find_durations(item.label):
            continue
        if find_durations(item.label):  # "72 hours = 3 days" is one text
            sign = ":" if _FIRST_STEP.search(item.label) else " ="
            item = replace(item, label="", text=f"{item.label}{sign} {item.text}")  # noqa: PLW2901
        value = _MAX_TIME_LABEL.sub("", item.text.strip("`*\"' ")).strip("`*\"' ")
        is_absent = ABSENT.fullmatch(value) and not find_durations(value)
        if is_absent and not any(clause.seconds for _, clauses in entries for clause in clauses):
            return []
        value, cause = ("", "") if is_absent else _read_value(value)
        if cause or reader.has_placeholder("max_time", item.line, value):
            if cause:
                reader.add_fault(item.line, f"[exp_max_time]{cause}. {_REMEDY}.")
            return []
        if clauses := _split_clauses(value):
            entries.append((replace(item, text=value), _add_label(item.label, clauses)))
    return entries


def _read_value(value: str) -> tuple[str, str]:
    """Return a text with its reckoning done and its first-step rule left out, and why it is none, or an empty text."""
    if len(value) > _MAX_CHARS:
        return "", f" is not a duration: it has {len(value):,} characters"
    value, wrong = _resolve_reckoning(value)
    value = _take_first_step(value).rest if _FIRST_STEP.search(value) else value
    unclear = wrong or _find_unclear_number(value)
    return value, f": {unclear}" if unclear else ""


def _add_label(label: str, clauses: list[_Clause]) -> list[_Clause]:
    """Return the clauses of an item with its label in front, unless that says nothing about a time."""
    if is_explanation(label) or not label or _PLAIN_LABEL.fullmatch(label) or _FIRST_STEP.search(label):
        return clauses
    first, *others = clauses
    return [replace(first, written=f"{label}: {first.written}", text=f"{label} {first.text}"), *others]


def _read_limits(reader: BlueprintReader, item: SectionItem, clauses: list[_Clause]) -> Iterator[float]:
    """Yield the time limit in an item, and note what is written beside it."""
    for heading in (reader.sections["max_time"].heading, item.label):
        if clauses and (with_unit := parse_with_unit(item.text, heading)) is not None:
            yield with_unit
            return
    seconds = list(dict.fromkeys(each for clause in clauses for each in clause.seconds))
    text = "; ".join(clause.text for clause in clauses)
    cause = ""
    if _RANGE.search(text if seconds else normalize(item.text)):
        cause = f"is a range, {item.text[:60]!r}"
    elif len(seconds) > 1:
        cause = f"names two durations, {duration(seconds[0])} and {duration(seconds[1])}, in {item.text[:60]!r}"
    if cause:
        reader.add_fault(item.line, f"[exp_max_time] {cause}: write one duration.")
        return
    counts = [match[0].strip() for match in _COUNT.finditer(text)]
    if counts and seconds:
        cause = f"only the time is kept, not {' and '.join(map(repr, counts))}: write that into the command."
        reader.add_fault(item.line, f"[exp_max_time]: {cause}", fatal=False)
        clauses = [replace(c, text=_COUNT_JOINT.sub(" ", _COUNT.sub(" ", c.text))) for c in clauses]
    for clause in filter(lambda clause: _find_unusual_words(clause.text), clauses):
        if clause.is_remark:
            reader.add_note("max_time", clause.written)
        elif seconds or _CONDITION.search(clause.text):  # no duration at all is a fault of its own
            left = re.sub(r"\s*\x00\s*", " … ", clause.text).strip(" ,.:;…")
            cause = f"{left[:60]!r} cannot be kept beside a duration. {_REMEDY}; the rest is a note."
            reader.add_fault(item.line, f"[exp_max_time]: {cause}")
            return
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
    for clause in _split_clauses(text, keeps_durations=False):
        phrase = _FIRST_STEP.search(clause.text)
        if phrase and _AFTER.search(f"{clause.text[: phrase.start()]}\x01{clause.text[phrase.end() :]}"):
            phrase = None  # a limit that begins there
        if phrase and len(set(clause.seconds)) > 1:  # "24 hours with 20 min for the first step"
            chosen = _choose_of_first_step(clause.text, phrase.start())
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


def _choose_of_first_step(text: str, at: int) -> int:
    """Return which duration of a clause is that of its first step, which is named at a position."""
    marks = [match.start() for match in re.finditer(_MARK, text)]
    behind = [index for index, start in enumerate(marks) if start > at]
    if behind and not re.search(r"\b(?:for|to|until) (?:the )?$", text[:at]):
        return behind[0]
    return len(marks) - 1 if behind or not text[marks[-2] + 1 : marks[-1]].strip().startswith("for") else 0


def _resolve_reckoning(text: str) -> tuple[str, str]:
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
                reader.add_fault(item.line, text)
                continue
        if seconds is None and _LINE_WITH.search(words):
            line_pattern = line_pattern or _pattern_of_name(words)
        if seconds is None or (_EXPECTATION.search(timed.rule) and not _LIMIT_WORD.search(timed.rule)):
            continue
        if not 0 < seconds <= MAX_TIME_S:
            reader.add_fault(
                item.line, f"the time to the first step is not usable: {duration(seconds)}. Write e.g. 20 min."
            )
            continue
        start = _FIRST_STEP.search(words)
        rules.append((item.line, seconds, _pattern_of_name(words[start.start() :] if start else words)))
    for line, seconds, _ in rules[1:]:
        if seconds != rules[0][1]:
            text = (
                f"the first step is due in {duration(rules[0][1])} in line {rules[0][0]}, "
                f"in {duration(seconds)} here: write one."
            )
            reader.add_fault(line, text)
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


def _find_unusual_words(clause: str) -> list[str]:
    """Return the words of a clause that change what its duration means."""
    text = _PLAIN_SIGNS.sub(" ", clause.replace("\x00", " "))
    words = re.findall(r"[^\W\d_\u4e00-\u9fff]+(?:[-'][^\W\d_\u4e00-\u9fff]+)*|\d[\w.,]*|[\u4e00-\u9fff]+|[+*×%]", text)
    joined = " ".join(words)
    if _CHANGES.search(joined) or _DENIED.search(clause):
        return words or [clause]
    return [
        word for word in words if word not in _PLAIN_WORDS and not all(part in _PLAIN_WORDS for part in word.split("-"))
    ]


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
