"""Values of a blueprint's sections: the purpose and the paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape

from mcp_server.blueprints import headings
from mcp_server.blueprints.markdown import LINE_BREAK, SourceLine, code_spans
from mcp_server.blueprints.sections import is_explanation, read_items
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("blueprints/patterns", "fields")

_MAX_PURPOSE_CHARS = 2_000
_MAX_PATH_CHARS = 4_096

ABSENT = _RX.absent
_WORDS = read_words("blueprints/words")
PROSE_WORDS = frozenset(_WORDS["prose"])
_MAX_WORDS_IN_PATH = 8
PLACEHOLDER = _RX.placeholder
NEGATION = _RX.negation
FILL_IN_WORD = _RX.fill_in_word
_USER_VARIABLES = frozenset({"HOME", "USER"})


@dataclass
class BlueprintReader:
    """The sections of a document, the faults, the line of each value, and notes found inside sections."""

    sections: dict[str, headings.Section] = field(default_factory=dict)
    faults: list[headings.BlueprintFault] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, name: str, line: int, cause: str, *, fatal: bool = True) -> None:
        """Note a fault of a section. A fatal one prevents running the document, where nothing replaces the section."""
        is_named = name in headings.NAMES and "[exp_" not in cause
        text = f"[exp_{name}]{'' if cause.startswith(':') else ' '}{cause}" if is_named else cause
        self.faults.append(headings.BlueprintFault(line, text, fatal, name))

    def add_note(self, name: str, text: str) -> None:
        """Keep what a section says beside its value."""
        self.notes.append(f"[exp_{name}] {text.strip()}")

    def has_placeholder(self, name: str, line: int, value: str) -> bool:
        """Return whether ``value`` is still the template's, and note that as a fault."""
        if placeholder := PLACEHOLDER.search(value):
            self.refuse(name, line, f"still holds the template's {placeholder[0]!r}: write the value.")
        return placeholder is not None


def content_items(reader: BlueprintReader, name: str) -> list[headings.SectionItem]:
    """Return the items of a section without explanations, or its description where nothing else is there.

    Empty if the section is absent.
    """
    section = reader.sections.get(name)
    if section is None:
        return []
    if section.exact is not None:
        is_there = section.exact.strip() and section.data is not None
        return [headings.SectionItem(section.line, "", section.exact, is_code=True)] if is_there else []
    items = list(read_items(section))
    content = [item for item in items if not is_explanation(item.label)]
    described = [item for item in items if _RX.description_label.fullmatch(item.label)]
    return content or [item for item in described if headings.find_section(item.text) != name]


def _bare_value(text: str) -> str:
    bare = _RX.pictures.sub("", text.strip()).strip("`").strip()
    if emphasised := _RX.emphasised.fullmatch(bare):
        bare = emphasised["text"]
    bare = bare.strip("`\"' ")
    return bare[1:-1] if re.fullmatch(r"<[~.]{0,2}/[^<>]*>", bare) else bare  # as markdown brackets a link


class _Unclear(ValueError):
    """No path, or more than one: its text is the cause."""


def read_path(reader: BlueprintReader, name: str) -> str | None:
    """Return the path in a section. None if the section is absent or says that there is none."""
    section = reader.sections.get(name)
    is_exact = section is not None and section.exact is not None
    sure: list[tuple[int, str]] = []  # paths that begin an item, with their lines
    unsure: list[tuple[int, str]] = []  # paths in sentences, then single words
    words: list[tuple[int, str]] = []
    items = content_items(reader, name)
    for item in items:
        text = item.text if is_exact else _RX.before_path.sub(r"\1", _follow_links(item.text))
        value = _bare_value(text)
        is_absent = any(ABSENT.fullmatch(each) for each in (value, _bare_value(item.whole)))
        is_default = name == "venv_exe" and value.lower() in ("python", "python3")
        if not sure and (is_default or (is_absent and not (is_exact and "/" in value))):
            return None
        if sure and not _RX.path_start.match(value):  # a remark below the path
            reader.add_note(name, item.words)
            continue
        try:
            _check_parts(text, value)
            path, remark = (value, "") if is_exact else _find_path(name, replace(item, text=text), value)
        except _Unclear as unclear:
            reader.lines[name] = item.line
            reader.refuse(name, item.line, str(unclear))
            return None
        if path:
            (unsure if remark is None else sure).append((item.line, path))
            if remark:
                reader.add_note(name, remark)
        elif name.endswith("_dir") and re.fullmatch(r"\w[\w.-]*", value):
            words.append((item.line, value))
    chosen = sure or unsure or words[-1:]
    if items and not chosen:
        reader.lines[name], value = items[0].line, _bare_value(_follow_links(items[0].text))
        reader.refuse(name, items[0].line, f"names no path: {value[:80]!r}. Write one path, or none.")
    return _choose_path(reader, name, chosen)


def _follow_links(text: str) -> str:
    """Return a text with addresses of files as paths, and links as their targets; one with another path as both."""

    def follow(link: re.Match[str]) -> str:
        target = link["target"].strip()
        words = _bare_value(link["text"])
        is_other = _RX.path_start.match(words) and not target.rstrip("/").endswith(words.lstrip("./~").rstrip("/"))
        return f"{words} {target}" if is_other and " " not in words else f"`{target}`" if " " in target else target

    text = text.replace("file:///", "/")
    return _RX.link.sub(follow, text) if "](" in text else text


def leaves_open(reader: BlueprintReader, name: str) -> bool:
    """Return whether a section is left out, is empty, or asks for the default."""
    return all(_RX.default.match(_bare_value(item.text)) for item in content_items(reader, name))


def _find_path(name: str, item: headings.SectionItem, value: str) -> tuple[str, str | None]:
    """Return the path that an item names, or an empty text, and the remark behind it; None in a sentence.

    All of the item, or the path that begins it with a remark behind, or the only path of a sentence. Another path
    beside it is a choice, unless the words in front of that say how both are related: ``a copy of /data/base``.

    Raises:
        _Unclear: nobody can tell which path is meant.
    """
    text, label = item.text.strip(), item.label
    is_content = not label or item.is_code or headings.find_section(label) == name or _RX.content_label.fullmatch(label)
    spans = _find_spans(text)
    head = spans[0] if spans and is_content and not text[: spans[0].start].strip(" *_`\"'（(") else None
    if is_content and (head is None or not head.is_quoted) and " " in (whole := _match_path_with_spaces(value)):
        end = text.find(whole) + len(whole) if whole in text else len(text)
        head = _Span(0, end, whole, is_quoted=True)
    if head is None:
        return _find_in_sentence(item, value, [span for span in spans if "/" in span.path]), None
    rest = text[head.end :].lstrip("`*_\"'")
    if rest[:1].isspace() and rest.strip() and not _RX.prose.match(rest.strip()) and not head.is_quoted:
        raise _Unclear(
            f": where does the path end in {value[:80]!r}? Write it in backticks, and the rest on another line."
        )
    for other in (span for span in spans if span.start >= head.end and span.path.rstrip("/") != head.path.rstrip("/")):
        between = text[head.end : other.start]
        is_path = _RX.rooted.match(other.path) or (name == "yaml_path" and _RX.configuration.search(other.path))
        is_below = other.path.startswith(f"{head.path.rstrip('/')}/")  # "logs go to /data/x/logs"
        is_related = _RX.relation.search(between) or (is_below and re.search(r"\w{2}", between))
        is_choice = _RX.choice.search(between) or _RX.order.search(between) or not is_related
        if is_path and is_choice and not _is_of_another_run(between, text[other.end :]):
            raise _Unclear(f"names a second path, {other.path[:80]!r}: write one.")
    _check_words(
        value, is_placed=name.endswith("_dir") and _RX.goes_on.search(rest), is_denied=_RX.outdated.search(rest)
    )
    return head.path, rest.strip(" ,;:.，；。、()（）")


def _check_words(value: str, *, is_placed: object, is_denied: object) -> None:
    if is_denied:
        raise _Unclear(f"says more than a path: {value[:80]!r}. Write the path that is meant, alone.")
    if is_placed:
        raise _Unclear(f"names a place by another path: {value[:80]!r}. Write the path out.")


def _is_of_another_run(before: str, after: str) -> bool:
    """Return whether a remark says that the path in it is another run's: ``(b.yaml is the other arm)``."""
    start = re.match(r"[\s`*\"']*[(（;；.,，–—-][\s(（`\"']*(.*)$", before)
    words = re.split(r"[)）;；]|\.(?=\s|$)", f"{start[1]}\x01{after}" if start else "")[0]
    return bool(_RX.of_another_run.fullmatch(re.sub(r"[`*\"'\s]+", " ", words).strip()))


def _find_in_sentence(item: headings.SectionItem, value: str, spans: Sequence[_Span]) -> str:
    """Return the only path of a sentence; quoted paths, else those from the root, count before others."""
    for group in ([s for s in spans if s.is_quoted], [s for s in spans if _RX.rooted.match(s.path)], spans):
        paths = list(dict.fromkeys(span.path for span in group))
        if len(paths) > 1:
            raise _Unclear(f"names a second path, {paths[1][:80]!r}: write one.")
        if paths:
            before = re.split(r"[.!。！；]", item.text[: group[0].start])[-1]
            is_denied = NEGATION.search(f"{item.label} {before}") or _RX.outdated.search(value)
            _check_words(value, is_placed=_RX.other_place.search(value), is_denied=is_denied)
            return paths[0] if "." not in item.label else ""
    return ""


@dataclass(frozen=True)
class _Span:
    """A path in a text, and where it is, with its quotes."""

    start: int
    end: int
    path: str
    is_quoted: bool = False


def _find_spans(text: str) -> list[_Span]:
    """Return the paths in a text, in quotes or without blanks, in order."""
    spans: list[_Span] = []
    rest = text
    for quoted in _RX.quoted.finditer(text):
        inner = next(filter(None, quoted.groups())).strip().strip("\"'")
        has_blanks = " " in inner and "/" in inner and not re.search(r"\s-|[|<>;]", inner)
        if (_RX.path.fullmatch(inner) or has_blanks) and not inner.startswith("$("):
            spans.append(_Span(*quoted.span(), inner, is_quoted=True))
            rest = rest[: quoted.start()] + "\n" * len(quoted[0]) + rest[quoted.end() :]
    for match in _RX.path.finditer(rest):
        before, path = rest[: match.start()], match[0]
        is_dots = path.startswith(".") and "/" not in path  # `.`, `..` and `.venv`, also a sentence's end
        if (is_dots and before.strip(" *_`\"'")) or "://" in rest[max(0, match.start() - 3) : match.end() + 3]:
            continue
        if re.search(r"[\w:@]$", re.sub(r"[\u4e00-\u9fff：]+$|(?<=[\u4e00-\u9fff]):$", "", before)):
            continue  # in the middle of a word
        if "/" in path and re.search(r"[\u4e00-\u9fff：:]\s*$", before):
            path = re.split(r"[\u4e00-\u9fff](?=[^/]*$)", path)[0]
        path = path.rstrip(".,;:)*_") if path.strip("./") else path.rstrip(",;:)")
        if path.strip("/.") or path in (".", "..", "./", "../"):
            spans.append(_Span(match.start(), match.start() + len(path), path))
    return sorted(spans, key=lambda span: span.start)


def _check_parts(text: str, value: str) -> None:
    """Raise _Unclear if nobody fills in a part of a path, or the path is not of this machine."""
    if other := _RX.other_machine.match(value):
        raise _Unclear(f"is not a path of this machine: {value[:80]!r} begins with {other[0].strip()!r}.")
    if placeholder := PLACEHOLDER.search(value):
        raise _Unclear(f"still holds the template's {placeholder[0]!r}: write the value.")
    is_path = "/" in value or re.search(r"\.\w{1,5}$", value)
    spans = code_spans(text) if "`" in text and not re.search(r"`[^`]*\b(?:date|whoami|hostname)\b", text) else []
    part = _RX.open_part.search(spans[0] if spans and "/" in spans[0] else value.replace("**", ""))
    if is_path and part and _find_spans(value[: part.start()] + "x" if part.start() else value):
        raise _Unclear(f"holds {part[0][:60]!r}, which nothing fills in: write the path out.")


def _choose_path(reader: BlueprintReader, name: str, paths: Sequence[tuple[int, str]]) -> str | None:
    if not paths:
        return None
    line, first = paths[0]
    reader.lines[name] = line
    if other := next((each for each in paths if each[1].rstrip("/") != first.rstrip("/")), None):
        reader.refuse(name, other[0], f"names a second path, {other[1][:80]!r}: write one.")
    if len(first) > _MAX_PATH_CHARS:
        reader.refuse(name, line, f"is longer than a path may be: {len(first):,} characters.")
        return None
    own = ("codebase_dir", "result_dir") if name == "tensorboard" else ("codebase_dir",)
    for variable in map("".join, _RX.variable.findall(first)):
        if variable not in _USER_VARIABLES and headings.find_section(variable) not in own:
            reader.refuse(name, line, f": {variable} has no value in {first[:80]!r}: write the path out.")
    return first


def _match_path_with_spaces(value: str) -> str:
    """Return ``value`` if all of it is one path with spaces: no prose, no further path, no option."""
    bare = re.sub(r"\\ ", " ", _without_comment(value))
    words = bare.split(" ")
    is_path = _RX.path_with_blanks.fullmatch(bare) and "" not in words and len(words) <= _MAX_WORDS_IN_PATH
    is_prose = any(word.startswith(("/", "-", "~", "$")) or word.lower() in PROSE_WORDS for word in words[1:])
    return bare if is_path and not is_prose else ""


def _without_comment(value: str) -> str:
    """Return ``value`` without the comment behind it: in brackets, or after a dash or #."""
    bare = re.sub(r"\s+(?:[(#@].*|[-–—]+\s.*|(?:->|→|<-+|←)\s[^/]*)$|\s*（.*$", "", value).rstrip("，,;；。")
    return re.sub(r"(?<=[^./])\.$", "", bare)  # the end of a sentence


def keep_hints(reader: BlueprintReader) -> None:
    """Keep hints, notes and warnings of the sections as notes: who runs the document reads them there."""
    for name, section in reader.sections.items():
        items = read_items(section) if section.exact is None else ()
        for item in items:
            is_hint = is_explanation(item.label) and not _RX.description_label.fullmatch(item.label)
            if is_hint and not item.is_code and not PLACEHOLDER.search(item.text):
                reader.add_note(name, item.words)


def read_purpose(reader: BlueprintReader) -> str:
    """Return the purpose as one paragraph: its description and its contents. Hints only where nothing else is there."""
    section = reader.sections.get("purpose")
    if section is None:
        return ""
    texts: list[str] = []
    explanations: list[str] = []
    for line, text, is_hint in _purpose_lines(section):
        if _RX.whole_placeholder.fullmatch(text) or (
            (tag := _RX.tag.search(text)) and (tag[0] == text.strip(" *_`.") or FILL_IN_WORD.search(tag[1]))
        ):
            if not texts:
                excerpt = tag[0] if (tag := _RX.tag.search(text)) else text[:40]
                reader.refuse("purpose", line, f"still holds the template's {excerpt!r}: write the question.")
            continue
        (explanations if is_hint else texts).append(text)
    words = " ".join(filter(None, texts or explanations))
    words = re.sub(r"\s+[-–—*+•]$", "", words[:_MAX_PURPOSE_CHARS].strip())
    return words.strip("\"'").strip()


def _leave_out_table_head(lines: Sequence[SourceLine]) -> Sequence[SourceLine]:
    """Return the lines without the head of a table at their end, whose rows are other sections."""
    written = [number for number, line in enumerate(lines) if line.text.strip()]
    is_head = len(written) > 1 and re.fullmatch(r"\s*\|?[-:| ]*-[-:| ]*\|[-:| ]*", lines[written[-1]].text)
    return lines[: written[-2]] if is_head and "|" in lines[written[-2]].text else lines


def _purpose_lines(section: headings.Section) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of the purpose without their labels, and whether each only hints."""
    if section.exact is not None:
        if section.exact.strip():
            yield section.line, " ".join(section.exact.split()), False
        return
    is_hint = False
    lines = section.all_lines
    is_subtitle = section.level < headings.NO_HASHES and len(section.inline.split()) <= 3  # noqa: PLR2004 - as in "Purpose: why"
    shown = section.lines if is_subtitle and any(line.text.strip() for line in section.lines) else lines
    for line in _leave_out_table_head(shown):
        text = headings.plain_text(line) if line.fence is None else line.text.strip()
        if line.fence is None and ("<" in text or "&" in text):
            text = unescape(_RX.inline_tag.sub("", LINE_BREAK.sub(" ", text)))
        if not text or line.level or text.startswith("#") or re.fullmatch(r"[-=_*|:+•– ]+", text):
            is_hint = is_hint and bool(text) and not line.level
            continue
        label, value = headings.split_label(text)
        begins_item = bool(line.list_mark) or bool(label and is_explanation(label))
        is_own_label = headings.find_section(label) == "purpose" or _RX.purpose_label.fullmatch(label)
        if is_explanation(label):
            is_hint = not _RX.description_label.fullmatch(label)
            text = "" if not is_hint and headings.find_section(value) == "purpose" else value
        elif is_own_label:
            is_hint, text = False, value
        elif begins_item:
            is_hint = False
        if text:
            yield line.number, text, is_hint
