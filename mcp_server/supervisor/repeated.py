"""Reads what the last lines of a log say again and again: that the run waits, or that nothing but NaN comes. Pure.

One such line proves nothing: healthy runs wait too, for a slow file system or for a rank that saves a checkpoint. Three
in a row, no work in between, and minutes by their own count, are a run that stands still.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.supervisor.lines import Line

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
_TIME = re.compile(r"[ (](\d+(?:\.\d+)?) ?([smh])(?:ec|ecs|econds|in|ins|inutes|ours)?\b")
_FOR_WHOM = re.compile(
    r"(?i)\b(?:ranks?|workers?|peers?|barrier|nodes?|process(?:es)?|threads?|tensors?|steps?|iterations?|batch(?:es)?"
    r"|progress|heartbeats?|actors?|output)\b"
)
# Waits that end by themselves, however long they take.
_WITH_REASON = re.compile(
    r"(?i)download|tokeni|preprocess|compil|\block\b|cach|resource|build|cop(?:y|ied)|upload|eval|sav(?:e|ing)"
    r"|checkpoint|early|patience|sleep|retry|queue|schedul|autotun|warm.?up"
)
_NAN_COUNT = re.compile(r"number of nan iterations: *(\d{1,9})\b")
_FINITE_LOSS = re.compile(r"\bloss: *[-+]?\d")


class Repeated(NamedTuple):
    """The line to quote, and what kind of failure it tells of."""

    at: int
    kind: str
    first: int  # where the repetition begins


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
    """Return the first of the last lines that tell how long the run has been waiting, once that is long."""
    start = max(len(lines) - _LAST_LINES, 0)
    told = [(at, seconds) for at in range(start, len(lines)) if (seconds := _waited(lines[at].text)) is not None]
    run: list[tuple[int, float]] = []
    for at, seconds in reversed(told):
        if run and seconds > run[-1][1]:
            break  # an earlier wait, which ended
        run.append((at, seconds))
    if not run or run[0][0] < len(lines) - 1 - _OTHER_LINES:
        return None
    if len({seconds for _, seconds in run}) < _AT_LEAST or run[0][1] < _LONG_S:
        return None
    return Repeated(run[-1][0], "stall", run[-1][0])


def _waited(text: str) -> float | None:
    """Return for how many seconds ``text`` says that nothing happened; None where it is about something else."""
    text = text[:_FIRST_CHARS]
    if "aiting" not in text and "stuck" not in text and not re.search(r"(?i)\bno |stalled|advance", text):
        return None
    found = _WAITS.search(text)
    if not found or _WITH_REASON.search(text) or not _FOR_WHOM.search(text, found.start()):
        return None
    times = _TIME.findall(text, found.start())
    return float(times[-1][0]) * _UNITS[times[-1][1]] if times else None
