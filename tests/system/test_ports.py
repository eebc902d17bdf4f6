"""Free ports and their neighbours, as this machine has them."""

import socket

import pytest

from mcp_server.system.ports import current_port, find_free_port, find_listener, find_next_port, is_port_free


def test_the_next_port_is_the_first_without_a_listener() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        next_port = find_next_port(port - 1)
        assert next_port != port
        with socket.create_server(("", next_port)):
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
def test_a_parameter_is_read_before_a_variable(
    params: dict[str, object], env: dict[str, str], port: int | None
) -> None:
    assert current_port("master_port", params, env) == port


def test_without_a_current_port_any_free_one_is_returned() -> None:
    for current in (None, 0, -1, 65535, 10**6):
        with socket.create_server(("", find_next_port(current))):
            pass


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        assert not is_port_free(port)
        assert find_free_port(port, port) is None
        assert "(pid " in str(find_listener(port))
    assert is_port_free(port)
    assert find_listener(port) is None
