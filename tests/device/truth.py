"""The state of a GPU as NVML and nvidia-smi tell it to this program, and the comparison with runward's figures."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = float | str | bool | None

# By the name of runward's field: the name in nvidia-smi's query, and by how much two readings of one state may differ.
# What moves by itself is compared with the span of the readings before and after.
FIELDS: dict[str, tuple[str, float]] = {
    "memory_total_mib": ("memory.total", 1),
    "memory_used_mib": ("memory.used", 16),
    "memory_reserved_mib": ("memory.reserved", 1),
    "utilisation": ("utilization.gpu", 5),
    "temperature_c": ("temperature.gpu", 2),
    "power_w": ("power.draw", 25),
    "power_limit_w": ("enforced.power.limit", 0.5),
    "power_default_w": ("power.default_limit", 0.5),
    "sm_clock_mhz": ("clocks.sm", 60),
    "sm_clock_max_mhz": ("clocks.max.sm", 0),
    "throttle": ("clocks_event_reasons.active", 0),
    "ecc_corrected": ("ecc.errors.corrected.volatile.total", 0),
    "ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", 0),
    "remap_pending": ("", 0),
    "remap_failed": ("", 0),
    "mig": ("mig.mode.current", 0),
    "compute_mode": ("compute_mode", 0),
}
_REASONS = (
    "clocks_setting",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "thermal",
    "hw_thermal",
    "power_brake",
    "display",
)
_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_WORDS: dict[str, Value] = {"Disabled": False, "Enabled": True}


@dataclass(frozen=True)
class Finding:
    """One statement of runward beside the truth. ``ok`` None: only told, and no judgement."""

    what: str
    runward: str
    truth: str
    ok: bool | None


def reasons_of(bits: int) -> str:
    """Return the short names of NVML's bits of throttle reasons, of which the lowest means idle."""
    return " ".join(name for place, name in enumerate(_REASONS, 1) if bits >> place & 1)


def read_nvml(nvml: Any, index: int = 0) -> dict[str, Value]:
    """Return the fields that the driver tells; a call that it does not support leaves its field out."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def memory() -> Mapping[str, Value]:
        each = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        names = ("total", "used", "reserved")
        return {f"memory_{name}_mib": getattr(each, name) // 2**20 for name in names}

    def remapped() -> Mapping[str, Value]:
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
        return {"remap_pending": bool(pending), "remap_failed": bool(failed)}

    calls: tuple[Callable[[], Mapping[str, Value]], ...] = (
        memory,
        remapped,
        lambda: {"utilisation": nvml.nvmlDeviceGetUtilizationRates(handle).gpu},
        lambda: {"temperature_c": nvml.nvmlDeviceGetTemperature(handle, 0)},
        lambda: {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
        lambda: {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000},
        lambda: {"power_default_w": nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000},
        lambda: {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, 1)},
        lambda: {"sm_clock_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, 1)},
        lambda: {"throttle": reasons_of(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))},
        lambda: {"throttle": reasons_of(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))},
        lambda: {"ecc_corrected": nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0)},
        lambda: {"ecc_uncorrected": nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)},
        lambda: {"mig": nvml.nvmlDeviceGetMigMode(handle)[0] == 1},
        lambda: {"compute_mode": _MODES[nvml.nvmlDeviceGetComputeMode(handle)]},
    )
    told: dict[str, Value] = {}
    for call in calls:
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            told |= call()
    return told


def parse_smi(names: Sequence[str], line: str) -> dict[str, Value]:
    """Return the fields of one line that nvidia-smi prints with csv,noheader,nounits; [N/A] is left out."""
    told: dict[str, Value] = {}
    for name, word in zip(names, (each.strip() for each in line.split(",")), strict=True):
        if name == "throttle":
            with contextlib.suppress(ValueError):
                told[name] = reasons_of(int(word, 16))
        elif name == "compute_mode":
            told[name] = word.lower()
        elif word in _WORDS:
            told[name] = _WORDS[word]
        else:
            with contextlib.suppress(ValueError):
                told[name] = float(word)
    return told


def read_smi(index: int = 0) -> dict[str, Value]:
    """Return the fields that nvidia-smi tells, nothing where the program is not or refuses a name."""
    if shutil.which("nvidia-smi") is None:
        return {}
    names = [name for name, (query, _) in FIELDS.items() if query]
    queries = ",".join(FIELDS[name][0] for name in names)
    words = ["nvidia-smi", "-i", str(index), f"--query-gpu={queries}", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    return parse_smi(names, done.stdout.splitlines()[0]) if done.returncode == 0 and done.stdout else {}


def compare(told: Mapping[str, Any], readings: Sequence[Mapping[str, Value]]) -> list[Finding]:
    """Compare runward's fields with readings of the truth around them."""
    findings = []
    for name, (_, within) in FIELDS.items():
        mine = told.get(name)
        if name == "throttle":
            mine = " ".join(mine or ())
        truth = [reading[name] for reading in readings if reading.get(name) is not None]
        shown = " | ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in truth))
        if not truth:
            findings.append(Finding(name, str(mine), "not told", None))
        elif isinstance(mine, int | float) and not isinstance(mine, bool):
            numbers = [float(value) for value in truth if value is not None]
            is_near = min(numbers) - within <= mine <= max(numbers) + within
            findings.append(Finding(name, f"{mine:g}", shown, is_near))
        else:
            same = {" ".join(sorted(str(value).split())) for value in truth}
            findings.append(Finding(name, str(mine), shown, " ".join(sorted(str(mine).split())) in same))
    return findings
