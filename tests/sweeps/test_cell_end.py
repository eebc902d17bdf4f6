"""What the record of a sweep keeps of a cell's end, and its log shows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState, fold_sweep
from mcp_server.sweeps.conductor.decide import CellEnd, describe_end
from mcp_server.sweeps.tables.log import SweepLog


def test_a_run_that_ended_is_told_with_its_frames_a_second_and_its_limit() -> None:
    cell = Cell("lr=1", "1", {"lr": 1}, {"command": "python ppo.py", "time_limit_s": 7200})
    progress = {"step": 4096, "metrics": {"reward": 21.6, "time/fps": 1043.0}, "gpus": {"0": {"peak_mib": 2048}}}
    run = Run(RunSpec(run_id="r"), "finished", progress=progress, exit_code=0)
    kind, text, facts = describe_end(CellState(cell, 1), run, CellEnd("finished", again=False))
    assert (kind, text) == ("cell_ended", "lr=1: finished.")
    assert (facts["fps"], facts["metrics"], facts["peak_mib"]) == (1043.0, {"reward": 21.6}, 2048)
    events: list[Any] = [
        {"seq": 1, "kind": "conducting"},
        {"seq": 2, "kind": "cell_started", "cell": "lr=1", "run_id": "r"},
        {"seq": 3, "kind": kind, "text": text, **facts},
    ]
    sweep = fold_sweep(SweepSpec("s", "s", cells=(cell, Cell("lr=2", "1", {"lr": 2}))), events, Liveness.ALIVE)
    lines = SweepLog(SweepDir(Path("home/sweeps/s"))).render(sweep, {}, {}).partition("## Plan")[2].splitlines()
    (header,) = (line for line in lines if line.startswith("| # |"))
    (row,) = (line for line in lines if line.startswith("| 1 |"))
    shown = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert (shown["limit"], shown["step"], shown["fps"]) == ("2 h", "4096", "1043")


def test_a_failure_is_told_by_its_kind_and_starts_again_where_it_is_to() -> None:
    run = Run(RunSpec(run_id="r"), "failed", failure={"kind": "oom_gpu"}, progress={"metrics": {"loss": "nan"}})
    failed = describe_end(CellState(Cell("c", "1"), 1), run, CellEnd("failed", again=False))
    assert (failed[0], failed[1], failed[2]["fps"]) == ("cell_failed", "c: failed (oom_gpu).", None)
    again = describe_end(CellState(Cell("c", "1"), 1), run, CellEnd("failed", again=True))
    assert (again[0], again[1]) == ("cell_ended", "c: failed (oom_gpu). It is started again.")


def test_the_log_of_a_cell_on_another_host_is_named_with_its_host(tmp_path: Path) -> None:
    (tmp_path / "hosts" / "m2" / "runs" / "there").mkdir(parents=True)
    (tmp_path / "hosts" / "m2" / "host.json").write_text('{"state": "/scratch/runward"}')
    cells = (Cell("a", "1"), Cell("b", "1"))
    events: list[Any] = [
        {"seq": 1, "kind": "cell_started", "cell": "a", "run_id": "here"},
        {"seq": 2, "kind": "cell_started", "cell": "b", "run_id": "there"},
    ]
    sweep = fold_sweep(SweepSpec("s", "s", cells=cells), events, Liveness.ALIVE)
    log = SweepLog(SweepDir(tmp_path / "sweeps" / "s")).render(sweep, {}, {})
    assert f"| {tmp_path}/runs/here/attempts/1/output.log |" in log
    assert "| m2:/scratch/runward/runs/there/attempts/1/output.log |" in log
