"""A run's own Ray: its variables, and whether its command starts it."""

from __future__ import annotations

import pytest

from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Ray
from mcp_server.runs.launch.resolve import find_ray_variables, starts_ray


def take_seventh(low: int, high: int) -> int:
    return low + 7


def test_a_run_has_a_ray_of_its_own() -> None:
    ray = Ray(ports="20000-20010", capacity_threshold=0.98)
    assert find_ray_variables(ray, "cfm-7kqz", take_seventh) == {
        "RAY_ADDRESS": "127.0.0.1:20007",
        "RAY_PORT": "20007",
        "RAY_TMPDIR": "/tmp/ray-cfm-7kqz",
        "RAY_NAMESPACE": "cfm-7kqz",
        "RLINF_NAMESPACE": "cfm-7kqz",
        "RAY_local_fs_capacity_threshold": "0.98",
    }
    own = Ray(address="local", namespace="lab-{run_id}", temp_dir="/dev/shm/{port}")
    variables = find_ray_variables(own, "cfm-7kqz", take_seventh)
    assert (variables["RAY_ADDRESS"], variables["RAY_NAMESPACE"], variables["RAY_TMPDIR"]) == (
        "local",
        "lab-cfm-7kqz",
        "/dev/shm/20007",
    )


def test_the_address_is_that_of_a_ray_that_somebody_starts() -> None:
    def address(ray: Ray, **more: object) -> str:
        return find_ray_variables(ray, "cfm-7kqz", take_seventh, **more)["RAY_ADDRESS"]  # type: ignore[arg-type]

    assert address(Ray()) == "127.0.0.1:20007"
    assert address(Ray(), is_started=False) == "local"
    assert address(Ray(), given_port="6399") == "127.0.0.1:6399"
    assert address(Ray(address="10.0.0.1:{port}"), is_started=False) == "10.0.0.1:20007"


@pytest.mark.parametrize(
    ("command", "scripts", "starts"),
    [
        ("ray start --head --port=$RAY_PORT && python train.py", [], True),
        (["bash", "-c", "ray start --head; python train.py"], [], True),
        ("bash run.sh", ["set -e\nray  start --head\n"], True),
        ("python train.py", ["subprocess.run(['ray', 'start', '--head'])"], True),
        ("my-head --listen $RAY_PORT", [], True),
        ("python train.py", ["import ray\nray.init()\n"], False),
        ("ray status", [], False),
        ("python start.py --framework ray", [], False),
    ],
)
def test_what_starts_ray_is_found(command: str | list[str], scripts: list[str], starts: bool) -> None:
    assert starts_ray(command, scripts) is starts


def test_rays_directory_leaves_room_for_its_sockets() -> None:
    directory = find_ray_variables(Ray(), f"{'long-name-' * 6}7kqz", take_seventh)["RAY_TMPDIR"]
    assert len(directory) <= 43
    assert directory.endswith("-7kqz")


def test_no_port_for_ray_is_a_refusal() -> None:
    with pytest.raises(BadArgument, match=r"^environment: no port of 20000-30000 is free for the run's own Ray"):
        find_ray_variables(Ray(), "cfm-7kqz", lambda low, high: None)
