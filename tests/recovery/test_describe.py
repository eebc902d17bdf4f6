"""A policy in one line, by value."""

from __future__ import annotations

import pytest

from mcp_server.recovery.policy import describe_policy, normalize_policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("none", "at most 3 retries, and 2 of one kind in a row"),
        (
            {"nccl_error": "retry", "any": "stop"},
            "nccl_error: retry; any: stop; at most 3 retries, and 2 of one kind in a row",
        ),
        (
            {"oom_gpu": [{"do": "retry"}, {"do": "retry", "times": 2, "change": {"num_envs": {"halve": {"min": 64}}}}]},
            "oom_gpu: retry 1 time, then retry 2 times (num_envs halve down to 64); at most 3 retries, "
            "and 2 of one kind in a row",
        ),
        (
            {"stall": {"do": "retry", "wait_s": 30}, "max_retries": 5, "max_same_kind": 2},
            "stall: retry (after 30 s); stops on stall; at most 5 retries, and 1 of one kind in a row",
        ),
    ],
)
def test_a_policy_is_told_as_it_is_applied(policy: object, text: str) -> None:
    assert describe_policy(normalize_policy(policy)) == text


def test_the_default_policy_is_told_with_kinds_of_one_rule_together() -> None:
    text = describe_policy(normalize_policy("default"))
    assert "; nccl_error ray_error stall killed: retry;" in text
    assert "oom_gpu: retry 1 time, then retry (@batch halve)" in text


def test_a_rule_that_is_never_reached_is_not_told() -> None:
    text = describe_policy(normalize_policy({"oom_gpu": "stop", "extends": "default"}))
    assert text.startswith("oom_gpu python_error config_error")
    assert "timeout: stop; oom_host: retry 1 time" in text
    assert "oom_gpu: retry" not in text
