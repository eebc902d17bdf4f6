"""What a sweep does next, by value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.record.events import EventLog, RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState, Sweep, fold_sweep
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conductor.cell_launcher import CellLauncher
from mcp_server.sweeps.conductor.decide import CellEnd, find_array, find_end, find_finished_phases, find_next, judge_end
from mcp_server.sweeps.conductor.sweep_screen import render
from mcp_server.sweeps.tables.log import SweepLog
from mcp_server.views.sweep_status import summarise_sweep


def make(count: int = 4, *events: dict[str, Any], phases: int = 1, **spec: Any) -> Sweep:
    cells = tuple(Cell(f"c{n}", str(1 + n * phases // count), {"n": n}) for n in range(count))
    numbered: list[Any] = [{"seq": n, **event} for n, event in enumerate([{"kind": "conducting"}, *events], 1)]
    stop = spec.pop("stop", None)
    return fold_sweep(SweepSpec("s-abcd", "s", cells=cells, **spec), numbered, Liveness.ALIVE, stop)


def started(cell: str, run: str = "") -> dict[str, Any]:
    return {"kind": "cell_started", "cell": cell, "run_id": run or f"r-{cell}"}


def ended(cell: str, state: str = "finished", **more: Any) -> dict[str, Any]:
    kind = "cell_failed" if state in ("failed", "lost") and more.get("then") != "again" else "cell_ended"
    return {"kind": kind, "cell": cell, "run_id": f"r-{cell}", "state": state, **more}


def run(state: Any, stopped_by: str | None = None) -> Run:
    return Run(RunSpec(run_id="r"), state, stopped_by=stopped_by)


def unjudged(signal: str | None, failure: dict[str, Any] | None = None, *, abandoned: bool = True) -> Run:
    return Run(RunSpec(run_id="r"), "failed", signal=signal, failure=failure, abandoned=abandoned)


def job_failed(kind: str, *, retryable: bool = False) -> Run:
    failure = {"kind": kind, "retryable": retryable}
    return Run(RunSpec(run_id="r"), "failed", stopped_by="scheduler", failure=failure)


def names(cells: list[CellState]) -> list[str]:
    return [cell.cell.name for cell in cells]


@pytest.mark.parametrize(
    ("spec", "place", "expected"),
    [
        ({"max_parallel": 20}, "", 8),  # they hold their slots by themselves
        ({}, "", 2),  # they wait in line for GPUs, beside the launches of others
        ({"max_parallel": 20}, "m1", 2),
        ({"max_parallel": 20, "hosts": ("m1", "m2", "m3")}, "", 3),
    ],
)
def test_launches_on_this_machine_overlap_and_another_host_is_asked_for_few(
    tmp_path: Path, spec: dict[str, Any], place: str, expected: int
) -> None:
    cells = tuple(Cell(f"c{n}", "1", launch={"host": place} if place else {}) for n in range(12))
    sweep = fold_sweep(SweepSpec("s-abcd", "s", cells=cells, **spec), [], Liveness.ALIVE)
    launcher = CellLauncher(RunStore(StateHome(tmp_path)), FileWatch(), {}, EventLog(tmp_path / "events.jsonl"))
    assert names(launcher.choose(sweep, list(sweep.cells))) == [f"c{n}" for n in range(expected)]


@pytest.mark.parametrize(
    ("ended_run", "expected"),
    [
        (run("finished"), CellEnd("finished", again=False)),
        (run("timed_out"), CellEnd("timed_out", again=False)),
        (run("killed", "person"), CellEnd("killed", again=False)),
        (run("killed", "sweep"), CellEnd("stopped", again=False)),
        (run("failed"), CellEnd("failed", again=False)),
        (run("killed", "policy"), CellEnd("failed", again=False)),
        (run("killed"), CellEnd("interrupted", again=True)),
        (run("lost"), CellEnd("interrupted", again=True)),
        (run("lost", "agent"), CellEnd("killed", again=False)),
        (unjudged("SIGKILL"), CellEnd("interrupted", again=True)),
        (unjudged("SIGTERM"), CellEnd("interrupted", again=True)),
        (unjudged("SIGSEGV"), CellEnd("failed", again=False)),
        (unjudged(None), CellEnd("failed", again=False)),
        (unjudged("SIGKILL", abandoned=False), CellEnd("failed", again=False)),
        (unjudged("SIGKILL", {"kind": "oom_gpu"}), CellEnd("failed", again=False)),
        (job_failed("killed"), CellEnd("interrupted", again=True)),
        (job_failed("oom_host"), CellEnd("failed", again=False)),
        (job_failed("ray_error", retryable=True), CellEnd("waited", again=True)),
        (job_failed("ray_error"), CellEnd("interrupted", again=True)),
    ],
)
def test_an_end_is_a_result_a_failure_or_an_interruption(ended_run: Run, expected: CellEnd) -> None:
    cell = CellState(Cell("c", "1"), 1)
    assert judge_end(ended_run, cell, 1, has_leftovers=False, stopping=False) == expected


def test_a_run_whose_remains_its_sweep_stopped_for_the_next_one_is_an_interruption() -> None:
    cell, killed = CellState(Cell("c", "1"), 1), run("killed", "sweep")
    assert judge_end(killed, cell, 1, has_leftovers=False, stopping=False, is_reaped=True) == CellEnd(
        "interrupted", again=True
    )
    assert judge_end(killed, cell, 1, has_leftovers=False, stopping=True, is_reaped=True).state == "killed"


def test_failures_and_interruptions_of_a_cell_have_ceilings() -> None:
    cell = CellState(Cell("c", "1"), 1, failures=1, interruptions=3)
    assert judge_end(run("failed"), cell, 3, has_leftovers=False, stopping=False).again
    assert not judge_end(run("failed"), cell, 2, has_leftovers=False, stopping=False).again
    assert not judge_end(run("failed"), cell, 3, has_leftovers=False, stopping=True).again
    assert judge_end(run("lost"), cell, 1, has_leftovers=False, stopping=False).state == "lost"
    beside = judge_end(run("lost"), CellState(Cell("c", "1"), 1), 1, has_leftovers=True, stopping=False)
    assert (beside.state, beside.again) == ("lost", False)


def test_without_a_limit_two_runs_wait_in_line_beside_those_that_run() -> None:
    sweep = make(6, started("c0"), started("c1"), started("c2"))
    live = {"c0": run("running"), "c1": run("queued"), "c2": run("running")}
    assert names(find_next(sweep, live)) == ["c3"]
    assert names(find_next(sweep, live | {"c2": run("queued")})) == []


def test_a_scheduler_gets_all_cells_at_once() -> None:
    cells = tuple(Cell(f"c{n}", "1", {"n": n}, {"backend": "slurm"}) for n in range(6))
    sweep = fold_sweep(SweepSpec("s-abcd", "s", cells=cells), [], Liveness.ALIVE, None)
    assert len(find_next(sweep, {"c0": run("queued"), "c1": run("queued"), "c2": run("queued")})) == 6


def test_a_limit_counts_all_live_cells() -> None:
    sweep = make(6, started("c0"), started("c1"), max_parallel=3)
    assert names(find_next(sweep, {"c0": run("queued"), "c1": run("running")})) == ["c2"]
    assert names(find_next(make(6, started("c0"), started("c1"), max_parallel=2), {})) == []


def test_a_launch_under_way_or_in_doubt_holds_its_place_and_no_other() -> None:
    sweep = make(6, started("c0"), max_parallel=3)
    assert names(find_next(sweep, {}, launching=["c1"])) == ["c2"]
    assert names(find_next(sweep, {}, launching=["c1"], in_doubt=["c2"])) == []
    assert names(find_next(make(4), {}, launching=["c0"], in_doubt=["c1"])) == ["c2"]


def test_cells_of_a_host_that_takes_none_or_has_a_line_hold_up_no_cells_of_another() -> None:
    cells = tuple(Cell(f"c{n}", "1", launch={"host": "m2" if n < 3 else "m3"}) for n in range(6))
    spec = SweepSpec("s-abcd", "s", cells=cells)
    sweep = fold_sweep(spec, [], Liveness.ALIVE, None)
    assert names(find_next(sweep, {})) == ["c0", "c1", "c3", "c4"]
    assert names(find_next(sweep, {}, launching=["c0", "c1"])) == ["c3", "c4"]
    limited = replace(sweep, spec=replace(spec, max_parallel=2))
    assert names(find_next(limited, {}, is_held=lambda cell: cell.launch["host"] == "m2")) == ["c3", "c4"]


def test_each_of_several_hosts_takes_a_launch_at_a_time() -> None:
    sweep = make(6, hosts=("m2", "m3", "m4"))
    assert names(find_next(sweep, {}, launching=["c0"])) == ["c1", "c2"]


def test_a_launch_in_doubt_is_the_reason_until_its_cell_starts() -> None:
    doubt = {"kind": "launch_refused", "what": "c0", "run_id": "r-c0", "text": "c0: whether it runs is unknown."}
    sweep = make(2, doubt, started("c1"), ended("c1"))
    assert sweep.refusal == "c0: whether it runs is unknown."
    assert make(2, doubt, started("c1"), started("c0")).refusal is None
    assert make(2, doubt, {"kind": "ended", "state": "killed"}).refusal is None
    del doubt["run_id"]
    assert make(2, doubt, started("c1")).refusal is None, "an ordinary refusal ends with the next launch"


def test_a_phase_begins_when_the_one_before_is_done() -> None:
    sweep = make(4, started("c0"), ended("c0"), started("c1"), phases=2, max_parallel=4)
    assert (sweep.phase, find_next(sweep, {}), find_finished_phases(sweep)) == ("1", [], [])
    sweep = make(4, started("c0"), ended("c0"), started("c1"), ended("c1", "failed"), phases=2, max_parallel=4)
    assert (sweep.phase, names(find_next(sweep, {})), find_finished_phases(sweep)) == ("2", ["c2", "c3"], ["1"])


def test_a_phase_that_got_more_cells_opens_again_and_is_reported_again() -> None:
    all_done = [event for n in range(4) for event in (started(f"c{n}"), ended(f"c{n}"))]
    told = [{"kind": "phase_done", "phase": "1", "total": 2}, {"kind": "ended", "state": "finished", "total": 4}]
    former = make(4, *all_done, *told, phases=2)
    assert (former.state, former.is_paused, former.phase) == ("finished", True, None)
    cells = (*former.spec.cells, Cell("c4", "1", {"n": 4}))
    grown = fold_sweep(replace(former.spec, cells=cells), former.events)
    assert (grown.state, grown.is_paused, grown.phase) == ("running", True, "1"), "cells wait that nobody ended"
    assert [cell.state for cell in grown.cells] == ["finished"] * 4 + ["waiting"]
    going_on = fold_sweep(grown.spec, [*former.events, *renumber(former, {"kind": "conducting"})])
    assert (names(find_next(going_on, {})), find_finished_phases(going_on)) == (["c4"], [])
    more = renumber(former, {"kind": "conducting"}, started("c4"), ended("c4"))
    assert find_finished_phases(fold_sweep(grown.spec, [*former.events, *more])) == ["1"]
    again = {"kind": "phase_done", "phase": "1", "total": 3}
    more = renumber(former, {"kind": "conducting"}, started("c4"), ended("c4"), again)
    assert find_finished_phases(fold_sweep(grown.spec, [*former.events, *more])) == []
    old = [*former.events[:-1], *renumber(former, {"kind": "ended", "state": "finished"})]
    assert fold_sweep(grown.spec, old).state == "finished", "a version that did not say how many cells it ended"


def renumber(former: Sweep, *events: dict[str, Any]) -> list[Any]:
    return [{"seq": len(former.events) + n, **event} for n, event in enumerate(events, 1)]


def test_nothing_starts_after_a_stop_or_above_the_ceiling_and_the_end_waits_for_live_cells() -> None:
    failed = [started("c0"), ended("c0", "failed"), started("c1"), ended("c1", "failed"), started("c2")]
    sweep = make(4, *failed, max_failures=2)
    assert (find_next(sweep, {}), find_end(sweep)) == ([], None)
    end = find_end(make(4, *failed, ended("c2"), max_failures=2))
    assert end is not None
    assert end[0] == "failed"
    sweep = make(4, started("c0"), stop={"by": "maria"})
    assert (find_next(sweep, {}), find_end(sweep)) == ([], None)
    every = [event for name in ("c0", "c1") for event in (started(name), ended(name, "killed"))]
    assert (find_end(make(2, *every, stop={"by": "maria"})) or ("", ""))[0] == "killed"
    every = [event for name in ("c0", "c1") for event in (started(name), ended(name))]
    assert (find_end(make(2, *every, stop={"by": "maria"})) or ("", ""))[0] == "finished"  # it came too late
    end = find_end(make(4, started("c0"), ended("c0", "killed"), stop={"by": "maria"}))
    assert end == ("killed", "Stopped by maria: 1 of 4 cells are done, 0 failed.")
    end = find_end(make(1, started("c0"), ended("c0", "failed")))
    assert end == ("failed", "No cell has a result: 1 of 1 cells are done, 1 failed.")
    one = [started("c0"), ended("c0", "failed"), started("c1"), ended("c1")]
    assert find_end(make(2, *one)) == ("finished", "2 of 2 cells are done, 1 failed.")
    one = [started("c0"), ended("c0"), started("c1"), ended("c1")]
    end = find_end(make(2, *one, metric="loss", halving={"steps": [9]}))
    assert end == ("finished", "2 of 2 cells are done, 0 failed, halving stopped none.")
    one.append({"kind": "cell_measured", "cell": "c0", "run_id": "r-c0", "value": None, "bad_end": "nan"})
    end = find_end(make(2, *one, metric="eval/success"))
    assert end == ("finished", "2 of 2 cells are done, 0 failed, 1 ended with eval/success nan: c0.")
    diverged = ended("c1", failure={"kind": "divergence", "line": "loss nan"})
    one = [started("c0"), ended("c0"), started("c1"), diverged]
    one += [{"kind": "cell_measured", "cell": c, "run_id": f"r-{c}", "value": v} for c, v in (("c0", 0.5), ("c1", 0.9))]
    sweep = make(2, *one, metric="acc", goal="max")
    assert find_end(sweep) == ("finished", "2 of 2 cells are done, 0 failed, 1 diverged: c1.")
    best = find_best(sweep)
    assert best is not None
    assert (best.cell.cell.name, best.count) == ("c0", 1), "a training that diverged wins nothing, whatever it measured"
    end = find_end(make(2, *failed[:4], max_failures=2))
    assert end == ("failed", "Its ceiling of 2 failed cells is reached: 2 of 2 cells are done, 2 failed.")


def test_the_fold_counts_names_the_best_and_remembers_every_run() -> None:
    sweep = make(
        4,
        started("c0"),
        ended("c0", "interrupted", then="again"),
        started("c0", "r2"),
        ended("c0", step=5, params={"n": 4}),
        {"kind": "cell_measured", "cell": "c0", "value": 2.0, "value_step": 5},
        started("c1"),
        ended("c1", "failed"),
        {"kind": "cell_measured", "cell": "c1", "value": 9.0},
        started("c2"),
        metric="reward",
    )
    assert sweep.count() == {"total": 4, "failed": 1, "finished": 1, "queued": 1, "running": 1}
    best = find_best(sweep)
    assert best is not None
    cell = best.cell
    assert (cell.cell.name, cell.runs, cell.interruptions, cell.params) == ("c0", ("r-c0", "r2"), 1, {"n": 4})
    assert names(list(sweep.failed)) == ["c1"]


def test_an_ended_sweep_that_is_continued_starts_what_has_no_result() -> None:
    events = [
        started("c0"),
        ended("c0"),
        started("c1"),
        ended("c1", "killed"),
        {"kind": "ended", "state": "killed", "text": "Stopped."},
    ]
    sweep = make(3, *events)
    assert (sweep.state, sweep.reason, sweep.count()["skipped"]) == ("killed", "Stopped.", 1)
    resumed = [{"kind": "conducting"}, *({"kind": "cell_resumed", "cell": name} for name in ("c1", "c2"))]
    sweep = make(3, *events, *resumed, max_parallel=5)
    assert (sweep.state, names(find_next(sweep, {}))) == ("running", ["c1", "c2"])


def test_a_status_says_how_many_failed_before_the_cells_it_lists() -> None:
    kinds = ["oom_gpu", "oom_gpu", "stall", "stall", "stall"]
    ends = [ended(f"c{n}", "failed", failure={"kind": kind}) for n, kind in enumerate(kinds)]
    status = summarise_sweep(make(6, *ends), {}, now_s=0.0)
    assert ([each.cell for each in status.failed or []], status.failed_more) == (
        ["c2", "c3", "c4"],
        "2 before these: 2 oom_gpu",
    )
    assert summarise_sweep(make(6, *ends[:3]), {}, now_s=0.0).failed_more is None


def test_no_best_is_told_of_ended_cells_while_the_last_values_are_noted() -> None:
    pairs = [("c0", 28.3), ("c1", 28.0), ("c2", 32.4), ("c3", 32.4)]
    settings = [{"margin": 0.1, "seed": 1}, {"margin": 0.1, "seed": 2}, {"margin": 0.2, "seed": 1}, {"margin": 0.2}]
    cells = tuple(Cell(name, "1", params) for (name, _), params in zip(pairs, settings, strict=True))
    events = [event for name, _ in pairs for event in (started(name), ended(name))]
    noted = [{"kind": "cell_measured", "cell": name, "run_id": f"r-{name}", "value": value} for name, value in pairs]
    spec = SweepSpec("s-abcd", "s", cells=cells, metric="recall", goal="max")

    def best(*more: dict[str, Any]) -> str | None:
        numbered = [cast(RecordEvent, {"seq": n, **each}) for n, each in enumerate([*events, *more], 1)]
        found = summarise_sweep(fold_sweep(spec, numbered, Liveness.ALIVE), {}, now_s=0.0).best
        return None if found is None else found.cell

    assert best(*noted[:3]) is None, "two seeds of the worse setting, and one of the better"
    assert best(*noted) == "c2"
    assert best(*noted[:3], {"kind": "ended", "state": "finished"}) == "c0", "the last value cannot be read"


def test_beside_a_run_stand_the_failures_of_its_own_attempts() -> None:
    former = ended("c0", "failed", tries=["oom_gpu", "oom_gpu", "stall"], failure={"kind": "stall"})
    resumed = [{"kind": "ended", "state": "failed"}, {"kind": "conducting"}, {"kind": "cell_resumed", "cell": "c0"}]
    newest = ended("c0", "failed", tries=["oom_gpu"], failure={"kind": "stall"})
    status = summarise_sweep(make(1, started("c0"), former, *resumed, started("c0"), newest), {}, now_s=0.0)
    assert [each.earlier for each in status.failed or []] == ["1 oom_gpu"]


def test_a_refused_launch_is_the_reason_as_long_as_it_lasts() -> None:
    refused = {"kind": "launch_refused", "text": "c0 cannot be launched now: hosts.toml: Invalid value."}
    waits = make(2, refused)
    status = summarise_sweep(waits, {}, now_s=0.0)
    assert (status.reason, status.events) == (refused["text"], None)
    assert refused["text"] in SweepLog(SweepDir(Path("home/sweeps/s"))).render(waits, {}, {})
    assert refused["text"] in render(waits, {})
    goes_on = make(2, refused, started("c0"))
    assert goes_on.refusal is None
    assert summarise_sweep(goes_on, {}, now_s=0.0).reason is None


def test_a_sweep_and_its_log_read_event_by_event_are_those_read_at_once() -> None:
    again = ended("c1", "interrupted", then="again")
    begun = {"kind": "conducting"}
    facts: list[dict[str, Any]] = [begun, started("c0"), started("c1"), ended("c0", step=3), again]
    facts += [{"kind": "cell_measured", "cell": "c0", "run_id": "r-c0", "value": 2.0, "curves": "/curves"}]
    facts += [started("c1", "r-new"), {**ended("c1", "failed", failure={"kind": "oom_gpu"}), "run_id": "r-new"}]
    facts += [{"kind": "ended", "state": "killed", "text": "Stopped."}, {"kind": "cell_resumed", "cell": "c2"}, begun]
    events: list[Any] = [{"seq": seq, **each} for seq, each in enumerate(facts, 1)]
    spec = SweepSpec("s", "s", cells=tuple(Cell(f"c{n}", "1", {"n": n}) for n in range(4)), metric="reward")
    directory, sweep = SweepDir(Path("home/sweeps/s")), fold_sweep(spec, [], Liveness.ALIVE)
    kept = SweepLog(directory, clock=lambda: 0.0)
    for count in range(len(events) + 1):
        sweep = fold_sweep(spec, events[:count], Liveness.ALIVE, former=sweep)
        assert sweep == fold_sweep(spec, events[:count], Liveness.ALIVE)
        notes = {"c0": "keep"} if count > 4 else {}
        live = {"c1": run("running")} if count == 3 else {}
        anew = SweepLog(directory, clock=lambda: 0.0)
        assert kept.render(sweep, live, notes) == anew.render(sweep, live, notes)
        assert kept.render_results(sweep, notes) == anew.render_results(sweep, notes)
    other: list[Any] = [{**event, "state": "failed"} for event in events]
    assert fold_sweep(spec, other, former=sweep) == fold_sweep(spec, other), "the file was replaced"


def test_a_sweep_whose_conductor_died_says_so() -> None:
    events: list[RecordEvent] = [{"seq": 1, "kind": "conducting"}]
    sweep = fold_sweep(SweepSpec("s", "s", cells=(Cell("c", "1"),)), events, Liveness.DEAD)
    assert (sweep.state, sweep.conducted) == ("running", False)
    assert "starts it again" in str(sweep.reason)


def test_cells_that_never_ran_are_handed_in_together_where_the_scheduler_can_hold_the_limit() -> None:
    launch = {"backend": "slurm", "backend_options": {"array": True}}
    cells = tuple(Cell(f"c{n}", "1", {"n": n}, launch) for n in range(4))

    def plan(*events: dict[str, Any], tried: tuple[str, ...] = (), **spec: Any) -> list[str]:
        numbered: list[Any] = [{"seq": n, **event} for n, event in enumerate(events, 1)]
        sweep = fold_sweep(SweepSpec("s-abcd", "s", cells=cells, **spec), numbered, Liveness.ALIVE, None)
        return names(find_array(sweep, tried))

    assert plan() == plan(max_parallel=2) == ["c0", "c1", "c2", "c3"]
    assert plan(started("c0")) == ["c1", "c2", "c3"]
    assert plan(started("c0"), max_parallel=2) == []  # the limit is for all live cells
    again = (started("c0"), ended("c0", "failed", then="again"))
    assert plan(*again, max_parallel=2) == ["c1", "c2", "c3"]
    assert plan(tried=("c0", "c1", "c2")) == []  # one alone is an ordinary job
    assert plan(max_failures=1) == plan(hosts=("far",)) == []
    assert find_array(make(4), ()) == []


def test_a_retry_of_a_cell_is_shown_but_never_instead_of_more_urgent_news() -> None:
    again = [{"kind": "retrying", "cell": "c0", "text": f"c0: attempt {n}: oom_gpu."} for n in range(1, 6)]
    stalled = {"kind": "stalled", "cell": "c1", "text": "c1: No progress."}
    status = summarise_sweep(make(2, started("c0"), again[0], stalled, *again[1:]), {}, now_s=0.0)
    assert status.events == ["c1: No progress.", *(f"c0: attempt {n}: oom_gpu." for n in (3, 4, 5))]


def test_cells_that_their_policy_stopped_are_said_to_have_killed_runs() -> None:
    ends = [ended("c0", "failed", stopped_by="policy"), ended("c1", "failed")]
    assert summarise_sweep(make(2, *ends), {}, now_s=0.0).hint == (
        "The recovery policy stopped 1 run of the failed cells."
    )
    assert summarise_sweep(make(2, ends[1]), {}, now_s=0.0).hint is None


def test_an_option_of_the_plan_that_the_program_lacks_is_corrected_by_a_new_plan() -> None:
    failure = {"kind": "config_error", "line": "s.py: error: unrecognized arguments: --n 0", "advice": "Correct it."}
    hint = summarise_sweep(make(2, ended("c0", "failed", failure=failure)), {}, now_s=0.0).hint or ""
    assert 'else with resume="wipe" (all cells run again; no run is deleted).' in hint
    assert "starts failed cells again" not in hint
    failure["line"] = "s.py: error: unrecognized arguments: --other --nn"
    assert 'resume="continue"' in (
        summarise_sweep(make(2, ended("c0", "failed", failure=failure)), {}, now_s=0.0).hint or ""
    )


def test_what_an_earlier_round_told_is_no_news_of_this_one() -> None:
    trouble = {"kind": "first_step_timeout", "cell": "c0", "text": "c0: No training step seen for 60 s."}
    first = [started("c0"), trouble, ended("c0", "failed"), {"kind": "ended", "state": "failed"}]
    sweep = make(1, *first, {"kind": "cell_resumed", "cell": "c0"}, {"kind": "conducting"}, started("c0", "r-again"))
    assert summarise_sweep(sweep, {}, now_s=0.0).events is None
    assert "first_step_timeout" not in {event["kind"] for event in sweep.news}
    assert sweep.last_seq == 8
    told = make(1, *first[:-1])
    assert summarise_sweep(told, {}, now_s=0.0).events == ["c0: No training step seen for 60 s."]


def test_a_conductor_that_died_and_was_replaced_is_the_same_round() -> None:
    sweep = make(2, started("c0"), ended("c0", "failed"), {"kind": "conducting"}, started("c1"))
    assert len(sweep.round_events) == len(sweep.events)


def test_the_first_cell_in_line_says_what_it_waits_for() -> None:
    text = "Waiting for cpu slots, position 1. cpu-0: leased by a-k7qz; cpu-1: leased by b-k7qz"
    queued = Run(RunSpec(run_id="r"), "queued", ({"seq": 1, "kind": "queued", "text": text},))
    status = summarise_sweep(make(2, started("c0")), {"c0": queued, "c1": queued}, now_s=0.0)
    assert status.live == [f"c0 r queued: {text}", "c1 r queued"]
