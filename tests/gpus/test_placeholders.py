"""Placeholders for GPUs in the words of a launch: by value."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.gpus.request import chooses_itself, find_placeholder


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("python train.py --device cuda:{gpu_indices}", "{gpu_indices}"),
        ("{gpus}", "{gpus}"),
        ("for gpus in 1 2; do echo ${gpus} ${gpu_indices}; done", None),
        ("{params} {gpu} {run_id}", None),
    ],
)
def test_a_placeholder_is_found_and_a_variable_of_the_shell_is_not(text: str, placeholder: str | None) -> None:
    assert find_placeholder(text) == placeholder


@pytest.mark.parametrize(
    ("launch", "chooses"),
    [
        ({"command": "python train.py --device cuda:{gpu_indices}"}, True),
        ({"command": ["python", "train.py", "--device", "cuda:{gpu_indices}"]}, True),
        ({"params": {"device": "cuda:{gpu_indices}", "num_envs": 4096}}, True),
        ({"resume_args": ["--device=cuda:{gpu_indices}"]}, True),
        ({"env": {"DEVICE": "cuda:{gpu_indices}"}}, True),
        ({"env": {"CUDA_VISIBLE_DEVICES": "{gpu_indices}"}}, True),
        ({"env": {"MUJOCO_EGL_DEVICE_ID": "{gpu_indices}"}}, False),
        ({"command": "python train.py --uuids {gpus}"}, False),
        ({"command": "python train.py ${gpu_indices}"}, False),
        ({}, False),
    ],
)
def test_indices_in_the_words_of_a_launch_mean_that_the_program_chooses(launch: dict[str, Any], chooses: bool) -> None:
    words = {"command": "python train.py", "env": {}, "params": {}, "resume_args": [], **launch}
    assert chooses_itself(words["command"], words["env"], words["params"], words["resume_args"]) is chooses
