"""The checks: each a claim about GPUs, made through a real client, beside what NVML, nvidia-smi or PyTorch tell."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from mcp_server.gpus.leases import Leases
from mcp_server.gpus.query import query_gpus
from tests.device import truth
from tests.device.truth import Finding
from tests.support.fake_nvml import Machine
from tests.support.sandbox import Agent, Sandbox, until_async

PROGRAMS = Path(__file__).with_name("programs.py")
_MIB = 2048  # of a program that holds memory
_CUDA = "it needs real CUDA: PyTorch and a card"
Tell = Callable[[Finding], None]


class NotChecked(Exception):
    """The check does not apply here, and why."""


@dataclass
class Bench:
    """The sandbox, its client, and the fake driver in a trial without a card."""

    sandbox: Sandbox
    out: Path
    fake: Machine | None = None
    agent: Agent = field(init=False)
    _others: list[subprocess.Popen[str]] = field(default_factory=list)

    @functools.cached_property
    def nvml(self) -> Any:
        """The binding, started once in this process."""
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return nvml

    @property
    def used_mib(self) -> float:
        """Memory in use as NVML tells this process."""
        return float(truth.read_nvml(self.nvml)["memory_used_mib"] or 0)

    def pids(self) -> dict[int, float]:
        """Processes on the GPU and their MiB, as NVML tells this process."""
        found = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.nvml.nvmlDeviceGetHandleByIndex(0))
        return {each.pid: (each.usedGpuMemory or 0) / 2**20 for each in found}

    def find_missing(self, needs: str) -> str:
        """Return why what a check needs is not here, or nothing."""
        if needs and self.fake:
            return f"{_CUDA if needs == 'torch' else f'it needs real CUDA and {needs}'}; the driver is a fake."
        missing = [name for name in needs.split() if importlib.util.find_spec(name) is None]
        return f"{', '.join(missing)} is not installed." if missing else ""

    def words(self, name: str, *more: str) -> list[str]:
        """Return the command of a program."""
        return [sys.executable, str(PROGRAMS), name, *more]

    def hold_words(self, until: str, *more: str) -> list[str]:
        """Return the command of a program with GPU memory that ends once the file ``until`` exists."""
        return self.words("hold", "--mib", "0" if self.fake else str(_MIB), "--until", str(self.file(until)), *more)

    def file(self, name: str) -> Path:
        """Return the file of this name."""
        return self.sandbox.path / name

    async def seat(self, run_id: str) -> int:
        """Wait until a ``hold`` has its memory, tell the fake driver of it, and return its pid."""
        log = await until_async(lambda: re.search(r"pid (\d+)", self.sandbox.log(run_id)), "its first step")
        pid = int(log[1])
        if self.fake:
            self.fake.report(f"proc 0 {pid} {_MIB}", gpus=1)
        return pid

    async def start_stranger(self, words: list[str]) -> int:
        """Start a ``hold`` outside of runward, and return its pid."""
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._others.append(process)
        assert process.stdout is not None
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert "pid" in line, f"the program printed {line!r}"
        if self.fake:
            self.fake.report(f"proc 0 {process.pid} {_MIB}", gpus=1)
        return process.pid

    async def log_tail(self, run_id: str) -> str:
        """Return the last lines of a log, for a finding."""
        return " / ".join(self.sandbox.log(run_id).splitlines()[-3:])

    def keep(self, name: str, text: str) -> None:
        """Keep a text that explains a finding; one file, since a lent machine returns few."""
        with (self.out / "texts.txt").open("a", encoding="utf-8") as file:
            file.write(f"==== {name}\n{text}\n")

    def end_strangers(self, *, by_force: bool = False) -> None:
        """Wait for the end of the programs outside of runward: the fake driver takes a zombie for a living one."""
        for process in self._others:
            if by_force:
                process.kill()
            process.wait(20)
            if process.stdout:
                process.stdout.close()
        self._others.clear()

    def clear(self) -> None:
        """End all that a check started, runs and queued ones too, and free the fake GPU."""
        self.end_strangers(by_force=True)
        self.sandbox.close()
        if self.fake:
            self.fake.report(gpus=1)


@dataclass(frozen=True)
class Check:
    """A check, the packages it ``needs`` (none: it can be tried with the fake), and the time it may take."""

    name: str
    claim: str
    make: Callable[[Bench, Tell], Awaitable[None]]
    needs: str = ""
    longest_s: float = 40.0


async def check_fields(bench: Bench, tell: Tell) -> None:
    """Compare each field of a snapshot with readings before and after."""
    readings = [truth.read_nvml(bench.nvml), truth.read_smi()]
    environ = {**os.environ, **bench.sandbox.environ}
    snapshot = await anyio.to_thread.run_sync(lambda: query_gpus(sys.executable, environ))
    readings += [truth.read_nvml(bench.nvml), truth.read_smi()]
    if snapshot.trouble:
        tell(Finding("snapshot", f"{snapshot.trouble}: {snapshot.text}", "NVML answers", False))
        return
    gpu = snapshot.gpus[0]
    for finding in truth.compare(vars(gpu), readings):
        tell(finding)
    uuid = bench.nvml.nvmlDeviceGetUUID(bench.nvml.nvmlDeviceGetHandleByIndex(0))
    tell(Finding("uuid", gpu.uuid, str(uuid), gpu.uuid == uuid))
    tell(Finding("driver", str(snapshot.driver), bench.nvml.nvmlSystemGetDriverVersion(), None))
    tell(Finding("calls that fail", str(gpu.failed or "none"), "", None))
    tell(Finding("nvidia-smi", "", "read" if readings[1] else "not here, or it refused the query", None))


async def check_time(bench: Bench, tell: Tell) -> None:
    """Call gpu_check twenty times."""
    took_ms = []
    for _ in range(20):
        begun_s = time.perf_counter()
        answer = await bench.agent.call("gpu_check")
        took_ms.append(1000 * (time.perf_counter() - begun_s))
    tell(Finding("answer", str(answer), "", None))
    tell(Finding("median", f"{statistics.median(took_ms):.0f} ms", "", None))
    tell(Finding("slowest", f"{max(took_ms):.0f} ms", "at most 2000 ms", max(took_ms) <= 2000))


async def check_stranger(bench: Bench, tell: Tell) -> None:
    """A process outside of runward is named; its GPU is refused, and waited for."""
    pid = await bench.start_stranger(bench.hold_words("stranger-ends"))
    known = bench.pids()
    tell(Finding("its pid in NVML", str(pid), str(known), None))
    report = await bench.agent.call("gpu_check")
    row = report["gpus"][0]
    tell(Finding("named by gpu_check", row, f"pid {pid}", str(pid) in row))
    refused = await bench.agent.refusal("launch_run", command="true", gpus=[0])
    tell(Finding("refused", refused, f"pid {pid}", str(pid) in refused))
    if pid in known:
        mib = f"{known[pid]:,.0f} MiB"
        tell(Finding("its memory", refused, mib, mib in refused))
    waiting = await bench.agent.call("launch_run", command="true", gpus=1, queue=True)
    tell(Finding("queued", waiting["state"], "queued", waiting["state"] == "queued"))
    bench.file("stranger-ends").touch()
    await anyio.to_thread.run_sync(bench.end_strangers)
    end = await bench.agent.end(waiting["run_id"])
    tell(Finding("started once it has ended", end["state"], "finished", end["state"] == "finished"))


async def check_leases(bench: Bench, tell: Tell) -> None:
    """A GPU is leased by UUID and by index, and the command sees that one."""
    uuid = bench.nvml.nvmlDeviceGetUUID(bench.nvml.nvmlDeviceGetHandleByIndex(0))
    for what, asked in (("by index", [0]), ("by UUID", [uuid]), ("by a beginning of it", [uuid[:12]])):
        gate = f"lease-{len(str(asked))}"
        run_id = await bench.agent.launch(bench.hold_words(gate), gpus=asked)
        holders = {name: holder.run_id for name, holder in Leases(bench.file("leases")).holders().items()}
        tell(Finding(f"leased {what}", str(holders), uuid, holders == {uuid: run_id}))
        refused = await bench.agent.refusal("launch_run", command="true", gpus=[0])
        tell(Finding("a second one is refused", refused, run_id, run_id in refused))
        bench.file(gate).touch()
        end = await bench.agent.end(run_id)
        tell(Finding("ended", end["state"], "finished", end["state"] == "finished"))
    seen = "import torch; print('sees', torch.cuda.get_device_properties(0).uuid)"
    if not bench.fake:
        run_id = await bench.agent.launch([sys.executable, "-c", seen], gpus=[0])
        await bench.agent.end(run_id)
        log = bench.sandbox.log(run_id)
        tell(Finding("PyTorch sees the leased one", log, uuid, uuid.removeprefix("GPU-") in log))


async def check_owner(bench: Bench, tell: Tell) -> None:
    """A process of a run is told with its run, and the memory of the run's GPU is NVML's."""
    run_id = await bench.agent.launch(bench.hold_words("owner-ends"), gpus=[0])
    pid = await bench.seat(run_id)
    environ = {**os.environ, **bench.sandbox.environ}
    snapshot = await anyio.to_thread.run_sync(lambda: query_gpus(sys.executable, environ))
    told = [(each.pid, each.run_id, each.memory_mib) for each in snapshot.gpus[0].processes]
    known = bench.pids()
    tell(Finding("pid, run and MiB", str(told), str(known), told == [(pid, run_id, int(known.get(pid, -1)))]))
    report = await bench.agent.call("gpu_check", run_id=run_id)
    mib = re.search(r" (\d+)(?:/\d+)?MiB", report["gpus"][0])
    used = bench.used_mib
    near = mib is not None and abs(float(mib[1]) - used) <= 16
    tell(Finding("gpu_check(run_id)", report["gpus"][0], f"{used:.0f} MiB used", near))
    bench.file("owner-ends").touch()
    await bench.agent.end(run_id)


async def check_training(bench: Bench, tell: Tell) -> None:
    """A training run's first step is told, and its peak memory is PyTorch's reserve and the context's."""
    before = bench.used_mib
    tiny_mib = 2  # PyTorch reserves its smallest block for it; the rest of the memory in use is the context
    await bench.start_stranger(bench.words("hold", "--mib", str(tiny_mib), "--until", str(bench.file("context-known"))))
    context = bench.used_mib - before - tiny_mib
    bench.file("context-known").touch()
    await anyio.to_thread.run_sync(bench.end_strangers)
    gate = bench.file("training-ends")
    words = bench.words("train", "--steps", "400", "--width", "8192", "--until", str(gate))
    begun_s = time.monotonic()
    run_id = await bench.agent.launch(words, gpus=1)
    news = await bench.agent.call("wait_run", run_ids=run_id, timeout_s=60)
    first = news["runs"][0]
    tell(Finding("first news", f"{news['reason']}, step {first.get('step')}", "", None))
    tell(Finding("until then", f"{time.monotonic() - begun_s:.1f} s", "", None))
    found: Any = await until_async(
        lambda: re.search(r"reserved_mib=(\d+)", bench.sandbox.log(run_id)), "PyTorch's figure"
    )
    reserved = float(found[1])
    held = bench.used_mib
    await anyio.sleep(1.5)  # some samples of the supervisor, while the memory stays
    report = await bench.agent.call("gpu_check", run_id=run_id)
    peak = re.search(r"peak (\d+) MiB", report["gpus"][0])
    tell(
        Finding(
            "gpu_check of the run", report["gpus"][0], f"{held:.0f} MiB in use", f" {held:.0f}" in report["gpus"][0]
        )
    )
    expected = before + reserved + context
    truth_text = f"{before:.0f} before + {reserved:.0f} reserved + {context:.0f} of the context; {held:.0f} in NVML"
    peak_mib = float(peak[1]) if peak else 0.0
    tell(Finding("peak", f"{peak_mib:.0f} MiB", truth_text, abs(peak_mib / expected - 1) <= 0.05))
    gate.touch()
    end = await bench.agent.end(run_id)
    tell(Finding("end", f"{end['state']}, step {end.get('step')}", "finished, 400", end.get("step") == 400))


async def check_memory_error(bench: Bench, tell: Tell) -> None:
    """Real out-of-memory is told as that, the batch is halved, and the second try passes."""
    policy = {"oom_gpu": [{"do": "retry", "wait_s": 0, "change": {"batch": "halve"}, "times": 2}]}
    words = bench.words("out_of_memory")
    run_id = await bench.agent.launch(words, gpus=1, params={"batch": 16}, recovery=policy)
    end = await bench.agent.end(run_id)
    told = (end["state"], end.get("attempt"), end.get("params"))
    tell(Finding("the end", str(told), "finished, attempt 2, batch 8", told == ("finished", 2, {"batch": 8})))
    retries = [each for each in bench.sandbox.run(run_id).events if each["kind"] == "retrying"]
    failure: dict[str, Any] = retries[0]["failure"] if retries else {}
    tell(Finding("kind", str(failure.get("kind")), "oom_gpu", failure.get("kind") == "oom_gpu"))
    line = str(failure.get("line"))
    tell(Finding("root line", line, "OutOfMemoryError", "OutOfMemoryError" in line))


_FAULTS = (
    ("device_assert", "cuda_error", r"device-side assert|Assertion"),
    ("illegal_address", "cuda_error", r"illegal memory access|an illegal"),
    ("invalid_ordinal", "cuda_error", r"invalid device ordinal"),
    ("cublas", None, r"CUBLAS|out of memory"),
)


async def check_faults(bench: Bench, tell: Tell) -> None:
    """CUDA's errors get their kind, and the line that proves it."""
    for name, kind, pattern in _FAULTS:
        run_id = await bench.agent.launch(bench.words(name), gpus=1)
        await _tell_failure(bench, tell, run_id, name, kind, pattern)


async def _tell_failure(bench: Bench, tell: Tell, run_id: str, name: str, kind: str | None, pattern: str) -> None:
    end = await bench.agent.end(run_id)
    failure = end.get("failure") or {}
    if end["state"] == "finished":
        tell(Finding(name, "finished", "the program did not fail here: " + await bench.log_tail(run_id), None))
        return
    line = str(failure.get("line"))
    # cuBLAS is refused its handle by a lack of memory: oom_gpu is as true as cuda_error.
    right = failure.get("kind") == kind if kind else failure.get("kind") in ("cuda_error", "oom_gpu")
    tell(Finding(f"{name}: kind", str(failure.get("kind")), kind or "cuda_error or oom_gpu", right))
    tell(Finding(f"{name}: line", line, await bench.log_tail(run_id), re.search(pattern, line) is not None))
    bench.keep(name, bench.sandbox.log(run_id))


async def check_nccl(bench: Bench, tell: Tell) -> None:
    """Two ranks on one GPU are an error of NCCL."""
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        str(PROGRAMS),
        "nccl",
    ]
    run_id = await bench.agent.launch(words, gpus=1)
    await _tell_failure(bench, tell, run_id, "nccl", "nccl_error", r"Duplicate GPU|ncclInvalidUsage|NCCL")


async def check_kill(bench: Bench, tell: Tell) -> None:
    """A training run that ignores signals is stopped, and its memory is back."""
    before = bench.used_mib
    run_id = await bench.agent.launch(bench.hold_words("never", "--deaf"), gpus=[0])
    pid = await bench.seat(run_id)
    held = bench.used_mib
    tell(Finding("memory held", f"{held - before:.0f} MiB", f"at least {_MIB} MiB", held - before >= _MIB))
    begun_s = time.monotonic()
    killed = await bench.agent.kill(run_id)
    took_s = time.monotonic() - begun_s
    after = bench.used_mib
    is_back = after - before < 64
    told = killed.get("gpu_memory_released")
    truth_text = f"{after:.0f} MiB in use, {before:.0f} before"
    tell(Finding("gpu_memory_released", str(told), truth_text, told is is_back))
    tell(Finding("memory back", f"{after:.0f} MiB", f"{before:.0f} MiB", is_back))
    tell(Finding("its process", f"pid {pid}", "gone", not Path(f"/proc/{pid}").exists()))
    tell(Finding("took", f"{took_s:.1f} s", "", None))


async def check_supervisor(bench: Bench, tell: Tell) -> None:
    """The lease of a killed supervisor stays until its command ends."""
    run_id = await bench.agent.launch(bench.hold_words("command-ends"), gpus=[0])
    await bench.seat(run_id)
    os.kill(bench.sandbox.supervisor(run_id), signal.SIGKILL)
    await until_async(lambda: bench.sandbox.run(run_id).state == "lost", "the end of the supervisor")
    refused = await bench.agent.refusal("launch_run", command="true", gpus=[0])
    tell(Finding("leased beyond its supervisor", refused, run_id, f"leased by {run_id}" in refused))
    bench.file("command-ends").touch()
    await until_async(lambda: not Leases(bench.file("leases")).holders(), "the lease to be free")
    end = await bench.agent.end(await bench.agent.launch("true", gpus=[0]))
    tell(Finding("free once the command has ended", end["state"], "finished", end["state"] == "finished"))


_CELL = """
import os, sys, time
work = os.environ["MARKS"]
name = f"{work}/{sys.argv[-1]}"
others = os.listdir(work)
open(name, "w").close()
print("step 1/2 beside", len(others), flush=True)
if os.environ.get("DEVICE") == "cuda":
    import torch
    torch.ones(1 << 20, device="cuda").sum().item()
assert os.listdir(work) == [os.path.basename(name)], os.listdir(work)
os.unlink(name)
print("step 2/2 alone 1", flush=True)
"""


async def check_sweep(bench: Bench, tell: Tell) -> None:
    """Eight cells on one GPU are never two at once."""
    marks = bench.file("marks")
    marks.mkdir(exist_ok=True)
    program = bench.file("cell.py")
    program.write_text(_CELL)
    env = {"MARKS": str(marks), "DEVICE": "" if bench.fake else "cuda"}
    common = {"command": f"{sys.executable} {program}", "gpus": 1, "env": env}
    name = f"device-{os.getpid()}"
    sweep = await bench.agent.call("launch_sweep", name=name, common=common, grid={"cell": list(range(8))})
    answer: dict[str, Any] = {}
    while answer.get("reason") != "ended":  # bounded by the time of the check
        answer = await bench.agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=30)
    cells = answer["sweep"]["cells"]
    tell(Finding("cells", str(cells), "8 finished", cells == {"total": 8, "finished": 8}))
    runs = (await bench.agent.call("list_runs", sweep=name, limit=20))["runs"]
    spans = sorted((str(bench.sandbox.run(each["run_id"]).started_at), each["run_id"]) for each in runs)
    beside = [int(n) for _, run_id in spans for n in re.findall(r"beside (\d+)", bench.sandbox.log(run_id))]
    tell(Finding("others at a start", str(beside), "eight times 0", beside == [0] * 8))


async def check_idle(bench: Bench, tell: Tell) -> None:
    """A GPU that idles after its work is noticed."""
    gate = bench.file("idle-ends")
    if bench.fake:
        words = bench.hold_words("idle-ends")
    else:
        words = bench.words("train", "--steps", "600", "--width", "8192", "--until", str(gate))
    run_id = await bench.agent.launch(words, gpus=[0])
    if bench.fake:
        busy = f"gpu 0 {bench.nvml.nvmlDeviceGetUUID(bench.nvml.nvmlDeviceGetHandleByIndex(0))} NVIDIA_H100 81559"
        bench.fake.report(f"{busy} 97 60 600000", gpus=0)
        await anyio.sleep(3)  # some samples of work
        bench.fake.report(f"{busy} 0 40 70000", gpus=0)
    reasons: list[str] = []
    while "gpu_deviation" not in reasons:  # bounded by the time of the check
        news = await bench.agent.call("wait_run", run_ids=run_id, timeout_s=40)
        reasons.append(news["reason"])
        if news["reason"] == "ended":
            break
    text = next((e["text"] for e in bench.sandbox.run(run_id).events if e["kind"] == "gpu_deviation"), "none")
    readings = truth.read_nvml(bench.nvml).get("utilisation")
    tell(Finding("deviation", text, f"utilisation {readings} %", "at 0 %" in text))
    gate.touch()
    await bench.agent.end(run_id)


async def check_jax(bench: Bench, tell: Tell) -> None:
    """JAX's share of the memory is told while it runs, and its lack of memory with the setting that matters."""
    total = float(truth.read_nvml(bench.nvml)["memory_total_mib"] or 0)
    gate = bench.file("jax-ends")
    run_id = await bench.agent.launch(bench.words("jax_takes_all", "--until", str(gate)), gpus=1)
    await until_async(lambda: "step 1/1" in bench.sandbox.log(run_id), "its first step")
    report = await bench.agent.call("gpu_check", run_id=run_id)
    used = bench.used_mib
    mib = re.search(r" (\d+)(?:/\d+)?MiB", report["gpus"][0])
    near = mib is not None and abs(float(mib[1]) - used) <= 64
    tell(
        Finding(
            "memory taken at once", report["gpus"][0], f"{used:.0f} of {total:.0f} MiB", near and used > 0.6 * total
        )
    )
    gate.touch()
    await bench.agent.end(run_id)
    run_id = await bench.agent.launch(bench.words("jax_second"), gpus=1)
    end = await bench.agent.end(run_id)
    failure = end.get("failure") or {}
    tell(Finding("kind", str(failure.get("kind")), "oom_gpu", failure.get("kind") == "oom_gpu"))
    tell(Finding("line", str(failure.get("line")), await bench.log_tail(run_id), "RESOURCE_EXHAUSTED" in str(failure)))
    advice = str(failure.get("advice"))
    tell(Finding("advice", advice, "XLA_PYTHON_CLIENT_…", "XLA_PYTHON_CLIENT" in advice))
    bench.keep("jax_second", bench.sandbox.log(run_id))


async def check_speed(bench: Bench, tell: Tell) -> None:
    """Steps a second with runward are at least 99 % of those without; each three times, in turn."""
    words = bench.words("train", "--steps", "4000", "--width", "4096", "--every", "100")
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        for watched in (False, True):
            if watched:
                run_id = await bench.agent.launch(words, gpus=1)
                await bench.agent.end(run_id)
                output = bench.sandbox.log(run_id)
            else:
                done = await anyio.run_process(words)
                output = done.stdout.decode()
            rate = re.search(r"steps_a_second=([\d.]+)", output)
            assert rate is not None, output[-400:]
            found[watched].append(float(rate[1]))
    share = statistics.median(found[True]) / statistics.median(found[False])
    shown = {watched: " ".join(f"{rate:.1f}" for rate in rates) for watched, rates in found.items()}
    tell(Finding("steps a second", f"{shown[True]} ({100 * share:.2f} %)", f"{shown[False]} without", share >= 0.99))


async def check_limits(bench: Bench, tell: Tell) -> None:
    """Limits are judged by what the driver reports, and nothing is changed."""
    told = truth.read_nvml(bench.nvml)
    watts = float(told["power_limit_w"] or 0)
    for limit, fits in ((int(watts) - 1, False), (int(watts) + 1, True)):
        report = await bench.agent.call("gpu_check", require={"power_limit_w": limit, "count": 1})
        tell(
            Finding(
                f"at most {limit} W",
                f"ok {report['ok']}: {' '.join(report['reasons'])}",
                f"{watts:g} W",
                report["ok"] is fits,
            )
        )
    clock = int(float(told["sm_clock_max_mhz"] or 0)) - 100
    report = await bench.agent.call("gpu_check", require={"max_sm_clock_mhz": clock, "count": 1})
    tell(
        Finding(
            f"at most {clock} MHz",
            f"ok {report['ok']}: {' '.join(report['reasons'])}",
            "no cap was set",
            report["ok"] is False,
        )
    )
    after = truth.read_nvml(bench.nvml)
    same = all(told.get(name) == after.get(name) for name in ("power_limit_w", "sm_clock_max_mhz"))
    tell(Finding("settings", "unchanged", "as before" if same else "changed", same))
    if shutil.which("nvidia-smi") is None:
        tell(Finding("nvidia-smi -q", "", "not here", None))
        return
    done = subprocess.run(["nvidia-smi", "-q", "-i", "0"], capture_output=True, text=True, check=False, timeout=30)
    bench.keep("nvidia-smi -q", done.stdout)
    shown = re.search(r"Current Power Limit\s*: ([\d.]+) W", done.stdout)
    is_near = abs(float(shown[1]) - watts) < 0.5 if shown else None
    tell(Finding("nvidia-smi -q: power limit", f"{watts:g} W", shown[1] if shown else "not told", is_near))
    for name in ("Customer Boost", "Applications Clocks", "Clocks Event Reasons", "Max Clocks"):
        block = re.search(rf"{name}.*\n((?:\s{{8,}}.*\n){{1,4}})", done.stdout)
        tell(Finding(f"nvidia-smi -q: {name}", "", " ".join(block[1].split()) if block else "not told", None))


CHECKS = (
    Check("fields", "each field of gpu_check is what NVML and nvidia-smi tell", check_fields),
    Check("time", "gpu_check answers in two seconds", check_time),
    Check("limits", "limits are judged by the driver's figures", check_limits),
    Check("stranger", "a process outside is named; its GPU is refused and waited for", check_stranger),
    Check("leases", "a GPU is leased by index and UUID", check_leases, "", 60),
    Check("owner", "a process is told with its run and its memory", check_owner),
    Check("training", "first step and peak memory are PyTorch's", check_training, "torch", 75),
    Check("memory_error", "out-of-memory is told, halved and passes", check_memory_error, "torch", 75),
    Check("faults", "CUDA's errors have their kind and line", check_faults, "torch triton", 90),
    Check("nccl", "two ranks on one GPU are NCCL's error", check_nccl, "torch", 75),
    Check("kill", "a deaf training run is stopped, its memory is back", check_kill),
    Check("supervisor", "a lease outlives its supervisor until the command ends", check_supervisor),
    Check("sweep", "eight cells on one GPU are never two at once", check_sweep, "", 110),
    Check("idle", "a GPU that idles after work is noticed", check_idle, "", 60),
    Check("jax", "JAX's memory is told as JAX's", check_jax, "jax", 75),
    Check("speed", "runward costs under 1 % of the steps", check_speed, "torch", 100),
)
