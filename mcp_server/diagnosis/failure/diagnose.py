"""Judges the end of a run: exit status first, text second. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.failure import kinds, log_statements, root_cause, tracebacks
from mcp_server.diagnosis.failure.evidence import Evidence, collect
from mcp_server.diagnosis.failure.log_statements import Weight
from mcp_server.text.lines import Line

# Literals such that every line for which fatal() is true holds one: a caller looks for them in whole chunks.
FATAL_WORDS: tuple[str, ...] = (
    *("Error", "xception", "KeyboardInterrupt", "rror:", "CANCELLED", "Killed"),
    *("fault", "dumped", "terminate", "atchdog", "emory", "oom"),
)

_FIRST_CHARS = 1_000
_NO_OUTPUT = "(no output)"
_CONTEXT_LINES = 6
_FORE_LINES, _AFTER_LINES = 2, 2
_SIGNAL_BASE = 128
_TIMED_OUT, _USAGE = 124, 2
_SIGNAL_NAMES = dict(
    enumerate("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM".split(), 1)  # noqa: SIM905
)
_CRASHES = frozenset({"SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGTRAP", "SIGSYS"})
# Not to be tried again: a person or a limit wanted the end.
_WANTED = re.compile(
    r"(?i)TIME LIMIT|walltime|RUNLIMIT|DeadlineExceeded|TERM_OWNER|TERM_ADMIN|timed.out"
    r"|interrupt|SIGINT|signal:? 2\b|\^C|code 130\b|training early"
)
_TAKEN = re.compile(r"(?i)PREEMPT|NODE.?FAIL|REQUEUE|evicted|SIGTERM|SIGHUP|SIGUSR|signal Terminated|SIGKILL")
_NAN = re.compile(r"(?i)\bnan\b|non-?finite")
_MAY_BE_MEMORY = frozenset({"ray_error", "killed", "other"})
_OTHERS_CODE = re.compile(
    r"[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+|conda[/\\]lib)[/\\]|<frozen|<string>"
    r"|torch[/\\](?:nn|utils|distributed|autograd|_\w+)[/\\]"
)
_MEANINGLESS = re.compile(r"^(?:\W*|\[runward\].*|wandb: .*|.*\[INFO\].*sigkill_handler.*)$")


@dataclass(frozen=True)
class Hints:
    """What the supervisor knows beside the text; all optional."""

    oom_killed: bool = False  # the kernel's OOM killer counted a kill in this run's cgroup
    diverged: str | None = None  # the metric line that proves a divergence, seen over the whole run
    diverged_number: int | None = None
    stopped_for: str | None = None  # "stall" when the recovery policy itself stopped a hung attempt


@dataclass(frozen=True)
class Failure:
    """A kind, and the one line that proves it: stripped and whole, callers shorten it."""

    kind: str
    line: str
    line_number: int | None
    retryable: bool
    action: str  # one of kinds.ACTIONS
    advice: str
    context: tuple[str, ...] = ()


def diagnose(
    lines: Sequence[Line], exit_code: int | None = None, signal: str | None = None, hints: Hints = Hints()
) -> Failure | None:
    """Return what failed and the line that proves it; None where nothing failed.

    ``lines`` is a window at the end of the log, at most a few MB. An exit code of 0 leaves only a divergence. With any
    other, or a signal (`"SIGKILL"`), the run failed for sure. With neither, the text decides: evidence at its end.
    """
    if signal is None and (name := _SIGNAL_NAMES.get((exit_code or 0) - _SIGNAL_BASE)):
        signal = f"SIG{name}"
    failed = exit_code != 0 and bool(exit_code or signal or hints.stopped_for or hints.oom_killed)
    found = root_cause.root(lines, collect(lines), failed=failed)
    if exit_code == 0 and found and found.kind != "divergence":
        found = None
    if hints.diverged is not None and (found is None or found.weight <= Weight.HINT):
        return _failure("divergence", hints.diverged.strip(), hints.diverged_number, ())
    if found and hints.diverged is not None and found.kind == "python_error" and _NAN.search(found.text):
        return _of(lines, found, "divergence")
    if not failed:
        return _of(lines, found, found.kind) if found else None
    return _certain(lines, found, exit_code, signal, hints)


def _certain(
    lines: Sequence[Line], found: Evidence | None, exit_code: int | None, signal: str | None, hints: Hints
) -> Failure:
    """Judge a run that failed for sure: the best evidence, else what its exit status says."""
    own = found is not None and found.weight >= Weight.PEER and found.kind != "killed"
    if hints.oom_killed and not (found and found.weight == Weight.OWN and found.kind not in _MAY_BE_MEMORY):
        return _of(lines, found, "oom_host")
    if hints.stopped_for == "stall" and not (found and own and found.sure):
        last = root_cause.last_work(lines)
        return _failure("stall", last.text.strip(), last.number, ()) if last else _of(lines, None, "stall")
    by_signal = ("segfault" if signal in _CRASHES else "killed") if signal else None
    if found is None:
        by_code = {_TIMED_OUT: "timeout", _USAGE: "config_error" if _has_usage(lines) else None}.get(exit_code or 0)
        return _of(lines, None, by_signal or by_code or "other", signal or "")
    heard_only = found.weight <= Weight.ABORT
    return _of(lines, found, by_signal if by_signal and heard_only else found.kind, signal or "")


def _has_usage(lines: Sequence[Line]) -> bool:
    return any(line.text.lstrip().lower().startswith("usage:") for line in lines[-60:])


def _of(lines: Sequence[Line], found: Evidence | None, kind: str, signal: str = "") -> Failure:
    if found is not None:
        line = lines[found.at]
        return _failure(kind, line.text.strip() or found.text, line.number, _context(lines, found), signal)
    at = next((n for n in range(len(lines) - 1, -1, -1) if not _MEANINGLESS.match(lines[n].text[:400])), len(lines) - 1)
    if at < 0:
        return _failure(kind, _NO_OUTPUT, None, (), signal)
    context = tuple(line.text.strip() for line in lines[max(at - _FORE_LINES, 0) : at + 1])
    return _failure(kind, lines[at].text.strip() or _NO_OUTPUT, lines[at].number, context, signal)


def _failure(kind: str, line: str, number: int | None, context: tuple[str, ...], signal: str = "") -> Failure:
    retryable = kinds.KINDS[kind].retryable
    if kind == "killed":
        retryable = _is_to_be_tried_again(line, signal)
    said = f"{line} {signal}" if kind == "killed" else line
    action = kinds.action_for(kind, line, retryable=retryable)
    return Failure(kind, line, number, retryable, action, kinds.advice_for(kind, said), context)


def _is_to_be_tried_again(line: str, signal: str) -> bool:
    if _WANTED.search(line) or signal == "SIGINT":
        return False
    return bool(_TAKEN.search(line)) or "CANCELLED" not in line


def _context(lines: Sequence[Line], found: Evidence) -> tuple[str, ...]:
    """Return a handful of lines around the root line: the user's last frames, or what stands beside it."""
    root = tracebacks.shape(lines[found.at].text).text.strip()
    if not found.frames:
        near = range(max(found.at - _FORE_LINES, 0), min(found.at + _AFTER_LINES + 1, len(lines)))
        said = [root if at == found.at else tracebacks.shape(lines[at].text).text.strip() for at in near]
        return tuple(dict.fromkeys(filter(None, said)))
    own = [at for at in found.frames if not _OTHERS_CODE.search(lines[at].text)] or list(found.frames)
    shown: list[str] = []
    for at in own[-_FORE_LINES:]:
        tag, frame, _ = tracebacks.shape(lines[at].text)
        below = (tracebacks.shape(line.text) for line in lines[at + 1 : min(at + 8, found.at)])
        code = next((shape.text.rstrip() for shape in below if shape.tag == tag), "")
        shown += [frame.rstrip(), code if not tracebacks.is_frame(code) else ""]
    after = [n for n in range(found.at + 1, min(found.at + 3, len(lines))) if lines[n].text[:1].isspace()]
    shown += [root, *(lines[n].text.strip() for n in after[:1])]
    return tuple(dict.fromkeys(filter(None, shown)))[-_CONTEXT_LINES:]


def fatal(line: str) -> bool:
    """Tell whether one line of a live run could be the proof of a failure; a cheap test, for an event only."""
    if not any(word in line for word in FATAL_WORDS):
        return False
    tag, text, warned = tracebacks.shape(line[:_FIRST_CHARS])
    if warned:
        return False
    stated = log_statements.read(text)
    if stated and stated.weight >= Weight.ABORT:
        return True
    if text[:1].isspace():
        return False
    found = tracebacks.exception_name(text, after_frames=bool(tag))
    return bool(found and not found["name"].endswith(("Warning", "Traceback", "Exit")))
