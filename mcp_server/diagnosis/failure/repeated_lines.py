"""Reads what the last lines of a log say again and again: that the run waits, or that nothing but NaN comes. Pure.

One such line proves nothing: healthy runs wait too, for a slow file system or for a rank that saves a checkpoint. Three
in a row, no work in between, and minutes by their own count, are a run that stands still.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.text.lines import Line

_LAST_LINES = 120  # of the log, that are looked at; a stall may be told by every rank
_FIRST_CHARS = 600
_AT_LEAST = 3  # lines that say the same
_LONG_S = 300.0  # a shorter wait is a slow checkpoint
_OTHER_LINES = 10  # that may stand after the last of them
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}

_WAITS = re.compile(
    r"(?i)\b(?:waiting (?:for|on|at)|no (?:new |training )?(?:step|progress|iteration|batch|heartbeat|output)s?\b"
    r"|(?:is|has|been|are) stalled|may be stuck|did not advance|has not advanced)"
    r".{0,200}?[ (]\d+(?:\.\d+)? ?(?:s|sec|secs|seconds|m|min|mins|minutes|h|hours)\b"
)
_MAY_WAIT = re.compile(r"aiting|stuck|stalled|advance|\b[Nn]o ")
_TIME = re.compile(r"[ (](\d+(?:\.\d+)?) ?([smh])(?:ec|ecs|econds|in|ins|inutes|ours)?\b")
_FOR_WHOM = re.compile(
    r"(?i)\b(?:ranks?|workers?|peers?|barrier|nodes?|process(?:es)?|threads?|tensors?|steps?|iterations?|batch(?:es)?"
    r"|progress|heartbeats?|actors?|output)\b"
)
# Waits that end by themselves, however long they take.
_WITH_REASON = re.compile(
    r"(?i)download|tokeni|preprocess|compil|\block\b|cach|resource|build|cop(?:y|ied)|upload|eval|sav(?:e|ing)"
    r"|checkpoint|early|patience|sleep|retry|queue|schedul|autotun|warm.?up|loading"
    r"|\bto (?:start|load|finish|init|come)|\b(?:total|average|avg|mean|cumulated)\b"
)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?|\b[IWEF]\d{4}\b|\+\d\d:?\d\d\b")
_NAN_COUNT = re.compile(r"number of nan iterations: *(\d{1,9})\b")
_FINITE_LOSS = re.compile(r"\bloss: *[-+]?\d")


class Repeated(NamedTuple):
    """The line to quote, and what kind of failure it tells of."""

    at: int
    kind: str
    first: int  # where the repetition begins


class _Wait(NamedTuple):
    seconds: float
    said: str  # without times


def repeated(lines: Sequence[Line]) -> Repeated | None:
    """Return what the end of the log repeats, where that means that the run makes no more progress."""
    return _nan_only(lines) or _waits(lines)


def _nan_only(lines: Sequence[Line]) -> Repeated | None:
    """Megatron counts the NaN iterations of each stretch that it reports; the loss of such a stretch is left out."""
    bad: list[int] = []
    for at in range(len(lines) - 1, max(len(lines) - _LAST_LINES, 0) - 1, -1):
        found = _NAN_COUNT.search(lines[at].text)
        if not found:
            continue
        if int(found[1]) == 0 or _FINITE_LOSS.search(lines[at].text):
            break
        bad.append(at)
    return Repeated(bad[0], "divergence", bad[-1]) if len(bad) >= _AT_LEAST else None


def _waits(lines: Sequence[Line]) -> Repeated | None:
    """Return the first of the last lines that tell how long the run has been waiting, once that is long.

    They say the same but for the time: where another figure changes, something goes on.
    """
    start = max(len(lines) - _LAST_LINES, 0)
    told = [(at, wait) for at in range(start, len(lines)) if (wait := _waited(lines[at].text)) is not None]
    if not told or told[-1][0] < len(lines) - 1 - _OTHER_LINES:
        return None
    newest = told[-1][1]
    run: list[tuple[int, float]] = []
    for at, wait in reversed(told):
        if wait.said != newest.said:
            continue
        if run and wait.seconds > run[-1][1]:
            break  # an earlier wait, which ended
        run.append((at, wait.seconds))
    grown = newest.seconds - run[-1][1]
    if len({seconds for _, seconds in run}) < _AT_LEAST or newest.seconds < _LONG_S or grown < _LONG_S / 2:
        return None
    return Repeated(run[-1][0], "stall", run[-1][0])


def _waited(text: str) -> _Wait | None:
    """Return for how many seconds ``text`` says that nothing happened; None where it is about something else."""
    text = text[:_FIRST_CHARS]
    if not _MAY_WAIT.search(text):
        return None
    found = _WAITS.search(text)
    if not found or _WITH_REASON.search(text) or not _FOR_WHOM.search(text, found.start()):
        return None
    times = list(_TIME.finditer(text, found.start()))
    if not times:
        return None
    last = times[-1]
    said = _CLOCK.sub("", text[: last.start(1)]) + text[last.end() :]
    return _Wait(float(last[1]) * _UNITS[last[2].lower()], said)
