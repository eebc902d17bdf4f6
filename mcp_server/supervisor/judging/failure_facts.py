"""A failure as the events of a run hold it: everybody who is told of the run reads it there."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

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
    line = failure.line[:LINE_CHARS]
    if failure.is_last:
        return f"{failure.kind}: {ending.how}. Last line: {line.rstrip('.')}"
    named = f" by {ending.signal}" if failure.kind == "killed" and ending.signal else ""
    return f"{failure.kind}{named}: {line.rstrip('.')}"


def describe_failure(failure: Diagnosis | None) -> dict[str, Any] | None:
    """Return a failure as an event holds it: absent values left out."""
    if failure is None:
        return None
    facts = {**asdict(failure), "context": list(failure.context) or None, "is_last": None}
    facts["advice"] = failure.advice or None
    return {name: value for name, value in facts.items() if value is not None}
