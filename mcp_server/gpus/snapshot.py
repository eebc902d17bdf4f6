"""The state of a machine's GPUs at one moment. Pure values. None means that the driver does not report it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# An idle CUDA driver keeps some memory for itself. More than this, held by no visible process, belongs to a hidden one.
IDLE_MIB = 500

# no_driver, no_permission: NVML cannot be used. hangs: the driver does not even list its GPUs.
TroubleKind = Literal["no_driver", "no_permission", "hangs", "failed"]


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. ``graphics``: only for display. ``user`` None: not visible, e.g. in another container."""

    pid: int
    memory_mib: int | None = None
    graphics: bool = False
    user: str | None = None
    command: str | None = None  # program and script, no further arguments
    run_id: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver reports it. Percentages are 0 to 100. ``index`` is NVML's, in PCI bus order.

    ``memory_used_mib`` excludes the driver's own reserve. ``sm_clock_cap_mhz`` is the lowest limit on the SM clock
    that the driver reports (application clock, customer boost), ``sm_clock_max_mhz`` the limit of the hardware.
    ``throttle``: active reasons by their short names (power_cap thermal hw_thermal power_brake hw_slowdown
    sync_boost clocks_setting display). ``xids``: numbers of the critical Xid errors. ``failed``: by name of an NVML
    call its error, ``hangs``, or ``unsupported``. ``lost``: fallen off the bus. ``near``: the link to other GPUs, by
    their UUID: nvlink pix pxb phb node sys. ``mig``: it is divided, and only its ``instances`` can be used; these have
    its index, and UUIDs of their own, ``MIG-…``.
    """

    index: int
    uuid: str
    name: str = ""
    pci: str = ""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    utilisation: int | None = None
    temperature_c: int | None = None
    temperature_limit_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_cap_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    retirement_pending: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    xids: tuple[int, ...] = ()
    recovery_action: str | None = None  # none reset reboot drain_p2p drain_reset
    mig: bool | None = None
    compute_mode: str | None = None  # default exclusive_process prohibited
    processes: tuple[GpuProcess, ...] = ()
    failed: Mapping[str, str] | None = None
    lost: bool = False
    near: Mapping[str, str] | None = None
    instances: tuple[Gpu, ...] = ()

    @property
    def hangs(self) -> bool:
        """Whether an NVML call about this GPU does not return."""
        return "hangs" in (self.failed or {}).values()

    @property
    def memory_free_mib(self) -> int | None:
        """Memory that a new process can allocate."""
        if self.memory_total_mib is None or self.memory_used_mib is None:
            return None
        return max(0, self.memory_total_mib - self.memory_used_mib - (self.memory_reserved_mib or 0))

    @property
    def memory_unattributed_mib(self) -> int | None:
        """Used memory that no visible process holds, or None when a process's memory is unknown."""
        if self.memory_used_mib is None or any(p.memory_mib is None for p in self.processes):
            return None
        return max(0, self.memory_used_mib - sum(p.memory_mib or 0 for p in self.processes))


@dataclass(frozen=True)
class Snapshot:
    """All GPUs at one moment. ``trouble``: why NVML reports no GPUs at all. ``text`` explains it."""

    at: str = ""
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    trouble: TroubleKind | None = None
    text: str = ""

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """All GPUs, each followed by its MIG instances."""
        return tuple(device for gpu in self.gpus for device in (gpu, *gpu.instances))

    def find_instance(self, name: str) -> tuple[Gpu, Gpu] | None:
        """Return the MIG instance with this UUID, or unique beginning of one, and its GPU in front of it."""
        pairs = [(gpu, instance) for gpu in self.gpus for instance in gpu.instances]
        exact = [pair for pair in pairs if pair[1].uuid == name]
        matches = exact or [pair for pair in pairs if name and pair[1].uuid.startswith(name)]
        return matches[0] if len(matches) == 1 else None

    def find_gpu(self, name: str) -> Gpu | None:
        """Return the GPU with this index, UUID, or unique UUID prefix, as CUDA accepts them."""
        if name.isdecimal():
            return next((gpu for gpu in self.gpus if gpu.index == int(name)), None)
        exact = [gpu for gpu in self.gpus if gpu.uuid == name]
        matches = exact or [gpu for gpu in self.gpus if name and gpu.uuid.startswith(name)]
        return matches[0] if len(matches) == 1 else None


def shorten_uuid(uuid: str, uuids: Iterable[str], length: int = 12) -> str:
    """Return the shortest prefix of ``uuid``, at least ``length`` characters, that no other of ``uuids`` has."""
    others = [other for other in uuids if other != uuid]
    while length < len(uuid) and any(other.startswith(uuid[:length]) for other in others):
        length += 1
    return uuid[:length]
