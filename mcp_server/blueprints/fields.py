"""Values of a blueprint's sections: the purpose and the paths. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape

from mcp_server.blueprints.headings import find_section, plain_text, split_label
from mcp_server.blueprints.markdown import code_spans
from mcp_server.blueprints.sections import BlueprintFault, Section, SectionItem, is_explanation, read_items

_MAX_PURPOSE_CHARS = 2_000
_MAX_PATH_CHARS = 4_096

ABSENT = re.compile(
    r"(?:n\.?/?a\.?|none|null|nil|nothing|(?:the )?default|not (?:needed|used|required|applicable)"
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
    r"(?:~\w*|\.{1,2}|\$\{?\w+\}?|\{\w+\})?/[^\s`'\"，。；、<>|]*|[\w.${}-]+(?:/[\w.@%+=~${}:-]+)+/?"
    r"|[\w.-]+\.(?:ya?ml|jsonc?|toml|py|cfg|ini|conf|gin)|\.{1,2}|\.\w[\w.-]*"
)
_EMPHASISED = re.compile(r"(?P<mark>\*{1,3})(?P<text>[^*]+)(?P=mark)")
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
_COMMENT_WORDS = frozenset(
    """a an and are as at be below but by contains created does each else exists for from has have here if in instead
    into is it its machine must new not of on only or please see shared should that the then this to under use used uses
    via was when where which will with you your""".split()  # noqa: SIM905 - as prose has them
)
_MAX_WORDS_IN_PATH = 8
_PATH_WITH_BLANKS = re.compile(
    r"(?:(?:~\w*|\.{1,2}|\$\{?\w+\}?)?/[^`'\"，。；、<>|,;:!?$*=]*[^\s.]"
    r"|[\w][^`'\"，。；、<>|,;:!?$*=/]*\.(?:ya?ml|jsonc?|toml|py|cfg|ini|conf|gin))"
)
_OTHER_PLACE = re.compile(
    r"\b(?:somewhere|anywhere|wherever|like|similar to|next to|beside|near|anything but|except|other than|same as"
    r"|irgendwo|neben|wie|ähnlich|außer|à côté de|comme|sauf)\b|类似|旁边|除了|"
    r"\b(?:new|fresh|own|separate|sub-?)\s?(?:dir\w*|folder)\s+(?:below|under\w*|in|inside|within|beneath|of)\b"
    r"|\b(?:neue[srn]?|eigene[srn]?)\s+(?:verzeichnis|ordner)\s+(?:unter\w*|in)\b|\bunter(?:verzeichnis|ordner)\s+(?:von|in)\b"
    r"|\b(?:nouveau|sous-)\s?(?:dossier|répertoire)\s+(?:dans|sous|de)\b|(?:新建?|子)(?:目录|文件夹)",
    re.IGNORECASE,
)
# A sentence that forbids something else: "Do not pull."
_OTHER_BAN = re.compile(
    r"(?:^|(?<=[.!。！]))\s*(?:please )?(?:do not|don'?t|never) (?!use|take|run|start|work)[a-z]+[^.!。！/]*"
    r"|(?:^|(?<=[.!。！；]))\s*(?:不要|请勿|切勿|禁止)(?!使?用|运行)[^.!。！；/]*",
    re.IGNORECASE,
)
_INLINE_TAG = re.compile(r"</?(?:b|strong|i|em|u|code|kbd|tt|span|font|sub|sup|mark|small|a)\b[^<>]*>", re.IGNORECASE)
_PATH_AND_REMARK = re.compile(
    r"\s*(?P<path>`[^`]+`|\"[^\"]+\"|[^\s`'\"，。；、,;<>|()（）]+)\s*(?:[，。；、]|[,;](?=\s)|(?=（)|\s(?=[(]))\s*(?P<remark>\S.*)$"
)
# What makes a remark behind a path more than a remark: another path, or a choice.
_OTHER_PATH = re.compile(
    r"[\w.~}]*/[\w.]|\.(?:ya?ml|jsonc?|toml|py|cfg|ini|conf|gin)\b|\b(?:or|and|oder|ou|then)\b|或|然后|和"
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

    def add_fault(self, line: int, text: str, *, fatal: bool = True) -> None:
        """Note a fault. A fatal one prevents running the document."""
        self.faults.append(BlueprintFault(line, text, fatal=fatal))

    def add_note(self, name: str, text: str) -> None:
        """Keep what a section says beside its value."""
        self.notes.append(f"[exp_{name}] {text.strip()}")

    def assign_faults(self, since: int, section: str) -> None:
        """Note that the faults after the first ``since`` affect only ``section``."""
        self.faults[since:] = [replace(fault, section=section) for fault in self.faults[since:]]

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
    """Return a value without the signs around it."""
    bare = _PICTURES.sub("", text.strip()).strip("`").strip()
    if emphasised := _EMPHASISED.fullmatch(bare):
        bare = emphasised["text"]
    bare = bare.strip("`\"' ")
    return bare[1:-1] if re.fullmatch(r"<[~.]{0,2}/[^<>]*>", bare) else bare  # as markdown brackets a link


def read_path(reader: BlueprintReader, name: str) -> str | None:
    """Return the path in a section. None if the section is absent or says that there is none."""
    candidates = _PathCandidates(name)
    section = reader.sections.get(name)
    is_exact = section is not None and section.exact is not None
    for item in content_items(reader, name):
        text, remark = _split_remark(_follow_links(item.text)) if not is_exact else (item.text, "")
        if name == "venv_exe":
            text = re.sub(r"^(\W*)source\s+(?=\S+/activate)", r"\1", text)
        item = replace(item, text=text)  # noqa: PLW2901
        value = _bare_value(item.text)
        candidates.first = candidates.first or (item.line, value)
        if candidates.whole:
            if _PATH_START.match(value):
                candidates.add(item, value, is_exact=is_exact)
            else:  # a remark below the path
                reader.add_note(name, f"{item.label}: {item.text}" if item.label else item.text)
            continue
        is_default = name == "venv_exe" and value.lower() in ("python", "python3")
        if is_default or (ABSENT.fullmatch(value) and not (is_exact and "/" in value)):
            return None
        if fault := _find_open_part(name, item.text, value) or candidates.add(item, value, is_exact=is_exact):
            reader.lines[name] = item.line
            reader.add_fault(item.line, fault)
            return None
        if remark:
            reader.add_note(name, remark)
    chosen = candidates.whole or candidates.in_text or candidates.words[-1:]
    if candidates.first and not chosen:
        line, written = candidates.first
        reader.lines[name] = line
        reader.add_fault(line, f"[exp_{name}] names no path: {written[:80]!r}. Write one path, or none.")
    return _choose_path(reader, name, chosen)


def _follow_links(text: str) -> str:
    """Return a text with the targets of its links instead of them; a link whose text is another path stays both."""

    def follow(link: re.Match[str]) -> str:
        target = link["target"].strip().removeprefix("file://")
        words = _bare_value(link["text"])
        is_other = _PATH_START.match(words) and not target.rstrip("/").endswith(words.lstrip("./~").rstrip("/"))
        return f"{words} {target}" if is_other and " " not in words else f"`{target}`" if " " in target else target

    return _LINK.sub(follow, text) if "](" in text else text


def _split_remark(text: str) -> tuple[str, str]:
    """Return ``base.json, 2 KB`` as its path and the remark behind it; the remark is empty where it may mean a path."""
    match = _PATH_AND_REMARK.match(text)
    if match is None or not _PATH.fullmatch(_bare_value(match["path"])):
        return text, ""
    remark = match["remark"]
    is_plain = not (NEGATION.search(remark) or _OTHER_PATH.search(remark) or PLACEHOLDER.search(remark))
    return (match["path"], remark) if is_plain else (text, "")


def leaves_open(reader: BlueprintReader, name: str) -> bool:
    """Return whether a section is left out, is empty, or asks for the default."""
    return all(_DEFAULT.match(_bare_value(item.text)) for item in content_items(reader, name))


@dataclass
class _PathCandidates:
    """The possible paths of a section: whole values, paths in sentences, and single words, with their lines."""

    name: str
    whole: list[tuple[int, str]] = field(default_factory=list)
    in_text: list[tuple[int, str]] = field(default_factory=list)
    words: list[tuple[int, str]] = field(default_factory=list)
    first: tuple[int, str] | None = None

    def add(self, item: SectionItem, value: str, *, is_exact: bool) -> str:
        """Add the paths of an item and return a fault if the end of its path is not clear."""
        label = item.label
        is_content = not label or item.is_code or find_section(label) == self.name or _CONTENT_LABEL.fullmatch(label)
        path = (
            value
            if is_exact
            else (_match_path(item.text, value) or _match_path_with_spaces(value))
            if is_content
            else ""
        )
        head = re.split(r"[,(;，；。、（]", value)[0].strip()
        if path:
            self.whole.append((item.line, path))
        elif is_content and not self.whole and _PATH_START.match(value) and " " in head:
            return (
                f"[exp_{self.name}]: where does the path end in {value[:80]!r}? "
                "Write it in backticks, and the rest on another line."
            )
        elif len(paths := _find_paths(value)) == 1 and NEGATION.search(_OTHER_BAN.sub("", value)):
            return f"[exp_{self.name}] says more than a path: {value[:80]!r}. Write the path that is meant, alone."
        elif paths and _OTHER_PLACE.search(value):
            return f"[exp_{self.name}] names a place by another path: {value[:80]!r}. Write the path out."
        elif paths and "." not in label:
            self.in_text += [(item.line, path) for path in paths]
        elif is_content and self.name.endswith("_dir") and re.fullmatch(r"[\w][\w.-]*", value):
            self.words.append((item.line, value))
        return ""


def _find_open_part(name: str, text: str, value: str) -> str:
    """Return a fault if nobody fills in a part of a path, or the path is not of this machine."""
    if other := _OTHER_MACHINE.match(value):
        return f"[exp_{name}] is not a path of this machine: {value[:80]!r} begins with {other[0].strip()!r}."
    if placeholder := PLACEHOLDER.search(value):
        return f"[exp_{name}] still holds the template's {placeholder[0]!r}: write the value."
    is_path = "/" in value or re.search(r"\.\w{1,5}$", value)
    spans = code_spans(text) if "`" in text and not re.search(r"`[^`]*\b(?:date|whoami|hostname)\b", text) else []
    part = _OPEN_PART.search(spans[0] if spans and "/" in spans[0] else value.replace("**", ""))
    if is_path and part and _find_paths(value[: part.start()] + "x" if part.start() else value):
        return f"[exp_{name}] holds {part[0][:60]!r}, which nothing fills in: write the path out."
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


def _match_path(text: str, value: str) -> str:
    """Return ``value`` if all of it is one path, in quotes or without spaces."""
    quoted = re.fullmatch(r"""\s*(?:`([^`]+)`|"([^"]+)"|'([^']+)'|“([^”]+)”)[\s,;.。，；]*(?:[(（#—–-].*)?""", text)
    if quoted:
        inner = next(filter(None, quoted.groups())).strip().strip("\"'")
        has_blanks = quoted[1] and " " in inner and "/" in inner and not re.search(r"\s-|[|<>;]", inner)
        return inner if (_PATH.match(inner) or has_blanks) and not inner.startswith("$(") else ""
    bare = _without_comment(value)
    return bare if _PATH.fullmatch(bare) else ""


def _match_path_with_spaces(value: str) -> str:
    """Return ``value`` if all of it is one path with spaces: no prose, no further path, no option."""
    bare = re.sub(r"\\ ", " ", _without_comment(value))
    words = bare.split(" ")
    is_path = _PATH_WITH_BLANKS.fullmatch(bare)
    if not is_path or "" in words or len(words) > _MAX_WORDS_IN_PATH:
        return ""
    if any(word.startswith(("/", "-", "~", "$")) for word in words[1:]):
        return ""
    return "" if _COMMENT_WORDS & {word.lower() for word in words[1:]} else bare


def _without_comment(value: str) -> str:
    """Return ``value`` without the comment behind it: in brackets, or after a dash or #."""
    bare = re.sub(r"\s+(?:[(#].*|[-–—]+\s.*|(?:->|→|<-+|←)\s[^/]*)$|\s*（.*$", "", value).rstrip("，,;；。")
    return re.sub(r"(?<=[^./])\.$", "", bare)  # the end of a sentence


def _find_paths(value: str) -> list[str]:
    """Return the paths in a sentence, those in inline code if there are any."""
    spans = [span.strip() for span in code_spans(value) if _PATH.fullmatch(span.strip())]
    if spans:
        return spans
    words = []
    for match in _PATH.finditer(value):
        if (
            "/" in match[0]
            and "://" not in value[: match.end() + 3]
            and not re.search(r"[\w:]$", value[: match.start()])
        ):
            words.append(match[0].rstrip(".,;:)"))
        elif "/" in match[0] and re.search(r"[\u4e00-\u9fff：:]$", value[: match.start()]) and "://" not in value:
            words.append(re.split(r"[\u4e00-\u9fff]", match[0])[0].rstrip(".,;:)"))
    return [word for word in dict.fromkeys(words) if word.strip("/.") or word == "."]


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
    for line in section.all_lines:
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
