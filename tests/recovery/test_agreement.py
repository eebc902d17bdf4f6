"""Advice agrees with what the recovery policy has just done."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.failure.diagnose import Diagnosis
from mcp_server.recovery.policy import normalize_policy
from mcp_server.recovery.retry_decision import FailedAttempt, GiveUp, Retry, agree, decide
from tests.diagnosis.advice.test_next_action import CASES, diagnose_text
from tests.support.unseen_logs import read_unseen_logs

OOM = Diagnosis("oom_gpu", "CUDA out of memory", 3, True, "retry", "halve the batch size")
LARGE = FailedAttempt(1, "oom_host", "Killed", True, None, "SIGKILL", None)
WRONG = Diagnosis("config_error", "no key lr", 3, False, "stop", "Correct the key, then launch_run again.")


def retry(**facts: object) -> Retry:
    return Retry(**{"params": {}, "env": {}, "other_gpu": False, "wait_s": 1.0, "text": "", **facts})  # type: ignore[arg-type]


def test_a_policy_that_gave_up_proposes_no_retry() -> None:
    failure = agree(OOM, GiveUp("All 3 retries without progress are used up."))
    assert (failure.retryable, failure.action, failure.line) == (False, "stop", OOM.line)
    assert failure.advice == (
        "All 3 retries without progress are used up. "
        "Find the cause with read_log and change something before launch_run."
    )


def test_where_the_policy_knows_the_change_that_is_missing_the_advice_is_that_change() -> None:
    (decision,) = [decide(normalize_policy("default"), [LARGE], {"lr": 1}, {})]
    agreed = agree(OOM, decision)
    assert "Launched with params such as num_envs" in agreed.advice
    assert "read_log" not in agreed.advice + str(agreed.correction)


def test_what_to_correct_stays_in_the_advice() -> None:
    assert agree(WRONG, GiveUp("The recovery policy does not retry config_error.")) == WRONG


def test_a_failure_without_a_rule_is_left_to_the_reader() -> None:
    assert agree(OOM, GiveUp("The recovery policy has no rule for oom_gpu.", is_final=False)) == OOM


@pytest.mark.parametrize(
    ("decision", "action"),
    [
        (retry(), "retry"),
        (retry(is_changed=True), "retry_changed"),
        (retry(other_gpu=True, is_changed=True), "retry_other_gpu"),
        (retry(next_port=("MASTER_PORT",), is_changed=True), "retry_other_port"),
        (retry(wait_s=30.0), "retry_later"),
    ],
)
def test_a_retry_needs_nothing_but_waiting(decision: Retry, action: str) -> None:
    for failure in (OOM, WRONG):
        agreed = agree(failure, decision)
        assert (agreed.retryable, agreed.action) == (True, action)
        assert "wait_run" in agreed.advice


@pytest.mark.slow
def test_the_default_retries_no_labelled_failure_that_the_diagnosis_calls_hopeless() -> None:
    logs = [case.log for case in CASES] + [one.log for one in read_unseen_logs() if one.failed]
    policy, retried, stopped = normalize_policy("default"), 0, 0
    for log in logs:
        found = diagnose_text(log)
        may_help = found.retryable is not False
        attempt = FailedAttempt(1, found.kind, found.line, may_help, 1, None, None, params={"batch_size": 8})
        decision = decide(policy, [attempt], attempt.params, {})
        assert may_help or isinstance(decision, GiveUp), (found.kind, found.line)
        retried, stopped = retried + isinstance(decision, Retry), stopped + (not may_help)
    assert retried > 100
    assert stopped > 300
