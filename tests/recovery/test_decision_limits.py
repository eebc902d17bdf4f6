"""Under any failures and any policy, no ceiling is exceeded and every run ends."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.recovery.policy import MAX_ATTEMPTS, normalize_policy
from mcp_server.recovery.retry_decision import MAX_PREEMPTIONS, FailedAttempt, GiveUp, decide


def any_policy(chance: random.Random) -> dict[str, Any]:
    def step() -> dict[str, Any]:
        changes: list[dict[str, Any]] = [
            {},
            {"num_envs": "halve"},
            {"@batch": "halve"},
            {"@port": "next_port"},
            {"num_envs": {"halve": {"min": 64}}},
            {"num_envs": 512},
        ]
        return {
            "do": chance.choice(["retry", "retry", "retry", "stop"]),
            "times": chance.choice([1, 2, 100]),
            "change": chance.choice(changes),
            "wait_s": chance.choice([0, 1, 30]),
        }

    table: dict[str, Any] = {
        kind: [step() for _ in range(chance.randint(1, 3))]
        for kind in chance.sample([*KINDS, "any"], chance.randint(0, 9))
    }
    table["rules"] = [{"when": {"exit_code": 3}, **step()}] * chance.randint(0, 1)
    table |= {"max_retries": chance.randint(0, 8), "max_same_kind": chance.randint(1, 5)}
    return normalize_policy(chance.choice(["none", "default", table, table, table | {"extends": "default"}]))


def any_try(chance: random.Random, number: int, best: int, params: dict[str, object]) -> FailedAttempt:
    kind = chance.choice([*KINDS, "killed", "oom_gpu", "oom_gpu"])
    return FailedAttempt(
        number=number,
        kind=kind,
        line=f"{kind} {chance.choice('abcdef')} {chance.random()}",
        retryable=chance.random() < 0.7,
        exit_code=chance.choice([None, 1, 3]),
        signal=None,
        step=chance.choice([None, 0, best, best, best + chance.choice([0, 0, 0, 5])]),
        checkpoint=chance.choice([None, None, None, f"ckpt_{chance.randint(0, 4)}"]),
        params=params,
    )


def check_the_ceilings(policy: Mapping[str, Any], history: list[FailedAttempt]) -> None:
    """Nothing was retried beyond a ceiling; ``history`` is all but the newest attempt, each of which led to another."""
    assert len(history) < MAX_ATTEMPTS
    retries, alike, preemptions, best, kind = 0, 0, 0, -1, ""
    seen: set[str | None] = {None}
    for attempt in history:
        step = -1 if attempt.step is None else attempt.step
        if step > best or attempt.checkpoint not in seen:
            retries, alike, preemptions, kind = 0, 0, 0, ""
        best = max(best, step)
        seen.add(attempt.checkpoint)
        if attempt.preempted:
            preemptions += 1
        else:
            retries += 1
            alike, kind = (alike + 1 if attempt.kind == kind else 1), attempt.kind
        assert retries <= policy["max_retries"]
        assert alike < policy["max_same_kind"] or attempt.preempted
        assert preemptions < MAX_PREEMPTIONS


@pytest.mark.slow
def test_random_histories_end_within_every_ceiling() -> None:
    longest = 0
    for seed in range(3_000):  # 10,000 others ran once
        chance = random.Random(seed)
        policy, params, env = any_policy(chance), {"num_envs": chance.randint(1, 4096), "port": 29500}, {"A": "b"}
        history, best, now = list[FailedAttempt](), 0, dict[str, object](params)
        for number in range(1, MAX_ATTEMPTS + 2):
            attempt = any_try(chance, number, best, dict(now))
            best = max(best, attempt.step or 0)
            history.append(attempt)
            assert isinstance(decide(policy, history, now, env, stop_state="killed"), GiveUp)
            assert isinstance(decide(policy, history, now, env, is_undiagnosed=True), GiveUp)
            decision = decide(policy, history, now, env)
            assert decision == decide(policy, list(history), dict(now), dict(env))
            if isinstance(decision, GiveUp):
                break
            assert int(str(decision.params["num_envs"])) >= 1
            assert 0 <= decision.wait_s <= 86_400
            history[-1] = replace(attempt, applied=decision.applied)
            now = decision.params
        else:
            raise AssertionError(seed)
        check_the_ceilings(policy, history[:-1])
        longest = max(longest, len(history))
    assert longest > 20
