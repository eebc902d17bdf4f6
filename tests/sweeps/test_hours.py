"""How long a plan takes: by what like runs took, longer or shorter with their settings, else by time limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.hours import describe_hours

ALL = RunQuery()
FRAMES = "output; tb/events has step 20480"
COMMAND = "python train.py --task cube --max_steps 1000"


class Finished(RunStore):
    """A state directory with these runs."""

    def __init__(self, home: Path, *runs: Run) -> None:
        super().__init__(StateHome(home))
        self._runs = list(runs)

    def list_runs(self, query: RunQuery = ALL, most: int | None = None) -> list[Run]:
        return [each for each in self._runs if query.state in (None, each.state)][:most]


def run(elapsed_s: float, command: str = COMMAND, state: Any = "finished", **spec: Any) -> Run:
    facts = RunSpec(run_id=f"run-{elapsed_s:g}", command=command, cwd="/p", **spec)
    at = "2026-01-01T00:00:00Z"
    return Run(spec=facts, state=state, events=(), started_at=at, ended_at=at, measured_s=elapsed_s)


def plan(command: str = COMMAND, count: int = 8, **launch: Any) -> SweepSpec:
    launches = {"command": command, "cwd": "/p", **launch}
    own = [{"lr": n / 10, "seed": n} for n in range(count)]
    cells = [
        Cell(f"c{n}", "1", each, {**launches, "command": command.replace("{lr}", f"{each['lr']:g}")})
        for n, each in enumerate(own)
    ]
    return SweepSpec(cells=tuple(cells), max_parallel=4)


def test_time_limits_bound_the_hours_and_without_anything_they_are_unknown(tmp_path: Path) -> None:
    limits = tuple(
        Cell(name, "1", launch={"command": "t", "time_limit_s": 7200, "gpus": gpus})
        for name, gpus in (("a", 1), ("b", "0-3"))
    )
    text = describe_hours(SweepSpec(cells=limits, max_parallel=2), {}, Finished(tmp_path))
    assert text == "2 cells, 2 at once at most; at most 2 h, 10 GPU-hours, by time_limit_s."
    text = describe_hours(plan(), {}, Finished(tmp_path))
    assert text == (
        "8 cells, 4 at once at most; hours are not known: no run with the command, cwd and GPUs of c0 has finished "
        "here, and it has no time_limit_s."
    )


def test_finished_runs_of_the_command_say_how_long_a_cell_takes(tmp_path: Path) -> None:
    store = Finished(tmp_path, run(1800), run(3600, params={"lr": 0.7}))
    text = describe_hours(plan(), {}, store)
    assert text == "8 cells, 4 at once at most; about 1.5 h, 6 hours of cells, as 2 finished runs of this command took."


def test_a_cell_of_twice_the_steps_takes_twice_as_long(tmp_path: Path) -> None:
    store = Finished(tmp_path, run(1800))
    text = describe_hours(plan(COMMAND.replace("1000", "2000"), 4), {}, store)
    assert "about 1 h, 4 hours of cells, as the finished run of this command took" in text


def test_runs_that_varied_another_number_say_how_long_where_no_others_do(tmp_path: Path) -> None:
    varied = run(1800, params={"width": 0.5, "seed": 1})
    text = describe_hours(plan(COMMAND.replace("1000", "2000"), 4), {}, Finished(tmp_path, varied))
    assert text.endswith("about 1 h, 4 hours of cells, as the finished run of this command with other settings took.")
    text = describe_hours(plan(count=4), {}, Finished(tmp_path, varied, run(3600)))
    assert text.endswith("about 1 h, 4 hours of cells, as the finished run of this command took.")
    text = describe_hours(plan(f"{COMMAND} --width 2", 4), {}, Finished(tmp_path, varied))
    assert "not known" in text, "another width may take another time"


def test_a_value_of_the_cell_in_its_command_is_no_difference(tmp_path: Path) -> None:
    store = Finished(tmp_path, run(3600, "sh t.sh 0.5 --out runs/x --seed 9"))
    assert "about 2 h" in describe_hours(plan("sh t.sh {lr} --out runs/y --seed 1"), {}, store)


def test_a_place_named_by_the_run_or_the_cell_is_no_difference(tmp_path: Path) -> None:
    for place, ran in (("logs/{run_id}", "logs/{run_id}"), ("logs/{run_id}.txt", "logs/a.txt"), ("out/c0", "out/c9")):
        store = Finished(tmp_path, run(3600, f"sh t.sh {ran}"))
        assert "about 1 h, 1 hours of cells" in describe_hours(plan(f"sh t.sh {place}", 1), {}, store)


def test_a_setting_of_the_cell_that_sets_the_length_counts(tmp_path: Path) -> None:
    cell = Cell("steps2000", "1", {"max_steps": 2000}, {"command": "python t.py", "cwd": "/p"})
    store = Finished(tmp_path, run(1800, "python t.py", params={"max_steps": 1000}))
    assert "about 1 h" in describe_hours(SweepSpec(cells=(cell,), max_parallel=1), {}, store)


def test_a_cell_that_others_decide_is_said_to_be_unknown_though_its_command_ran(tmp_path: Path) -> None:
    spec = plan(count=2)
    promoted = Cell("promotion", "2", {}, {"command": COMMAND, "cwd": "/p"}, promote="best")
    text = describe_hours(SweepSpec(cells=(*spec.cells, promoted), max_parallel=2), {}, Finished(tmp_path, run(3600)))
    assert text.endswith(
        "hours are not known: what promotion runs is known when it begins, and it has no time_limit_s."
    )


def test_runs_that_failed_or_ran_something_else_say_nothing(tmp_path: Path) -> None:
    others = (
        run(1, state="failed"),
        run(2, COMMAND.replace("cube", "pen")),
        run(3, f"{COMMAND} --model large"),
        run(4, COMMAND.replace("train.py", "eval.py")),
        run(5, gpus=1),
    )
    assert "not known" in describe_hours(plan(), {}, Finished(tmp_path, *others))


def test_a_time_limit_cuts_what_like_runs_took(tmp_path: Path) -> None:
    text = describe_hours(plan(time_limit_s=1800), {}, Finished(tmp_path, run(3600)))
    assert "about 1 h, 4 hours of cells" in text


def test_cpu_slots_say_how_many_cells_run_at_once(tmp_path: Path) -> None:
    spec = SweepSpec(cells=plan(gpus="cpu").cells)
    checked = {"c0": RunSpec(command=COMMAND, gpus="cpu", cpu_slots=2, backend="tmux")}
    text = describe_hours(spec, checked, Finished(tmp_path, run(3600)))
    assert text.startswith("8 cells, 2 at once at most; about 4 h, 8 hours of cells")


def test_runs_whose_command_sets_another_length_than_the_programs_own_are_not_alike(tmp_path: Path) -> None:
    store = Finished(tmp_path, run(1800, "python train.py"), run(7200, "python train.py --epochs 40"))
    assert "as the finished run of this command took" in describe_hours(plan("python train.py", 4), {}, store)
    assert "about 30 min, 2 hours of cells" in describe_hours(plan("python train.py", 4), {}, store)


def test_a_rung_that_no_like_run_came_to_is_told(tmp_path: Path) -> None:
    halved = replace(plan(count=4), halving={"steps": [500, 2000]})
    short, framed = (replace(run(1800), progress={"step": 44, **more}) for more in ({}, {"read_from": FRAMES}))
    told = "The finished run came no further than step 44: halving at 500 is not reached."
    assert describe_hours(halved, {}, Finished(tmp_path, short)).endswith(told)
    assert "came no further" not in describe_hours(halved, {}, Finished(tmp_path, framed))
    assert "came no further" not in describe_hours(plan(count=4), {}, Finished(tmp_path, short))
    assert "came no further" not in describe_hours(halved, {}, Finished(tmp_path, run(1800))), "no step is known"
