"""Reads the last lines of a log that has neither an exception nor a signal: final errors and repetitions. Pure.

Programs print such errors in healthy runs too, so they count only at the end of a log, weak ones only in a failed run.
One line that waits proves nothing, three without work in between, which count minutes, show a run without progress.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.diagnosis.failure.kinds import HARD
from mcp_server.diagnosis.failure.statements import TEXT_CHARS, match_error_kind, parse_statement
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "last_lines")

_LAST_LINES = 12  # of the log are searched for a final error; a shutdown prints a few lines after it
_LAST_OF_SHELL = 3  # ... but shell errors count in fewer: a script continues after a command that failed to start
_USAGE_LINES = 400  # a generated usage is long

# Kinds whose words rarely appear in lines about anything else.
_TELLING = HARD | {"nccl_error", "divergence"}
_SURE_OF_ERROR = HARD | {"auth_error", "config_error", "import_error", "ray_error"}
_ERROR_KINDS = _SURE_OF_ERROR | {"data_error"}
_AT_SHUTDOWN = frozenset({"cuda_error", "import_error", "data_error", "ray_error"})


class FinalLine(NamedTuple):
    """A line near the end that says the run is over, and the kind of failure."""

    at: int
    kind: str
    plain: bool  # a plain error: after steps it is probably noise of a shutdown


def guess_kind(text: str) -> str | None:
    """Return the kind that ``text`` suggests in the log of a failed run, or None for ordinary output."""
    text = text[:TEXT_CHARS].strip()
    match = _RX.shell.match(text)
    if match:
        return f"{match.lastgroup}_error"
    kind = match_error_kind(text)
    if _RX.error_line.match(text) or kind in _TELLING:
        return kind or "other"
    return None


def find_final_line(lines: Sequence[Line]) -> FinalLine | None:
    """Return the first of the last lines that says the run is over. The exit status is unknown."""
    end = len(lines)
    for at in range(max(end - _LAST_LINES, 0), end):
        kind = _ending_kind(lines, at)
        if kind and not tracebacks.is_echoed_code(lines, at):
            return FinalLine(at, kind, kind in _AT_SHUTDOWN and not _RX.fatal_line.match(lines[at].text))
    return None


def _ending_kind(lines: Sequence[Line], at: int) -> str | None:
    """Return the kind of failure that a line certainly states, or None."""
    _, text, is_warning = tracebacks.strip_prefixes(lines[at].text)
    if is_warning:
        return None
    whole, text = lines[at].text[:TEXT_CHARS].strip(), text[:TEXT_CHARS].strip()
    if _RX.shell_ends.match(text):
        late = at >= len(lines) - _LAST_OF_SHELL and not _RX.shell_goes_on.match(text)
        return guess_kind(text) if late else None
    if _RX.not_final.match(whole):
        return None
    if _RX.usage_error.match(text) and has_usage(lines[max(at - _USAGE_LINES, 0) : at]):
        return "config_error"
    kind = match_error_kind(text)
    if _RX.tool.match(text) and at >= len(lines) - _LAST_OF_SHELL:
        is_last = not any(line.text.strip() for line in lines[at + 1 :])
        stated = parse_statement(text) if is_last and not kind else None
        if kind or stated:
            return stated.kind if stated else kind
    if kind and _RX.fatal_line.match(whole):
        return kind
    if kind in _ERROR_KINDS and _RX.plain_error.match(whole):
        return kind if kind in _SURE_OF_ERROR or at >= len(lines) - _LAST_OF_SHELL else None
    if whole.startswith(("FATAL", "fatal: ", "panic: ")) and at >= len(lines) - _LAST_OF_SHELL:
        return "other"
    return None


def gives_up(text: str) -> bool:
    """Return whether a program says in ``text`` that it failed, or lacks something and ends, whatever its exit code."""
    return bool(_RX.gives_up.search(text[:TEXT_CHARS]))


def has_usage(lines: Sequence[Line]) -> bool:
    """Return whether one of these lines begins a printed usage."""
    return any(line.text.lstrip().lower().startswith("usage:") for line in lines)


_NOTICE_LINES = 60


def find_notice(lines: Sequence[Line]) -> int | None:
    """Return where the first notice between dashed rules near the end begins: Open MPI prints its errors so."""
    start = max(len(lines) - _NOTICE_LINES, 0)
    rules = [at for at in range(start, len(lines)) if _RX.rule.match(lines[at].text.strip())]
    for first, second in zip(rules, rules[1:]):
        texts = [at for at in range(first + 1, second) if lines[at].text.strip()]
        if texts and re.search(
            r"(?i)\b(?:MPI|ORTE|PRTE|PMIx|mpirun|slots)\b", " ".join(lines[at].text for at in texts)
        ):
            return texts[0]
    return None


# --- repetition

_REPEAT_WINDOW = 120  # lines at the end are searched; every rank may report a stall
_REPEAT_CHARS = 600
_MIN_REPEATS = 3
_MIN_WAIT_S = 300.0  # a shorter wait is a slow checkpoint
_MAX_LINES_AFTER = 10  # other lines after the last repetition
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Repetition(NamedTuple):
    """A repetition: position of the line to quote, and the kind of failure."""

    at: int
    kind: str
    first: int  # where the repetition begins


class _Wait(NamedTuple):
    seconds: float
    text: str  # without times


def find_repetition(lines: Sequence[Line]) -> Repetition | None:
    """Return the repetition at the end of the log that shows a run without progress, or None."""
    return _find_nan_reports(lines) or _find_waits(lines)


def _find_nan_reports(lines: Sequence[Line]) -> Repetition | None:
    """Find reports of NaN iterations only: Megatron counts them per report, and then omits the loss."""
    nan_lines: list[int] = []
    for at in range(len(lines) - 1, max(len(lines) - _REPEAT_WINDOW, 0) - 1, -1):
        match = _RX.nan_count.search(lines[at].text)
        if not match:
            continue
        if int(match[1]) == 0 or _RX.finite_loss.search(lines[at].text):
            break
        nan_lines.append(at)
    return Repetition(nan_lines[0], "divergence", nan_lines[-1]) if len(nan_lines) >= _MIN_REPEATS else None


def _find_waits(lines: Sequence[Line]) -> Repetition | None:
    """Find the first of the last lines that report one long wait: these differ in their time alone."""
    start = max(len(lines) - _REPEAT_WINDOW, 0)
    waits = [(at, wait) for at in range(start, len(lines)) if (wait := _parse_wait(lines[at].text)) is not None]
    if not waits or waits[-1][0] < len(lines) - 1 - _MAX_LINES_AFTER:
        return None
    newest = waits[-1][1]
    reports: list[tuple[int, float]] = []
    for at, wait in reversed(waits):
        if wait.text != newest.text:
            continue
        if reports and wait.seconds > reports[-1][1]:
            break  # an earlier wait, which ended
        reports.append((at, wait.seconds))
    growth_s = newest.seconds - reports[-1][1]
    if (
        len({seconds for _, seconds in reports}) < _MIN_REPEATS
        or newest.seconds < _MIN_WAIT_S
        or growth_s < _MIN_WAIT_S / 2
    ):
        return None
    return Repetition(reports[-1][0], "stall", reports[-1][0])


def _parse_wait(text: str) -> _Wait | None:
    text = text[:_REPEAT_CHARS]
    if not _RX.may_wait.search(text):
        return None
    match = _RX.waits.search(text)
    if not match or _RX.ends_by_itself.search(text) or not _RX.waited_for.search(text, match.start()):
        return None
    times = list(_RX.time.finditer(text, match.start()))
    if not times:
        return None
    last = times[-1]
    text = _RX.clock.sub("", text[: last.start(1)]) + text[last.end() :]
    return _Wait(float(last[1]) * _UNITS[last[2].lower()], text)
