"""Values of a blueprint's sections: paths, time limit, first-step rule, purpose. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mcp_server.blueprints.headings import find_section, plain_text, split_label
from mcp_server.blueprints.markdown import SourceLine, code_spans
from mcp_server.blueprints.sections import BlueprintFault, Section, SectionItem, read_items
from mcp_server.errors import PatternError
from mcp_server.text.durations import find_duration, parse_with_unit
from mcp_server.text.formatting import duration
from mcp_server.text.regex import compile_user_pattern

MAX_TIME_S = 60 * 86_400.0
_MAX_PURPOSE_CHARS = 2_000

_ABSENT = re.compile(
    r"(?:n\.?/?a\.?|none|null|nil|nothing|default|same|无|没有|不需要|默认"
    r"|not (?:needed|used|required|applicable)|-+|—+)(?:[\s,.;:(（，。].*)?",
    re.IGNORECASE,
)
_EXPLANATION_LABEL = re.compile(
    r"(?:description|desc|hint|notes?|warning|remark|comment|why|example|e\.g\.?|说明|提示|注意|备注|描述|警告|示例|例如)\s*\d*"
)
_CONTENT_LABEL = re.compile(
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
_USER_VARIABLES = frozenset({"HOME", "USER"})
_RANGE = re.compile(r"\d\s*(?:-|~|–|to|至|到)\s*\d+(?:\.\d+)?\s*[A-Za-z个小天分]")
_MAX_TIME_LABEL = re.compile(r"^\$?\{?max_?time\}?\s*(?:[=:：]-?)\s*", re.IGNORECASE)
_PATH_WITH_SPACES = re.compile(r"(?:~|\.{1,2})?/[^\s,;，；。()（）]+(?: [\w.-]+){0,3} [\w.-]*/[\w./-]*")
_FIRST_STEP = re.compile(
    r"first[-_ ](?:training |optimi[sz]er |gradient |global )?(?:step|iteration|update)|first (?:\S+ ){0,3}loss"
    r"|第一个?步|首个?步|第一个|首个|第一次|第一条",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(?:[()（）;；，。]|,(?!\d{3})|\.(?=\s|$))\s*")
_PATTERN_LABEL = re.compile(r"first[-_ ]step[-_ ]pattern|首步(?:模式|正则)")
_QUOTED_NAME = re.compile(r"[`\"“「']([A-Za-z][\w /_.@-]{2,60})[`\"”」']")


@dataclass
class BlueprintReader:
    """The sections of a document, the faults, and the line of each value."""

    sections: dict[str, Section] = field(default_factory=dict)
    faults: list[BlueprintFault] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    def add_fault(self, line: int, text: str) -> None:
        """Note a fault that prevents running the document."""
        self.faults.append(BlueprintFault(line, text))

    def assign_faults(self, since: int, section: str) -> None:
        """Note that the faults after the first ``since`` affect only ``section``."""
        self.faults[since:] = [replace(fault, section=section) for fault in self.faults[since:]]

    def has_placeholder(self, name: str, line: int, value: str) -> bool:
        """Return whether ``value`` is still the template's, and note that as a fault."""
        if placeholder := PLACEHOLDER.search(value):
            self.add_fault(line, f"[exp_{name}] still holds the template's {placeholder[0]!r}.")
        return placeholder is not None


def read_path(reader: BlueprintReader, name: str) -> str | None:
    """Return the path in a section.

    None if the section is absent or says that there is none.
    """
    whole_paths: list[tuple[int, str]] = []
    paths_in_text: list[tuple[int, str]] = []
    words: list[tuple[int, str]] = []
    first: tuple[int, str] | None = None
    for item in _content_items(reader, name):
        value = item.text.strip().strip("`*").strip().strip("\"'").strip()
        first = first or (item.line, value)
        if _ABSENT.fullmatch(value) and not whole_paths:
            return None
        if reader.has_placeholder(name, item.line, value):
            return None
        if name == "venv_exe" and re.fullmatch(r"python[\d.]*", value) and not whole_paths:
            return None
        if _PATH_WITH_SPACES.fullmatch(item.text.strip()):
            reader.add_fault(item.line, f"[exp_{name}] has spaces in {value[:80]!r}: write one path, in quotes.")
            return None
        is_content = (
            not item.label
            or item.is_code
            or find_section(item.label) == name
            or _CONTENT_LABEL.fullmatch(item.label) is not None
        )
        if is_content and (path := _match_path(item.text, value)):
            whole_paths.append((item.line, path))
        elif (path := _find_path(value)) and "." not in item.label:
            paths_in_text.append((item.line, path))
        elif is_content and name.endswith("_dir") and re.fullmatch(r"[A-Za-z0-9_][\w.-]*", value):
            words.append((item.line, value))
    if first and not (whole_paths or paths_in_text or words):
        reader.lines[name] = first[0]
        reader.add_fault(first[0], f"[exp_{name}] names no path: {first[1][:80]!r}.")
    return _choose_path(reader, name, whole_paths or paths_in_text[:1] or words[-1:])


def _content_items(reader: BlueprintReader, name: str) -> list[SectionItem]:
    """Return the items of a section without explanations.

    Empty if the section is absent.
    """
    section = reader.sections.get(name)
    return [item for item in read_items(section) if not _EXPLANATION_LABEL.fullmatch(item.label)] if section else []


def _choose_path(reader: BlueprintReader, name: str, paths: Sequence[tuple[int, str]]) -> str | None:
    if not paths:
        return None
    line, first = paths[0]
    reader.lines[name] = line
    for other_line, other in paths[1:]:
        if other.rstrip("/") != first.rstrip("/"):
            reader.add_fault(other_line, f"[exp_{name}] names a second path, {other[:80]!r}: write one.")
            break
    for names in _VARIABLE.findall(first):
        variable = names[0] or names[1]
        if variable not in _USER_VARIABLES and find_section(variable) != "codebase_dir":
            reader.add_fault(line, f"[exp_{name}]: {variable} has no value in {first[:80]!r}: write the path out.")
    return first


def _match_path(text: str, value: str) -> str:
    """Return ``value`` if all of it is one path.

    A path with spaces must be in quotes.
    """
    quoted = re.fullmatch(r"""\s*(?:`([^`]+)`|"([^"]+)"|'([^']+)')[\s,;.。，；]*(?:[(（#].*)?""", text)
    if quoted:
        inner = (quoted[1] or quoted[2] or quoted[3]).strip().strip("\"'")
        return inner if _PATH.match(inner) else ""
    bare = re.sub(r"\s+(?:[(（#].*|[-–—]+\s.*)$|\s*[（].*$", "", value).rstrip("，,;；。")
    return bare if _PATH.fullmatch(bare) else ""


def _find_path(value: str) -> str:
    """Return the path in a sentence, one in inline code before any other."""
    spans = [span.strip() for span in code_spans(value) if _PATH.fullmatch(span.strip())]
    words = [m[0] for m in _PATH.finditer(value) if "/" in m[0] and "://" not in value[: m.end() + 3]]
    paths = [*spans, *words]
    return paths[0].rstrip(".,;:)") if paths else ""


def read_time_limit(reader: BlueprintReader) -> float | None:
    """Return the time limit in seconds.

    None if the default applies.
    """
    limits: list[tuple[int, float]] = []
    first: tuple[int, str] | None = None
    for item in _content_items(reader, "max_time"):
        text = _without_first_step(f"{item.label}: {item.text}" if _FIRST_STEP.search(item.label) else item.text)
        if not text:
            continue
        value = _MAX_TIME_LABEL.sub("", text.strip().strip("`*\"' "))
        if _ABSENT.fullmatch(value) and not limits:
            return None
        if reader.has_placeholder("max_time", item.line, value):
            return None
        if _RANGE.search(value) and not re.search(r"\d-\d+:", value):
            reader.add_fault(item.line, f"[exp_max_time] is a range, {value[:60]!r}: write one duration.")
            return None
        first = first or (item.line, value)
        heading = f"{reader.sections['max_time'].heading} ({item.label})"
        if (seconds := _read_seconds(value, heading)) is not None:
            limits.append((item.line, seconds))
    if first and not limits:
        reader.add_fault(
            first[0], f"[exp_max_time] is not a duration: {first[1][:60]!r}. Write e.g. 24 hours or 90 min."
        )
    return _choose_time_limit(reader, limits)


def _without_first_step(text: str) -> str:
    """Return ``text`` without its first-step rule: ``24 hours (first step within 20 min)`` becomes ``24 hours``."""
    if not _FIRST_STEP.search(text):
        return text
    clauses, awaits_time = [], False
    for clause in filter(None, _CLAUSE.split(text)):
        has_time = find_duration(clause) is not None
        if _FIRST_STEP.search(clause):
            awaits_time = not has_time  # as in "first step, within 20 min"
        elif awaits_time and has_time:
            awaits_time = False
        else:
            clauses.append(clause)
    return ", ".join(clauses)


def _read_seconds(value: str, heading: str) -> float | None:
    seconds = find_duration(value)
    return parse_with_unit(value, heading) if seconds is None else seconds


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


def read_first_step(reader: BlueprintReader, notes: Sequence[SourceLine]) -> tuple[float | None, str | None]:
    """Return the time to the first step in seconds and the pattern of its line.

    None for what is absent.
    """
    limit_section = reader.sections.get("max_time")
    items = [
        *(read_items(limit_section) if limit_section else ()),
        *read_items(Section("notes", 0, lines=list(notes))),
    ]
    seconds, pattern = None, None
    for item in items:
        words = f"{item.label}: {item.text}"
        if seconds is None and (first := _FIRST_STEP.search(words)):
            clause = next((part for part in _CLAUSE.split(words) if _FIRST_STEP.search(part)), "")
            time_s = find_duration(clause) or find_duration(words[first.start() :]) or find_duration(words)
            if time_s is not None and 0 < time_s <= MAX_TIME_S:
                seconds, pattern = time_s, _pattern_of_name(words[first.start() :])
    for item in items:
        if _PATTERN_LABEL.search(item.label):
            written = item.text.strip().strip("`\"'")
            try:
                compile_user_pattern(written)
            except PatternError as error:
                reader.add_fault(item.line, f"first_step_pattern is not usable: {error.why}.")
            else:
                return seconds, written
    return seconds, pattern


def _pattern_of_name(words: str) -> str | None:
    """Return a pattern for the quoted name in ``words``: "kl loss" matches ``actor/kl_loss``, not ``use_kl_loss``."""
    if (quoted := _QUOTED_NAME.search(words)) is None:
        return None
    name = r"[\s_/-]*".join(re.escape(part) for part in re.split(r"[\s_/-]+", quoted[1].strip()))
    # Settings such as use_kl_loss and kl_loss_coef are printed before any step.
    return rf"(?i)(?<![a-z\d_]){name}(?![a-z\d_])"


def read_purpose(reader: BlueprintReader) -> str:
    """Return the purpose as one paragraph.

    It has explanations only if there is nothing else.
    """
    texts: list[str] = []
    explanations: list[str] = []
    section = reader.sections.get("purpose")
    for line in section.all_lines if section else ():
        text = plain_text(line) if line.fence is None else line.text.strip()
        if not text or line.level or text.startswith("#") or re.fullmatch(r"[-=_*|: ]{3,}", text):
            continue
        label, value = split_label(text)
        is_explanation = bool(_EXPLANATION_LABEL.fullmatch(label))
        if is_explanation or find_section(label) == "purpose" or _CONTENT_LABEL.fullmatch(label):
            text = value
        if not reader.has_placeholder("purpose", line.number, text):
            (explanations if is_explanation else texts).append(text)
    return " ".join(filter(None, texts or explanations))[:_MAX_PURPOSE_CHARS].strip().strip("\"'").strip()
