"""The words in which people ask about runs, and the names that runs have."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Literal, cast

from mcp_server.scalars.tag_names import best_direction, is_held_out, match_tags
from mcp_server.text.rows import read_blocks

Sign = Literal["=", "!=", ">", ">=", "<", "<=", "is", "better", "worse"]  # ``is``: on or off

_BLOCKS = [dict(block) for block in read_blocks("results/memory/question")]
_WORDS = {key: text.split() for block in _BLOCKS if len(block) == 1 for key, text in block.items()}


def _read_signs(key: str) -> Mapping[str, Sign]:
    blocks = [block for block in _BLOCKS if "sign" in block and key in block]
    return {words: cast("Sign", block["sign"]) for block in blocks for words in block[key].split(", ")}


SILENT, LINKS, CLAIMS = frozenset(_WORDS["word"]), _WORDS["link"], frozenset(_WORDS["claim"])
STATE_WORDS, ALIASES, PARTS, COUNTS, RANKS, TIME_RANKS = (
    dict(word.split("=") for word in _WORDS[key]) for key in ("state", "alias", "part", "count", "rank", "time")
)
SIGNS, OR_MORE, BEFORE_NAME = map(_read_signs, ("said", "after", "ahead"))
PHRASES = {words: block["means"] for block in _BLOCKS if "means" in block for words in block["said"].split(", ")}
_LONGEST_NAME = 3  # words
_SHORTEST_PLURAL = 3  # letters without its s


@cache
def plain_name(name: str) -> str:
    """Return a name as all spellings of it have it: ``--num-envs``, ``Num Envs`` and ``num_envs`` are one."""
    plain = "_".join(PARTS.get(part, part) for part in re.findall(r"[a-z0-9%]+", name.lower()))
    return ALIASES.get(plain, plain)


def list_meant(asked: str, known: Iterable[str]) -> list[str]:
    """Return the names that ``asked`` means: all spellings and synonyms of it; of two words, or without these, ends.

    A plural that is no name means the singular.
    """
    plain, names = plain_name(asked), {name: plain_name(name) for name in known}
    same = [name for name, one in names.items() if one == plain]
    ends = [
        name
        for name, one in names.items()
        if one.endswith(f"_{plain}") and (is_held_out(plain) or not is_held_out(one))
    ]
    meant = [*same, *ends] if not same or " " in asked else same
    is_plural = not meant and plain.endswith("s") and len(plain) > _SHORTEST_PLURAL
    return list_meant(asked[:-1], names) if is_plural else meant


@dataclass(frozen=True)
class Names:
    """The names that runs have: the last parts of settings', those of metrics; and single words that are values."""

    settings: Collection[str] = ()
    metrics: Collection[str] = ()
    values: Collection[str] = ()

    def is_setting(self, name: str) -> bool:
        """Return whether a name means settings."""
        return bool(list_meant(name, self.settings))

    def is_metric(self, name: str) -> bool:
        """Return whether a name means a metric of any run."""
        return any(match_tags(name, [tag]) for tag in self.metrics)

    def find(self, words: Sequence[str], *, last: bool = True, only: str = "") -> tuple[int, str] | None:
        """Return how many of the last, or first, words are a known name, and that name; the longest."""
        for count in range(min(_LONGEST_NAME, len(words)), 0, -1):
            part = words[-count:] if last else words[:count]
            if part[0].lower() in SILENT or part[-1].lower() in SILENT:
                continue
            for name in dict.fromkeys((text := " ".join(part), text.removesuffix("s"))):
                if (only != "metric" and self.is_setting(name)) or (only != "setting" and self.is_metric(name)):
                    return count, name
        return None


def find_metric(words: Sequence[str]) -> tuple[int, str] | None:
    """Return how many of the first words name a metric that no supervisor noted, and that name; by how it is better."""
    named = list(takewhile(lambda word: word.lower() not in SILENT, words))
    count = next((count for count in range(len(named), 0, -1) if best_direction(named[count - 1])), 0)
    return (count, " ".join(named[:count])) if count else None
