"""What a run needs of another, and where that one answers, by value."""

import pytest

from mcp_server.record.service import Need, find_service_port, joins_a_ray, parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("redis-7kqz", Need("redis-7kqz")),
        ("redis-7kqz@6379", Need("redis-7kqz", 6379)),
        ("10.0.0.5:6379", Need("", 6379, host="10.0.0.5")),
        ("[fe80::1]:8000/health", Need("", 8000, "/health", "[fe80::1]")),
        ("vllm-7kqz@8000/health?full=1", Need("vllm-7kqz", 8000, "/health?full=1")),
    ],
)
def test_a_need_is_a_run_with_or_without_a_port_and_a_path(text: str, need: Need) -> None:
    assert parse_need(text) == need
    assert str(need) == text


@pytest.mark.parametrize("text", ["", "@80", "a@", "a@port", "a@0", "a@65536", "a@80health", "a b", "a@80/ x", "a@b@1"])
def test_any_other_text_is_not_a_need(text: str) -> None:
    with pytest.raises(ValueError, match="is not RUN, RUN@PORT or HOST:PORT"):
        parse_need(text)


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("redis-server --port 6380", 6380),
        (["redis-server", "--port=6380", "--save", ""], 6380),
        ("ray start --head --port=$RAY_PORT --temp-dir=$RAY_TMPDIR --block", 20123),
        ("ray start --head --port ${RAY_PORT} --dashboard-port=8266 --block", 20123),
        ("ray start --head --block", 6379),
        ("ray start --head --port=0 --block", None),
        ("ray start --address=127.0.0.1:6379 --block", None),
        ("serve --port=$NOWHERE", None),
        ("serve --port=http", None),
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2", 8000),
        ("vllm serve Qwen/Qwen3-8B --port 8001", 8001),
        ("python -m vllm.entrypoints.openai.api_server --model m", 8000),
        ("redis-server redis.conf", None),
        ("python tools.py", None),
    ],
)
def test_the_port_of_a_service_is_the_one_that_its_command_names(command: str | list[str], port: int | None) -> None:
    spec = RunSpec(command=command, env={"RAY_PORT": "20123"})
    assert find_service_port(Run(spec, "running")) == port


def test_the_port_of_a_service_may_be_one_of_its_parameters() -> None:
    assert find_service_port(Run(RunSpec(command="vllm serve m", params={"port": 8002}), "running")) == 8002


@pytest.mark.parametrize(
    ("command", "joins"),
    [
        ("ray start --address=$RAY_ADDRESS --block", True),
        ("conda run -n rl ray start --block --address 10.0.0.1:6379", True),
        ("ray start --head --port=$RAY_PORT --block", False),
        ("python train.py --address=10.0.0.1", False),
    ],
)
def test_a_worker_of_a_ray_is_told_by_its_command(command: str, joins: bool) -> None:
    assert joins_a_ray(Run(RunSpec(command=command), "running")) is joins
