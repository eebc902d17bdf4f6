"""Open sweeps on 8 simulated GPUs: four agents under deaths of every process, and how busy the GPUs are."""

from __future__ import annotations

import contextlib
import difflib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
from mcp import MCPError

from mcp_server.record.state import posix
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.trials.open_plan import BASELINE
from mcp_server.sweeps.trials.trials import OpenSweep, read_trials
from mcp_server.system.processes import command_words
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox
from tests.benchmarks.tokens import count
from tests.support.fake_nvml import Machine, library
from tests.support.repository import git, make_repository

_GPUS, _AGENTS, _EACH, _DEATHS = 8, 4, 25, 20
_SILENT_S = 120.0  # without an event of the sweep: a loaded machine is slow, and no reason to give up
_BUSY_TRIALS, _BUSY_S = 48, 2.0
_KILLED = ("runward-conductor", "runward-supervisor")
_TRAIN = """
import random, sys, time
level = 1.0
noise = random.Random(f"{sys.argv[1]} {level}").gauss(0, 0.01)
time.sleep(float(sys.argv[2]))
print(f"step 1/1 loss {level + noise:.6f}", flush=True)
"""
_GONE = (MCPError, OSError, ExceptionGroup, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass
class Storm:
    """The outcome of a sweep whose processes were killed. ``answered``: the trials that a tool named to an agent."""

    answered: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    twice: int = 0
    screened_twice: int = 0
    undecided: int = 0
    is_ref_newest: bool = False
    ledger: int = 0
    worktrees: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


@dataclass
class Patience:
    """Lasts as long as the sweep makes events."""

    events: Path
    _size: int = 0
    _since_s: float = field(default_factory=time.monotonic)

    @property
    def lasts(self) -> bool:
        size = self.events.stat().st_size
        if size != self._size:
            self._size, self._since_s = size, time.monotonic()
        return time.monotonic() < self._since_s + _SILENT_S


def _environment(sandbox: Sandbox) -> dict[str, str]:
    if (made := library()) is None:
        raise NotMeasured("no C compiler is here to make the fake driver with")
    machine = Machine(sandbox.root, made)
    machine.report(gpus=_GPUS)
    return {name: value for name, value in machine.environ.items() if name != "RUNWARD_LEASES"}


async def _start(sandbox: Sandbox, environment: dict[str, str], seconds: float, **search: Any) -> tuple[str, Path]:
    repository = make_repository(
        sandbox.work / "project", {"train.py": _TRAIN, "prepare.py": "", ".gitignore": "*.log\n"}
    )
    plan = {"strategy": "open", "budget": 1000, "protect": ["prepare.py"], "stop_after": 1000, **search}
    common = {"command": f"python3 train.py {{seed}} {seconds:g}", "cwd": str(repository), "gpus": 1}
    async with sandbox.server(**environment) as server:
        arguments = {"name": "loop", "common": common, "metric": "loss", "goal": "min", "search": plan}
        return str((await server.call("launch_sweep", **arguments)).data["sweep_id"]), repository


def _patch(level: str) -> str:
    before, after = _TRAIN.splitlines(keepends=True), _TRAIN.replace("1.0", level, 1).splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, "a/train.py", "b/train.py"))


def _look(sandbox: Sandbox, sweep_id: str) -> OpenSweep:
    return read_trials(RunStore(StateHome(sandbox.home)).sweeps.observe(sweep_id))


async def survive(sandbox: Sandbox) -> Storm:
    """Let four agents propose 25 trials each while conductor, supervisors and servers are killed."""
    storm, chance, environment = Storm(), random.Random(7), _environment(sandbox)
    sweep_id, repository = await _start(sandbox, environment, 0.3)
    servers: dict[int, int] = {}
    starting = anyio.Lock()
    begun_s, patience = time.monotonic(), Patience(sandbox.home / "sweeps" / sweep_id / "events.jsonl")

    async def propose_all(agent: int) -> None:
        own = random.Random(agent)
        left = [f"{own.choice((1.02, 1.0, 0.97)) + agent / 1000 + number / 1e5:.5f}" for number in range(_EACH)]
        while left and patience.lasts:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    async with starting:  # its process is known as the one that is new
                        server = await stack.enter_async_context(sandbox.server(**environment, RUNWARD_OWNER="bench"))
                    servers[agent] = server.pid
                    while left:
                        arguments = {"text": f"level {left[0]} by {agent}", "patch": _patch(left[0]), "base": BASELINE}
                        key = f"{agent} {left[0]}"
                        answer = await server.call("propose", sweep=sweep_id, idempotency_key=key, **arguments)
                        storm.answered[key] = str(answer.data["trial"])
                        left.pop(0)
                        await server.wait(sweep_id, timeout_s=2, until="decision")
            except _GONE as error:  # its server was killed
                if isinstance(error, ExceptionGroup) and (found := error.subgroup(NotMeasured)) is not None:
                    raise found from error
                await anyio.sleep(0.1)

    async def kill() -> None:
        while sum(storm.deaths.values()) < _DEATHS and patience.lasts:
            await anyio.sleep(chance.uniform(0.5, 2.5))
            _kill_one(sandbox, storm, chance, list(servers.values()))

    async with anyio.create_task_group() as group:
        for agent in range(_AGENTS):
            group.start_soon(propose_all, agent)
        group.start_soon(kill)
    async with sandbox.server(**environment) as server:
        while patience.lasts and _find_open(_look(sandbox, sweep_id)):
            await server.wait(sweep_id, timeout_s=2, until="decision")
        storm.took_s = time.monotonic() - begun_s
        await server.kill(sweep_id)
    _judge(storm, sandbox, sweep_id, repository)
    return storm


def _find_open(seen: OpenSweep) -> list[str]:
    return [name for name, trial in seen.trials.items() if trial.verdict is None]


def _judge(storm: Storm, sandbox: Sandbox, sweep_id: str, repository: Path) -> None:
    seen = _look(sandbox, sweep_id)
    runs = [run for run in RunStore(StateHome(sandbox.home)).list_runs() if run.spec.sweep == sweep_id]
    storm.lost = sum(name not in seen.trials for name in storm.answered.values())
    storm.lost += len(storm.answered) - len(set(storm.answered.values()))
    finished = Counter(run.spec.cell for run in runs if run.state == "finished")
    storm.twice = sum(number > 1 for number in finished.values())
    screens = Counter(run.trial for t in seen.trials.values() for run in t.runs if run.role == "screen")
    storm.screened_twice = sum(number > 1 for number in screens.values())
    storm.undecided = len(_find_open(seen))
    storm.verdicts = Counter(str(trial.verdict) for name, trial in seen.trials.items() if name != BASELINE)
    tips = [event["commit"] for event in seen.sweep.events if event["kind"] == "tip"]
    refs = git(repository, "for-each-ref", "--format=%(objectname)", "refs/heads/runward").split()
    storm.is_ref_newest = refs == tips[-1:]
    storm.worktrees = len(git(repository, "worktree", "list").splitlines()) - 1
    ledger = repository / "results.tsv"
    rows = [line.split("\t") for line in ledger.read_text().splitlines()[1:]] if ledger.exists() else []
    written = {row[5]: row[3] for row in rows}
    same = {"kept": "keep", "discarded": "discard"}
    told = {name: str(trial.verdict) for name, trial in seen.trials.items() if name != BASELINE and trial.verdict}
    storm.ledger = sum(written.get(name) == same.get(verdict, verdict) for name, verdict in told.items()) - len(told)


def _kill_one(sandbox: Sandbox, storm: Storm, chance: random.Random, servers: list[int]) -> None:
    victims = {"server": servers} if servers else {}
    for pid in processes.carrying(sandbox.token):
        title = (command_words(pid) or [""])[0]
        if title in _KILLED:
            victims.setdefault(title.removeprefix("runward-"), []).append(pid)
    if not victims:
        return
    kind = chance.choice(sorted(victims))
    try:
        os.kill(chance.choice(victims[kind]), signal.SIGKILL)
    except ProcessLookupError:
        return
    storm.deaths[kind] += 1


@dataclass
class Busy:
    """How busy the GPUs were while proposals waited, and what the calls took."""

    share: float
    propose_ms: list[float]
    refused: int
    tokens: list[int]


async def stay_busy(sandbox: Sandbox) -> Busy:
    """Keep proposals ahead of 8 GPUs with trials of 2 s, and measure how long these had none."""
    environment = _environment(sandbox)
    sweep_id, _ = await _start(sandbox, environment, _BUSY_S, ahead=2 * _GPUS)
    took_ms, tokens = list[float](), list[int]()
    async with sandbox.server(**environment) as server:
        for number in range(_BUSY_TRIALS):
            begun_s = time.monotonic()
            arguments = {"text": f"level {number}", "patch": _patch(f"{1.5 + number / 100:.2f}"), "base": BASELINE}
            answer = await server.call("propose", sweep=sweep_id, **arguments)
            took_ms.append(1e3 * (time.monotonic() - begun_s))
            tokens.append(count(answer.text))
        while _find_open(_look(sandbox, sweep_id)):
            answer = await server.wait(sweep_id, timeout_s=30, until="decision")
            tokens.append(count(answer.text))
        await server.kill(sweep_id)
    runs = [run for run in RunStore(StateHome(sandbox.home)).list_runs() if run.spec.sweep == sweep_id and run.gpus]
    spans: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        is_trial = not (run.spec.cell or "").startswith(f"{BASELINE}.")
        if run.started_at and run.ended_at and is_trial:
            spans.setdefault(run.gpus[0], []).append((posix(run.started_at), posix(run.ended_at)))
    gaps = [after[0] - before[1] for each in spans.values() for before, after in pairwise(sorted(each))]
    used = sum(end - start for each in spans.values() for start, end in each)
    return Busy(used / (used + sum(gaps)), took_ms, 0, tokens)
