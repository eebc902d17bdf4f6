"""A clock that jumps two hours ahead and four hours back, for servers, supervisors and commands alike."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.benchmarks.faults.raw_client import RawClient
from tests.benchmarks.harness import PROGRAMS, REPOSITORY, NotMeasured, Sandbox, program
from tests.benchmarks.report import Row, Table, measured

_JUMPS_S = (7200, -7200, 0)
_BETWEEN_S, _WAIT_S, _STALL_S = 2.5, 8.0, 4.0


async def measure(sandbox: Sandbox) -> Table:
    """Launch runs of all kinds, let the clock jump three times, and compare."""
    return await anyio.to_thread.run_sync(_measure, sandbox)


class Clock:
    """The clock of everything that is started with ``environment``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._file, library = sandbox.root / "shift", sandbox.root / "shift_clock.so"
        self.set(0)
        source = PROGRAMS / "shift_clock.c"
        if subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=False).returncode:
            raise NotMeasured("no C compiler")
        self.environment = {**sandbox.environment(), "LD_PRELOAD": str(library), "SHIFT_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Shift the clock by ``seconds`` from the true time."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, struct.pack("=q", seconds), 0)
        os.close(fd)


def _measure(sandbox: Sandbox) -> Table:
    clock = Clock(sandbox)
    # Panes inherit the environment of the tmux server, which a person may have started.
    tmux = ["tmux", "-L", sandbox.socket, "-f", "/dev/null", "new-session", "-d", "-s", "mine", "sleep 600"]
    subprocess.run(tmux, env=clock.environment, check=True)
    argv = [sys.executable, "-m", "mcp_server", "serve"]
    client = RawClient(argv, clock.environment, REPOSITORY, sandbox.root / "server.log")
    try:
        return _table(_observe(sandbox, clock, client))
    finally:
        client.close()


def _observe(sandbox: Sandbox, clock: Clock, client: RawClient) -> dict[str, Any]:
    limits = {"time_limit_s": 600, "stall_timeout_s": 120, "first_step_timeout_s": 300}
    begun_s = time.monotonic()

    def launch(kind: str, status: int, seconds: float, **more: Any) -> str:
        command = program("witness", sandbox.work / f"{kind}-{status}", kind, status, seconds)
        return str(client.call("launch_run", command=command, **{**limits, **more})["run_id"])

    steps = launch("stays", 0, 0)
    stops = launch("stays", 9, 0)
    hangs = str(
        client.call(
            "launch_run",
            command="for i in 1 2 3 4 5 6 7 8; do echo step $i; sleep 0.1; done; sleep 600",
            **{**limits, "stall_timeout_s": _STALL_S},
        )["run_id"]
    )
    quiet = str(client.call("launch_run", command="echo step 1; sleep 600", **limits)["run_id"])
    ends = launch("plain", 3, _BETWEEN_S * 2)  # last: it lives while the clock jumps
    waits: list[float] = []

    def wait() -> None:
        since_s = time.monotonic()
        client.call("wait_run", run_ids=steps, until="end", timeout_s=_WAIT_S)
        waits.append(time.monotonic() - since_s)

    waiting = threading.Thread(target=wait)
    waiting.start()
    lost, killed = 0, {}
    for jump_s in _JUMPS_S:
        clock.set(jump_s)
        until_s = time.monotonic() + _BETWEEN_S
        while time.monotonic() < until_s:
            listed = client.call("list_runs")["runs"]
            lost += sum(run["state"] in ("lost", "starting") for run in listed)
            time.sleep(0.1)
        if jump_s == _JUMPS_S[0]:
            token = client.call("kill_run", run_id=stops)["confirm_token"]
            clock.set(_JUMPS_S[1])
            killed = client.call("kill_run", run_id=stops, confirm_token=token)
    clock.set(_JUMPS_S[0])
    rows = client.call("list_runs")["runs"]  # a heartbeat may have no room for it
    elapsed = next(row["elapsed_s"] for row in rows if row["run_id"] == steps)
    told_s = time.monotonic() - begun_s
    waiting.join()
    late = launch("plain", 4, 0.2)
    names = {"steps": steps, "ends": ends, "stops": stops, "hangs": hangs, "quiet": quiet, "late": late}
    client.call("wait_run", run_ids=[ends, late], until="end", timeout_s=30)
    deadline_s = time.monotonic() + 20
    while "stalled" not in _kinds(sandbox, hangs) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    runs = {what: client.call("wait_run", run_ids=run, timeout_s=0)["runs"][0] for what, run in names.items()}
    kinds = {what: _kinds(sandbox, run) for what, run in names.items()}
    at_s = [datetime.fromisoformat(json.loads(line)["at"]).timestamp() for line in kinds["ends"].splitlines()]
    if max(at_s) - min(at_s) < abs(_JUMPS_S[0]):
        raise NotMeasured("the supervisors' clock did not jump")
    for what in ("steps", "hangs", "quiet"):
        token = client.call("kill_run", run_id=names[what])["confirm_token"]
        client.call("kill_run", run_id=names[what], confirm_token=token)
    return {
        "runs": runs,
        "kinds": kinds,
        "wait_s": waits[0],
        "lost": lost,
        "killed": killed,
        "elapsed_off_s": abs(elapsed - told_s),
    }


def _kinds(sandbox: Sandbox, run_id: str) -> str:
    return Path(sandbox.run_dir(run_id) / "events.jsonl").read_text()


def _table(found: dict[str, Any]) -> Table:
    runs, kinds = found["runs"], found["kinds"]
    states = {what: run["state"] for what, run in runs.items()}
    expected = {
        "steps": "running",
        "ends": "failed",
        "stops": "killed",
        "hangs": "stalled",
        "quiet": "running",
        "late": "failed",
    }
    wrong = {what: state for what, state in states.items() if state != expected[what]}
    wrong |= {
        what: runs[what].get("exit_code")
        for what, code in (("ends", 3), ("late", 4))
        if runs[what].get("exit_code") != code
    }
    false = sum(
        kinds[what].count(f'"{kind}"')
        for what in ("steps", "ends", "stops", "quiet", "late")
        for kind in ("stalled", "first_step_timeout", "timed_out", "judging_lost")
    )
    stopped = found["killed"].get("status") == "killed" and not found["killed"].get("survivors")
    rows = (
        Row("wrong states or exit codes, of 6 runs", str(len(wrong)), bar="0", ok=not wrong),
        Row("false stalls, first-step timeouts, time limits", str(false), bar="0", ok=not false),
        Row("listed as lost or starting meanwhile", str(found["lost"]), bar="0", ok=not found["lost"]),
        Row(
            "a run that really hangs is reported",
            "yes" if "stalled" in kinds["hangs"] else "no",
            ok="stalled" in kinds["hangs"],
        ),
        Row("a stop under way while the clock jumps", "complete" if stopped else "incomplete", ok=stopped),
        measured(f"a wait of {_WAIT_S:g} s is longer or shorter by", abs(found["wait_s"] - _WAIT_S), "s", at_most=1.5),
        measured("elapsed_s of a live run is off by", found["elapsed_off_s"], "s", at_most=5),
    )
    notes = [f"{what}: {state}" for what, state in wrong.items()]
    return Table("A clock that jumps 2 h ahead, 4 h back, and to the true time", rows, tuple(notes))
