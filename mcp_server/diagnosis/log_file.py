"""Diagnoses a log file from its end, its beginning and an earlier suspect line. A large file is never read whole."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from mcp_server.diagnosis.failure.diagnose import Diagnosis, RunFacts, diagnose
from mcp_server.diagnosis.live.divergence import DivergenceDetector
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.system.files import open_regular
from mcp_server.text.lines import number_lines

_TAIL_BYTES = 4 * 2**20  # read to diagnose a log file on its own
_HEAD_BYTES, _NEWEST_BYTES = 2**18, 2**19  # read for steps, of a large file: 10 µs per line
_LIVE_TAIL_BYTES = 2**20  # read when an attempt ends: an agent is waiting
_AROUND_BYTES = 65536  # read from an earlier suspect line on ...
_BEFORE_BYTES = 16384  # ... and above it: the header of its traceback
_NUMBERED_BYTES = 256 * 2**20  # in larger files lines are not counted: that would take as long as reading them
_BLOCK_BYTES = 2**20
_FRAME, _MOST_FRAMES = re.compile(rb'File "(/[^"\n]{1,400})", line \d'), 100


@dataclass(frozen=True)
class Examination:
    """Diagnosis of a log file: the failure, if any, and the progress."""

    failure: Diagnosis | None
    first_step_seen: bool
    step: int | None

    def facts(self) -> dict[str, Any]:
        """Return the fields of `runward diagnose --json`. ``kind`` is ``ok`` when nothing failed."""
        failure = self.failure
        return {
            "kind": failure.kind if failure else "ok",
            "line": failure.line if failure else None,
            "line_number": failure.line_number if failure else None,
            "retryable": failure.retryable if failure else None,
            "action": failure.action if failure else None,
            "advice": (failure.advice or None) if failure else None,
            "first_step_seen": self.first_step_seen,
            "step": self.step,
        }


def examine_log(
    path: Path, exit_code: int | None = None, signal: str | None = None, cwd: str | None = ""
) -> Examination:
    """Diagnose the last 4 MiB of a log file; of a large one 3/4 MiB are read for steps. Raises OSError.

    ``cwd``: where the command ran, empty: not on this host; None: the present directory, if frames are of files in it.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)
        start = max(0, size - _TAIL_BYTES)
        lines_before = _line_feeds(file, start) if size <= _NUMBERED_BYTES else 0
        tail = _read_bytes(file, start, size - start)
        head = _read_bytes(file, 0, _HEAD_BYTES) if size > _HEAD_BYTES + _NEWEST_BYTES else b""
    lines = number_lines(tail, lines_before + 1)
    progress, divergence = ProgressTracker(), DivergenceDetector()
    numbers: dict[str, int] = {}
    first = lines_before + tail.count(b"\n", 0, -_NEWEST_BYTES) + 1 if head else 0
    for number, text in [*number_lines(head), *(line for line in lines if line.number > first)]:
        for metric_line in progress.read_lines([text]):
            divergence.read_metrics(metric_line)
            if divergence.line == metric_line.line:
                numbers[metric_line.line] = number
    diverged = None if divergence.recovered else divergence.line
    since = (divergence.summary, divergence.first_line)
    cwd = _find_cwd(tail) if cwd is None else cwd
    run_facts = RunFacts(cwd=cwd, diverged=diverged, diverged_number=numbers.get(diverged or ""), diverged_since=since)
    failure = diagnose(lines, exit_code, signal, run_facts)
    if failure is not None and size > _NUMBERED_BYTES:
        failure = replace(failure, line_number=None)
    return Examination(failure, progress.first_step_seen, progress.step)


def examine_log_end(
    path: Path,
    line_feeds: int,
    suspect: tuple[int, int] | None,
    exit_code: int | None,
    signal: str | None,
    run_facts: RunFacts,
    until: int | None = None,
) -> Diagnosis | None:
    """Diagnose the end of an attempt's log, which has ``line_feeds`` lines, in well under a second. Raises OSError.

    ``suspect``: offset and number of an earlier line that could prove the failure. ``until``: what follows that offset
    was printed while the attempt was stopped.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)
        until = size if until is None else min(until, size)
        start = max(0, until - _LIVE_TAIL_BYTES)
        tail = _read_bytes(file, start, size - start)
        lines = number_lines(tail[: until - start], max(0, line_feeds - tail.count(b"\n")) + 1)
        if suspect is not None and suspect[0] < start:
            first = max(0, suspect[0] - _BEFORE_BYTES)
            around = _read_bytes(file, first, min(suspect[0] + _AROUND_BYTES, start) - first)
            first_number = suspect[1] - around.count(b"\n", 0, suspect[0] - first)
            lines = number_lines(around, first_number) + lines
    return diagnose(lines, exit_code, signal, run_facts)


def _find_cwd(tail: bytes) -> str:
    """Return the present directory, if the newest frames of a log are of files below it, else nothing."""
    here = os.getcwd()  # noqa: PTH109 - a text
    paths = {match[1].decode(errors="replace") for match in list(_FRAME.finditer(tail))[-_MOST_FRAMES:]}
    own = [path for path in paths if path.startswith(f"{here}/") and "/site-packages/" not in path]
    return here if any(map(os.path.isfile, own)) else ""


def _read_bytes(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _line_feeds(file: BinaryIO, until: int) -> int:
    file.seek(0)
    count = 0
    for at in range(0, until, _BLOCK_BYTES):
        count += file.read(min(_BLOCK_BYTES, until - at)).count(b"\n")
    return count
