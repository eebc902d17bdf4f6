"""What is wrong with GPUs, which are free, and what a person can do: by value."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.gpus.health import judge, notes, trouble
from mcp_server.gpus.placement import Require, unfit
from mcp_server.gpus.snapshot import Gpu, GpuProcess, Snapshot
from mcp_server.gpus.xid import BY_PROGRAM, MEANINGS, MENDED

HEALTHY = {
    "name": "NVIDIA H100",
    "memory_total_mib": 81559,
    "memory_used_mib": 3,
    "memory_reserved_mib": 500,
    "temperature_c": 31,
    "temperature_limit_c": 89,
    "compute_mode": "default",
    "recovery_action": "none",
}


def gpu(index: int = 0, **facts: Any) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", **{**HEALTHY, **facts})


def machine(*gpus: Gpu) -> Snapshot:
    return Snapshot("2026-11-21T15:30:45.123Z", "550.54.15", gpus)


TRAINS = GpuProcess(7, 40000, user="mz", command="python train.py")


def test_nothing_is_wrong_with_a_healthy_gpu() -> None:
    assert trouble(gpu()) == notes(gpu()) == unfit(gpu(), None, Require()) == []
    assert judge(machine(gpu()), {}) == judge(machine(gpu()), {}, Require(count=1))


@pytest.mark.parametrize(
    "facts",
    [
        {"throttle": ("power_cap",)},
        {"throttle": ("sync_boost", "display", "clocks_setting")},
        {"ecc_corrected": 1000, "retired_pages": 3},
        {"processes": (TRAINS,), "memory_used_mib": 40003},
        {"memory_used_mib": 500},
        {"memory_used_mib": None},
        {"failed": {"nvmlDeviceGetClockInfo": "unsupported"}},
        {"compute_mode": "exclusive_process", "processes": (TRAINS,), "memory_used_mib": 40003},
        {"temperature_c": None},
        {"temperature_c": 85, "temperature_limit_c": None},
    ],
)
def test_what_is_no_trouble_is_not_told(facts: dict[str, Any]) -> None:
    assert trouble(gpu(**facts)) == []


def test_a_cause_is_told_once_with_the_slowdown_it_makes() -> None:
    told = trouble(gpu(throttle=("hw_slowdown", "thermal", "hw_thermal"), temperature_c=89))
    assert told == ["too hot, and its hardware slows it down (hw_thermal): a person should look at its cooling"]


def test_memory_of_nobody_is_what_no_process_holds() -> None:
    (told,) = trouble(gpu(memory_used_mib=50000, processes=(TRAINS,)))
    assert told.startswith("10,000 MiB are held by nobody visible: by another container")
    unknown = GpuProcess(8, None)
    assert trouble(gpu(memory_used_mib=50000, processes=(TRAINS, unknown))) == []


@pytest.mark.parametrize("number", sorted(MEANINGS))
def test_an_xid_is_told_with_its_meaning_and_whose_doing_it_is(number: int) -> None:
    bad = gpu(xids=(number,))
    if number in BY_PROGRAM:
        assert notes(bad) == [f"Xid {number} ({MEANINGS[number]}): a program's own doing, the GPU is fit"]
    elif number in MENDED:
        assert notes(bad) == [f"Xid {number} ({MEANINGS[number]}): it mends itself"]
    else:
        assert f"Xid {number} ({MEANINGS[number]}): the hardware's doing; a person should " in trouble(bad)[-1]
        assert notes(bad) == []
        return
    assert trouble(bad) == []
    assert judge(machine(bad), {}).ok is True
    assert judge(machine(bad), {}).reasons == (f"GPU 0: {notes(bad)[0]}.",)


def test_an_unknown_xid_is_told() -> None:
    (told,) = trouble(gpu(xids=(997,)))
    assert told == "Xid 997 (NVIDIA's list of Xid errors explains it): the hardware's doing; a person should look at it"


def test_a_fallen_gpu_is_told_as_that_alone() -> None:
    lost = gpu(lost=True, xids=(79,), failed={"nvmlDeviceGetUUID": "GPU is lost"})
    assert trouble(lost) == ["lost: it has fallen off the bus, and a person should reset it or reboot"]


def test_who_cannot_be_known_to_be_free_is_not() -> None:
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetUUID"):
        assert unfit(gpu(failed={call: "Unknown Error"}), None, Require()) == [f"{call} fails: Unknown Error"]
        assert unfit(gpu(failed={call: "unsupported"}), None, Require()) == []
    assert unfit(gpu(failed={"nvmlDeviceGetClockInfo": "Unknown Error"}), None, Require()) == []


def test_without_a_requirement_one_must_be_free_and_nothing_wrong() -> None:
    sick = gpu(1, ecc_uncorrected=1)
    assert judge(machine(gpu(0), gpu(2)), {"GPU-0": "cfm-7kqz (mz)"}).ok is True
    assert judge(machine(gpu(0), sick), {}).ok is False
    assert judge(machine(gpu(0), sick), {}).free == ("GPU-0", "GPU-1")
    busy = judge(machine(gpu(0), gpu(1)), {"GPU-0": "cfm-7kqz (mz)", "GPU-1": "cfm-7kqz (mz)"})
    assert busy.ok is False
    assert busy.reasons == ("0 of 2 GPUs can be had, 1 wanted.", "GPU 0-1: leased by cfm-7kqz (mz).")
    assert busy.free == ()


def test_with_a_requirement_so_many_must_fulfil_it_whatever_the_others_are() -> None:
    sick = gpu(2, lost=True)
    met = judge(machine(gpu(0), gpu(1), sick), {}, Require(count=2))
    assert (met.ok, met.free) == (True, ("GPU-0", "GPU-1"))
    assert met.reasons == ("GPU 2: lost: it has fallen off the bus, and a person should reset it or reboot.",)
    unmet = judge(machine(gpu(0), gpu(1), sick), {}, Require(count=3))
    assert unmet.ok is False
    assert unmet.reasons[0] == "2 of 3 GPUs can be had, 3 wanted."
    assert len(unmet.reasons) == 2, "what is wrong is not told twice"


def test_without_gpus_nothing_can_be_had() -> None:
    verdict = judge(machine(), {})
    assert (verdict.ok, verdict.free) == (False, ())
    assert verdict.reasons == ("There is no GPU: the driver answers, and tells of none.",)
