"""GPUs that a command pins itself to."""

from __future__ import annotations

import pytest

from mcp_server.gpus.request import parse_gpus
from mcp_server.runs.warnings.warning_inputs import find_pins, warn_of_pins


@pytest.mark.parametrize(
    ("command", "texts", "indices"),
    [
        ("CUDA_VISIBLE_DEVICES=0 python train.py", ["CUDA_VISIBLE_DEVICES=0"], [(0,)]),
        ("export CUDA_VISIBLE_DEVICES=2,3; python train.py", ["CUDA_VISIBLE_DEVICES=2,3"], [(2, 3)]),
        ("env CUDA_VISIBLE_DEVICES=1 torchrun train.py", ["CUDA_VISIBLE_DEVICES=1"], [(1,)]),
        ("bash -c 'CUDA_VISIBLE_DEVICES=1 python a.py'", ["CUDA_VISIBLE_DEVICES=1"], [(1,)]),
        ("python train.py --device cuda:0", ["cuda:0"], [(0,)]),
        ("python train.py --device=cuda:2 sim_device=cuda:2", ["cuda:2"], [(2,)]),
        ("python train.py --gpus 0", ["--gpus 0"], [(0,)]),
        ("python train.py --gpus 0,1 --gpu_id 3", ["--gpus 0,1", "--gpu_id 3"], [(0, 1), (3,)]),
        ("yolo train device=1", ["device=1"], [(1,)]),
        ("python train.py --gpus 4", [], []),
        ("docker run --gpus all img", [], []),
        ("python train.py --device cuda", [], []),
        ("echo --device cuda:0", [], []),
        ("CUDA_VISIBLE_DEVICES={gpus} python train.py --device cuda:{gpu_indices}", [], []),
    ],
)
def test_pins_are_found(command: str, texts: list[str], indices: list[tuple[int, ...]]) -> None:
    pins = find_pins(command)
    assert ([pin.text for pin in pins], [pin.indices for pin in pins]) == (texts, indices)


def test_pins_in_the_environment_and_in_parameters_are_found() -> None:
    pins = find_pins("python a.py", {"CUDA_VISIBLE_DEVICES": "0,1", "A": "cuda:7"}, {"device": "cuda:2", "gpu_id": 3})
    assert [(pin.text, pin.indices) for pin in pins] == [
        ("CUDA_VISIBLE_DEVICES=0,1", (0, 1)),
        ("cuda:2", (2,)),
        ("--gpu_id 3", (3,)),
    ]


def test_a_pin_without_gpus_names_the_run_that_leases_the_gpu() -> None:
    pins = find_pins("CUDA_VISIBLE_DEVICES=0,1 python train.py")
    leased, free = warn_of_pins(pins, None, {0: "cfm-7kqz"}, [0, 1])
    assert leased == "`CUDA_VISIBLE_DEVICES=0,1` uses GPU 0, which cfm-7kqz leases: leave it out and pass gpus=2."
    assert "GPU 1 without a lease" in free
    assert "gpus=[1]" in free
    assert warn_of_pins(pins, None, {}, []) == []


def test_a_pin_to_several_gpus_gets_one_warning_with_their_number() -> None:
    pins = find_pins("CUDA_VISIBLE_DEVICES=4,5,6,7 python train.py")
    pin = "`CUDA_VISIBLE_DEVICES=4,5,6,7` uses GPU 4, 5, 6, 7"
    holders = dict.fromkeys((4, 5, 6, 7), "a-7kqz")
    assert warn_of_pins(pins, None, holders, range(8)) == [f"{pin}, which a-7kqz leases: leave it out and pass gpus=4."]
    assert warn_of_pins(pins, None, holders | {7: "b-7kqz"}, range(8)) == [
        f"{pin}, which a-7kqz and b-7kqz lease: leave it out and pass gpus=4."
    ]
    assert warn_of_pins(pins, None, {}, range(8)) == [
        f"{pin} without a lease, so others may take them: pass gpus=[4, 5, 6, 7]."
    ]


def test_only_a_variable_overrides_a_lease() -> None:
    assert warn_of_pins(find_pins("CUDA_VISIBLE_DEVICES=0 python a.py"), parse_gpus(1), {}, [])
    assert warn_of_pins(find_pins("CUDA_VISIBLE_DEVICES=0 python a.py"), parse_gpus([1]), {}, [])
    assert warn_of_pins(find_pins("CUDA_VISIBLE_DEVICES=0 python a.py"), parse_gpus([0, 1]), {}, []) == []
    assert warn_of_pins(find_pins("python a.py --device cuda:0"), parse_gpus(1), {}, []) == []


@pytest.mark.parametrize(
    ("gpus", "command", "sees"),
    [
        ([2], "python train.py --device cuda:3", "it sees 1 of the GPUs, as cuda:0, whatever"),
        (2, "python train.py --device cuda:2", "it sees 2 of the GPUs, as cuda:0 to cuda:1, whatever"),
        (2, "python train.py --device cuda:1", ""),
        ("cpu", "python train.py --device cuda:1", ""),
    ],
)
def test_an_index_past_the_lease_is_warned_of(gpus: int | str | list[int], command: str, sees: str) -> None:
    warnings = warn_of_pins(find_pins(command), parse_gpus(gpus), {}, ())
    assert [sees in each for each in warnings] == ([True] if sees else [])
