"""Lines that make a regular expression slow: repeats of what it repeats, begun and never completed."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import mcp_server
from mcp_server.text.regex import compile_lazily

_PARSER = importlib.import_module("re._parser")
_ROOMS = ("text", "record", "diagnosis", "recovery", "gpus", "supervisor")  # the supervisor's, who judges lines
_CLASSES = " \tabzAZ019_-.,:;=/\\|'\"()[]{}<>#%@+*é━█\x1b\0"
_DEPTH = 6
# Characters in which each category of a class has members.
_OF_CATEGORY = {"DIGIT": "07", "NOT_DIGIT": "a ", "SPACE": " \t", "NOT_SPACE": "a:", "WORD": "a_0", "NOT_WORD": " -"}
_LAZY = type(compile_lazily(""))


def find_patterns() -> dict[str, re.Pattern[str]]:
    """Return every compiled pattern of text in the rooms that a supervisor imports, by module and name."""
    patterns: dict[str, re.Pattern[str]] = {}
    for module in pkgutil.walk_packages(mcp_server.__path__, "mcp_server."):
        if module.name.split(".")[1] in _ROOMS and not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                for place, pattern in _patterns_in(value):
                    patterns.setdefault(f"{module.name.removeprefix('mcp_server.')}.{name}{place}", pattern)
    by_text = {pattern.pattern: name for name, pattern in reversed(patterns.items())}  # one that is imported, once
    return {name: pattern for name, pattern in patterns.items() if by_text[pattern.pattern] == name}


def _patterns_in(value: Any, depth: int = 0) -> Iterator[tuple[str, re.Pattern[str]]]:
    if isinstance(value, (re.Pattern, _LAZY)):
        search: Any = value.search
        compiled = search.__self__  # also of one that is compiled when it is first used
        yield from [("", compiled)] if isinstance(compiled.pattern, str) else []
        return
    if depth >= _DEPTH or isinstance(value, (str, bytes, type)):
        return
    items: list[Any] = []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, (tuple, list, frozenset, set)):
        items = list(value)
    elif is_dataclass(value):
        items = [getattr(value, field.name) for field in fields(value)]
    elif callable(value) and getattr(value, "__self__", None) is not None:
        items = [value.__self__]
    for number, item in enumerate(items):
        for place, pattern in _patterns_in(item, depth + 1):
            yield f"[{number}]{place}", pattern


@cache
def find_pieces(text: str) -> tuple[str, ...]:
    """Return pieces of text that parts of a pattern match: literals, one of each class, and each of its repeats."""
    pieces: set[str] = set()
    _collect(_PARSER.parse(text), pieces)
    return tuple(sorted(pieces - {""}))


def _collect(tree: Any, pieces: set[str]) -> str:
    """Add the pieces of a parsed pattern; return a text that all of it matches, roughly."""
    whole = ""
    literal = ""
    for kind, content in tree:
        name = str(kind)
        if name == "LITERAL":
            literal += chr(content)
            whole += chr(content)
            continue
        pieces.add(literal)
        literal = ""
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, _, inner = content
            piece = _collect(inner, pieces)
            pieces.update((piece, piece * 3))
            whole += piece * max(1, min(low, 4))
        elif name == "SUBPATTERN":
            whole += _collect(content[-1], pieces)
        elif name == "ATOMIC_GROUP":
            whole += _collect(content, pieces)
        elif name in ("ASSERT", "ASSERT_NOT"):
            _collect(content[1], pieces)
        elif name == "BRANCH":
            branches = [_collect(branch, pieces) for branch in content[1]]
            pieces.update(branches)
            whole += branches[0]
        elif name == "IN":
            members = _members(content)
            pieces.update(members)
            whole += members[0]
        elif name in ("ANY", "NOT_LITERAL"):
            whole += "a" if content != ord("a") else "b"
    pieces.update((literal, whole))
    return whole


def _members(content: Any) -> list[str]:
    members: list[str] = []
    for kind, value in content:
        name = str(kind)
        if name == "LITERAL":
            members.append(chr(value))
        elif name == "RANGE":
            members += [chr(value[0]), chr(value[1])]
        elif name == "CATEGORY":
            members += _OF_CATEGORY.get(str(value).removeprefix("CATEGORY_"), "a")
    if content and str(content[0][0]) == "NEGATE":
        return [c for c in _CLASSES if c not in members] or ["a"]
    return members or ["a"]


def hostile_lines(pattern: re.Pattern[str], chars: int, rounds: int, chance: random.Random) -> Iterator[str]:
    """Yield lines of ``chars`` characters for ``pattern``: each piece and character repeated, and random mixtures."""
    # Output is decoded with replacements, so that no line has a surrogate.
    pieces = [piece.replace("\n", " ").encode(errors="replace").decode() for piece in find_pieces(pattern.pattern)]
    singles = [*dict.fromkeys([*pieces, *_CLASSES])]
    for piece in singles:
        yield (piece * (chars // len(piece) + 1))[:chars]
    for _ in range(rounds):
        begin, end = (chance.choice(["", chance.choice(singles)]) for _ in range(2))
        parts = [
            chance.choice(pieces if pieces and chance.random() < 0.7 else singles) for _ in range(chance.randint(1, 4))
        ]
        parts = [part * chance.choice([1, 1, 1, 2, 7]) for part in parts]
        body = "".join(parts)
        room = max(0, chars - len(begin) - len(end))
        if chance.random() < 0.3 and len(parts) > 1:  # long stretches one after the other, instead of turns
            body = "".join((part * (room // len(part) + 1))[: room // len(parts)] for part in parts)
        yield (begin + (body * (room // len(body) + 1))[:room] + end)[:chars]
