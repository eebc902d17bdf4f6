"""The cells of a sweep, by value."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.plan.filling import fill_names
from mcp_server.sweeps.plan.plan import Phase, expand, find_seeds, parse_phases
from mcp_server.sweeps.plan.planning import _count_gpus
from mcp_server.sweeps.sources.source import SourceCell

COMMON = {"command": "python train.py", "cwd": "/w"}


def plan(common: dict[str, Any] | None = None, phases: list[dict[str, Any]] | None = None, **only: Any) -> list[Cell]:
    return list(expand(parse_phases(phases, only, common or COMMON), "night-abcd"))


def test_a_grid_is_a_cross_product_whose_last_parameter_varies_fastest() -> None:
    cells = plan(grid={"lr": [1e-3, 3e-4], "seed": [1, 2]})
    assert [cell.name for cell in cells] == ["lr0.001-seed1", "lr0.001-seed2", "lr0.0003-seed1", "lr0.0003-seed2"]
    assert cells[1].params == {"lr": 1e-3, "seed": 2}
    assert cells[1].launch == {**COMMON, "params": {"lr": 1e-3, "seed": 2}}


def test_cells_that_a_sweep_has_keep_their_names_in_a_larger_plan_and_no_other_gets_one() -> None:
    common = {**COMMON, "env": {"SEED": "{seed}"}}
    former = plan(common, grid={"lr": [1e-3, 3e-4], "seed": [1]})
    grid = {"lr": [3e-4, 1e-3], "seed": [2, 1]}
    cells = expand(parse_phases(None, {"grid": grid}, common), "night-abcd", former)
    assert [cell.name for cell in cells] == ["lr0.0003-seed2", "lr0.0003", "lr0.001-seed2", "lr0.001"]
    assert [cell for cell in cells if cell in former] == [former[1], former[0]]
    other = expand(parse_phases(None, {"grid": {"lr": [1e-3]}}, {**common, "cwd": "/v"}), "night-abcd", former)
    assert [cell.name for cell in other] == ["cell"], "another directory is another run"
    listed = [{"lr": 5e-4, "launch": {"name": "lr0.001"}}]
    other = expand(parse_phases(None, {"cells": listed}, common), "night-abcd", former)
    assert [cell.name for cell in other] == ["lr0.001-2"]


def test_a_parameter_in_the_command_is_filled_in_and_no_argument() -> None:
    common = {
        "command": "python t.py --out /o/{sweep}/{cell} --lr {lr} ${lr} {run_id} {other}",
        "env": {"SEED": "{seed}"},
    }
    (cell,) = plan(common, grid={"lr": [0.1], "seed": [7], "n": [4]})
    assert cell.launch["command"] == "python t.py --out /o/night-abcd/cell --lr 0.1 ${lr} {run_id} {other}"
    assert cell.launch["env"] == {"SEED": "7"}
    assert cell.launch["params"] == {"n": 4}


def test_cells_override_common_and_name_themselves() -> None:
    common = {**COMMON, "params": {"epochs": 3}, "env": {"A": "1"}, "gpus": 1}
    cells = plan(
        common,
        cells=[{"lr": 0.1}, {"lr": 0.1, "launch": {"name": "wide one", "gpus": 2, "env": {"B": "2"}}}, {"lr": 0.2}],
        grid={"seed": [1]},
    )
    assert [cell.name for cell in cells] == ["lr0.1", "wide-one", "lr0.2"]
    assert [cell.launch["gpus"] for cell in cells] == [1, 2, 1]
    assert cells[1].launch["env"] == {"A": "1", "B": "2"}
    assert cells[1].launch["params"] == {"epochs": 3, "lr": 0.1, "seed": 1}


def test_names_too_long_are_told_apart_by_their_values_and_not_numbered() -> None:
    cells = plan(grid={"env.benchmark": ["libero_spatial_with_a_long_name", "libero_object"], "seed": [0, 1, 2]})
    assert [cell.name.rpartition("-")[2] for cell in cells] == ["seed0", "seed1", "seed2"] * 2
    assert len({cell.name for cell in cells}) == 6
    assert max(len(cell.name) for cell in cells) <= 40
    with pytest.raises(BadArgument, match="lr has 1 twice"):
        plan(grid={"lr": [1, 1]})


def test_every_cell_has_a_name_of_its_own_that_fits() -> None:
    cells = plan(cells=[{"launch": {"name": "x" * 90}}, {"launch": {"name": "x" * 90}}, {"launch": {"name": "x" * 90}}])
    assert len({cell.name for cell in cells}) == 3
    assert max(len(cell.name) for cell in cells) <= 40
    assert [cell.name for cell in plan(grid={"data": ["../../x", "a/../b.c"]})] == [
        "data-x",
        "data-a-b.c",
    ]  # no path, and no dots of one


def test_a_source_combines_with_a_grid_and_its_settings_yield_to_the_cell() -> None:
    settings, notes = {"num_envs": 4096, "lr": 1.0}, ("a note",)
    source = [
        SourceCell(
            "reach", {"command": "python reach.py", "cwd": "/w/sub", "env": {"A": "1", "B": "1"}}, settings, notes
        ),
        SourceCell("lift", {"command": "python rsl_rl/train.py"}, {}),
    ]
    # The source has read the parameters in common: `scene` is an option of its task, and no argument of its program.
    common = {"cwd": "/w", "env": {"B": "2"}, "params": {"num_envs": 4096, "scene": "flat"}}
    phase = Phase("1", common, grid={"lr": [0.1, 0.2]}, source_cells=source)
    cells = expand([phase], "s-abcd")
    assert [cell.name for cell in cells] == ["reach-lr0.1", "reach-lr0.2", "lift-lr0.1", "lift-lr0.2"]
    assert cells[0].launch["params"] == {"num_envs": 4096, "lr": 0.1}
    assert (cells[0].launch["cwd"], cells[0].launch["env"]) == ("/w/sub", {"A": "1", "B": "2"})
    assert (cells[0].notes, cells[0].params) == (("a note",), {"lr": 0.1})
    assert cells[2].launch["params"] == {"lr": 0.1, "run_name": "{run_id}-{attempt}"}  # rsl_rl writes beside others
    for wrong in ({"command": "python other.py"},):
        with pytest.raises(BadArgument, match="source"):
            expand([Phase("1", wrong, source_cells=source)], "s-abcd")


def test_a_cell_cannot_have_several_gpus_where_the_source_chose_the_command_for_one() -> None:
    source = [SourceCell("cube", {"command": "python train.py"}, {})]
    for gpus in (4, "0-3", [0, 1], "all"):
        with pytest.raises(BadArgument, match="which command of the source runs depends on it"):
            expand([Phase("1", {"gpus": 1}, cells=[{"launch": {"gpus": gpus}}], source_cells=source)], "s-abcd")
    (cell,) = expand([Phase("1", {"gpus": 2}, cells=[{"launch": {"gpus": [2, 3]}}], source_cells=source)], "s-abcd")
    assert cell.launch["gpus"] == [2, 3]


def test_a_promotion_takes_the_command_of_its_source() -> None:
    source = SourceCell("cube-mgpu", {"command": "torchrun train.py"}, {"seed": 1}, ("the variant",))
    (cell,) = expand([Phase("4", {"gpus": 4}, promote="r-abcd", promoted={"lr": 0.2}, source_cells=[source])], "s-abcd")
    assert cell.launch == {"gpus": 4, "command": "torchrun train.py", "params": {"seed": 1, "lr": 0.2}}
    assert cell.notes == ("the variant",)
    with pytest.raises(BadArgument, match="has a source of 2 cells"):
        expand([Phase("4", {}, promote="best", source_cells=[source, source])], "s-abcd")


def test_phases_have_their_own_cells_and_common_arguments() -> None:
    cells = plan(
        phases=[
            {"name": "coarse", "grid": {"lr": [0.1, 0.2]}},
            {"name": "fine", "common": {"time_limit_s": 60}, "cells": [{"lr": 0.15}]},
            {"name": "four", "promote": "best", "common": {"gpus": 4}},
        ]
    )
    assert [(cell.phase, cell.name) for cell in cells] == [
        ("coarse", "lr0.1"),
        ("coarse", "lr0.2"),
        ("fine", "cell"),
        ("four", "promotion"),
    ]
    assert cells[2].launch["time_limit_s"] == 60
    assert cells[3].promote == "best"
    promoted = fill_names(Cell("promotion", "four", {"lr": 0.2}, {**COMMON, "gpus": 4}), "night-abcd")
    assert promoted.launch["params"] == {"lr": 0.2}


def test_parameters_that_stand_in_the_command_are_kept_by_name() -> None:
    common = {"command": "python train.py --config conf/{conf}.json --out {run_id}", "params": {"lr": 0.2}}
    (cell,) = plan(common, cells=[{"conf": "fine", "seed": 3}])
    launch = fill_names(cell, "night-abcd").launch  # once more, as where a conductor launches it
    assert launch["command"] == "python train.py --config conf/fine.json --out {run_id}"
    assert (launch["filled"], launch["params"]) == ({"conf": "fine"}, {"lr": 0.2, "seed": 3})


def test_blueprints_are_cells() -> None:
    cells = plan({"cwd": "/w"}, blueprints=["/b/one.md", "/b/two.md"])
    assert [(cell.name, cell.launch["blueprint"]) for cell in cells] == [("one", "/b/one.md"), ("two", "/b/two.md")]


@pytest.mark.parametrize(
    ("common", "only", "words"),
    [
        (None, {}, "names no cells"),
        (None, {"grid": {}}, "object of lists"),
        (None, {"grid": {"lr": 0.1}}, "must be a list"),
        (None, {"grid": {"lr": "abc"}}, "must be a list"),
        (None, {"grid": {"lr": "range(1,4)"}}, r'"lr": \[1, 2, 3\]'),
        (None, {"grid": {"lr": []}}, "no values"),
        (None, {"grid": {"lr": [[1]]}}, "plain values"),
        (None, {"grid": {"lr": [list(range(100_000))]}}, "plain values"),
        (None, {"grid": {"text": ["x" * 100_001]}}, "has a value of 100,001 characters; it may have 100,000"),
        (None, {"cells": [{"text": "x" * 100_001}]}, "has a value of 100,001 characters; it may have 100,000"),
        (None, {"grid": {"a": list(range(50)), "b": list(range(50))}}, "2,500 cells"),
        (None, {"cells": [3]}, "list of objects"),
        (None, {"cells": [{"lr": 0.1, "b": 1}], "grid": {"lr": [0.2]}}, "lr is set by a cell and by the grid"),
        (None, {"cells": [{"launch": {"colour": 1}}]}, "no argument 'colour'"),
        ({"command": "x", "name": "y"}, {"grid": {"a": [1]}}, "set by the sweep"),
        ({"command": "x", "code": "now or never"}, {"grid": {"a": [1]}}, "no argument 'code'"),
        ({"command": "x", "params": "p.yaml"}, {"grid": {"a": [1]}}, "must be an object"),
        (None, {"search": {"budget": 2, "space": {"a": [1, 2]}}, "grid": {"a": [1]}}, "chooses the parameters"),
        (None, {"phases": []}, "is empty"),
        (None, {"phases": [{"grid": {"a": [1]}, "colour": 2}]}, "unknown field"),
        (None, {"phases": [{"name": "a", "grid": {"a": [1]}}, {"name": "a", "grid": {"a": [1]}}]}, "two are named"),
        (None, {"phases": [{"grid": {"a": [1]}}], "grid": {"b": [1]}}, "one of the phases"),
        (None, {"promote": "x", "grid": {"b": [1]}}, "leave cells"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(common: dict[str, Any] | None, only: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        plan(common, **only)


def test_seeds_among_variables_leave_the_variant_alone() -> None:
    launches: list[dict[str, Any]] = [{"env": {"SEED": "1"}}, {"env": {"SEED": "2"}}, {"env": {"SEED": "2", "A": "1"}}]
    first, second, third = plan(cells=[{"launch": launch} for launch in launches])
    assert first.variant == second.variant != third.variant
    assert [find_seeds(cell) for cell in (first, third)] == [{"SEED": "1"}, {"SEED": "2"}]


@pytest.mark.parametrize(
    ("gpus", "count"),
    [(4, 4), ("4", 4), ("0-3", 4), ([0, 1, 2, 3], 4), (["GPU-a", "GPU-b"], 2), ("all", "all"), ([2], 1), (1, 1),
     (None, None), ("cpu", None), (["MIG-a", "MIG-b"], 1)],
)  # fmt: skip
def test_the_gpus_of_a_cell_are_counted_however_they_are_written(gpus: Any, count: object) -> None:
    assert _count_gpus(gpus) == count
