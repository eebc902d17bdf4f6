"""A file system that is silent for 30 s, under one agent's state, results and TensorBoard directory: what others feel.

fsfreeze holds every write to it, as a file server does that restarts.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.benchmarks.faults.raw_client import RawClient, Refused, ServerGone
from tests.benchmarks.harness import REPOSITORY, NotMeasured, Sandbox, elapsed_ms, program
from tests.benchmarks.report import Row, Table, measured, percentile

_SILENT_S, _QUIET_S, _PAUSE_S = 30.0, 8.0, 0.05
_P99_MS = 100
_BLUEPRINT = """## [exp_purpose]
Write where nothing can be written
## [exp_codebase_dir]
{code}
## [exp_launch_command]
bash train.sh
## [exp_result_dir]
{results}
"""
_OOM = "for i in 1 2 3; do echo step $i; done; echo 'RuntimeError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1"


async def measure(sandbox: Sandbox) -> Table:
    """Freeze one agent's file system, and measure what another one's calls take before and meanwhile."""
    return await anyio.to_thread.run_sync(_measure, sandbox)


@contextlib.contextmanager
def _disk(sandbox: Sandbox) -> Iterator[Path]:
    image, mount = sandbox.root / "disk.img", sandbox.root / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            raise NotMeasured("this machine mounts no image (needs root)")
    try:
        yield mount
    finally:
        subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(mount)], check=False)


def _measure(sandbox: Sandbox) -> Table:
    argv, log = [sys.executable, "-m", "mcp_server", "serve"], sandbox.root / "server.log"
    with _disk(sandbox) as disk, contextlib.ExitStack() as stack:
        shared = RawClient(argv, sandbox.environment(), REPOSITORY, log)
        stack.callback(shared.close)
        own = RawClient(argv, {**sandbox.environment(), "RUNWARD_HOME": str(disk / "home")}, REPOSITORY, log)
        stack.callback(own.close)
        bea = str(shared.call("launch_run", command=program("witness", sandbox.work / "bea", "stays", 0, 0))["run_id"])
        there: dict[str, Any] = {"tensorboard": str(disk / "tb"), "cwd": str(disk)}
        (disk / "tb").mkdir()
        writes = "while :; do echo 1 >> tb/events; echo step $((++i)); sleep 0.1; done"
        ana = str(shared.call("launch_run", command=writes, **there)["run_id"])
        ended = str(shared.call("launch_run", command="echo step 1")["run_id"])
        shared.call("wait_run", run_ids=ended, until="end", timeout_s=30)
        far = str(own.call("launch_run", command=f"sleep 3; {_OOM}")["run_id"])
        blueprint = sandbox.work / "silent.md"
        blueprint.write_text(_BLUEPRINT.format(code=sandbox.work, results=disk / "results"))
        (sandbox.work / "train.sh").write_text("echo step 1\n")
        quiet = _calls(shared, bea, _QUIET_S)
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        held = [
            _call(shared, "launch_run", blueprint=str(blueprint)),
            _call(shared, "finish_blueprint", run_id=ended, result_dir=str(disk / "other")),
            _call(shared, "read_tb", run_id=ana),
            _call(own, "launch_run", command="true"),
        ]
        hangs = _launch_hanging(shared)
        judged = str(shared.call("launch_run", command=_OOM)["run_id"])
        busy = _calls(shared, bea, _SILENT_S)
        kind = (
            shared.call("wait_run", run_ids=judged, until="end", timeout_s=10)["runs"][0].get("failure", {}).get("kind")
        )
        stalled = "stalled" in (sandbox.run_dir(hangs) / "events.jsonl").read_text()
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        for thread in held:
            thread.join(60)
        came_back = sum(not thread.is_alive() for thread in held)
        after = own.call("wait_run", run_ids=far, until="end", timeout_s=30)["runs"][0]
        for run_id in (bea, ana, hangs):
            token = shared.call("kill_run", run_id=run_id)["confirm_token"]
            shared.call("kill_run", run_id=run_id, confirm_token=token)
    end = (after["state"], after.get("exit_code"), after.get("failure", {}).get("kind"))
    rows = (
        measured("other calls, p99", percentile(busy, 99), "ms", baseline=percentile(quiet, 99), at_most=_P99_MS),
        measured("other calls, p50", percentile(busy, 50), "ms", baseline=percentile(quiet, 50)),
        Row("failure of another run meanwhile", str(kind), bar="oom_gpu", ok=kind == "oom_gpu"),
        Row("stall of another run meanwhile", "reported" if stalled else "missed", bar="reported", ok=stalled),
        Row("the run in the silent state directory, afterwards", f"{end}", ok=end == ("failed", 1, "oom_gpu")),
        Row(
            "calls that the silence held, answered afterwards", f"{came_back} of {len(held)}", ok=came_back == len(held)
        ),
    )
    note = f"Baseline: the same calls of the same server in the {_QUIET_S:g} s before. N = {len(busy)}."
    return Table(f"A file system silent for {_SILENT_S:g} s", rows, (note,))


def _launch_hanging(client: RawClient) -> str:
    command = "for i in 1 2 3 4 5 6; do echo step $i; sleep 0.1; done; sleep 600"
    return str(client.call("launch_run", command=command, stall_timeout_s=5)["run_id"])


def _call(client: RawClient, tool: str, **arguments: Any) -> threading.Thread:
    def call() -> None:
        with contextlib.suppress(Refused, ServerGone):
            client.call(tool, answer_s=90, **arguments)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def _calls(client: RawClient, run_id: str, for_s: float) -> list[float]:
    """Return what calls that only look took, in ms."""
    looks: list[tuple[str, dict[str, Any]]] = [
        ("list_runs", {}),
        ("wait_run", {"run_ids": run_id, "timeout_s": 0}),
        ("read_log", {"run_id": run_id}),
    ]
    took, until_s, number = [], time.monotonic() + for_s, 0
    while time.monotonic() < until_s:
        tool, arguments = looks[number % len(looks)]
        number += 1
        begun_s = time.perf_counter()
        client.call(tool, **arguments)
        took.append(elapsed_ms(begun_s))
        time.sleep(_PAUSE_S)
    return took
