"""YAML in a blueprint, read by PyYAML: front matter as sections, values of options. Every value has its line. Pure.

Only the structure is PyYAML's. A word is typed here, as JSON would: ``no``, ``12:30:00`` and ``2024-01-01`` are text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from mcp_server.blueprints.headings import NOTES, OPTIONS, SECTIONS, find_section
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
class FrontMatterEntry:
    """A section in front matter: ``text`` of a scalar or list, ``data`` as JSON value."""

    name: str
    line: int
    key: str
    text: str
    data: Any


@dataclass(frozen=True)
class FrontMatter:
    """Front matter: its entries, the number of its last line (0 without any), and the lines outside every section."""

    entries: tuple[FrontMatterEntry, ...] = ()
    last_line: int = 0
    other: tuple[int, ...] = ()
    fault: tuple[int, str] | None = None


def read_front_matter(texts: Sequence[str]) -> FrontMatter:
    """Return the front matter of a document: YAML between ``---`` in the first line and the next ``---``."""
    first = next((number for number, text in enumerate(texts) if text.strip()), 0)
    is_json = bool(texts) and texts[first].startswith("{")  # the whole document
    if not texts or not (is_json or texts[first].rstrip() == "---"):
        return FrontMatter()
    first -= is_json
    end = (
        len(texts)
        if is_json
        else next((n for n in range(first + 1, len(texts)) if texts[n].rstrip() in ("---", "...")), None)
    )
    # Rules between sections are not front matter.
    if end is None or any(_RX.bracketed.match(text) for text in texts[first + 1 : end]):
        return FrontMatter()
    if not any(re.match(r"\s*[\w\"'-]+\s*:", text) for text in texts[first + 1 : end]):
        return FrontMatter()
    lines = texts[first + 1 : end]
    try:
        root = compose("\n".join(lines), first + 2)
    except YamlFault as fault:
        is_ours = any(
            (match := re.match(r"\s*[\"']?([\w -]+?)[\"']?\s*:", text)) and _find_own(match[1]) for text in lines
        )
        return FrontMatter(
            last_line=end + 1,
            other=tuple(range(first + 1, end + 2)),
            fault=(fault.line, fault.text) if is_ours else None,
        )
    try:
        entries = _read_entries(root, first + 2)
    except YamlFault as fault:
        return FrontMatter(last_line=end + 1, fault=(fault.line, fault.text))
    used = {number for entry in entries for number in range(entry.line, _last_line(entry, entries, end + 1))}
    other = tuple(number for number in range(first + 2, end + 1) if number not in used)
    return FrontMatter(tuple(entries), end + 1, other)


def _last_line(entry: FrontMatterEntry, entries: Sequence[FrontMatterEntry], end: int) -> int:
    return min((other.line for other in entries if other.line > entry.line), default=end)


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


def _read_entries(root: Node | None, first_line: int) -> list[FrontMatterEntry]:
    """Return the sections in front matter; words such as ``python`` count where it holds the launch command."""
    if not isinstance(root, yaml.MappingNode):
        return []
    pairs = list(root.value)
    for key, value in root.value:
        if isinstance(value, yaml.MappingNode) and str(key.value).lower() in _TABLES:
            pairs += value.value
    named = [(str(key.value), key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)]
    holds_command = any(find_section(name) == "launch_command" for name, _, _ in named)
    entries: list[FrontMatterEntry] = []
    for name, key, value in named:
        section = _find_own(name) or (find_section(name) if holds_command else None)
        if section is None or section == NOTES or (section in OPTIONS and _find_own(name) is None):
            continue
        entries.append(_read_entry(section, name, line_of(key, first_line), value, first_line))
    return entries


def _read_entry(section: str, key: str, line: int, node: Node, first_line: int) -> FrontMatterEntry:
    data = to_data(node, first_line)
    if isinstance(node, yaml.ScalarNode):
        line = line_of(node, first_line) + (1 if node.style in ("|", ">") else 0)
        return FrontMatterEntry(section, line, key, str(node.value).strip("\n"), data)
    if section in OPTIONS:
        return FrontMatterEntry(section, line, key, "", data)
    words = list(_list_words(data))
    if section == "launch_command" and isinstance(data, list) and len(words) == len(data):
        if " " in words[0].strip():
            raise YamlFault(
                line, f"{key} is one command, and a list holds its words: write several with && in one text"
            )
        return FrontMatterEntry(section, line, key, shlex.join(words), data)
    if section == "purpose" and isinstance(data, list):
        return FrontMatterEntry(section, line, key, " ".join(words), data)
    if len(words) == 1 and isinstance(data, list):
        return FrontMatterEntry(section, line, key, words[0], data)
    raise YamlFault(line, f"{key} must be one text" + (" or a list of words" if section == "launch_command" else ""))


def _list_words(data: object) -> Iterator[str]:
    for value in data if isinstance(data, list) else []:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield str(value)


def fold_scalar(inline: str, lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines below ``exp_launch_command: |`` or ``>`` as YAML reads them, with their numbers.

    Raises:
        YamlFault: YAML cannot read them.
    """
    first = lines[0][0]
    node = compose("\n".join([f"x: {inline}", *(text for _, text in lines)]), first - 1)
    value = str(node.value[0][1].value).strip("\n") if node is not None else ""
    parts = value.split("\n")
    return [(min(first + index, lines[-1][0]), part) for index, part in enumerate(parts)]
