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
from mcp_server.record.sweeps.sweep_state import LIVE, SKIPPED, WAITING, CellState, Sweep
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.sweeps.trials.statistics import Noise, drifts, pool
from mcp_server.sweeps.trials.verdicts import Judgement, Rule, TrialEvidence, judge
from mcp_server.text.formatting import shorten_facts

BASELINE = "t0"  # the name of the base itself
ON_MERIT = ("kept", "discarded", "undecided", "behind")
CLEARED = "cleared"  # of a suspect: somebody has read its diff
APART = "apart"  # it does not merge with the tip: its base is what it can be compared with
_FLAGS: Mapping[str, str] = {CLEARED: "is_cleared", APART: "is_apart"}  # after these the trial goes on
_CONTENDED, _MOST_AGAIN = 0.8, 2  # of the incumbent's steps; repeats of a run that made fewer, or that failed
_MOST_IDLE = 12  # runs of the incumbent, up to which a free lease measures it once more
# The seed decides where the variance between runs of one seed is below this share of that between others; with this df.
_ALIKE, _FEWEST_ALIKE = 0.2, 3
_MOST_BAD = 2  # runs of the base without a value
_LINE_CHARS = 200


@dataclass(frozen=True)
class TrialRun:
    """A cell of a trial. ``role``: baseline, screen, pair, incumbent (in a pair of ``against``) or idle.

    ``end``: None until it is over and measured; ``counted``, ``contended``, or the verdict that it means for its trial.
    """

    cell: CellState
    trial: str
    role: str
    against: str = ""
    pair: int = 0
    end: str | None = None
    why: str = ""
    steps: int | None = None

    @property
    def slot(self) -> tuple[str, str, str, int]:
        """Its place in the comparison, which a repeated run has too."""
        return self.trial, self.role, self.against, self.pair

    @property
    def seed(self) -> int:
        """The number of the cell, which a command may name as its seed."""
        return int(self.cell.params.get("seed") or 0)

    @property
    def value(self) -> float:
        """Its value, where it counts."""
        return self.cell.value if self.cell.value is not None else float("nan")


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

    @property
    def rule(self) -> Rule:
        """How it judges."""
        sign = 1 if self.sweep.spec.goal == "max" else -1
        return Rule(sign, self.plan.repeats, self.plan.min_gain, self.plan.suspect_sd)

    def list_counted(self, trial: str) -> list[float]:
        """Return the values of a trial that count, in the order of its runs: the screen is none of them."""
        runs = (run for run in self.trials[trial].runs if run.end == "counted")
        return [run.value for run in runs if run.role != "screen" or self.plan.repeats == 0]

    @cached_property
    def noise(self) -> Noise:
        """The deviation of single runs, pooled over all trials."""
        return pool(self.list_counted(name) for name in self.trials)

    @cached_property
    def has_drift(self) -> bool:
        """Whether the runs of those that were incumbents drift."""
        return drifts(self.list_counted(name) for name in self.kept)

    @cached_property
    def kept(self) -> list[str]:
        """The base and the trials that were kept, the oldest first."""
        return [name for name, trial in self.trials.items() if name == BASELINE or trial.verdict == "kept"]

    @property
    def queued(self) -> list[OpenTrial]:
        """The trials that wait for their first run, first of all those that were merged: the tip may move again."""
        return sorted((trial for trial in self.trials.values() if trial.is_queued), key=lambda trial: not trial.origin)

    @property
    def started(self) -> list[OpenTrial]:
        """The trials that have a run."""
        return [trial for name, trial in self.trials.items() if trial.runs and name != BASELINE]

    def is_spent(self, now_s: float) -> bool:
        """Return whether no further trial begins: so many have, or the hours have passed."""
        begun = [event["at"] for event in self.sweep.round_events[:1] if "at" in event]
        hours = self.plan.hours
        if hours is not None and begun and now_s - posix(begun[0]) >= 3600 * hours:
            return True
        return self.is_budget_spent

    @property
    def is_budget_spent(self) -> bool:
        """Return whether as many trials have begun as the plan has."""
        return self.plan.budget is not None and len(self.started) >= self.plan.budget

    def find_opponent(self, trial: OpenTrial) -> str:
        """Return the trial that this one is compared with: its base, or the tip where the base was never kept."""
        beside = self._beside.get(trial.name)
        return beside[0].trial if beside else trial.base if trial.base in self.kept else self.tip

    def list_pairs(self, trial: str) -> list[tuple[float, float | None]]:
        """Return the pairs of a trial that are over: its value, and the incumbent's where that has one.

        That is of the run beside it, or where the seed decides, of the run with its seed.
        """
        runs = [run for run in self.trials[trial].runs if run.role == "pair" and run.end == "counted"]
        if self.is_seeded:
            others = self.by_seed(self.find_opponent(self.trials[trial]))
            return [(run.value, others.get(run.seed)) for run in runs]
        own = {run.pair: run.value for run in runs}
        beside = {run.pair: run.value for run in self._beside.get(trial, ()) if run.end == "counted"}
        return [(value, beside.get(pair)) for pair, value in sorted(own.items())]

    @cached_property
    def _beside(self) -> Mapping[str, Sequence[TrialRun]]:
        """The incumbents' runs in the pairs of each trial."""
        found: dict[str, list[TrialRun]] = {}
        for trial in self.trials.values():
            for run in trial.runs:
                if run.against:
                    found.setdefault(run.against, []).append(run)
        return found

    def find_screen(self, trial: OpenTrial) -> tuple[float, float | None]:
        """Return the first run's value, NaN without one, and where the seed decides, the incumbent's with its seed."""
        screens = [run for run in trial.runs if run.role == "screen" and run.end == "counted"]
        if not screens:
            return math.nan, None
        others = self.by_seed(self.find_opponent(trial)) if self.is_seeded else {}
        return screens[-1].value, others.get(screens[-1].seed)

    def by_seed(self, trial: str) -> dict[int, float]:
        """Return the values of a trial that count, the screen's too, by their seeds."""
        return {run.seed: run.value for run in self.trials[trial].runs if run.end == "counted"}

    @cached_property
    def is_seeded(self) -> bool:
        """Whether runs of one seed are so alike, also of different trials, that the seed decides most of a value.

        A trial with one run counts with its whole gain.
        """
        noise, alike = self.noise, self._seed_noise
        return min(noise.df, alike.df) >= _FEWEST_ALIKE and alike.sd**2 <= _ALIKE * 2 * noise.sd**2

    @cached_property
    def _seed_noise(self) -> Noise:
        """The deviation of the differences between runs of one seed, of each trial and what it is compared with."""
        groups = []
        for trial in self.started:
            others = self.by_seed(self.find_opponent(trial))
            found = [value - others[seed] for seed, value in self.by_seed(trial.name).items() if seed in others]
            groups.append(found if len(found) > 1 else [*found, *(-one for one in found)])  # of one: from no gain
        return pool(groups)

    @cached_property
    def differences(self) -> Noise:
        """The deviation of the differences of pairs, pooled over all trials."""
        if self.is_seeded:
            return self._seed_noise
        pairs = ([one - other for one, other in self.list_pairs(name) if other is not None] for name in self.trials)
        return pool(pairs)


def read_trials(sweep: Sweep) -> OpenSweep:
    """Return the trials of an open sweep."""
    plan = OpenPlan.of(sweep.spec)
    base = OpenTrial(BASELINE, "the base", sweep.spec.owner, "", plan.base, verdict="kept")
    trials, added, measured = {BASELINE: base}, dict[str, RecordEvent](), dict[str, RecordEvent]()
    tip, verdicts, told = BASELINE, list[str](), dict[str, dict[str, Any]]()
    pending: RecordEvent | None = None
    for event in sweep.events:
        kind, name = event["kind"], event.get("trial", "")
        if kind == "proposed":
            trials.setdefault(name, make_trial(name, event))
        elif kind == "cell_added":
            added.setdefault(event.get("cell", ""), event)
        elif kind == "cell_measured":
            measured[event.get("run_id", "")] = event
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
    runs = _list_runs(sweep, plan, trials, added, measured)
    found = {
        name: replace(trial, is_over=sweep.ended, runs=_find_contended(runs[name], runs), **told.get(name, {}))
        for name, trial in trials.items()
    }
    return OpenSweep(sweep, plan, found, tip, pending, verdicts)


def _list_runs(
    sweep: Sweep,
    plan: OpenPlan,
    trials: Iterable[str],
    added: Mapping[str, RecordEvent],
    measured: Mapping[str, RecordEvent],
) -> dict[str, list[TrialRun]]:
    """Return the runs of each trial; ``added``: the events of cells, ``measured``: those of runs."""
    runs: dict[str, list[TrialRun]] = {name: [] for name in trials}
    is_timed = not any(cell.state == "finished" for cell in sweep.cells[: plan.baseline_runs])
    for cell in sweep.cells:
        place: Mapping[str, Any] = added.get(cell.cell.name, {"trial": BASELINE, "role": "baseline"})
        name = place.get("trial", "")
        if name in runs:
            role, against, pair = place.get("role", ""), place.get("against", ""), place.get("pair", 0)
            figure: Mapping[str, Any] | None = measured.get(cell.run_id or "")
            end = _judge_end(cell, figure, plan, sweep.spec.metric or "", is_timed=is_timed)
            steps = (figure or {}).get("step", cell.end.get("step"))
            runs[name].append(TrialRun(cell, name, role, against, pair, *end, steps))
    return runs


def make_trial(name: str, facts: Mapping[str, Any]) -> OpenTrial:
    """Return a trial as it was proposed: the facts of its file, or of the event that reports it."""
    names = ("text", "by", "base", "commit", "tree", "patch_id", "files", "params", "origin", "verdict", "why")
    return OpenTrial(name, **{each: facts[each] for each in names if facts.get(each) is not None})


def _judge_end(
    cell: CellState, measured: Mapping[str, Any] | None, plan: OpenPlan, metric: str, *, is_timed: bool
) -> tuple[str | None, str]:
    """Return what the end of a run means, and why, failures before values: one of a run that broke a rule is none.

    ``is_timed``: every run of the base ended at its time limit, which is the length of a training then.
    """
    end = cell.end
    if cell.state in (WAITING, LIVE, SKIPPED):
        return None, ""
    if cell.state not in ("finished", "timed_out"):
        failure = end.get("failure") or {}
        told = ": ".join(filter(None, (failure.get("kind"), failure.get("line"))))
        advice = failure.get("correction") or failure.get("advice")  # another proposal follows, no launch
        why = ". ".join(filter(None, ((told or str(end.get("text") or cell.state)).rstrip(". "), advice)))
        return "crash", shorten_facts(why, _LINE_CHARS)
    if measured is None:
        return None, ""
    if end.get("params"):
        return "crash", "a retry changed what it ran with, so it is not what was proposed"
    if changed := measured.get("changed_files"):
        return "invalid", f"changed while it ran: {', '.join(changed[:3])}"
    peak, most = end.get("peak_mib"), plan.limits.get("peak_gpu_mib")
    if most is not None and peak is not None and peak > most:
        return "over_limit", f"peak GPU memory {peak:g} MiB, the limit is {most:g}"
    if cell.bad_end:
        line = (end.get("failure") or {}).get("line")
        what = f"its training diverged: {line}" if cell.has_diverged else f"{metric} ended as {cell.bad_end}"
        return "not_finite", shorten_facts(what, _LINE_CHARS)
    if cell.state == "timed_out" and not is_timed:
        return "timed_out", "its time limit ended it; the base takes less"
    if cell.value is None:
        end_of = "timed_out" if cell.state == "timed_out" else "no_metric"
        return end_of, f"{'measure printed' if plan.measure else 'it gave'} no number named so, e.g. {metric}: 0.5"
    return "counted", ""


def _find_contended(own: Sequence[TrialRun], runs: Mapping[str, Sequence[TrialRun]]) -> tuple[TrialRun, ...]:
    """Return runs of a trial, those that made fewer steps than the base as ``contended``, at most twice of a slot.

    A trial whose whole runs all make fewer steps is slower by itself.
    """
    usual = _usual_steps([run for run in runs[BASELINE] if run.end == "counted"])
    counts: dict[tuple[str, str, str, int], int] = {}
    found: list[TrialRun] = []
    for run in own:
        if usual is None or run.end != "counted" or run.role == "baseline":
            found.append(run)
            continue
        least = min(
            filter(None, (usual, _usual_steps([each for each in found if each.end == "counted"]))), default=None
        )
        is_slow = least is not None and run.steps is not None and run.steps < _CONTENDED * least
        if is_slow and counts.get(run.slot, 0) < _MOST_AGAIN:
            counts[run.slot] = counts.get(run.slot, 0) + 1
            run = replace(run, end="contended", why=f"{run.steps} steps, others {least:g}")  # noqa: PLW2901 - the same run
        found.append(run)
    return tuple(found)


def _usual_steps(runs: Sequence[TrialRun]) -> float | None:
    steps = [run.steps for run in runs if run.steps is not None]
    return statistics.median(steps) if steps else None


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
        return chosen or (_measure_idle(seen) if is_idle and not due else [])
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


def _measure_idle(seen: OpenSweep) -> list[Step]:
    is_measured = len(seen.trials[seen.tip].runs) >= _MOST_IDLE or seen.queued
    return [] if is_measured else [AddRun(seen.tip, "idle")]


def _advance(seen: OpenSweep, trial: OpenTrial) -> Iterator[Step]:
    if seen.pending is not None and seen.pending.get("trial") == trial.name:
        return  # its conductor settles it
    bad = next((run for run in trial.runs if run.role in ("screen", "pair") and _is_failure(run)), None)
    if bad is not None:
        yield Decide(trial.name, str(bad.end), f"{bad.cell.cell.name}: {bad.why}")
        return
    opponent = seen.find_opponent(trial)
    pairs, last = seen.list_pairs(trial.name), max((run.pair for run in trial.runs), default=0)
    wanted = list(_pair(seen, trial, opponent, last)) if last else [AddRun(trial.name, "screen")]
    due = [step for each in wanted for step in _repeat(seen, each)]
    yield from due
    if due or any(_list_slot(seen, each)[-1].end is None for each in wanted):
        return
    screen, beside = seen.find_screen(trial)
    evidence = TrialEvidence(
        *(screen, seen.list_counted(opponent), seen.noise, pairs, seen.differences),
        *(seen.has_drift, seen.is_seeded, beside, trial.is_cleared),
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
    """Yield the first runs of a trial: a screen, or where one was merged that has passed it, a pair."""
    opponent = seen.find_opponent(trial)
    if not trial.origin:
        yield AddRun(trial.name, "screen")
    elif opponent != seen.tip and not trial.is_apart:
        yield Decide(trial.name, "behind", f"the tip is {seen.tip} now")
    else:
        yield from _pair(seen, trial, opponent, 1)


def _pair(seen: OpenSweep, trial: OpenTrial, opponent: str, number: int) -> Iterator[AddRun]:
    """Yield the runs of a pair; where the seed decides, the incumbent's only if it has not run with that seed yet."""
    yield AddRun(trial.name, "pair", pair=number)
    seed = next((run.seed for run in trial.runs if (run.role, run.pair) == ("pair", number)), len(trial.runs))
    if not (seen.is_seeded and seed in seen.by_seed(opponent)):
        yield AddRun(opponent, "incumbent", trial.name, number)


def _is_failure(run: TrialRun) -> bool:
    return run.end not in (None, "counted", "contended")


def _list_slot(seen: OpenSweep, place: AddRun) -> list[TrialRun]:
    slot = (place.trial, place.role, place.against, place.pair)
    return [run for run in seen.trials[place.trial].runs if run.slot == slot]


def _repeat(seen: OpenSweep, place: AddRun) -> Iterator[AddRun]:
    """Yield the run of a place in the comparison that is missing, or whose last one does not count."""
    runs = _list_slot(seen, place)
    if not runs or (runs[-1].end not in (None, "counted") and len(runs) <= _MOST_AGAIN):
        yield place


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
