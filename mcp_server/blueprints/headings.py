"""Which line of a document begins a section of a blueprint, in the many spellings that people use. Pure."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.blueprints.markdown import LINE_BREAK, SourceLine, strip_bold
from mcp_server.text.durations import find_durations, normalize
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("blueprints/patterns", "headings")

NOTES = "notes"
# By their names, which people spell so.
NAMES = {
    block[0][1]: "|".join(value for key, value in block if key == "words") for block in read_blocks("blueprints/names")
}
OPTIONS = ("recovery", "params", "param_style", "resume_args", "tensorboard", "seeds")
SECTIONS = tuple(name for name in NAMES if name not in (NOTES, *OPTIONS))
_SECTION_BY_ALIAS = {alias: name for name, aliases in NAMES.items() for alias in aliases.partition("/")[0].split("|")}
_SECTION_BY_PLACE = {
    alias: name
    for name, aliases in NAMES.items()
    for alias in re.split(r"[|/]", aliases)
    if name.endswith(("_dir", "_exe", "_path"))
}
NO_HASHES = 7  # the level of a heading without #: every other heading ends its section
_MAX_LABEL_WORDS = 8  # a longer label is a sentence
MAX_HEADING_CHARS = 8_000  # no heading is longer, nor a line with a label

LOOSE_MARK = _RX.loose_mark
LOOSE_HASHES = _RX.loose_hashes
_MAX_TWO_NAMES = 80
_FEWEST_COLUMNS = 3  # of a table in plain words that has no column for the command

_WORDS_ALONE = re.compile(r"[^\W\d_][^:：=`|<>\[\]{}\"/\\$;,.!?。，；]{1,60}?\s*[:：]?")
_FEWEST_BARE = 3  # words alone on their lines that begin sections, in a document without any other heading
# Sections of one value: behind it, words alone on a line begin something else.
SINGLE = frozenset({"codebase_dir", "venv_exe", "yaml_path", "result_dir", "max_time"})


# Their own names need no colon before a value: `exp_result_dir /x/out`.
_VALUED = SINGLE | {"tensorboard"}

# Strengths. Names that are not the section's own count only where its own name is absent.
HASHED, BRACKETED, OWN_NAME, _ALIAS_HASHED, _ALIAS_BOLD, ALIAS_LABEL, BARE = 5, 4, 3, 2, 1, 0, -1


@dataclass(frozen=True)
class Heading:
    """A line that may begin a section. ``strength``: of several spellings of a section the strongest counts.

    ``inline`` is the text behind the section's name. ``is_row``: a table row, which ends on its line.
    """

    section: str
    strength: int
    level: int
    text: str
    inline: str
    is_row: bool = False


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
        parts = LINE_BREAK.split(self.inline)
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


def find_section(name: str) -> str | None:
    """Return the section that ``name`` means, as in ``[Exp Launch-Command]`` or ``启动命令``, or None."""
    plain = re.sub(r"[\s_-]+", " ", name.strip().strip("*_`[]【】").lower()).strip()
    plain = _RX.two_scripts.sub("", _RX.of_the_run.sub("", plain))
    section = _SECTION_BY_ALIAS.get(plain.removeprefix("exp ")) or _SECTION_BY_ALIAS.get(plain)
    section = section or ("max_time" if _RX.time_name.fullmatch(plain) else None)
    section = section or _SECTION_BY_PLACE.get(
        core if (core := _RX.place.sub("", plain.removeprefix("exp "))) != plain else ""
    )
    if section is None and (timed := _RX.with_unit.fullmatch(plain)):
        section = find_section(timed[1])
        return section if section == "max_time" else None
    return section


def find_heading(line: SourceLine) -> Heading | None:
    """Return the section that a line begins, or None."""
    level, text = line.level, line.content
    if text.startswith("|"):
        return _read_row(text)
    if len(text) > MAX_HEADING_CHARS:
        return None
    if not level and (hashes := LOOSE_HASHES.match(text)):
        level, text = len(hashes[1]), text[hashes.end() :]
    if level:
        text = text.strip().rstrip("#").strip()
    elif wiki := _RX.wiki_heading.fullmatch(text):
        level, text = len(wiki[1]), wiki[2]
    unmarked = LOOSE_MARK.sub("", text, count=1).strip()
    is_listed = not level and (bool(line.list_mark) or unmarked != text)
    is_bold = unmarked.startswith(("**", "__"))
    clean = _RX.marks_and_pictures.sub("", unmarked)
    if level or is_bold:
        clean = _RX.heading_number.sub("", clean, count=1).lstrip("*_`")
    find = (_find_own_name, _find_alias)
    headings = (each(clean, level or NO_HASHES, is_bold=is_bold, is_listed=is_listed) for each in find)
    return next(filter(None, headings), None)


def _find_own_name(clean: str, level: int, *, is_bold: bool, is_listed: bool) -> Heading | None:
    """Return the section of a heading with its own name, ``exp_purpose``, or a name in brackets."""
    has_hashes = level < NO_HASHES
    if has_hashes and (behind := _RX.brackets_behind.search(clean)) and (name := find_section(behind[1])) is not None:
        return Heading(name, HASHED, level, clean, clean[behind.end() :].strip(" *:：`"))
    bracketed = _RX.bracketed.match(clean)
    own = None if bracketed else _RX.own_name.match(clean)
    ends = [bracketed.end()] if bracketed else []
    ends += reversed([word.end() for word in re.finditer(r"[A-Za-z]+", own[0])] if own else [])
    for end in ends:
        name, rest = find_section(bracketed[1] if bracketed else clean[:end]), clean[end:].lstrip("*_`")
        separator = _RX.separator.match(rest)
        is_sure = is_bold or bool(separator) or (not is_listed if bracketed else has_hashes)
        is_sure = is_sure or ("_" in clean[:end] and name in _VALUED and is_value_of(name, rest.strip()))
        # `exp_launch_comand` goes on in the middle of a word; `[exp_purpose][1]` is a link.
        if name is None or (rest.startswith("[") if bracketed else not is_sure or re.match(r"[\w-]", rest)):
            continue
        inline = rest[separator.end() :] if separator else rest
        inline = "" if bracketed and find_section(inline) == name else inline  # its name in another language
        # The marks of bold began in front of the name; a glob keeps its star.
        inline = re.sub(r"^[*_]{2,}|(?<!/)\*{2,}$", "", inline.strip()).strip()
        strength = HASHED if has_hashes else BRACKETED if is_bold or (bracketed and is_sure) else OWN_NAME
        return Heading(name, strength, level, clean, inline)
    return None


def _find_alias(clean: str, level: int, *, is_bold: bool, is_listed: bool) -> Heading | None:
    """Return the section of a heading in ordinary words: ``Launch command``, ``实验目的：…``."""
    is_marked = level < NO_HASHES or is_bold
    if not is_marked and not _RX.label_sign.search(clean):
        return None
    words = clean.replace("**", "").replace("__", "").replace("`", "")
    label, value = split_label(words)
    name = find_in_words(label or words)
    if name is None and is_marked and (parts := _RX.dashed.match(words)):
        label, value, name = parts[1], parts[2], find_in_words(parts[1])
    if name is None or name in OPTIONS or not (label or (is_marked and not (is_listed and name == NOTES))):
        return None
    strength = _ALIAS_HASHED if level < NO_HASHES else _ALIAS_BOLD if is_bold else ALIAS_LABEL
    return Heading(name, strength, level, clean, value if label else "")


def find_in_words(words: str) -> str | None:
    """Return the section that the words of a heading mean, also in two languages: ``启动命令 / Launch command``."""
    plain = re.sub(r"[(（].*", "", words)
    if (name := find_section(plain)) is not None or len(plain) > _MAX_TWO_NAMES:
        return name
    parts = [part for part in re.split(r"\s*[/|｜·&]\s*", plain) if part]
    if len(parts) == 1:
        parts = _RX.two_scripts.split(plain)
    names = {find_section(part) if len(parts) == 1 or part == plain else find_in_words(part) for part in parts}
    return names.pop() if len(names) == 1 else None


def is_value_of(name: str, value: str) -> bool:
    """Return whether a text is a path, or for the time limit a duration, and nothing else."""
    if name != "max_time":
        return _RX.plain_path.fullmatch(value) is not None
    durations = find_durations(value)
    return len(durations) == 1 and (durations[0].start, durations[0].end) == (0, len(normalize(value)))


def _read_row(text: str) -> Heading | None:
    """Return the section of a table row: ``| [exp_purpose] | why |``, also behind a column of numbers."""
    cells = [cell.strip().replace("\\|", "|") for cell in split_row(text)]
    if re.fullmatch(r"\W*\d*\W*", next(iter(cells), "")):
        cells = cells[1:]
    if len(cells) < 2:  # noqa: PLR2004 - name and value
        return None
    name, is_own = find_in_words(cells[0]), "exp" in cells[0].lower()
    is_plain_option = name in OPTIONS and not is_own and "[" not in cells[0]
    if name is None or is_plain_option or find_in_words(cells[1]) not in (None, name):
        return None
    return Heading(name, BRACKETED if is_own else ALIAS_LABEL, NO_HASHES, cells[0], cells[1], is_row=True)


def unfold_wide_tables(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return numbered lines with a row for each section instead of a table whose columns are the sections.

    Such a table has one row of values: of several it is not known which is meant, and they stay.
    """
    unfolded: list[tuple[int, str]] = []
    at = 0
    while at < len(lines):
        rows = [text.strip() for _, text in lines[at : at + 4]]
        if rows[0].startswith("|") and (pairs := _read_wide_table(rows)):
            unfolded += [(lines[at][0], ""), (lines[at + 1][0], "")]
            unfolded += [(lines[at + 2][0], f"| {name} | {value} |") for name, value in pairs]
            at += 3
            continue
        unfolded.append(lines[at])
        at += 1
    return unfolded


def _read_wide_table(rows: Sequence[str]) -> list[tuple[str, str]]:
    """Return names and values of a table of one row, or nothing where its columns are not sections."""
    has_one_row = len(rows) > 2 and rows[2].startswith("|") and not (len(rows) > 3 and rows[3].startswith("|"))  # noqa: PLR2004 - names, line, values
    if not has_one_row or not _RX.table_line.fullmatch(rows[1]):
        return []
    names, values = ([cell.strip() for cell in split_row(row)] for row in (rows[0], rows[2]))
    sections = [find_in_words(_RX.marks_and_pictures.sub("", name).strip("*`")) for name in names]
    is_wide = None not in sections and len(set(sections)) == len(sections) > 1
    is_named = "launch_command" in sections or all("exp" in name.lower() for name in names)
    is_wide = is_wide and (is_named or len(sections) >= _FEWEST_COLUMNS)
    return list(zip(names, values, strict=True)) if is_wide and len(names) == len(values) else []


def split_row(text: str) -> list[str]:
    """Return the cells of a table row. A bar in inline code, or behind a backslash, is text."""
    text = text.strip().strip("|")
    return re.findall(r"(?:`[^`]*`|\\\||[^|])+", text) if text.count("`") % 2 == 0 else re.split(r"(?<!\\)\|", text)


def split_label(text: str) -> tuple[str, str]:
    """Split ``path (absolute): /x`` into label and value. The label is empty if there is none."""
    match = _RX.label.match(text[:MAX_HEADING_CHARS]) and _RX.label.match(text)
    if (
        match is None
        or " -" in match["label"]
        or len(match["label"].split()) > _MAX_LABEL_WORDS
        or not re.search(r"[^\W\d_]", match["label"])
    ):
        return "", text
    at = match.start("value")
    is_clock = text[at - 1] == ":" and match["label"][-1:].isdigit() and match["value"][:1].isdigit()
    if is_clock or "@" in match["label"] or _RX.drive.match(text):  # 12:00:00, root@host:/data, C:/data
        return "", text
    label = match["label"].strip(" *_[]【】").lower()
    if _RX.remote.match(text) and find_section(label) is None and not _RX.path_label.match(label):
        return "", text  # host2:/data
    return label, match["value"].strip().removeprefix("**").strip()


def plain_text(line: SourceLine) -> str:
    """Return a line without marks of quotes, lists and bold, and without table bars."""
    text = LOOSE_MARK.sub("", line.plain, count=1).strip()
    return text.strip("| ").replace("\\|", "|") if text.startswith("|") else text


def find_underlined(lines: Sequence[SourceLine], headings: Mapping[int, Heading]) -> dict[int, Heading]:
    """Return the headings that are underlined by ``===`` or ``---``; elsewhere these are rules."""
    underlined: dict[int, Heading] = {}
    for line, below in itertools.pairwise(lines):
        mark = _RX.underline.fullmatch(below.text) if below.text[:4].strip()[:1] in ("=", "-") else None
        if mark is None or line.fence is not None or line.level or not line.content or below.number != line.number + 1:
            continue
        heading = find_heading(replace(line, level=1 if mark[1][0] == "=" else 2, list_mark=""))
        is_weaker = line.number not in headings or headings[line.number].level == NO_HASHES
        if heading is not None and not heading.is_row and is_weaker:
            underlined[line.number] = heading
    return underlined


def find_bare(lines: Sequence[SourceLine], headings: Mapping[int, Heading]) -> dict[int, Heading]:
    """Return the headings that are words alone on a line, with text below.

    Sections begin so only in a document that has no other headings, notes in every document.
    """
    bare: dict[int, Heading] = {}
    single, has_value, is_after_blank = "", False, True
    for line, below in itertools.pairwise([*lines, SourceLine(0, "", "", "")]):
        text = line.content.strip()
        if (heading := headings.get(line.number)) is not None:
            single, has_value = heading.section if heading.section in SINGLE else "", bool(heading.inline)
        elif line.level:
            single = ""
        elif line.fence is None and is_after_blank and not line.list_mark and _WORDS_ALONE.fullmatch(text):
            name = find_in_words(text.rstrip(" :："))
            if name == NOTES or (name is None and single and has_value and _RX.title.fullmatch(text) and below.content):
                bare[line.number] = Heading(NOTES, BARE, NO_HASHES, text, "" if name else text)
                single = ""
            elif name is not None and name not in OPTIONS and below.content:
                bare[line.number] = Heading(name, BARE, NO_HASHES, text, "")
        has_value = has_value or bool(single and text and headings.get(line.number) is None)
        is_after_blank = not text
    sections = [heading.section for heading in bare.values() if heading.section != NOTES]
    is_bare = len(sections) >= _FEWEST_BARE and "launch_command" in sections
    if is_bare and not any(heading.section != NOTES for heading in headings.values()):
        return bare
    return {number: heading for number, heading in bare.items() if heading.section == NOTES}
