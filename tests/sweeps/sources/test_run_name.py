"""A name that keeps the files of a run apart is proposed where the program writes beside others, and only there."""

from __future__ import annotations

import pytest

from mcp_server.sweeps.sources.cell import Scalar
from mcp_server.sweeps.sources.source import name_experiment, propose_run_name

PPO = "python -m verl.trainer.main_ppo"
RSL = "python scripts/reinforcement_learning/rsl_rl/train.py --task Cube-v0"
VERL: dict[str, Scalar] = {
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 256,
    "++actor_rollout_ref.actor.optim.lr": 1e-6,
}


@pytest.mark.parametrize(
    ("command", "params", "style", "proposal"),
    [
        (RSL, {}, "--k v", "run_name={run_id}-{attempt}"),
        (RSL.split(), {"run_name": "cube_4096"}, "--k v", "run_name=cube_4096-{run_id}-{attempt}"),
        (f"{RSL} --run_name=a", {}, "--k v", "run_name=a-{run_id}-{attempt}"),
        ("python train.py --run-name 'a b'", {}, "--k v", "run-name={run_id}-{attempt}"),
        (f"{RSL} --run_name $RUNWARD_RUN_ID", {}, "--k v", None),
        (RSL, {"run_name": "{run_id}"}, "--k v", None),
        (RSL, {"agent.seed": 1}, "k=v", None),  # the flag cannot be written in this style
        ("python train.py --task cube", {}, "--k v", None),  # does it know --run_name?
        ("python train.py --experiment_name cubes", {}, "--k v", None),  # a directory of many runs
        ("python cleanrl/ppo.py --exp-name a", {}, "--k v", "exp-name=a-{run_id}"),
        ("python main.py runner.logger.experiment_name=rl", {}, "k=v", "runner.logger.experiment_name=rl-{run_id}"),
        (PPO, {}, "k=v", "trainer.experiment_name={run_id}"),
        (PPO, VERL, "k=v", "trainer.experiment_name=Qwen2.5-7B-Instruct-grpo-bs256-lr1e-06-{run_id}"),
        (PPO, {**VERL, "trainer.experiment_name": "base"}, "k=v", "trainer.experiment_name=base-{run_id}"),
        (f"{PPO} trainer.experiment_name=x-{{run_id}}", VERL, "k=v", None),
        ("bash run_grpo.sh", {"actor_rollout_ref.model.path": "/m/a/"}, "k=v", "trainer.experiment_name=a-{run_id}"),
    ],
)
def test_a_name_of_its_own_is_proposed(
    command: str | list[str], params: dict[str, Scalar], style: str, proposal: str | None
) -> None:
    assert propose_run_name(command, params, style) == proposal


def test_an_experiment_without_known_settings_has_no_name() -> None:
    assert name_experiment({"trainer.nnodes": 1}) == ""
    assert name_experiment({"algorithm.adv_estimator": '"a b"'}) == "a-b"
