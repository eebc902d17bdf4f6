"""What a user asks of recovery becomes one normal form, or is refused with the key that is wrong."""

import json

import pytest

from mcp_server.recovery.policy import DEFAULT, NONE, normalize_policy


def test_a_word_becomes_a_rule_with_every_field() -> None:
    assert normalize_policy({"oom_gpu": "retry", "max_retries": 5}) == {
        "rules": [
            {
                "when": {"kind": "oom_gpu"},
                "steps": [{"do": "retry", "times": 100, "change": {}, "wait_s": 1.0, "backoff": 2.0}],
            }
        ],
        "max_retries": 5,
        "max_same_kind": 3,
        "stop_on": [],
    }


def test_rules_come_before_kinds_and_any_comes_last() -> None:
    policy = normalize_policy({"any": "stop", "stall": "retry", "rules": [{"when": {"exit_code": 3}, "do": "retry"}]})
    assert [rule["when"] for rule in policy["rules"]] == [{"exit_code": 3}, {"kind": "stall"}, {"kind": "any"}]


def test_nothing_is_none() -> None:
    assert normalize_policy(None) == normalize_policy("none") == normalize_policy({}) == NONE


@pytest.mark.parametrize("value", ["none", "default", {}, {"any": "retry"}, {"extends": "default", "stall": "stop"}])
def test_the_normal_form_is_its_own_and_survives_json(value: object) -> None:
    policy = normalize_policy(value)
    assert normalize_policy(json.loads(json.dumps(policy))) == policy
    assert sorted(policy) == ["max_retries", "max_same_kind", "rules", "stop_on"]


def test_a_policy_is_a_copy() -> None:
    normalize_policy("default")["rules"].clear()
    assert normalize_policy("default")["rules"] == DEFAULT["rules"]


@pytest.mark.parametrize(
    ("value", "stop_on"),
    [
        ({}, []),
        ({"any": "retry"}, []),
        ({"stall": "retry"}, ["stall"]),
        ({"stall": "retry", "on_stall": "report"}, []),
        ({"on_divergence": "stop"}, ["divergence"]),
        ({"imbalance": "retry"}, ["imbalance"]),
        ({"imbalance": "retry", "on_imbalance": "report"}, []),
        ({"extends": "default"}, ["stall", "divergence"]),
        ({"extends": "default", "on_stall": "report"}, ["divergence"]),
    ],
)
def test_a_stall_stops_an_attempt_where_the_policy_says_so(value: object, stop_on: list[str]) -> None:
    assert normalize_policy(value)["stop_on"] == stop_on


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("always", 'recovery is "none", "default" or a table by failure kind, not \'always\'.'),
        (["oom_gpu"], "or a table by failure kind"),
        ({"oom": "retry"}, "recovery has an unknown key 'oom'. Allowed: oom_gpu, oom_host,"),
        ({"stalled": "stop"}, "recovery has an unknown key 'stalled': near is 'stall'. Allowed: oom_gpu,"),
        ({"oom_gpu": "again"}, 'recovery.oom_gpu.do is "retry" or "stop", not \'again\'.'),
        ({"oom_gpu": {"retry": 1}}, "recovery.oom_gpu has an unknown key 'retry'. Allowed: do, times, change"),
        ({"oom_gpu": {}}, "not None."),
        ({"oom_gpu": []}, "recovery.oom_gpu is empty: write at least one step."),
        ({"oom_gpu": 3}, "recovery.oom_gpu is a table, not 3."),
        ({"oom_gpu": {"do": "retry", "times": 0}}, "recovery.oom_gpu.times is a whole number from 1 to 100, not 0."),
        (
            {"oom_gpu": {"do": "retry", "wait_s": "30"}},
            "recovery.oom_gpu.wait_s is a number from 0 to 86400, not '30'.",
        ),
        ({"oom_gpu": {"do": "retry", "wait_s": float("nan")}}, "not nan."),
        ({"oom_gpu": {"do": "retry", "backoff": 0.5}}, "recovery.oom_gpu.backoff is a number from 1 to 100"),
        (
            {"oom_gpu": {"change": {"@env": "halve"}}},
            "names a parameter, $VARIABLE, @batch, @port or @gpu, not '@env'.",
        ),
        ({"oom_gpu": {"change": {"@batch": "next_port"}}}, "@batch can only be 'halve', not 'next_port'."),
        ({"oom_gpu": {"change": {"$X": "halve"}}}, "$X is an environment variable, which cannot be halved."),
        ({"oom_gpu": {"change": {"num_envs": [1]}}}, "change.num_envs is a word, a number or"),
        ({"oom_gpu": {"change": {"num_envs": {"half": 1}}}}, "unknown key 'half'. Allowed: halve."),
        *(
            (
                {"oom_gpu": {"change": {"num_env": word}}},
                f"change.num_env: {word!r} is neither a value nor an operator.",
            )
            for word in ("half", "Halved", "halve it", "/2", "x0.5", "50%", "reduce", "smaller", "other", "next port")
        ),
        ({"max_retries": True}, "recovery.max_retries is a whole number from 0 to 100, not True."),
        ({"max_same_kind": 0}, "recovery.max_same_kind is a whole number from 1"),
        ({"on_stall": "kill"}, 'recovery.on_stall is "stop" or "report", not \'kill\'.'),
        ({"stop_on": ["oom_gpu"]}, "first_step_timeout, imbalance, not ['oom_gpu']."),
        ({"extends": "mine"}, 'recovery.extends is "default" or "none", not \'mine\'.'),
        ({"rules": {}}, "recovery.rules is a list, not {}."),
        (
            {"rules": [{"when": {"code": 3}, "do": "retry"}]},
            "recovery.rules[0].when has an unknown key 'code'. Allowed: kind",
        ),
        (
            {"rules": [{"when": {"kind": "oom"}, "do": "retry"}]},
            "recovery.rules[0].when.kind is unknown: 'oom'. Allowed:",
        ),
        (
            {"rules": [{"when": {"exit_code": "3"}, "do": "retry"}]},
            "recovery.rules[0].when.exit_code is of type int, not '3'.",
        ),
        (
            {"rules": [{"when": {"pattern": "("}, "do": "retry"}]},
            "recovery.rules[0].when.pattern is not a regular expression",
        ),
    ],
)
def test_a_policy_that_is_not_understood_is_refused_with_the_key_and_what_is_allowed(
    value: object, message: str
) -> None:
    with pytest.raises(ValueError, match="recovery") as refused:
        normalize_policy(value)
    assert message in str(refused.value)


def test_words_that_a_program_can_mean_are_values() -> None:
    change = {"dtype": "half", "size": "small", "mode": "reduce-overhead", "errors": "raise", "attn": "sdpa", "$N": "1"}
    assert normalize_policy({"oom_gpu": {"change": change}})["rules"][0]["steps"][0]["change"] == change
