"""Whether a machine's GPUs are fit to train on: what is wrong, what a person can do, and which are free. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcp_server.gpus.placement import Unavailable, choose_gpus, find_excess, find_instance_obstacles, find_obstacles
from mcp_server.gpus.request import GpuRequest, Requirements, confirm_clock, tighten
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, Snapshot
from mcp_server.gpus.xid import describe_xid
from mcp_server.text.formatting import join_ranges

_NEAR_LIMIT_C = 3
_NO_REQUIREMENTS = Requirements()
# First match wins: the general slowdown is set together with its cause. A power cap, synchronised clocks and set clocks
# are normal settings of a machine.
_SLOWDOWNS = (
    ("hw_thermal", "too hot, and its hardware slows it down (hw_thermal): a person should look at its cooling"),
    ("thermal", "too hot, and slowed down (thermal): a person should look at its cooling"),
    ("power_brake", "slowed down by the machine's power supply (power_brake): a person should look at it"),
    ("hw_slowdown", "slowed down by its hardware (hw_slowdown): a person should look at its power and cooling"),
)
_REMEDIES = {
    "reset": "reset it",
    "drain_reset": "reset it",
    "drain_p2p": "drain its peers",
    "reboot": "reboot the machine",
}


@dataclass(frozen=True)
class GpuHealth:
    """``ok``: the requirements are met. Without requirements: a GPU is free and none has a fault.

    ``free``: UUIDs of the GPUs, then of the MIG instances, that a run can use now. ``reasons``: obstacles and faults,
    then notes, which need no action.
    """

    ok: bool
    reasons: tuple[str, ...]
    free: tuple[str, ...]


def assess_gpus(
    snapshot: Snapshot,
    holders: Mapping[str, str],
    requirements: Requirements | None = None,
    limits: Requirements = _NO_REQUIREMENTS,
) -> GpuHealth:
    """Assess the GPUs of ``snapshot``. ``holders``: who has leased a GPU, by its UUID.

    ``limits``: what this host requires for more than one GPU. Without ``requirements`` it counts where there are
    several. A count is met as a launch would meet it: by GPUs of one model.
    """
    if not snapshot.gpus:
        return GpuHealth(False, ("The driver reports no GPUs.",), ())
    faults = {gpu.index: find_faults(gpu) for gpu in snapshot.gpus}
    required = requirements or _NO_REQUIREMENTS
    needed = required.count or 1
    required = confirm_clock(tighten(required, limits) if needed > 1 else required, limits)
    unfit = find_excess(snapshot.gpus, required).indices
    is_open = requirements is None and len(snapshot.gpus) > 1
    excess = find_excess(snapshot.gpus, limits if is_open else required)
    obstacles = {gpu.index: find_obstacles(gpu, holders.get(gpu.uuid), required) for gpu in snapshot.gpus}
    free = tuple(gpu.uuid for gpu in snapshot.gpus if not obstacles[gpu.index] and gpu.index not in unfit)
    parts = tuple(
        each.uuid
        for gpu in snapshot.gpus
        for each in gpu.instances
        if gpu.index not in unfit and not find_instance_obstacles(gpu, each, holders, required)
    )
    choice = choose_gpus(snapshot, holders, GpuRequest(count=needed), required)
    enough = not isinstance(choice, Unavailable) or (requirements is None and bool(parts))
    ok = enough and (requirements is not None or not (any(faults.values()) or excess.indices))
    reasons = {index: list(texts) for index, texts in faults.items()}
    if not enough:
        for gpu in snapshot.gpus:
            if not gpu.hangs:  # the fault names the call that hangs
                texts = obstacles[gpu.index]
                reasons[gpu.index] += [
                    text for text in texts if not any(fault.startswith(text) for fault in faults[gpu.index])
                ]
    for gpu in snapshot.gpus:
        reasons[gpu.index] += list_notes(gpu)
    shortage = []
    if isinstance(choice, Unavailable) and not enough:
        few = f"{len(free)} of {len(snapshot.gpus)} GPUs available, {needed} requested."
        shortage = [few if len(free) < needed else choice.cause]
    above = []
    if excess.text and (is_open or not enough):
        several = " for more than one GPU" if is_open else ""
        above = [f"GPU {excess.text}{several}. {excess.remedy}"]
    return GpuHealth(ok, (*shortage, *above, *_merge_reasons(reasons)), free + parts)


def find_faults(gpu: Gpu) -> list[str]:
    """Return what is wrong with a GPU, whichever run uses it, and what a person can do."""
    if gpu.lost:
        return find_obstacles(gpu, None, _NO_REQUIREMENTS)
    if gpu.hangs:
        calls = ", ".join(name for name, error in (gpu.failed or {}).items() if error == "hangs")
        return [f"hangs in {calls}: the driver does not answer; a person should look at dmesg, and reboot"]
    divided = gpu.mig and not gpu.instances  # with instances it can be used
    faults = find_obstacles(replace(gpu, processes=(), memory_used_mib=None, mig=divided), None, _NO_REQUIREMENTS)
    failed = [
        f"{name} fails: {error}" for name, error in (gpu.failed or {}).items() if error not in ("unsupported", "hangs")
    ]
    faults += [failure for failure in failed if failure not in faults]
    if (unattributed := gpu.memory_unattributed_mib or 0) > IDLE_MIB:
        faults.append(
            f"{unattributed:,} MiB are used by no visible process: by another container, or left by a dead process; "
            "a person should run: sudo fuser -v /dev/nvidia*"
        )
    faults += [text for name, text in _SLOWDOWNS if name in gpu.throttle][:1]
    if _is_hot(gpu) and not {"thermal", "hw_thermal"} & {*gpu.throttle}:
        limit = f"slows down at {gpu.temperature_limit_c} C"
        faults.append(f"{gpu.temperature_c} C, {limit}: a person should look at its cooling")
    if gpu.ecc_uncorrected:
        errors = f"{gpu.ecc_uncorrected} uncorrected ECC errors since the driver was loaded"
        faults.append(f"{errors}: results may be wrong; a person should reset it, and replace it if they return")
    return faults + [_describe_fault(gpu, number) for number in gpu.xids if describe_xid(number).cause == "fault"]


def list_notes(gpu: Gpu) -> list[str]:
    """Return the Xid errors of a GPU that need no action."""
    conclusions = {"program": "usually an error of a program, the GPU is fit", "corrected": "the GPU corrected it"}
    notes = [(number, describe_xid(number)) for number in gpu.xids]
    return [f"Xid {n} ({xid.meaning}): {conclusions[xid.cause]}" for n, xid in notes if xid.cause in conclusions]


def _describe_fault(gpu: Gpu, number: int) -> str:
    """Return an Xid with its remedy. What the driver asks for, once it reports that, replaces the usual recovery."""
    xid = describe_xid(number)
    recovery = xid.recovery if xid.recovery == "none" else gpu.recovery_action or xid.recovery
    return f"Xid {number} ({xid.meaning}): a fault of the GPU; a person should {_REMEDIES.get(recovery, 'look at it')}"


def _is_hot(gpu: Gpu) -> bool:
    if gpu.temperature_c is None or not gpu.temperature_limit_c:
        return False
    return gpu.temperature_c >= gpu.temperature_limit_c - _NEAR_LIMIT_C


def _merge_reasons(reasons: Mapping[int, list[str]]) -> list[str]:
    """Return one sentence a reason, e.g. ``GPU 0-3: leased by …``."""
    indices: dict[str, list[int]] = {}
    for index, texts in sorted(reasons.items()):
        for text in texts:
            indices.setdefault(text, []).append(index)
    return [f"GPU {join_ranges(numbers)}: {text}." for text, numbers in indices.items()]
