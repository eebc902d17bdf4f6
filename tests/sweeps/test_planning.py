"""What a dry run says of a plan: a line for what is different, and how long it may take."""

from mcp_server.record.sweep_spec import Cell, SweepSpec
from mcp_server.sweeps.planning import PlannedSweep, describe_hours, describe_plan


def test_trials_that_are_chosen_later_share_a_line() -> None:
    launch = {"command": "python t.py"}
    trials = [Cell(f"trial{n}", "s", launch=launch, trial=n) for n in (1, 2, 3)]
    searches = {"s": {"strategy": "tpe", "budget": 3, "space": {"lr": [1, 2, 3]}}}
    cells = (Cell("a", "1", launch=launch), Cell("b", "1", launch=launch), *trials)
    lines = describe_plan(PlannedSweep(SweepSpec(cells=cells, searches=searches), {}))
    assert [line.partition(":")[0] for line in lines] == ["1 1 a", "2 1 b", "3-5 s trial1 to trial3"]


def test_hours_follow_from_time_limits_and_are_unknown_without_them() -> None:
    cells = tuple(
        Cell(name, "1", launch={"time_limit_s": 7200, "gpus": gpus}) for name, gpus in (("a", 1), ("b", "0-3"))
    )
    text = describe_hours(SweepSpec(cells=cells, max_parallel=2))
    assert text == "2 cells, 2 at once at most; at most 10 GPU-hours by time_limit_s."
    assert "not known" in describe_hours(SweepSpec(cells=(Cell("a", "1"),)))
