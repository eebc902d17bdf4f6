"""Changes of parameters are applied where they are possible, and refused where they are not."""

import pytest

from mcp_server.recovery.changes import (
    ChangeImpossible,
    apply_changes,
    describe_halving,
    find_impossible_changes,
    halve_value,
    is_near,
    move_ray,
)
from mcp_server.recovery.policy import normalize_policy


@pytest.mark.parametrize(
    ("value", "least", "expected"),
    [
        (4096, None, 2048),
        (5, None, 2),
        (2, None, 1),
        (1, None, None),
        (0, None, None),
        (-8, None, None),
        (100, 64, 64),
        (64, 64, None),
        (4096.0, None, 2048),
        (3e-4, None, 1.5e-4),
        (3e-4, 2e-4, 2e-4),
        ("4096", None, "2048"),
        ("3e-4", None, "0.00015"),
        ("auto", None, None),
        ("inf", None, None),
        (True, None, None),
        (None, None, None),
    ],
)
def test_half_of_a_value(value: object, least: float | None, expected: object) -> None:
    assert halve_value(value, least) == expected


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"batch_size": 64, "num_envs": 8}, "num_envs"),
        ({"batch_size": 64, "per_device_train_batch_size": 8}, "per_device_train_batch_size"),
        ({"data.train_batch_size": 64, "actor.ppo_micro_batch_size_per_gpu": 8}, "actor.ppo_micro_batch_size_per_gpu"),
        ({"env.num_envs": 64, "agent.batch": 8}, "env.num_envs"),
        ({"--micro-batch-size": 8}, "--micro-batch-size"),
        ({"num_envs": 1, "batch_size": 8}, "batch_size"),
        ({"per_device_eval_batch_size": 8, "minibatch": 4}, "minibatch"),
        ({"envs": 8, "seed": 2}, "envs"),
        ({"--n-envs": 8, "batch": 2}, "--n-envs"),
        ({"numEnvs": 8}, "numEnvs"),
        ({"env_num": 8}, "env_num"),
        ({"num_environments": 8}, "num_environments"),
        ({"trainer.envs_per_worker": 8}, "trainer.envs_per_worker"),
        ({"env": 8, "n_envelopes": 3, "batchSize": 4}, "batchSize"),
        ({"obs": 8, "bs": 4}, "bs"),
    ],
)
def test_the_parameter_of_the_batch_size_is_found(params: dict[str, object], changed: str) -> None:
    after = apply_changes({"@batch": "halve"}, params, {}, "").params
    assert [name for name in params if after[name] != params[name]] == [changed]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({}, "no name in params says batch size or number of environments. Launched with params such as"),
        ({"eval_batch_size": 8, "lr": 0.1}, "no name in params says batch size"),
        ({"batch_norm": True, "batch_size": 1}, "batch_size is 1, and cannot be halved."),
    ],
)
def test_without_a_batch_size_that_can_be_halved_nothing_changes(params: dict[str, object], why: str) -> None:
    with pytest.raises(ChangeImpossible) as refused:
        apply_changes({"@batch": "halve"}, params, {}, "")
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("params", "env", "line", "name"),
    [
        ({}, {}, "Address already in use", "MASTER_PORT"),
        ({"master_port": 29500}, {}, "Address already in use", "master_port"),
        ({"ray.port": 6379, "port": 29500}, {}, "bind 0.0.0.0:29500: in use", "port"),
        ({"port": 8000}, {"RAY_PORT": "6379"}, "port 6379 is taken", "RAY_PORT"),
        ({"report_to": "wandb", "export": "x"}, {}, "in use", "MASTER_PORT"),
    ],
)
def test_the_port_that_is_taken_is_found(params: dict[str, object], env: dict[str, str], line: str, name: str) -> None:
    changes = apply_changes({"@port": "next_port"}, params, env, line)
    assert (changes.next_port, changes.params, changes.env) == ([name], params, {})


PERSISTED = "AssertionError: Session name session_2026-11-22_10-00-00_000001_11 does not match persisted value b'x'."


def test_a_port_of_ray_moves_with_its_directory_and_its_address() -> None:
    env = {"RAY_PORT": "6379", "RAY_TMPDIR": "/tmp/ray-7kqz", "RAY_ADDRESS": "127.0.0.1:6379", "MASTER_PORT": "10"}
    changes = apply_changes({"@port": "next_port"}, {"port": 2026}, env, PERSISTED)
    assert (changes.next_port, changes.env) == (["RAY_PORT"], {"RAY_TMPDIR": "/tmp/ray-7kqz-2"})
    assert changes.descriptions == ["another RAY_PORT", "RAY_TMPDIR=/tmp/ray-7kqz-2"]
    again = apply_changes({"@port": "next_port"}, {}, {**env, **changes.env}, PERSISTED)
    assert again.env == {"RAY_TMPDIR": "/tmp/ray-7kqz-3"}
    assert apply_changes({"@port": "next_port"}, {"ray.port": 6379}, {}, PERSISTED).next_port == ["ray.port"]
    assert move_ray({**env, "RAY_NAMESPACE": "rlinf_6379"}, 6379, 6380) == {
        "RAY_ADDRESS": "127.0.0.1:6380",
        "RAY_NAMESPACE": "rlinf_6380",
    }
    assert move_ray(env, 10, 11) == move_ray(env, None, 11) == {}


def test_a_directory_of_ray_keeps_its_length_below_what_a_socket_allows() -> None:
    longest = "/data/mz/scratch/ray/" + "x" * 15 + "-cfm-7k"
    (moved,) = apply_changes(
        {"@port": "next_port"}, {}, {"RAY_PORT": "1", "RAY_TMPDIR": longest}, PERSISTED
    ).env.values()
    assert (len(longest), len(moved), moved[-9:]) == (43, 43, "-cfm-7k-2")


def test_where_nothing_holds_rays_port_no_retry_pretends_to_move_it() -> None:
    with pytest.raises(ChangeImpossible, match=r"no parameter or variable holds Ray's port\. .*--port=\$RAY_PORT"):
        apply_changes({"@port": "next_port"}, {"lr": 0.1}, {"MASTER_PORT": "29500"}, PERSISTED)


def test_values_variables_ports_and_the_gpu_change_together_and_each_is_described() -> None:
    params = {"num_envs": 4096, "lr": 3e-4}
    change = {
        "num_envs": {"halve": {"min": 3000}},
        "amp": False,
        "$NCCL_P2P_DISABLE": 1,
        "$P": "next_port",
        "@gpu": "other",
    }
    changes = apply_changes(change, params, {"HOME": "/root"}, "")
    assert changes.params == {"num_envs": 3000, "lr": 3e-4, "amp": False}
    assert (changes.env, changes.next_port, changes.other_gpu) == ({"NCCL_P2P_DISABLE": "1"}, ["P"], True)
    assert changes.descriptions == [
        "num_envs 4096 -> 3000",
        "amp False",
        "NCCL_P2P_DISABLE=1",
        "another P",
        "another GPU",
    ]
    assert params == {"num_envs": 4096, "lr": 3e-4}


@pytest.mark.parametrize(
    ("change", "params", "text"),
    [
        ({"num_envs": "halve"}, {"lr": 1.0}, "a retry would halve num_envs, and params has no num_envs"),
        ({"num_env": "halve"}, {"num_envs": 8}, "Did you mean num_envs?"),
        ({"num_env": 512}, {"num_envs": 1024}, "a retry would set num_env, and params has no num_env. Did you mean"),
        ({"num_envs": 512}, {"env.num_envs": 1024}, "Did you mean env.num_envs?"),
        ({"num_envs": "few"}, {"num_envs": 1024}, "which is 1024 now, to 'few': not a number."),
        ({"num_envs": "halve"}, {"num_envs": "auto"}, "a retry would halve num_envs, which is 'auto'."),
        ({"num_envs": "next_port"}, {"num_envs": 4096}, "num_envs holds no port."),
        ({"num_envs": "halve", "@batch": "halve", "$N": 1, "lr": 0.1}, {"num_envs": 8}, ""),
        ({"gradient_checkpointing": True, "optim": "adafactor"}, {"optim": "adamw", "bs": 8}, ""),
        ({"top_p": 0.9, "beta2": 0.95}, {"top_k": 50, "beta1": 0.9}, ""),
        ({"num_envs": "512", "lr": "1e-4", "max_steps": "null"}, {"num_envs": "1024", "lr": 1e-3, "max_steps": 9}, ""),
        ({"master_port": "next_port"}, {"master_port": 29500}, ""),
    ],
)
def test_changes_that_no_retry_could_make_are_found(
    change: dict[str, object], params: dict[str, object], text: str
) -> None:
    policy = normalize_policy({"oom_gpu": {"change": change}})
    found = [f"{problem.text} {problem.remedy}" for problem in find_impossible_changes(policy, params)]
    assert len(found) == bool(text)
    assert text in "".join(found)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "no name in params says batch size"),
        ({"num_envs": 4096}, "would halve num_envs (4096)"),
        ({"batch_size": 1}, "batch_size is 1"),
    ],
)
def test_it_is_said_before_the_launch_what_a_retry_would_halve(params: dict[str, object], said: str) -> None:
    policy = normalize_policy("default")
    assert policy is not None
    text, can_halve = describe_halving(policy, params)
    assert said in text
    assert can_halve is ("would halve" in text)


def test_a_name_that_is_another_in_the_plural_is_near_it_and_a_number_more_is_not() -> None:
    pairs = ("ranks", "rank"), ("seed", "--seeds"), ("beta2", "beta1")
    assert [is_near(*names) for names in pairs] == [True, True, False]
