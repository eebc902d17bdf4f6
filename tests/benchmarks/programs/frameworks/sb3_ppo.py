"""Reinforcement learning with stable-baselines3 on CartPole: PPO, or DQN."""

# mypy: disable-error-code="import-not-found,import-untyped"
# mypy: allow-subclassing-any
from __future__ import annotations

import argparse
import http.server

import gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from tests.benchmarks.programs.frameworks import mishaps

_ROLLOUT = 64


class Mishaps(BaseCallback):
    """Lets happen what is asked for."""

    def __init__(self, told: argparse.Namespace) -> None:
        super().__init__()
        self.told = told

    def _on_step(self) -> bool:
        if self.n_calls % _ROLLOUT == 0:
            mishaps.at(self.n_calls // _ROLLOUT, self.told)
        return True


class Wide(gymnasium.ObservationWrapper):
    """Tells less than it says it does."""

    def observation(self, observation: object) -> object:
        """Return a part of what is seen."""
        return observation[:3]  # type: ignore[index]


def main() -> None:
    """Train."""
    parser = mishaps.parser()
    parser.add_argument("--algorithm", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--buffer", type=int, default=10_000, help="how many steps DQN remembers")
    told = parser.parse_args()
    mishaps.before(told)
    torch.set_num_threads(1)
    if told.port:
        http.server.HTTPServer(("127.0.0.1", told.port), http.server.BaseHTTPRequestHandler)  # for metrics
    wrapper = Wide if told.width != mishaps.WIDTH else None
    environment = make_vec_env("CartPole-v1", n_envs=1, seed=0, wrapper_class=wrapper)
    if told.algorithm == "ppo":
        rate = told.lr or 3e-4
        model = PPO("MlpPolicy", environment, n_steps=_ROLLOUT, learning_rate=rate, verbose=1, device="cpu", seed=0)
    else:
        rate = told.lr or 1e-3
        model = DQN(
            "MlpPolicy", environment, learning_rate=rate, buffer_size=told.buffer, verbose=1, device="cpu", seed=0
        )
    if told.data:
        model.set_parameters(told.data)
    model.learn(total_timesteps=told.steps * _ROLLOUT, callback=Mishaps(told))


if __name__ == "__main__":
    main()
