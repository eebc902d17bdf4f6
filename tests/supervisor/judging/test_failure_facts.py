"""What the events of a run say of its failure."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.failure.diagnose import Diagnosis, RunFacts, diagnose
from mcp_server.record.exit_status import Ending
from mcp_server.supervisor.judging.failure_facts import describe_failure, mask_failure, word_cause
from mcp_server.text.lines import Line

KEY = "sk-proj-4fQ8xkz0Lm2VtR7pWc9yBn3H"


def test_a_key_that_nobody_named_is_masked_wherever_a_failure_quotes_it() -> None:
    failure = Diagnosis(
        "auth_error",
        f"openai.AuthenticationError: Incorrect API key provided: {KEY}",
        3,
        retryable=False,
        action="stop",
        advice=f"The key {KEY} was refused.",
        context=(f"client = OpenAI(api_key='{KEY}')", "step 3/8"),
    )
    masked = mask_failure(failure)
    assert masked is not None
    assert KEY not in str(masked)
    assert masked.line.startswith("openai.AuthenticationError: Incorrect API key provided: ")
    assert (masked.kind, masked.context[1]) == ("auth_error", "step 3/8")


@pytest.mark.parametrize("context", [(), ("line 2",)])
def test_an_event_has_no_absent_values(context: tuple[str, ...]) -> None:
    failure = Diagnosis("other", "x" * 2000, None, retryable=False, action="stop", advice="Look.", context=context)
    facts = describe_failure(mask_failure(failure))
    assert facts is not None
    assert ("line_number" in facts, len(facts["line"]), facts.get("context")) == (False, 1000, list(context) or None)
    assert describe_failure(mask_failure(None)) is None


def test_a_last_line_that_proves_nothing_is_called_the_last_line_beside_the_signal() -> None:
    failure = diagnose([Line(1, "step 7 loss 0.5"), Line(2, "Mean episode length: 346.00.")], None, "SIGKILL")
    said = word_cause(failure, Ending("failed", None, "SIGKILL"))
    assert said == "killed: SIGKILL. Last line: Mean episode length: 346.00"
    error = diagnose([Line(1, "Traceback (most recent call last):"), Line(2, "KeyError: 'lr'")], 1)
    assert word_cause(error, Ending("failed", 1, None)) == "python_error: KeyError: 'lr'"
    assert (describe_failure(failure, Ending("failed", None, "SIGKILL")) or {})["line"] == said.partition(": ")[2] + "."
    assert "is_last" not in (describe_failure(failure) or {})


@pytest.mark.parametrize(
    ("exit_code", "is_own", "kind", "line"),
    [
        (3, True, "other", "exit code 3. Last line: Accuracy: 71.5%"),
        (137, True, "other", "exit code 137. Last line: Accuracy: 71.5%"),
        (137, False, "killed", "exit code 137, by which a shell reports SIGKILL. Last line: Accuracy: 71.5%"),
    ],
)
def test_a_code_without_a_reason_in_the_output_is_told_as_a_code_and_whether_a_retry_helps_as_unknown(
    exit_code: int, is_own: bool, kind: str, line: str
) -> None:
    failure = diagnose([Line(1, "Accuracy: 71.5%")], exit_code, None, RunFacts(is_own_code=is_own))
    facts = describe_failure(failure, Ending("failed", exit_code, None)) or {}
    assert (facts["kind"], facts["line"]) == (kind, line)
    assert facts.get("retryable") is (True if kind == "killed" else None)
