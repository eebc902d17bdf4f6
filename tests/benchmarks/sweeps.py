"""Sweeps on 8 simulated GPUs: deaths under 200 cells, gaps between cells, speed, what a queue costs, an evening."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp import MCPError

from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.processes import command_words
from tests.benchmarks import processes
from tests.benchmarks.harness import PROGRAMS, NotMeasured, Sandbox, Server, until
from tests.benchmarks.harness import sandbox as new_sandbox
from tests.benchmarks.report import Row, Table, measured, median, percentile
from tests.benchmarks.sweep_growth import measure_costs
from tests.benchmarks.sweep_speed import measure_estimates, measure_speed
from tests.benchmarks.tokens import count
from tests.support.fake_nvml import Machine, library

LONGEST_S = 600.0
_GPUS, _CELLS, _DEATHS = 8, 200, 50
_GAP_CELLS, _GAP_CELL_S = 40, 2.0
_SETTLE_S, _QUIET_S = 32.0, 30.0  # the first in line asks the driver every 30 s
_KILLED = ("runward-conductor", "runward-supervisor")
_TRAIN = """
import sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
lr, envs = float(arguments["--lr"]), int(arguments["--num_envs"])
for step in range(1, 6):
    print(f"step {step}/5 reward {lr * 10 + step:.2f}", flush=True)
    time.sleep(0.1)
    if lr == 0.3 and envs > 4096:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
    if lr == 0.5:
        raise ValueError("a wrong shape: (3, 4)")
"""


async def measure(sandbox: Sandbox) -> Table:
    """Run the sweeps: at once those that disturb no figure of each other, then each that is timed by itself."""
    made = library()
    if made is None:
        raise NotMeasured("no C compiler is here to make the fake driver with")
    found: dict[str, Any] = {}

    async def take(name: str, part: Callable[[Sandbox], Awaitable[object]]) -> None:
        with new_sandbox() as own:
            found[name] = await part(own)

    with_gpus = partial(_give_gpus, made)
    together: tuple[dict[str, Callable[[Sandbox], Awaitable[object]]], ...] = (
        {"storm": partial(with_gpus, _survive), "evening": partial(with_gpus, _play_evening), "costs": measure_costs},
        {"idle": partial(with_gpus, _measure_queue), "estimates": measure_estimates},  # which mostly sleep
    )
    for parts in together:
        async with anyio.create_task_group() as group:
            for name, part in parts.items():
                group.start_soon(take, name, part)
    storm, idle, evening, costs = (found[name] for name in ("storm", "idle", "evening", "costs"))
    gaps = await with_gpus(_measure_gaps, sandbox)
    peer = await anyio.to_thread.run_sync(_measure_peer, sandbox)
    speed = (*await measure_speed(sandbox), found["estimates"])
    rows = (
        Row(
            f"{_CELLS} cells under {storm.deaths} deaths of conductors, servers and supervisors: cells with exactly "
            "one success",
            f"{storm.exact}",
            bar=f"{_CELLS}",
            ok=storm.exact == _CELLS,
        ),
        Row("GPUs that two cells used at once", f"{storm.doubles}", bar="0", ok=storm.doubles == 0),
        Row("cells that were given up", f"{storm.lost}", bar="0", ok=storm.lost == 0),
        measured(
            "a cell's end to the next start on its GPU, median",
            1e3 * median(gaps),
            "ms",
            baseline=1e3 * median(peer.gaps_s),
            at_most=300,
        ),
        measured(
            "the same, 95th percentile", 1e3 * percentile(gaps, 95), "ms", baseline=1e3 * percentile(peer.gaps_s, 95)
        ),
        measured(
            f"conductor and runs in line, {_CELLS} cells queued, memory",
            idle.memory_mib,
            "MiB",
            baseline=peer.memory_mib,
            at_most=200,
        ),
        measured("the conductor of these alone, memory", idle.conductor_mib, "MiB", baseline=peer.memory_mib),
        measured("conductor and runs in line, processor", idle.cpu_percent, "%", at_most=2),
        *(
            measured(
                f"processor time of the conductor for a cell, {size:,} cells", cost.cpu_ms, "ms", baseline=peer.cpu_ms
            )
            for size, cost in costs.items()
        ),
        measured(f"its memory, {max(costs):,} cells", costs[max(costs)].memory_mib, "MiB", baseline=peer.memory_mib),
        *speed,
        Row(
            f"answer to a wait for a sweep of {_CELLS} cells, the longest seen",
            f"{max(idle.tokens, storm.tokens)} tokens",
            bar="≤ 600 tokens",
            ok=max(idle.tokens, storm.tokens) <= 600,
        ),
        Row(
            "an evening (7 cells, 4 GPUs, one OOM, one crash, promotion): calls",
            f"{evening.calls}",
            bar="≤ 8",
            ok=evening.calls <= 8,
        ),
        Row(
            "the same, tokens of all calls and answers", f"{evening.tokens:,}", bar="≤ 4,000", ok=evening.tokens <= 4000
        ),
    )
    notes = (
        f"Deaths: {dict(sorted(storm.killed.items()))}. {_GPUS} GPUs of a fake driver on {os.cpu_count()} cores.",
        f"Gaps of {len(gaps)} pairs, cells of {_GAP_CELL_S:g} s. Baseline: Optuna's own loop (n_jobs={_GPUS}, a "
        "study in a journal): a process a trial. It ends with its session, keeps no log and leases no GPU. Its memory "
        f"and its processor time, without the processes that it starts, are of {_GAP_CELLS} cells.",
        f"Evening: {', '.join(evening.names)}.",
    )
    return Table("Sweeps", rows, notes)


async def _give_gpus(made: Path, part: Callable[[Sandbox, dict[str, str]], Awaitable[Any]], sandbox: Sandbox) -> Any:
    """Take a part with a fake driver of the sandbox's own."""
    machine = Machine(sandbox.root, made)
    machine.report(gpus=_GPUS)
    return await part(sandbox, {name: value for name, value in machine.environ.items() if name != "RUNWARD_LEASES"})


def _store(sandbox: Sandbox) -> RunStore:
    return RunStore(StateHome(sandbox.home))


def _cell_runs(sandbox: Sandbox, sweep_id: str) -> list[Run]:
    return [run for run in _store(sandbox).list_runs() if run.spec.sweep == sweep_id]


def _command(sandbox: Sandbox, name: str, seconds: float) -> dict[str, Any]:
    directory = sandbox.work / name
    directory.mkdir()
    return {
        "command": ["bash", str(PROGRAMS / "cell.sh"), str(directory), f"{seconds:g}"],
        "cwd": str(sandbox.work),
        "gpus": 1,
    }


@dataclass
class _Storm:
    """What became of the sweep whose processes were killed."""

    deaths: int = 0
    exact: int = 0
    doubles: int = 0
    lost: int = 0
    tokens: int = 0
    killed: Counter[str] = field(default_factory=Counter)


async def _survive(sandbox: Sandbox, environment: dict[str, str]) -> _Storm:
    storm, chance = _Storm(), random.Random(15)
    async with sandbox.server(**environment) as server:
        cells = [{"n": n} for n in range(_CELLS)]
        common = _command(sandbox, "storm", 0.4)
        answer = await server.call("launch_sweep", name="storm", common=common, cells=cells)
    sweep_id = answer.data["sweep_id"]

    def observe() -> Sweep:
        return _store(sandbox).sweeps.observe(sweep_id)

    until_s = time.monotonic() + 300
    while not observe().ended and time.monotonic() < until_s:
        with anyio.move_on_after(20):
            try:
                async with sandbox.server(**environment) as server:
                    for _ in range(8):
                        await anyio.sleep(chance.uniform(0.1, 0.8))
                        wait = await server.call("wait_run", run_ids=sweep_id, timeout_s=0)
                        storm.tokens = max(storm.tokens, count(wait.text))
                        if storm.deaths < _DEATHS:
                            _kill_one(sandbox, storm, chance, server)
            except (
                MCPError,
                NotMeasured,
                OSError,
                ExceptionGroup,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
            ):
                continue  # the server was killed
    sweep, runs = observe(), _cell_runs(sandbox, sweep_id)
    successes = Counter(run.spec.cell for run in runs if run.state == "finished")
    noted = Counter(e.get("cell") for e in sweep.events if e["kind"] == "cell_ended" and e.get("state") == "finished")
    names = [cell.cell.name for cell in sweep.cells]
    storm.exact = sum(successes[name] == noted[name] == 1 for name in names)
    storm.lost = sum(cell.state != "finished" for cell in sweep.cells)
    doubles = sandbox.work / "storm" / "doubles"
    storm.doubles = len(doubles.read_text().split()) if doubles.exists() else 0
    return storm


def _kill_one(sandbox: Sandbox, storm: _Storm, chance: random.Random, server: Server) -> None:
    """Kill a random conductor, supervisor or server of the sandbox."""
    victims = {"server": [server.pid]}
    for pid in processes.carrying(sandbox.token):
        title = (command_words(pid) or [""])[0]
        if title in _KILLED:
            victims.setdefault(title.removeprefix("runward-"), []).append(pid)
    kind = chance.choice(sorted(victims))
    try:
        os.kill(chance.choice(victims[kind]), signal.SIGKILL)
    except ProcessLookupError:
        return
    storm.deaths += 1
    storm.killed[kind] += 1


async def _measure_gaps(sandbox: Sandbox, environment: dict[str, str]) -> list[float]:
    """Return the seconds from each end of a cell to the next start on the same GPU."""
    async with sandbox.server(**environment) as server:
        cells = [{"n": n} for n in range(_GAP_CELLS)]
        common = _command(sandbox, "gaps", _GAP_CELL_S)
        answer = await server.call("launch_sweep", name="gaps", common=common, cells=cells)
        sweep_id = answer.data["sweep_id"]
        await server.wait(sweep_id, timeout_s=120)
    by_gpu: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in _cell_runs(sandbox, sweep_id):
        if run.started_at and run.ended_at:
            by_gpu[run.gpus[0]].append((posix(run.started_at), posix(run.ended_at)))
    pairs = [pair for spans in by_gpu.values() for pair in zip(sorted(spans), sorted(spans)[1:], strict=False)]
    if len(pairs) < _GAP_CELLS // 2:
        raise NotMeasured(f"only {len(pairs)} cells followed others")
    return [after[0] - before[1] for before, after in pairs]


@dataclass
class _Peer:
    """Optuna's own loop with as many cells and GPUs."""

    gaps_s: list[float]
    memory_mib: float
    cpu_ms: float  # for a cell


def _measure_peer(sandbox: Sandbox) -> _Peer:
    directory = sandbox.work / "peer"
    directory.mkdir()
    words = [str(directory), f"{_GAP_CELL_S:g}", str(_GAP_CELLS), str(_GPUS)]
    argv = [sys.executable, str(PROGRAMS / "optuna_loop.py"), *words]
    done = subprocess.run(argv, env=sandbox.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(f"Optuna's loop failed: {done.stderr[-200:]}")
    facts = json.loads(done.stdout)
    return _Peer(facts["gaps_s"], facts["mib"], 1e3 * facts["cpu_s"] / _GAP_CELLS)


@dataclass
class _Idle:
    """What a sweep costs whose cells wait."""

    memory_mib: float
    conductor_mib: float
    cpu_percent: float
    tokens: int


async def _measure_queue(sandbox: Sandbox, environment: dict[str, str]) -> _Idle:
    async with sandbox.server(**environment) as server:
        cells = [{"n": n} for n in range(_CELLS + _GPUS)]
        answer = await server.call("launch_sweep", name="queue", common=_command(sandbox, "queue", 600), cells=cells)
        sweep_id = answer.data["sweep_id"]

        def waiting() -> list[Run]:
            return [run for run in _cell_runs(sandbox, sweep_id) if run.state == "queued"]

        if not await until(lambda: len(waiting()) >= 2, 60):
            raise NotMeasured("no cells wait in line")
        queued = {run.run_id for run in waiting()}
        watched, conductors = [], []
        for pid in processes.carrying(sandbox.token):
            words = command_words(pid)
            of_run = len(words) > 1 and words[0] == _KILLED[1] and words[1][::2] in queued
            if words[:1] == [_KILLED[0]] or of_run:
                watched.append(pid)
                conductors += [pid] if not of_run else []
        await anyio.sleep(_SETTLE_S)
        before, began_s = sum(map(processes.cpu_s, watched)), time.monotonic()
        await anyio.sleep(_QUIET_S)
        cpu = 100 * (sum(map(processes.cpu_s, watched)) - before) / (time.monotonic() - began_s)
        memory = sum(processes.memory_mib(pid)[0] for pid in watched)
        alone = sum(processes.memory_mib(pid)[0] for pid in conductors)
        wait = await server.call("wait_run", run_ids=sweep_id, timeout_s=0)
        await server.kill(sweep_id)
    return _Idle(memory, alone, cpu, count(wait.text))


@dataclass
class _Evening:
    """The calls of an agent, and the tokens of their arguments and answers."""

    server: Server
    calls: int = 0
    tokens: int = 0
    names: list[str] = field(default_factory=list)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.server.call(tool, **arguments)
        self.calls += 1
        self.tokens += count(json.dumps(arguments)) + count(answer.text)
        self.names.append(tool)
        return answer.data


async def _play_evening(sandbox: Sandbox, environment: dict[str, str]) -> _Evening:
    """Play the agent: a sweep of 7 cells, waits until decisions, the table, the promotion, its end."""
    script = sandbox.work / "train.py"
    script.write_text(_TRAIN)
    recovery = {"oom_gpu": {"do": "retry", "times": 2, "change": {"num_envs": "halve"}}}
    common = {"command": f"python3 {script}", "cwd": str(sandbox.work), "gpus": 1, "recovery": recovery}
    common["params"] = {"num_envs": 8192}
    async with sandbox.server(**environment) as server:
        evening = _Evening(server)
        await evening.call("gpu_check")
        plan = {"grid": {"lr": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}, "metric": "reward", "max_parallel": 4}
        sweep = await evening.call("launch_sweep", name="evening", common=common, **plan)
        while True:
            news = await evening.call("wait_run", run_ids=sweep["sweep_id"], until="decision", timeout_s=120)
            if news["reason"] in ("ended", "heartbeat"):
                break
        await evening.call("compare_runs", sweep=sweep["sweep_id"])
        best = news["sweep"]["best"]["run_id"]
        four = {**common, "gpus": 4}
        del four["params"]
        promoted = await evening.call("launch_sweep", name="evening-mgpu", common=four, promote=best)
        end = await evening.call("wait_run", run_ids=promoted["sweep_id"], until="end", timeout_s=120)
        if end["sweep"]["cells"].get("finished") != 1 or news["sweep"]["cells"] != {
            "total": 7,
            "failed": 1,
            "finished": 6,
        }:
            raise NotMeasured(f"the evening went wrong: {news} {end}")
    return evening
