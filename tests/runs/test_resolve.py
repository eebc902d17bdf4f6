"""A host and an environment fill in what the caller of a launch left open."""

from __future__ import annotations

import pytest

from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Environment, Host, Ray
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs import resolve
from mcp_server.runs.resolve import apply_host_defaults, find_ray_variables

ENVIRON = {"PATH": "/usr/bin", "PYTHONPATH": "/site"}
HOST = Host(name="a", python="/envs/rl/bin/python", first_step_timeout_s=900, first_step_pattern="kl loss")
ROBOT = Environment(
    env={"MUJOCO_GL": "egl", "HF_HOME": "/hf"},
    secrets=["WANDB_API_KEY", "HF_TOKEN"],
    python="/envs/robot/bin/python",
    pythonpath=["/src", "/lib"],
)


def test_an_open_field_is_filled_in() -> None:
    request = apply_host_defaults(LaunchRequest("python train.py", secrets=["HF_TOKEN"]), HOST, ROBOT, ENVIRON)
    assert request == LaunchRequest(
        "python train.py",
        env={"MUJOCO_GL": "egl", "HF_HOME": "/hf", "PATH": "/envs/robot/bin:/usr/bin", "PYTHONPATH": "/src:/lib:/site"},
        secrets=["HF_TOKEN", "WANDB_API_KEY"],
        first_step_timeout_s=900,
        first_step_pattern="kl loss",
    )


def test_an_argument_of_the_caller_wins() -> None:
    variables = {"MUJOCO_GL": "osmesa", "PATH": "/bin", "PYTHONPATH": "/mine"}
    request = LaunchRequest("true", env=variables, first_step_timeout_s=60, first_step_pattern="x")
    assert apply_host_defaults(request, HOST, ROBOT, ENVIRON) == LaunchRequest(
        "true",
        env={"HF_HOME": "/hf", **variables},
        secrets=["WANDB_API_KEY", "HF_TOKEN"],
        first_step_timeout_s=60,
        first_step_pattern="x",
    )


def test_a_host_without_a_table_changes_nothing() -> None:
    request = LaunchRequest("true", env={"A": "b"}, secrets=["C_TOKEN"])
    assert apply_host_defaults(request, Host(), Environment(), ENVIRON) == request


def test_the_hosts_python_serves_an_environment_without_one() -> None:
    request = apply_host_defaults(LaunchRequest("true"), HOST, Environment(), ENVIRON)
    assert request.env == {"PATH": "/envs/rl/bin:/usr/bin"}


def test_a_run_has_a_ray_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_free_port", lambda low, high: low + 7)
    assert find_ray_variables(Environment(), "cfm-7kqz") == {}
    assert find_ray_variables(Environment(ray=Ray(ports="20000-20010", capacity_threshold=0.98)), "cfm-7kqz") == {
        "RAY_ADDRESS": "127.0.0.1:20007",
        "RAY_PORT": "20007",
        "RAY_TMPDIR": "/tmp/ray-cfm-7kqz",
        "RAY_NAMESPACE": "cfm-7kqz",
        "RLINF_NAMESPACE": "cfm-7kqz",
        "RAY_local_fs_capacity_threshold": "0.98",
    }
    own = Ray(address="local", namespace="lab-{run_id}", temp_dir="/dev/shm/{port}")
    variables = find_ray_variables(Environment(ray=own), "cfm-7kqz")
    assert (variables["RAY_ADDRESS"], variables["RAY_NAMESPACE"], variables["RAY_TMPDIR"]) == (
        "local",
        "lab-cfm-7kqz",
        "/dev/shm/20007",
    )


def test_rays_directory_leaves_room_for_its_sockets() -> None:
    directory = find_ray_variables(Environment(ray=Ray()), f"{'long-name-' * 6}7kqz")["RAY_TMPDIR"]
    assert len(directory) <= 43
    assert directory.endswith("-7kqz")


def test_no_port_for_ray_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_free_port", lambda low, high: None)
    with pytest.raises(BadArgument, match=r"^environment: no port of 20000-30000 is free for the run's own Ray"):
        find_ray_variables(Environment(ray=Ray()), "cfm-7kqz")
