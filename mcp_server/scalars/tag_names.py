"""The names of metrics: which tag a word means, the same for every tool, and which of them come first. Pure.

`match_tags` is the one reader of a name: of wait_run's conditions, read_tb's tags, compare_runs' and sweeps' metrics.
"""

import fnmatch
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from mcp_server.diagnosis.progress.named_values import HEADLINES, classify_name
from mcp_server.text.rows import read_words

Best = Literal["max", "min"]

_NAMES = read_words("scalars/names")
# First match wins, on the words of a tag.
_BETTER: tuple[tuple[Best, frozenset[str]], ...] = (
    ("min", frozenset(_NAMES["min"])),
    ("max", frozenset(_NAMES["max"])),
)
_SPREAD = frozenset(_NAMES["spread"])
_SAME = {word: words[0] for sort, words in _NAMES.items() if sort.startswith("same_") for word in words}
_PHRASES = [words for words in _SAME if "_" in words]
_HELD_OUT = frozenset(_NAMES["same_held_out"]) | {"test"}
_REWARDS = frozenset({*_NAMES["same_reward"], *_NAMES["same_return"]})
_CAMEL = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|[a-z]\d")
_PLAIN = re.compile(r"[A-Za-z]+\d*")
_DIGITS = "0123456789"
_SEPARATORS = re.compile(r"[\s_.-]+")
_PARTS = re.compile(r"[\s_./:@-]+")
_GLOB = re.compile(r"[*?\[]")
_EVALUATED = re.compile(r"(?i)eval(?:uation)?[/. ]")  # before a name that a result file has without it
_RATE = ("success", "rate")
_OF_ALL = frozenset({"overall", "total", "final", "whole"})
_AXES = frozenset({"time", "iter", "frame", "epoch"})  # the last part of a tag: the same metric over another axis


def match_tags(pattern: str, tags: Iterable[str], *, held_out: bool = False) -> list[str]:
    """Return the tags that ``pattern`` refers to. ``held_out``: they are evaluations, which need not say so.

    The first of `_READINGS` under which any tag is meant decides. A name without a word of evaluations means none of
    several tags that have one: `loss` is the training's. Nor does it mean one over another axis, as `rewards/time`.
    """
    names = list(tags)
    if pattern in names:
        return [pattern]
    if is_glob(pattern):
        lower = pattern.lower()
        return [tag for tag in names if fnmatch.fnmatchcase(tag, pattern)] or [
            tag for tag in names if fnmatch.fnmatchcase(tag.lower(), lower)
        ]
    for means in _READINGS:
        if found := [tag for tag in names if means(pattern.strip(), tag)]:
            chosen = _choose(pattern, found)
            return chosen if means is not _is_in_words or len(chosen) == 1 else []
    if held_out and (bare := _EVALUATED.sub("", pattern, count=1)) != pattern:
        return match_tags(bare, names)
    return []


def is_glob(pattern: str) -> bool:
    """Return whether a name of a metric is a pattern of names."""
    return _GLOB.search(pattern) is not None


def _choose(pattern: str, found: list[str]) -> list[str]:
    """Return of several tags those that a name means, in their order."""
    kept = [tag for tag in found if not (tag.rpartition("/")[2].lower() in _AXES and _has_twin(tag, found))]
    if not is_held_out(pattern):
        kept = [tag for tag in kept if not is_held_out(tag)] or kept
    kept = [tag for tag in kept if _means_same(pattern, tag)] or kept
    word = pattern.strip().lower()
    if word in HEADLINES and len(kept) > 1:  # `train/loss` and not `aux/loss`
        kept = [tag for tag in kept if find_headline(tag) == word] or kept
    return kept


def is_held_out(name: str) -> bool:
    """Return whether a name says that it is of an evaluation, and not of the training."""
    return not _HELD_OUT.isdisjoint(_split(name))


def _has_twin(tag: str, tags: Sequence[str]) -> bool:
    metric = tag.rpartition("/")[0]
    return metric in tags or f"{metric}/step" in tags


@functools.lru_cache(maxsize=4096)
def _respell(name: str) -> str:
    return _SEPARATORS.sub("_", name.strip().lower())


@functools.lru_cache(maxsize=4096)
def _join(name: str) -> str:
    return "".join(_split(name))


@functools.lru_cache(maxsize=4096)
def _split(name: str) -> tuple[str, ...]:
    return tuple(filter(None, _PARTS.split(name.lower())))


@functools.lru_cache(maxsize=4096)
def _unify(name: str) -> tuple[str, ...]:
    """Return the words of a name in their order, each as the first of those that mean the same."""
    text = "_".join(_split(name))
    for phrase in _PHRASES:
        text = text.replace(phrase, _SAME[phrase])
    return tuple(_SAME.get(word, word) for word in text.split("_"))


def _means_same(pattern: str, tag: str) -> bool:
    return sorted(_unify(pattern)) == sorted(_unify(tag))


def _is_rate_of_all(pattern: str, tag: str) -> bool:
    """Return whether `success` or `overall success` is meant, as programs print the rate over all benchmarks."""
    words = tuple(word for word in _unify(pattern) if word not in _OF_ALL)
    return words in (_RATE, _RATE[:1]) and _unify(tag) == _RATE


def _ends_alike(pattern: str, tag: str) -> bool:
    words, named = _unify(pattern), _unify(tag)
    is_rate = words == _RATE[:1] and named[-len(_RATE) :] == _RATE  # `success` is `flat.success_rate`
    return _respell(pattern) not in HEADLINES and (is_rate or named[-len(words) :] == words)


def find_headline(name: str) -> str | None:
    """Return the word under which wait_run shows a metric, None where it is its own name."""
    known = classify_name(name)
    return None if known is None else known.headline


def _is_headline(pattern: str, tag: str) -> bool:
    return _respell(pattern) in HEADLINES and find_headline(tag) == _respell(pattern)


def _is_in_words(pattern: str, tag: str) -> bool:
    """Return whether a word that wait_run shows is one of the tag's, also in plural: `Loss/surrogate` alone is it."""
    word = _respell(pattern)
    return word in HEADLINES and word in {one.removesuffix("s") if one != word else one for one in _split(tag)}


_READINGS: tuple[Callable[[str, str], bool], ...] = (
    lambda pattern, tag: tag.lower() == pattern.lower(),
    lambda pattern, tag: tag.lower().endswith((f"/{pattern.lower()}", f".{pattern.lower()}")),
    lambda pattern, tag: _respell(tag) == _respell(pattern),
    lambda pattern, tag: _respell(tag).endswith(f"/{_respell(pattern)}"),
    lambda pattern, tag: _split(tag) == _split(pattern),  # `eval_loss` is `eval/loss`
    lambda pattern, tag: _join(pattern) in (_join(tag), _join(tag.rpartition("/")[2])),  # `FID-5k` is `sample/fid5k`
    _is_headline,  # the tag that wait_run shows under this word
    _means_same,  # `val acc` is `accuracy/valid`
    _is_rate_of_all,
    _ends_alike,
    _is_in_words,
)


# --- which come first


def best_direction(tag: str) -> Best | None:
    """Return whether a higher (``max``) or lower (``min``) value of ``tag`` is better, or None where unclear."""
    scope, _, last = tag.rpartition("/")
    words = [*_list_words(last), *_list_words(scope)] or [tag.lower()]
    if _SPREAD & set(words):
        return None
    joined = {*words, *map("".join, itertools.pairwise(words))}  # "cross_entropy"
    return next((best for best, names in _BETTER if names & joined), None)


def _list_words(text: str) -> list[str]:
    """Return the words of a name, by its separators and by its capitals, with and without digits at their ends."""
    words = [word.lower() for word in (*_CAMEL.findall(text), *_PLAIN.findall(text))]
    return [*words, *(word.rstrip(_DIGITS) for word in words)]


def rank_headline(tag: str) -> tuple[bool, int]:
    """Return the place of a metric among those of a run, the lowest first: `mAP` comes before `data_time` and `lr`."""
    best, words = best_direction(tag), set(_list_words(tag))
    if is_held_out(tag) or words & {"success", "win", "pass"}:
        return best is None, 0
    return best is None, 1 if words & _REWARDS else 2 if best == "max" else 3
