"""A blueprint's text in sections, and a section in items.

Every part has its line number. Pure.
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    BlueprintFault,
    Heading,
    Section,
    SectionItem,
    find_bare,
    find_heading,
    find_section,
    find_underlined,
    is_value_of,
    plain_text,
    split_label,
    split_row,
    unfold_wide_tables,
)
from mcp_server.blueprints.markdown import LINE_BREAK, SourceLine, read_lines, rewrite_html
from mcp_server.text.durations import find_durations
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "sections")

_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")  # as copied from a web page
# What a label under another heading may be, and its value.
_STRAYS = ("venv_exe", "codebase_dir", "yaml_path", "result_dir", "max_time")
_MAX_STRAY_CHARS = 500
_FEWEST_HEADINGS = 3  # sections with headings, from which on labels are text
_MAX_MISSPELT = 200  # candidates: each is compared with every name
_BULLETS = ("-", "*", "+")


@dataclass(frozen=True)
class SectionedText:
    """Sections in order, notes, title, and faults of the form."""

    sections: tuple[Section, ...]
    notes: tuple[SourceLine, ...]
    title: str
    faults: tuple[BlueprintFault, ...]


def is_explanation(label: str) -> bool:
    """Return whether the label of an item says that the item only explains its section."""
    return _RX.explanation_label.fullmatch(label) is not None


def split_sections(text: str) -> SectionedText:
    """Split the text of a blueprint into its sections."""
    text = _INVISIBLE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    texts = text.replace("\u00a0", " ").split("\n")
    front_matter = read_front_matter(texts)
    behind = [(number, texts[number - 1]) for number in range(front_matter.last_line + 1, len(texts) + 1)]
    body = unfold_wide_tables(rewrite_html(behind))
    lines, faults = _read_blueprint_lines([line for _, line in body])
    headings = {line.number: heading for line in lines if line.fence is None and (heading := find_heading(line))}
    headings |= find_underlined(lines, headings)
    headings |= find_bare(lines, headings)
    own, misspelt = _find_own_sections(lines, headings)
    headings |= own
    _drop_weaker_headings(headings, lines, front_matter)
    sections, notes = list[Section](), list[SourceLine]()
    title = _fill_sections(lines, headings, sections, notes)
    front = {section.name for section in front_matter.sections}
    faults += [*_adopt_strays(lines, headings, sections, front), *misspelt]
    numbers = [number for number, _ in body]
    for section in sections:
        section.line = numbers[section.line - 1]
        section.lines = [replace(line, number=numbers[line.number - 1]) for line in section.lines]
    notes = [replace(note, number=numbers[note.number - 1]) for note in notes]
    faults = [replace(fault, line=numbers[fault.line - 1]) for fault in faults]
    faults += front_matter.faults
    others = [
        SourceLine(number, text := texts[number - 1], text.strip(), text.strip()) for number in front_matter.other
    ]
    return SectionedText((*front_matter.sections, *sections), (*others, *notes), title, tuple(faults))


def _fill_sections(
    lines: Sequence[SourceLine], headings: dict[int, Heading], sections: list[Section], notes: list[SourceLine]
) -> str:
    """Append every line to its section, or to the notes; return the title."""
    current: Section | None = None
    title = ""
    for line in lines:
        if (heading := headings.get(line.number)) is not None:
            current = None
            if heading.section == NOTES:
                notes.append(replace(line, text=heading.inline))
                continue
            section = Section(heading.section, line.number, heading.text, heading.inline, heading.level)
            section.strength, section.is_item = heading.strength, bool(line.list_mark)
            sections.append(section)
            current = None if heading.is_row else section
            continue
        if line.level == 1 and not title:
            title = line.content.strip("*_` #")
        if current and _ends(current, line):
            current = None
        (notes if current is None else current.lines).extend(_split_breaks(line) if current is not None else [line])
    return title


def _ends(section: Section, line: SourceLine) -> bool:
    """Return whether a line without a section's name ends a section."""
    above = section.all_lines
    has_value = any(each.text.strip() for each in above)
    if line.level and line.level <= section.level:  # unless it is a comment of the command
        is_comment = section.name == "launch_command" and line.level == 1
        return not (is_comment and (section.level > 1 or not any(each.text.strip() for each in section.lines)))
    if line.fence is not None:
        return False
    if not line.content:  # behind a rule is what the writer says beside the document
        return section.name in SINGLE and has_value and _RX.rule.fullmatch(line.text.strip()) is not None
    if line.content.startswith("[^"):
        return True
    is_item = bool(section.is_item and line.list_mark and line.text.strip() == line.text)
    is_label = section.strength == ALIAS_LABEL and line.plain[:1].isupper()
    if section.inline and (is_item or is_label) and (label := split_label(line.plain)[0]) and not is_explanation(label):
        return True  # a label of the writer's own, between sections that are labels or items of a list
    if not above or above[-1].text.strip():
        return False
    is_address = (
        section.name in ("purpose", "launch_command") and section.inline and ADDRESS.match(line.content.lower())
    )
    return bool(is_address or (section.is_item and not line.list_mark and line.text[0] not in " \t" and has_value))


def _adopt_strays(
    lines: Sequence[SourceLine], headings: Mapping[int, Heading], sections: list[Section], front: set[str]
) -> Iterator[BlueprintFault]:
    """Append sections that are only labels under other headings: ``- Python: /venv/bin/python`` of an environment.

    In the notes such a line may mean anything, so that it is a fault there: a default would silently replace it.
    """
    present = front | {section.name for section in sections}
    if "launch_command" not in present:
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
        is_bare_time = not label and below and not _RX.first_step.search(below) and is_value_of("max_time", value)
        if is_bare_time and not in_notes and "max_time" not in present:
            text = f"{value[:40]!r} is below {below[:40]!r}, and [exp_max_time] is missing: write it below that name."
            yield BlueprintFault(line.number, text, section="max_time")
        if name not in _STRAYS or name in present or not is_value_of(name, value):
            continue
        if not in_notes and not in_section:
            sections.append(Section(name, line.number, label, value))
        elif in_section or name in ("venv_exe", "max_time") or _RX.path_word.search(label):
            where = "another section" if in_section else "the notes"
            text = f"{plain_text(line)[:60]!r} is in {where}, and [exp_{name}] is missing: write it below that name."
            yield BlueprintFault(line.number, text, section=name)


def _read_label(line: SourceLine, below: str) -> tuple[str, str, str | None]:
    """Return label, value and section of ``- Python: /venv/bin/python``. ``below``: the heading above the line."""
    text = plain_text(line)
    label, value = split_label(text)
    if not label and _RX.environment.search(below) and _RX.python_path.fullmatch(text.strip("`")):
        return "", text, "venv_exe"
    return label, value, find_section(label) if label else None


def _split_breaks(line: SourceLine) -> list[SourceLine]:
    if line.fence is not None or "<" not in line.text or not LINE_BREAK.search(line.text):
        return [line]
    parts = zip(*(LINE_BREAK.split(text) for text in (line.text, line.content, line.plain)), strict=False)
    lines = [replace(line, text=text, content=content.strip(), plain=plain.strip()) for text, content, plain in parts]
    return [lines[0], *(replace(other, list_mark="") for other in lines[1:])]


def _split_row_label(content: str) -> tuple[str, str] | None:
    """Return label and value of a table row of two cells, ``| limit | 10 h |``, or None where it is none."""
    cells = [cell.strip() for cell in split_row(content)] if content.startswith("|") else []
    label, value = cells if len(cells) == 2 else ("", "")  # noqa: PLR2004 - label and value
    is_label = value and _RX.row_label.fullmatch(f"{label}|") and not find_durations(label)
    return (label.strip("*_` ").lower(), value) if is_label else None


def read_items(section: Section) -> Iterator[SectionItem]:
    """Yield the items of a section by line. A label without a value applies to the line below."""
    pending, depth = "", 0
    lines = list(section.all_lines)
    for line, below_it in itertools.zip_longest(lines, lines[1:]):
        if not line.text.strip():
            continue
        indent = len(line.text) - len(line.text.lstrip())
        if line.fence is not None:
            yield SectionItem(line.number, pending, line.text, is_code=True)
            continue
        text = plain_text(line)
        if line.level or not text or _RX.rule.fullmatch(text):
            continue
        is_head = below_it is not None and set("-") < set(below_it.content) <= set("|:- ")
        label, value = (None if is_head else _split_row_label(line.content)) or split_label(text)
        if label and not value:
            pending, depth = label, indent
            continue
        has_bullet = line.list_mark in _BULLETS or line.content.startswith("• ")
        applies = indent > depth or not (has_bullet or is_explanation(pending))
        below = pending if applies else ""
        yield SectionItem(line.number, label or below, value if label else text, whole=text)
        if indent <= depth:
            pending = ""


def _read_blueprint_lines(texts: list[str]) -> tuple[list[SourceLine], list[BlueprintFault]]:
    """Return the lines of a blueprint. A code block that is never closed ends before the next section."""
    lines, fences = read_lines(texts)
    if fences and fences[0].language in ("markdown", "md"):  # around the whole document, which was pasted
        before = [line for line in lines if line.number < fences[0].first]
        if not any(find_heading(line) for line in before):
            texts = list(texts)
            last = max((at for at, text in enumerate(texts) if _RX.closing_fence.fullmatch(text)), default=0)
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
    strongest = dict.fromkeys((section.name for section in front_matter.sections), OWN_NAME)
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
    named = [number for number, heading in purposes if _RX.purpose.search(heading.text.split(":")[0])]
    if len(named) > 1 and len({heading.text for number, heading in purposes if number in named}) == 1:
        return  # the same name twice
    kept = min(named or [number for number, _ in purposes], default=0)
    for number, heading in purposes:
        if number != kept:
            headings[number] = replace(heading, section=NOTES, inline=heading.text)


def _find_own_sections(
    lines: Sequence[SourceLine], headings: Mapping[int, Heading]
) -> tuple[dict[int, Heading], list[BlueprintFault]]:
    """Return the headings of the writer's own sections, ``[exp_owner]`` or ``[hardware]``, and misspelt names.

    The first are notes; for the others a default would silently replace the section. In a command and in options a
    line without brackets, or without ``exp``, is something else.
    """
    has_brackets = sum(heading.strength >= BRACKETED for heading in headings.values()) > 1
    own: dict[int, Heading] = {}
    misspelt: list[BlueprintFault] = []
    section, is_bold, compared = "", False, 0
    for line in lines:
        if (heading := headings.get(line.number)) is not None:
            section, is_bold = heading.section, _RX.bold.fullmatch(line.content) is not None
            continue
        if line.fence is not None:
            continue
        text = _RX.marks.sub("", LOOSE_MARK.sub("", line.content[:200], count=1))
        is_name = "exp" in text[:80].lower() and (name := _RX.like_own_name.match(text))
        if is_name and name is not None and find_section(name[1]) is None and compared <= _MAX_MISSPELT:
            compared += 1
            # Compared without the prefix, which would make any two names alike.
            plain = re.sub(r"[\s-]+", "_", name[1].lower()).removeprefix("exp_")
            if near := difflib.get_close_matches(plain, (*SECTIONS, *OPTIONS), 1, 0.75):
                cause = f"[{name[1]}] is not a section: did you mean [exp_{near[0]}]?"
                misspelt.append(BlueprintFault(line.number, cause, section=near[0]))
        if is_bold and section in SINGLE and _RX.bold.fullmatch(line.content):
            own[line.number] = Heading(NOTES, OWN_NAME, NO_HASHES, line.plain, line.text)
        elif not line.level:
            text = LOOSE_MARK.sub("", line.plain[:200], count=1).strip("*_ ")
            if section in ("launch_command", *OPTIONS) and not _RX.in_brackets.match(text):
                continue
            name = _RX.like_own_name.match(text) or (_RX.own_brackets.fullmatch(text) if has_brackets else None)
            if name is not None and find_section(name[1]) is None:
                own[line.number] = Heading(NOTES, OWN_NAME, NO_HASHES, text, line.text)
    return own, misspelt


def _drop_headings_of_notes(headings: dict[int, Heading], lines: Sequence[SourceLine]) -> None:
    """Drop headings in ordinary words below a heading of notes: ``### Results`` of the notes is not a directory."""
    notes_level = 0
    for line in lines:
        heading = headings.get(line.number)
        level = heading.level if heading else line.level or NO_HASHES
        if level < NO_HASHES and heading is not None and heading.section == NOTES:
            notes_level = level
        elif notes_level and heading is not None and heading.strength < OWN_NAME and level > notes_level:
            del headings[line.number]
        elif level <= notes_level:
            notes_level = 0
