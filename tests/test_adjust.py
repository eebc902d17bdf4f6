"""A free port and another GPU, as this machine has them."""

import socket
from pathlib import Path

import pytest

from mcp_server.supervisor.adjust import free_port, other_gpu, port_of

GPUS = "0, GPU-aaaa, 70000\n1, GPU-bbbb, 312\n2, GPU-cccc, 4\n3, [N/A], [N/A]\n"


@pytest.fixture
def driver(tmp_path: Path) -> str:
    """A PATH with an nvidia-smi that tells of four GPUs: a busy one, two free ones, one that is lost."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{GPUS}END\n")
    program.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("used", "other"),
    [
        ("0", "GPU-bbbb"),
        ("GPU-aaaa", "GPU-bbbb"),
        ("1", "GPU-cccc"),
        ("GPU-bbbb,2", None),
        ("1,2", None),
        ("", None),
    ],
)
def test_another_gpu_is_one_that_nobody_uses_and_the_run_did_not_have(
    driver: str, used: str, other: str | None
) -> None:
    assert other_gpu(used, driver) == other


def test_without_a_driver_there_is_no_other_gpu(tmp_path: Path) -> None:
    assert other_gpu("0", str(tmp_path)) is None


def test_a_driver_that_fails_tells_of_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert other_gpu("0", f"{tmp_path}:/bin") is None


def test_a_free_port_is_the_next_that_nobody_listens_on() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        found = free_port(port - 1)
        assert found != port
        with socket.create_server(("", found)):
            pass


@pytest.mark.parametrize(
    ("params", "env", "port"),
    [
        ({"master_port": 29500}, {}, 29500),
        ({"master_port": "29501"}, {"master_port": "1"}, 29501),
        ({}, {"master_port": "29502"}, 29502),
        ({}, {}, None),
        ({"master_port": "auto"}, {}, None),
    ],
)
def test_a_port_is_the_parameters_before_the_variables(
    params: dict[str, object], env: dict[str, str], port: int | None
) -> None:
    assert port_of("master_port", params, env) == port
