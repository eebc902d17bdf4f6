"""Values of a blueprint's sections: the purpose and the paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape

from mcp_server.blueprints.headings import NO_HASHES, find_section, plain_text, split_label
from mcp_server.blueprints.markdown import code_spans
from mcp_server.blueprints.sections import BlueprintFault, Section, SectionItem, is_explanation, read_items

_MAX_PURPOSE_CHARS = 2_000
_MAX_PATH_CHARS = 4_096

ABSENT = re.compile(
    r"(?:n\.?/?a\.?|none|null|nil|nothing|(?:the )?default|not (?:needed|used|required|applicable)"
    r"|no (?:response|answer|value|config\w*|yaml|file)"
    r"|keine?[rs]?|entfällt|nicht (?:nötig|erforderlich|vorhanden)|aucune?|néant|sans objet|pas (?:de|nécessaire)"
    r"|无需?|没有|不需要|不适用|默认|[-–—]+)"
    r"(?:[\s,.;:(（，。](?:(?!\b(?:use|see|same|instead|conda|as|but|yet|except|unless|named|called|build|install|create|first|then)\b)[^\d/])*)?",
    re.IGNORECASE,
)
_DEFAULT = re.compile(r"(?:the )?default|默认", re.IGNORECASE)
_DESCRIPTION_LABEL = re.compile(r"(?:description|desc|说明|描述)\s*\d*")
_CONTENT_LABEL = re.compile(
    r"(?:contents?|value|absolute|内容|值)\s*\d*|.*(?:path|dir|directory|location|file|folder|路径|目录|位置|文件|地址)"
)
_PURPOSE_LABEL = re.compile(r"(?:contents?|value|text|内容|值|question|目的)\s*\d*")
_PATH = re.compile(
    r"(?:~\w*|\.{1,2}|\$\{?\w+\}?|\{\w+\})?/[^\s`'\"，。；、<>|「」『』《》“”（）]*|[\w.${}-]+(?:/[\w.@%+=~${}:-]+)+/?"
    r"|[\w.-]+\.(?:ya?ml|jsonc?|toml|py|cfg|ini|conf|gin)|\.\w[\w.-]*|\.{1,2}"
)
_EMPHASISED = re.compile(r"(?P<mark>\*{1,3}|_{1,2}(?!_))(?P<text>[^*]+)(?P=mark)")
_PICTURES = re.compile(r"^[\s\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]+|[\s\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]+$")
_PATH_START = re.compile(r"(?:~\w*|\.{1,2}|\$\{?\w+\}?|\{\w+\})?/|[\w.-]+/[\w.-]")
_OTHER_MACHINE = re.compile(
    r"^\s*(?:[A-Za-z]:[\\/]|[\w.-]+@[\w.-]+:|[A-Za-z][\w.-]*[\d.-][\w.-]*:/(?!/)|[a-z][a-z0-9+.-]*://)"
)
# Parts of a path that somebody was to fill in, or that only a shell would.
_OPEN_PART = re.compile(
    r"\$\([^)]*\)?|<[^<>/]*>|`[^`]*\b(?:date|whoami|hostname)\b[^`]*`|\$\{[^{}]*[:(][^{}]*\}|\{\{.*?\}\}|%[YmdHMSFsd](?![a-z])|\?+$"
    r"|\{[^{}]*\.\.[^{}]*\}|[\[(](?:date|time|timestamp|seed|run|name)[\])]|(?<![A-Za-z0-9])XX+(?![A-Za-z0-9])"
    r"|(?<![A-Za-z])YYYY\S*|(?<![A-Za-z])yyyymmdd\S*|\{(?:timestamp|date|datetime|time)\}|\{[^{}]*,[^{}]*\}|\*+"
)
# Words that a comment behind a path has, and a directory's name does not.
PROSE_WORDS = frozenset(
    """a an and are as at be below but by contains created does each else exists for from has have here if in instead
    into is it its machine must new not of on only or please see shared should that the then this to under use used uses
    via was when where which will with you your branch commit host node server gb tb free empty gpu gpus""".split()  # noqa: SIM905 - as prose has them
)
_MAX_WORDS_IN_PATH = 8
_PATH_WITH_BLANKS = re.compile(
    r"(?:(?:~\w*|\.{1,2}|\$\{?\w+\}?)?/[^`'\"，。；、<>|,;:!?$*=]*[^\s.:]"
    r"|[\w][^`'\"，。；、<>|,;:!?$*=/]*\.(?:ya?ml|jsonc?|toml|py|cfg|ini|conf|gin))"
)
_INLINE_TAG = re.compile(r"</?(?:b|strong|i|em|u|code|kbd|tt|span|font|sub|sup|mark|small|a)\b[^<>]*>", re.IGNORECASE)
_QUOTED = re.compile(
    r"`([^`]+)`|\"([^\"]+)\"|'([^']+)'|“([^”]+)”|「([^」]+)」|『([^』]+)』|《([^》]+)》|<([~.]{0,2}/[^<>]*)>"
)
_BEFORE_PATH = re.compile(r"^(\W*)(?:source|cd)\s+(?=[~/.$\w\"'`])")
_ROOTED = re.compile(r"(?:~\w*|\.{1,2}|\$\{?\w+\}?|\{\w+\})?/")
_CONFIGURATION = re.compile(r"\.(?:ya?ml|jsonc?|toml|cfg|ini|conf|gin)$")
# Prose behind a path that no name of a file goes on with.
_PROSE = re.compile(
    r"(?!-\w)[^\w\s]|(?:is|was|has|holds|contains|which|where|because|since|please|will|does|it|ist|enthält|est)\b|[\u4e00-\u9fff]"
)
# How a path in a remark is related to the one before: it is no choice.
_RELATION = re.compile(
    r"\b(?:copy|copied|clone|fork|mirror|based|derived|link\w*|mount\w*|was|were|formerly|previously|not|never"
    r"|instead of|backup|original|see|same|relative|below|under|in|inside|docs?|documented|kopie|statt|siehe"
    r"|nicht|aus|copie|voir)\b"
    r"|来自|基于|复制|拷贝|链接|原来|以前|之前|不是|位于|相对|参见|详见|见|勿|不要",
    re.IGNORECASE,
)
_ANOTHER_RUN = (
    r"(?:the )?(?:(?:other|next|second|previous|last|old|control|baseline|reference)(?: \w+)?? "
    r"(?:arm|run|experiment|condition|group|half|study|blueprint|job|sweep|ablation|paper|document)|control|baseline)"
)
_OF_ANOTHER_RUN = re.compile(
    rf"\x01 (?:(?:is|was|belongs|goes|holds|has)(?: used| meant| the one)?"
    rf"(?: (?:for|to|with|of|in|by))?|=|for|of) {_ANOTHER_RUN}"
    rf"|{_ANOTHER_RUN}(?: is| was| uses| used|:| =) \x01|\x01 ?是(?:另一|对照|上一)[个组次]?(?:实验|组)?的?",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\b(?:or|and|then|overrid\w*|merge\w*|plus|oder|und|ou|et)\b|或|和|然后|合并|覆盖", re.IGNORECASE)
# Words that make another place of a path: behind it in any case, in a sentence also in front of it.
_GOES_ON = re.compile(
    r"^\s*[+&]|\bsub-?\s?(?:dir|folder)|\b(?:append\w*|suffix|followed by|named|called|dated?|timestamp)\b"
    r"|\bunter(?:ordner|verzeichnis)|\bsous-(?:dossier|répertoire)|子(?:目录|文件夹)|加上|日期|时间戳",
    re.IGNORECASE,
)
_OTHER_PLACE = re.compile(
    rf"{_GOES_ON.pattern}|\b(?:somewhere|anywhere|wherever|like|similar to|next to|beside|near|anything but|except"
    r"|other than|same as|irgendwo|neben|wie|ähnlich|außer|à côté de|comme|sauf)\b|类似|旁边|除了|新建?(?:目录|文件夹)"
    r"|\b(?:new|fresh|own|separate|neue[srn]?|eigene[srn]?|nouveau)\s(?:dir\w*|folder|verzeichnis|ordner|dossier|répertoire)",
    re.IGNORECASE,
)
_OUTDATED = re.compile(
    r"\b(?:broken|deprecated|outdated|obsolete|no longer|(?:do not|don'?t|never) (?:use|take|run)|rather"
    r"|veraltet|kaputt|nicht (?:benutzen|verwenden))\b|不要使?用|不再|切勿使?用|废弃|过时|损坏|作废",
    re.IGNORECASE,
)
_LINK = re.compile(r"!?\[(?P<text>[^\[\]]*)\]\(\s*<?(?P<target>[^()<>]+?)>?(?:\s+[\"'][^\"']*[\"'])?\s*\)")
_ELLIPSIS = r"(?<!\S)(?:\.{3,}|…+)(?!\S)|(?<=/)(?:\.{3,}|…+)(?=/|\s|$)"
PLACEHOLDER = re.compile(
    r"<[A-Za-z\u4e00-\u9fff_](?:[^<>\n]{0,80}[\w\u4e00-\u9fff.])?>(?![\w/])|\b(?:TODO|TBD|FIXME|XXX+|CHANGEME)\b|\?\?\?"
    rf"|{_ELLIPSIS}|(?:^|/)path/to/"
    r"|\b[Yy]our[-_ ](?:path|name|user|project|dir|command|repo|code|venv|file)\w*"
)
# What turns a path or a command in a sentence into one that is not meant.
NEGATION = re.compile(
    r"\b(?:not|don'?t|never|instead of|rather than|no longer|formerly|previously"
    r"|broken|deprecated|outdated|obsolete|nicht|statt|niemals)\b"
    r"|不要|不是|不再|不用|而非|切勿|请勿|禁止|代替|已?废弃|过时|损坏",
    re.IGNORECASE,
)
FILL_IN_WORD = re.compile(
    r"path|dir|name|your|file|command|port|config|value|number|model|dataset|task|purpose|question|expectation|hours|time"
    r"|insert|fill|absolute|路径|目录|名|填|模型|数据集|目的",
    re.IGNORECASE,
)
_WHOLE_PLACEHOLDER = re.compile(
    r"[\W_]*(?:(?:TODO|TBD|FIXME|XXX+|CHANGEME)\b.*|\?{3,}|\.{3,}|…+|待定|待填写?|填写.{0,20}|Perform \.\.\.)[\W_]*"
)
_TAG = re.compile(r"<([A-Za-z\u4e00-\u9fff_][^<>\n]{0,80})>")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?|\{([A-Za-z_]\w*)\}")
_USER_VARIABLES = frozenset({"HOME", "USER"})
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass
class BlueprintReader:
    """The sections of a document, the faults, the line of each value, and notes found inside sections."""

    sections: dict[str, Section] = field(default_factory=dict)
    faults: list[BlueprintFault] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_fault(self, line: int, text: str, *, fatal: bool = True, section: str = "") -> None:
        """Note a fault. A fatal one prevents running the document; one of a section that it names only that section."""
        named = re.match(r"\[exp_(\w+)\]", text)
        self.faults.append(BlueprintFault(line, text, fatal, section or (named[1] if named else "")))

    def add_note(self, name: str, text: str) -> None:
        """Keep what a section says beside its value."""
        self.notes.append(f"[exp_{name}] {text.strip()}")

    def has_placeholder(self, name: str, line: int, value: str) -> bool:
        """Return whether ``value`` is still the template's, and note that as a fault."""
        if placeholder := PLACEHOLDER.search(value):
            self.add_fault(line, f"[exp_{name}] still holds the template's {placeholder[0]!r}: write the value.")
        return placeholder is not None


def content_items(reader: BlueprintReader, name: str) -> list[SectionItem]:
    """Return the items of a section without explanations, or its description where nothing else is there.

    Empty if the section is absent.
    """
    section = reader.sections.get(name)
    if section is None:
        return []
    if section.exact is not None:
        is_there = section.exact.strip() and section.data is not None
        return [SectionItem(section.line, "", section.exact, is_code=True)] if is_there else []
    items = list(read_items(section))
    content = [item for item in items if not is_explanation(item.label)]
    described = [item for item in items if _DESCRIPTION_LABEL.fullmatch(item.label)]
    return content or [item for item in described if find_section(item.text) != name]


def _bare_value(text: str) -> str:
    bare = _PICTURES.sub("", text.strip()).strip("`").strip()
    if emphasised := _EMPHASISED.fullmatch(bare):
        bare = emphasised["text"]
    bare = bare.strip("`\"' ")
    return bare[1:-1] if re.fullmatch(r"<[~.]{0,2}/[^<>]*>", bare) else bare  # as markdown brackets a link


def read_path(reader: BlueprintReader, name: str) -> str | None:
    """Return the path in a section. None if the section is absent or says that there is none."""
    section = reader.sections.get(name)
    is_exact = section is not None and section.exact is not None
    sure: list[tuple[int, str]] = []  # paths that begin an item, with their lines
    unsure: list[tuple[int, str]] = []  # paths in sentences, then single words
    words: list[tuple[int, str]] = []
    first: tuple[int, str] | None = None
    for item in content_items(reader, name):
        text = item.text if is_exact else _BEFORE_PATH.sub(r"\1", _follow_links(item.text))
        value = _bare_value(text)
        first = first or (item.line, value)
        is_default = name == "venv_exe" and value.lower() in ("python", "python3")
        if not sure and (is_default or (ABSENT.fullmatch(value) and not (is_exact and "/" in value))):
            return None
        if sure and not _PATH_START.match(value):  # a remark below the path
            reader.add_note(name, f"{item.label}: {item.text}" if item.label else item.text)
            continue
        found = _FoundPath(value) if is_exact else _find_path(name, replace(item, text=text), value)
        if fault := _find_open_part(text, value) or found.fault:
            reader.lines[name] = item.line
            reader.add_fault(item.line, f"[exp_{name}]{fault}")
            return None
        if found.path:
            (sure if found.is_sure else unsure).append((item.line, found.path))
            reader.add_note(name, found.remark) if found.remark else None
        elif name.endswith("_dir") and re.fullmatch(r"\w[\w.-]*", value):
            words.append((item.line, value))
    chosen = sure or unsure or words[-1:]
    if first and not chosen:
        reader.lines[name] = first[0]
        reader.add_fault(first[0], f"[exp_{name}] names no path: {first[1][:80]!r}. Write one path, or none.")
    return _choose_path(reader, name, chosen)


def _follow_links(text: str) -> str:
    """Return a text with the targets of its links instead of them; a link whose text is another path stays both."""

    def follow(link: re.Match[str]) -> str:
        target = link["target"].strip().removeprefix("file://")
        words = _bare_value(link["text"])
        is_other = _PATH_START.match(words) and not target.rstrip("/").endswith(words.lstrip("./~").rstrip("/"))
        return f"{words} {target}" if is_other and " " not in words else f"`{target}`" if " " in target else target

    return _LINK.sub(follow, text) if "](" in text else text


def leaves_open(reader: BlueprintReader, name: str) -> bool:
    """Return whether a section is left out, is empty, or asks for the default."""
    return all(_DEFAULT.match(_bare_value(item.text)) for item in content_items(reader, name))


@dataclass(frozen=True)
class _FoundPath:
    """The path of an item. ``is_sure``: it begins the item; ``remark`` is the text behind it. ``fault``: no path."""

    path: str = ""
    is_sure: bool = True
    remark: str = ""
    fault: str = ""


def _find_path(name: str, item: SectionItem, value: str) -> _FoundPath:
    """Return the path that an item names.

    All of the item, or the path that begins it with a remark behind, or the only path of a sentence. Another path
    beside it is a choice, unless the words in front of that say how both are related: ``a copy of /data/base``.
    """
    text, label = item.text.strip(), item.label
    is_content = not label or item.is_code or find_section(label) == name or _CONTENT_LABEL.fullmatch(label)
    spans = _find_spans(text)
    head = spans[0] if spans and is_content and not text[: spans[0].start].strip(" *_`\"'（(") else None
    if is_content and (head is None or not head.is_quoted) and " " in (whole := _match_path_with_spaces(value)):
        end = text.find(whole) + len(whole) if whole in text else len(text)
        head = _Span(0, end, whole, is_quoted=True)
    if head is None:
        return _find_in_sentence(item, value, [span for span in spans if "/" in span.path])
    rest = text[head.end :].lstrip("`*_\"'")
    if rest[:1].isspace() and rest.strip() and not _PROSE.match(rest.strip()) and not head.is_quoted:
        cause = f": where does the path end in {value[:80]!r}? Write it in backticks, and the rest on another line."
        return _FoundPath(fault=cause)
    for other in (span for span in spans if span.start >= head.end and span.path.rstrip("/") != head.path.rstrip("/")):
        between = text[head.end : other.start]
        is_path = _ROOTED.match(other.path) or (name == "yaml_path" and _CONFIGURATION.search(other.path))
        is_choice = _CHOICE.search(between) or not _RELATION.search(between)
        if is_path and is_choice and not _is_of_another_run(between, text[other.end :]):
            return _FoundPath(fault=f" names a second path, {other.path[:80]!r}: write one.")
    if name.endswith("_dir") and _GOES_ON.search(rest):
        return _FoundPath(fault=f" names a place by another path: {value[:80]!r}. Write the path out.")
    if _OUTDATED.search(rest):
        return _FoundPath(fault=f" says more than a path: {value[:80]!r}. Write the path that is meant, alone.")
    return _FoundPath(head.path, remark=rest.strip(" ,;:.，；。、()（）"))


def _is_of_another_run(before: str, after: str) -> bool:
    """Return whether a remark says that the path in it is another run's: ``(b.yaml is the other arm)``."""
    start = re.match(r"[\s`*\"']*[(（;；.,，–—-][\s(（`\"']*(.*)$", before)
    words = re.split(r"[)）;；]|\.(?=\s|$)", f"{start[1]}\x01{after}" if start else "")[0]
    return bool(_OF_ANOTHER_RUN.fullmatch(re.sub(r"[`*\"'\s]+", " ", words).strip()))


def _find_in_sentence(item: SectionItem, value: str, spans: Sequence[_Span]) -> _FoundPath:
    """Return the only path of a sentence; quoted paths, else those from the root, count before others."""
    for group in ([s for s in spans if s.is_quoted], [s for s in spans if _ROOTED.match(s.path)], list(spans)):
        paths = list(dict.fromkeys(span.path for span in group))
        if not paths:
            continue
        before = re.split(r"[.!。！；]", item.text[: group[0].start])[-1]
        if len(paths) > 1:
            return _FoundPath(fault=f" names a second path, {paths[1][:80]!r}: write one.")
        if NEGATION.search(f"{item.label} {before}") or _OUTDATED.search(value):
            return _FoundPath(fault=f" says more than a path: {value[:80]!r}. Write the path that is meant, alone.")
        if _OTHER_PLACE.search(value):
            return _FoundPath(fault=f" names a place by another path: {value[:80]!r}. Write the path out.")
        return _FoundPath(paths[0], is_sure=False) if "." not in item.label else _FoundPath()
    return _FoundPath()


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
    for quoted in _QUOTED.finditer(text):
        inner = next(filter(None, quoted.groups())).strip().strip("\"'")
        has_blanks = " " in inner and "/" in inner and not re.search(r"\s-|[|<>;]", inner)
        if (_PATH.fullmatch(inner) or has_blanks) and not inner.startswith("$("):
            spans.append(_Span(*quoted.span(), inner, is_quoted=True))
            rest = rest[: quoted.start()] + "\n" * len(quoted[0]) + rest[quoted.end() :]
    for match in _PATH.finditer(rest):
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


def _find_open_part(text: str, value: str) -> str:
    """Return a fault if nobody fills in a part of a path, or the path is not of this machine."""
    if other := _OTHER_MACHINE.match(value):
        return f" is not a path of this machine: {value[:80]!r} begins with {other[0].strip()!r}."
    if placeholder := PLACEHOLDER.search(value):
        return f" still holds the template's {placeholder[0]!r}: write the value."
    is_path = "/" in value or re.search(r"\.\w{1,5}$", value)
    spans = code_spans(text) if "`" in text and not re.search(r"`[^`]*\b(?:date|whoami|hostname)\b", text) else []
    part = _OPEN_PART.search(spans[0] if spans and "/" in spans[0] else value.replace("**", ""))
    if is_path and part and _find_spans(value[: part.start()] + "x" if part.start() else value):
        return f" holds {part[0][:60]!r}, which nothing fills in: write the path out."
    return ""


def _choose_path(reader: BlueprintReader, name: str, paths: Sequence[tuple[int, str]]) -> str | None:
    if not paths:
        return None
    line, first = paths[0]
    reader.lines[name] = line
    for other_line, other in paths[1:]:
        if other.rstrip("/") != first.rstrip("/"):
            reader.add_fault(other_line, f"[exp_{name}] names a second path, {other[:80]!r}: write one.")
            break
    if len(first) > _MAX_PATH_CHARS:
        reader.add_fault(line, f"[exp_{name}] is longer than a path may be: {len(first):,} characters.")
        return None
    for names in _VARIABLE.findall(first):
        variable = names[0] or names[1]
        own = ("codebase_dir", "result_dir") if name == "tensorboard" else ("codebase_dir",)
        if variable not in _USER_VARIABLES and find_section(variable) not in own:
            reader.add_fault(line, f"[exp_{name}]: {variable} has no value in {first[:80]!r}: write the path out.")
    return first


def _match_path_with_spaces(value: str) -> str:
    """Return ``value`` if all of it is one path with spaces: no prose, no further path, no option."""
    bare = re.sub(r"\\ ", " ", _without_comment(value))
    words = bare.split(" ")
    is_path = _PATH_WITH_BLANKS.fullmatch(bare)
    if not is_path or "" in words or len(words) > _MAX_WORDS_IN_PATH:
        return ""
    if any(word.startswith(("/", "-", "~", "$")) for word in words[1:]):
        return ""
    return "" if PROSE_WORDS & {word.lower() for word in words[1:]} else bare


def _without_comment(value: str) -> str:
    """Return ``value`` without the comment behind it: in brackets, or after a dash or #."""
    bare = re.sub(r"\s+(?:[(#].*|[-–—]+\s.*|(?:->|→|<-+|←)\s[^/]*)$|\s*（.*$", "", value).rstrip("，,;；。")
    return re.sub(r"(?<=[^./])\.$", "", bare)  # the end of a sentence


def keep_hints(reader: BlueprintReader) -> None:
    """Keep hints, notes and warnings of the sections as notes: who runs the document reads them there."""
    for name, section in reader.sections.items():
        items = read_items(section) if section.exact is None else ()
        for item in items:
            is_hint = is_explanation(item.label) and not _DESCRIPTION_LABEL.fullmatch(item.label) and not item.is_code
            if is_hint and not PLACEHOLDER.search(item.text):
                reader.add_note(name, f"{item.label}: {item.text}")


def read_purpose(reader: BlueprintReader) -> str:
    """Return the purpose as one paragraph: its description and its contents. Hints only where nothing else is there."""
    section = reader.sections.get("purpose")
    if section is None:
        return ""
    texts: list[str] = []
    explanations: list[str] = []
    for line, text, is_hint in _purpose_lines(section):
        if _WHOLE_PLACEHOLDER.fullmatch(text) or (
            (tag := _TAG.search(text)) and (tag[0] == text.strip(" *_`.") or FILL_IN_WORD.search(tag[1]))
        ):
            if not texts:
                excerpt = tag[0] if (tag := _TAG.search(text)) else text[:40]
                reader.add_fault(line, f"[exp_purpose] still holds the template's {excerpt!r}: write the question.")
            continue
        (explanations if is_hint else texts).append(text)
    words = " ".join(filter(None, texts or explanations))
    words = re.sub(r"\s+[-–—*+•]$", "", words[:_MAX_PURPOSE_CHARS].strip())
    return words.strip("\"'").strip()


def _purpose_lines(section: Section) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of the purpose without their labels, and whether each only hints."""
    if section.exact is not None:
        if section.exact.strip():
            yield section.line, " ".join(section.exact.split()), False
        return
    is_hint = False
    lines = section.all_lines
    is_subtitle = section.level < NO_HASHES and len(section.inline.split()) <= 3  # noqa: PLR2004 - as in "Purpose: why"
    for line in section.lines if is_subtitle and any(line.text.strip() for line in section.lines) else lines:
        text = plain_text(line) if line.fence is None else line.text.strip()
        if line.fence is None and ("<" in text or "&" in text):
            text = unescape(_INLINE_TAG.sub("", _BREAK.sub(" ", text)))
        if not text or line.level or text.startswith("#") or re.fullmatch(r"[-=_*|:+•– ]+", text):
            is_hint = is_hint and bool(text) and not line.level
            continue
        label, value = split_label(text)
        begins_item = bool(line.list_mark) or bool(label and is_explanation(label))
        is_own_label = find_section(label) == "purpose" or _PURPOSE_LABEL.fullmatch(label)
        if is_explanation(label):
            is_hint = not _DESCRIPTION_LABEL.fullmatch(label)
            text = "" if not is_hint and find_section(value) == "purpose" else value
        elif is_own_label:
            is_hint, text = False, value
        elif begins_item:
            is_hint = False
        if text:
            yield line.number, text, is_hint
