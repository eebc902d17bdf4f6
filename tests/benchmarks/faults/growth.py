"""2,000 waits, also dropped ones, 500 runs in the state directory, 50 of them live, and a soak: what grows."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.benchmarks import processes
from tests.benchmarks.faults.raw_client import RawClient, Refused, ServerGone
from tests.benchmarks.harness import REPOSITORY, Sandbox, elapsed_ms, program
from tests.benchmarks.report import Row, Table, amount, measured, percentile

LONGEST_S = 400.0
_ENDED, _LIVE, _LAUNCHERS = 450, 50, 4
_REAL = 40  # of the ended runs; the others are copies of their directories
_WAITS, _AT_ONCE = 2000, 250
_SOAK_S = float(os.environ.get("RUNWARD_BENCH_SOAK_S") or 20)
_SETTLED_MIB, _LEVEL, _CALLS = 16.0, 1.5, 40


async def measure(sandbox: Sandbox) -> Table:
    """Fill a state directory, wait and drop waits, soak, and compare a server before and after."""
    return await anyio.to_thread.run_sync(_measure, sandbox)


@dataclass(frozen=True)
class Size:
    """What a server holds, and what its calls take at the 50th and 99th percentile."""

    memory_mib: float
    descriptors: int
    threads: int
    list_ms: tuple[float, float]
    wait_ms: tuple[float, float]
    list_cpu_ms: float  # processor time of the server for one list_runs: a busy machine changes it least

    @classmethod
    def of(cls, client: RawClient, run_id: str) -> Size:
        """Measure a server."""
        cpu_s = processes.cpu_s(client.pid)
        listed = _took(lambda: client.call("list_runs"), _CALLS)
        list_cpu_ms = (processes.cpu_s(client.pid) - cpu_s) / _CALLS * 1000
        took = {"list": listed, "wait": _took(lambda: client.call("wait_run", run_ids=run_id, timeout_s=0), _CALLS)}
        status = Path(f"/proc/{client.pid}/status").read_text()
        threads = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
        return cls(
            processes.memory_mib(client.pid)[0],
            len(list(Path(f"/proc/{client.pid}/fd").iterdir())),
            threads,
            (percentile(took["list"], 50), percentile(took["list"], 99)),
            (percentile(took["wait"], 50), percentile(took["wait"], 99)),
            list_cpu_ms,
        )

    @property
    def text(self) -> str:
        """All figures on one line."""
        return (
            f"{self.memory_mib:.0f} MiB, {self.descriptors} descriptors, {self.threads} threads; p50 / p99 of list_runs"
            f" {self.list_ms[0]:.1f} / {self.list_ms[1]:.1f} ms, of wait_run {self.wait_ms[0]:.1f} / "
            f"{self.wait_ms[1]:.1f} ms"
        )


def _measure(sandbox: Sandbox) -> Table:
    argv, log = [sys.executable, "-m", "mcp_server", "serve"], sandbox.root / "server.log"
    client = RawClient(argv, sandbox.environment(), REPOSITORY, log)
    try:
        live = [str(client.call("launch_run", command=program("ticker", 900))["run_id"]) for _ in range(_LIVE)]
        sizes = {"50 live runs": Size.of(client, live[0])}
        wrong = _fill(client, sandbox)
        sizes[f"and {_ENDED} ended ones"] = Size.of(client, live[0])
        _wait_often(client, live)
        sizes[f"after {_WAITS:,} waits"] = Size.of(client, live[0])
        _drop_often(client, live)
        sizes[f"after {_WAITS:,} dropped waits"] = Size.of(client, live[0])
        _drop_often(client, live)
        sizes[f"after {_WAITS:,} more"] = Size.of(client, live[0])
        begun_s, cpu_s = time.monotonic(), processes.cpu_s(client.pid)
        calls = _soak(client, live)
        core = (processes.cpu_s(client.pid) - cpu_s) / (time.monotonic() - begun_s) * 100
        sizes[f"after {_SOAK_S:g} s with {calls:,} calls"] = last = Size.of(client, live[0])
        lost = sum(run["state"] not in ("running", "stalled") for run in _status(client, live))
    finally:
        client.close()
    before, level = sizes[f"and {_ENDED} ended ones"], sizes[f"after {_WAITS:,} dropped waits"]
    rows = [Row(what, size.text) for what, size in sizes.items()]
    rows += [
        Row("live runs that are not running at the end", str(lost), bar="0", ok=not lost),
        Row(f"wrong ends of {_REAL}", str(wrong), bar="0", ok=not wrong),
        measured(
            "memory: more after the first dropped waits",
            last.memory_mib - level.memory_mib,
            "MiB",
            at_most=_SETTLED_MIB,
        ),
        Row(
            "descriptors more than before all waits",
            str(last.descriptors - before.descriptors),
            bar="≤ 2",
            ok=last.descriptors - before.descriptors <= 2,
        ),
        measured(
            "processor time of the server for one list_runs at the end",
            last.list_cpu_ms,
            "ms",
            baseline=before.list_cpu_ms,
            ratio_at_most=_LEVEL,
        ),
        Row("the server during the soak, of one core", amount(core, "%")),
    ]
    return Table("Growth: 2,000 waits, 500 runs, 50 live, a soak", tuple(rows))


def _took(act: Callable[[], Any], times: int) -> list[float]:
    took = []
    for _ in range(times):
        begun_s = time.perf_counter()
        act()
        took.append(elapsed_ms(begun_s))
    return took


def _status(client: RawClient, run_ids: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call("list_runs", limit=500)["runs"]
    return [run for run in found if run["run_id"] in run_ids]


def _fill(client: RawClient, sandbox: Sandbox) -> int:
    """Make 450 ended runs; return how many ends are wrong."""
    wrong: list[str] = []
    ended: list[str] = []

    def launch(share: int) -> None:
        for number in range(share, _REAL, _LAUNCHERS):
            run_id = client.call("launch_run", command=f"exit {number % 5}")["run_id"]
            end = client.call("wait_run", run_ids=run_id, until="end", timeout_s=60)["runs"][0]
            ended.append(run_id)
            if end.get("exit_code") != number % 5:
                wrong.append(run_id)

    _in_threads(launch, _LAUNCHERS)
    for number in range(_ENDED - _REAL):
        source = sandbox.run_dir(ended[number % len(ended)])
        copy = source.with_name(f"copy-{number:04d}")
        shutil.copytree(source, copy)
        spec = json.loads((copy / "spec.json").read_text())
        (copy / "spec.json").write_text(json.dumps({**spec, "run_id": copy.name}))
    return len(wrong)


def _in_threads(act: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=act, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _wait_often(client: RawClient, live: list[str]) -> None:
    """Open waits of a second and read every answer."""

    def wait(share: int) -> None:
        for number in range(share, _WAITS, _AT_ONCE // 5):
            client.call("wait_run", run_ids=live[number % len(live)], until="end", timeout_s=0.5)

    _in_threads(wait, _AT_ONCE // 5)


def _drop_often(client: RawClient, live: list[str]) -> None:
    """Open waits for an hour and give each up as clients do over stdio: without a word."""
    for number in range(_WAITS):
        client.drop("wait_run", run_ids=live[number % len(live)], until="end", timeout_s=3600)
        if number % _AT_ONCE == 0:
            client.call("list_runs", limit=1)
    client.call("list_runs", limit=1)


def _soak(client: RawClient, live: list[str]) -> int:
    """Call what agents call, for as long as the soak lasts; return how often."""
    until_s, calls = time.monotonic() + _SOAK_S, 0
    while time.monotonic() < until_s:
        with contextlib.suppress(Refused, ServerGone):
            run_id = live[calls % len(live)]
            client.call("wait_run", run_ids=run_id, timeout_s=0)
            client.call("read_log", run_id=run_id)
            client.call("list_runs")
            calls += 3
        time.sleep(0.1)
    return calls
