"""gpu_check: tokens and time with healthy and hanging GPUs, and whether faults are reported correctly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import parse_requirements
from mcp_server.views import gpu_report
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, elapsed_ms
from tests.benchmarks.report import Row, Table, amount, measured, median, percentile
from tests.benchmarks.tokens import count
from tests.support.fake_nvml import FAULTS, UUIDS, Fault, Machine, library

_CALLS, _HANGING_CALLS = 20, 5
_HANG = "hang nvmlDeviceGetPowerUsage 30 3"
# The calls that every such program makes, for one GPU after the other.
_BARE = """
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h), n.nvmlDeviceGetPciInfo(h)
    n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2), n.nvmlDeviceGetUtilizationRates(h)
    n.nvmlDeviceGetComputeRunningProcesses(h), n.nvmlDeviceGetGraphicsRunningProcesses(h)
    n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureThreshold(h, 1)
    n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetEnforcedPowerLimit(h), n.nvmlDeviceGetPowerManagementDefaultLimit(h)
    n.nvmlDeviceGetClockInfo(h, 1), n.nvmlDeviceGetMaxClockInfo(h, 1), n.nvmlDeviceGetApplicationsClock(h, 0)
    n.nvmlDeviceGetMaxCustomerBoostClock(h, 0), n.nvmlDeviceGetCurrentClocksEventReasons(h)
    n.nvmlDeviceGetTotalEccErrors(h, 0, 0), n.nvmlDeviceGetTotalEccErrors(h, 1, 0)
    n.nvmlDeviceGetRetiredPages(h, 0), n.nvmlDeviceGetRetiredPages(h, 1), n.nvmlDeviceGetRetiredPagesPendingStatus(h)
    n.nvmlDeviceGetRemappedRows(h), n.nvmlDeviceGetFieldValues(h, [230])
    n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetComputeMode(h)
"""


async def measure(sandbox: Sandbox) -> Table:
    """Query a server with eight fake GPUs."""
    made = library()
    if made is None:
        raise NotMeasured("no C compiler is here to make the fake driver with")
    machine = Machine(sandbox.work, made)
    machine.report(gpus=8)
    async with sandbox.server(**machine.environ) as server:
        answer = await server.call("gpu_check")
        tokens = max(count(json.dumps(answer.data)), count(json.dumps(answer.data, separators=(",", ":"))))
        ours = [await _check_ms(server) for _ in range(_CALLS)]
        bare = [_bare_ms(machine) for _ in range(_CALLS)]
        machine.report(_HANG, gpus=8)
        hanging = [await _check_ms(server) for _ in range(_HANGING_CALLS)]
        report = (await server.call("gpu_check")).data
        if len(report["free"]) != 7 or "hangs" not in report["reasons"][0]:
            raise NotMeasured(f"with one of eight hanging, gpu_check reported {report}")
        machine.report("hang nvmlDeviceGetHandleByIndex_v2 30", gpus=8)
        all_hang = [await _check_ms(server) for _ in range(2)]
    wrong = [fault.name for fault in FAULTS if not _is_reported_correctly(machine, fault)]
    rows = (
        measured("gpu_check, 8 healthy GPUs, the answer", tokens, "tokens", at_most=300),
        measured("gpu_check, 8 healthy GPUs, p50", median(ours), "ms", baseline=median(bare)),
        measured("p99", percentile(ours, 99), "ms", baseline=percentile(bare, 99)),
        measured("one of 8 hangs, slowest", max(hanging) / 1000, "s", at_most=2),
        measured("all 8 hang, slowest", max(all_hang) / 1000, "s", at_most=2),
        Row(
            f"faults reported correctly, of {len(FAULTS)}",
            amount(len(FAULTS) - len(wrong), ""),
            bar=f"{len(FAULTS)}",
            ok=not wrong,
        ),
    )
    notes = [
        "A fake driver in C: this measures the path, not a GPU. Baseline: a bare `python -I -c` that makes the same "
        "calls one after the other; with a GPU that hangs it never returns.",
        *([f"Reported incorrectly: {', '.join(wrong)}."] if wrong else []),
        f"The answer: `{answer.text}`",
    ]
    return Table("GPUs", rows, tuple(notes))


async def _check_ms(server: Server) -> float:
    begun_s = time.perf_counter()
    await server.call("gpu_check")
    return elapsed_ms(begun_s)


def _bare_ms(machine: Machine) -> float:
    begun_s = time.perf_counter()
    env = {**os.environ, **machine.environ}
    subprocess.run([sys.executable, "-I", "-c", _BARE], env=env, check=True)
    return elapsed_ms(begun_s)


def _is_reported_correctly(machine: Machine, fault: Fault) -> bool:
    machine.report(*fault.lines, gpus=fault.gpus)
    snapshot = query_gpus(sys.executable, machine.full_environ)
    if snapshot.trouble or fault.trouble:
        return snapshot.trouble == fault.trouble and all(word in snapshot.text for word in fault.words)
    report = gpu_report.report_machine(snapshot, {}, parse_requirements(fault.require) if fault.require else None)
    reasons = "\n".join(report.reasons)
    right = (report.ok, report.free) == (fault.ok, [UUIDS[index] for index in fault.free])
    return right and all(word in reasons for word in fault.words)
