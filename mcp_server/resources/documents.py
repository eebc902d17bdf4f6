"""The texts that agents read: markdown with a few facts above it, in ``prompts/`` and ``agents/``.

A file begins with front matter, the part of YAML that one screen can explain: ``key: value`` lines between two
``---``. A value is plain text, text in double quotes as JSON writes it, or, with nothing behind the colon, a table of
lines indented by two spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Shelf = Literal["prompts", "agents"]

_FENCE = "---"
_LINE = re.compile(r"(?P<indent> {2})?(?P<key>[A-Za-z_][\w-]*):(?: (?P<value>\S.*))?")
# What means something else to YAML than the text it is.
_NOT_PLAIN = re.compile(r"^[\s\"'&*!|>%@`\[\]{}#,?-]|: |:$| #|\s$")


@dataclass(frozen=True)
class Document:
    """One file: its name without ``.md``, the facts above it, and its text."""

    name: str
    facts: dict[str, str]
    tables: dict[str, dict[str, str]]
    text: str

    @property
    def description(self) -> str:
        """What it is for, in a sentence."""
        return self.facts.get("description", "")


def folder(shelf: Shelf) -> Path:
    """Return where the files of a shelf are: in the installed package, else at the root of the repository."""
    package = Path(__file__).parents[1]
    installed = package / "_data" / shelf
    return installed if installed.is_dir() else package.parent / shelf


@cache
def documents(shelf: Shelf) -> dict[str, Document]:
    """Return the documents of a shelf by name; they are read once, and none is no error.

    Raises:
        ValueError: one has no front matter, or one that is not understood; names the file and the line.
    """
    return {path.stem: parse(path.stem, path.read_text(encoding="utf-8")) for path in files(shelf)}


def files(shelf: Shelf) -> list[Path]:
    """Return the files of a shelf, by name."""
    return sorted(folder(shelf).glob("*.md"))


def parse(name: str, source: str) -> Document:
    """Return the document that ``source`` holds.

    Raises:
        ValueError: it has no front matter, or one that is not understood.
    """
    head, found, text = source.removeprefix(f"{_FENCE}\n").partition(f"\n{_FENCE}\n")
    if not source.startswith(f"{_FENCE}\n") or not found:
        raise ValueError(f"{name}.md has no front matter between two lines of ---")
    facts: dict[str, str] = {}
    tables: dict[str, dict[str, str]] = {}
    for number, table, key, value in _entries(name, head):
        if table is not None:
            tables[table][key] = _text(name, number, value)
        elif value:
            facts[key] = _text(name, number, value)
        else:
            tables[key] = {}
    return Document(name, facts, tables, text.strip() + "\n")


def _entries(name: str, head: str) -> Iterator[tuple[int, str | None, str, str]]:
    """Yield line number, the table it stands in, key and value of every line."""
    table: str | None = None
    for number, line in enumerate(head.split("\n"), 2):
        match = _LINE.fullmatch(line)
        if match is None or (match["indent"] and table is None):
            raise ValueError(f"{name}.md, line {number}: not 'key: value': {line[:80]!r}")
        if not match["indent"]:
            table = None if match["value"] else match["key"]
            yield number, None, match["key"], match["value"] or ""
        else:
            yield number, table, match["key"], match["value"] or ""


def _text(name: str, number: int, value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError as error:
            raise ValueError(f"{name}.md, line {number}: {error}") from error
    if _NOT_PLAIN.search(value):
        raise ValueError(f"{name}.md, line {number}: needs double quotes: {value[:80]!r}")
    return value
