"""Finds the names that a wrong name may mean: ``success_once`` for ``success_rate``. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from mcp_server.text.regex import compile_lazily

_ALIKE = 0.6  # the usual bound of difflib
_WORD = compile_lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def find_near_names(name: str, names: Iterable[str], most: int = 3) -> Sequence[str]:
    """Return at most ``most`` of ``names`` that share words with ``name`` or are spelled alike, the nearest first."""
    words, scored = _words(name), []
    matcher = difflib.SequenceMatcher(None, "", name.lower())  # which looks through the second text once
    for other in dict.fromkeys(names):
        others = _words(other)
        matcher.set_seq1(other.rpartition("/")[2].lower())
        if words & others or (matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE):
            alike = matcher.ratio()
            if words & others or alike >= _ALIKE:
                scored.append((-(len(words & others) / len(words | others) + alike), other))
    return [other for _, other in sorted(scored)[:most]]


def find_near_ids(word: str, ids: Iterable[str], most: int = 3) -> Sequence[str]:
    """Return at most ``most`` of ``ids`` that ``word`` may mean, else of the names before their last four letters.

    A name that several have would be refused: their ids are returned instead.
    """
    known = list(ids)
    if near := find_near_names(word, known, most):
        return near
    named: dict[str, list[str]] = {}
    for one in known:
        named.setdefault(one.rpartition("-")[0], []).append(one)
    found = find_near_names(word, named, most)
    return [one for name in found for one in (named[name] if len(named[name]) > 1 else [name])][:most]


def _words(name: str) -> set[str]:
    return {word.lower().rstrip("s") for word in _WORD.findall(name)}
