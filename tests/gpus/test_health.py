"""Faults of GPUs, their remedies, and which GPUs are free: by value."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.gpus.health import assess_gpus, find_faults, list_notes
from mcp_server.gpus.placement import Unavailable, choose_gpus, find_obstacles
from mcp_server.gpus.request import GpuRequest, Requirements
from mcp_server.gpus.snapshot import Gpu, GpuProcess, Snapshot
from mcp_server.gpus.xid import load_xids

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
    assert find_faults(gpu()) == list_notes(gpu()) == find_obstacles(gpu(), None, Requirements()) == []
    assert assess_gpus(machine(gpu()), {}) == assess_gpus(machine(gpu()), {}, Requirements(count=1))


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
def test_a_harmless_state_is_not_a_fault(facts: dict[str, Any]) -> None:
    assert find_faults(gpu(**facts)) == []


def test_a_slowdown_is_reported_once_with_its_cause() -> None:
    faults = find_faults(gpu(throttle=("hw_slowdown", "thermal", "hw_thermal"), temperature_c=89))
    assert faults == ["too hot, and its hardware slows it down (hw_thermal): a person should look at its cooling"]


def test_memory_that_no_process_holds_is_a_fault() -> None:
    (fault,) = find_faults(gpu(memory_used_mib=50000, processes=(TRAINS,)))
    assert fault.startswith("10,000 MiB are used by no visible process: by another container")
    unknown = GpuProcess(8, None)
    assert find_faults(gpu(memory_used_mib=50000, processes=(TRAINS, unknown))) == []


@pytest.mark.parametrize("number", sorted(load_xids()))
def test_an_xid_is_reported_with_its_meaning_and_cause(number: int) -> None:
    xid, bad = load_xids()[number], gpu(xids=(number,))
    if xid.cause == "fault":
        assert f"Xid {number} ({xid.meaning}): a fault of the GPU; a person should " in find_faults(bad)[-1]
        assert list_notes(bad) == []
        return
    conclusion = "usually an error of a program, the GPU is fit" if xid.cause == "program" else "the GPU corrected it"
    assert list_notes(bad) == [f"Xid {number} ({xid.meaning}): {conclusion}"]
    assert find_faults(bad) == []
    assert assess_gpus(machine(bad), {}).ok is True
    assert assess_gpus(machine(bad), {}).reasons == (f"GPU 0: {list_notes(bad)[0]}.",)


def test_an_unknown_xid_is_reported() -> None:
    (fault,) = find_faults(gpu(xids=(997,)))
    assert fault == "Xid 997 (NVIDIA's list of Xid errors explains it): a fault of the GPU; a person should look at it"


def test_a_lost_gpu_has_no_other_fault() -> None:
    lost = gpu(lost=True, xids=(79,), failed={"nvmlDeviceGetUUID": "GPU is lost"})
    assert find_faults(lost) == ["lost: it has fallen off the bus, and a person should reset it or reboot"]


def test_a_gpu_that_may_be_in_use_is_not_free() -> None:
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetUUID"):
        assert find_obstacles(gpu(failed={call: "Unknown Error"}), None, Requirements()) == [
            f"{call} fails: Unknown Error"
        ]
        assert find_obstacles(gpu(failed={call: "unsupported"}), None, Requirements()) == []
    assert find_obstacles(gpu(failed={"nvmlDeviceGetClockInfo": "Unknown Error"}), None, Requirements()) == []


def test_without_requirements_a_gpu_must_be_free_and_none_faulty() -> None:
    sick = gpu(1, ecc_uncorrected=1)
    assert assess_gpus(machine(gpu(0), gpu(2)), {"GPU-0": "cfm-7kqz (mz)"}).ok is True
    assert assess_gpus(machine(gpu(0), sick), {}).ok is False
    assert assess_gpus(machine(gpu(0), sick), {}).free == ("GPU-0", "GPU-1")
    busy = assess_gpus(machine(gpu(0), gpu(1)), {"GPU-0": "cfm-7kqz (mz)", "GPU-1": "cfm-7kqz (mz)"})
    assert busy.ok is False
    assert busy.reasons == ("0 of 2 GPUs available, 1 requested.", "GPU 0-1: leased by cfm-7kqz (mz).")
    assert busy.free == ()


def test_with_requirements_only_the_required_count_must_meet_them() -> None:
    sick = gpu(2, lost=True)
    met = assess_gpus(machine(gpu(0), gpu(1), sick), {}, Requirements(count=2))
    assert (met.ok, met.free) == (True, ("GPU-0", "GPU-1"))
    assert met.reasons == ("GPU 2: lost: it has fallen off the bus, and a person should reset it or reboot.",)
    unmet = assess_gpus(machine(gpu(0), gpu(1), sick), {}, Requirements(count=3))
    assert unmet.ok is False
    assert unmet.reasons[0] == "2 of 3 GPUs available, 3 requested."
    assert len(unmet.reasons) == 2, "no fault is listed twice"


def test_a_machine_without_gpus_is_not_ok() -> None:
    verdict = assess_gpus(machine(), {})
    assert (verdict.ok, verdict.free) == (False, ())
    assert verdict.reasons == ("The driver reports no GPUs.",)


MIXED = machine(*(gpu(i, name="NVIDIA A800" if i < 2 else "NVIDIA RTX 4090") for i in range(4)))


def test_a_count_is_met_as_a_launch_would_meet_it() -> None:
    unmet = assess_gpus(MIXED, {}, Requirements(count=4))
    launch = choose_gpus(MIXED, {}, GpuRequest(count=4), Requirements())
    assert isinstance(launch, Unavailable)
    assert (unmet.ok, unmet.reasons) == (False, (launch.text,))
    assert "name those to use together, e.g. gpus=[0, 1, 2, 3]" in launch.text
    assert assess_gpus(MIXED, {}, Requirements(count=2)).ok is True
    leased = {"GPU-0": "a", "GPU-2": "b"}
    choice = choose_gpus(MIXED, leased, GpuRequest(count=2), Requirements())
    assert isinstance(choice, Unavailable)
    assert assess_gpus(MIXED, leased, Requirements(count=2)).reasons[0] == choice.cause


def test_the_limits_of_a_host_count_for_more_than_one_gpu() -> None:
    limits = Requirements(power_limit_w=275.0, max_sm_clock_mhz=1700)
    hot = machine(*(gpu(i, power_limit_w=300.0, sm_clock_mhz=1980) for i in range(4)))
    several = assess_gpus(hot, {}, Requirements(count=4), limits)
    line = "GPU 0-3: power limit 300 W, at most 275 W required, SM clock 1,980 MHz, at most 1,700 MHz required"
    remedy = "A person should run: sudo nvidia-smi -i 0,1,2,3 -pl 275 && sudo nvidia-smi -i 0,1,2,3 -lgc 0,1700"
    assert several.ok is False
    assert several.reasons == ("0 of 4 GPUs available, 4 requested.", f"{line}. {remedy}")
    assert assess_gpus(hot, {}, Requirements(count=1), limits) == assess_gpus(hot, {}, Requirements(count=1))
    assert assess_gpus(hot, {}, Requirements(count=1), limits).reasons == ()
    unasked = assess_gpus(hot, {}, None, limits)
    assert (unasked.ok, unasked.reasons) == (False, (f"{line} for more than one GPU. {remedy}",))
    assert len(unasked.free) == 4, "each alone can be used"
    assert assess_gpus(machine(hot.gpus[0]), {}, None, limits).ok is True
    stricter = assess_gpus(hot, {}, Requirements(count=2, power_limit_w=200.0), limits)
    assert "at most 200 W required" in stricter.reasons[1]
    assert "at most 1,700 MHz required" in stricter.reasons[1]
