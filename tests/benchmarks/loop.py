"""An open sweep on virtual time: which rule keeps the truth, and at what price. The product's own steps decide."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread

from mcp_server.record.events import RecordEvent
from mcp_server.record.state import Liveness
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.sweeps.trials.trials import AddRun, Decide, EndSweep, OpenSweep, find_steps, name_cell, read_trials
from tests.benchmarks import loop_storm
from tests.benchmarks.harness import Sandbox
from tests.benchmarks.harness import sandbox as new_sandbox
from tests.benchmarks.report import Row, Table, measured, median

LONGEST_S = 2400.0
SLOTS, AHEAD, TRIALS, SESSIONS = 4, 2, 100, 10
AT = "2026-11-21T15:30:00.000Z"


@dataclass
class Machine:
    """The noise of one kind, in units of its deviation: ``load`` is an AR(1) process that all runs of a time share.

    ``seeded``: the share of the variance that the seed decides, for every trial alike. ``factor``: the deviation of a
    trial with a gain, in that of the one it is based on.
    """

    chance: random.Random
    draw: Callable[[random.Random], float]
    load: float = 0.0
    seeded: float = 0.0
    factor: float = 1.0
    memory: float = 0.95
    _level: float = 0.0
    _effects: dict[int, float] = field(default_factory=dict)

    def pass_time(self) -> None:
        self._level = self.memory * self._level + self.chance.gauss(0, (1 - self.memory**2) ** 0.5)

    def measure(self, level: float, sd: float, seed: int) -> float:
        own = math.sqrt(1 - self.seeded) * self.draw(self.chance) + self.load * self._level
        if not self.seeded:
            return level + sd * own
        effect = self._effects.setdefault(seed, self.chance.gauss(0, 1))
        return level + sd * (own + math.sqrt(self.seeded) * effect)


def draw_normal(chance: random.Random) -> float:
    return chance.gauss(0, 1)


def draw_heavy(chance: random.Random) -> float:
    """Student's t with 4 degrees of freedom, scaled to a deviation of 1."""
    return float(chance.gauss(0, 1) / chance.gammavariate(2, 0.5) ** 0.5 / 2**0.5)


KINDS: dict[str, tuple[Callable[[random.Random], float], float, float, float]] = {
    "normal": (draw_normal, 0.0, 0.0, 1.0),
    "heavy tail": (draw_heavy, 0.0, 0.0, 1.0),
    "drift": (draw_normal, 1.0, 0.0, 1.0),
    "by the seed": (draw_normal, 0.0, 0.95, 1.0),
    "shrinking": (draw_normal, 0.0, 0.0, 0.7),
    "growing": (draw_normal, 0.0, 0.0, 1.3),
}


@dataclass
class Session:
    """One sweep of many trials, each of which has a true gain."""

    machine: Machine
    gains: list[float]
    plan: OpenPlan
    slots: int = SLOTS
    events: list[RecordEvent] = field(default_factory=list)
    levels: dict[str, float] = field(default_factory=lambda: {"t0": 0.0})
    sds: dict[str, float] = field(default_factory=lambda: {"t0": 1.0})
    truth: dict[str, float] = field(default_factory=dict)
    original: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cells = tuple(
            Cell(f"t0.{number}", "1", {"trial": "t0", "seed": number}) for number in range(self.plan.baseline_runs)
        )
        self.spec = SweepSpec("s", "s", cells=cells, metric="score", goal="max", open=self.plan.facts())
        self.sweep: Sweep | None = None
        self.now_s = 0.0
        self.note("conducting")

    def note(self, kind: str, **facts: Any) -> None:
        event: Any = {"seq": len(self.events) + 1, "kind": kind, "at": AT, **facts}
        self.events.append(event)

    def look(self) -> OpenSweep:
        self.sweep = fold_sweep(self.spec, tuple(self.events), Liveness.ALIVE, None, self.sweep)
        return read_trials(self.sweep)

    def propose(self, seen: OpenSweep, gain: float, origin: str = "") -> None:
        name = f"t{len(seen.trials)}"
        self.truth[name], self.levels[name] = gain, self.levels[seen.tip] + gain * self.sds[seen.tip]
        self.sds[name] = self.sds[seen.tip] * (self.machine.factor if gain else 1.0)
        self.original[name] = origin
        self.note("proposed", trial=name, text=name, by="sim", base=seen.tip, tree=name, origin=origin)

    def run(self) -> OpenSweep:
        """Conduct it until its budget is spent."""
        live: list[tuple[float, str, str]] = []
        left = list(self.gains)
        while True:
            seen = self.look()
            while left and len(seen.queued) < AHEAD:
                self.propose(seen, left.pop(0))
                seen = self.look()
            steps = find_steps(
                seen, max(0, self.slots - len(live) - sum(c.state == "waiting" for c in seen.sweep.cells)), 0.0
            )
            if any(isinstance(step, EndSweep) for step in steps):
                return seen
            if steps:
                self.apply(seen, steps)
                continue
            waiting = [cell.cell for cell in seen.sweep.cells if cell.state == "waiting"]
            for cell in waiting[: max(0, self.slots - len(live))]:
                self.note("cell_started", cell=cell.name, run_id=f"r-{cell.name}")
                heapq.heappush(
                    live, (self.now_s + self.machine.chance.uniform(0.95, 1.05), cell.name, str(cell.params["trial"]))
                )
            if not live:
                return seen
            end_s, name, trial = heapq.heappop(live)
            while self.now_s < end_s:
                self.now_s += 0.25
                self.machine.pass_time()
            value = self.machine.measure(self.levels[trial], self.sds[trial], int(name.rpartition(".")[2]))
            self.note("cell_ended", cell=name, run_id=f"r-{name}", state="finished", step=100)
            self.note("cell_measured", cell=name, run_id=f"r-{name}", value=value)

    def apply(self, seen: OpenSweep, steps: Any) -> None:
        added: Counter[str] = Counter()
        for step in steps:
            if isinstance(step, AddRun):
                cell = name_cell(seen, step.trial, added[step.trial])
                added[step.trial] += 1
                facts = {"against": step.against or None, "pair": step.pair or None}
                self.note(
                    "cell_added", cell=cell, trial=step.trial, role=step.role, **{n: v for n, v in facts.items() if v}
                )
                continue
            assert isinstance(step, Decide)
            if step.verdict == "suspect":  # its diff is read, and is what it says
                self.note("verdict", trial=step.trial, verdict="cleared")
                continue
            if step.verdict == "behind":
                self.propose(seen, self.truth[step.trial], f"{step.trial} on {seen.tip}")
            verdict = "kept" if step.verdict == "better" else step.verdict
            self.note("verdict", trial=step.trial, verdict=verdict, why=step.why)
            if verdict == "kept":
                return  # the others are judged by the new tip


@dataclass
class Count:
    trials: int = 0
    nulls: int = 0
    false: int = 0
    real: int = 0
    found: int = 0
    runs: int = 0
    suspects: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)


def count(seed: int, kind: str, sessions: int, share: float, gain: float, trials: int = TRIALS, **plan: Any) -> Count:
    total = Count()
    for number in range(sessions):
        chance = random.Random(f"{seed} {kind} {share} {number}")
        machine = Machine(chance, *KINDS[kind])
        gains = [gain if chance.random() < share else 0.0 for _ in range(trials)]
        session = Session(machine, gains, OpenPlan(budget=10 * trials, **plan))
        seen = session.run()
        _add(total, session, seen)
    return total


def _add(total: Count, session: Session, seen: OpenSweep) -> None:
    trials = [trial for name, trial in seen.trials.items() if name != "t0"]
    followed = {name.partition(" on ")[0]: trial for trial in trials if (name := session.original[trial.name])}

    def follow(trial: Any) -> Any:
        return follow(followed[trial.name]) if trial.verdict == "behind" and trial.name in followed else trial

    total.suspects += sum(event.get("verdict") == "cleared" for event in session.events)
    total.runs += sum(run.role != "idle" for trial in seen.trials.values() for run in trial.runs)
    for trial in trials:
        total.verdicts[str(trial.verdict)] += 1
        if session.original[trial.name]:
            continue
        total.trials += 1
        is_kept = follow(trial).verdict == "kept"
        if session.truth[trial.name] > 0:
            total.real += 1
            total.found += is_kept
        else:
            total.nulls += 1
            total.false += is_kept


async def measure(sandbox: Sandbox) -> Table:
    """Simulate which rule keeps the truth; then let four agents work under deaths, and see how busy the GPUs are."""
    rows: list[Row] = []
    for kind in KINDS:
        null = await anyio.to_thread.run_sync(partial(count, 1, kind, SESSIONS, 0.0, 0.0))
        real = await anyio.to_thread.run_sync(partial(count, 2, kind, SESSIONS, 0.1, 3.0))
        rows += _describe(kind, null, real)
    with new_sandbox() as own:
        storm = await loop_storm.survive(own)
    with new_sandbox() as own:
        busy = await loop_storm.stay_busy(own)
    return Table("Open sweeps", (*rows, *_describe_storm(storm), *_describe_busy(busy)), _tell(storm))


def _describe(kind: str, null: Count, real: Count) -> list[Row]:
    false, found = 100 * null.false / null.nulls, 100 * real.found / real.real
    beside = 100 * real.false / real.nulls
    return [
        measured(f"{kind}: {null.nulls:,} changes without effect that were kept", false, "%", at_most=2),
        measured(f"{kind}: runs a trial among them", null.runs / null.trials, "x", at_most=2.3),
        measured(f"{kind}: kept without effect beside real gains", beside, "%", at_most=3),
        Row(f"{kind}: gains of 3 sd that were kept, of {real.real}", f"{found:.0f} %", bar="≥ 85 %", ok=found >= 85),
        Row(f"{kind}: runs a trial where a tenth are such gains", f"{real.runs / real.trials:.2f}"),
    ]


def _describe_storm(storm: loop_storm.Storm) -> list[Row]:
    names = {"lost": "proposals lost that were answered", "twice": "cells with two successes"}
    names |= {"screened_twice": "trials screened twice", "undecided": "trials without a verdict"}
    names |= {"worktrees": "worktrees left", "ledger": "rows of results.tsv that differ from the events"}
    found = [(text, abs(getattr(storm, name))) for name, text in names.items()]
    rows = [Row(text, str(number), bar="0", ok=number == 0) for text, number in found]
    is_newest = "yes" if storm.is_ref_newest else "no"
    return [*rows, Row("the branch is the newest tip", is_newest, bar="yes", ok=storm.is_ref_newest)]


def _describe_busy(busy: loop_storm.Busy) -> list[Row]:
    share, each = 100 * busy.share, sum(busy.tokens) / len(busy.propose_ms)
    return [
        Row("GPUs busy while proposals wait, trials of 2 s", f"{share:.1f} %", bar="≥ 95 %", ok=share >= 95),
        measured("propose, median", median(busy.propose_ms), "ms", at_most=150),
        Row("answers to propose and wait, tokens a trial", f"{each:.0f}", bar="≤ 350", ok=each <= 350),
    ]


def _tell(storm: loop_storm.Storm) -> tuple[str, ...]:
    return (
        f"{len(storm.answered)} proposals of 4 agents, {sum(storm.deaths.values())} deaths {dict(storm.deaths)} in "
        f"{storm.took_s:.0f} s; verdicts {dict(storm.verdicts)}.",
        f"Simulated: {SESSIONS} sweeps of {TRIALS} proposals of each kind, {SLOTS} at once, on virtual time.",
    )
