"""YAML in a blueprint, read by PyYAML: front matter as sections, values of options. Every value has its line. Pure.

Only the structure is PyYAML's. A word is typed here, as JSON would: ``no``, ``12:30:00`` and ``2024-01-01`` are text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from mcp_server.blueprints.headings import NOTES, OPTIONS, SECTIONS, BlueprintFault, Section, find_section
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "front_matter")

if TYPE_CHECKING:
    from yaml import Node

_MAX_CHARS = 64_000  # PyYAML takes 10 s for 1 MB
_MAX_NODES = 5_000
_TABLES = ("exp", "experiment", "blueprint")  # keys that hold the sections as a table
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "Null": None, "~": None, "": None}


class YamlFault(Exception):
    """YAML that cannot be read: the line, counted from 1, and the reason."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


@dataclass(frozen=True)
class FrontMatter:
    """Front matter: its sections, the number of its last line (0 without any), and the lines outside every section."""

    sections: tuple[Section, ...] = ()
    last_line: int = 0
    other: tuple[int, ...] = ()
    faults: tuple[BlueprintFault, ...] = ()


def read_front_matter(texts: Sequence[str]) -> FrontMatter:
    """Return the front matter of a document: YAML between ``---`` in the first line and the next ``---``."""
    first = next((number for number, text in enumerate(texts) if text.strip()), 0)
    is_json = bool(texts) and texts[first].startswith("{")  # the whole document
    if not texts or not (is_json or texts[first].rstrip() == "---"):
        return FrontMatter()
    first -= is_json
    ends = (n for n in range(first + 1, len(texts)) if texts[n].rstrip() in ("---", "..."))
    end = len(texts) if is_json else next(ends, None)
    lines = texts[first + 1 : end]
    # Rules between sections are not front matter.
    is_body = end is None or any(map(_RX.bracketed.match, lines))
    if end is None or is_body or not any(re.match(r"\s*[\w\"'-]+\s*:", text) for text in lines):
        return FrontMatter()
    faults: tuple[BlueprintFault, ...] = ()
    other = range(first + 1, end + 2)
    try:
        root = compose("\n".join(lines), first + 2)
    except YamlFault as fault:
        keys = (match[1] for text in lines if (match := re.match(r"\s*[\"']?([\w -]+?)[\"']?\s*:", text)))
        if any(map(_find_own, keys)):
            faults = (BlueprintFault(fault.line, f"front matter: {fault.text}."),)
        return FrontMatter((), end + 1, tuple(other), faults)
    try:
        sections = _read_sections(root, first + 2)
    except YamlFault as fault:
        return FrontMatter((), end + 1, (), (BlueprintFault(fault.line, f"front matter: {fault.text}."),))
    starts = [section.line for section in sections]
    used = {n for line in starts for n in range(line, min((at for at in starts if at > line), default=end + 1))}
    return FrontMatter(tuple(sections), end + 1, tuple(n for n in other[1:-1] if n not in used))


def compose(text: str, first_line: int) -> Node | None:
    """Return the node tree of a YAML document, whose first line has the number ``first_line``, or None if it is empty.

    Raises:
        YamlFault: it is not YAML, or larger than a blueprint's settings may be.
    """
    if len(text) > _MAX_CHARS:
        raise YamlFault(first_line, f"YAML of more than {_MAX_CHARS:,} characters: shorten it")
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (min(mark.line, text.count("\n")) if mark else 0)
        remedy = "indent with blanks" if "\\t" in str(error.problem) else "put a value with `: ` or `#` in it in quotes"
        raise YamlFault(line, f"not YAML ({error.problem}): {remedy}") from None
    except yaml.YAMLError as error:
        raise YamlFault(first_line, f"not YAML: {str(error).splitlines()[0][:120]}") from None
    except RecursionError:
        raise YamlFault(first_line, "YAML that is nested too deeply: write it flat") from None


def line_of(node: Node, first_line: int) -> int:
    """Return the number of the line on which a node begins."""
    return first_line + int(node.start_mark.line)


def to_data(node: Node | None, first_line: int) -> Any:
    """Return a node as JSON value.

    Raises:
        YamlFault: a key that is not text, a key that is there twice, or too many values.
    """
    budget = [_MAX_NODES]
    try:
        return _convert(node, first_line, budget)
    except RecursionError:
        raise YamlFault(first_line, "YAML that contains itself: write it out") from None


def _convert(node: Node | None, first_line: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0 and node is not None:
        raise YamlFault(line_of(node, first_line), f"more than {_MAX_NODES:,} values")
    if isinstance(node, yaml.MappingNode):
        table: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlFault(line_of(key, first_line), "a name must be a word")
            if key.value in table:
                raise YamlFault(line_of(key, first_line), f"{key.value!r} is there twice")
            table[str(key.value)] = _convert(value, first_line, budget)
        return table
    if isinstance(node, yaml.SequenceNode):
        return [_convert(value, first_line, budget) for value in node.value]
    return type_scalar(node.value, is_plain=node.style is None) if isinstance(node, yaml.ScalarNode) else None


def type_scalar(text: str, *, is_plain: bool = True) -> Any:
    """Return a word as the JSON value that it looks like. In quotes it is text."""
    if not is_plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _RX.integer.fullmatch(text) and len(text) < 20:  # noqa: PLR2004 - a 64-bit integer has 19 digits
        return int(text)
    return float(text) if _RX.float.fullmatch(text) else text


def _find_own(key: str) -> str | None:
    """Return the section with exactly this name, with or without ``exp``."""
    plain = re.sub(r"[\s-]+", "_", key.strip().lower())
    name = find_section(plain)
    is_own = plain.startswith("exp_") or plain in SECTIONS or plain in OPTIONS
    is_own = is_own or (name == "max_time" and plain.startswith("max_time_")) or plain == "seed"
    return name if is_own and name != NOTES else None


def _read_sections(root: Node | None, first_line: int) -> list[Section]:
    """Return the sections in front matter; words such as ``python`` count where it holds the launch command."""
    if not isinstance(root, yaml.MappingNode):
        return []
    pairs = list(root.value)
    for key, value in root.value:
        if isinstance(value, yaml.MappingNode) and str(key.value).lower() in _TABLES:
            pairs += value.value
    named = [(str(key.value), key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)]
    holds_command = any(find_section(name) == "launch_command" for name, _, _ in named)
    sections: list[Section] = []
    for key, node, value in named:
        own = _find_own(key)
        name = own or (find_section(key) if holds_command else None)
        if name is None or name == NOTES or (name in OPTIONS and own is None):
            continue
        data, line = to_data(value, first_line), line_of(node, first_line)
        if isinstance(value, yaml.ScalarNode):
            line = line_of(value, first_line) + (1 if value.style in ("|", ">") else 0)
        text = _read_text(name, key, line, value, data)
        sections.append(Section(name, line, key, exact=text, data=data))
    return sections


def _read_text(name: str, key: str, line: int, node: Node, data: object) -> str:
    """Return the text of a section in front matter, also from a list of words; an empty one of an option."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value).strip("\n")
    if name in OPTIONS:
        return ""
    values = data if isinstance(data, list) else []
    words = [str(value) for value in values if isinstance(value, str | int | float) and not isinstance(value, bool)]
    if name == "launch_command" and words and len(words) == len(values):
        if " " in words[0].strip():
            cause = f"{key} is one command, and a list holds its words: write several with && in one text"
            raise YamlFault(line, cause)
        return shlex.join(words)
    if isinstance(data, list) and (name == "purpose" or len(words) == 1):
        return " ".join(words)
    raise YamlFault(line, f"{key} must be one text" + (" or a list of words" if name == "launch_command" else ""))


def fold_scalar(inline: str, lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines below ``exp_launch_command: |`` or ``>``, numbered, as YAML reads them, or raise YamlFault."""
    first = lines[0][0]
    node = compose("\n".join([f"x: {inline}", *(text for _, text in lines)]), first - 1)
    value = str(node.value[0][1].value).strip("\n") if node is not None else ""
    parts = value.split("\n")
    return [(min(first + index, lines[-1][0]), part) for index, part in enumerate(parts)]
