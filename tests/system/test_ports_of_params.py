"""A free port, as this machine has them."""

import socket

import pytest

from mcp_server.system.ports_of_params import free_port, port_of


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
