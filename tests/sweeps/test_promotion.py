"""The cell that promotes the best of a sweep: whose parameters it has, and what its log says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.events import Event
from mcp_server.record.sweeps.sweep_spec import BEST, Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.sweeps.conductor.cell_launcher import choose_params
from mcp_server.sweeps.plan import Phase, apply_overrides, expand
from mcp_server.sweeps.planning import SweepRequest, make_spec
from tests.support.ended_runs import Runs
from tests.support.sweeps import cell_events

POINTS = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (1, 2)]
LAUNCH = {"command": "train", "params": {"lr": 0.01, "steps": 3}}
FINAL = Cell("promotion", "final", {"steps": 7}, LAUNCH, BEST)


def sweep_of(values: list[float | None], *more: dict[str, Any]) -> Sweep:
    cells = [Cell(f"lr{p['lr']}-seed{p['seed']}", "1", p, LAUNCH) for p in POINTS]
    ended = [e for cell, value in zip(cells, values, strict=True) for e in cell_events(cell.name, value)]
    events: list[Event] = [cast(Event, {"seq": n, **e}) for n, e in enumerate([*ended, *more], 1)]
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
    events = [cast(Event, {"seq": n, **e}) for n, e in enumerate(ended, 1)]
    spec = SweepSpec(cells=cells, metric="reward")
    params, inherited, origin = choose_params(fold_sweep(spec, events), cells[-1])
    assert (params, inherited, origin) == ({}, {"$MASK": "1", "command": "train --wide"}, "promoted: 2 by masked")
    launch = apply_overrides(cells[-1].launch, {"$MASK": "1"})
    assert launch == {"command": "train --wide", "env": {"MASK": "1"}}
    planned = cast(Event, {"seq": 9, "kind": "cell_planned", "cell": "promotion", "params": {}, "overrides": inherited})
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
