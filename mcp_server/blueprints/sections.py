"""A blueprint's text in sections, and a section in items.

Every part has its line number. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.blueprints.clauses import ADDRESS
from mcp_server.blueprints.front_matter import FrontMatter, read_front_matter
from mcp_server.blueprints.headings import (
    ALIAS_LABEL,
    BARE,
    BRACKETED,
    LOOSE_MARK,
    NO_HASHES,
    NOTES,
    OPTIONS,
    OWN_NAME,
    SECTIONS,
    SINGLE,
    Heading,
    find_bare,
    find_heading,
    find_section,
    find_underlined,
    plain_text,
    split_label,
    unfold_wide_tables,
)
from mcp_server.blueprints.html import rewrite_html
from mcp_server.blueprints.markdown import SourceLine, read_lines, strip_bold
from mcp_server.text.durations import find_durations, normalize

_EXPLANATION_LABEL = re.compile(
    r"(?:description|desc|hints?|tips?|notes?|warnings?|caution|remarks?|comments?|why|reason|rationale|examples?|e\.g\.?"
    r"|说明|提示|注意|注意事项|备注|描述|警告|示例|例如|原因|理由)\s*\d*"
)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")  # as copied from a web page
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# What a label under another heading may be, and its value.
_STRAYS = ("venv_exe", "codebase_dir", "yaml_path", "result_dir", "max_time")
_STRAY_PATH = re.compile(r"[`\"']?(?:~?/|\.{1,2}/|[\w.-]+/)[^\s,;`\"'，；]*[`\"']?")
_PYTHON_PATH = re.compile(r"[^\s,;]*/(?:python[\d.]*|activate)|[^\s,;]*/(?:\.?venv|envs/[\w.-]+)/?")
_ENVIRONMENT = re.compile(r"python|environment|venv|\benv\b|conda|interpreter|环境|解释器", re.IGNORECASE)
_FIRST_STEP = re.compile(r"first|warm[- ]?up|首|预热|erste", re.IGNORECASE)  # headings of other durations
_PATH_WORD = re.compile(r"path|dir|folder|file|root|路径|目录|文件", re.IGNORECASE)
_MAX_STRAY_CHARS = 500
_FEWEST_HEADINGS = 3  # sections with headings, from which on labels are text
_MAX_MISSPELT = 200  # candidates: each is compared with every name
_LIKE_OWN_NAME = re.compile(
    r"[\[【［]?\s*(exp[_ -][a-z]{2,20}(?:[_ -][a-z]{2,20}){0,2})\s*(?:[\]】］:：=]|-\s|$)", re.IGNORECASE
)
_IN_BRACKETS = re.compile(r"[\[【［]\s*exp[_ -]", re.IGNORECASE)
_OWN_BRACKETS = re.compile(r"[\[【]([^\W\d_][\w -]{1,40})[\]】]\s*(?:[:：].*)?")
_CLOSING_FENCE = re.compile(r"[ \t]*(?:`{3,}|~{3,})\s*")
_PURPOSE = re.compile(r"purpose|zweck|objectif|目的", re.IGNORECASE)
_BOLD = re.compile(r"\*\*[^*]+\*\*\s*:?")
_RULE = re.compile(r"[-=_*|: ]{3,}")
_BULLETS = ("-", "*", "+")


@dataclass(frozen=True)
class BlueprintFault:
    """A fault on a line. ``fatal``: it prevents running the document. ``section``: only that section is affected."""

    line: int
    text: str
    fatal: bool = True
    section: str = ""


@dataclass
class Section:
    """One section: the line of its heading, the text on that line, and the lines below."""

    name: str
    line: int
    heading: str = ""
    inline: str = ""
    level: int = NO_HASHES
    lines: list[SourceLine] = field(default_factory=list)
    exact: str | None = None  # the value itself, from YAML
    data: object = None
    strength: int = OWN_NAME
    is_item: bool = False  # it begins as an item of a list

    @property
    def all_lines(self) -> list[SourceLine]:
        """The text on the heading's line, if any, and the lines below."""
        if not self.inline:
            return self.lines
        parts = _BREAK.split(self.inline)
        return [*(SourceLine(self.line, part, part.strip(), strip_bold(part)) for part in parts), *self.lines]


@dataclass(frozen=True)
class SectionItem:
    """The content of one line of a section. ``label`` is in lower case. ``is_code``: in a code block."""

    line: int
    label: str
    text: str
    is_code: bool = False
    whole: str = ""  # with a label that stands on the same line

    @property
    def words(self) -> str:
        """The text with its label."""
        return f"{self.label}: {self.text}" if self.label else self.text


@dataclass(frozen=True)
class SectionedText:
    """Sections in order, notes, title, and faults of the form."""

    sections: tuple[Section, ...]
    notes: tuple[SourceLine, ...]
    title: str
    faults: tuple[BlueprintFault, ...]


def is_explanation(label: str) -> bool:
    """Return whether the label of an item says that the item only explains its section."""
    return _EXPLANATION_LABEL.fullmatch(label) is not None


def split_sections(text: str) -> SectionedText:
    """Split the text of a blueprint into its sections."""
    texts = _split_lines(text)
    front_matter = read_front_matter(texts)
    behind = [(number, texts[number - 1]) for number in range(front_matter.last_line + 1, len(texts) + 1)]
    body = unfold_wide_tables(rewrite_html(behind))
    lines, faults = _read_blueprint_lines([line for _, line in body])
    headings = {line.number: heading for line in lines if line.fence is None and (heading := find_heading(line))}
    headings |= find_underlined(lines, headings)
    headings |= find_bare(lines, headings)
    headings |= _find_own_sections(lines, headings)
    _drop_weaker_headings(headings, lines, front_matter)
    front = [*_front_sections(front_matter)]
    sections, notes = [*front], list[SourceLine]()
    title = _fill_sections(lines, headings, sections, notes)
    faults += [*_adopt_strays(lines, headings, sections), *_find_misspelt(lines)]
    numbers = [number for number, _ in body]
    for section in sections[len(front) :]:
        section.line = numbers[section.line - 1]
        section.lines = [replace(line, number=numbers[line.number - 1]) for line in section.lines]
    notes = [replace(note, number=numbers[note.number - 1]) for note in notes]
    faults = [replace(fault, line=numbers[fault.line - 1]) for fault in faults]
    if front_matter.fault:
        faults.append(BlueprintFault(front_matter.fault[0], f"front matter: {front_matter.fault[1]}."))
    others = [
        SourceLine(number, texts[number - 1], texts[number - 1].strip(), texts[number - 1].strip())
        for number in front_matter.other
    ]
    return SectionedText(tuple(sections), (*others, *notes), title, tuple(faults))


def _fill_sections(
    lines: Sequence[SourceLine], headings: dict[int, Heading], sections: list[Section], notes: list[SourceLine]
) -> str:
    """Append every line to its section, or to the notes; return the title."""
    current: Section | None = None
    title = ""
    for line in lines:
        heading = headings.get(line.number)
        if heading is not None:
            section = Section(heading.section, line.number, heading.text, heading.inline, heading.level)
            section.strength, section.is_item = heading.strength, bool(line.list_mark)
            if heading.section == NOTES:
                notes.append(replace(line, text=heading.inline))
                current = None
                continue
            sections.append(section)
            current = None if heading.is_row else section
            continue
        if line.level == 1 and not title:
            title = line.content.strip("*_` #")
        ends = line.level and line.level <= current.level and not _is_shell_comment(current, line) if current else False
        if current and _is_own_label(current, line):
            current = None
        if (
            current
            and current.name in SINGLE
            and _is_rule(line)
            and any(each.text.strip() for each in current.all_lines)
        ):
            ends = True  # behind a rule is what the writer says beside the document
        ends = ends or bool(current and _is_address(current, line))
        if ends or line.content.startswith("[^") or (current and _is_behind_list(current, line)):
            current = None
        (notes if current is None else current.lines).extend(_split_breaks(line) if current is not None else [line])
    return title


def _adopt_strays(
    lines: Sequence[SourceLine], headings: Mapping[int, Heading], sections: list[Section]
) -> Iterator[BlueprintFault]:
    """Append sections that are only labels under other headings: ``- Python: /venv/bin/python`` of an environment.

    In the notes such a line may mean anything, so that it is a fault there: a default would silently replace it.
    """
    present = {section.name for section in sections}
    if not present or "launch_command" not in present:
        return
    below, in_notes, in_section, level = "", False, False, NO_HASHES
    for line in lines:
        if (heading := headings.get(line.number)) is not None:
            in_notes, in_section, below = heading.section == NOTES, heading.section != NOTES and not heading.is_row, ""
            level = heading.level
            continue
        if line.level:
            ends = line.level <= level
            below, in_section, in_notes = line.content, in_section and not ends, in_notes and not ends
            continue
        row = find_heading(line) if line.fence is None and line.content.startswith("|") else None
        if (in_section and row is None) or line.fence is not None or len(line.content) > _MAX_STRAY_CHARS:
            continue
        label, value, name = (row.text, row.inline, row.section) if row else _read_label(line, below)
        is_bare_time = not label and below and not _FIRST_STEP.search(below) and _is_value_of("max_time", value)
        if is_bare_time and not in_notes and "max_time" not in present:
            text = f"{value[:40]!r} is below {below[:40]!r}, and [exp_max_time] is missing: write it below that name."
            yield BlueprintFault(line.number, text, section="max_time")
        if name not in _STRAYS or name in present or not _is_value_of(name, value):
            continue
        if not in_notes and not in_section:
            sections.append(Section(name, line.number, label, value))
        elif in_section or name in ("venv_exe", "max_time") or _PATH_WORD.search(label):
            where = "another section" if in_section else "the notes"
            text = f"{plain_text(line)[:60]!r} is in {where}, and [exp_{name}] is missing: write it below that name."
            yield BlueprintFault(line.number, text, section=name)


def _read_label(line: SourceLine, below: str) -> tuple[str, str, str | None]:
    """Return label, value and section of ``- Python: /venv/bin/python``. ``below``: the heading above the line."""
    text = plain_text(line)
    label, value = split_label(text)
    if not label and _ENVIRONMENT.search(below) and _PYTHON_PATH.fullmatch(text.strip("`")):
        return "", text, "venv_exe"
    return label, value, find_section(label) if label else None


def _is_value_of(name: str, value: str) -> bool:
    """Return whether a text is a path, or for the time limit a duration, and nothing else."""
    if name != "max_time":
        return _STRAY_PATH.fullmatch(value) is not None
    durations = find_durations(value)
    return len(durations) == 1 and (durations[0].start, durations[0].end) == (0, len(normalize(value)))


def _front_sections(front_matter: FrontMatter) -> Iterator[Section]:
    for entry in front_matter.entries:
        yield Section(entry.name, entry.line, entry.key, exact=entry.text, data=entry.data)


def _split_breaks(line: SourceLine) -> list[SourceLine]:
    if line.fence is not None or "<" not in line.text or not _BREAK.search(line.text):
        return [line]
    parts = zip(*(_BREAK.split(text) for text in (line.text, line.content, line.plain)), strict=False)
    first, *others = [
        replace(line, text=text, content=content.strip(), plain=plain.strip()) for text, content, plain in parts
    ]
    return [first, *(replace(other, list_mark="") for other in others)]


def read_items(section: Section) -> Iterator[SectionItem]:
    """Yield the items of a section by line. A label without a value applies to the line below."""
    pending, depth = "", 0
    for line in section.all_lines:
        if not line.text.strip():
            continue
        indent = len(line.text) - len(line.text.lstrip())
        if line.fence is not None:
            yield SectionItem(line.number, pending, line.text, is_code=True)
            continue
        text = plain_text(line)
        if line.level or not text or _RULE.fullmatch(text):
            continue
        label, value = split_label(text)
        if label and not value:
            pending, depth = label, indent
            continue
        has_bullet = line.list_mark in _BULLETS or line.content.startswith("• ")
        applies = indent > depth or not (has_bullet or is_explanation(pending))
        below = pending if applies else ""
        yield SectionItem(line.number, label or below, value if label else text, whole=text)
        if indent <= depth:
            pending = ""


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text, without characters that nobody sees."""
    text = _INVISIBLE.sub("", text) if _INVISIBLE.search(text) else text
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").split("\n")


def _read_blueprint_lines(texts: list[str]) -> tuple[list[SourceLine], list[BlueprintFault]]:
    """Return the lines of a blueprint. A code block that is never closed ends before the next section."""
    lines, fences = read_lines(texts)
    if fences and fences[0].language in ("markdown", "md"):  # around the whole document, which was pasted
        before = [line for line in lines if line.number < fences[0].first]
        if not any(find_heading(line) for line in before):
            texts = list(texts)
            last = max((at for at, text in enumerate(texts) if _CLOSING_FENCE.fullmatch(text)), default=0)
            texts[fences[0].first - 1] = texts[last] = ""
            lines, fences = read_lines(texts)
    if not fences or fences[-1].is_closed:
        return lines, []
    swallowed = range(fences[-1].first, fences[-1].end - 1)
    after, _ = read_lines(["" if at not in swallowed else text for at, text in enumerate(texts)], with_fences=False)
    sections = (line.number for line in after if (heading := find_heading(line)) and heading.strength >= BRACKETED)
    if (section := next(sections, None)) is None:
        return lines, []
    text = f"this code block is never closed, and sections follow: close it before line {section}."
    joined = [*(line for line in lines if line.number < section), *(line for line in after if line.number >= section)]
    return joined, [BlueprintFault(fences[-1].first, text)]


def _drop_weaker_headings(headings: dict[int, Heading], lines: Sequence[SourceLine], front_matter: FrontMatter) -> None:
    """Keep the strongest spelling of each section.

    Labels such as ``Goal: …`` begin no section in a document that has names in brackets, or headings. Headings below
    that of the notes are notes.
    """
    _drop_headings_of_notes(headings, lines)
    _keep_own_sections(headings)
    strongest = dict.fromkeys((entry.name for entry in front_matter.entries), OWN_NAME)
    for heading in headings.values():
        strongest[heading.section] = max(heading.strength, strongest.get(heading.section, BARE))
    strengths = [strength for name, strength in strongest.items() if name != NOTES]
    has_own_names = any(strength >= OWN_NAME for strength in strengths)
    has_headings = sum(strength > ALIAS_LABEL for strength in strengths) >= _FEWEST_HEADINGS
    for number, heading in list(headings.items()):
        if heading.section == NOTES:
            if heading.strength == ALIAS_LABEL and has_headings and heading.inline:
                del headings[number]
            continue
        is_weak_label = heading.strength <= ALIAS_LABEL and (has_own_names or has_headings)
        if is_weak_label or heading.strength < strongest[heading.section]:
            del headings[number]


def _keep_own_sections(headings: dict[int, Heading]) -> None:
    """Make notes of sections that only resemble the purpose, as ``[exp_hypothesis]`` beside ``[exp_purpose]``.

    The purpose is the one with that name, else the first.
    """
    purposes = [(number, heading) for number, heading in headings.items() if heading.section == "purpose"]
    strongest = max((heading.strength for _, heading in purposes), default=0)
    purposes = [(number, heading) for number, heading in purposes if heading.strength == strongest]
    named = [number for number, heading in purposes if _PURPOSE.search(heading.text.split(":")[0])]
    if len(named) > 1 and len({heading.text for number, heading in purposes if number in named}) == 1:
        return  # the same name twice
    kept = min(named or [number for number, _ in purposes], default=0)
    for number, heading in purposes:
        if number != kept:
            headings[number] = replace(heading, section=NOTES, inline=heading.text)


def _find_own_sections(lines: Sequence[SourceLine], headings: Mapping[int, Heading]) -> dict[int, Heading]:
    """Return the headings of the writer's own sections, ``[exp_owner]`` or ``[hardware]``, which are notes.

    In a command and in options such a line without brackets, or without ``exp``, is something else.
    """
    has_brackets = sum(heading.strength >= BRACKETED for heading in headings.values()) > 1
    own: dict[int, Heading] = {}
    section, is_bold = "", False
    for line in lines:
        if (heading := headings.get(line.number)) is not None:
            section, is_bold = heading.section, _BOLD.fullmatch(line.content) is not None
            continue
        if is_bold and section in SINGLE and line.fence is None and _BOLD.fullmatch(line.content):
            own[line.number] = Heading(NOTES, OWN_NAME, NO_HASHES, line.plain, line.text)
            continue
        if line.fence is not None or line.level:
            continue
        text = LOOSE_MARK.sub("", line.plain[:200], count=1).strip("*_ ")
        if section in ("launch_command", *OPTIONS) and not _IN_BRACKETS.match(text):
            continue
        name = _LIKE_OWN_NAME.match(text) or (_OWN_BRACKETS.fullmatch(text) if has_brackets else None)
        if name is not None and find_section(name[1]) is None:
            own[line.number] = Heading(NOTES, OWN_NAME, NO_HASHES, text, line.text)
    return own


def _drop_headings_of_notes(headings: dict[int, Heading], lines: Sequence[SourceLine]) -> None:
    """Drop headings in ordinary words below a heading of notes: ``### Results`` of the notes is not a directory."""
    notes_level = 0
    for line in lines:
        heading = headings.get(line.number)
        if heading is not None and heading.section == NOTES and heading.level < NO_HASHES:
            notes_level = heading.level
        elif notes_level and heading is not None and heading.strength < OWN_NAME and heading.level > notes_level:
            del headings[line.number]
        elif (line.level or (heading and heading.level < NO_HASHES)) and (
            heading.level if heading else line.level
        ) <= notes_level:
            notes_level = 0


def _is_own_label(section: Section, line: SourceLine) -> bool:
    """Return whether a line is a label of the writer's own between sections that are labels, or items of a list."""
    label = split_label(line.plain)[0] if line.fence is None and section.inline else ""
    is_item = section.is_item and line.list_mark and line.text.strip() == line.text
    is_label = section.strength == ALIAS_LABEL and line.plain[:1].isupper()
    return bool(label and (is_item or is_label) and not is_explanation(label))


def _is_rule(line: SourceLine) -> bool:
    return line.fence is None and not line.content and _RULE.fullmatch(line.text.strip()) is not None


def _is_behind_list(section: Section, line: SourceLine) -> bool:
    """Return whether a line is a paragraph behind the list that has a section and its value."""
    above = section.all_lines
    is_text = (
        section.is_item and line.fence is None and not line.list_mark and line.content and line.text[0] not in " \t"
    )
    return bool(is_text and above and not above[-1].text.strip() and any(each.text.strip() for each in above))


def _is_address(section: Section, line: SourceLine) -> bool:
    """Return whether a line begins a closing paragraph to the reader behind a value on the name's own line."""
    is_text = section.name in ("purpose", "launch_command") and line.fence is None and section.inline
    return bool(is_text and not section.all_lines[-1].text.strip() and ADDRESS.match(line.content.lower()))


def _is_shell_comment(section: Section, line: SourceLine) -> bool:
    """Return whether a # line is a comment of the command: above the section's level, or before any command."""
    is_empty = not any(other.text.strip() for other in section.lines)
    return section.name == "launch_command" and line.level == 1 and (section.level > 1 or is_empty)


def _find_misspelt(lines: Sequence[SourceLine]) -> Iterator[BlueprintFault]:
    """Yield misspelt section names: a default would silently replace the section. Any other name is a note's."""
    seen = 0
    for line in lines:
        if line.fence is not None or "exp" not in line.content[:80].lower():
            continue
        text = re.sub(r"^[#>*_`\s]+", "", LOOSE_MARK.sub("", line.content[:200], count=1))
        name = _LIKE_OWN_NAME.match(text)
        if name is None or find_section(name[1]) is not None or seen > _MAX_MISSPELT:
            continue
        seen += 1
        # Compared without the prefix, which would make any two names alike.
        own = re.sub(r"[\s-]+", "_", name[1].lower()).removeprefix("exp_")
        if near := difflib.get_close_matches(own, (*SECTIONS, *OPTIONS), 1, 0.75):
            text = f"[{name[1]}] is not a section: did you mean [exp_{near[0]}]?"
            yield BlueprintFault(line.number, text, section=near[0])
