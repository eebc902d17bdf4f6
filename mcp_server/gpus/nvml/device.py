"""What the calls to NVML tell of a GPU, in the words of ``Gpu``. ``nvml`` is the pynvml module.

Constants are NVML's (nvml.h), where pynvml has had them from the beginning by its names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.gpus.nvml.call_timeout import Caller
from mcp_server.gpus.nvml.process_owner import Owner
from mcp_server.gpus.snapshot import Gpu, GpuProcess, TroubleKind

Facts = dict[str, Any]
Read = Callable[[Any, Any], Facts]

LOST, TIMEOUT, NO_PERMISSION = 15, 10, 4
# Not supported, function not found, no data, no ECC under vGPU, argument of another version, deprecated.
UNSUPPORTED = frozenset({3, 13, 21, 22, 25, 26})
HANDLE, UUID = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"
# Lists of processes: pid to memory in MiB.
USES = ("graphics", "mps", "compute")

_MIB = 2**20
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_FUNCTION_NOT_FOUND = 13
_P2P_NVLINK, _P2P_OK = 2, 0
_IDLE = 0x01
_THROTTLE = {
    0x02: "clocks_setting",
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
_RECOVERY = {1: "reset", 2: "reboot", 3: "drain_p2p", 4: "drain_reset", 6: "reset", 7: "reboot"}
_TOPOLOGY = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}

HANGS = (
    "The NVIDIA driver does not answer. One that starts slowly, without persistence mode, will in 10 s: ask again. "
    "A person should look at `dmesg`; most often only a reboot helps."
)
_TROUBLE: dict[int, tuple[TroubleKind, str]] = {
    9: ("no_driver", "The NVIDIA driver is not loaded. A person should run: sudo modprobe nvidia; dmesg says why not."),
    12: (
        "no_driver",
        "The driver's library libnvidia-ml.so.1 is not found. A person should install the driver; a container has to "
        "be started with --gpus all.",
    ),
    13: ("failed", "The NVIDIA driver is too old to be asked. A person should update it."),
    NO_PERMISSION: (
        "no_permission",
        "This user may not use the NVIDIA devices. A person should look at the access to /dev/nvidia*.",
    ),
    18: ("failed", "The NVIDIA driver was updated, and its old module still runs. A person should reboot."),
}


def trouble(number: int, said: str) -> tuple[TroubleKind, str]:
    """Return the kind of trouble that NVML's error ``number`` is at its start, and what a person can do."""
    return _TROUBLE.get(number, ("failed", f"The NVIDIA driver could not be asked: {said}."))


def code(error: Exception) -> int:
    """Return NVML's number of an error; a function that this library or driver lacks has its own."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else _FUNCTION_NOT_FOUND


def word(error: Exception) -> str:
    """Return what ``Gpu.failed`` says of an error."""
    return "unsupported" if code(error) in UNSUPPORTED else str(error)


@dataclass
class Device:
    """One GPU, from look to look. ``stuck``: who made the call about it that has not come back."""

    index: int
    handle: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    lost: bool = False
    denied: bool = False
    stuck: Caller | None = None
    events: bool = False
    xids: list[int] = field(default_factory=list)
    near: dict[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Its UUID, or another name for one that does not tell it."""
        return str(self.facts.get("uuid") or f"index:{self.index}")

    def forget(self) -> None:
        """Keep only what never changes."""
        self.facts = {name: self.facts[name] for name in ("uuid", "name", "pci") if name in self.facts}
        self.failed, self.lost, self.denied, self.stuck = {}, False, False, None

    def gpu(self, owners: Mapping[int, Owner]) -> Gpu:
        """Return what is known of it."""
        facts = {**self.facts, "uuid": self.uuid}
        caps = [facts.pop("boost_clock", None)]
        # Left as it comes, the application clock is no limit: a T4's is 585 MHz, and it runs at 1590.
        if (clock := facts.pop("application_clock", None)) != facts.pop("usual_application_clock", None):
            caps.append(clock)
        # Clocks that were locked are told in no other way than by what is reached.
        if not facts.pop("idle", False) and "clocks_setting" in facts.get("throttle", ()):
            caps.append(facts.get("sm_clock_mhz"))
        told = [cap for cap in caps if cap]
        draws, shares, computes = (facts.pop(kind, {}) for kind in USES)
        used = {**draws, **shares, **computes}
        only_draws = draws.keys() - shares.keys() - computes.keys()
        processes = tuple(
            GpuProcess(pid, held, pid in only_draws, **vars(owners.get(pid, Owner()))) for pid, held in used.items()
        )
        return Gpu(
            index=self.index,
            sm_clock_cap_mhz=min(told) if told else None,
            processes=processes,
            xids=tuple(dict.fromkeys(self.xids)),
            failed=self.failed or None,
            lost=self.lost,
            near=self.near or None,
            **facts,
        )


def _memory(nvml: Any, handle: Any) -> Facts:
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception as error:
        if code(error) not in UNSUPPORTED:
            raise
        told = nvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before 510: what is reserved counts as used
    reserved = getattr(told, "reserved", None)
    facts = {"memory_total_mib": told.total // _MIB, "memory_used_mib": told.used // _MIB}
    return facts | ({} if reserved is None else {"memory_reserved_mib": reserved // _MIB})


def _first_of(nvml: Any, names: tuple[str, ...], handle: Any) -> Any:
    """Call the newest function that the driver has."""
    for name in names[:-1]:
        with contextlib.suppress(AttributeError):
            try:
                return getattr(nvml, name)(handle)
            except Exception as error:
                if code(error) != _FUNCTION_NOT_FOUND:
                    raise
    return getattr(nvml, names[-1])(handle)


def _throttle(nvml: Any, handle: Any) -> Facts:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    bits = _first_of(nvml, names, handle)
    return {"throttle": tuple(name for bit, name in _THROTTLE.items() if bits & bit), "idle": bool(bits & _IDLE)}


def _users(kind: str, call: str) -> Read:
    def read(nvml: Any, handle: Any) -> Facts:
        used: dict[int, int | None] = {}
        for each in _first_of(nvml, (f"{call}_v3", f"{call}_v2"), handle):
            held = None if each.usedGpuMemory is None else each.usedGpuMemory // _MIB
            before = used.get(each.pid)  # one line for every instance of the GPU
            used[each.pid] = held if before is None else before + (held or 0)
        return {kind: used}

    return read


def _retired(nvml: Any, handle: Any) -> Facts:
    return {"retired_pages": sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))}


def _recovery(nvml: Any, handle: Any) -> Facts:
    (told,) = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_FIELD])
    if told.nvmlReturn != 0:
        raise nvml.NVMLError(3)
    return {"recovery_action": _RECOVERY.get(told.value.uiVal, "none")}


def _remapped(nvml: Any, handle: Any) -> Facts:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"remap_pending": bool(pending), "remap_failed": bool(failed)}


def _tells(name: str, call: str, *words: int, per: int = 1) -> tuple[str, Read]:
    def read(nvml: Any, handle: Any) -> Facts:
        value = getattr(nvml, call)(handle, *words)
        return {name: value if per == 1 else round(value / per, 1)}

    return call, read


# In the order in which they are asked: what names a GPU first, what old drivers are slow at last.
READS: tuple[tuple[str, Read], ...] = (
    _tells("uuid", UUID),
    _tells("name", "nvmlDeviceGetName"),
    ("nvmlDeviceGetPciInfo", lambda nvml, handle: {"pci": _text(nvml.nvmlDeviceGetPciInfo(handle).busId)}),
    ("nvmlDeviceGetMemoryInfo", _memory),
    ("nvmlDeviceGetComputeRunningProcesses", _users("compute", "nvmlDeviceGetComputeRunningProcesses")),
    ("nvmlDeviceGetGraphicsRunningProcesses", _users("graphics", "nvmlDeviceGetGraphicsRunningProcesses")),
    ("nvmlDeviceGetMPSComputeRunningProcesses", _users("mps", "nvmlDeviceGetMPSComputeRunningProcesses")),
    ("nvmlDeviceGetUtilizationRates", lambda n, h: {"utilisation": n.nvmlDeviceGetUtilizationRates(h).gpu}),
    _tells("temperature_c", "nvmlDeviceGetTemperature", 0),
    _tells("temperature_limit_c", "nvmlDeviceGetTemperatureThreshold", 1),  # slowdown
    _tells("power_w", "nvmlDeviceGetPowerUsage", per=1000),
    _tells("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", per=1000),
    _tells("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", per=1000),
    _tells("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
    _tells("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 1),
    _tells("application_clock", "nvmlDeviceGetApplicationsClock", 0),  # told of the graphics clock, which SMs follow
    _tells("usual_application_clock", "nvmlDeviceGetDefaultApplicationsClock", 0),
    _tells("boost_clock", "nvmlDeviceGetMaxCustomerBoostClock", 0),
    ("nvmlDeviceGetCurrentClocksEventReasons", _throttle),
    _tells("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0),  # since the driver was loaded
    _tells("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0),
    ("nvmlDeviceGetRetiredPages", _retired),
    (
        "nvmlDeviceGetRetiredPagesPendingStatus",
        lambda n, h: {"retirement_pending": bool(n.nvmlDeviceGetRetiredPagesPendingStatus(h))},
    ),
    ("nvmlDeviceGetRemappedRows", _remapped),
    ("nvmlDeviceGetFieldValues", _recovery),
    ("nvmlDeviceGetMigMode", lambda nvml, handle: {"mig": nvml.nvmlDeviceGetMigMode(handle)[0] == 1}),
    (
        "nvmlDeviceGetComputeMode",
        lambda n, h: {"compute_mode": _COMPUTE_MODES.get(n.nvmlDeviceGetComputeMode(h), "default")},
    ),
)


def near(nvml: Any, one: Any, other: Any) -> str:
    """Return how close two GPUs are: nvlink pix pxb phb node sys."""
    with contextlib.suppress(Exception):  # told for some drivers only; the bus is told of all
        if nvml.nvmlDeviceGetP2PStatus(one, other, _P2P_NVLINK) == _P2P_OK:
            return "nvlink"
    return _TOPOLOGY.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), "sys")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
