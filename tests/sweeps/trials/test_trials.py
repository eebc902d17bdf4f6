"""The next step of an open sweep, by its events."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.record.events import RecordEvent
from mcp_server.record.state import Liveness
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import fold_sweep
from mcp_server.sweeps.trials.open_plan import OpenPlan
from mcp_server.sweeps.trials.trials import (
    AddRun,
    Decide,
    EndSweep,
    OpenSweep,
    Step,
    find_host_beside,
    find_steps,
    make_trial,
    read_trials,
)
from mcp_server.tools.support.wait_answer import describe_trials

AT, HOUR_S = "2026-11-21T15:30:00.000Z", 3600
BASE = (1.0, 1.01, 0.99, 1.0)


class Loop:
    """Events of an open sweep whose loss is to fall."""

    def __init__(self, *hosts: str, **plan: Any) -> None:
        self.plan = OpenPlan(**{"budget": 10, "base": "c0", **plan})
        cells = tuple(Cell(f"t0.{n}", "1", {"trial": "t0", "seed": n}, {"command": "true"}) for n in range(4))
        self.spec = SweepSpec("s", "s", cells=cells, metric="loss", goal="min", open=self.plan.facts(), hosts=hosts)
        self.events: list[RecordEvent] = []
        self.note("conducting")

    def note(self, kind: str, **facts: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "kind": kind, "at": AT, **facts})  # type: ignore[typeddict-item]

    def end(self, cell: str, value: float | None = None, state: str = "finished", **measured: Any) -> None:
        run = {"cell": cell, "run_id": f"r-{cell}"}
        self.note("cell_started", **run, host=measured.pop("host", None))
        failed = {"failure": {"kind": "python_error", "line": "ValueError: bad"}} if state == "failed" else {}
        self.note(
            "cell_failed" if failed else "cell_ended", **run, state=state, step=measured.pop("step", 100), **failed
        )
        if value is not None or state == "finished":
            self.note("cell_measured", **run, **({} if value is None else {"value": value}), **measured)

    def propose(self, name: str, base: str = "t0", **facts: Any) -> None:
        self.note("proposed", trial=name, text=name, by="ada", base=base, commit=f"c{name}", tree=name, **facts)

    def look(self) -> OpenSweep:
        return read_trials(fold_sweep(self.spec, tuple(self.events), Liveness.ALIVE))

    def steps(self, room: int = 8, now_s: float = 0.0, *, is_idle: bool = False) -> list[Step]:
        return find_steps(self.look(), room, now_s, is_idle=is_idle)

    def add(self, *values: float | None, **ends: Any) -> None:
        """Add the runs that are due now, and end them with these values."""
        due = [step for step in self.steps() if isinstance(step, AddRun)]
        for step, value in zip(due, values, strict=True):
            cell = f"{step.trial}.{len(self.look().trials[step.trial].runs)}"
            facts = {"against": step.against, "pair": step.pair}
            self.note(
                "cell_added", cell=cell, trial=step.trial, role=step.role, **{n: v for n, v in facts.items() if v}
            )
            self.end(cell, value, **ends)

    def measure_base(self, *values: float) -> None:
        for number, value in enumerate(values or BASE):
            self.end(f"t0.{number}", value)

    def decide(self) -> Decide:
        (step,) = self.steps()
        assert isinstance(step, Decide), step
        return step


def test_nothing_begins_before_the_base_is_measured() -> None:
    loop = Loop()
    loop.propose("t1")
    assert loop.steps() == []
    loop.measure_base()
    assert loop.steps() == [AddRun("t1", "screen")]
    assert loop.look().noise.df == 3


def test_a_base_without_the_metric_ends_the_sweep_and_says_why() -> None:
    loop = Loop()
    loop.end("t0.0", None, "failed")
    assert loop.steps() == []
    loop.end("t0.1", None)
    assert loop.steps() == [EndSweep("failed", "t0 gave no loss: crash: python_error: ValueError: bad")]


def test_a_trial_runs_once_then_in_pairs_and_moves_the_tip() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.97)
    assert loop.steps() == [AddRun("t1", "pair", pair=1), AddRun("t0", "incumbent", "t1", 1)]
    loop.add(0.96, 1.0)
    loop.add(0.97, 1.01)
    step = loop.decide()
    assert (step.trial, step.verdict) == ("t1", "better")
    loop.note("tip", trial="t1", commit="ct1", former=None)
    assert loop.look().pending is not None
    assert not [each for each in loop.steps() if isinstance(each, Decide)], "its conductor settles it"
    loop.note("verdict", trial="t1", verdict="kept", why=step.why)
    seen = loop.look()
    assert (seen.tip, seen.pending, seen.kept, seen.list_counted("t1")) == ("t1", None, ["t0", "t1"], [0.96, 0.97])


def test_values_alone_make_no_trial_the_best_and_runs_beside_trials_are_explained() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.1)
    assert loop.decide().verdict == "suspect"
    loop.note("verdict", trial="t1", verdict="suspect", why="too good")
    assert find_best(loop.look().sweep) is None
    loop.propose("t2")
    loop.add(0.97)
    loop.add(0.96, 1.0)
    assert describe_trials(loop.look().sweep).note is None


def test_the_next_step_is_the_same_for_whoever_reads_the_events_next() -> None:
    """A conductor that dies between the two runs of a pair leaves one of them to add, and none twice."""
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.97)
    loop.note("cell_added", cell="t1.1", trial="t1", role="pair", pair=1)
    assert loop.steps() == [AddRun("t0", "incumbent", "t1", 1)]
    loop.note("cell_added", cell="t0.4", trial="t0", role="incumbent", against="t1", pair=1)
    assert loop.steps() == []


def test_a_failure_is_the_verdict_of_its_trial() -> None:
    loop = Loop(limits={"peak_gpu_mib": 100})
    loop.measure_base()
    for name, end, verdict in (
        ("t1", {"state": "failed"}, "crash"),
        ("t2", {"state": "timed_out"}, "timed_out"),
        ("t3", {}, "no_metric"),
        ("t4", {"bad_end": "nan"}, "not_finite"),
        ("t5", {"changed_files": ["prepare.py"]}, "invalid"),
    ):
        loop.propose(name)
        loop.add(0.5 if verdict in ("timed_out", "invalid") else None, **end)
        step = loop.decide()
        assert (step.trial, step.verdict) == (name, verdict)
        loop.note("verdict", trial=name, verdict=verdict, why=step.why)
    assert "prepare.py" in step.why


def test_a_crash_is_told_in_sentences_without_the_call_of_a_run() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    advice = "The program has no --lrr: its usage lists --lr; use that"
    failure = {"kind": "config_error", "line": "error: unrecognized arguments: --lrr 0.054"}
    failure |= {"advice": f"{advice}, then launch_run again.", "correction": f"{advice}."}
    loop.add(None, state="failed")
    next(event for event in loop.events if "failure" in event)["failure"] = failure
    assert loop.decide().why == f"t1.0: config_error: error: unrecognized arguments: --lrr 0.054. {advice}."


def test_where_the_base_ends_at_its_time_limit_so_do_whole_trainings() -> None:
    loop = Loop()
    for number, value in enumerate(BASE):
        loop.end(f"t0.{number}", value, "timed_out")
    loop.propose("t1")
    loop.add(0.97, state="timed_out")
    assert loop.steps()[0] == AddRun("t1", "pair", pair=1)


def test_a_run_with_few_steps_is_repeated_twice_and_then_counts() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.97, step=70)
    assert loop.steps() == [AddRun("t1", "screen")]
    loop.add(0.97, step=70)
    assert loop.steps() == [AddRun("t1", "screen")]
    loop.add(0.97, step=70)
    assert loop.steps()[0] == AddRun("t1", "pair", pair=1)
    loop.add(0.96, 1.0, step=70)
    assert [run.end for run in loop.look().trials["t1"].runs] == ["contended", "contended", "counted", "counted"]
    assert loop.look().trials["t0"].runs[-1].end == "contended", "the base is not slower by itself"


def test_better_than_a_base_that_is_no_longer_the_best_is_tried_on_the_tip() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.propose("t2")
    loop.note("verdict", trial="t1", verdict="kept")
    loop.add(0.97)
    assert loop.decide().verdict == "behind"
    loop.note("verdict", trial="t2", verdict="apart")
    assert loop.steps() == [AddRun("t2", "pair", pair=1), AddRun("t0", "incumbent", "t2", 1)]
    loop.propose("t3", "t1", origin="t2 on t1")
    loop.note("verdict", trial="t2", verdict="behind")
    assert loop.steps() == [AddRun("t3", "pair", pair=1), AddRun("t1", "incumbent", "t3", 1)], "it passed its screen"


def test_a_trial_in_pairs_is_tried_on_the_tip_as_soon_as_that_has_moved() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.propose("t2")
    loop.add(0.97, 0.97)
    loop.add(0.96, 1.0, 0.96, 1.0)
    loop.note("verdict", trial="t1", verdict="kept")
    step = loop.decide()
    assert (step.trial, step.verdict) == ("t2", "behind")
    assert step.judgement is not None
    assert step.judgement.kind == "pair", "nothing is proved yet"


def test_a_trial_on_a_discarded_one_is_compared_with_the_tip() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.note("verdict", trial="t1", verdict="discarded")
    loop.propose("t2", "t1")
    loop.add(0.97)
    assert loop.steps()[1] == AddRun("t0", "incumbent", "t2", 1)


def test_after_a_kept_change_that_cuts_the_noise_gains_are_measured_in_the_new_one() -> None:
    loop = Loop()
    loop.measure_base(1.3, 0.8, 1.05, 0.85)
    loop.propose("t1")
    for seed, values in enumerate(((0.2,), (0.2, 1.0), (0.205, 0.9), (0.195, 1.1))):
        assert len(loop.steps()) == len(values), seed
        loop.add(*values)
        if loop.steps() and isinstance(loop.steps()[0], Decide):
            break
    loop.note("verdict", trial="t1", verdict="kept", why="better")
    for number, value in enumerate((0.2, 0.205, 0.195, 0.2), 3):
        loop.note("cell_added", cell=f"t1.{number}", trial="t1", role="idle")
        loop.end(f"t1.{number}", value)
    assert loop.look().find_noise("t0").sd > 0.1
    assert loop.look().noise.sd == pytest.approx(0.0042, abs=0.0005)
    loop.propose("t2", "t1")
    loop.add(0.18)
    assert loop.steps()[0] == AddRun("t2", "pair", pair=1), "nearly five deviations of the incumbent"


def test_a_bad_seed_of_all_first_runs_hides_no_gain_before_it_is_known_whether_the_seed_decides() -> None:
    loop = Loop()
    loop.measure_base(1.10, 0.98, 1.02, 0.99)
    loop.propose("t1")
    loop.add(1.03)
    assert loop.steps()[0] == AddRun("t1", "pair", pair=1), "better than the base's run with this seed"
    for number, value in enumerate((1.2, 0.9, 1.12), 2):
        loop.note("verdict", trial=f"t{number - 1}", verdict="discarded")
        loop.propose(f"t{number}")
        loop.add(value)
    loop.note("verdict", trial="t4", verdict="discarded")
    loop.propose("t5")
    loop.add(1.03)
    assert loop.look().is_seeded("t0") is False
    assert loop.decide().why.startswith("1.03 (n 1) against t0 1.022 (n 4): ")


def test_a_trend_that_the_seeds_of_all_trials_share_is_counted_once() -> None:
    values = (1.3, 1.2, 1.0, 1.1, 0.9, 0.8)
    for command, alone in (("train", "runs near in time are more alike"), ("train --seed {seed}", "")):
        loop = Loop(common={"command": command}, baseline_runs=6)
        for number in range(1, 4):
            loop.propose(f"t{number}")
            loop.note("verdict", trial=f"t{number}", verdict="kept")
        for trial in ("t0", "t1", "t2", "t3"):
            for number, value in enumerate(values):
                cell = f"{trial}.{number}"
                if trial != "t0" or number > 3:
                    loop.note("cell_added", cell=cell, trial=trial, role="idle")
                loop.end(cell, value)
        assert loop.look().alone == alone


def test_what_is_proposed_again_runs_with_other_seeds() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(1.02)
    loop.note("verdict", trial="t1", verdict="discarded")
    loop.note("proposed", trial="t2", text="again", by="ada", base="t0", commit="ct1", tree="t1")
    seen = loop.look()
    assert [seen.find_seed(seen.trials[name]) for name in ("t0", "t1", "t2")] == [4, 1, 1]
    loop.note("cell_added", cell="t2.0", trial="t2", role="screen", seed=1)
    assert loop.look().trials["t2"].runs[0].cell.params["seed"] == 1


def test_a_run_that_somebody_stops_stops_its_trial_and_is_no_crash_of_the_idea() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.note("cell_added", cell="t1.0", trial="t1", role="screen")
    loop.note("cell_started", cell="t1.0", run_id="r-t1.0")
    loop.note("cell_ended", cell="t1.0", run_id="r-t1.0", state="killed", text="t1.0: killed (it only sleeps)")
    step = loop.decide()
    assert (step.verdict, step.why) == ("stopped", "t1.0: killed (it only sleeps)")


def test_where_the_seed_decides_a_trial_is_compared_with_the_run_of_its_seed() -> None:
    loop = Loop()
    loop.measure_base(1.30, 0.80, 1.05, 0.85)  # the first seed is the worst of all
    for number, value in enumerate((1.31, 1.29, 1.30, 1.31), 1):
        loop.propose(f"t{number}")
        loop.add(value)
        assert loop.look().is_seeded("t0") == (True if number > 2 else None)
        verdict = loop.decide()
        assert verdict.verdict == "discarded"
        loop.note("verdict", trial=verdict.trial, verdict="discarded")
    assert loop.look().is_seeded("t0")
    loop.propose("t5")
    loop.add(1.20)  # worse than the mean of the base, better than its run with this seed
    loop.add(0.71)  # the base has run with the seed of each pair: nothing runs beside them
    loop.add(0.94)
    found = loop.decide()
    assert (found.trial, found.verdict) == ("t5", "better")
    assert "they share the seed" in found.why


def test_on_several_hosts_both_runs_of_a_pair_and_a_screens_rivals_are_on_one() -> None:
    loop = Loop("slow", "fast")
    for number, value in enumerate((1.0, 0.9, 1.01, 0.91)):  # the fast one makes more steps in its time
        loop.end(f"t0.{number}", value, host=("slow", "fast")[number % 2])
    loop.propose("t1")
    loop.add(0.9, host="fast")
    assert loop.decide().verdict == "discarded", "better than the mean of all, and no better there"
    loop.note("verdict", trial="t1", verdict="discarded")
    loop.propose("t2")
    loop.add(0.8, host="fast")
    assert loop.steps() == [AddRun("t2", "pair", pair=1)]
    loop.note("cell_added", cell="t2.1", trial="t2", role="pair", pair=1)
    assert loop.steps() == [], "it has not begun, so nobody knows where the incumbent belongs"
    loop.end("t2.1", 0.9, host="slow")
    assert loop.steps() == [AddRun("t0", "incumbent", "t2", 1)]
    loop.note("cell_added", cell="t0.4", trial="t0", role="incumbent", against="t2", pair=1)
    assert find_host_beside(loop.look(), "t0.4") == "slow"
    assert (find_host_beside(loop.look(), "t2.1"), find_host_beside(loop.look(), "t2.0")) == ("slow", "")
    loop.end("t0.4", 1.0, host="slow")
    for beside in (0.9, 0.91, 0.9):  # until the noise of differences is known, which the hosts have no part in
        loop.add(beside - 0.1, host="fast")
        loop.add(beside, host="fast")
    found = loop.decide()
    assert (found.verdict, "by pairs alone: the hosts may differ" in found.why) == ("better", True), found.why


def test_a_suspect_waits_and_goes_on_once_it_is_cleared() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.5)
    assert loop.decide().verdict == "suspect"
    loop.note("verdict", trial="t1", verdict="suspect")
    assert loop.steps() == []
    loop.note("verdict", trial="t1", verdict="cleared")
    assert loop.steps()[0] == AddRun("t1", "pair", pair=1)


def test_the_budget_counts_trials_that_ran_and_running_ones_end() -> None:
    loop = Loop(budget=2)
    loop.measure_base()
    loop.propose("t1")
    loop.note("verdict", trial="t1", verdict="repeat")
    for name in ("t2", "t3", "t4"):
        loop.propose(name)
    assert loop.steps() == [AddRun("t2", "screen"), AddRun("t3", "screen")]
    loop.add(1.0, 1.0)
    assert [step.verdict for step in loop.steps() if isinstance(step, Decide)] == ["discarded", "discarded"]
    for name in ("t2", "t3"):
        loop.note("verdict", trial=name, verdict="discarded")
    assert loop.steps() == [EndSweep("finished", "The budget is spent: 2 of 4 trials ran, 0 kept; the best is t0.")]


def test_hours_end_it_too() -> None:
    loop = Loop(budget=None, hours=2)
    loop.measure_base()
    loop.propose("t1")
    begun_s = 1795275000.0  # AT
    assert loop.steps(now_s=begun_s + HOUR_S) == [AddRun("t1", "screen")]
    assert isinstance(loop.steps(now_s=begun_s + 2 * HOUR_S)[0], EndSweep)


def test_trials_without_a_verdict_on_merit_end_it_once_they_are_many_in_a_row() -> None:
    loop = Loop(stop_after=2)
    loop.measure_base()
    for name, verdict in (("t1", "crash"), ("t2", "discarded"), ("t3", "crash")):
        loop.propose(name)
        loop.note("verdict", trial=name, verdict=verdict)
    assert loop.steps() == []
    loop.propose("t4")
    loop.note("verdict", trial="t4", verdict="invalid")
    assert loop.steps() == [EndSweep("failed", "2 trials in a row had no verdict on merit.")]


def test_free_leases_measure_the_incumbent_once_nothing_waits() -> None:
    loop = Loop()
    loop.measure_base()
    assert loop.steps() == []
    assert loop.steps(is_idle=True) == [AddRun("t0", "idle")]
    for number in range(4, 12):
        loop.note("cell_added", cell=f"t0.{number}", trial="t0", role="idle")
    assert loop.steps(is_idle=True) == [], "12 are enough"


def test_only_as_many_begin_as_there_is_room_for_and_pairs_come_first() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.add(0.97)
    loop.propose("t2")
    assert loop.steps(room=0) == []
    assert loop.steps(room=1) == [AddRun("t1", "pair", pair=1), AddRun("t0", "incumbent", "t1", 1)]
    assert loop.steps(room=2)[-1] == AddRun("t2", "screen")


def test_a_trial_that_the_sweeps_stop_cut_off_is_stopped_and_one_that_was_refused_waits_for_nothing() -> None:
    loop = Loop()
    loop.measure_base()
    loop.propose("t1")
    loop.propose("t2")
    loop.note("cell_added", cell="t1.0", trial="t1", role="screen")
    loop.note("cell_started", cell="t1.0", run_id="r-t1.0")
    assert [loop.look().trials[name].state for name in ("t0", "t1", "t2")] == ["kept", "running", "queued"]
    loop.note("cell_ended", cell="t1.0", run_id="r-t1.0", state="killed")
    assert loop.look().trials["t1"].state == "stopped"
    refused = make_trial("t3", {"text": "easier data", "verdict": "invalid", "why": "touches prepare.py"})
    assert (refused.is_queued, refused.state) == (False, "invalid"), "also before its conductor has noted it"
