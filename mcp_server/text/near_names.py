"""Finds the names that a wrong name may mean: ``success_once`` for ``success_rate``. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from mcp_server.text.regex import compile_lazily

_WORD = compile_lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def find_near_names(name: str, names: Iterable[str], most: int = 3) -> Sequence[str]:
    """Return at most ``most`` of ``names`` that share words with ``name`` or are spelled alike, the nearest first."""
    words = _words(name)
    scored = []
    for other in dict.fromkeys(names):
        others = _words(other)
        shared = len(words & others) / max(1, len(words | others))
        alike = difflib.SequenceMatcher(None, name.lower(), other.rpartition("/")[2].lower()).ratio()
        if words & others or alike >= 0.6:  # noqa: PLR2004 - the usual bound of difflib
            scored.append((-(shared + alike), other))
    return [other for _, other in sorted(scored)[:most]]


def _words(name: str) -> set[str]:
    return {word.lower().rstrip("s") for word in _WORD.findall(name)}
