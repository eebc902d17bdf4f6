"""Settings in the sections of AgentFly's tutorial have VERL's names; whatever is not certain is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.runs.launch.params_file import NotOfVerl, runs_verl, use_verl_names

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def test_the_tutorials_sections_become_those_of_verl() -> None:
    named, notes = use_verl_names(
        {
            "agent.model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
            "data.train_batch_size": 64,
            "training.algorithm": "grpo",
            "training.learning_rate": 5e-7,
            "training.kl_coef": 0.001,
            "training.total_epochs": 3,
            "hardware.num_gpus": 8,
            "hardware.num_nodes": 2,
            "hardware.ray_port": 6379,
            "monitoring.loggers": '["console","wandb"]',
            "monitoring.project_name": "P",
            "monitoring.experiment_name": "e1",
        }
    )
    assert named == {
        "agent.model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
        "data.train_batch_size": 64,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}.optim.lr": 5e-7,
        "algorithm.kl_ctrl.kl_coef": 0.001,
        f"{ACTOR}.kl_loss_coef": 0.001,
        "trainer.total_epochs": 3,
        "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": 2,
        "trainer.logger": '["console","wandb"]',
        "trainer.project_name": "P",
        "trainer.experiment_name": "e1",
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
        "critic.model.path": "Qwen/Qwen2.5-7B-Instruct",
        f"{ACTOR}.ppo_mini_batch_size": 64,
        "critic.ppo_mini_batch_size": 64,
    }
    assert notes == [
        "hardware.ray_port: of ray start, not of the training.",
        "actor_rollout_ref.model.path, critic.model.path: as agent.model_name_or_path.",
        f"{ACTOR}.ppo_mini_batch_size, critic.ppo_mini_batch_size: as data.train_batch_size.",
    ]


def test_its_sections_model_and_rollout_move_whole_and_given_values_are_kept() -> None:
    settings = {"model.path": "Q", "rollout.name": "vllm", "agent.model_name_or_path": "R", "critic.model.path": "C"}
    assert use_verl_names(settings)[0] == {
        "actor_rollout_ref.model.path": "Q",
        f"{ROLLOUT}.name": "vllm",
        "agent.model_name_or_path": "R",
        "critic.model.path": "C",
    }


def test_a_configuration_of_verl_stays_as_it_is() -> None:
    settings = {"agent.model_name_or_path": "Q", "data.train_batch_size": 64, "trainer.nnodes": 1}
    assert use_verl_names(settings) == (settings, [])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training.lr": 1, "training.warmth": 2, "monitoring": 3}, "name of training.warmth, monitoring is not"),
        ({"hardware.n_gpus": 16, "hardware.nnodes": 2}, "name of hardware.n_gpus is not"),
        ({"hardware.n_gpus": 16, "trainer.nnodes": 2}, "name of hardware.n_gpus is not"),
        ({"training.lr": 1, "training.learning_rate": 2}, "training.lr and training.learning_rate both mean"),
        ({"trainer.nnodes": 1, "hardware.num_nodes": 2}, "trainer.nnodes and hardware.num_nodes both mean"),
    ],
)
def test_a_name_that_is_not_certain_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(NotOfVerl, match=words):
        use_verl_names(settings)


def test_a_name_that_verl_has_in_one_place_alone_means_that_place_in_any_section_of_the_users() -> None:
    settings = {
        "training.project_name": "P",
        "hardware.experiment_name": "e",
        "monitoring.logging.save_freq": 10,
        "training.train_files": "a.parquet",
        "training.clip_ratio_high": 0.28,
    }
    assert use_verl_names(settings)[0] == {
        "trainer.project_name": "P",
        "trainer.experiment_name": "e",
        "trainer.save_freq": 10,
        "data.train_files": "a.parquet",
        f"{ACTOR}.clip_ratio_high": 0.28,
    }
    for name in ("training.critic.clip_ratio", "training.shuffle", "training.temperature", "training.lora_rank"):
        with pytest.raises(NotOfVerl, match=f"name of {name} is not certain"):
            use_verl_names({name: 1})


def test_equal_values_agree_and_ppo_is_the_estimator_gae() -> None:
    settings = {"hardware.n_gpus": 8, "trainer.n_gpus_per_node": 8, "training.algorithm": "ppo"}
    assert use_verl_names(settings)[0] == {"trainer.n_gpus_per_node": 8, "algorithm.adv_estimator": "gae"}


def test_the_program_of_verl_is_known_by_its_module_or_file() -> None:
    assert runs_verl(["python3", "-m", "verl.trainer.main_ppo", "a=1"])
    assert runs_verl(["python", "-m", "agentfly.cli", "train"])
    assert runs_verl(["python", "recipe/main_ppo.py"])
    assert not runs_verl(["python", "train.py", "--model=verl.x"])
