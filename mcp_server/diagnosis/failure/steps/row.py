"""One row of advice: when it applies, the action, and the sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from mcp_server.text.regex import compile_lazily

ADVICE_CHARS = 160
_LEAST_CHARS = 16  # of what a sentence quotes
_THERE = "there"  # the last resort: it names no place
_NOWHERE = ""  # no line of the user's own code is known
_TYPED = compile_lazily(r"[\w.:=+-]+")  # a name, class or option that is typed as it is: no part of it is of use
_AT = compile_lazily(r", called \{at\},|,? \(?\{at\}\)?|\{at\} | there(?=,)")
_AGAIN = compile_lazily(r"(?i)\bretry\b|\bas is\b")


class Scene(NamedTuple):
    """A failure, and what is known around it.

    ``line``: the line that proves it, without prefixes. ``message``: that line and what the error says below it.
    ``library``: the package whose code raised it, nothing for the user's own. ``source``: the line of code that did.
    ``near``: the lines around it; they name the framework. ``log``: the command, and the beginning and the end of the
    log; they show settings. ``place``: the deepest frame of the user's own code, `src/train.py:88 in main`, or nothing.
    ``inside``: the library whose code raised it, where the user's does no more than start that. ``record``: "data"
    where training had worked and the error is of code that gives records of the data, "step" where it only had worked.
    """

    kind: str
    line: str
    near: str = ""
    log: str = ""
    place: str = ""
    message: str = ""
    library: str = ""
    source: str = ""
    inside: str = ""
    record: str = ""

    @property
    def at(self) -> tuple[str, ...]:
        """Where to look, as words of a sentence, the longest first."""
        if not self.place:
            return (_NOWHERE,)
        file = self.place.partition(" in ")[0]
        return f"at {self.place}", f"at {file}", f"at {file.rpartition('/')[2]}", _THERE


class NextStep(NamedTuple):
    """A proposal: one of ``kinds.ACTIONS`` and one sentence of at most ADVICE_CHARS characters."""

    retryable: bool
    action: str
    advice: str


class Row(NamedTuple):
    """A row applies where all its patterns are found, and ``unless`` is not. Empty patterns apply always.

    Patterns are compiled at their first use: most diagnoses need few of them.
    """

    kinds: frozenset[str]  # empty: any
    line: str
    near: str
    action: str
    advice: str  # {0}: the first group of ``line`` or of ``log``; {at}: the place in the user's code
    log: str = ""
    unless: str = ""  # in the log

    def propose(self, scene: Scene) -> NextStep | None:
        """Return the step for ``scene``, or None where the row does not apply."""
        if self.kinds and scene.kind not in self.kinds:
            return None
        match = compile_once(self.line).search(scene.message if self.line.startswith("(?m)") else scene.line)
        if not match or (self.near and not compile_once(self.near).search(scene.near)):
            return None
        if ("{library}" in self.advice and not scene.library) or ("{source}" in self.advice and not scene.source):
            return None
        setting = compile_once(self.log).search(scene.log) if self.log else None
        if (self.log and not setting) or (self.unless and compile_once(self.unless).search(scene.log)):
            return None
        groups = [*match.groups(""), *(setting.groups("") if setting else ())]
        parts = [part.lstrip(" ,:;'\"`").rstrip(" .,:;'\"`").replace("', '", ", ").replace(";", ",") for part in groups]
        parts = [part.replace("'", "") if "': " in part else part for part in parts]  # of a dictionary
        parts = [part.replace('"', "'") for part in parts]  # of the program's words none ends a quotation
        template = self.advice.replace("{library}", scene.library)
        if "{source}" in template:
            template, parts = (
                template.replace("{source}", f"{{{len(parts)}}}"),
                [*parts, scene.source.replace(";", ",")],
            )
        advice = fill_in(template, parts, scene.at)
        if self.action == "stop" and advice and _AGAIN.search(advice):
            return None  # the words of the message contradict the action
        return NextStep(self.action != "stop", self.action, advice) if advice else None


@cache
def compile_once(pattern: str) -> re.Pattern[str]:
    """Return a pattern of a table, compiled at its first use."""
    return re.compile(pattern)


def row(kinds: str, line: str, near: str, action: str, advice: str, *, log: str = "", unless: str = "") -> Row:
    """Return a row for these kinds, in words; one whose ``line`` begins with (?m) reads the whole message."""
    return Row(frozenset(kinds.split()), line, near, action, advice, log, unless)


def _cut_words(part: str, cut: int) -> str:
    """Return ``part`` without at least ``cut`` characters of its end, whole words where that leaves enough."""
    kept = part[:-cut]
    words = kept.rpartition(" ")[0]
    return f"{words if len(words) >= _LEAST_CHARS else kept}…"


def _is_typed(part: str) -> bool:
    return bool(_TYPED.fullmatch(part)) and len(part) <= ADVICE_CHARS


def fill_in(advice: str, parts: Sequence[str], places: Sequence[str]) -> str:
    """Return ``advice`` with its placeholders filled in, with the most exact place that fits. Empty if none does."""
    if tuple(places) == (_NOWHERE,):
        advice = _AT.sub("", advice)
    exact = [place for place in places if place != _THERE]
    return _fill_in(advice, parts, exact or places) or _fill_in(advice, parts, places)


def _fill_in(advice: str, parts: Sequence[str], places: Sequence[str]) -> str:
    """Return ``advice`` with its placeholders filled in; the longest part is cut to fit. Empty if too little is left.

    Of a path the end is kept: it names the file. ``places``: how to name the place, the longest first.
    """
    for at in places if "{at}" in advice else ("",):
        if len(text := advice.format(*parts, at=at)) <= ADVICE_CHARS:
            return text
    filled = list(parts)
    at = places[-1] if places else ""
    for _ in range(len(filled)):
        over = len(text := advice.format(*filled, at=at)) - ADVICE_CHARS
        if over <= 0:
            return text
        used = [n for n in range(len(filled)) if f"{{{n}}}" in advice and not _is_typed(filled[n])]
        longest = max(used, key=lambda n: len(filled[n]), default=None)
        if longest is None:
            return ""
        part, cut = filled[longest], -(-over // advice.count(f"{{{longest}}}")) + 1
        if len(part) - cut < _LEAST_CHARS:
            return ""
        filled[longest] = f"…{part[cut:]}" if "/" in part and " " not in part else _cut_words(part, cut)
    text = advice.format(*filled, at=at)
    return text if len(text) <= ADVICE_CHARS else ""
