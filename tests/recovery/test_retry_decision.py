"""The policy decides what follows a failed attempt, within the ceilings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.recovery.policy import DEFAULT, MAX_ATTEMPTS, NONE, normalize_policy
from mcp_server.recovery.retry_decision import MAX_PREEMPTIONS, Decision, FailedAttempt, GiveUp, Retry, decide

PARAMS = {"num_envs": 4096, "lr": 3e-4}
STOPPED = (
    "python_error",
    "config_error",
    "import_error",
    "data_error",
    "auth_error",
    "disk_full",
    "divergence",
    "timeout",
)


def failed(kind: str, step: int | None = None, line: str = "", **facts: Any) -> FailedAttempt:
    retryable = kind not in (*STOPPED, "killed")
    return FailedAttempt(
        **{
            "number": 1,
            "retryable": retryable,
            "exit_code": 1,
            "signal": None,
            "kind": kind,
            "step": step,
            "line": line,
        }
        | facts
    )


def play(policy: object, *tries: FailedAttempt, params: Mapping[str, object] = PARAMS, **env: str) -> list[Decision]:
    """Return the decision after each of ``tries``. Each retry is applied, until one decision gives up."""
    table, history, decisions = normalize_policy(policy), list[FailedAttempt](), list[Decision]()
    for number, attempt in enumerate(tries, 1):
        line = attempt.line or f"{attempt.kind} {chr(97 + number)}"
        history.append(replace(attempt, number=number, line=line, params=dict(params)))
        decisions.append(decide(table, history, params, env))
        if isinstance(decision := decisions[-1], GiveUp):
            break
        history[-1] = replace(history[-1], applied=decision.applied)
        params, env = decision.params, env | decision.env
    return decisions


def describe(decision: Decision) -> str:
    """Return a decision in short: the wait, and the changes."""
    if isinstance(decision, GiveUp):
        return "stop"
    changed = [f"{name}={value}" for name, value in decision.params.items() if PARAMS.get(name) != value]
    changed += [f"${name}={value}" for name, value in decision.env.items()]
    changed += [f"port {name}" for name in decision.next_port] + ["gpu"] * decision.other_gpu
    return " ".join([f"{decision.wait_s:g}", *changed])


def retry(decision: Decision) -> Retry:
    assert isinstance(decision, Retry), decision
    return decision


# --- the default table


@pytest.mark.parametrize(
    ("tries", "decisions"),
    [
        ([failed("oom_gpu")] * 3, ["1", "1 num_envs=2048", "stop"]),
        ([failed("oom_host")] * 2, ["1 num_envs=2048", "stop"]),
        ([failed("cuda_error")] * 3, ["1", "1 gpu", "stop"]),
        ([failed("nccl_error")] * 3, ["1", "2", "stop"]),
        ([failed("ray_error")] * 3, ["1", "2", "stop"]),
        ([failed("stall")] * 3, ["1", "2", "stop"]),
        ([failed("segfault")] * 2, ["1", "stop"]),
        ([failed("other")] * 2, ["1", "stop"]),
        ([failed("killed")], ["stop"]),
        ([failed("killed", retryable=True)] * 4, ["1", "2", "4", "8"]),
        ([failed("network_error")] * 3, ["30", "60", "stop"]),
        ([failed("port_conflict")] * 3, ["1 port MASTER_PORT", "2 port MASTER_PORT", "stop"]),
        *(([failed(kind, retryable=True)], ["stop"]) for kind in STOPPED),
        ([failed("nccl_error"), failed("segfault"), failed("oom_gpu"), failed("cuda_error")], ["1", "1", "1", "stop"]),
        ([failed("oom_gpu"), failed("nccl_error"), failed("oom_gpu")], ["1", "1", "1 num_envs=2048"]),
    ],
    ids=lambda case: " ".join(t.kind for t in case) if isinstance(case[0], FailedAttempt) else "",
)
def test_the_default_answers_every_kind_as_its_table_says(tries: list[FailedAttempt], decisions: list[str]) -> None:
    assert [describe(decision) for decision in play("default", *tries)] == decisions


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {*STOPPED, "killed"}))
def test_the_default_obeys_a_diagnosis_that_proves_a_retry_senseless_and_a_table_of_the_users_wins(kind: str) -> None:
    senseless = failed(kind, retryable=False)
    (decision,) = play("default", senseless)
    assert isinstance(decision, GiveUp)
    assert "would meet the same" in decision.text
    assert [describe(one) for one in play({kind: "retry", "extends": "default"}, senseless)] == ["1"]


def test_the_default_has_a_rule_for_every_kind_and_stops_what_stalls_or_diverges() -> None:
    kinds = {rule["when"]["kind"] for rule in DEFAULT["rules"]}
    assert kinds == set(KINDS)
    assert (DEFAULT["stop_on"], NONE["stop_on"]) == (["stall", "divergence"], [])


def test_back_off_goes_on_where_the_ceilings_are_higher() -> None:
    policy = {"extends": "default", "max_retries": 9, "max_same_kind": 9}
    waits_s = [retry(d).wait_s for d in play(policy, *[failed("network_error")] * 7)]
    assert waits_s == [30, 60, 120, 240, 480, 960, 960]


def test_none_retries_nothing() -> None:
    for kind in KINDS:
        assert play("none", failed(kind, retryable=True)) == [
            GiveUp(f"The recovery policy has no rule for {kind}.", is_final=False)
        ]


def test_a_retry_is_described_in_a_sentence() -> None:
    as_it_was, halved = play("default", failed("oom_gpu"), failed("oom_gpu"))
    assert retry(as_it_was).text == "Trying again in 1 s as it was (retry 1, at most 3, and 2 of one kind in a row)."
    assert (
        retry(halved).text
        == "Trying again in 1 s with num_envs 4096 -> 2048 (retry 2, at most 3, and 2 of one kind in a row)."
    )


@pytest.mark.parametrize("stop_state", ["killed", "timed_out"])
def test_a_requested_stop_is_never_undone(stop_state: str) -> None:
    for policy in ("none", "default", {"any": "retry"}):
        assert isinstance(
            decide(normalize_policy(policy), [failed("oom_gpu")], PARAMS, {}, stop_state=stop_state), GiveUp
        )


def test_an_ending_that_could_not_be_judged_causes_no_retry() -> None:
    policy = normalize_policy({"any": "retry"})
    assert isinstance(decide(policy, [failed("other")], PARAMS, {}, is_undiagnosed=True), GiveUp)
    assert isinstance(decide(policy, [], PARAMS, {}), GiveUp)


# --- ceilings


def test_three_failures_of_a_kind_in_a_row_end_a_run_and_three_retries_do() -> None:
    same = play({"any": "retry"}, *[failed("nccl_error")] * 9)
    assert len(same) == 3
    assert same[-1] == GiveUp("3 failures of the same kind in a row (nccl_error), without progress, end the run.")
    mixed = play({"any": "retry"}, *[failed("nccl_error"), failed("segfault")] * 4)
    assert len(mixed) == 4
    assert mixed[-1] == GiveUp("All 3 retries without progress are used up.")


def test_ceilings_are_the_users() -> None:
    mixed = [failed("nccl_error"), failed("segfault")] * 9
    assert len(play({"any": "retry", "max_retries": 0}, *mixed)) == 1
    assert len(play({"any": "retry", "max_retries": 7}, *mixed)) == 8
    assert len(play({"any": "retry", "max_retries": 9, "max_same_kind": 5}, *[failed("other")] * 9)) == 5


def test_more_steps_than_ever_before_refill_the_budget_and_fewer_do_not() -> None:
    further = [failed("nccl_error", step) for step in (100, 90, 250, 240, 230)]
    assert [describe(d) for d in play("default", *further)] == ["1", "2", "1", "2", "stop"]


def test_a_new_checkpoint_refills_the_budget_and_the_same_one_elsewhere_does_not() -> None:
    paths = [None, "a/checkpoint-50", "b/checkpoint-50", "b/checkpoint-60/"]
    saved = [failed("nccl_error", 100 - n, checkpoint=path) for n, path in enumerate(paths)]
    assert [describe(d) for d in play("default", *saved)] == ["1", "1", "2", "1"]


def test_with_progress_the_steps_of_a_rule_start_again() -> None:
    ooms = [failed("oom_gpu", step) for step in (100, 100, 300, 300)]
    assert [describe(d) for d in play("default", *ooms)] == [
        "1",
        "1 num_envs=2048",
        "1 num_envs=2048",
        "1 num_envs=1024",
    ]


def test_preemptions_use_up_no_budget_but_have_their_own_limit() -> None:
    kill, oom = failed("killed", 50, retryable=True), failed("segfault", 50)
    mixed = play({"any": "retry", "max_retries": 2}, kill, kill, oom, kill, kill, replace(oom, kind="other"), kill, oom)
    assert [isinstance(d, Retry) for d in mixed] == [True] * 7 + [False]
    assert retry(mixed[0]).text == "Trying again in 1 s as it was (a preemption is not a failure)."
    alone = play("default", *[kill] * 99)
    assert len(alone) == MAX_PREEMPTIONS
    assert alone[-1] == GiveUp("Preempted 20 times without progress.")
    assert max(retry(d).wait_s for d in alone[:-1]) == 960


def test_no_progress_refills_the_hundred_attempts() -> None:
    decisions = play("default", *(failed("killed", step, retryable=True) for step in range(500)))
    assert len(decisions) == MAX_ATTEMPTS
    assert decisions[-1] == GiveUp("A run has at most 100 attempts.")


# --- a bug


@pytest.mark.parametrize(
    ("first", "second", "attempts"),
    [
        (failed("nccl_error", 7, "rank 3 at 0x7f00 lost"), failed("nccl_error", 7, "rank 1 at 0x7fab lost"), 2),
        (failed("nccl_error", 7, "rank 3 lost"), failed("nccl_error", 7, "rank 3 timed out"), 3),
        (failed("nccl_error", 7, "rank 3 lost"), failed("nccl_error", 6, "rank 3 lost"), 3),
        (failed("nccl_error", None, "rank 3 lost"), failed("nccl_error", None, "rank 3 lost"), 3),
        (failed("python_error", None, "KeyError: 'x'"), failed("python_error", None, "KeyError: 'x'"), 2),
        (failed("python_error", 7, "KeyError: 'x'"), failed("other", 7, "KeyError: 'x'"), 2),
        (failed("network_error", 7, "refused"), failed("network_error", 7, "refused"), 3),
        (failed("killed", 7, "Killed"), failed("killed", 7, "Killed"), 3),
        (failed("stall", 7, "step 7 loss 1"), failed("stall", 7, "step 7 loss 1"), 3),
    ],
)
def test_the_same_line_at_the_same_step_is_a_bug_unless_it_is_the_worlds(
    first: FailedAttempt, second: FailedAttempt, attempts: int
) -> None:
    decisions = play({"any": "retry"}, first, second, failed("segfault"), failed("segfault", -1, "again"))
    assert len(decisions) >= 3 if attempts == 3 else len(decisions) == 2
    if attempts == 2:
        assert decisions[-1] == GiveUp(
            f"The same line twice {'before any step' if first.step is None else 'at step 7'} is a bug that the next"
            " attempt would meet too: find it first."
        )


def test_a_stall_that_comes_back_the_same_ends_at_the_ceiling_of_its_kind() -> None:
    decisions = play({"stall": "retry"}, *[failed("stall", 7, "step 7 loss 1")] * 4)
    assert [describe(d) for d in decisions] == ["1", "2", "stop"]
    assert isinstance(decisions[-1], GiveUp)
    assert decisions[-1].text.startswith("3 failures of the same kind in a row (stall, all after step 7)")


def test_an_oom_that_comes_back_the_same_goes_on_to_the_change_that_the_table_has() -> None:
    oom = failed("oom_gpu", 12, "CUDA out of memory. Tried to allocate 2.00 GiB")
    assert [describe(d) for d in play("default", oom, oom)] == ["1", "1 num_envs=2048"]
    assert len(play({"oom_gpu": "retry", "max_same_kind": 9}, oom, oom, oom)) == 2


def test_the_same_line_after_a_change_is_no_bug() -> None:
    oom = failed("oom_gpu", 12, "CUDA out of memory. Tried to allocate 2.00 GiB")
    policy = {"oom_gpu": [{"do": "retry", "change": {"num_envs": "halve"}}, "retry"]}
    assert [describe(d) for d in play(policy, oom, oom, oom)] == ["1 num_envs=2048", "1 num_envs=2048", "stop"]


def test_a_change_that_cannot_be_made_ends_the_run_and_names_the_remedy() -> None:
    assert play({"oom_gpu": {"change": {"envs": "halve"}}}, failed("oom_gpu")) == [
        GiveUp(
            "A retry after oom_gpu needs a change that cannot be made: params has no envs. "
            "Launched with params such as num_envs or batch_size, a retry could make them smaller.",
            names_change=True,
        )
    ]
    (nothing,) = play("default", failed("oom_host"), params={})
    assert isinstance(nothing, GiveUp)


def test_a_retry_says_what_the_next_attempt_has_and_leaves_alone_what_it_was_given() -> None:
    change = {"num_envs": "halve", "$D": 1, "@port": "next_port", "@gpu": "other"}
    (decision,) = play({"other": {"change": change, "wait_s": 5}}, failed("other"), HOME="/root")
    assert decision == Retry(
        {"num_envs": 2048, "lr": 3e-4},
        {"D": "1"},
        other_gpu=True,
        wait_s=5,
        text="Trying again in 5 s with num_envs 4096 -> 2048, D=1, another MASTER_PORT, another GPU "
        "(retry 1, at most 3, and 2 of one kind in a row).",
        next_port=("MASTER_PORT",),
        applied="0.0",
        is_changed=True,
    )
    assert PARAMS == {"num_envs": 4096, "lr": 3e-4}


# --- the rules of a user


def test_what_a_policy_stops_without_a_rule_is_not_left_to_the_reader() -> None:
    finality = {
        (word, kind): decide(normalize_policy({"on_stall": word}), [failed(kind)], {}, {}).is_final  # type: ignore[union-attr]
        for word in ("stop", "report")
        for kind in ("stall", "segfault")
    }
    assert [case for case, is_final in finality.items() if is_final] == [("stop", "stall")]


@pytest.mark.parametrize(
    ("policy", "failure", "decision"),
    [
        ({"oom_gpu": "retry"}, failed("oom_gpu"), "1"),
        ({"oom_gpu": "retry"}, failed("segfault"), "stop"),
        ({"oom_gpu": "retry", "extends": "default"}, failed("network_error"), "30"),
        ({"any": "stop", "oom_gpu": "retry"}, failed("oom_gpu"), "1"),
        (
            {"oom_gpu": "stop", "rules": [{"when": {"exit_code": 3}, "do": "retry"}]},
            failed("oom_gpu", exit_code=3),
            "1",
        ),
        ({"rules": [{"when": {"exit_code": 3}, "do": "retry"}]}, failed("oom_gpu", exit_code=4), "stop"),
        ({"rules": [{"when": {"exit_code": 3}, "do": "retry"}]}, failed("oom_gpu", exit_code=None), "stop"),
        (
            {"rules": [{"when": {"pattern": r"sim\w+ crash"}, "do": "retry"}]},
            failed("other", line="a simulator crash"),
            "1",
        ),
        ({"rules": [{"when": {"pattern": "x", "kind": "stall"}, "do": "retry"}]}, failed("other", line="x"), "stop"),
        ({"rules": [{"do": "retry", "wait_s": 7}]}, failed("other"), "7"),
        ({"divergence": {"change": {"lr": "halve"}}}, failed("divergence"), "1 lr=0.00015"),
    ],
)
def test_the_first_rule_that_matches_decides(policy: object, failure: FailedAttempt, decision: str) -> None:
    assert describe(play(policy, failure)[0]) == decision


def test_steps_are_taken_one_after_the_other_and_the_last_for_as_long_as_may_be() -> None:
    steps = ["retry", {"do": "retry", "times": 2, "wait_s": 10, "backoff": 3}, {"do": "retry", "wait_s": 4}, "stop"]
    policy = {"other": steps, "max_retries": 9, "max_same_kind": 9}
    assert [describe(d) for d in play(policy, *[failed("other")] * 9)] == ["1", "10", "30", "4", "stop"]
    assert len(play(policy | {"other": steps[:3]}, *[failed("other")] * 12)) == 9
