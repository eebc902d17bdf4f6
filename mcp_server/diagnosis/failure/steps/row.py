"""One row of advice: when it applies, the action, and the sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

ADVICE_CHARS = 160
_LEAST_CHARS = 16  # of what a sentence quotes


class Scene(NamedTuple):
    """A failure, and what is known around it.

    ``line``: the line that proves it, without prefixes. ``message``: that line and what the error says below it.
    ``near``: the lines around it; they name the framework. ``log``: the command, and the beginning and the end of the
    log; they show settings. ``place``: the deepest frame of the user's own code, `src/train.py:88 in main`, or nothing.
    """

    kind: str
    line: str
    near: str = ""
    log: str = ""
    place: str = ""
    message: str = ""

    @property
    def at(self) -> tuple[str, ...]:
        """Where to look, as words of a sentence, the longest first."""
        if not self.place:
            return ("in the code",)
        file = self.place.partition(" in ")[0]
        return f"at {self.place}", f"at {file}", f"at {file.rpartition('/')[2]}", "there"


class NextStep(NamedTuple):
    """A proposal: one of ``kinds.ACTIONS`` and one sentence of at most ADVICE_CHARS characters."""

    retryable: bool
    action: str
    advice: str


class Row(NamedTuple):
    """A row applies where all its patterns are found, and ``unless`` is not."""

    kinds: frozenset[str]  # empty: any
    line: re.Pattern[str]
    near: re.Pattern[str] | None
    action: str
    advice: str  # {0}: the first group of ``line`` or of ``log``; {at}: the place in the user's code
    log: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None  # in the log

    def propose(self, scene: Scene) -> NextStep | None:
        """Return the step for ``scene``, or None where the row does not apply."""
        if self.kinds and scene.kind not in self.kinds:
            return None
        match = self.line.search(scene.message if self.reads_message else scene.line)
        if not match or (self.near and not self.near.search(scene.near)):
            return None
        setting = self.log.search(scene.log) if self.log else None
        if (self.log and not setting) or (self.unless and self.unless.search(scene.log)):
            return None
        groups = [*match.groups(""), *(setting.groups("") if setting else ())]
        advice = fill_in(self.advice, [part.strip(" .,:;'\"`") for part in groups], scene.at)
        return NextStep(self.action != "stop", self.action, advice) if advice else None

    @property
    def reads_message(self) -> bool:
        """Whether ``line`` may be found in the lines below the first one of the message, too."""
        return "\n" in self.line.pattern or self.line.pattern.startswith("(?m)")


def row(kinds: str, line: str, near: str, action: str, advice: str, *, log: str = "", unless: str = "") -> Row:
    """Return a row, of patterns as text; an empty one applies always."""
    near_pattern, log_pattern, unless_pattern = (re.compile(text) if text else None for text in (near, log, unless))
    names = frozenset(kinds.split())
    return Row(names, re.compile(line), near_pattern, action, advice, log_pattern, unless_pattern)


def fill_in(advice: str, parts: Sequence[str], places: Sequence[str]) -> str:
    """Return ``advice`` with its placeholders filled in; the longest part is cut to fit. Empty if too little is left.

    Of a path the end is kept: it names the file. ``places``: how to name the place, the longest first.
    """
    for at in places if "{at}" in advice else ("",):
        if len(text := advice.format(*parts, at=at)) <= ADVICE_CHARS:
            return text
    filled, at = list(parts), places[-1]
    for _ in range(len(filled)):
        over = len(text := advice.format(*filled, at=at)) - ADVICE_CHARS
        if over <= 0:
            return text
        used = [n for n in range(len(filled)) if f"{{{n}}}" in advice]
        longest = max(used, key=lambda n: len(filled[n]), default=None)
        if longest is None:
            return ""
        part, cut = filled[longest], -(-over // advice.count(f"{{{longest}}}")) + 1
        if len(part) - cut < _LEAST_CHARS:
            return ""
        filled[longest] = f"…{part[cut:]}" if "/" in part else f"{part[:-cut]}…"
    text = advice.format(*filled, at=at)
    return text if len(text) <= ADVICE_CHARS else ""
