"""One GPU as NVML reports it: the queries, and their answers as fields of ``Gpu``. ``nvml`` is the pynvml module.

Constants are NVML's numbers (nvml.h), since old versions of pynvml lack some of their names.
"""

from __future__ import annotations

import contextlib
import pwd
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mcp_server.gpus.snapshot import Gpu, GpuProcess, TroubleKind
from mcp_server.system import processes
from mcp_server.system.own_process import supervised_run
from mcp_server.text.regex import compile_lazily

_POLL_S = 0.02

T = TypeVar("T")


class CallTimeout(Exception):
    """A call did not return in time."""


class Caller:
    """A thread that makes one call after the other. Replace it once a call has timed out."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            function = self._calls.get()
            try:
                self._answers.put((function(), None))
            except Exception as error:  # ``call`` raises it in the caller's thread
                self._answers.put((None, error))

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what ``function`` returns, or raise what it raises.

        Raises:
            CallTimeout: it did not return within ``timeout_s``. Make no further calls with this caller.
        """
        self._calls.put(function)
        try:
            value, error = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise CallTimeout from None
        if error is not None:
            raise error
        answer: T = value
        return answer

    def has_returned(self, within_s: float = 0.0) -> bool:
        """Return whether the call that timed out has returned meanwhile, or does within ``within_s``."""
        until_s = time.monotonic() + within_s
        while self._answers.empty() and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return not self._answers.empty()


# Other users choose these words, and models read them.
_RUN_ID = compile_lazily(r"[A-Za-z0-9_-]{1,120}")
_UNPRINTABLE, _LONGEST_WORD = compile_lazily(r"[^\x21-\x7e]+"), 40


@dataclass(frozen=True)
class ProcessOwner:
    """The visible facts of a process. ``user`` None: the process is not visible, e.g. in another container."""

    user: str | None = None
    command: str | None = None
    run_id: str | None = None


def find_owner(pid: int, *, by_number: bool = False) -> ProcessOwner:
    """Return the owner of process ``pid``.

    Looks up the user's name, which may query a remote user directory that hangs; ``by_number`` avoids that.
    """
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ProcessOwner()
    user = str(uid)
    if not by_number:
        with contextlib.suppress(KeyError, OSError):
            user = pwd.getpwuid(uid).pw_name
    return ProcessOwner(user, _describe_program(pid), _find_run_id(pid))


def _describe_program(pid: int) -> str | None:
    """Return the program and its script or module; further arguments may hold secrets."""
    words = processes.command_words(pid)
    if not words:
        return None
    names = [Path(words[0]).name]
    for before, word in zip(words[:3], words[1:4]):
        if before == "-m":
            names += ["-m", word]
            break
        if word.endswith((".py", ".sh")):
            names.append(Path(word).name)
            break
    return " ".join(_UNPRINTABLE.sub("_", name)[:_LONGEST_WORD] for name in names if name) or None


def _find_run_id(pid: int) -> str | None:
    """Return the run of a process: from its environment, else from the supervisor among its ancestors."""
    with contextlib.suppress(OSError):  # a process of another user
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RUNWARD_RUN_ID="):
                return _check_run_id(entry.partition(b"=")[2].decode(errors="replace"))
    for ancestor in processes.ancestors(pid):
        if (run_id := supervised_run(processes.command_words(ancestor))) is not None:
            return _check_run_id(run_id)
    return None


def _check_run_id(run_id: str) -> str | None:
    return run_id if _RUN_ID.fullmatch(run_id) else None


Facts = dict[str, Any]
Query = Callable[[Any, Any], Facts]  # of the pynvml module and a handle

LOST, TIMEOUT, NO_PERMISSION = 15, 10, 4
# Not supported, function not found, no data, no ECC under vGPU, argument of another version, deprecated.
UNSUPPORTED = frozenset({3, 13, 21, 22, 25, 26})
HANDLE, UUID = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"
# Lists of processes among the facts of a device: pid to memory in MiB.
PROCESS_LISTS = ("graphics", "mps", "compute")

_MIB = 2**20
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_FUNCTION_NOT_FOUND, _NOT_FOUND, _INVALID = 13, 6, 2
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
    "The NVIDIA driver does not answer. Without persistence mode it may need 10 s to start: query again. "
    "A person should look at `dmesg`; most often only a reboot helps."
)
_TROUBLES: dict[int, tuple[TroubleKind, str]] = {
    9: ("no_driver", "The NVIDIA driver is not loaded. A person should run: sudo modprobe nvidia; dmesg says why not."),
    12: (
        "no_driver",
        "The driver's library libnvidia-ml.so.1 is not found. A person should install the driver; a container has to "
        "be started with --gpus all.",
    ),
    13: ("failed", "The NVIDIA driver is too old. A person should update it."),
    NO_PERMISSION: (
        "no_permission",
        "This user may not use the NVIDIA devices. A person should look at the access to /dev/nvidia*.",
    ),
    18: ("failed", "The NVIDIA driver was updated, and its old module still runs. A person should reboot."),
}


def explain_start_error(number: int, message: str) -> tuple[TroubleKind, str]:
    """Return the trouble that error ``number`` means when NVML starts, and what a person can do."""
    return _TROUBLES.get(number, ("failed", f"The NVIDIA driver could not be queried: {message}."))


def error_number(error: Exception) -> int:
    """Return NVML's number of an error, and of any other error that of a missing function."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else _FUNCTION_NOT_FOUND


def describe_error(error: Exception) -> str:
    """Return the word or message of an error in ``Gpu.failed``."""
    return "unsupported" if error_number(error) in UNSUPPORTED else str(error)


@dataclass
class Device:
    """One GPU from poll to poll. ``stuck``: the caller whose call about this GPU has not returned."""

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
        """The UUID. A name made of the index when NVML does not report it."""
        return str(self.facts.get("uuid") or f"index:{self.index}")

    def reset(self) -> None:
        """Drop all facts of the last poll. The UUID, the name and the address never change."""
        self.facts = {name: self.facts[name] for name in ("uuid", "name", "pci") if name in self.facts}
        self.failed, self.lost, self.denied, self.stuck = {}, False, False, None

    def to_gpu(self, owners: Mapping[int, ProcessOwner]) -> Gpu:
        """Return the GPU with the facts of the last poll. ``owners`` by pid."""
        facts = {**self.facts, "uuid": self.uuid}
        caps = [facts.pop("boost_clock", None)]
        # The default application clock is not a limit: a T4's is 585 MHz, and it runs at 1590.
        if (clock := facts.pop("application_clock", None)) != facts.pop("usual_application_clock", None):
            caps.append(clock)
        # The driver does not report locked clocks: the clock that a busy GPU reaches shows them.
        if not facts.pop("idle", False) and "clocks_setting" in facts.get("throttle", ()):
            caps.append(facts.get("sm_clock_mhz"))
        known_caps = [cap for cap in caps if cap]
        graphics, mps, compute = (facts.pop(name, {}) for name in PROCESS_LISTS)
        memory_by_pid = {**graphics, **mps, **compute}
        only_graphics = graphics.keys() - mps.keys() - compute.keys()
        processes = tuple(
            GpuProcess(pid, memory_mib, pid in only_graphics, **vars(owners.get(pid, ProcessOwner())))
            for pid, memory_mib in memory_by_pid.items()
        )
        instances = tuple(_to_instance(self.index, each, owners) for each in facts.pop("instances", ()))
        return Gpu(
            index=self.index,
            sm_clock_cap_mhz=min(known_caps) if known_caps else None,
            processes=processes,
            xids=tuple(dict.fromkeys(self.xids)),
            failed=self.failed or None,
            lost=self.lost,
            near=self.near or None,
            instances=instances,
            **facts,
        )

    @property
    def pids(self) -> set[int]:
        """The processes on it and on its MIG instances."""
        lists = [self.facts.get(name, {}) for name in PROCESS_LISTS]
        lists += [each.get("compute", {}) for each in self.facts.get("instances", ())]
        return {pid for each in lists for pid in each}


def _to_instance(index: int, facts: Facts, owners: Mapping[int, ProcessOwner]) -> Gpu:
    compute = facts.get("compute", {})
    processes = tuple(GpuProcess(pid, mib, **vars(owners.get(pid, ProcessOwner()))) for pid, mib in compute.items())
    values = {name: value for name, value in facts.items() if name != "compute"}
    return Gpu(index=index, processes=processes, **values)


def _query_memory(nvml: Any, handle: Any) -> Facts:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception as error:
        if error_number(error) not in UNSUPPORTED:
            raise
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before 510: reserved memory counts as used
    reserved = getattr(memory, "reserved", None)
    facts = {"memory_total_mib": memory.total // _MIB, "memory_used_mib": memory.used // _MIB}
    return facts | ({} if reserved is None else {"memory_reserved_mib": reserved // _MIB})


def _call_newest(nvml: Any, names: tuple[str, ...], handle: Any) -> Any:
    """Call the newest of these functions that the driver has; ``names``: newest first."""
    for name in names[:-1]:
        with contextlib.suppress(AttributeError):
            try:
                return getattr(nvml, name)(handle)
            except Exception as error:
                if error_number(error) != _FUNCTION_NOT_FOUND:
                    raise
    return getattr(nvml, names[-1])(handle)


def _query_throttle(nvml: Any, handle: Any) -> Facts:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    bits = _call_newest(nvml, names, handle)
    return {"throttle": tuple(name for bit, name in _THROTTLE.items() if bits & bit), "idle": bool(bits & _IDLE)}


def _processes_query(name: str, call: str) -> Query:
    def query(nvml: Any, handle: Any) -> Facts:
        memory_by_pid: dict[int, int | None] = {}
        for each in _call_newest(nvml, (f"{call}_v3", f"{call}_v2"), handle):
            memory_mib = None if each.usedGpuMemory is None else each.usedGpuMemory // _MIB
            before = memory_by_pid.get(each.pid)  # one line for every instance of the GPU
            memory_by_pid[each.pid] = memory_mib if before is None else before + (memory_mib or 0)
        return {name: memory_by_pid}

    return query


def _query_instances(nvml: Any, handle: Any) -> Facts:
    """Return the MIG instances of a GPU that is divided into them; drivers list at most seven, with gaps."""
    if nvml.nvmlDeviceGetMigMode(handle)[0] != 1:
        return {}
    instances = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError as error:
            if error_number(error) not in (_NOT_FOUND, _INVALID):
                raise
            continue
        facts: Facts = {"uuid": _text(nvml.nvmlDeviceGetUUID(instance)), "failed": {}}
        for name, query in _INSTANCE_QUERIES:
            _add_facts(facts, name, partial(query, nvml, instance))
        instances.append(facts)
    return {"instances": tuple(instances)}


def _add_facts(facts: Facts, name: str, query: Callable[[], Facts]) -> None:
    try:
        facts |= query()
    except Exception as error:  # reported among the facts
        facts["failed"][name] = describe_error(error)


def _query_retired_pages(nvml: Any, handle: Any) -> Facts:
    return {"retired_pages": sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))}


def _query_recovery(nvml: Any, handle: Any) -> Facts:
    (field_value,) = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_FIELD])
    if field_value.nvmlReturn != 0:
        raise nvml.NVMLError(3)
    return {"recovery_action": _RECOVERY.get(field_value.value.uiVal, "none")}


def _query_remapped_rows(nvml: Any, handle: Any) -> Facts:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"remap_pending": bool(pending), "remap_failed": bool(failed)}


def _value_query(name: str, call: str, *arguments: int, per: int = 1) -> tuple[str, Query]:
    """Return a query whose answer, divided by ``per``, is one fact."""

    def query(nvml: Any, handle: Any) -> Facts:
        value = getattr(nvml, call)(handle, *arguments)
        return {name: value if per == 1 else round(value / per, 1)}

    return call, query


# NVML reports no more of an instance. Without these it is unknown whether it is free.
_INSTANCE_QUERIES: tuple[tuple[str, Query], ...] = (
    _value_query("name", "nvmlDeviceGetName"),
    ("nvmlDeviceGetMemoryInfo", _query_memory),
    ("nvmlDeviceGetComputeRunningProcesses", _processes_query("compute", "nvmlDeviceGetComputeRunningProcesses")),
)
# Each with the name of its NVML call. First the queries that identify a GPU, last those that are slow in old drivers.
QUERIES: tuple[tuple[str, Query], ...] = (
    _value_query("uuid", UUID),
    _value_query("name", "nvmlDeviceGetName"),
    ("nvmlDeviceGetPciInfo", lambda nvml, handle: {"pci": _text(nvml.nvmlDeviceGetPciInfo(handle).busId)}),
    ("nvmlDeviceGetMemoryInfo", _query_memory),
    ("nvmlDeviceGetComputeRunningProcesses", _processes_query("compute", "nvmlDeviceGetComputeRunningProcesses")),
    ("nvmlDeviceGetGraphicsRunningProcesses", _processes_query("graphics", "nvmlDeviceGetGraphicsRunningProcesses")),
    ("nvmlDeviceGetMPSComputeRunningProcesses", _processes_query("mps", "nvmlDeviceGetMPSComputeRunningProcesses")),
    ("nvmlDeviceGetUtilizationRates", lambda n, h: {"utilisation": n.nvmlDeviceGetUtilizationRates(h).gpu}),
    _value_query("temperature_c", "nvmlDeviceGetTemperature", 0),
    _value_query("temperature_limit_c", "nvmlDeviceGetTemperatureThreshold", 1),  # slowdown
    _value_query("power_w", "nvmlDeviceGetPowerUsage", per=1000),
    _value_query("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", per=1000),
    _value_query("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", per=1000),
    _value_query("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
    _value_query("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 1),
    _value_query(
        "application_clock", "nvmlDeviceGetApplicationsClock", 0
    ),  # of the graphics clock, which the SMs follow
    _value_query("usual_application_clock", "nvmlDeviceGetDefaultApplicationsClock", 0),
    _value_query("boost_clock", "nvmlDeviceGetMaxCustomerBoostClock", 0),
    ("nvmlDeviceGetCurrentClocksEventReasons", _query_throttle),
    _value_query("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0),  # since the driver was loaded
    _value_query("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0),
    ("nvmlDeviceGetRetiredPages", _query_retired_pages),
    (
        "nvmlDeviceGetRetiredPagesPendingStatus",
        lambda n, h: {"retirement_pending": bool(n.nvmlDeviceGetRetiredPagesPendingStatus(h))},
    ),
    ("nvmlDeviceGetRemappedRows", _query_remapped_rows),
    ("nvmlDeviceGetFieldValues", _query_recovery),
    ("nvmlDeviceGetMigMode", lambda nvml, handle: {"mig": nvml.nvmlDeviceGetMigMode(handle)[0] == 1}),
    ("nvmlDeviceGetMigDeviceHandleByIndex", _query_instances),
    (
        "nvmlDeviceGetComputeMode",
        lambda n, h: {"compute_mode": _COMPUTE_MODES.get(n.nvmlDeviceGetComputeMode(h), "default")},
    ),
)


def find_link(nvml: Any, one: Any, other: Any) -> str:
    """Return the closest link between two GPUs, by their handles: nvlink pix pxb phb node sys."""
    with contextlib.suppress(Exception):  # some drivers do not report NVLink; all report the bus
        if nvml.nvmlDeviceGetP2PStatus(one, other, _P2P_NVLINK) == _P2P_OK:
            return "nvlink"
    return _TOPOLOGY.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), "sys")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
