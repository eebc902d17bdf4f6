"""Proposals on their way to the conductor of an open sweep: a file each, whole at any moment, which nobody changes.

Whoever proposes writes it, and only then answers: no death loses a proposal that was answered.
"""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mcp_server.record.run_directory import load_json
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.sweeps.trials.trials import OpenTrial
from mcp_server.system.files import write_atomic

_NAME = re.compile(r"t(\d{1,6})\.json")
_WORD = re.compile(r"[a-z_]{2,}|\d*\.?\d+(?:e-?\d+)?")
_EMPTY = re.compile(
    r"an?|and|as|at|by|for|from|in|into|instead|is|its?|more|less|not?|of|on|only|or|than|then?|this|to|try|use|using|with"
    r"|without|add|changed?|set|make|increase|decrease|higher|lower|reduce|raise|new"
)
_LEAST_WORDS, _LEAST_SHARE = 2, 0.5
_MOST = 3


def list_proposals(directory: SweepDir, known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return all proposals but ``known`` ones by the names of their trials, in order. OSError: they cannot be read."""
    numbers = sorted(int(match[1]) for each in directory.requests.iterdir() if (match := _NAME.fullmatch(each.name)))
    names = [name for number in numbers if (name := f"t{number}") not in known]
    found = {name: load_json(directory.requests / f"{name}.json") for name in names}
    return {name: facts for name, facts in found.items() if facts is not None}


def add_proposal(directory: SweepDir, facts: Mapping[str, Any], diff: str = "") -> str:
    """Keep a proposal under the next free number, and return the name of its trial. OSError: it was not kept."""
    number = max((int(name[1:]) for name in list_proposals(directory)), default=0) + 1
    new = directory.requests / f".new-{secrets.token_hex(4)}"
    write_atomic(new, json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
    try:
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(new, directory.requests / f"t{number}.json")  # in one step, where nobody was faster
                break
            number += 1
    finally:
        new.unlink()
    if diff:
        with contextlib.suppress(OSError):  # the commit has it
            directory.trials.mkdir(mode=0o700, exist_ok=True)
            write_atomic(directory.trials / f"t{number}.diff", diff.encode(errors="replace"), durable=False)
    return f"t{number}"


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
