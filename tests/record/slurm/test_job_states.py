"""Each state of Slurm means one thing, in one table."""

from __future__ import annotations

from mcp_server.diagnosis.failure.kinds import ACTIONS, KINDS
from mcp_server.record.slurm.job_states import FINAL, HELD, REASONS, WAITING


def test_a_job_waits_has_nodes_or_is_over() -> None:
    assert WAITING.isdisjoint(HELD)
    assert FINAL.keys().isdisjoint(WAITING | HELD)
    assert {"PENDING", "REQUEUE_HOLD"} <= WAITING
    assert {"RUNNING", "COMPLETING"} <= HELD
    assert (FINAL["COMPLETED"].state, FINAL["TIMEOUT"].state, FINAL["CANCELLED"].state) == (
        "lost",
        "timed_out",
        "killed",
    )


def test_a_failure_has_a_known_kind_and_action_and_an_advice() -> None:
    assert [state for state, end in FINAL.items() if end.kind] == [
        *(
            "TIMEOUT",
            "DEADLINE",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "NODE_FAIL",
            "BOOT_FAIL",
            "LAUNCH_FAILED",
            "RECONFIG_FAIL",
        )
    ]
    for end in FINAL.values():
        failure = end.describe_failure("Slurm: a line")
        assert (failure is None) == (end.state in {"lost", "killed"})
        if failure:
            assert (failure["kind"] in KINDS, failure["action"] in ACTIONS, failure["advice"] != "") == (
                True,
                True,
                True,
            )


def test_the_first_reason_that_is_named_tells_why_a_job_completes() -> None:
    def tell(reason: str) -> str:
        return next(state for part, state in REASONS if part in reason)

    assert [tell(reason) for reason in ("TimeLimit", "Preempted", "NodeDown", "None", "")] == [
        *("TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "CANCELLED")
    ]
