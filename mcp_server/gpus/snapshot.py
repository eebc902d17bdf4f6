"""What is known of a machine's GPUs at one moment. Pure values; absent means that the driver does not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

# A fresh CUDA driver keeps some memory for itself; more that nobody visible holds is somebody's.
IDLE_MIB = 500

# no_driver, no_permission: NVML cannot be used. hangs: it does not even tell which GPUs there are.
TroubleKind = Literal["no_driver", "no_permission", "hangs", "failed"]


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU. ``graphics``: only for drawing, as a desktop does. ``user`` None: not visible here."""

    pid: int
    memory_mib: int | None = None
    graphics: bool = False
    user: str | None = None
    command: str | None = None  # program and script, no further arguments
    run_id: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver tells it. Percentages from 0 to 100; ``index`` is NVML's, in PCI bus order.

    ``memory_used_mib`` is without what the driver reserves for itself. ``sm_clock_cap_mhz``: the lowest limit on the
    SM clock that the driver tells (application clock, customer boost), ``sm_clock_max_mhz`` what the hardware could.
    ``throttle``: active reasons by their short names (power_cap thermal hw_thermal power_brake hw_slowdown
    sync_boost clocks_setting display). ``xids``: critical Xid numbers seen. ``failed``: NVML calls that did not answer
    as they should, by name: the error, ``hangs``, or ``unsupported``. ``lost``: fallen off the bus.
    ``near``: how close other GPUs are, by UUID: nvlink pix pxb phb node sys.
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

    @property
    def hangs(self) -> bool:
        """Whether a call about it does not come back."""
        return "hangs" in (self.failed or {}).values()

    @property
    def memory_free_mib(self) -> int | None:
        """What a new process could have."""
        if self.memory_total_mib is None or self.memory_used_mib is None:
            return None
        return max(0, self.memory_total_mib - self.memory_used_mib - (self.memory_reserved_mib or 0))

    @property
    def memory_unseen_mib(self) -> int | None:
        """Used memory that no visible process holds; None where that cannot be told."""
        if self.memory_used_mib is None or any(p.memory_mib is None for p in self.processes):
            return None
        return max(0, self.memory_used_mib - sum(p.memory_mib or 0 for p in self.processes))


@dataclass(frozen=True)
class Snapshot:
    """All GPUs at one moment; ``trouble`` is set where NVML cannot tell of any, and ``text`` says why."""

    at: str = ""
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    trouble: TroubleKind | None = None
    text: str = ""

    def facts(self) -> dict[str, Any]:
        """Return it as JSON keeps it; absent values left out."""
        return {
            "at": self.at,
            "driver": self.driver,
            "trouble": self.trouble,
            "text": self.text,
            "gpus": [_facts(gpu) for gpu in self.gpus],
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Snapshot:
        """Return what ``facts`` made.

        Raises:
            ValueError: these are no such facts.
        """
        try:
            gpus = tuple(_gpu(dict(each)) for each in facts.get("gpus") or ())
            told = {name: facts[name] for name in ("at", "driver", "trouble", "text") if facts.get(name) is not None}
            return cls(gpus=gpus, **told)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no snapshot of GPUs: {error}") from error

    def find(self, word: str) -> Gpu | None:
        """Return the GPU of this index, UUID, or unique beginning of a UUID (as CUDA takes them)."""
        if word.isdecimal():
            return next((gpu for gpu in self.gpus if gpu.index == int(word)), None)
        exact = [gpu for gpu in self.gpus if gpu.uuid == word]
        begins = exact or [gpu for gpu in self.gpus if word and gpu.uuid.startswith(word)]
        return begins[0] if len(begins) == 1 else None


def _facts(gpu: Gpu) -> dict[str, Any]:
    return {name: value for name, value in asdict(gpu).items() if value is not None and value != ()} | {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "processes": [{n: v for n, v in asdict(p).items() if v is not None} for p in gpu.processes],
    }


def _gpu(facts: dict[str, Any]) -> Gpu:
    known = {field.name for field in fields(Gpu)}
    facts = {name: value for name, value in facts.items() if name in known}
    of_process = {field.name for field in fields(GpuProcess)}
    listed = [{n: v for n, v in each.items() if n in of_process} for each in facts.pop("processes", ())]
    for name in ("throttle", "xids"):
        facts[name] = tuple(facts.get(name) or ())
    return Gpu(processes=tuple(GpuProcess(**each) for each in listed), **facts)


def short(uuid: str, among: Iterable[str], length: int = 12) -> str:
    """Return the shortest beginning of ``uuid``, from ``length`` characters on, that no other of ``among`` has."""
    others = [other for other in among if other != uuid]
    while length < len(uuid) and any(other.startswith(uuid[:length]) for other in others):
        length += 1
    return uuid[:length]
