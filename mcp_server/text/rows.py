"""Reads tables of knowledge: blocks of `key: value` lines in files of the package that end in `.rows`.

An empty line ends a block, and a line that begins with `#` is a comment. A value stands from the eighth column to the
end of its line and means what it says: nothing is escaped. A key may stand several times in one block.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mcp_server.text.regex import compile_lazily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VALUE_COLUMN = 7
_PART = re.compile(r"\{([a-z_]+)\}")
_PACKAGE = Path(__file__).parents[1]

Block = list[tuple[str, str]]


def read_blocks(name: str) -> Iterator[Block]:
    """Yield the blocks of a file, such as `diagnosis/advice/memory`, in their order."""
    block: Block = []
    for line in _read_text(name).split("\n"):
        if line.startswith("#"):
            continue
        if line:
            block.append((line[: line.index(":")], line[_VALUE_COLUMN:]))
        elif block:
            yield block
            block = []
    if block:
        yield block


class Patterns:
    """The patterns of one module, each under its name."""

    def __init__(self, patterns: dict[str, re.Pattern[str]]) -> None:
        vars(self).update(patterns)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> re.Pattern[str]: ...


def read_patterns(name: str, module: str, **parts: str) -> Patterns:
    """Return the patterns of a module, of a file whose blocks are a `name` (`module.pattern`), a `line` and a `seen`.

    Several lines of a block are alternatives, and ``{pattern}`` in one is an earlier pattern of the module, or one of
    ``parts``.
    """
    patterns, texts = {}, parts
    for key, line in _read_lines(name)[module]:
        texts[key] = fill_parts(line, texts)
        patterns[key] = compile_lazily(texts[key])
    return Patterns(patterns)


def fill_parts(pattern: str, parts: Mapping[str, str]) -> str:
    """Return ``pattern`` with the parts that it names as ``{part}``; names of none stay."""
    return _PART.sub(lambda part: parts.get(part[1], part[0]), pattern)


@cache
def _read_lines(name: str) -> dict[str, list[tuple[str, str]]]:
    """Return the name and the alternatives of each pattern in a file, by the module."""
    lines: dict[str, list[tuple[str, str]]] = {}
    for block in read_blocks(name):
        owner, _, key = block[0][1].partition(".")
        lines.setdefault(owner, []).append((key, "|".join(value for kind, value in block if kind == "line")))
    return lines


@cache
def read_words(name: str) -> dict[str, tuple[str, ...]]:
    """Return the words of a file whose blocks are a `sort`, its `words` and a `seen` that has one, by their sort."""
    return {fields["sort"]: tuple(fields["words"].split()) for fields in map(dict, read_blocks(name))}


def keep_texts() -> None:
    """Read all files now, so that a package that is replaced later changes no answer."""
    for path in _PACKAGE.rglob("*.rows"):
        _read_text(path.relative_to(_PACKAGE).with_suffix("").as_posix())


@cache
def _read_text(name: str) -> str:
    loader = cast("Any", __spec__).loader  # reads a zipapp's files as well as a directory's
    return cast("bytes", loader.get_data(str(_PACKAGE / f"{name}.rows"))).decode()
