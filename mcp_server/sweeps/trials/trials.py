"""An open sweep by its events: its trials, what they are compared with, and the next step. Pure.

Whoever conducts it next comes to the same step, so that none is left out and none is done twice.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mcp_server.record.events import RecordEvent
from mcp_server.record.state import posix
from mcp_server.record.sweeps.sweep_state import SKIPPED, CellState, Sweep
from mcp_server.sweeps.trials.open_plan import BASELINE, OpenPlan
from mcp_server.sweeps.trials.statistics import Noise, drifts, pool_near
from mcp_server.sweeps.trials.trial_runs import MOST_AGAIN, TrialRun, list_runs
from mcp_server.sweeps.trials.verdicts import Judgement, Rule, TrialEvidence, judge
from mcp_server.text.formatting import join_some

ON_MERIT = ("kept", "discarded", "undecided", "behind")
CLEARED = "cleared"  # of a suspect: somebody has read its diff
APART = "apart"  # it does not merge with the tip: its base is what it can be compared with
_FLAGS: Mapping[str, str] = {CLEARED: "is_cleared", APART: "is_apart"}  # after these the trial goes on
_NEAR = 3  # runs of a drifting incumbent, or on one host, the newest, which a screen is compared with
_MOST_IDLE = 12  # runs of the incumbent, up to which a free lease measures it once more
# The seed decides where the variance between runs of one seed is below this share of that between others; with this df.
_ALIKE, _FEWEST_ALIKE = 0.2, 3
_MOST_BAD = 2  # runs of the base without a value


@dataclass(frozen=True)
class OpenTrial:
    """A proposed change, and what became of it. ``origin``: the trial and tip that it was merged from.

    ``is_over``: the sweep has ended.
    """

    name: str
    text: str = ""
    by: str = ""
    base: str = BASELINE
    commit: str = ""
    tree: str = ""
    patch_id: str = ""
    files: Sequence[str] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    verdict: str | None = None
    why: str = ""
    mean: float | None = None
    n: int | None = None
    gain: float | None = None
    sd: float | None = None
    is_cleared: bool = False
    is_apart: bool = False
    is_over: bool = False
    runs: tuple[TrialRun, ...] = ()

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its first run."""
        return self.verdict is None and not self.runs

    @property
    def state(self) -> str:
        """Its verdict, or before it whether it waits, runs, or was cut off by the sweep's stop."""
        is_cut_off = self.is_over or any(run.cell.state in ("killed", SKIPPED) for run in self.runs)
        return self.verdict or ("queued" if self.is_queued else "stopped" if is_cut_off else "running")


@dataclass(frozen=True)
class AddRun:
    """A run is due."""

    trial: str
    role: str
    against: str = ""
    pair: int = 0


@dataclass(frozen=True)
class Decide:
    """A verdict is due. ``better``: the tip moves to the trial; ``behind``: it is tried on the tip, if that merges."""

    trial: str
    verdict: str
    why: str
    judgement: Judgement | None = None


@dataclass(frozen=True)
class EndSweep:
    """Nothing is left to do."""

    state: str
    text: str


Step = AddRun | Decide | EndSweep


@dataclass(frozen=True)
class OpenSweep:
    """All that the events say. ``pending``: a move of the tip without a verdict yet. ``verdicts``: all, in order."""

    sweep: Sweep
    plan: OpenPlan
    trials: Mapping[str, OpenTrial]
    tip: str = BASELINE
    pending: RecordEvent | None = None
    verdicts: Sequence[str] = ()
    _seeded: dict[str, bool | None] = field(default_factory=dict)

    @property
    def rule(self) -> Rule:
        """How it judges."""
        sign = 1 if self.sweep.spec.goal == "max" else -1
        return Rule(sign, self.plan.repeats, self.plan.min_gain, self.plan.suspect_sd)

    def list_counted(self, trial: str) -> list[float]:
        """Return the values of a trial that count, in the order of its runs: the screen is none of them."""
        runs = (run for run in self.trials[trial].runs if run.end == "counted")
        return [run.value for run in runs if run.role != "screen" or self.plan.repeats == 0]

    @property
    def noise(self) -> Noise:
        """The deviation of single runs like those of the best trial."""
        return self.find_noise(self.tip)

    def find_noise(self, opponent: str) -> Noise:
        """Return the deviation of single runs like those of an incumbent: a change that is kept may change it."""
        return self._pool(self._singles, opponent)

    def _pool(self, groups: Iterable[tuple[str, Sequence[float]]], opponent: str) -> Noise:
        """Return the deviation inside of groups like an incumbent's; each has the name of the one it belongs to."""
        places = {name: place for place, name in enumerate(self.kept)}
        return pool_near((abs(places[name] - places[opponent]), values) for name, values in groups)

    @cached_property
    def _singles(self) -> Sequence[tuple[str, Sequence[float]]]:
        places = {name: name if name in self.kept else self.find_opponent(each) for name, each in self.trials.items()}
        return [(place, self.list_counted(name)) for name, place in places.items()]

    @property
    def has_hosts(self) -> bool:
        """Whether it runs on several hosts."""
        return len(self.sweep.spec.hosts) > 1

    @cached_property
    def alone(self) -> str:
        """Why the differences of pairs count alone: on each of several hosts, or in a drift, runs are more alike."""
        if self.has_hosts:
            return "the hosts may differ"
        groups = [self.list_counted(name) for name in self.kept]
        if "{seed}" in str(self.plan.common):  # all have the same seeds in the same order: chance would count for each
            groups = [max(groups, key=len)]
        return "runs near in time are more alike" if drifts(groups) else ""

    @cached_property
    def kept(self) -> list[str]:
        """The base and the trials that were kept, the oldest first."""
        return [name for name, trial in self.trials.items() if name == BASELINE or trial.verdict == "kept"]

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The new files that git does not ignore, which the first runs of the base and of kept trials have left."""
        measured = (event for event in self.sweep.events if event["kind"] == "cell_measured" and "files" in event)
        own = (event["files"] for event in measured if event.get("cell", "").partition(".")[0] in self.kept)
        return frozenset(name for files in own for name in files)

    @property
    def queued(self) -> list[OpenTrial]:
        """The trials that wait for their first run, first of all those that were merged: the tip may move again."""
        return sorted((trial for trial in self.trials.values() if trial.is_queued), key=lambda trial: not trial.origin)

    @property
    def started(self) -> list[OpenTrial]:
        """The trials that have a run."""
        return [trial for name, trial in self.trials.items() if trial.runs and name != BASELINE]

    def is_spent(self, now_s: float) -> bool:
        """Return whether no further trial begins: so many have, or the hours have passed (never at 0)."""
        begun, hours = self.sweep.round_events[0].get("at") if self.sweep.round_events else None, self.plan.hours
        is_late = hours is not None and begun is not None and now_s - posix(begun) >= 3600 * hours
        return is_late or (self.plan.budget is not None and len(self.started) >= self.plan.budget)

    def find_opponent(self, trial: OpenTrial) -> str:
        """Return the trial that this one is compared with: its base, or the tip where the base was never kept."""
        beside = self._beside.get(trial.name)
        return beside[0].trial if beside else trial.base if trial.base in self.kept else self.tip

    def list_pairs(self, trial: str) -> list[tuple[float, float | None]]:
        """Return the pairs of a trial that are over: its value, and the incumbent's where that has one.

        That is of the run beside it, or where the seed decides, of the run with its seed.
        """
        if not (runs := [run for run in self.trials[trial].runs if run.role == "pair" and run.end == "counted"]):
            return []
        opponent = self.find_opponent(self.trials[trial])
        if self.is_seeded(opponent):
            seeds = self.by_seed(opponent)
            return [(run.value, seeds.get(run.seed)) for run in runs]
        beside = {run.pair: run.value for run in self._beside.get(trial, ()) if run.end == "counted"}
        return [(run.value, beside.get(run.pair)) for run in runs]

    @cached_property
    def _beside(self) -> Mapping[str, Sequence[TrialRun]]:
        """The incumbents' runs in the pairs of each trial."""
        found: dict[str, list[TrialRun]] = {}
        for trial in self.trials.values():
            for run in trial.runs:
                if run.against:
                    found.setdefault(run.against, []).append(run)
        return found

    def find_screen(self, trial: OpenTrial) -> tuple[float, Sequence[float], str]:
        """Return the first run's value, NaN without one, the incumbent's to compare it with, and which, if not all."""
        screens = [run for run in trial.runs if run.role == "screen" and run.end == "counted"]
        if not screens:
            return math.nan, (), ""
        last, opponent = screens[-1], self.find_opponent(trial)
        is_seeded, beside = self.is_seeded(opponent), self.by_seed(opponent).get(last.seed)
        runs = [run for run in self.trials[opponent].runs if run.end == "counted" and run.role != "screen"]
        if beside is not None and is_seeded is None and not self.has_hosts:  # a seed that is a bad one hides no gain
            is_seeded = self.rule.sign * (beside - statistics.fmean(run.value for run in runs)) < 0
        if beside is not None and is_seeded:
            return last.value, [beside], "its run with this seed"
        if near := [run.value for run in runs if run.host == last.host][-_NEAR:] if self.has_hosts else []:
            return last.value, near, "the newest on its host"
        known = [run.value for run in runs]
        return (last.value, known[-_NEAR:], "the newest") if self.alone else (last.value, known, "")

    def find_seed(self, trial: OpenTrial) -> int:
        """Return the seed of a trial's next run: the first ones are those of the same files, proposed before."""
        same = (each for each in self.trials.values() if (each.tree, each.params) == (trial.tree, trial.params))
        return sum(len(each.runs) for each in same)

    def by_seed(self, trial: str) -> dict[int, float]:
        """Return the values of a trial that count, the screen's too, by their seeds."""
        return {run.seed: run.value for run in self.trials[trial].runs if run.end == "counted"}

    def is_seeded(self, opponent: str) -> bool | None:
        """Return whether runs of one seed are so alike, also of different trials, that it decides most of a value.

        A trial with one run counts with its whole gain. None: not known yet.
        """
        if opponent not in self._seeded:
            noise, alike = self.find_noise(opponent), self._pool(self._seed_differences, opponent)
            is_known = min(noise.df, alike.df) >= _FEWEST_ALIKE
            self._seeded[opponent] = alike.sd**2 <= _ALIKE * 2 * noise.sd**2 if is_known else None
        return self._seeded[opponent]

    @cached_property
    def _seed_differences(self) -> Sequence[tuple[str, Sequence[float]]]:
        """The differences between runs of one seed, of each trial and what it is compared with."""
        groups = []
        for trial in self.started:
            others = self.by_seed(opponent := self.find_opponent(trial))
            found = [value - others[seed] for seed, value in self.by_seed(trial.name).items() if seed in others]
            groups += [(opponent, found if len(found) > 1 else [*found, *(-one for one in found)])]  # one: from no gain
        return groups

    def find_pair_noise(self, opponent: str) -> Noise:
        """Return the deviation of the differences of pairs like those with an incumbent."""
        if self.is_seeded(opponent):
            return self._pool(self._seed_differences, opponent)
        pairs = [(self.find_opponent(trial), self.list_pairs(trial.name)) for trial in self.started]
        found = ((name, [one - other for one, other in each if other is not None]) for name, each in pairs)
        return self._pool(found, opponent)


def read_trials(sweep: Sweep) -> OpenSweep:
    """Return the trials of an open sweep."""
    plan = OpenPlan.of(sweep.spec)
    base = OpenTrial(BASELINE, "the base", sweep.spec.owner, "", plan.base, verdict="kept")
    trials, tip, verdicts, told = {BASELINE: base}, BASELINE, list[str](), dict[str, dict[str, Any]]()
    pending: RecordEvent | None = None
    for event in sweep.events:
        kind, name = event["kind"], event.get("trial", "")
        if kind == "proposed":
            trials.setdefault(name, make_trial(name, event))
        elif kind == "tip":
            pending = event
        elif kind == "verdict" and name in trials:
            verdict = event.get("verdict")
            tip = name if verdict == "kept" else tip
            pending = None if pending is not None and pending.get("trial") == name else pending
            own: Mapping[str, Any] = event
            facts = {each: own.get(each) for each in ("verdict", "mean", "n", "gain", "sd")}
            flags = {_FLAGS[str(verdict)]: True, "verdict": None} if verdict in _FLAGS else {}
            told.setdefault(name, {}).update(facts, why=own.get("why", ""), **flags)
            verdicts += [] if flags else [str(verdict)]
    runs = list_runs(sweep, plan, trials)
    for name, trial in trials.items():
        trials[name] = replace(trial, is_over=sweep.ended, runs=runs[name], **told.get(name, {}))
    return OpenSweep(sweep, plan, trials, tip, pending, verdicts)


def make_trial(name: str, facts: Mapping[str, Any]) -> OpenTrial:
    """Return a trial as it was proposed: the facts of its file, or of the event that reports it."""
    names = ("text", "by", "base", "commit", "tree", "patch_id", "files", "params", "origin", "verdict", "why")
    return OpenTrial(name, **{each: facts[each] for each in names if facts.get(each) is not None})


def find_steps(seen: OpenSweep, room: int, now_s: float, *, is_idle: bool = False) -> list[Step]:
    """Return what is due now, verdicts first. ``room``: for so many runs a lease may be free; a pair counts as one.

    ``is_idle``: a lease is free now.
    """
    if (end := judge_baseline(seen)) is not None:
        return [end]
    if any(run.end is None for run in seen.trials[BASELINE].runs if run.role == "baseline"):
        return []
    due = [step for trial in seen.started if trial.verdict is None for step in _advance(seen, trial)]
    if decisions := [step for step in due if isinstance(step, Decide)]:
        return list(decisions)
    if len(seen.verdicts) >= seen.plan.stop_after and not set(seen.verdicts[-seen.plan.stop_after :]) & {*ON_MERIT}:
        return [EndSweep("failed", f"{seen.plan.stop_after} trials in a row had no verdict on merit.")]
    is_spent = seen.is_spent(now_s)
    if not is_spent:
        left = None if seen.plan.budget is None else seen.plan.budget - len(seen.started)
        due += [step for trial in seen.queued[:left] for step in _begin(seen, trial)]
        if moved := [step for step in due if isinstance(step, Decide)]:
            return list(moved)
    chosen: list[Step] = []
    for step in due:
        room -= not (isinstance(step, AddRun) and step.role == "incumbent")
        if room >= 0:
            chosen.append(step)
    if due or not is_spent:
        is_known = len(seen.trials[seen.tip].runs) >= _MOST_IDLE
        return chosen if due or not is_idle or is_known or seen.queued else [AddRun(seen.tip, "idle")]
    is_over = all(run.end is not None for trial in seen.trials.values() for run in trial.runs)
    return [EndSweep("finished", f"The budget is spent: {describe_kept(seen)}")] if is_over else []


def describe_kept(seen: OpenSweep) -> str:
    """Return how many trials ran, how many are kept, and which is the best."""
    ran = f"{len(seen.started)} of {len(seen.trials) - 1} trials ran"
    return f"{ran}, {len(seen.kept) - 1} kept; the best is {seen.tip}."


def judge_baseline(seen: OpenSweep) -> EndSweep | None:
    """Return the end of a sweep whose base cannot be measured: it fails, however often it goes on."""
    runs = seen.trials[BASELINE].runs
    bad = [run for run in runs if run.role == "baseline" and run.end not in (None, "counted")]
    if len(bad) < min(_MOST_BAD, seen.plan.baseline_runs):
        return None
    return EndSweep("failed", f"{BASELINE} gave no {seen.sweep.spec.metric}: {bad[0].end}: {bad[0].why}")


def _advance(seen: OpenSweep, trial: OpenTrial) -> Iterator[Step]:
    if seen.pending is not None and seen.pending.get("trial") == trial.name:
        return  # its conductor settles it
    own = (run for run in trial.runs if run.role in ("screen", "pair"))
    if (bad := next((run for run in own if run.end not in (None, "counted", "contended")), None)) is not None:
        yield Decide(trial.name, str(bad.end), f"{bad.cell.cell.name}: {bad.why}")
        return
    opponent = seen.find_opponent(trial)
    pairs, last = seen.list_pairs(trial.name), max((run.pair for run in trial.runs), default=0)
    wanted = list(_pair(seen, trial, opponent, last)) if last else [AddRun(trial.name, "screen")]
    due = [step for each in wanted for step in _repeat(seen, each)]
    yield from due
    if due or any(_list_slot(seen, each)[-1].end is None for each in wanted):
        return
    screen, rivals, which = seen.find_screen(trial)
    is_seeded = bool(seen.is_seeded(opponent))
    alone = "they share the seed, which decides" if is_seeded else seen.alone
    evidence = TrialEvidence(
        *(screen, seen.list_counted(opponent), seen.find_noise(opponent), pairs, seen.find_pair_noise(opponent)),
        *(alone, is_seeded, rivals, which, trial.is_cleared),
    )
    found = judge(seen.rule, evidence, opponent)
    is_late = opponent != seen.tip and (found.kind == "better" or not trial.is_apart)
    if found.kind in ("pair", "better") and is_late:
        yield Decide(trial.name, "behind", f"{found.why}, and the tip is {seen.tip} now", found)
    elif found.kind == "pair":
        yield from _pair(seen, trial, opponent, last + 1)
    else:
        yield Decide(trial.name, found.kind, found.why, found)


def _begin(seen: OpenSweep, trial: OpenTrial) -> Iterator[Step]:
    """Yield the first runs of a trial: a screen, or where one was merged that has passed it, a pair.

    One that carries a file which runs write, and which may be measured in place of theirs, has none.
    """
    opponent = seen.find_opponent(trial)
    if carried := sorted(seen.outputs.intersection(trial.files)):
        why = f"brings {join_some(carried, 3)}, which runs write: propose it again without"
        yield Decide(trial.name, "invalid", why)
    elif not trial.origin:
        yield AddRun(trial.name, "screen")
    elif opponent != seen.tip and not trial.is_apart:
        yield Decide(trial.name, "behind", f"the tip is {seen.tip} now")
    else:
        yield from _pair(seen, trial, opponent, 1)


def _pair(seen: OpenSweep, trial: OpenTrial, opponent: str, number: int) -> Iterator[AddRun]:
    """Yield the runs of a pair; where the seed decides, the incumbent's only if it has not run with that seed yet.

    On several hosts the incumbent's follows the other, to where that began.
    """
    yield AddRun(trial.name, "pair", pair=number)
    own = next((run for run in trial.runs if (run.role, run.pair) == ("pair", number)), None)
    seed = seen.find_seed(trial) if own is None else own.seed
    is_early = seen.has_hosts and (own is None or own.cell.run_id is None)
    if not is_early and not (seen.is_seeded(opponent) and seed in seen.by_seed(opponent)):
        yield AddRun(opponent, "incumbent", trial.name, number)


def _list_slot(seen: OpenSweep, place: AddRun) -> list[TrialRun]:
    slot = (place.trial, place.role, place.against, place.pair)
    return [run for run in seen.trials[place.trial].runs if run.slot == slot]


def _repeat(seen: OpenSweep, place: AddRun) -> Iterator[AddRun]:
    """Yield the run of a place in the comparison that is missing, or whose last one does not count."""
    runs = _list_slot(seen, place)
    if not runs or (runs[-1].end not in (None, "counted") and len(runs) <= MOST_AGAIN):
        yield place


def find_host_beside(seen: OpenSweep, cell: str) -> str:
    """Return the host on which the other run of a cell's pair has begun, "" where there is none."""
    runs = {run.cell.cell.name: run for trial in seen.trials.values() for run in trial.runs}
    own = runs[cell]
    pair = (own.against or own.trial, own.pair)
    others = (run.host for run in runs.values() if run.host and (run.against or run.trial, run.pair) == pair)
    return next(others, "") if own.pair else ""


def name_cell(seen: OpenSweep, trial: str, further: int = 0) -> str:
    """Return the name of a trial's next cell, behind ``further`` ones that are added with it."""
    return f"{trial}.{len(seen.trials[trial].runs) + further}"


def list_resumed(seen: OpenSweep) -> list[CellState]:
    """Return the cells that start again where the sweep goes on: those that its stop cut off."""
    found = []
    for trial in seen.trials.values():
        for run in trial.runs:
            asks = seen.trials.get(run.against, trial)
            is_open = asks.verdict is None or run.role == "baseline"
            if run.cell.state == SKIPPED or (run.cell.state == "killed" and is_open):
                found.append(run.cell)
    return found
