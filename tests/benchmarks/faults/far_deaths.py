"""Random deaths of relays, ssh clients, conductors, starters and the rest, under runs and sweeps here and over ssh."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from tests.benchmarks.faults import deaths
from tests.benchmarks.faults.deaths import PATIENCE_S, Agent, Campaign, Case, Truth
from tests.benchmarks.faults.injector import injector
from tests.benchmarks.harness import NotMeasured, Sandbox, program
from tests.benchmarks.report import Table
from tests.support.sandbox import Sandbox as Home
from tests.support.sshd import NAME, PROGRAM, FarHost

LONGEST_S = 900.0
MOMENTS = 150
WEIGHTS = {
    "relay": 30,
    "ssh": 10,
    "conductor": 16,
    "supervisor": 12,
    "guard": 8,
    "command": 8,
    "server": 8,
    "starter": 6,
    "helper": 3,
    "tmux": 3,
}
_DEATHS, _MEAN_PAUSE_S, _AGENTS, _RUNS_AT_ONCE, _SWEEPS_AT_ONCE = 0.9, 0.5, 2, 2, 2
_CELLS, _STATUSES, _STOPPED, _TRIES = (3, 6), (0, 0, 0, 3), 0.15, 4
RULES = (
    "cells without exactly one result",
    "cells that ran twice at once",
    "sweeps whose end nobody heard",
    "runs there that nobody here knows",
)


@dataclass(frozen=True)
class FarSandbox(Sandbox):
    """A sandbox with another host, which ssh reaches by the name ``lab``."""

    far: FarHost

    @property
    def home(self) -> Path:
        return self.root / "state"

    @property
    def run_places(self) -> tuple[Path, ...]:
        return (self.home / "runs", self.far.state / "runs")

    @property
    def sockets(self) -> tuple[str, ...]:
        return (self.socket, self.far.socket)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.far.sandbox.environ}


@dataclass
class Swept:
    """A sweep of an agent: the statuses with which its cells exit."""

    name: str
    statuses: tuple[int, ...]
    place: Path
    sweep_id: str = ""
    stop_asked: bool = False


@dataclass
class Sweeps:
    """The sweeps of a campaign."""

    campaign: Campaign
    all: list[Swept] = field(default_factory=list)

    def work(self, agent: Agent) -> None:
        """Start one sweep after the other, stop some, and wait for their ends."""
        campaign, serial = self.campaign, 0
        while not campaign.over:
            serial += 1
            dice = campaign.dice
            host = dice.choice(campaign.hosts)
            statuses = tuple(dice.choice(_STATUSES) for _ in range(dice.randint(*_CELLS)))
            swept = Swept(f"{agent.name}-{serial}", statuses, campaign.sandbox.work / f"{agent.name}-{serial}")
            swept.place.mkdir()
            self.all.append(swept)
            self._launch(agent, swept, {"host": host} if host else {})
            if swept.sweep_id and dice.random() < _STOPPED:
                self._stop(agent, swept)
            if swept.sweep_id:
                self._hear_end(agent, swept)

    def _launch(self, agent: Agent, swept: Swept, more: dict[str, Any]) -> None:
        seconds = round(self.campaign.dice.uniform(0.2, 1.0), 2)
        argv = program("witness", swept.place / "{run_id}.truth", "cell", "{status}", seconds, "{n}.lock")
        common = {"command": argv, "cwd": str(swept.place), "gpus": "none", **more}
        cells = [{"n": n, "status": status} for n, status in enumerate(swept.statuses)]
        for _ in deaths.patience(self.campaign):
            plan = {"common": common, "cells": cells, "max_parallel": 2}
            answer = agent.call("launch_sweep", name=swept.name, idempotency_key=swept.name, **plan)
            if answer:
                swept.sweep_id = str(answer["sweep_id"])
                return
        self.campaign.blame("launches that never succeeded", swept.name)

    def _stop(self, agent: Agent, swept: Swept) -> None:
        swept.stop_asked = True
        for _ in deaths.patience():
            asked = agent.call("kill_run", run_id=swept.sweep_id)
            if asked is not None and asked["status"] == "confirmation_required":
                asked = agent.call("kill_run", run_id=swept.sweep_id, confirm_token=asked["confirm_token"])
            if asked is not None and asked["status"] != "confirmation_required":
                return
        self.campaign.blame("stops that never succeeded", swept.sweep_id)

    def _hear_end(self, agent: Agent, swept: Swept) -> None:
        for _ in deaths.patience(longest_s=2 * PATIENCE_S):
            answer = agent.call("wait_run", run_ids=swept.sweep_id, until="end", timeout_s=10)
            if answer is not None and answer["reason"] == "ended":
                return
        self.campaign.blame("sweeps whose end nobody heard", swept.sweep_id)

    def check(self) -> None:
        """Compare each cell's runs, and what they wrote themselves, with the states that are told."""
        store = RunStore(StateHome(self.campaign.sandbox.home))
        runs = store.list_runs()
        for swept in filter(lambda each: each.sweep_id, self.all):
            sweep = store.sweeps.observe(swept.sweep_id)
            for state in sweep.cells:
                status = swept.statuses[state.cell.params["n"]]
                mine = [run for run in runs if run.spec.sweep == swept.sweep_id and run.spec.cell == state.cell.name]
                summary = f"{swept.sweep_id} {state.cell.name} {state.state}: " + "; ".join(map(_describe, mine))
                self.campaign.count["cells"] += 1
                for run in mine:
                    self._check_run(swept, run, status)
                self._check_cell(swept, state.state, status, mine, summary)
        if isinstance(self.campaign.sandbox, FarSandbox):
            known = {run.run_id for run in runs}
            for run in RunStore(StateHome(self.campaign.sandbox.far.state)).list_runs():
                if run.run_id not in known and run.started_at is not None:
                    self.campaign.blame("runs there that nobody here knows", _describe(run))

    def _check_run(self, swept: Swept, run: Run, status: int) -> None:
        truth = swept.place / f"{run.run_id}.truth"
        # A sweep stops what a dead supervisor left, and starts the cell again.
        is_stopped = swept.stop_asked or run.at_start.get("supervisor_pid") in {
            pid for pid, _ in self.campaign.injector.killed
        }
        case = Case(swept.name, "cell", status, truth, run_id=run.run_id, stop_asked=is_stopped)
        deaths.check_case(self.campaign, case, run)
        if any(line[1] == "overlap" for line in Truth.of(case).lines):
            self.campaign.blame("cells that ran twice at once", _describe(run))

    def _check_cell(self, swept: Swept, state: str, status: int, runs: list[Run], summary: str) -> None:
        results = Counter(run.state for run in runs if run.exit_code is not None)
        expected = "failed" if status else "finished"
        is_exact = state == expected and results == {expected: 1}
        is_given_up = state == "lost" and len(runs) >= _TRIES and not results
        if swept.stop_asked:
            is_exact = is_exact or (results.total() <= 1 and state in ("killed", "lost", "skipped"))
        if not is_exact and not is_given_up:
            self.campaign.blame("cells without exactly one result", summary)
        self.campaign.count["cells given up"] += is_given_up


def _describe(run: Run) -> str:
    return f"{run.run_id} {run.state} {run.exit_code} {run.signal} {(run.failure or {}).get('kind')} {run.reason}"


async def measure(sandbox: Sandbox) -> Table:
    """Run the campaign; ``RUNWARD_BENCH_SEED`` and ``RUNWARD_BENCH_MOMENTS`` choose another one."""
    if PROGRAM is None:
        raise NotMeasured("no sshd is installed")
    seed = int(os.environ.get("RUNWARD_BENCH_SEED") or random.SystemRandom().randrange(10**6))
    moments = int(os.environ.get("RUNWARD_BENCH_MOMENTS") or MOMENTS)
    print(f"far_deaths: seed {seed}", file=sys.stderr, flush=True)
    return await anyio.to_thread.run_sync(_measure, sandbox, seed, moments)


def _measure(sandbox: Sandbox, seed: int, moments: int) -> Table:
    campaign = play(sandbox, seed, moments)
    return deaths.table(campaign, seed, RULES)


def play(sandbox: Sandbox, seed: int, moments: int, **settings: Any) -> Campaign:
    """Run a campaign of so many deaths and pauses, and check everything."""
    home = Home(sandbox.root, sandbox.socket, {**sandbox.environment(), "RUNWARD_HOME": str(sandbox.root / "state")})
    far = FarHost(home, sandbox.root / "far")
    far.start()
    try:
        far.write_hosts()
        (home.path / "state" / "config.toml").write_text("stop_grace_s = 0.5\n")
        place = FarSandbox(sandbox.root, far)
        with injector(place, seed, weights=WEIGHTS, deaths=_DEATHS) as faults:
            sizes = {"agents": _AGENTS, "runs_at_once": _RUNS_AT_ONCE, "pause_s": _MEAN_PAUSE_S, **settings}
            campaign = Campaign(place, faults, random.Random(seed + 1), hosts=("", NAME, NAME), **sizes)
            sweeps = Sweeps(campaign)
            agents = [Agent(campaign, f"sweeper-{number}") for number in range(_SWEEPS_AT_ONCE)]
            try:
                deaths.run(campaign, moments, [partial(sweeps.work, agent) for agent in agents])
                sweeps.check()
            finally:
                for agent in agents:
                    agent.close()
        return campaign
    finally:
        far.close()
