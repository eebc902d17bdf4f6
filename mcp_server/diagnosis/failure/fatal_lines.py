"""Which lines of a live run could prove a failure: a cheap test, without what diagnoses them."""

from __future__ import annotations

from mcp_server.diagnosis.failure import statements, tracebacks
from mcp_server.diagnosis.failure.statements import Weight

# Every line for which may_be_fatal() is true contains one of these literals: callers search whole chunks for them.
FATAL_WORDS: tuple[str, ...] = (
    *("Error", "xception", "KeyboardInterrupt", "rror:", "CANCELLED", "Killed"),
    *("fault", "dumped", "terminate", "atchdog", "emory", "oom"),
)
_FIRST_CHARS = 1_000


def may_be_fatal(line: str) -> bool:
    """Return whether a line of a live run could prove a failure, by a cheap test."""
    if not any(word in line for word in FATAL_WORDS):
        return False
    tag, text, is_warning = tracebacks.strip_prefixes(line[:_FIRST_CHARS])
    if is_warning:
        return False
    statement = statements.parse_statement(text)
    if statement and statement.weight >= Weight.ABORT:
        return True
    if text[:1].isspace():
        return False
    evidence = tracebacks.match_exception(text, after_frames=bool(tag))
    return bool(evidence and not evidence["name"].endswith(("Warning", "Traceback", "Exit")))
