"""What the question before a sweep's stop counts."""

from __future__ import annotations

from pathlib import Path

from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.views.sweep_status import describe_sweep_for_confirmation
from tests.support.ended_runs import Runs
from tests.support.sweeps import write_sweep


def test_runs_that_ended_after_the_conductor_died_are_not_counted_as_live(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    cells = [Cell(name, "1") for name in ("a", "b", "gone", "c")]
    started = [{"kind": "cell_started", "cell": name, "run_id": f"night-{name}"} for name in ("a", "b", "gone")]
    write_sweep(runs.home.path, cells, started)
    runs.add("night-a")
    runs.add("night-b", "failed")
    text = describe_sweep_for_confirmation(runs.store.sweeps.find("night"), runs.store)
    assert text.endswith("to stop: 1 live run, not started: 1 of 4 cells"), "of one nothing is known"


def test_a_sweep_whose_cells_have_all_begun_leaves_none_unstarted(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    write_sweep(runs.home.path, [Cell("a", "1")], [{"kind": "cell_started", "cell": "a", "run_id": "night-a"}])
    text = describe_sweep_for_confirmation(runs.store.sweeps.find("night"), runs.store)
    assert text.endswith("to stop: 1 live run")
