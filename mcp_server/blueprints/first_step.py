"""The time to the first step of a blueprint, and the pattern of its line. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.blueprints.clauses import MARK, Clause, split_clauses
from mcp_server.blueprints.fields import BlueprintReader
from mcp_server.blueprints.headings import Section, SectionItem
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.sections import read_items
from mcp_server.errors import PatternError
from mcp_server.text.durations import find_durations, normalize, parse_with_unit
from mcp_server.text.formatting import duration
from mcp_server.text.regex import compile_user_pattern
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "first_step")
FIRST_STEP = _RX.named
MAX_TIME_S = 60 * 86_400.0
MOST_CHARS = 1_500  # of a text about a time
_MOST_LINES = 200  # of the notes; the rest of a pasted log is not read


@dataclass(frozen=True)
class TimedText:
    """A text without its first-step rule. ``first_step_s`` is that of the rule, ``rule`` its words."""

    rest: str
    first_step_s: float | None = None
    rule: str = ""


def take_first_step(text: str) -> TimedText:
    """Split a text from its first-step rule: ``24h / first step 20min`` has the rest ``24h``."""
    rest: list[str] = []
    seconds: float | None = None
    rule = ""
    awaits_time = False
    for clause in split_clauses(text, keeps_durations=False):
        phrase = FIRST_STEP.search(clause.text)
        if phrase and _RX.after.search(f"{clause.text[: phrase.start()]}\x01{clause.text[phrase.end() :]}"):
            phrase = None  # a limit that begins there
        if phrase and len(set(clause.seconds)) > 1:  # "24 hours with 20 min for the first step"
            marks = [mark.start() for mark in re.finditer(MARK, clause.text)]
            chosen = min(range(len(marks)), key=lambda n: max(marks[n] - phrase.end(), phrase.start() - marks[n]))
            seconds = clause.seconds[chosen] if seconds is None else seconds
            rule = rule or clause.written
            normal = normalize(clause.written)
            taken = find_durations(clause.written)[chosen]
            rest.append(FIRST_STEP.sub(" ", f"{normal[: taken.start]} {normal[taken.end :]}"))
        elif phrase or (awaits_time and clause.seconds):  # as in "first step, within 20 min"
            seconds = clause.seconds[0] if clause.seconds and seconds is None else seconds
            awaits_time = not clause.seconds
            rule = ", ".join(filter(None, (rule, clause.written)))
        elif rule and clause.seconds and set(clause.seconds) == {seconds}:
            continue  # the rule again: "if none is seen after 20 minutes, it failed"
        elif clause.seconds or not _RX.consequence.fullmatch(clause.text):
            rest.append(clause.written)
    return TimedText(", ".join(rest), seconds, rule)


def read_first_step(reader: BlueprintReader, notes: Sequence[SourceLine]) -> tuple[float | None, str | None]:
    """Return the time to the first step in seconds and the pattern of its line. None for what is absent."""
    limit_section = reader.sections.get("max_time")
    items = list(read_items(limit_section)) if limit_section and limit_section.exact is None else []
    items += read_items(Section("notes", 0, lines=_lines_about_first_step(notes)))
    rules: list[tuple[int, float, str | None]] = []
    line_pattern: str | None = None  # of a rule that names the line and no time

    def refuse(line: int, text: str) -> None:
        reader.refuse("first_step", line, text)

    candidates = [item for item in items if len(item.text) < MOST_CHARS and FIRST_STEP.search(item.words)]
    for item in candidates[:_MOST_LINES]:
        words = item.words
        timed = take_first_step(words)
        seconds = timed.first_step_s
        if seconds is None and FIRST_STEP.search(item.label) and not _RX.pattern_label.search(item.label):
            seconds = parse_with_unit(item.text.strip("`*\"' "), item.label)
            if seconds is None and re.fullmatch(r"[`*\"' ]*[\d.]+[`*\"' ]*", item.text):
                refuse(item.line, f"the time to the first step has no unit: {item.text[:40]!r}. Write e.g. 20 min.")
                continue
        if seconds is None and _RX.line_with.search(words):
            line_pattern = line_pattern or _pattern_of_name(words)
        if seconds is None or (Clause(timed.rule, timed.rule).is_report and not _RX.due.search(timed.rule)):
            continue
        if not 0 < seconds <= MAX_TIME_S:
            refuse(item.line, f"the time to the first step is not usable: {duration(seconds)}. Write e.g. 20 min.")
            continue
        start = FIRST_STEP.search(words)
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
        if len(line.text) < MOST_CHARS and (FIRST_STEP.search(line.text) or _RX.pattern_label.search(line.text)):
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
