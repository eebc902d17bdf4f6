"""A fake NVIDIA driver: its state, the environment in which processes find it, and the faults it can report."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_name("fake_nvml.c")
UUIDS = tuple(f"GPU-{n * 0x11111111:08x}-8d3b-4c5e-9f60-{n:012x}" for n in range(1, 9))


@cache
def library(*flags: str) -> Path | None:
    """Compile the driver once a session; return the directory to put into LD_LIBRARY_PATH, None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = Path(tempfile.mkdtemp(prefix="runward-nvml-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    output = made / "libnvidia-ml.so.1"
    subprocess.run([compiler, *flags, "-shared", "-fPIC", "-o", str(output), str(_SOURCE)], check=True)
    return made


@dataclass(frozen=True)
class Machine:
    """A machine whose driver reports what its state file says."""

    path: Path
    library: Path

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which a process finds this driver and these leases, and no others."""
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_STATE": str(self.path / "nvml"),
            "RUNWARD_LEASES": str(self.path / "leases"),
        }

    @property
    def full_environ(self) -> dict[str, str]:
        """The same, with the environment of this process."""
        return {**os.environ, **self.environ}

    def report(self, *lines: str, gpus: int = 2, name: str = "NVIDIA_H100_80GB_HBM3") -> None:
        """Let the driver report healthy idle GPUs, changed by the statements ``lines`` of the state file."""
        healthy = [f"gpu {i} {UUIDS[i]} {name} 81559 0 {31 + i} {68000 + 1000 * i}" for i in range(gpus)]
        part = self.path / "nvml.part"
        part.write_text("".join(f"{line}\n" for line in (*healthy, *lines)))
        part.rename(self.path / "nvml")  # it is read at any moment


def machine(path: Path, *flags: str) -> Machine:
    """Return a machine whose files are in ``path``; skips the test where no C compiler is."""
    import pytest  # noqa: PLC0415 - a machine with a card has no pytest

    made = library(*flags)
    if made is None:
        pytest.skip("no C compiler is here to make the fake driver with")
    fake = Machine(path, made)
    fake.report()
    return fake


@dataclass(frozen=True)
class Fault:
    """A state of a machine with two GPUs, and what gpu_check must report.

    ``words`` are all among the reasons, or in the error if ``trouble`` names one; ``free``: by index.
    """

    name: str
    lines: tuple[str, ...]
    words: tuple[str, ...] = ()
    ok: bool = False
    free: tuple[int, ...] = (0,)
    trouble: str | None = None
    require: dict[str, Any] | None = None
    gpus: int = 2


_HANDLE = "nvmlDeviceGetHandleByIndex_v2"
_COOLING = "a person should look at its cooling"
_BOTH = (0, 1)
_FAST = ("set 0 clock 1980", "set 1 clock 1980")

FAULTS = (
    Fault("healthy", (), ok=True, free=_BOTH),
    Fault("lost before its query", (f"fault {_HANDLE} 15 1",), ("GPU 1: lost", "reset it or reboot")),
    Fault("lost during its query", ("fault nvmlDeviceGetPowerUsage 15 1",), ("GPU 1: lost", "reset it or reboot")),
    Fault("hangs before its query", (f"hang {_HANDLE} 30 1",), ("GPU 1: hangs in nvmlDeviceGetHandleByIndex",)),
    Fault("hangs", ("hang nvmlDeviceGetPowerUsage 30 1",), ("GPU 1: hangs in nvmlDeviceGetPowerUsage", "reboot")),
    Fault("list of processes hangs", ("hang nvmlDeviceGetComputeRunningProcesses_v3 30 1",), ("GPU 1: hangs in",)),
    Fault("handle fails", (f"fault {_HANDLE} 999 1",), ("GPU 1: nvmlDeviceGetHandleByIndex fails: Unknown Error",)),
    Fault("denied", (f"fault {_HANDLE} 4 1",), ("GPU 1: nvmlDeviceGetHandleByIndex fails: Insufficient Permissions",)),
    Fault("memory fails", ("fault nvmlDeviceGetMemoryInfo_v2 999 1",), ("GPU 1: nvmlDeviceGetMemoryInfo fails",)),
    Fault("slowed by heat", ("set 1 throttle 32",), ("GPU 1: too hot", "(thermal)", _COOLING), free=_BOTH),
    Fault("slowed by heat in hardware", ("set 1 throttle 104",), ("GPU 1: too hot", "(hw_thermal)"), free=_BOTH),
    Fault("power brake", ("set 1 throttle 136",), ("(power_brake)", "power supply"), free=_BOTH),
    Fault("slowed by hardware", ("set 1 throttle 8",), ("GPU 1", "(hw_slowdown)"), free=_BOTH),
    Fault("hot", ("set 1 slowdown 34",), ("GPU 1: 32 C, slows down at 34 C", _COOLING), free=_BOTH),
    Fault("at its power cap", ("set 1 throttle 4",), ok=True, free=_BOTH),
    Fault("clocks synchronised and set", ("set 1 throttle 274",), ok=True, free=_BOTH),
    Fault("uncorrected ECC", ("set 1 ecc_uncorrected 2",), ("GPU 1: 2 uncorrected ECC", "reset"), free=_BOTH),
    Fault("corrected ECC", ("set 1 ecc_corrected 900",), ok=True, free=_BOTH),
    Fault("page retirement pending", ("set 1 retire_pending 1",), ("GPU 1: needs a reset", "bad memory")),
    Fault("row remap pending", ("set 1 remap_pending 1",), ("GPU 1: needs a reset", "bad memory")),
    Fault("row remap failed", ("set 1 remap_failed 1",), ("GPU 1: row remapping has failed", "service")),
    Fault("needs a reset", ("set 1 recovery 1",), ("GPU 1: needs a reset", "nvidia-smi -i 1 --gpu-reset")),
    Fault("needs a reboot", ("set 1 recovery 2",), ("GPU 1: needs a reboot of the machine",)),
    Fault("MIG", ("set 1 mig 1",), ("GPU 1: MIG is on", "nvidia-smi -i 1 -mig 0")),
    Fault("prohibited", ("set 1 compute_mode 2",), ("GPU 1: its compute mode is prohibited", "-c DEFAULT")),
    Fault(
        "memory without a process", ("zombie 1 9000",), ("GPU 1: 9,000 MiB are used by no visible process", "container")
    ),
    Fault("one busy", ("proc 1 1 40000",), ok=True),
    Fault("all busy", ("proc 0 1 40000", "proc 1 1 40000"), ("0 of 2 GPUs available", "uses 40,000 MiB"), free=()),
    Fault("busy with a process of another container", ("ghost 1 4194300 40000",), ok=True),
    Fault("old GeForce that reports little", ("unsupported",), ok=True, free=_BOTH),
    Fault("too few", ("proc 1 1 9",), ("1 of 2 GPUs available, 2 requested",), require={"count": 2}),
    Fault("power limit too high", (), ("GPU 0-1:", "-pl 400"), free=(), require={"power_limit_w": 400}),
    Fault("power limit as required", ("set 1 limit 400000",), ok=True, free=(1,), require={"power_limit_w": 400}),
    Fault("clock too high", _FAST, ("-lgc 0,1500",), free=(), require={"max_sm_clock_mhz": 1500}),
    Fault("clock as required", ("set 0 app_clock 1500", _FAST[1]), ok=True, require={"max_sm_clock_mhz": 1500}),
    Fault("too little memory", ("gproc 1 1 2000",), ok=True, require={"free_memory_mib": 80000}),
    Fault("no GPUs", (), ("The driver reports no GPUs",), free=(), gpus=0),
    Fault("driver not loaded", ("fault nvmlInitWithFlags 9",), ("not loaded", "modprobe"), trouble="no_driver"),
    Fault("driver updated", ("fault nvmlInitWithFlags 18",), ("updated", "reboot"), trouble="failed"),
    Fault("driver breaks", ("fault nvmlDeviceGetCount_v2 999",), ("Unknown Error",), trouble="failed"),
    Fault("driver denies", ("fault nvmlInitWithFlags 4",), ("/dev/nvidia",), trouble="no_permission"),
    Fault("driver denies all GPUs", (f"fault {_HANDLE} 4",), ("/dev/nvidia",), trouble="no_permission"),
    Fault("library crashes", ("crash nvmlDeviceGetTemperature",), ("SIGSEGV",), trouble="failed"),
)
