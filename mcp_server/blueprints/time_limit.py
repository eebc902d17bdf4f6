"""The time limit of a blueprint, and the time to its first step. Pure.

Every word beside a duration is kept, or refused.
"""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mcp_server.blueprints.fields import ABSENT, BlueprintReader, content_items
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.sections import Section, SectionItem, is_explanation, read_items
from mcp_server.blueprints.time_remarks import is_report, resolve_reckoning, split_remarks
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
_LIMIT_WORD = re.compile(
    r"within|timeout|time[- ]?limit|at most|max|fail|must|should|due|before|until|no later|innerhalb|spätestens"
    r"|不超过|之内|以内|内|最多|超时|失败",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(?:[()（）;；，。|•]|,(?!\d{3})|\.(?=\s|$)|(?<!\d)/(?!\d)|(?<=\s)/|/(?=\s)|\s[-–—]+\s)\s*")
_SENTENCE = re.compile(r"\s*(?:[()（）;；。|]|\.(?=\s|$)|(?<=[\s\w])[-–—]{1,2}\s)\s*")
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
    r"\d\s*(?:[a-z\u4e00-\u9fff]{0,7})\s*(?:-|~|–|—|to|至|到|or|或)\s*\d+(?:\.\d+)?\s*[a-z个小天分]", re.IGNORECASE
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
    pas de durée maximale limite temps environ suffit suffisent tout compris""".split()  # noqa: SIM905 - as people write them
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
_COUNT = re.compile(
    rf"[0-9][0-9.,_]*(?:e[0-9]+)?\s*(?:k|m|b|million|billion|thousand|万|亿|百万|千)?\s*(?:个|次)?\s*{COUNTED}\b",
    re.IGNORECASE,
)
_COUNT_JOINT = re.compile(
    r"\b(?:or|and|whichever (?:comes|is|happens) (?:first|earlier|sooner)"
    r"|(?:whatever|which) comes first)\b|或者?|以先到者为准|先到为准",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _TimedText:
    """A text with its first-step rule taken out. ``first_step_s`` is that of the rule, ``rule`` its words."""

    rest: str
    first_step_s: float | None = None
    rule: str = ""


def read_time_limit(reader: BlueprintReader) -> float | None:
    """Return the time limit in seconds.

    None if the default applies.
    """
    limits: list[tuple[int, float]] = []
    first: tuple[int, str] | None = None
    for item in _without_reports(reader):
        if _FIRST_STEP.search(item.label) and not find_durations(item.label):
            continue
        item = _without_duration_in_label(item)  # noqa: PLW2901
        timed = _take_first_step(_words(item) if _FIRST_STEP.search(item.label) else item.text)
        value = _MAX_TIME_LABEL.sub("", timed.rest.strip().strip("`*\"' ")).strip("`*\"' ")
        value = _take_remarks(reader, value)
        if not value or (ABSENT.fullmatch(value) and not find_durations(value)):
            if value and not limits:
                return None
            continue
        if reader.has_placeholder("max_time", item.line, value):
            return None
        first = first or (item.line, value)
        heading = reader.sections["max_time"].heading
        limits += [(item.line, seconds) for seconds in _read_limits(reader, item, value, heading)]
        if any(fault.line == item.line and fault.fatal for fault in reader.faults):
            return None
    if first and not limits:
        reader.add_fault(first[0], f"[exp_max_time] is not a duration: {first[1][:60]!r}. {_REMEDY}.")
    return _choose_time_limit(reader, limits)


def _without_reports(reader: BlueprintReader) -> Iterator[SectionItem]:
    """Yield the items of the section without those that only say how long something took, where another has a time."""
    items = content_items(reader, "max_time")
    limit_lines = {item.line for item in items if find_durations(item.text) and not is_report(_words(item))}
    for item in items:
        if limit_lines - {item.line} and is_report(_words(item)) and not _FIRST_STEP.search(_words(item)):
            reader.add_note("max_time", _words(item))
        else:
            yield item


def _without_duration_in_label(item: SectionItem) -> SectionItem:
    """Return an item whose label holds no duration: ``72 hours = 3 days`` is one text."""
    if not find_durations(item.label):
        return item
    sign = ":" if _FIRST_STEP.search(item.label) else " ="
    return replace(item, label="", text=f"{item.label}{sign} {item.text}")


def _take_remarks(reader: BlueprintReader, value: str) -> str:
    """Return a time limit without what only reports a time, and keep that as notes."""
    value, remarks = split_remarks(value)
    for remark in remarks:
        reader.add_note("max_time", remark)
    return value


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
    """Return the time to the first step in seconds and the pattern of its line.

    None for what is absent.
    """
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


def _read_limits(reader: BlueprintReader, item: SectionItem, value: str, heading: str) -> Iterator[float]:
    """Yield the time limits in an item, and note what is written beside them."""
    if len(value) > _MAX_CHARS:
        reader.add_fault(item.line, f"[exp_max_time] is not a duration: it has {len(value):,} characters. {_REMEDY}.")
        return
    value, wrong = resolve_reckoning(value)
    if unclear := wrong or _find_unclear_number(value):
        reader.add_fault(item.line, f"[exp_max_time]: {unclear}. {_REMEDY}.")
        return
    seconds = parse_with_unit(value, heading)
    seconds = parse_with_unit(value, item.label) if seconds is None else seconds
    if seconds is not None:
        yield seconds
        return
    durations = find_durations(value)
    is_plain_label = is_explanation(item.label) or not _has_letters(item.label) or _FIRST_STEP.search(item.label)
    label = "" if is_plain_label else item.label
    if len({each.seconds for each in durations}) > 1:
        text = normalize(value)
        between = text[durations[0].end : durations[1].start].strip()
        if between in ("-", "~", "–", "—", "to", "至", "到", "or", "或"):
            reader.add_fault(item.line, f"[exp_max_time] is a range, {value[:60]!r}: write one duration.")
        else:
            times = " and ".join(duration(each.seconds) for each in durations[:2])
            reader.add_fault(item.line, f"[exp_max_time] names two durations, {times}, in {value[:60]!r}: write one.")
        return
    if _RANGE.search(value) and not durations:
        reader.add_fault(item.line, f"[exp_max_time] is a range, {value[:60]!r}: write one duration.")
        return
    if durations and re.search(r"\d\s*(?:-|~|–|—|to|至|到|or|或|,)\s*$", normalize(value)[: durations[0].start]):
        reader.add_fault(item.line, f"[exp_max_time] is a range, {value[:60]!r}: write one duration.")
        return
    _note_leftovers(reader, item.line, value, label if durations else "", has_limit=bool(durations))
    if durations:
        yield durations[0].seconds


def _note_leftovers(reader: BlueprintReader, line: int, value: str, label: str, *, has_limit: bool) -> None:
    """Refuse what is written beside a duration and would be lost; a count of steps is only named."""
    text = normalize(value)
    for each in reversed(find_durations(value)):
        text = f"{text[: each.start]}\x00{text[each.end :]}"
    counts = [match[0].strip() for match in _COUNT.finditer(text)]
    if counts and has_limit:
        cause = (
            f"[exp_max_time]: only the time is kept, not {' and '.join(map(repr, counts))}: write that into the command"
        )
        reader.add_fault(line, f"{cause}.", fatal=False)
        text = _COUNT_JOINT.sub(" ", _COUNT.sub(" ", text))
    for clause in _SENTENCE.split(f"{label}: {text}" if label else text):
        words = _find_unusual_words(clause)
        if not words:
            continue
        if "\x00" not in clause and not re.search(r"\d", clause) and not _CONDITION.search(clause):
            comma_parts = [part for part in re.split(r"[,，]", clause) if part.strip()]
            reader.add_note("max_time", ", ".join(part.strip() for part in comma_parts))
            continue
        if "\x00" in clause:  # "24 hours, the queue's limit"
            parts = re.split(r"[,，]", clause)
            comments = [
                part
                for part in parts
                if "\x00" not in part
                and _find_unusual_words(part)
                and not re.search(r"\d", part)
                and not _CONDITION.search(part)
                and not re.match(r"\s*(?:or|and|then|but|plus|或|和|然后|但)\b", part)
            ]
            words = _find_unusual_words(",".join(part for part in parts if part not in comments))
            for part in comments:
                reader.add_note("max_time", part.strip())
            if not words:
                continue
        if not has_limit and not _CONDITION.search(clause):
            continue  # no duration at all is a fault of its own
        left = re.sub(r"\s*\x00\s*", " … ", clause).strip(" ,.:;…")
        reader.add_fault(
            line,
            f"[exp_max_time]: {left[:60]!r} cannot be kept beside a duration. {_REMEDY}; the rest is a note.",
        )
        return


def _find_unusual_words(clause: str) -> list[str]:
    """Return the words of a clause that change what its duration means."""
    text = _PLAIN_SIGNS.sub(" ", clause.replace("\x00", " "))
    words = re.findall(r"[^\W\d_\u4e00-\u9fff]+(?:[-'][^\W\d_\u4e00-\u9fff]+)*|\d[\w.,]*|[\u4e00-\u9fff]+|[+*×%]", text)
    joined = " ".join(words)
    if _CHANGES.search(joined):
        return words
    return [
        word for word in words if word not in _PLAIN_WORDS and not all(part in _PLAIN_WORDS for part in word.split("-"))
    ]


def _has_letters(label: str) -> bool:
    return bool(label) and not re.fullmatch(r"(?:content|value|time|内容|值|时间)\s*\d*", label)


def _take_first_step(text: str) -> _TimedText:
    """Split a text from its first-step rule: ``24h / first step 20min`` has the rest ``24h``."""
    if len(text) > _MAX_CHARS or not _FIRST_STEP.search(text):
        return _TimedText(text)
    clauses: list[str] = []
    seconds: float | None = None
    rule = ""
    awaits_time = False
    ends = [*(match.span() for match in _CLAUSE.finditer(text)), (len(text), len(text))]
    starts = [0, *(end for _, end in ends)]
    for start, (end, following) in zip(starts, ends, strict=False):
        clause, separator = text[start:end], text[end:following] or " "
        if not clause:
            continue
        durations = find_durations(clause)
        phrase = _FIRST_STEP.search(clause)
        if phrase and len({each.seconds for each in durations}) > 1:  # "24 hours with 20 min for the first step"
            normal = normalize(clause)
            at = (_FIRST_STEP.search(normal) or phrase).start()
            behind = [each for each in durations if each.start > at]
            between = " ".join(normal[durations[-2].end : durations[-1].start].split()) if len(durations) > 1 else ""
            chosen = durations[-1] if behind or not between.startswith("for") else durations[0]
            chosen = behind[0] if behind and not re.search(r"\b(?:for|to|until) (?:the )?$", normal[:at]) else chosen
            seconds = chosen.seconds if seconds is None else seconds
            rule = rule or clause
            left = f"{normal[: chosen.start]} {normal[chosen.end :]}"
            clauses.append(_FIRST_STEP.sub(" ", left) + separator)
        elif phrase:
            if durations and seconds is None:
                seconds = durations[0].seconds
            rule = rule or clause
            awaits_time = not durations  # as in "first step, within 20 min"
        elif awaits_time and durations:
            awaits_time = False
            rule = f"{rule}, {clause}"
            seconds = durations[0].seconds if seconds is None else seconds
        elif rule and durations and all(each.seconds == seconds for each in durations):
            continue  # the rule again: "if none is seen after 20 minutes, it failed"
        elif re.fullmatch(
            r"(?:fail\w*|report\w*|stop\w*|abort\w*|look for .*|当.*|否则.*|\W*)", clause.strip(), re.IGNORECASE
        ):
            continue
        else:
            clauses.append(clause + separator)
    return _TimedText("".join(clauses).strip(" \t,;，；/|•-–—:"), seconds, rule)


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
