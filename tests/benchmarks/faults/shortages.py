"""Descriptors, inotify, disk, memory and processes run out, and come back: what is said meanwhile and afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from mcp_server.backends.supervisor_copy import PACKAGE, read_sources
from tests.benchmarks.faults.raw_client import RawClient, Refused, ServerGone
from tests.benchmarks.harness import REPOSITORY, NotMeasured, Sandbox
from tests.benchmarks.report import Row, Table

LONGEST_S = 400.0
_SHORT_S, _RECOVERS_S = 2.0, 20.0
_ROOM_MIB, _MEMORY_MIB = 4, 24  # beside the copy of the supervisor's program


async def measure(sandbox: Sandbox) -> Table:
    """Take one resource after the other away from a server and its supervisors, and give it back."""
    return await anyio.to_thread.run_sync(_measure, sandbox)


@dataclass
class Seen:
    """What a shortage did: states of a healthy run that were told, what refusals said, and what came afterwards."""

    states: list[str]
    refusals: list[str]
    recovered: bool
    end: tuple[str, Any]


def _measure(sandbox: Sandbox) -> Table:
    cases: dict[str, tuple[Callable[[Sandbox], contextlib.AbstractContextManager[Bench]], tuple[str, ...]]] = {
        "no descriptor in the server": (_descriptors, ("Too many open files",)),
        "no inotify instance or watch": (_inotify, ()),
        "a full disk under the state directory": (_disk, ("No space left",)),
        f"{_MEMORY_MIB} MiB more memory for the server": (_memory, ("memory", "Cannot allocate")),
        "no process more for server and supervisors": (_processes, ("Resource temporarily unavailable", "process")),
    }
    rows, notes = [], []
    for what, (take, words) in cases.items():
        print(f"shortages: {what}", file=sys.stderr, flush=True)
        try:
            with take(sandbox) as bench:
                seen = _try(sandbox, bench)
        except NotMeasured as error:
            notes.append(f"{what}: not measured, {error}")
            continue
        false = [state for state in seen.states if state not in ("running", "stalled")]
        named = not seen.refusals or all(any(word in text for word in words) for text in seen.refusals)
        ok = not false and seen.recovered and seen.end == ("failed", 5) and named
        summary = (
            f"{len(false)} false states of {len(seen.states)}; {len(seen.refusals)} refusals"
            f"{', each names it' if seen.refusals and named else ''}; "
            f"{'launches again' if seen.recovered else 'does not recover'}; the run ends {seen.end[0]} {seen.end[1]}"
        )
        rows.append(Row(what, summary, bar="0 false; recovers; names it; failed 5", ok=ok))
        notes += [f"{what}: {text[:200]}" for text in dict.fromkeys(seen.refusals)]
    return Table("Shortages, and afterwards", tuple(rows), tuple(notes))


@dataclass
class Bench:
    """A server, and what takes its resource away and gives it back."""

    client: RawClient
    take: Callable[[], None]
    give_back: Callable[[], None]


def _try(sandbox: Sandbox, bench: Bench) -> Seen:
    name = f"short-{time.monotonic_ns()}"
    gate = sandbox.work / name
    command = (
        f"for i in 1 2 3 4 5 6 7 8; do echo step $i; sleep 0.1; done; until test -e {gate}; do sleep 0.1; done; exit 5"
    )
    run_id = str(bench.client.call("launch_run", command=command)["run_id"])
    bench.client.call("wait_run", run_ids=run_id, until="first_step", timeout_s=30)
    states, refusals = [], []
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list_runs", {}),
        ("wait_run", {"run_ids": run_id, "timeout_s": 0.2}),
        ("read_log", {"run_id": run_id}),
        ("launch_run", {"command": "true"}),
    ]
    bench.take()
    try:
        until_s = time.monotonic() + _SHORT_S
        while time.monotonic() < until_s:
            for tool, arguments in calls:
                try:
                    answer = bench.client.call(tool, answer_s=30, **arguments)
                except Refused as error:
                    refusals.append(f"{tool}: {error}")
                    continue
                states += [run["state"] for run in answer.get("runs", []) if run["run_id"] == run_id]
    finally:
        bench.give_back()
    recovered = _recovers(bench.client)
    gate.touch()
    try:
        end = bench.client.call("wait_run", run_ids=run_id, until="end", timeout_s=30)["runs"][0]
    except (Refused, ServerGone) as error:
        return Seen(states, refusals, recovered, (f"unknown: {error}", None))
    return Seen(states, refusals, recovered, (end["state"], end.get("exit_code")))


def _recovers(client: RawClient) -> bool:
    until_s = time.monotonic() + _RECOVERS_S
    while time.monotonic() < until_s:
        with contextlib.suppress(Refused):
            run_id = client.call("launch_run", command="exit 7")["run_id"]
            end = client.call("wait_run", run_ids=run_id, until="end", timeout_s=20)["runs"][0]
            return bool(end.get("exit_code") == 7)
        time.sleep(0.5)
    return False


@contextlib.contextmanager
def _server(sandbox: Sandbox, *prefix: str, **environment: str) -> Iterator[RawClient]:
    argv = [*prefix, sys.executable, "-m", "mcp_server", "serve"]
    client = RawClient(argv, {**sandbox.environment(), **environment}, REPOSITORY, sandbox.root / "server.log")
    try:
        client.call("list_runs")
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def _descriptors(sandbox: Sandbox) -> Iterator[Bench]:
    with _server(sandbox) as client:
        soft, hard = resource.prlimit(client.pid, resource.RLIMIT_NOFILE)
        now = len(list(Path(f"/proc/{client.pid}/fd").iterdir()))
        yield Bench(
            client,
            lambda: resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (now, hard)) and None,
            lambda: resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (soft, hard)) and None,
        )


@contextlib.contextmanager
def _inotify(sandbox: Sandbox) -> Iterator[Bench]:
    """Set the limits of a user namespace of the server's own to nothing."""
    limits = ("max_inotify_instances", "max_inotify_watches")
    with _server(sandbox, "unshare", "-U", "-r") as client:

        def set_limits(number: str) -> None:
            enter = ["nsenter", "-t", str(client.pid), "-U", "--preserve-credentials", "sh", "-c"]
            done = [
                subprocess.run([*enter, f"echo {number} > /proc/sys/user/{limit}"], check=False, capture_output=True)
                for limit in limits
            ]
            if any(each.returncode for each in done):
                raise NotMeasured("user namespaces cannot be limited here")

        yield Bench(client, lambda: set_limits("0"), lambda: set_limits("100000"))


@contextlib.contextmanager
def _disk(sandbox: Sandbox) -> Iterator[Bench]:
    home = sandbox.root / "small"
    home.mkdir()
    copy = sum(len(source.content) for source in read_sources())
    compiled = sum(path.stat().st_size for path in PACKAGE.rglob("*.pyc"))
    size = copy + compiled + (_ROOM_MIB << 20)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(home)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        raise NotMeasured("mounting takes root")
    ballast = home / "ballast"
    try:
        with _server(sandbox, RUNWARD_HOME=str(home)) as client:
            yield Bench(client, lambda: _fill(ballast), ballast.unlink)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=False)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@contextlib.contextmanager
def _memory(sandbox: Sandbox) -> Iterator[Bench]:
    with _server(sandbox) as client:
        soft, hard = resource.prlimit(client.pid, resource.RLIMIT_AS)
        status = Path(f"/proc/{client.pid}/status").read_text()

        def take() -> None:
            now = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize:"))
            resource.prlimit(client.pid, resource.RLIMIT_AS, (now + (_MEMORY_MIB << 20), hard))

        yield Bench(client, take, lambda: resource.prlimit(client.pid, resource.RLIMIT_AS, (soft, hard)) and None)


@contextlib.contextmanager
def _processes(sandbox: Sandbox) -> Iterator[Bench]:
    group = Path("/sys/fs/cgroup/pids") / f"{sandbox.token}-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotMeasured("no control group of processes") from error
    try:
        join = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        with _server(sandbox, "sh", "-c", join, "sh") as client:

            def take() -> None:
                (group / "pids.max").write_text((group / "pids.current").read_text())

            def give_back() -> None:
                (group / "pids.max").write_text("max")

            yield Bench(client, take, give_back)
            sandbox.tmux("kill-server", socket=sandbox.socket)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
