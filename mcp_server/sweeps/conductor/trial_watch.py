"""An open sweep under way: takes its proposals, adds the runs that are due, notes verdicts and moves the tip.

What is due follows from the events alone, so it is done again without harm by the conductor after one that died.
"""

import contextlib
import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.errors import BadArgument, LaunchFailed, RunwardError
from mcp_server.record.code.protected_files import changed, digest
from mcp_server.record.events import EventLog
from mcp_server.record.results.notes import read_notes
from mcp_server.record.run_directory import read_json, write_json
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import LIVE, WAITING, CellState, Sweep
from mcp_server.results.figures import Figure, measure
from mcp_server.runs.code.code_sync import CodeSync
from mcp_server.scalars.from_log import count_lines, read_printed_value
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conductor.decide import count_ahead
from mcp_server.sweeps.plan.open_cells import MEASURED, fill_trial
from mcp_server.sweeps.trials import proposals, trials
from mcp_server.sweeps.trials.open_plan import BASELINE, OpenPlan
from mcp_server.sweeps.trials.proposal_files import add_proposal, list_proposals

_ENDS = frozenset(("verdict", "cell_ended", "cell_failed"))
_START = "-"  # in the name of a worktree, between the cell and which start of it that is


@dataclass
class TrialWatch:
    """``read``: returns the sweep as its directory proves it now. ``ending``: how it ends once no run lives."""

    directory: SweepDir
    store: RunStore
    scalars: Scalars
    events: EventLog
    read: Callable[[], Sweep]
    ending: trials.EndSweep | None = None
    _taken: set[str] = field(default_factory=set)  # proposals that are noted, with the verdict that they came with

    def advance(self, live: Mapping[str, Run]) -> None:
        """Take proposals and notes, and do what is due. OSError: not all of it could be done; it stays due."""
        try:
            self._take_proposals()
            if self.read().stop is None:
                self._advance(live)
        except subprocess.SubprocessError as error:
            raise OSError(f"git: {error}") from error

    def _advance(self, live: Mapping[str, Run]) -> None:
        while (seen := trials.read_trials(self.read())) and not self.events.behind:
            if seen.pending is not None:
                self._settle_tip(seen)
                continue
            if self._clear_suspects(seen):
                continue
            room, is_idle = _count_room(seen.sweep, live)
            steps = trials.find_steps(seen, room, time.time(), is_idle=is_idle)
            self.ending = next((step for step in steps if isinstance(step, trials.EndSweep)), None)
            self._note_wishes(seen)
            if not steps or self.ending is not None:
                return
            added: Counter[str] = Counter()
            for step in steps:
                if isinstance(step, trials.AddRun):
                    self._add_run(seen, step, added)
                elif isinstance(step, trials.Decide) and not self._decide(seen, step):
                    break  # what others are compared with is another one now

    def find_end(self, sweep: Sweep) -> tuple[str, str] | None:
        """Return the state in which the sweep ends now, and the reason, or None."""
        if any(cell.state == LIVE for cell in sweep.cells):
            return None
        if sweep.stop is not None:
            return (
                "killed",
                f"Stopped by {sweep.stop.get('by', 'somebody')}: {trials.describe_kept(trials.read_trials(sweep))}",
            )
        return None if self.ending is None else (self.ending.state, self.ending.text)

    def _take_proposals(self) -> None:
        if not (new := list_proposals(self.directory, self._taken)):
            return
        events = self.read().events
        noted = {event.get("trial") for event in events if event["kind"] == "proposed"}
        told = {event.get("trial") for event in events if event["kind"] == "verdict"}
        for name, facts in new.items():
            verdict, why = facts.pop("verdict", None), facts.pop("why", "")
            if name not in noted:
                self.events.append("proposed", str(facts.pop("text", "")), **{**facts, "trial": name})
            if verdict is not None and name not in told:
                self._note_verdict(name, verdict, why)
        self._taken |= new.keys()

    def _clear_suspects(self, seen: trials.OpenSweep) -> bool:
        """Note what somebody else than its proposer said of a gain that was too good."""
        notes = {one.get("cell"): one for one in read_notes(self.directory.notes)}
        for trial in seen.trials.values():
            note = notes.get(trial.name, {})
            said, by = note.get("note", "").strip(), note.get("by", "unknown")
            word = next((word for word in ("keep", "discard") if said.lower().startswith(word)), None)
            if trial.verdict == "suspect" and word is not None:
                verdict, why = trials.CLEARED if word == "keep" else "discarded", f"{said} ({by})"
                self._note_verdict(trial.name, verdict, why)
                return True
        return False

    def _note_wishes(self, seen: trials.OpenSweep) -> None:
        kinds = [event["kind"] for event in seen.sweep.round_events]
        if seen.is_spent(time.time()):
            if "budget_spent" not in kinds:
                self.events.append(
                    "budget_spent", f"The budget is spent: {trials.describe_kept(seen)} Running trials end."
                )
            return
        told = next((n for n, kind in enumerate(reversed(kinds)) if kind in ("proposed", "wants_proposals")), None)
        # Whoever proposes is told how many wait; and it is no news again before something has ended.
        is_news = told is None or not _ENDS.isdisjoint(kinds[len(kinds) - told :])
        if len(seen.queued) < seen.plan.ahead and is_news:
            self.events.append("wants_proposals", f"{len(seen.queued)} proposals wait, {seen.plan.ahead} are enough.")

    def _add_run(self, seen: trials.OpenSweep, step: trials.AddRun, added: Counter[str]) -> None:
        name = trials.name_cell(seen, step.trial, added[step.trial])
        added[step.trial] += 1
        beside = f" beside {step.against}" if step.against else ""
        params = dict(seen.trials[step.trial].params) or None
        seed = seen.find_seed(seen.trials[step.trial]) + added[step.trial] - 1
        facts = {"against": step.against or None, "pair": step.pair or None, "params": params, "seed": seed}
        text = f"{name}: {step.role}{beside}."
        self.events.append("cell_added", text, cell=name, trial=step.trial, role=step.role, **facts)

    def _decide(self, seen: trials.OpenSweep, step: trials.Decide) -> bool:
        """Note a verdict; return False where the tip moves."""
        if step.verdict == "better":
            self._begin_keep(seen, step)
            return False
        verdict, why = step.verdict, step.why
        if verdict == "behind":
            merged = self._merge(seen, step.trial)
            if merged is None and step.judgement is not None and step.judgement.kind != "better":
                verdict, why = trials.APART, f"{why}, and both change the same lines: it is compared with its base"
            else:
                next_step = "both change the same lines: propose it anew on the tip" if merged is None else merged
                why = f"{why}; {next_step}"
        self._note_verdict(step.trial, verdict, why, **_figures(seen, step))
        return True

    def _note_verdict(self, trial: str, verdict: str, why: str, **facts: Any) -> None:
        self.events.append("verdict", f"{trial} {verdict}: {why}", trial=trial, verdict=verdict, why=why, **facts)

    def _merge(self, seen: trials.OpenSweep, name: str) -> str | None:
        """Propose a trial's change on the tip; return which trial that is, None where both change the same lines."""
        trial, tip, plan = seen.trials[name], seen.trials[seen.tip], seen.plan
        origin = f"{name} on {seen.tip}"
        made = list_proposals(self.directory)
        if former := next((name for name, facts in made.items() if facts.get("origin") == origin), ""):
            return f"{former} is {origin}"
        base = seen.trials[trial.base]
        own = {key: value for key, value in trial.params.items() if base.params.get(key, self) != value}
        facts: dict[str, Any] = {"text": f"{origin}: {trial.text}"[:200], "by": trial.by, "base": seen.tip}
        facts |= {
            "origin": origin,
            "params": {**tip.params, **own},
            "commit": tip.commit,
            "tree": tip.tree,
            "files": [],
        }
        diff = ""
        if plan.base and trial.commit != base.commit:
            repository = Path(plan.repository)
            commit = proposals.merge(repository, base.commit, tip.commit, trial.commit, text=facts["text"])
            if commit is None:
                return None
            try:
                proposal = proposals.capture(
                    repository, tip.commit, commit=commit, paths=plan.paths, protect=plan.protect, text=facts["text"]
                )
            except BadArgument:
                return None
            diff = proposal.diff
            facts |= {"commit": proposal.commit, "tree": proposal.tree, "patch_id": proposal.patch_id}
            facts["files"] = list(proposal.files)
        number = add_proposal(self.directory, facts, diff)
        if plan.base:
            proposals.save_ref(Path(plan.repository), plan.branch, number, facts["commit"])
        self._take_proposals()
        return f"{number} is {origin}"

    def _begin_keep(self, seen: trials.OpenSweep, step: trials.Decide) -> None:
        plan = seen.plan
        actual = proposals.tip(Path(plan.repository), plan.branch) if plan.base else None
        if actual is not None and actual not in {seen.trials[name].commit for name in seen.kept}:
            why = f"{step.why}, but somebody has moved runward/{plan.branch} to {actual[:7]}"
            self._note_verdict(step.trial, "behind", why, **_figures(seen, step))
            return
        facts = {"trial": step.trial, "commit": seen.trials[step.trial].commit, "former": actual, "why": step.why}
        text = f"{step.trial} is better than {seen.tip}: the tip moves."
        self.events.append("tip", text, **facts, **_figures(seen, step))

    def _settle_tip(self, seen: trials.OpenSweep) -> None:
        """Move the branch, or see that it is moved, and say so."""
        event: Mapping[str, Any] = seen.pending or {}
        plan, trial, commit, former = seen.plan, event["trial"], event.get("commit", ""), event.get("former")
        verdict, why, branch = "kept", event.get("why", ""), f"refs/heads/runward/{plan.branch}"
        if plan.base:
            repository = Path(plan.repository)
            actual = proposals.tip(repository, plan.branch)
            if actual != commit and not proposals.move_tip(repository, plan.branch, commit, former):
                if proposals.tip(repository, plan.branch) == former:
                    why += f"; {branch} is checked out, so it waits: git update-ref {branch} {commit}"
                else:
                    verdict, why = "behind", f"{why}, but somebody has moved {branch}"
        facts = {name: event[name] for name in ("mean", "n", "gain", "sd") if name in event}
        self._note_verdict(trial, verdict, why, commit=commit, **facts)

    def measure(self, sweep: Sweep, cell: CellState, run: Run) -> tuple[Figure, dict[str, Any]]:
        """Return the figure of a run that has ended, with what it changed and its steps.

        Its worktree stays until that is an event: whoever is killed before it leaves the same to the next conductor.

        Raises:
            HostUnreachable, OSError: it is on another host, which does not answer now.
        """
        spec, plan = sweep.spec, OpenPlan.of(sweep.spec)
        log = self.store.fetch_log(run)
        figure = Figure()
        if not plan.measure:
            figure = measure(run, self.store, self.scalars, spec.metric, spec.goal, spec.ranking)
        if figure.value is None and not figure.bad_end:
            value = read_printed_value(log, spec.metric or "", MEASURED if plan.measure else "")
            is_bad = value is not None and not math.isfinite(value)
            figure = replace(
                figure, value=None if is_bad else value, bad_end=f"{value}".lstrip("-") if is_bad else None
            )
        steps = read_printed_value(log, plan.steps) if plan.steps else None
        altered = self._find_changed(plan, cell.cell.name, run)
        if plan.measure and count_lines(log, MEASURED) > 1:  # the sweep prints it once, whoever else prints it cheats
            altered.append(f"its log, by another line {MEASURED!r}")
        if figure.value is None and run.spec.mirror and (why := self.store.explain_old_log(run)):
            raise OSError(why)
        facts: dict[str, Any] = {"changed_files": altered or None, "step": None if steps is None else int(steps)}
        if plan.base and not run.spec.mirror and cell.cell.name.endswith(".0"):
            facts["files"] = proposals.list_new_files(Path(run.spec.cwd)) or None
        return figure, facts

    def _find_changed(self, plan: OpenPlan, cell: str, run: Run) -> list[str]:
        if run.spec.mirror and plan.base:
            found: list[str] = channel_of(Path(run.spec.mirror)).ask("code_changes", cwd=run.spec.cwd)[0]["changed"]
            return found
        before = read_json(self.directory.trees / f"{cell}.json")
        if not before:
            return []
        there = Path(before.pop("directory"))
        before.pop("start", None)
        return changed(before, digest(Path(plan.repository), plan.base, plan.protect, there))

    def drop(self, plan: OpenPlan, cell: str, run: Run | None = None) -> None:
        """Remove the worktrees of a cell, also on the host of ``run``, where that answers."""
        if not plan.base:
            return
        for tree in self.directory.trees.glob(f"{cell}{_START}*"):
            proposals.remove_checkout(Path(plan.repository), tree)
        (self.directory.trees / f"{cell}.json").unlink(missing_ok=True)
        if run is not None and run.spec.mirror:
            with contextlib.suppress(RunwardError, OSError):
                channel_of(Path(run.spec.mirror)).ask("code_remove", cwd=run.spec.cwd)

    def tidy(self) -> None:
        """Remove the worktrees that a former conductor has left."""
        sweep, trees = self.read(), self.directory.trees
        begun = [cell for cell in sweep.cells if cell.state in (WAITING, LIVE)]
        open_cells = {cell.cell.name for cell in (*begun, *sweep.unmeasured)}
        for path in trees.iterdir() if trees.is_dir() else ():
            if path.is_dir() and (name := path.name.partition(_START)[0]) not in open_cells:
                self.drop(OpenPlan.of(sweep.spec), name)


def _figures(seen: trials.OpenSweep, step: trials.Decide) -> dict[str, float]:
    """Return the finite figures of a judgement, ``sd`` that of the noise that its gain was measured in."""
    if (found := step.judgement) is None:
        return {}
    sd = seen.find_noise(seen.find_opponent(seen.trials[step.trial])).sd
    facts = {"mean": found.mean, "n": found.n, "gain": found.gain, "t": found.t, "sd": sd}
    return {name: value for name, value in facts.items() if value is not None and math.isfinite(value)}


def guard_of(spec: SweepSpec) -> Callable[[CodeSync], None] | None:
    """Return what notes the protected files of a trial whose code was sent to another host, None without a need."""
    if spec.open is None or not (plan := OpenPlan.of(spec)).base:
        return None
    return lambda code: code.guard(plan.base, plan.protect)


def _count_room(sweep: Sweep, live: Mapping[str, Run]) -> tuple[int, bool]:
    """Return for how many more runs a lease may be free, and whether one is free now as far as is known."""
    waiting = sum(cell.state == WAITING for cell in sweep.cells)
    begun = sum(cell.state == LIVE for cell in sweep.cells)
    if sweep.spec.max_parallel is not None:
        room = sweep.spec.max_parallel - begun - waiting
        return room, room > 0
    known = [live[cell.cell.name] for cell in sweep.cells if cell.state == LIVE and cell.cell.name in live]
    in_line = begun - len(known) + sum(run.state in ("queued", "starting") for run in known)
    return count_ahead(sweep, len(known) - in_line) - waiting - in_line, waiting + in_line == 0


def prepare_trial(sweep: Sweep, cell: Cell, directory: SweepDir, number: int) -> Cell:
    """Return a cell of an open sweep as it is launched, in a worktree of its trial's commit.

    It is made anew for each start, whose ``number`` it keeps: the run of this very start may live in it already, where
    the conductor that launched it died before it could say so.

    Raises:
        LaunchFailed: git could not make it now.
    """
    plan = OpenPlan.of(sweep.spec)
    trial = trials.read_trials(sweep).trials[str(cell.params.get("trial", BASELINE))]
    there = Path(plan.repository)
    if plan.base:
        facts = directory.trees / f"{cell.name}.json"
        # Another host names the code after it: no two starts share that.
        tree = directory.trees / f"{cell.name}{_START}{sweep.sweep_id[-4:]}-{number}"
        try:
            made = read_json(facts) or {}
            if made.get("start") == str(number) and tree.is_dir():
                there = Path(made["directory"])
            else:
                facts.unlink(missing_ok=True)
                there = proposals.checkout(there, trial.commit, tree, links=plan.protect)
                before = digest(Path(plan.repository), plan.base, plan.protect, there)
                write_json(facts, {**before, "directory": str(there), "start": str(number)})
        except (subprocess.SubprocessError, OSError) as error:
            cause = f"No worktree of {trial.name} could be made: {error}"
            raise LaunchFailed(cause, "Its proposal is kept.", "It is tried again.") from error
    filled = fill_trial(plan, cell, trial.params, sweep.sweep_id, sweep.spec.max_parallel, str(there))
    own = {"why": f"{trial.name}: {trial.text}"} if trial.base or "why" not in filled.launch else {}  # for find_runs
    return replace(filled, launch={**filled.launch, **own})
