"""The parameters of an attempt are those it was called with, and each change says from what and when."""

from typing import Any

from mcp_server.record.attempt_params import describe_earlier_ends, find_attempt_params
from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from tests.record.test_state import event

SPEC = RunSpec(run_id="cfm-7kqz", params={"num_envs": 8192, "lr": 1e-3}, env={"PORT": "29500"})


def started(seq: int, attempt: int) -> RecordEvent:
    return event(seq, "started", attempt=attempt)


def retrying(seq: int, attempt: int, **facts: Any) -> RecordEvent:
    return event(seq, "retrying", attempt=attempt, **facts)


HALVED = retrying(2, 1, params={"num_envs": 4096, "lr": 1e-3})


def test_without_a_retry_they_are_those_of_the_launch() -> None:
    found = find_attempt_params(SPEC, [started(1, 1)])
    assert (found.params, found.environment, found.changed) == (SPEC.params, {}, {})


def test_a_halved_value_says_from_what_and_after_which_attempt() -> None:
    found = find_attempt_params(SPEC, [started(1, 1), HALVED, started(3, 2)])
    assert found.params == {"num_envs": 4096, "lr": 1e-3}
    assert list(found.changed.values()) == ["num_envs 8192 → 4096 after attempt 1"]


def test_names_of_the_run_and_the_attempt_are_filled_in_as_for_the_command() -> None:
    spec = RunSpec(run_id="cfm-7kqz", params={"run_name": "{run_id}-{attempt}", "lr": 1e-3, "tag": "{cell}"})
    retried = retrying(2, 1, params=dict(spec.params))
    assert find_attempt_params(spec, []).params["run_name"] == "cfm-7kqz-1"
    found = find_attempt_params(spec, [started(1, 1), retried, started(3, 2)])
    assert found.params == {"run_name": "cfm-7kqz-2", "lr": 1e-3, "tag": "{cell}"}
    assert found.changed == {}


def test_a_retry_that_has_not_started_changed_nothing() -> None:
    found = find_attempt_params(SPEC, [started(1, 1), HALVED])
    assert (found.params["num_envs"], found.changed) == (8192, {})


def test_several_changes_are_one_phrase_each() -> None:
    more = retrying(4, 2, params={"num_envs": 2048, "lr": 1e-3, "seed": 1}, environment={"PORT": "29501"})
    found = find_attempt_params(SPEC, [started(1, 1), HALVED, started(3, 2), more, started(5, 3)])
    assert found.environment == {"PORT": "29501"}
    assert list(found.changed.values()) == [
        "num_envs 8192 → 4096 after attempt 1 → 2048 after attempt 2",
        "seed 1 after attempt 2",
        "PORT 29500 → 29501 after attempt 2",
    ]


def test_a_retry_that_changes_nothing_keeps_earlier_changes() -> None:
    again = retrying(4, 2, params=dict(HALVED["params"]))
    found = find_attempt_params(SPEC, [started(1, 1), HALVED, started(3, 2), again, started(5, 3)])
    assert list(found.changed.values()) == ["num_envs 8192 → 4096 after attempt 1"]


def test_damaged_events_change_nothing() -> None:
    found = find_attempt_params(SPEC, [started(1, 1), retrying(2, 1, params=[1], environment="x"), started(3, 2)])
    assert (found.params, found.changed) == (SPEC.params, {})


def test_each_end_before_the_newest_attempt_is_told_with_its_number_and_cause() -> None:
    kinds = ["oom_gpu", "oom_gpu", "stall"]
    events = [retrying(2 * n, n, failure={"kind": kind}) for n, kind in enumerate(kinds, 1)]
    assert describe_earlier_ends([started(1, 1)]) is None
    assert describe_earlier_ends([*events, started(9, 4)]) == "attempt 1-2 oom_gpu, 3 stall"
    assert describe_earlier_ends(events[2:]) == "attempt 3 stall"


def test_an_end_without_a_known_kind_says_its_signal_or_its_exit_code() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"failure": {"kind": "killed"}, "signal": "SIGKILL"}, "killed by SIGKILL"),
        ({"signal": "SIGTERM"}, "SIGTERM"),
        ({"exit_code": 7}, "exit code 7"),
        ({"failure": {"kind": "other"}, "exit_code": 42}, "exit code 42"),
        ({"failure": {"kind": "other"}}, "other"),
        ({}, "unknown"),
    ]
    for facts, words in cases:
        assert describe_earlier_ends([retrying(2, 1, **facts)]) == f"attempt 1 {words}"


def test_many_different_ends_are_counted() -> None:
    ends = [retrying(n, n, failure={"kind": "stall" if n % 2 else "oom_gpu"}) for n in range(1, 8)]
    assert describe_earlier_ends(ends) == "7 attempts: 4 stall, 3 oom_gpu"
