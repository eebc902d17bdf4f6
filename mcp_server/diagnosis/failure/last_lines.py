"""Reads what a program, a shell or a server said last, where neither an exception nor a signal is told. Pure.

Such lines are also printed by runs that go on; so they count at the end of a log only, and the weaker of them only
where an exit status says that the run failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.diagnosis.failure.error_patterns import TEXT_CHARS, signature
from mcp_server.text.lines import Line

_LAST_LINES = 12  # of the log, in which a last word is looked for; a shutdown says a few more lines
_LAST_OF_SHELL = 3  # ... but a script goes on after a command that it could not run
_USAGE_LINES = 400  # a generated usage is long

# What a shell says of a command that it could not run.
_SHELL = re.compile(
    r"(?:\S+: )?(?:line \d+: )?(?P<config>\S.{0,80}: command not found|.*: cannot execute|.*executable file not found"
    r"|.{0,80}: not found$)"
    r"|(?P<data>.*can't open file '|.*: No such file or directory|.*: Permission denied|.*cannot (?:access|stat) ')"
    r"|(?P<import>\S*python\S*: (?:No module named |Error while finding module)"
    r"|ERROR: (?:Could not find a version|No matching distribution))"
)
# ... and which of it ends a job that did nothing else.
_SHELL_ENDS = re.compile(
    r".{0,200}(?:command not found$|can't open file '|python\S*: No module named |executable file not found"
    r"|No matching distribution|: cannot execute|: (?:\d+: )?\S+: not found$)"
    r"|(?:\S+: )?(?:line \d+: )?\S*(?:python[\d.]*|torchrun|accelerate|deepspeed|\.sh|\.py): "
    r"(?:No such file or directory|Permission denied)$"
)
_SHELL_GOES_ON = re.compile(
    r".*\b(?:module|conda|mamba|source|activate|ml|nvidia-smi|deactivate|git|tput|bc|lspci): (?:command )?not found"
)
# Kinds whose words are hardly ever in a line that tells of something else.
_TELLING = frozenset({"oom_gpu", "oom_host", "disk_full", "cuda_error", "nccl_error", "port_conflict", "divergence"})
_ERROR_LINE = re.compile(
    r"\W{0,3}(?:ERROR|Error|FATAL|Fatal|CRITICAL|error|fatal|panic)\b[\]:! ]|.{0,60}\b(?:ERROR|FATAL|CRITICAL)\b"
)
# Levels beyond which a program does not go on, and words that say so.
_FATAL_LINE = re.compile(
    r"\W{0,3}(?:FATAL|Fatal|CRITICAL|fatal|panic)\b[\]:! ](?! ?\d)"
    r"|.{0,60}(?:\b(?:FATAL|CRITICAL)\b|\[(?:Fatal|fatal|critical)\])(?![\w'\"=.])|F\d{4} "
    r"|ERROR: Could not install packages"
    r"|(?i:.{0,120}\b(?:abort(?:ing|ed)|giving up|gave up|exiting|cannot continue|unrecoverable|terminating)\b)"
)
_PLAIN_ERROR = re.compile(r"(?:ERROR|Error|error)\b ?[:\]]|\[(?:ERROR|error)\]|.{0,60}\bERROR\b")
_SURE_OF_ERROR = _TELLING - {"nccl_error", "divergence"} | {"auth_error", "config_error", "import_error", "ray_error"}
_ERROR_KINDS = _SURE_OF_ERROR | {"data_error"}
_AT_SHUTDOWN = frozenset({"cuda_error", "import_error", "data_error", "ray_error"})
_TOOL = re.compile(
    r"(?:wget|curl|docker|ssh|scp|rsync|sbatch|aws|gsutil|kubectl): "
    r"|Error response from daemon: |Permission denied \(publickey"
)
_USAGE_ERROR = re.compile(r"(?:\S{1,80}: )?error: |Error: |\W{0,3}Error\W{1,5}")
_NO_LAST_WORD = re.compile(
    r"(?i).{0,200}(?:retry|will (?:be|continue|use|try)|continu|fall(?:ing)? ?back|skipp|ignor|\bwandb: (?!ERROR api)"
    r"|errors?[:=] ?\d|warning|no errors?|register|upload|tensorboard|not a git|scratch|instead|default)"
)


class LastWord(NamedTuple):
    """What a line near the end says, and what kind of failure that is."""

    at: int
    kind: str
    text: str
    tag: str
    plain: bool  # only called an error: after steps, more likely the noise of a shutdown


def hint(text: str) -> str | None:
    """Return the kind that ``text`` may be about, where the exit status says that the run failed."""
    text = text[:TEXT_CHARS].strip()
    found = _SHELL.match(text)
    if found:
        return f"{found.lastgroup}_error"
    kind = signature(text)
    if _ERROR_LINE.match(text) or kind in _TELLING:
        return kind or "other"
    return None


def last_word(lines: Sequence[Line]) -> LastWord | None:
    """Return the first of the last lines that says that the run is over, while nobody knows its exit status."""
    end = len(lines)
    for at in range(max(end - _LAST_LINES, 0), end):
        tag, text, warned = tracebacks.shape(lines[at].text)
        kind = None if warned else _ends(lines, at, lines[at].text[:TEXT_CHARS].strip(), text[:TEXT_CHARS].strip())
        if kind:
            return LastWord(at, kind, text, tag, kind in _AT_SHUTDOWN and not _FATAL_LINE.match(lines[at].text))
    return None


def _ends(lines: Sequence[Line], at: int, whole: str, text: str) -> str | None:
    """Return the kind of failure of which ``text`` tells for sure; ``whole`` has its prefixes, so its level."""
    if _SHELL_ENDS.match(text):
        late = at >= len(lines) - _LAST_OF_SHELL and not _SHELL_GOES_ON.match(text)
        return hint(text) if late else None
    if _NO_LAST_WORD.match(whole):
        return None
    if _USAGE_ERROR.match(text) and _usage_above(lines, at):
        return "config_error"
    kind = signature(text)
    if kind and _TOOL.match(text) and at >= len(lines) - _LAST_OF_SHELL:
        return kind
    if kind and _FATAL_LINE.match(whole):
        return kind
    if kind in _ERROR_KINDS and _PLAIN_ERROR.match(whole):
        return kind if kind in _SURE_OF_ERROR or at >= len(lines) - _LAST_OF_SHELL else None
    if whole.startswith(("FATAL", "fatal: ", "panic: ")) and at >= len(lines) - _LAST_OF_SHELL:
        return "other"
    return None


def _usage_above(lines: Sequence[Line], at: int) -> bool:
    return any(line.text.lstrip().lower().startswith("usage:") for line in lines[max(at - _USAGE_LINES, 0) : at])
