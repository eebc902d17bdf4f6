"""A host and an environment fill in what the caller of a launch left open."""

from __future__ import annotations

from dataclasses import replace

from mcp_server.hosts.config import Environment, Host
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.resolve import apply_host_defaults

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


def test_a_job_of_ray_goes_to_the_hosts_cluster_where_nobody_names_another() -> None:
    host, job = Host(ray_address="http://head:8265"), LaunchRequest("true", backend="ray")
    plain = Environment(env={"RAY_ADDRESS": "10.0.0.1:6379"})
    other = Environment(env={"RAY_ADDRESS": "http://other:8265"})
    assert apply_host_defaults(job, host, plain, {}).backend_options == {"address": "http://head:8265"}
    assert apply_host_defaults(job, host, other, {}).backend_options == {}
    named = replace(job, backend_options={"address": "http://mine:8265"})
    assert apply_host_defaults(named, host, plain, {}).backend_options == named.backend_options
    assert apply_host_defaults(LaunchRequest("true"), host, plain, {}).backend_options == {}
