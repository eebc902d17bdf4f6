"""Makes the advice of a failure agree with what the recovery policy has just done. Pure."""

from __future__ import annotations

from dataclasses import replace

from mcp_server.diagnosis.failure.diagnose import Failure
from mcp_server.recovery.retry_decision import Decision, Retry

_RETRIES = "The recovery policy retries it: call wait_run, and launch nothing."
_GAVE_UP = "The recovery policy gave up. {}"
_LOOK = " Find the cause with read_log and change something before {}."
_LATER_S = 30.0


def agree(failure: Failure, decision: Decision) -> Failure:
    """Return ``failure`` with what is left to do after ``decision``.

    A proposal stays where the policy leaves the failure to the reader. The advice for a failure that nobody retries,
    such as a wrong argument, stays as well: it says what to correct.
    """
    if isinstance(decision, Retry):
        return replace(failure, retryable=True, action=_action_of(decision), advice=_RETRIES, correction=None)
    if not decision.is_final:
        return failure
    if not failure.retryable:
        return replace(failure, action="stop")
    why, look = _GAVE_UP.format(decision.text), "" if decision.names_change else _LOOK
    advice, correction = why + look.format("launch_run"), why + look.format("another launch")
    return replace(failure, retryable=False, action="stop", advice=advice, correction=correction)


def _action_of(retry: Retry) -> str:
    """Return the word of ``kinds.ACTIONS`` for what the policy does."""
    if retry.other_gpu:
        return "retry_other_gpu"
    if retry.next_port:
        return "retry_other_port"
    if retry.is_changed:
        return "retry_changed"
    return "retry_later" if retry.wait_s >= _LATER_S else "retry"
