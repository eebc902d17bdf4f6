"""Runs on another host over a real sshd: how fast, and what cut connections and killed servers do to them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from mcp.client.stdio import StdioServerParameters

from mcp_server.system import processes as proc
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, connect
from tests.benchmarks.report import Row, Table, percentile
from tests.support.sandbox import Sandbox as Home
from tests.support.slow_line import slow_line
from tests.support.sshd import NAME, PROGRAM, FarHost

LONGEST_S = 1800.0
_ONE_WAY_S, _AWAY_S = 0.025, 300.0
_LAUNCHES, _ENDS, _WATCHED, _WATCHED_S = 20, 40, 20, 10.0
_CUTS, _WORKERS, _KILLS, _STOPS = 100, 5, 20, 10
_PATIENCE_S = 120.0


@dataclass
class Outcome:
    """What the faults did. All but ``rounds`` should be 0."""

    rounds: int = 0
    lost: int = 0
    second_starts: int = 0
    wrong_ends: int = 0
    survivors: int = 0
    notes: list[str] = field(default_factory=list)


async def measure(sandbox: Sandbox) -> Table:
    """Launch, end, watch; then cut connections at random, kill servers, and stop runs while the connection breaks."""
    if PROGRAM is None:
        raise NotMeasured("no sshd is installed")
    home = Home(sandbox.root, sandbox.socket, {**sandbox.environment()})
    home.environ["RUNWARD_HOME"] = str(sandbox.root / "state")
    far = FarHost(home, sandbox.root / "far")
    far.start()
    far.write_hosts()
    (home.path / "state" / "config.toml").write_text("stop_grace_s = 0.2\n")
    try:
        async with _server(home) as server:
            begun_s = time.monotonic()
            await _launch(server, sandbox.work, "true")
            first_s = time.monotonic() - begun_s
            launches_s = [await _time_launch(server, sandbox.work) for _ in range(_LAUNCHES)]
            ends_s = [await _time_end(server, sandbox.work, number) for number in range(_ENDS)]
            here, there = await _measure_processor(server, sandbox.work, far)
        cut = await _cut_connections(home, sandbox.work, far)
        killed = await _kill_servers(home, sandbox.work)
        stopped = await _stop_while_cut(home, sandbox.work, far)
        slow_s = await _measure_slow_line(home, sandbox.work, far)
        away = await _leave(home, sandbox.work, far)
        refusal = await _fill_disk(home, sandbox.work, far)
    finally:
        far.close()
    faults = [cut, killed, stopped]
    bad = [sum(getattr(one, name) for one in faults) for name in ("lost", "second_starts", "wrong_ends", "survivors")]
    p50, p99 = (1000 * percentile(ends_s, share) for share in (50, 99))
    launch_p50 = 1000 * percentile(launches_s, 50)
    rows = (
        Row(
            "end there → answer, p50 / p99",
            f"{p50:.0f} / {p99:.0f} ms",
            bar="150 / 1,000",
            ok=p50 <= 150 and p99 <= 1000,
        ),
        Row("launch on a prepared host, p50", f"{launch_p50:.0f} ms", bar="400 ms", ok=launch_p50 <= 400),
        Row("first contact, with install and launch", f"{first_s:.1f} s", bar="5 s", ok=first_s <= 5),
        Row(
            f"{_WATCHED} runs watched: here / there, of one core",
            f"{here:.1f} / {there:.1f} %",
            bar="2 / 1 %",
            ok=here <= 2 and there <= 1,
        ),
        Row(
            f"{sum(one.rounds for one in faults)} runs under {_CUTS} cuts, {_KILLS} killed servers, {_STOPS} stops: "
            "lost / started twice / wrong end / survivors",
            " / ".join(map(str, bad)),
            bar="0",
            ok=not any(bad),
        ),
        Row(
            f"the same behind {2000 * _ONE_WAY_S:.0f} ms, p50 / p99",
            f"{1000 * percentile(slow_s, 50):.0f} / {1000 * percentile(slow_s, 99):.0f} ms",
            bar="200 / 1,000",
            ok=percentile(slow_s, 50) <= 0.2 and percentile(slow_s, 99) <= 1,
        ),
        Row(f"host away for {_AWAY_S:.0f} s: last known state, then all once, in order", away or "yes", ok=not away),
        Row("full disk there", refusal, ok="No space left" in refusal),
    )
    notes = tuple(note for one in faults for note in one.notes[:3])
    return Table("Other machines over ssh", rows, notes)


async def _measure_slow_line(home: Home, work: Path, far: FarHost) -> list[float]:
    """Return what passes between ends there and answers here, over a line that takes its time."""
    with slow_line(far.port, _ONE_WAY_S) as port:
        far.connect_through(port)
        async with _server(home) as server:
            ends_s = [await _time_end(server, work, number) for number in range(_ENDS)]
        far.connect_through(far.port)
    return ends_s


async def _leave(home: Home, work: Path, far: FarHost) -> str:
    """Let a run fail, be retried and end while its host is away; return what is wrong with what is said of it."""
    async with _server(home) as server:
        table = {"other": {"do": "retry", "times": 1}}
        command = f"until test -e {work}/away; do sleep 0.1; done; sleep 1; exit 7"
        run_id = await server.launch(command, cwd=str(work), host=NAME, recovery=table)
        far.stop()
        await anyio.sleep(_AWAY_S / 2)
        (work / "away").touch()
        await anyio.sleep(_AWAY_S / 2)
        status = (await server.call("wait_run", run_ids=run_id, timeout_s=0)).data["runs"][0]
        if status["state"] != "running" or "unreachable" not in status:
            return f"while it was away: {status}"
        far.start()
        kinds: list[str] = []
        numbers: list[int] = []
        give_up_s = time.monotonic() + _PATIENCE_S
        while "ended" not in kinds and time.monotonic() < give_up_s:
            status = (await server.wait(run_id, timeout_s=10)).data["runs"][0]
            kinds += [event["kind"] for event in status.get("events", ())]
            numbers += [event["seq"] for event in status.get("events", ())]
    is_right = numbers == sorted(set(numbers)) and kinds.count("ended") == 1 and status.get("exit_code") == 7
    return "" if is_right else f"afterwards: {kinds} {numbers} {status}"


async def _fill_disk(home: Home, work: Path, far: FarHost) -> str:
    """Return what a launch says where the disk with the state there is full."""
    small = far.path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]
    if (await anyio.run_process(mount, check=False)).returncode:
        return "not measured: this user may not mount"
    try:
        far.write_hosts(state=str(small))
        async with _server(home) as server:
            try:
                run_id = await _launch(server, work, "true")
                with contextlib.suppress(OSError), (small / "rest").open("wb", buffering=0) as rest:
                    while rest.write(b"x" * 4096):
                        pass
                await server.wait(run_id)
                return str(await _launch(server, work, "true"))
            except NotMeasured as error:
                return str(error).partition("\n")[0][:200]
    finally:
        await anyio.run_process(["umount", "-l", str(small)], check=False)


def _server(home: Home) -> AbstractAsyncContextManager[Server]:
    words = ["-m", "mcp_server", "serve"]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=home.environ, cwd=str(home.path))
    return connect(parameters, home.path / "server.log")


async def _launch(server: Server, work: Path, command: str, key: str | None = None) -> str:
    more = {"idempotency_key": key} if key else {}
    return await server.launch(command, cwd=str(work), host=NAME, **more)


async def _time_launch(server: Server, work: Path) -> float:
    begun_s = time.monotonic()
    run_id = await _launch(server, work, "sleep 0.2")
    took_s = time.monotonic() - begun_s
    await server.wait(run_id)
    return took_s


async def _time_end(server: Server, work: Path, number: int) -> float:
    run_id = await _launch(server, work, f"sleep 0.5; date +%s.%N > end-{number}")
    await server.wait(run_id)
    return time.time() - float((work / f"end-{number}").read_text())


async def _measure_processor(server: Server, work: Path, far: FarHost) -> tuple[float, float]:
    """Return what server and ssh take, and what relay and sshd take, while runs print a step a second, in percent."""
    command = "for i in $(seq 1000); do echo step $i loss 0.5; sleep 1; done"
    run_ids = [await _launch(server, work, command) for _ in range(_WATCHED)]
    await anyio.sleep(3)
    here = [server.pid, *(p.pid for p in proc.descendants(server.pid))]
    there = [*far.relays(), *far.sessions()]
    before = _processor_s(here), _processor_s(there)
    async with anyio.create_task_group() as group:
        group.start_soon(server.wait, run_ids, _WATCHED_S)
        await anyio.sleep(_WATCHED_S)
        group.cancel_scope.cancel()
    shares = [(_processor_s(pids) - was) / _WATCHED_S * 100 for pids, was in zip((here, there), before, strict=True)]
    for run_id in run_ids:
        await server.kill(run_id)
    return shares[0], shares[1]


def _processor_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def _cut_connections(home: Home, work: Path, far: FarHost) -> Outcome:
    """Cut the connection at random moments while several agents launch runs and wait for their ends."""
    outcome, cuts = Outcome(), 0
    async with _server(home) as server, anyio.create_task_group() as cutting:

        async def cut() -> None:
            nonlocal cuts
            while True:
                await anyio.sleep(random.uniform(0.2, 5.0))
                await anyio.to_thread.run_sync(far.cut_connections)
                cuts += 1

        async def work_until_all_is_cut(worker: int) -> None:
            number = 0
            while cuts < _CUTS:
                number += 1
                await _round(server, work, f"cut-{worker}-{number}", outcome)

        cutting.start_soon(cut)
        async with anyio.create_task_group() as group:
            for worker in range(_WORKERS):
                group.start_soon(work_until_all_is_cut, worker)
        cutting.cancel_scope.cancel()
    return outcome


async def _round(server: Server, work: Path, name: str, outcome: Outcome) -> None:
    """Launch one run, again where the answer is an error, and check its end."""
    code = random.randrange(1, 99)
    command = f"echo x >> {name}; sleep {random.uniform(0, 1):.2f}; exit {code}"
    give_up_s = time.monotonic() + _PATIENCE_S
    run_id = None
    while run_id is None and time.monotonic() < give_up_s:
        try:
            run_id = await _launch(server, work, command, name)
        except NotMeasured:
            await anyio.sleep(0.1)
    await _check(server, work, name, run_id, code, outcome)


async def _check(server: Server, work: Path, name: str, run_id: str | None, code: int, outcome: Outcome) -> None:
    outcome.rounds += 1
    status = {}
    if run_id is not None:
        answer = (await server.wait(run_id, timeout_s=_PATIENCE_S)).data
        status = answer["runs"][0]
    starts = len((work / name).read_text().splitlines()) if (work / name).exists() else 0
    outcome.second_starts += starts > 1
    if run_id is None and not starts:  # an error, said as one: nothing was started
        outcome.notes.append(f"{name}: no launch was possible within {_PATIENCE_S:g} s")
    elif not status or status["state"] not in ("failed", "finished", "killed", "lost", "timed_out"):
        outcome.lost += 1
        outcome.notes.append(f"{name}: {status or 'never launched'}")
    elif (status["state"], status.get("exit_code")) != ("failed", code):
        outcome.wrong_ends += 1
        outcome.notes.append(f"{name}: exit {code} was told as {status}")


async def _kill_servers(home: Home, work: Path) -> Outcome:
    """Kill the server with SIGKILL during a launch, and launch with the same key at the next one."""
    outcome = Outcome()
    for number in range(_KILLS):
        name, code = f"kill-{number}", random.randrange(1, 99)
        command = f"echo x >> {name}; sleep 0.3; exit {code}"
        try:
            async with _server(home) as server, anyio.create_task_group() as group:

                async def kill(pid: int = server.pid) -> None:
                    await anyio.sleep(random.uniform(0, 1.5))
                    os.kill(pid, signal.SIGKILL)

                group.start_soon(kill)
                with anyio.move_on_after(3):
                    await _launch(server, work, command, name)
        except BaseExceptionGroup:  # the server is dead
            pass
        except Exception:
            pass
        async with _server(home) as server:
            run_id = None
            give_up_s = time.monotonic() + _PATIENCE_S
            while run_id is None and time.monotonic() < give_up_s:
                try:
                    run_id = await _launch(server, work, command, name)
                except NotMeasured:
                    await anyio.sleep(0.1)
            await _check(server, work, name, run_id, code, outcome)
    return outcome


async def _stop_while_cut(home: Home, work: Path, far: FarHost) -> Outcome:
    """Stop runs that ignore signals while the connection breaks; call again until the answer is certain."""
    outcome = Outcome()
    async with _server(home) as server:
        for _ in range(_STOPS):
            outcome.rounds += 1
            run_id = await _launch(server, work, "trap '' INT TERM; while :; do sleep 0.1; done")
            async with anyio.create_task_group() as group:

                async def cut() -> None:
                    await anyio.sleep(random.uniform(0, 0.5))
                    await anyio.to_thread.run_sync(far.cut_connections)

                group.start_soon(cut)
                give_up_s = time.monotonic() + _PATIENCE_S
                state = ""
                while state not in ("killed", "already_ended") and time.monotonic() < give_up_s:
                    try:
                        state = await server.kill(run_id)
                    except NotMeasured:
                        await anyio.sleep(0.1)
            left = proc.find_by_variable("RUNWARD_RUN_ID", run_id)
            outcome.survivors += len(left)
            if left:
                outcome.notes.append(f"{run_id}: {state}, left {left[:2]}")
    return outcome
