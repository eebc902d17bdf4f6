"""What a dry run says of a plan: a line for what is different; and what a launch may end."""

from mcp_server.record.spec import RunSpec
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.runs.warnings.runs_at_risk import find_killers_of
from mcp_server.sweeps.plan.planning import PlannedSweep, describe_plan, list_distinct_runs


def test_trials_that_are_chosen_later_share_a_line() -> None:
    launch = {"command": "python t.py"}
    trials = [Cell(f"trial{n}", "s", launch=launch, trial=n) for n in (1, 2, 3)]
    searches = {"s": {"strategy": "tpe", "budget": 3, "space": {"lr": [1, 2, 3]}}}
    cells = (Cell("a", "1", launch=launch), Cell("b", "1", launch=launch), *trials)
    lines = describe_plan(PlannedSweep(SweepSpec(cells=cells, searches=searches), {}))
    assert [line.partition(":")[0] for line in lines] == ["1 1 a", "2 1 b", "3-5 s trial1 to trial3"]


def test_a_parameter_that_ends_processes_of_others_is_seen_in_any_cell_of_one_command() -> None:
    cells = tuple(
        Cell(f"c{n}", "1", launch={"command": "python t.py", "params": params})
        for n, params in enumerate([{"lr": 0.1}, {"lr": 0.2}, {"autokill": True}, {"hook": "pkill -f train"}])
    )
    runs = list_distinct_runs(
        PlannedSweep(SweepSpec(cells=cells), {"c0": RunSpec(command="python t.py", params={"lr": 0.1})})
    )
    assert [run.params for run in runs] == [{"lr": 0.1}, {"autokill": True}, {"hook": "pkill -f train"}]
    assert [bool(find_killers_of(run)) for run in runs] == [False, True, False]
