"""VERL's own names for the settings of a training YAML in the sections of AgentFly's tutorial. Pure.

The tutorial keeps ``training``, ``hardware`` and ``monitoring`` beside ``agent`` and ``data``, or ``model`` and
``rollout`` beside them, and its own scripts write these names for VERL. Whatever they do not write is refused: a
guessed name would train something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_ACTOR, _ROLLOUT, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
_TOTAL_GPUS = "hardware.n_gpus"  # of all nodes, or of each
_NAMES: Mapping[str, Sequence[str]] = {
    "training.algorithm": ("algorithm.adv_estimator",),
    "training.adv_estimator": ("algorithm.adv_estimator",),
    "training.kl_coef": ("algorithm.kl_ctrl.kl_coef", f"{_ACTOR}.kl_loss_coef"),
    "training.learning_rate": (f"{_ACTOR}.optim.lr",),
    "training.lr": (f"{_ACTOR}.optim.lr",),
    "training.entropy_coeff": (f"{_ACTOR}.entropy_coeff",),
    "training.ppo_mini_batch_size": (f"{_ACTOR}.ppo_mini_batch_size",),
    "training.ppo_micro_batch_size_per_gpu": (f"{_ACTOR}.ppo_micro_batch_size_per_gpu",),
    "training.response_length": (f"{_ROLLOUT}.response_length",),
    "training.batch_size": ("data.train_batch_size",),
    **{f"training.{name}": (f"data.{name}",) for name in ("train_batch_size", "val_batch_size")},
    **{f"training.{name}": (f"data.{name}",) for name in ("max_prompt_length", "max_response_length")},
    **{f"training.{name}": ("trainer.total_epochs",) for name in ("total_epochs", "num_epochs", "epochs")},
    **{
        f"training.{name}": (f"trainer.{name}",)
        for name in ("total_training_steps", "save_freq", "test_freq", "val_before_train", "critic_warmup")
    },
    **{
        f"hardware.{name}": ("trainer.n_gpus_per_node",)
        for name in ("num_gpus", "n_gpus", "n_gpus_per_node", "gpus_per_node")
    },
    **{f"hardware.{name}": ("trainer.nnodes",) for name in ("num_nodes", "nnodes", "n_nodes")},
    "hardware.tensor_parallel_size": (f"{_ROLLOUT}.tensor_model_parallel_size",),
    "hardware.tensor_model_parallel_size": (f"{_ROLLOUT}.tensor_model_parallel_size",),
    "hardware.gpu_memory_utilization": (f"{_ROLLOUT}.gpu_memory_utilization",),
    "monitoring.logger": ("trainer.logger",),
    "monitoring.loggers": ("trainer.logger",),
    "monitoring.project_name": ("trainer.project_name",),
    "monitoring.experiment_name": ("trainer.experiment_name",),
}
_MOVED = {"model": "actor_rollout_ref.model", "rollout": _ROLLOUT}  # whole sections, with VERL's own names in them
_OF_RAY = ("hardware.use_ray", "hardware.ray_port", "hardware.num_cpus")  # what `ray start` is given
# What the tutorial's script writes of other settings, where the file does not say otherwise.
_DERIVED: Mapping[str, Sequence[str]] = {
    "agent.model_name_or_path": ("actor_rollout_ref.model.path", f"{_CRITIC}.model.path"),
    "data.train_batch_size": (f"{_ACTOR}.ppo_mini_batch_size", f"{_CRITIC}.ppo_mini_batch_size"),
}
_SECTIONS = frozenset({"training", "hardware", "monitoring", *_MOVED})
_ESTIMATORS = {"ppo": "gae"}  # VERL names an algorithm by its estimator of advantages
_PROGRAM = re.compile(r"(?:verl|agentfly)\.\w[\w.]*|(?:\S*/)?main_ppo\.py")
_MOST_NAMED = 6


class NotOfVerl(ValueError):
    """Settings whose names in VERL's config are not certain."""


def runs_verl(words: Sequence[str]) -> bool:
    """Return whether a command's program is VERL's, or AgentFly's, which passes everything on to it."""
    return any(_PROGRAM.fullmatch(word) for word in words)


def use_verl_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return flat settings under VERL's names, and notes on what differs. NotOfVerl: a name is not certain."""
    if not any(_section(name) in _SECTIONS for name in settings):
        return dict(settings), []
    named: dict[str, Any] = {}
    origin: dict[str, str] = {}
    uncertain, of_ray = [], []
    for name, value in settings.items():
        targets = _find_names(name, settings)
        if name in _OF_RAY:
            of_ray.append(name)
        elif not targets:
            uncertain.append(name)
        for target in targets:
            own = _ESTIMATORS.get(value, value) if target == "algorithm.adv_estimator" else value
            if target in named and named[target] != own:
                raise NotOfVerl(f"{origin[target]} and {name} both mean {target}, with different values")
            named[target], origin[target] = own, name
    if uncertain:
        more = f" and {len(uncertain) - _MOST_NAMED} more" if len(uncertain) > _MOST_NAMED else ""
        names = ", ".join(uncertain[:_MOST_NAMED])
        raise NotOfVerl(f"VERL's name of {names}{more} is not certain; write VERL's own names, as trainer.nnodes")
    derived = [
        (source, target)
        for source, targets in _DERIVED.items()
        for target in targets
        if source in named and target not in named
    ]
    named |= {target: named[source] for source, target in derived}
    notes = [f"{', '.join(of_ray)}: of ray start, not of the training."] if of_ray else []
    notes += [f"{', '.join(t for s, t in derived if s == source)}: as {source}." for source in dict(derived)]
    return named, notes


def _section(name: str) -> str:
    return name.partition(".")[0]


def _find_names(name: str, settings: Mapping[str, Any]) -> Sequence[str]:
    """Return VERL's names of a setting, none where they are not certain. Those of other sections are VERL's own."""
    section, _, rest = name.partition(".")
    if section not in _SECTIONS:
        return (name,)
    if section in _MOVED:
        return (f"{_MOVED[section]}.{rest}",) if rest else ()
    nodes = [settings[key] for key in settings if _NAMES.get(key) == ("trainer.nnodes",)]
    nodes += [settings["trainer.nnodes"]] if "trainer.nnodes" in settings else []
    if name == _TOTAL_GPUS and any(count != 1 for count in nodes):
        return ()
    return _NAMES.get(name, ())
