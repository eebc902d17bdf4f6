"""What the sections of a blueprint say: a path, a time, the rule of the first step, the purpose. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, and it is looked for here

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mcp_server.blueprints.headings import labelled, plain, section_of
from mcp_server.blueprints.sections import Item, Line, Problem, Section, items
from mcp_server.errors import PatternError
from mcp_server.text import durations
from mcp_server.text.regex import checked

LONGEST_TIME_S = 60 * 86_400.0
_LONGEST_PURPOSE = 2_000

_ABSENT = re.compile(
    r"(?:n\.?/?a\.?|none|null|nil|nothing|default|same|无|没有|不需要|默认"
    r"|not (?:needed|used|required|applicable)|-+|—+)(?:[\s,.;:(（，。].*)?",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"(?:description|desc|hint|notes?|warning|remark|comment|why|example|e\.g\.?|说明|提示|注意|备注|描述|警告|示例|例如)\s*\d*"
)
_CONTENT = re.compile(
    r"(?:contents?|value|内容|值)\s*\d*|.*(?:path|dir|directory|location|file|路径|目录|位置|文件|地址)"
)
_PATH = re.compile(
    r"(?:~\w*|\.{1,2}|\$\{?\w+\}?|\{\w+\})?/[^\s`'\"，。；、<>|]*|[\w.${}-]+(?:/[\w.@%+=~${}:-]+)+/?"
    r"|[\w.-]+\.(?:ya?ml|json|toml|py)|\.{1,2}"
)
PLACEHOLDER = re.compile(
    r"<[A-Za-z\u4e00-\u9fff_](?:[^<>\n]{0,80}[\w\u4e00-\u9fff.])?>(?![\w/])|\b(?:TODO|TBD|FIXME|XXX+|CHANGEME)\b|\?\?\?"
    r"|(?<!\S)(?:\.{3,}|…+)(?!\S)|(?<=/)(?:\.{3,}|…+)(?=/|\s|$)|(?:^|/)path/to/"
    r"|\b[Yy]our[-_ ](?:path|name|user|project|dir|command|repo|code|venv|file)\w*"
)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?|\{([A-Za-z_]\w*)\}")
_OF_THE_USER = frozenset({"HOME", "USER"})
_RANGE = re.compile(r"\d\s*(?:-|~|–|to|至|到)\s*\d+(?:\.\d+)?\s*[A-Za-z个小天分]")
_MAX_TIME = re.compile(r"^\$?\{?max_?time\}?\s*(?:[=:：]-?)\s*", re.IGNORECASE)
_SPACED = re.compile(r"(?:~|\.{1,2})?/[^\s,;，；。()（）]+(?: [\w.-]+){0,3} [\w.-]*/[\w./-]*")
_FIRST = re.compile(
    r"first[-_ ](?:training |optimi[sz]er |gradient |global )?(?:step|iteration|update)|first (?:\S+ ){0,3}loss"
    r"|第一个?步|首个?步|第一个|首个|第一次|第一条",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(?:[()（）;；，。]|,(?!\d{3})|\.(?=\s|$))\s*")
_PATTERN_LABEL = re.compile(r"first[-_ ]step[-_ ]pattern|首步(?:模式|正则)")
_QUOTED = re.compile(r"[`\"“「']([A-Za-z][\w /_.@-]{2,60})[`\"”」']")


@dataclass
class Reading:
    """The sections of a document, and what has been found in them so far."""

    sections: dict[str, Section] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    def wrong(self, line: int, text: str) -> None:
        """Note what keeps the document from being run."""
        self.problems.append(Problem(line, text))

    def belongs(self, since: int, section: str) -> None:
        """Note that the problems after the first ``since`` are only those of ``section``."""
        self.problems[since:] = [replace(problem, section=section) for problem in self.problems[since:]]

    def held(self, name: str, line: int, value: str) -> bool:
        """Whether ``value`` is still the template's."""
        if found := PLACEHOLDER.search(value):
            self.wrong(line, f"[exp_{name}] still holds the template's {found[0]!r}.")
        return found is not None


def path(reading: Reading, name: str) -> str | None:
    """Return the path that a section names; None where it is absent or says that there is none."""
    sure: list[tuple[int, str]] = []
    likely: list[tuple[int, str]] = []
    words: list[tuple[int, str]] = []
    said: tuple[int, str] | None = None
    for item in _said(reading, name):
        value = item.text.strip().strip("`*").strip().strip("\"'").strip()
        said = said or (item.line, value)
        if _ABSENT.fullmatch(value) and not sure:
            return None
        if reading.held(name, item.line, value):
            return None
        if name == "venv_exe" and re.fullmatch(r"python[\d.]*", value) and not sure:
            return None
        if _SPACED.fullmatch(item.text.strip()):
            reading.wrong(item.line, f"[exp_{name}] has spaces in {value[:80]!r}: one path is wanted, in quotes.")
            return None
        known = not item.label or item.code or section_of(item.label) == name or _CONTENT.fullmatch(item.label)
        if known and (whole := _whole_path(item.text, value)):
            sure.append((item.line, whole))
        elif (within := _path_within(value)) and "." not in item.label:
            likely.append((item.line, within))
        elif known and name.endswith("_dir") and re.fullmatch(r"[A-Za-z0-9_][\w.-]*", value):
            words.append((item.line, value))
    if said and not (sure or likely or words):
        reading.lines[name] = said[0]
        reading.wrong(said[0], f"[exp_{name}] names no path: {said[1][:80]!r}.")
    return _one_path(reading, name, sure or likely[:1] or words[-1:])


def _said(reading: Reading, name: str) -> list[Item]:
    """Return what a section says apart from explanations; nothing of one that is not there."""
    section = reading.sections.get(name)
    return [item for item in items(section) if not _ASIDE.fullmatch(item.label)] if section else []


def _one_path(reading: Reading, name: str, found: Sequence[tuple[int, str]]) -> str | None:
    if not found:
        return None
    line, first = found[0]
    reading.lines[name] = line
    for other_line, other in found[1:]:
        if other.rstrip("/") != first.rstrip("/"):
            reading.wrong(other_line, f"[exp_{name}] names a second path, {other[:80]!r}: one is wanted.")
            break
    for names in _VARIABLE.findall(first):
        if (variable := names[0] or names[1]) not in _OF_THE_USER and section_of(variable) != "codebase_dir":
            reading.wrong(line, f"[exp_{name}]: nothing says what {variable} is in {first[:80]!r}: write the path out.")
    return first


def _whole_path(text: str, value: str) -> str:
    """Return ``value`` if all of it is one path; spaces only where quotes hold it together."""
    quoted = re.fullmatch(r"""\s*(?:`([^`]+)`|"([^"]+)"|'([^']+)')[\s,;.。，；]*(?:[(（#].*)?""", text)
    if quoted:
        inner = (quoted[1] or quoted[2] or quoted[3]).strip().strip("\"'")
        return inner if _PATH.match(inner) else ""
    bare = re.sub(r"\s+(?:[(（#].*|[-–—]+\s.*)$|\s*[（].*$", "", value).rstrip("，,;；。")
    return bare if _PATH.fullmatch(bare) else ""


def _path_within(value: str) -> str:
    """Return the path in a sentence: in inline code before any other."""
    spans = [span.strip() for span in re.findall(r"`([^`]+)`", value) if _PATH.fullmatch(span.strip())]
    words = [m[0] for m in _PATH.finditer(value) if "/" in m[0] and "://" not in value[: m.end() + 3]]
    found = [*spans, *words]
    return found[0].rstrip(".,;:)") if found else ""


def time_limit_s(reading: Reading) -> float | None:
    """Return how long the run may take in seconds; None where the default stands."""
    found: list[tuple[int, float]] = []
    said: tuple[int, str] | None = None
    for item in _said(reading, "max_time"):
        text = _apart(f"{item.label}: {item.text}" if _FIRST.search(item.label) else item.text)
        if not text:
            continue
        value = _MAX_TIME.sub("", text.strip().strip("`*\"' "))
        if _ABSENT.fullmatch(value) and not found:
            return None
        if reading.held("max_time", item.line, value):
            return None
        if _RANGE.search(value) and not re.search(r"\d-\d+:", value):
            reading.wrong(item.line, f"[exp_max_time] is a range, {value[:60]!r}: one duration is wanted.")
            return None
        said = said or (item.line, value)
        heading = f"{reading.sections['max_time'].heading} ({item.label})"
        if (seconds := _seconds(value, heading)) is not None:
            found.append((item.line, seconds))
    if said and not found:
        reading.wrong(said[0], f"[exp_max_time] is no duration: {said[1][:60]!r}. Write e.g. 24 hours or 90 min.")
    return _one_time(reading, found)


def _apart(text: str) -> str:
    """Return ``text`` without what it says of the first step: ``24 hours (first step within 20 min)``."""
    if not _FIRST.search(text):
        return text
    kept, due = [], False
    for clause in filter(None, _CLAUSE.split(text)):
        timed = durations.find(clause) is not None
        if _FIRST.search(clause):
            due = not timed  # as in "first step, within 20 min"
        elif due and timed:
            due = False
        else:
            kept.append(clause)
    return ", ".join(kept)


def _seconds(value: str, heading: str) -> float | None:
    seconds = durations.find(value)
    return durations.with_unit(value, heading) if seconds is None else seconds


def _one_time(reading: Reading, found: Sequence[tuple[int, float]]) -> float | None:
    if not found:
        return None
    line, limit_s = found[0]
    reading.lines["max_time"] = line
    if not 0 < limit_s <= LONGEST_TIME_S:
        reading.wrong(line, f"[exp_max_time] is {'longer than 60 days' if limit_s > 0 else 'not above zero'}.")
        return None
    for other_line, other_s in found[1:]:
        if other_s != limit_s:
            here, there = durations.told(other_s), durations.told(limit_s)
            reading.wrong(other_line, f"[exp_max_time] is {there} in line {line}, {here} here: one is wanted.")
            break
    return limit_s


def first_step(reading: Reading, notes: Sequence[Line]) -> tuple[float | None, str | None]:
    """Return within how many seconds the first step is due, and the pattern that shows it, as far as is said."""
    limits = reading.sections.get("max_time")
    said = [*(items(limits) if limits else ()), *items(Section("notes", 0, lines=list(notes)))]
    seconds, pattern = None, None
    for item in said:
        words = f"{item.label}: {item.text}"
        if seconds is None and (first := _FIRST.search(words)):
            clause = next((part for part in _CLAUSE.split(words) if _FIRST.search(part)), "")
            told_s = durations.find(clause) or durations.find(words[first.start() :]) or durations.find(words)
            if told_s is not None and 0 < told_s <= LONGEST_TIME_S:
                seconds, pattern = told_s, _shown_by(words[first.start() :])
    for item in said:
        if _PATTERN_LABEL.search(item.label):
            written = item.text.strip().strip("`\"'")
            try:
                checked(written)
            except PatternError as error:
                reading.wrong(item.line, f"first_step_pattern is not usable: {error.why}.")
            else:
                return seconds, written
    return seconds, pattern


def _shown_by(words: str) -> str | None:
    """Return the pattern of what is quoted in ``words``: "kl loss" is also ``actor/kl_loss``, no ``use_kl_loss``."""
    if (quoted := _QUOTED.search(words)) is None:
        return None
    name = r"[\s_/-]*".join(re.escape(part) for part in re.split(r"[\s_/-]+", quoted[1].strip()))
    # Settings are printed before any step: use_kl_loss, kl_loss_coef.
    return rf"(?i)(?<![a-z\d_]){name}(?![a-z\d_])"


def purpose(reading: Reading) -> str:
    """Return the purpose as one paragraph; explanations only where there is nothing else."""
    said: list[str] = []
    aside: list[str] = []
    section = reading.sections.get("purpose")
    for line in [Line(section.line, section.inline), *section.lines] if section else ():
        text = plain(line.text) if line.fence is None else line.text.strip()
        if not text or text.startswith("#") or re.fullmatch(r"[-=_*|: ]{3,}", text):
            continue
        label, value = labelled(text)
        explains = bool(_ASIDE.fullmatch(label))
        if explains or section_of(label) == "purpose" or _CONTENT.fullmatch(label):
            text = value
        if not reading.held("purpose", line.number, text):
            (aside if explains else said).append(text)
    return " ".join(filter(None, said or aside))[:_LONGEST_PURPOSE].strip().strip("\"'").strip()
