"""The cell that promotes the best of a sweep: whose parameters it has, and what its log says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.events import RecordEvent
from mcp_server.record.sweeps.sweep_spec import BEST, Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.sweeps.conductor.cell_launcher import choose_params
from mcp_server.sweeps.plan.filling import apply_overrides
from mcp_server.sweeps.plan.plan import Phase, expand
from mcp_server.sweeps.plan.planning import SweepRequest, make_spec
from mcp_server.sweeps.plan.values import SweepRefused, check_values
from tests.support.ended_runs import Runs
from tests.support.sweeps import cell_events, write_sweep

POINTS = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (1, 2)]
LAUNCH = {"command": "train", "params": {"lr": 0.01, "steps": 3}}
FINAL = Cell("promotion", "final", {"steps": 7}, LAUNCH, BEST)


def sweep_of(values: list[float | None], *more: dict[str, Any]) -> Sweep:
    cells = [Cell(f"lr{p['lr']}-seed{p['seed']}", "1", p, LAUNCH) for p in POINTS]
    ended = [e for cell, value in zip(cells, values, strict=True) for e in cell_events(cell.name, value)]
    events: list[RecordEvent] = [cast(RecordEvent, {"seq": n, **e}) for n, e in enumerate([*ended, *more], 1)]
    return fold_sweep(SweepSpec(cells=(*cells, FINAL), metric="reward"), events)


def test_a_promotion_takes_the_setting_with_the_best_mean_and_its_log_shows_no_change() -> None:
    params, inherited, origin = choose_params(sweep_of([9.0, 1.0, 6.0, 7.0]), FINAL)
    assert inherited == {}
    assert params == {"lr": 0.2, "seed": 2, "steps": 7}
    close = "lr0.1-seed1 5±5.7 (n 2), Welch t 0.372, df 1.03, p 0.77"
    assert origin == f"promoted: 6.5±0.71 (n 2) by lr0.2-seed2; within the deviation: {close}"
    planned = {"kind": "cell_planned", "cell": "promotion", "params": params, "what": origin}
    promoted = sweep_of([9.0, 1.0, 6.0, 7.0], planned).cells[-1]
    assert promoted.is_planned
    assert [(promoted.planned(name), promoted.setting(name)) for name in ("lr", "steps")] == [(0.2, 0.2), (7, 7)]
    later = sweep_of([9.0, 1.0, 6.0, 7.0], planned)
    assert choose_params(later, replace(FINAL, name="promotion-seed9"))[2] == origin, "not the cell beside it"
    halved = {"kind": "cell_ended", "cell": "promotion", "state": "failed", "then": "again", "params": {"lr": 0.1}}
    again = sweep_of([9.0, 1.0, 6.0, 7.0], planned, halved).cells[-1]
    assert (again.planned("lr"), again.setting("lr"), again.chosen) == (0.2, 0.1, params)


def test_a_promotion_has_the_launch_of_the_best_cell_but_for_what_its_phase_sets() -> None:
    entries: list[dict[str, Any]] = [
        {"launch": {"name": "plain"}},
        {"launch": {"name": "masked", "env": {"MASK": "1"}, "command": "train --masked"}},
    ]
    explored = Phase("1", {"command": "train", "env": {"MASK": "0"}}, cells=entries)
    common = {"command": "train --wide", "env": {"MASK": "0"}}
    cells = expand([explored, Phase("final", common, promote=BEST, fixed=("command",))], "s-abcd")
    ended = [e for cell, value in zip(cells, (1.0, 2.0), strict=False) for e in cell_events(cell.name, value)]
    events = [cast(RecordEvent, {"seq": n, **e}) for n, e in enumerate(ended, 1)]
    spec = SweepSpec(cells=cells, metric="reward")
    params, inherited, origin = choose_params(fold_sweep(spec, events), cells[-1])
    assert (params, inherited, origin) == ({}, {"$MASK": "1", "command": "train --wide"}, "promoted: 2 by masked")
    launch = apply_overrides(cells[-1].launch, {"$MASK": "1"})
    assert launch == {"command": "train --wide", "env": {"MASK": "1"}}
    planned = cast(
        RecordEvent, {"seq": 9, "kind": "cell_planned", "cell": "promotion", "params": {}, "overrides": inherited}
    )
    assert fold_sweep(spec, [*events, planned]).cells[-1].settings == inherited


def test_without_any_value_nothing_is_promoted() -> None:
    with pytest.raises(BadArgument, match="no cell has ended its training with a value of reward"):
        choose_params(sweep_of([None] * 4), FINAL)


def test_a_plan_says_how_the_run_failed_whose_parameters_it_takes(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add("big-aaaa", "failed", failure={"kind": "oom_gpu"}, params={"n": 8192})
    runs.add("far-bbbb", "failed", progress={"step": 7})
    runs.add("good-cccc")
    told = {}
    for run_id in ("big-aaaa", "far-bbbb", "good-cccc"):
        common = {"command": "train.py", "cwd": str(tmp_path)}
        spec = make_spec(SweepRequest("on", common=common, promote=run_id), runs.store, {})
        told[run_id] = [note for cell in spec.cells for note in cell.notes]
    assert told == {
        "big-aaaa": ["big-aaaa failed (oom_gpu) before any step with these parameters"],
        "far-bbbb": ["far-bbbb failed at step 7 with these parameters"],
        "good-cccc": [],
    }


COMMAND = "train.py --config {conf}.json --logdir logs/{run_id}"


def add_cell(tmp_path: Path) -> Runs:
    """Return a home with the sweep first-ab3d: its cell flat has filled in {conf}, and run as flat-aaaa."""
    runs = Runs(tmp_path)
    cell = Cell("flat", "1", {"conf": "flat", "n": 8}, overrides={"$MASK": "1", "gpus": 1})
    started = {"kind": "cell_started", "cell": "flat", "run_id": "flat-aaaa"}
    write_sweep(runs.home.path, [cell], [started], sweep_id="first-ab3d", name="first")
    params = {"iters": 160, "n": 4}
    runs.add("flat-aaaa", sweep="first-ab3d", cell="flat", params=params, command="train.py --config flat.json")
    return runs


def plan_on(runs: Runs, common: dict[str, Any] | None = None, **facts: Any) -> SweepSpec:
    given = {"command": COMMAND, "cwd": str(runs.path), **(common or {})}
    request: dict[str, Any] = {"promote": "flat-aaaa", "grid": {"seed": [11, 12]}, "metric": "reward", **facts}
    return make_spec(SweepRequest("on", common=given, **request), runs.store, {})


@pytest.mark.parametrize("is_phase", [False, True])
def test_a_promoted_run_fills_in_the_names_that_its_sweep_filled_in(tmp_path: Path, is_phase: bool) -> None:
    phase = {"name": "2", "promote": "flat-aaaa", "grid": {"seed": [11, 12]}}
    facts: dict[str, Any] = {"promote": None, "grid": None, "phases": [phase]} if is_phase else {}
    cells = plan_on(add_cell(tmp_path), **facts).cells
    assert [cell.launch["command"] for cell in cells] == ["train.py --config flat.json --logdir logs/{run_id}"] * 2
    assert [cell.launch["params"] for cell in cells] == [{"n": 4, "iters": 160, "seed": seed} for seed in (11, 12)]
    assert (cells[0].launch["env"], cells[0].launch["gpus"]) == ({"MASK": "1"}, 1)


def test_a_parameter_of_the_call_fills_in_a_name_and_wins_over_that_of_the_promoted_run(tmp_path: Path) -> None:
    common = {"params": {"iters": 500, "conf": "stairs"}, "env": {"MASK": "0"}}
    (cell, _) = plan_on(add_cell(tmp_path), common).cells
    assert cell.launch["command"].startswith("train.py --config stairs.json")
    assert cell.launch["params"] == {"n": 4, "iters": 500, "seed": 11}
    assert (cell.launch["env"], cell.notes) == ({"MASK": "0"}, ())
    common = {"command": f"{COMMAND} --iters 500"}
    (cell, _) = plan_on(Runs(tmp_path), common).cells
    assert cell.launch["params"] == {"n": 4, "seed": 11}, "the last of two options would win"


def test_a_name_that_no_parameter_of_the_promoted_run_fills_in_is_refused(tmp_path: Path) -> None:
    runs = add_cell(tmp_path)
    with pytest.raises(BadArgument, match=r"nothing fills in \{shape\}: the promoted run has no parameter shape"):
        plan_on(runs, {"command": "train.py --shape {shape}"})
    runs.add("wide-bbbb", command="train.py --shape {shape}")
    (cell, _) = plan_on(runs, {"command": "train.py --shape {shape}"}, promote="wide-bbbb").cells
    assert cell.launch["command"] == "train.py --shape {shape}", "the program's own braces"
    (cell, _) = plan_on(runs, {"command": "train.py --s {shape}", "params": {"shape": "{shape}"}}).cells
    assert cell.launch["command"] == "train.py --s {shape}"
    phases: list[dict[str, Any]] = [{"name": "1", "grid": {"conf": ["flat"]}}, {"name": "2", "promote": "best"}]
    common = {"command": "train.py {conf}", "cwd": str(tmp_path)}
    check_values(make_spec(SweepRequest("n", common=common, phases=phases, metric="r"), runs.store, {}), runs.home, {})
    phases[1]["common"] = {"command": "train.py {conf} {shape}"}
    spec = make_spec(SweepRequest("n", common=common, phases=phases, metric="r"), runs.store, {})
    with pytest.raises(SweepRefused, match=r"Cell promotion: .*nothing fills in \{shape\}"):
        check_values(spec, runs.home, {})


def test_a_plan_names_the_values_of_common_that_a_promotion_does_not_use(tmp_path: Path) -> None:
    runs = add_cell(tmp_path)
    phase: dict[str, Any] = {"name": "2", "promote": "flat-aaaa"}
    only: dict[str, Any] = {"promote": None, "grid": None}
    (cell,) = plan_on(runs, {"params": {"iters": 500, "lr": 1}}, **only, phases=[phase]).cells
    assert cell.launch["params"] == {"iters": 160, "lr": 1, "n": 4}
    said = "iters 500 of common: not used, as flat-aaaa has its own; the phase's own common would win"
    assert cell.notes == (said,)
    phase["common"] = {"params": {"iters": 500}}
    (cell,) = plan_on(runs, {"params": {"iters": 9}}, **only, phases=[phase]).cells
    assert (cell.launch["params"]["iters"], cell.notes) == (500, ())
    phases = [{"name": "1", "grid": {"lr": [1, 2]}}, {"name": "2", "promote": "best"}]
    cells = plan_on(runs, {"command": "train.py", "params": {"lr": 3, "n": 4}}, **only, phases=phases).cells
    said = "lr 3 of common: not used, as the best run has its own; the phase's own common would win"
    assert [cell.notes for cell in cells] == [(), (), (said,)]


def test_a_promotion_without_a_command_is_refused_with_that_of_its_run(tmp_path: Path) -> None:
    runs = add_cell(tmp_path)
    runs.add("wide-bbbb", command="train.py --shape wide")
    request = SweepRequest("on", common={"cwd": str(tmp_path)}, promote="wide-bbbb")
    with pytest.raises(BadArgument, match=r"That of wide-bbbb was 'train\.py --shape wide' in /"):
        make_spec(request, runs.store, {})
