"""A failure as the events of a run hold it: everybody who is told of the run reads it there."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mcp_server.system.own_process import name_shell_signal
from mcp_server.text.secret_patterns import mask_secrets

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis
    from mcp_server.record.exit_status import Ending

_LINE_CHARS = 1000
LINE_CHARS = 200  # of a line in the sentence of an event


def mask_failure(failure: Diagnosis | None) -> Diagnosis | None:
    """Return a failure without what looks like a key. The secrets that the run names are masked in its log already."""
    if failure is None:
        return None
    return replace(
        failure,
        line=mask_line(failure.line),
        context=tuple(map(mask_line, failure.context)),
        advice=mask_line(failure.advice),
        correction=mask_line(failure.correction) if failure.correction else None,
    )


def mask_line(line: str) -> str:
    """Return the beginning of a line, 1,000 characters, without what looks like a key."""
    return mask_secrets(line[:_LINE_CHARS])


def word_cause(failure: Diagnosis | None, ending: Ending) -> str:
    """Return why an attempt failed, without a full stop. A last line that proves nothing is called that."""
    if failure is None:
        return ending.text().rstrip(".")
    named = f" by {ending.signal}" if failure.kind == "killed" and ending.signal and not failure.is_last else ""
    return f"{failure.kind}{named}: {_quote(replace(failure, line=failure.line[:LINE_CHARS]), ending).rstrip('.')}"


def _quote(failure: Diagnosis, ending: Ending | None) -> str:
    """Return the line that proves a failure; where none does, how the attempt ended, and its last line as that."""
    if not failure.is_last or ending is None:
        return failure.line
    by = name_shell_signal(ending.exit_code) if failure.kind != "other" else None
    how = ending.how + (f", by which a shell reports {by}" if by else "")
    how = "" if ending.stop_request else f"{how}. "  # the signal of a stop is no cause
    return f"{how}{'' if failure.line_number is None else 'Last line: '}{failure.line}"


def describe_failure(failure: Diagnosis | None, ending: Ending | None = None) -> dict[str, Any] | None:
    """Return a failure as an event holds it: absent values left out. ``ending``: of its attempt, if that has ended."""
    if failure is None:
        return None
    facts = {**asdict(failure), "context": list(failure.context) or None, "is_last": None}
    facts["line"] = _quote(failure, ending)
    facts["advice"] = failure.advice or None
    return {name: value for name, value in facts.items() if value is not None}
