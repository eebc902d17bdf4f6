"""Make the checks one after the other in the environment of ``tests.device.__main__``: `session WORK OUT [NAME,…]`."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from tests.device.checks import CHECKS, Bench, Check, NotChecked
from tests.device.report import Outcome, judge, write
from tests.device.truth import Finding
from tests.support.fake_nvml import Machine
from tests.support.sandbox import Sandbox

BUDGET_S = 440.0
# Short windows: that a GPU idles is noticed after two and a half of them.
_SETTINGS = "gpu_sample_s = 0.25\ngpu_window_s = 4.0\n"


def describe_machine(fake: bool) -> dict[str, str]:
    """Return the facts that a reader of the figures needs."""
    facts = {"GPU": "a fake driver: no figure here is a card's" if fake else "", "Python": platform.python_version()}
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
    driver = nvml.nvmlSystemGetDriverVersion()
    facts["GPU"] = facts["GPU"] or f"{name}, driver {driver}"
    for package in ("torch", "jax", "nvidia-ml-py", "mcp"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    return facts | {"kernel": platform.release(), "cores": str(os.cpu_count())}


async def make_check(bench: Bench, check: Check, left_s: float) -> Outcome:
    """Return the outcome of one check, which never raises and ends within its limit."""
    begun_s = time.monotonic()
    findings: list[Finding] = []

    def outcome(state: str, why: str = "") -> Outcome:
        took_s = round(time.monotonic() - begun_s, 1)
        return Outcome(check.name, check.claim, state, took_s, why, tuple(findings))  # type: ignore[arg-type]

    if check.longest_s > left_s:
        return outcome("skipped", f"{left_s:.0f} s are left, and it may need {check.longest_s:.0f} s.")
    if missing := bench.find_missing(check.needs):
        return outcome("skipped", missing)
    try:
        with anyio.fail_after(check.longest_s):
            async with bench.sandbox.agent(cold=True) as agent:
                bench.agent = agent
                await check.make(bench, findings.append)
    except NotChecked as reason:
        return outcome("skipped", str(reason))
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())):
            raise
        causes = _list_causes(error)
        if len(causes) == 1 and isinstance(causes[0], NotChecked):
            return outcome("skipped", str(causes[0]))
        return outcome("broke", "; ".join(f"{type(each).__name__}: {each}" for each in causes)[:600])
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(bench.clear)
    state = judge(findings)
    return outcome(state, "nothing could be judged" if state == "skipped" else "")


def _list_causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [cause for each in error.exceptions for cause in _list_causes(each)]
    return [error]


async def run(work: Path, out: Path, only: Sequence[str]) -> int:
    """Make the checks; return 1 if one failed or broke."""
    fake = None
    if state := os.environ.get("FAKE_NVML_STATE"):
        fake = Machine(Path(state).parent, Path(os.environ["LD_LIBRARY_PATH"]))
    kept = ("LD_LIBRARY_PATH", "FAKE_NVML_STATE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
    sandbox = Sandbox(work, f"device-{os.getpid()}", {name: os.environ[name] for name in kept if name in os.environ})
    sandbox.store.home.create()
    (work / "state" / "config.toml").write_text(_SETTINGS)
    machine = describe_machine(fake is not None)
    bench = Bench(sandbox, out, fake)
    outcomes: list[Outcome] = []
    begun_s = time.monotonic()
    try:
        for check in CHECKS:
            if only and check.name not in only:
                continue
            outcomes.append(await make_check(bench, check, BUDGET_S - (time.monotonic() - begun_s)))
            machine["took"] = f"{time.monotonic() - begun_s:.0f} s"
            write(out, machine, outcomes)
            print(json.dumps({"check": check.name, "state": outcomes[-1].state, "why": outcomes[-1].why}), flush=True)
    finally:
        sandbox.close()
    return int(any(each.state in ("failed", "broke") for each in outcomes))


if __name__ == "__main__":
    names = [name for name in sys.argv[3].split(",") if name]
    if unknown := set(names) - {check.name for check in CHECKS}:
        sys.exit(f"No check is named {', '.join(sorted(unknown))}. There are {', '.join(c.name for c in CHECKS)}.")
    sys.exit(anyio.run(run, Path(sys.argv[1]), Path(sys.argv[2]), names))
