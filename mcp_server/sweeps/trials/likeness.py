"""Which trials a proposed change may repeat: the same change on another base, or words that say the same. Pure."""

import re
from collections.abc import Iterable

from mcp_server.sweeps.trials.trials import OpenTrial

_WORD = re.compile(r"[a-z_]{2,}|\d*\.?\d+(?:e-?\d+)?")
_EMPTY = re.compile(
    r"an?|and|as|at|by|for|from|in|into|instead|is|its?|more|less|not?|of|on|only|or|than|then?|this|to|try|use|using|with"
    r"|without|add|changed?|set|make|increase|decrease|higher|lower|reduce|raise|new"
)
_LEAST_WORDS, _LEAST_SHARE = 2, 0.5
_MOST = 3


def find_like(new: OpenTrial, others: Iterable[OpenTrial]) -> list[OpenTrial]:
    """Return at most three trials that are like a new one, those with the same change first, then the newest."""
    words = _read_words(new.text)
    same, alike = [], []
    for other in reversed([*others]):
        if new.patch_id and other.patch_id == new.patch_id:
            same.append(other)
        else:
            share = _share(words, _read_words(other.text))
            alike += [(share, other)] if share >= _LEAST_SHARE else []
    alike.sort(key=lambda each: -each[0])
    return [*same, *(other for _, other in alike)][:_MOST]


def _read_words(text: str) -> frozenset[str]:
    """Return what a text is about: its words without endings, and numbers as numbers."""
    found = set()
    for word in _WORD.findall(text.lower()):
        if word[0].isdigit() or word[0] == ".":
            found.add(f"{float(word):g}")
        elif not _EMPTY.fullmatch(word):
            found.add(re.sub(r"(?<=\w{3})(?:ing|ed|es|s)$", "", word))
    return frozenset(found)


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    shared = one & other
    return len(shared) / len(one | other) if len(shared) >= min(_LEAST_WORDS, len(one), len(other)) and shared else 0.0
