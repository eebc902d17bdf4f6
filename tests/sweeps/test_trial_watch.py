"""What a conductor of an open sweep does with a repository, and what the next one makes of a half-done step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.events import EventLog
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conductor.trial_watch import TrialWatch
from mcp_server.sweeps.trials import proposals
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.sweeps.trials.proposal_files import add_proposal, list_proposals
from mcp_server.sweeps.trials.trials import OpenSweep, read_trials
from tests.support.repository import git, make_repository
from tests.support.sweeps import write_sweep

BASE = (1.0, 1.01, 0.99, 1.0)
BRANCH = "refs/heads/runward/night"


class Watched:
    """An open sweep on a real repository, whose runs are events alone."""

    def __init__(self, path: Path) -> None:
        self.repository = make_repository(path / "project")
        base = proposals.read_base(self.repository)
        plan = OpenPlan(budget=10, base=base, repository=str(self.repository), branch="night")
        cells = [Cell(f"t0.{n}", "1", {"trial": "t0", "seed": n}, {"command": "true"}) for n in range(4)]
        facts = {"metric": "loss", "goal": "min", "max_parallel": 4, "open": plan.facts()}
        self.directory: SweepDir = write_sweep(path / "state", cells, [], **facts)
        self.store = RunStore(StateHome(path / "state"))
        self.events = EventLog(self.directory.events)
        for number, value in enumerate(BASE):
            self.end(f"t0.{number}", value)

    def end(self, cell: str, value: float) -> None:
        run = {"cell": cell, "run_id": f"r-{cell}"}
        self.events.append("cell_started", cell, **run)
        self.events.append("cell_ended", cell, **run, state="finished", step=10)
        self.events.append("cell_measured", cell, **run, value=value)

    def propose(self, level: str, base: str = "t0", commit: str | None = None, **more: Any) -> str:
        parent = commit or OpenPlan.of(self.look().sweep.spec).base
        text = git(self.repository, "show", f"{parent}:train.py").replace("lr = 0.1", f"lr = {level}")
        worktree = self.repository.parent / f"tree-{level}"
        there = proposals.checkout(self.repository, parent, worktree)
        (there / "train.py").write_text(text + more.pop("end", ""))
        made = proposals.capture(self.repository, parent, worktree=worktree, text=level)
        proposals.remove_checkout(self.repository, worktree)
        facts = {"text": level, "by": "ada", "base": base, "commit": made.commit, "tree": made.tree}
        return add_proposal(self.directory, {**facts, "files": list(made.files), "params": {}, **more})

    def look(self) -> OpenSweep:
        return read_trials(self.store.sweeps.observe(self.directory.sweep_id))

    def advance(self) -> OpenSweep:
        """Let a new conductor look once, as after a death of the former one."""
        scalars = Scalars(self.store.home, self.store)
        watch = TrialWatch(
            self.directory, self.store, scalars, self.events, lambda: self.store.sweeps.observe(self.directory.sweep_id)
        )
        watch.advance({})
        return self.look()

    def run(self, values: dict[str, float]) -> OpenSweep:
        """Advance until nothing is due, each run with the value of its trial."""
        while waiting := [cell.cell for cell in self.advance().sweep.cells if cell.state == "waiting"]:
            for cell in waiting:
                self.end(cell.name, values[str(cell.params["trial"])])
        return self.look()

    @property
    def tip(self) -> str | None:
        return proposals.tip(self.repository, "night")


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def begin_keep(watched: Watched) -> str:
    """Leave a sweep as a conductor does that dies behind the event of a tip; return the commit."""
    watched.propose("0.2")
    commit = str(list_proposals(watched.directory)["t1"]["commit"])
    watched.advance()
    watched.events.append("tip", "moves", trial="t1", commit=commit, why="better", mean=0.9, n=2)
    return commit


def test_a_trial_that_wins_its_pairs_is_the_branch(watched: Watched) -> None:
    watched.propose("0.2")
    seen = watched.run({"t0": 1.0, "t1": 0.97})
    assert (seen.tip, seen.trials["t1"].verdict) == ("t1", "kept"), seen.trials["t1"].why
    assert watched.tip == seen.trials["t1"].commit
    kinds = [event["kind"] for event in seen.sweep.events if event["kind"] in ("tip", "verdict")]
    assert kinds == ["tip", "verdict"]


def test_a_move_of_the_tip_that_was_cut_off_is_done_by_the_next_conductor(watched: Watched) -> None:
    commit = begin_keep(watched)
    seen = watched.advance()
    assert (watched.tip, seen.tip, seen.trials["t1"].verdict) == (commit, "t1", "kept")
    assert (seen.trials["t1"].why, seen.trials["t1"].mean) == ("better", 0.9)


def test_a_move_that_was_done_is_not_done_again(watched: Watched) -> None:
    commit = begin_keep(watched)
    git(watched.repository, "update-ref", BRANCH, commit)
    assert watched.advance().trials["t1"].verdict == "kept"
    assert watched.tip == commit


def test_a_branch_that_a_person_has_moved_is_left_alone(watched: Watched) -> None:
    begin_keep(watched)
    own = git(watched.repository, "commit-tree", "HEAD^{tree}", "-m", "own").strip()
    git(watched.repository, "update-ref", BRANCH, own)
    seen = watched.advance()
    assert (seen.trials["t1"].verdict, seen.tip, watched.tip) == ("behind", "t0", own)
    assert "somebody has moved" in seen.trials["t1"].why


def test_a_branch_that_is_checked_out_waits_for_a_person_and_the_sweep_goes_on(watched: Watched) -> None:
    git(watched.repository, "checkout", "-q", "-b", "runward/night")
    former = watched.tip
    watched.propose("0.2")
    commit = str(list_proposals(watched.directory)["t1"]["commit"])
    watched.advance()
    watched.events.append("tip", "moves", trial="t1", commit=commit, former=former, why="better")
    seen = watched.advance()
    assert (seen.trials["t1"].verdict, seen.tip, watched.tip) == ("kept", "t1", former)
    assert f"git update-ref {BRANCH} {commit}" in seen.trials["t1"].why


def test_a_change_on_an_old_base_is_merged_onto_the_tip_once_and_measured_there(watched: Watched) -> None:
    begin_keep(watched)
    watched.advance()
    watched.propose("0.1", end="# more\n")
    seen = watched.run({"t0": 1.0, "t1": 0.97, "t2": 0.97, "t3": 0.94})
    assert (seen.trials["t2"].verdict, seen.trials["t3"].origin) == ("behind", "t2 on t1"), seen.trials["t2"].why
    assert seen.trials["t3"].base == "t1"
    merged = git(watched.repository, "show", f"{seen.trials['t3'].commit}:train.py")
    assert "lr = 0.2" in merged
    assert merged.endswith("# more\n")
    assert len(list_proposals(watched.directory)) == 3
    assert (seen.tip, watched.tip) == ("t3", seen.trials["t3"].commit)


def test_a_change_of_the_same_lines_is_compared_with_its_base(watched: Watched) -> None:
    begin_keep(watched)
    watched.advance()
    watched.propose("0.3")
    seen = watched.run({"t0": 1.0, "t1": 0.97, "t2": 0.97})
    assert (seen.trials["t2"].verdict, len(seen.trials)) == ("behind", 3)
    assert "propose it anew on the tip" in seen.trials["t2"].why
    assert [run.against for run in seen.trials["t0"].runs if run.against] == ["t2", "t2"]


def test_a_suspect_goes_on_by_a_note_and_ends_by_another(watched: Watched) -> None:
    watched.propose("0.2")
    watched.propose("0.3")
    seen = watched.run({"t0": 1.0, "t1": 0.5, "t2": 0.4})
    assert [seen.trials[name].verdict for name in ("t1", "t2")] == ["suspect", "suspect"]
    notes = [{"cell": "t1", "note": "keep: read the diff", "by": "bob"}, {"cell": "t2", "note": "discard", "by": "bob"}]
    watched.directory.notes.write_text("".join(json.dumps(note) + "\n" for note in notes))
    seen = watched.run({"t0": 1.0, "t1": 0.5, "t2": 0.4})
    assert [seen.trials[name].verdict for name in ("t1", "t2")] == ["kept", "discarded"]


def test_proposals_of_many_at_once_each_have_a_number_of_their_own(watched: Watched) -> None:
    names = [add_proposal(watched.directory, {"text": str(number)}) for number in range(3)]
    (watched.directory.requests / "t5.json").write_text("{}")
    assert [*names, add_proposal(watched.directory, {"text": "after"})] == ["t1", "t2", "t3", "t6"]
    (watched.directory.requests / "t7.json").write_text("no JSON")
    assert "t7" not in list_proposals(watched.directory)
