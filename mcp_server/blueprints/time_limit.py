"""The time limit of a blueprint, and the time to its first step with the pattern of its line. Pure.

Each duration of the section has a part: the limit, a part of a total, another thing's, or the first step's.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace

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
from mcp_server.blueprints.headings import Section, SectionItem
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.sections import is_explanation, read_items
from mcp_server.errors import PatternError
from mcp_server.text.durations import COUNTED, find_durations, normalize, parse_with_unit
from mcp_server.text.formatting import duration
from mcp_server.text.regex import compile_user_pattern
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "time_limit")
_FIRST_STEP = _RX.named
_MAX_TIME_S = 60 * 86_400.0
_MOST_CHARS = 1_500  # of a text about a time
_MOST_LINES = 200  # of the notes; the rest of a pasted log is not read


def _take_first_step(text: str) -> tuple[str, float | None, str]:
    """Return a text without its first-step rule, the seconds of the rule, and its words.

    ``24h / first step 20min`` has the rest ``24h``.
    """
    rest: list[str] = []
    seconds: float | None = None
    rule = ""
    awaits_time = False
    for clause in split_clauses(text, keeps_durations=False):
        phrase = _FIRST_STEP.search(clause.text)
        if phrase and _RX.after.search(f"{clause.text[: phrase.start()]}\x01{clause.text[phrase.end() :]}"):
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
        elif clause.seconds or not _RX.consequence.fullmatch(clause.text):
            rest.append(clause.written)
    return ", ".join(rest), seconds, rule


def read_first_step(reader: BlueprintReader, notes: Sequence[SourceLine]) -> tuple[float | None, str | None]:
    """Return the time to the first step in seconds and the pattern of its line. None for what is absent."""
    limit_section = reader.sections.get("max_time")
    items = list(read_items(limit_section)) if limit_section and limit_section.exact is None else []
    items += read_items(Section("notes", 0, lines=_lines_about_first_step(notes)))
    rules: list[tuple[int, float, str | None]] = []
    line_pattern: str | None = None  # of a rule that names the line and no time

    def refuse(line: int, text: str) -> None:
        reader.refuse("first_step", line, text)

    candidates = [item for item in items if len(item.text) < _MOST_CHARS and _FIRST_STEP.search(item.words)]
    for item in candidates[:_MOST_LINES]:
        words = item.words
        _, seconds, rule = _take_first_step(words)
        if seconds is None and _FIRST_STEP.search(item.label) and not _RX.pattern_label.search(item.label):
            seconds = parse_with_unit(item.text.strip("`*\"' "), item.label)
            if seconds is None and re.fullmatch(r"[`*\"' ]*[\d.]+[`*\"' ]*", item.text):
                refuse(item.line, f"the time to the first step has no unit: {item.text[:40]!r}. Write e.g. 20 min.")
                continue
        if seconds is None and _RX.line_with.search(words):
            line_pattern = line_pattern or _pattern_of_name(words)
        if seconds is None or (Clause(rule, rule).is_report and not _RX.due.search(rule)):
            continue
        if not 0 < seconds <= _MAX_TIME_S:
            refuse(item.line, f"the time to the first step is not usable: {duration(seconds)}. Write e.g. 20 min.")
            continue
        start = _FIRST_STEP.search(words)
        rules.append((item.line, seconds, _pattern_of_name(words[start.start() :] if start else words)))
    if other := next((rule for rule in rules if rule[1] != rules[0][1]), None):
        first = f"the first step is due in {duration(rules[0][1])} in line {rules[0][0]}"
        refuse(other[0], f"{first}, in {duration(other[1])} here: write one.")
    pattern = _read_pattern(reader, items) or next((name for _, _, name in rules if name), None) or line_pattern
    lost = next((item for item in candidates if pattern is None and _RX.line_with.search(item.words)), None)
    if lost is not None:
        text = "the line of the first step is not understood: write a part of it in quotes, of at most 60 characters."
        reader.refuse("", lost.line, text, fatal=False)
    return (rules[0][1] if rules else None), pattern


def _lines_about_first_step(notes: Sequence[SourceLine]) -> list[SourceLine]:
    """Return the lines of the notes that may hold the rule: those that name it, and the lines below them."""
    chosen: dict[int, SourceLine] = {}
    for index, line in enumerate(notes):
        if len(line.text) < _MOST_CHARS and (_FIRST_STEP.search(line.text) or _RX.pattern_label.search(line.text)):
            chosen |= {number: notes[number] for number in range(index, min(index + 3, len(notes)))}
            if len(chosen) > 3 * _MOST_LINES:
                break
    return [chosen[index] for index in sorted(chosen)]


def _read_pattern(reader: BlueprintReader, items: Sequence[SectionItem]) -> str | None:
    for item in items:
        if _RX.pattern_label.search(item.label):
            written = item.text.strip().strip("`\"'")
            try:
                compile_user_pattern(written)
            except PatternError as error:
                reader.refuse("", item.line, f"first_step_pattern is not usable: {error.why}.")
            else:
                return written
    return None


def _pattern_of_name(words: str) -> str | None:
    """Return a pattern for the quoted name in ``words``: "kl loss" matches ``actor/kl_loss``, not ``use_kl_loss``."""
    if (quoted := _RX.quoted_name.search(words) or _RX.quoted_text.search(words)) is None:
        return None
    text = quoted[1].strip()
    name = r"[\s_/-]*".join(re.escape(part) for part in re.split(r"[\s_/-]+", text))
    # Settings such as use_kl_loss and kl_loss_coef are printed before any step, and "lap 1" is not "lap 10".
    before, behind = (r"(?<![a-z\d_])", r"(?![a-z\d_])")
    return f"(?i){before if text[:1].isalnum() else ''}{name}{behind if text[-1:].isalnum() else ''}"


_REMEDY = "Write one duration, as 24 hours or 90 min"
_FEW_WORDS = 4  # beside a duration: "at most 12 hours" needs no note
_MAX_PARTS = 4  # of a reckoning
_COUNT = re.compile(
    rf"[0-9][0-9.,_]*(?:e[0-9]+)?\s*(?:k|m|b|million|billion|thousand|万|亿|百万|千)?\s*(?:个|次)?\s*{COUNTED}\b",
    re.IGNORECASE,
)
_OF_EACH = re.compile(rf"(?:{_COUNT.pattern})\s*(?:of|at|à|x|×|\*|zu|je|@|each)\s*{MARK}", re.IGNORECASE)
_NUMBER_WORDS = "two three four five six seven eight nine ten".split()  # noqa: SIM905 - in order
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b")
_Entries = list[tuple[SectionItem, list[Clause]]]


def read_time_limit(reader: BlueprintReader) -> float | None:
    """Return the time limit in seconds. None if the default applies."""
    entries = _keep_total(reader, _read_clauses(reader))
    clauses = [clause for _, clauses in entries for clause in clauses]
    has_named = any(len(set(clause.seconds)) == 1 and LIMIT.search(clause.text) for clause in clauses)
    others = [clause for clause in clauses if not clause.is_own_time]
    heads = {seconds for clause in others for seconds in clause.head} or {
        seconds for clause in clauses for seconds in clause.head
    }
    is_plain = any(clause.head and PLAIN_HEAD.fullmatch(clause.text) for clause in clauses)
    stated = heads or {seconds for clause in clauses for seconds in clause.conclusion}
    limit_s = min(stated) if len(stated) == 1 else None

    def is_remark(clause: Clause) -> bool:
        if clause.is_report or not clause.seconds:
            return clause.is_report
        is_estimate = has_named and _RX.range.search(clause.text) and not RULE.search(clause.text)
        return bool(is_estimate) or (
            limit_s is not None and clause.is_beside(limit_s, is_only=not heads, is_plain=is_plain)
        )

    remarks = {id(clause) for clause in clauses if is_remark(clause)}
    parts = [clause.seconds[0] for clause in clauses if id(clause) in remarks and _RX.part.fullmatch(clause.text)]
    if len(parts) > 1 and sum(parts) > (limit_s or 0):  # "18 h (training 16 h, eval 3 h)"
        remarks = set()
    limits: list[tuple[int, float]] = []
    for item, of_item in entries:
        for clause in of_item:
            if id(clause) in remarks:
                reader.add_note("max_time", clause.written)
        limits += (
            (item.line, each) for each in _read_limits(reader, item, [c for c in of_item if id(c) not in remarks])
        )
        if any(fault.line == item.line and fault.fatal for fault in reader.faults):
            return None
    if entries and not limits:
        item, is_timed = entries[0][0], any(clause.seconds for clause in clauses)
        cause = "says how long it takes, not how long it may" if is_timed else "is not a duration"
        reader.refuse("max_time", item.line, f"{cause}: {item.text[:60]!r}. {_REMEDY}.")
    return _choose_time_limit(reader, limits)


def _read_clauses(reader: BlueprintReader) -> _Entries:
    """Return the items of the section with their clauses; none where one cannot be read, or says that there is none."""
    entries: _Entries = []
    for item in content_items(reader, "max_time"):
        if find_durations(item.label):  # "72 hours = 3 days" is one text
            item = replace(item, label="", text=item.whole)  # noqa: PLW2901
        elif _FIRST_STEP.search(item.label):
            continue
        value = _RX.italic.sub(r"\1", item.text).strip("`*\"' ")
        value = _RX.max_time_label.sub("", value).strip("`*\"' ")
        if back := _RX.report_back.search(value):
            reader.add_note("max_time", back[0])
            value = value.replace(back[0], " ")
        is_absent = ABSENT.fullmatch(value) and not find_durations(value)
        if is_absent and not any(clause.seconds for _, clauses in entries for clause in clauses):
            return []
        value, cause = ("", "") if is_absent else _read_value(value)
        if cause or reader.has_placeholder("max_time", item.line, value):
            if cause:
                reader.refuse("max_time", item.line, f"{cause}. {_REMEDY}.")
            return []
        if (clauses := split_clauses(value)) or back:
            entries.append((replace(item, text=value), _add_label(item.label, clauses)))
    return entries


def _add_label(label: str, clauses: list[Clause]) -> list[Clause]:
    """Return the clauses of an item with its label in front, unless that says nothing about a time."""
    if is_explanation(label) or _RX.plain_label.fullmatch(label) or _FIRST_STEP.search(label):
        return clauses
    first, *others = clauses or [Clause("", "")]
    return [replace(first, written=f"{label}: {first.written}", text=f"{label}: {first.text}"), *others]


def _read_value(value: str) -> tuple[str, str]:
    """Return a text with its reckoning done and its first-step rule left out, and why it is none, or an empty text."""
    if len(value) > _MOST_CHARS:
        return "", f"is not a duration: it has {len(value):,} characters"
    value = _RX.unit_behind.sub(r"\1 \2", value)
    value = _take_first_step(value)[0] if _FIRST_STEP.search(value) else value
    value, unclear = _reckon(value)
    text = normalize(value)
    if unclear:
        pass
    elif grouped := _RX.grouped.search(text):
        unclear = f"{grouped[0]!r} is one number in English and another in German"
    elif clock := _RX.short_clock.fullmatch(text.strip()):
        unclear = f"{clock[0]!r} may be hours and minutes, or minutes and seconds"
    elif several := _RX.several.search(text):
        unclear = f"{several[0]!r} is more than one number"
    return value, f": {unclear}" if unclear else ""


def _reckon(text: str) -> tuple[str, str]:
    """Return the whole alone where a text has a whole and its parts, and why a reckoning is wrong.

    ``3 x 4 hours = 12 hours``, ``4 h per arm, 3 arms (12 h)``, ``13 h (11 h + reserve)``: a text is one where a sign
    says so and its numbers make the whole, or where an equals sign is wrong about it. Any other stays as it is.
    """
    marked, seconds = mark_durations(text)
    if not 1 < len(seconds) <= _MAX_PARTS or len(set(seconds)) == 1:
        return text, ""
    normal, places = normalize(text), find_durations(text)
    if changed := _RX.changed.search(marked):  # "raised from 8 h to 12 h"
        now = places[marked[: changed.end()].count(MARK)]
        behind = normal[now.end :]
        return normal[now.start : None if find_durations(behind) or find_condition(behind) else now.end], ""
    if (reserved := _RX.reserved.fullmatch(marked)) and sum(seconds[1:]) <= seconds[0]:
        rest = _RX.plus.sub(" ", reserved["parts"] or reserved["sum"])
        bare = _RX.reserve.sub(" ", rest)
        is_sum = reserved["sum"] is None or bare != rest  # "13 h = 11 h + 1 h" is wrong
        if is_sum and not (re.search(r"[%]", bare) or find_condition(bare) or RULE.search(bare)):
            return normal[: places[0].end + len(reserved["end"])], ""
    equals = _RX.equals.search(marked)
    total = _RX.totalled.search(marked)
    sign = equals or total
    numbers = _NUMBER_WORD.sub(lambda word: str(_NUMBER_WORDS.index(word[0]) + 2), marked)
    counts = [float(n) for n in re.findall(r"(?<![\w.])[1-9]\d{0,3}(?![\w.]*\d|k)", numbers)]
    counts += [float(n) for n in re.findall(r"[x×*]\s*(\d\.\d+)", marked)]
    wholes = _find_wholes(marked, seconds, sign, is_equal=equals is not None)
    if not wholes or find_condition(_RX.product.sub(" ", marked)):  # "4 h per arm, 12 h in total, extended if needed"
        return text, ""
    for whole in wholes:
        parts = [each for index, each in enumerate(seconds) if index != whole]
        is_unit = sign is not None and not counts and _RX.unit_part.search(marked)  # "4 h per seed, 12 h in total"
        if _makes(parts, counts, seconds[whole]) or (is_unit and max(parts) < seconds[whole]):
            return normal[places[whole].start : places[whole].end], ""
    is_apart = re.search(r"[(.]", marked[marked.index(MARK) : sign.start()] if sign else "")  # of other durations
    if is_apart or (equals is None and (total is None or not counts)):
        return text, ""
    made = sum(each for index, each in enumerate(seconds) if index != wholes[0]) * math.prod(counts)
    return text, f"{normal[:60]!r} makes {duration(made)}, not {duration(seconds[wholes[0]])}"


def _find_wholes(marked: str, seconds: Sequence[float], sign: re.Match[str] | None, *, is_equal: bool) -> list[int]:
    """Return which durations may be the whole, the likeliest first."""
    if sign is not None:
        at = marked[: sign.start("whole") if sign["whole"] else sign.start("front")].count(MARK)
        return [at, *([0] if at and is_equal and len(seconds) == 2 else [])]  # noqa: PLR2004 - either
    if _RX.product.search(marked):
        return [index for index, each in enumerate(seconds) if each == max(seconds)]
    is_sum = len(seconds) > 2 and math.isclose(sum(seconds[1:]), seconds[0])  # noqa: PLR2004 - "18 h (training 16 h, eval 2 h)"
    return [0] if is_sum else []


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
    timed = [item for item, clauses in entries if any(clause.seconds for clause in clauses)]
    totals = [entry for entry in entries if _RX.totalled.search("; ".join(clause.text for clause in entry[1]))]
    text = "; ".join(f"{item.text} ({item.label})" for item in timed)
    if len(timed) < 2 or len(totals) != 1 or _reckon(text)[0] == text:  # noqa: PLR2004 - a part and the total
        return entries
    for item, _ in entries:
        if item is not totals[0][0]:
            reader.add_note("max_time", f"{item.label}: {item.text}" if item.label else item.text)
    return totals


def _read_limits(reader: BlueprintReader, item: SectionItem, clauses: list[Clause]) -> list[float]:
    """Return the limits that clauses of an item state, without those that another clause may change."""
    for heading in (reader.sections["max_time"].heading, item.label):
        with_unit = None if _RX.machine_time.search(heading) else parse_with_unit(item.text, heading)
        if clauses and with_unit is not None:
            return [with_unit]
    seconds = list(dict.fromkeys(each for clause in clauses for each in clause.seconds))
    text = "; ".join(clause.text for clause in clauses)
    cause, counts = "", [match[0].strip() for match in _COUNT.finditer(text)]
    if _RX.range.search(text if seconds else normalize(item.text)):
        cause = f"is a range, {item.text[:60]!r}: write one duration."
    elif len(seconds) > 1:
        both = f"{duration(seconds[0])} and {duration(seconds[1])}"
        cause = f"names two durations, {both}, in {item.text[:60]!r}: write one duration."
    elif counts and seconds and (product := _OF_EACH.search(text)):
        cause = f": {product[0][:-1].strip()!r} is a part of the time: write the whole, as 24 hours or 90 min."
    elif counts and seconds:
        only = f": only the time is kept, not {' and '.join(map(repr, counts))}: write that into the command."
        reader.refuse("max_time", item.line, only, fatal=False)
        clauses = [replace(c, text=_RX.count_joint.sub(" ", _COUNT.sub(" ", c.text))) for c in clauses]
    cause = cause or _find_change(reader, clauses, is_timed=bool(seconds))
    if cause:
        reader.refuse("max_time", item.line, cause)
    return [] if cause else seconds


def _find_change(reader: BlueprintReader, clauses: Sequence[Clause], *, is_timed: bool) -> str:
    """Return how a clause may change the duration, or an empty text; other clauses are notes then.

    ``is_timed``: there is a duration. Where there is none, that is the fault.
    """
    for clause in clauses:
        changes = clause.changes if clause.seconds else not clause.is_remark
        if changes and (is_timed or find_condition(clause.text)):
            left = re.sub(r"\s*\ue001\s*", " … ", clause.text).strip(" ,.:;…")
            return f": {left[:60]!r} cannot be kept beside a duration. {_REMEDY}; the rest is a note."
        if not clause.seconds or len(clause.text.split()) > _FEW_WORDS:
            reader.add_note("max_time", clause.written)
    return ""


def _choose_time_limit(reader: BlueprintReader, limits: Sequence[tuple[int, float]]) -> float | None:
    if not limits:
        return None
    line, limit_s = limits[0]
    reader.lines["max_time"] = line
    if not 0 < limit_s <= _MAX_TIME_S:
        reader.refuse("max_time", line, f"is {'longer than 60 days' if limit_s > 0 else 'not above zero'}.")
        return None
    for other_line, other_s in limits[1:]:
        if other_s != limit_s:
            here, there = duration(other_s), duration(limit_s)
            reader.refuse("max_time", other_line, f"is {there} in line {line}, {here} here: write one.")
            break
    return limit_s
