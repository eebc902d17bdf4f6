"""A blueprint's text in sections, and a section in items.

Every part has its line number. Pure.
"""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.blueprints.headings import (
    ALIAS_LABEL,
    BRACKETED,
    LOOSE_MARK,
    MAX_LINE_CHARS,
    NO_HASHES,
    NOTES,
    OWN_NAME,
    SECTIONS,
    Heading,
    find_heading,
    find_section,
    plain_text,
    split_label,
)
from mcp_server.blueprints.markdown import SourceLine, read_lines, strip_bold

_MAX_LINES = 10_000
_LIKE_OWN_NAME = re.compile(
    r"[\[【［]?\s*(exp[_ -][a-z]{2,20}(?:[_ -][a-z]{2,20}){0,2})\s*(?:[\]】］:：=]|-\s|$)", re.IGNORECASE
)
_CLOSING_FENCE = re.compile(r"[ \t>]*(?:`{3,}|~{3,})\s*")
_RULE = re.compile(r"[-=_*|: ]{3,}")
_BULLETS = ("-", "*", "+")


@dataclass(frozen=True)
class BlueprintFault:
    """A fault on a line. ``fatal``: it prevents running the document.

    ``section``: only that section is affected.
    """

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

    @property
    def all_lines(self) -> list[SourceLine]:
        """The text on the heading's line, if any, and the lines below."""
        inline = SourceLine(self.line, self.inline, self.inline.strip(), strip_bold(self.inline))
        return [inline, *self.lines] if self.inline else self.lines


@dataclass(frozen=True)
class SectionItem:
    """The content of one line of a section.

    ``label`` is in lower case. ``is_code``: in a code block.
    """

    line: int
    label: str
    text: str
    is_code: bool = False


@dataclass(frozen=True)
class SectionedText:
    """Sections in order, notes, title, and faults of the form."""

    sections: tuple[Section, ...]
    notes: tuple[SourceLine, ...]
    title: str
    faults: tuple[BlueprintFault, ...]


def split_sections(text: str) -> SectionedText:
    """Split the text of a blueprint into its sections."""
    texts, size_faults = _split_lines(text)
    lines, fence_faults = _read_blueprint_lines(texts)
    headings = {line.number: heading for line in lines if line.fence is None and (heading := find_heading(line))}
    _drop_weaker_headings(headings, lines)
    sections: list[Section] = []
    notes: list[SourceLine] = []
    current: Section | None = None
    title = ""
    for line in lines:
        heading = headings.get(line.number)
        if heading is not None:
            section = Section(heading.section, line.number, heading.text, heading.inline, heading.level)
            if heading.section == NOTES:
                notes.append(replace(line, text=heading.inline))
                current = None
                continue
            sections.append(section)
            current = None if heading.is_row else section
            continue
        if line.level and not title:
            title = line.content.strip("*_` #")
        if current is not None and line.level and line.level <= current.level and not _is_shell_comment(current, line):
            current = None
        (notes if current is None else current.lines).append(line)
    return SectionedText(tuple(sections), tuple(notes), title, (*size_faults, *fence_faults, *_find_misspelt(lines)))


def read_items(section: Section) -> Iterator[SectionItem]:
    """Yield the items of a section by line.

    A label without a value applies to the line below.
    """
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
        below = pending if indent > depth or not has_bullet else ""
        yield SectionItem(line.number, label or below, value if label else text)
        if indent <= depth:
            pending = ""


def _split_lines(text: str) -> tuple[list[str], list[BlueprintFault]]:
    """Return the lines of a text, cut to the size of a blueprint, and faults for the cuts."""
    texts = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").split("\n")
    faults = [
        BlueprintFault(number, f"longer than {MAX_LINE_CHARS:,} characters.")
        for number, line in enumerate(texts, 1)
        if len(line) > MAX_LINE_CHARS
    ][:1]
    if len(texts) > _MAX_LINES:
        faults.append(BlueprintFault(_MAX_LINES, f"more than {_MAX_LINES:,} lines: this is not a blueprint."))
    return [line[:MAX_LINE_CHARS] for line in texts[:_MAX_LINES]], faults


def _read_blueprint_lines(texts: list[str]) -> tuple[list[SourceLine], list[BlueprintFault]]:
    """Return the lines of a blueprint.

    A code block that is never closed ends before the next section.
    """
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


def _drop_weaker_headings(headings: dict[int, Heading], lines: Sequence[SourceLine]) -> None:
    """Keep the strongest spelling of each section, and no plain labels if any section has its own name."""
    front_matter_end = 0
    if lines and lines[0].text.strip() == "---":
        front_matter_end = next((line.number for line in lines[1:] if line.text.strip() in {"---", "..."}), 0)
    strongest: dict[str, int] = {}
    for heading in headings.values():
        strongest[heading.section] = max(heading.strength, strongest.get(heading.section, 0))
    has_own_names = any(strength >= OWN_NAME for name, strength in strongest.items() if name != NOTES)
    for number, heading in list(headings.items()):
        if heading.section == NOTES:
            continue
        is_weak_label = heading.strength == ALIAS_LABEL and (has_own_names or number <= front_matter_end)
        if is_weak_label or heading.strength < strongest[heading.section]:
            del headings[number]


def _is_shell_comment(section: Section, line: SourceLine) -> bool:
    """Return whether a # line is a comment of the command: above the section's level, or before any command."""
    is_empty = not any(other.text.strip() for other in section.lines)
    return section.name == "launch_command" and line.level == 1 and (section.level > 1 or is_empty)


def _find_misspelt(lines: Sequence[SourceLine]) -> Iterator[BlueprintFault]:
    """Yield misspelt section names: a default would silently replace the section."""
    own_names = [f"exp_{section}" for section in SECTIONS]
    for line in lines:
        text = re.sub(r"^[#>*_`\s]+", "", LOOSE_MARK.sub("", line.content[:200], count=1))
        name = _LIKE_OWN_NAME.match(text)
        if line.fence is None and name and find_section(name[1]) is None:
            near = difflib.get_close_matches(re.sub(r"[\s-]+", "_", name[1].lower()), own_names, 1, 0.75)
            if near:
                yield BlueprintFault(line.number, f"[{name[1]}] is not a section: did you mean [{near[0]}]?")
