"""A blueprint's text cut into its sections, and a section into its items; every part knows its line. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, and it is looked for here

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mcp_server.blueprints.headings import (
    ALIAS_LABEL,
    BRACKETS,
    BY_ITSELF,
    HASHES,
    LONGEST_LINE,
    MARKER,
    NOTES,
    OWN_NAME,
    SECTIONS,
    Head,
    head_of,
    labelled,
    plain,
    section_of,
)

_MOST_LINES = 10_000
_OWN_LIKE = re.compile(
    r"[\[【［]?\s*(exp[_ -][a-z]{2,20}(?:[_ -][a-z]{2,20}){0,2})\s*(?:[\]】］:：=]|-\s|$)", re.IGNORECASE
)
_FENCE = re.compile(r"^(?P<indent>[ \t>]*(?:[-*+]\s+|\d{1,3}[.)]\s+)?)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True)
class Problem:
    """What is wrong on a line; ``fatal``: the document cannot be run as written; ``section``: for want of it alone."""

    line: int
    text: str
    fatal: bool = True
    section: str = ""


@dataclass(frozen=True)
class Line:
    """One line of the document; ``fence`` is the language of the code block that it is in, None outside of one."""

    number: int
    text: str
    fence: str | None = None
    block: int = 0


@dataclass
class Section:
    """One section: where it begins, what stands on that line, and the lines below."""

    name: str
    line: int
    heading: str = ""
    inline: str = ""
    level: int = BY_ITSELF
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """What one line of a section says; ``label`` is in lower case; ``code``: of a code block."""

    line: int
    label: str
    text: str
    code: bool = False


@dataclass(frozen=True)
class Document:
    """The sections in order, the notes, the title, and what is wrong with the form."""

    sections: tuple[Section, ...]
    notes: tuple[Line, ...]
    title: str
    wrong: tuple[Problem, ...]


def document(text: str) -> Document:
    """Cut ``text`` into its sections."""
    whole, long = _lines(text)
    lines, wrong = _fenced(_uncommented(_unwrapped(whole)))
    heads = {line.number: head for line in lines if line.fence is None and (head := head_of(line.text)) is not None}
    _drop_weaker(heads, lines)
    sections: list[Section] = []
    notes: list[Line] = []
    current: Section | None = None
    title = ""
    for line in lines:
        head = heads.get(line.number)
        if head is not None:
            section = Section(head.name, line.number, head.heading, head.inline, head.level)
            if head.name == NOTES:
                notes.append(Line(line.number, head.inline))
                current = None
                continue
            sections.append(section)
            current = None if head.closed else section
            continue
        level = _level(line)
        if level and not title:
            title = _bare(line.text)
        if current is not None and level and level <= current.level and not _comment(current, level):
            current = None
        (notes if current is None else current.lines).append(line)
    return Document(tuple(sections), tuple(notes), title, (*long, *wrong, *_misspelt(lines)))


def items(section: Section) -> Iterator[Item]:
    """Yield what a section says line by line; a label without a value takes the line below."""
    pending, depth = "", 0
    lines = [Line(section.line, section.inline)] if section.inline else []
    for line in [*lines, *section.lines]:
        if not line.text.strip():
            continue
        indent = len(line.text) - len(line.text.lstrip())
        if line.fence is not None:
            yield Item(line.number, pending, line.text, code=True)
            continue
        text = plain(line.text)
        if _level(line) or not text or re.fullmatch(r"[-=_*|: ]{3,}", text):
            continue
        label, value = labelled(text)
        if label and not value:
            pending, depth = label, indent
            continue
        below = pending if indent > depth or not _same_list(line.text) else ""
        yield Item(line.number, label or below, value if label else text)
        if indent <= depth:
            pending = ""


def _same_list(text: str) -> bool:
    return bool(re.match(r"^\s*[-*+•]\s", text))


def _lines(text: str) -> tuple[list[Line], list[Problem]]:
    """Return the lines of a text; what is too long for a blueprint is cut off, and told."""
    texts = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").split("\n")
    wrong = [
        Problem(number, f"longer than {LONGEST_LINE:,} characters.")
        for number, line in enumerate(texts, 1)
        if len(line) > LONGEST_LINE
    ][:1]
    if len(texts) > _MOST_LINES:
        wrong.append(Problem(_MOST_LINES, f"more than {_MOST_LINES:,} lines: this is no blueprint."))
    return [Line(number, line[:LONGEST_LINE]) for number, line in enumerate(texts[:_MOST_LINES], 1)], wrong


def _unwrapped(lines: list[Line]) -> list[Line]:
    """Take away a fence around the whole document: ```markdown … ```."""
    for index, line in enumerate(lines):
        fence = _FENCE.match(line.text)
        if fence is not None and fence["info"].strip().lower() in {"markdown", "md"}:
            last = max(i for i, other in enumerate(lines) if _FENCE.match(other.text))
            gone = {index, last}
            return [Line(other.number, "") if i in gone else other for i, other in enumerate(lines)]
        if fence is not None or head_of(line.text) is not None:
            break
    return lines


def _uncommented(lines: list[Line]) -> list[Line]:
    """Blank HTML comments; a code block keeps what looks like one."""
    told, inside, fence = [], False, ""
    for line in lines:
        text, kept = line.text, ""
        mark = _FENCE.match(text)
        if not inside and mark is not None:
            fence = "" if fence and mark["mark"].startswith(fence) else fence or mark["mark"]
        if fence and not inside:
            told.append(line)
            continue
        while text:
            before, found, text = text.partition("-->" if inside else "<!--")
            kept += "" if inside else before
            inside = inside != bool(found)
        told.append(Line(line.number, kept))
    return told


def _fenced(lines: list[Line]) -> tuple[list[Line], list[Problem]]:
    """Mark what stands in code blocks; one that is never closed ends before the next section."""
    found: list[Line] = []
    mark, depth, info, opened, block = "", 0, "", 0, 0
    for line in lines:
        fence = _FENCE.match(line.text)
        if mark and fence and not fence["info"].strip() and fence["mark"].startswith(mark):
            if len(fence["indent"]) < depth + 4:
                mark = ""
                continue
        elif not mark and fence:
            mark, depth, opened = fence["mark"], len(fence["indent"]), line.number
            info, block = fence["info"].strip().lower(), block + 1
            continue
        found.append(Line(line.number, line.text, info, block) if mark else line)
    if not mark:
        return found, []
    swallowed = [ln.number for ln in found if ln.number > opened and (h := head_of(ln.text)) and h.strength >= BRACKETS]
    if not swallowed:
        return found, []
    text = f"this code block is never closed, and sections follow: close it before line {swallowed[0]}."
    return [Line(ln.number, ln.text) if ln.number >= swallowed[0] else ln for ln in found], [Problem(opened, text)]


def _drop_weaker(heads: dict[int, Head], lines: Sequence[Line]) -> None:
    """Keep of every section its strongest spelling; a plain label is none where any section has its own name."""
    matter = 0  # the last line of front matter
    if lines and lines[0].text.strip() == "---":
        matter = next((line.number for line in lines[1:] if line.text.strip() in {"---", "..."}), 0)
    strongest: dict[str, int] = {}
    for head in heads.values():
        strongest[head.name] = max(head.strength, strongest.get(head.name, 0))
    own_names = any(strength >= OWN_NAME for name, strength in strongest.items() if name != NOTES)
    for number, head in list(heads.items()):
        weak = head.strength == ALIAS_LABEL and (own_names or number <= matter)
        if head.name == NOTES:
            weak = False
        if weak or (head.name != NOTES and head.strength < strongest[head.name]):
            del heads[number]


def _level(line: Line) -> int:
    """Return the level of a heading with #, 0 for any other line."""
    hashes = HASHES.match(line.text) if line.fence is None else None
    return len(hashes[1]) if hashes and re.match(r"\s|$", line.text[hashes.end(1) :]) else 0


def _comment(section: Section, level: int) -> bool:
    """Whether a # line is rather a comment of the shell: above the section's own level, or before any command."""
    begun = any(line.text.strip() for line in section.lines)
    return section.name == "launch_command" and level == 1 and (section.level > 1 or not begun)


def _bare(text: str) -> str:
    return HASHES.sub("", text).strip().strip("*_` #")


def _misspelt(lines: Sequence[Line]) -> Iterator[Problem]:
    """Tell of section names that are none, but near one: a default would silently take its place."""
    for line in lines:
        text = re.sub(r"^[#>*_`\s]+", "", MARKER.sub("", line.text[:200], count=1))
        name = _OWN_LIKE.match(text)
        if line.fence is None and name and section_of(name[1]) is None:
            plain_name = re.sub(r"[\s-]+", "_", name[1].lower())
            near = difflib.get_close_matches(plain_name, [f"exp_{section}" for section in SECTIONS], 1, 0.75)
            if near:
                yield Problem(line.number, f"[{name[1]}] is no section: did you mean [{near[0]}]?")
