"""How the cells of a sweep are ranked, by value."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.record.sweeps.sweep_ranking import (
    Best,
    Group,
    average,
    describe_test,
    find_best,
    find_differing,
    is_seed,
    name_setting,
    rank_groups,
)
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState, Sweep
from mcp_server.sweeps.plan.plan import Phase, expand


def cell(name: str, value: float | None = None, state: str = "finished", **params: Any) -> CellState:
    return CellState(Cell(name, "1", params), 1, state, params=params, value=value)


def outline(groups: list[Group]) -> list[tuple[list[str], float | None, float | None, int]]:
    return [([c.cell.name for c in g.cells], g.mean, g.deviation, len(g.results)) for g in groups]


CELLS = [
    cell("a1", 1.0, lr=0.1, seed=1),
    cell("a2", 3.0, lr=0.1, seed=2),
    cell("a3", 5.0, "failed", lr=0.1, seed=3),
    cell("b1", 4.0, "killed", lr=0.2, seed=1),
    cell("b2", 9.0, "timed_out", lr=0.2, seed=2),
    cell("c1", 9.0, "live", lr=0.3, seed=1),
    cell("d1", None, "failed", lr=0.4, seed=1),
    cell("e1", None, "waiting", lr=0.5, seed=1),
    replace(cell("f1", None, lr=0.6, seed=1), bad_end="nan"),
]


def test_cells_that_differ_in_seeds_are_one_group_and_only_whole_trainings_count() -> None:
    groups = rank_groups(CELLS, "max")
    assert outline(groups) == [
        (["a1", "a2", "a3"], 2.0, pytest.approx(math.sqrt(2)), 2),
        (["c1"], None, None, 0),
        (["e1"], None, None, 0),
        (["b1", "b2"], None, None, 0),
        (["d1"], None, None, 0),
        (["f1"], None, None, 0),
    ]
    assert [group.first.cell.name for group in groups] == ["a2", "c1", "e1", "b1", "d1", "f1"]
    assert groups[0].settings == {"lr": 0.1}
    assert find_differing(groups) == ["lr"]


def test_equal_settings_are_one_group_however_they_are_written() -> None:
    pairs = [(0.001, "1e-3"), (True, "true"), ("True", True), (2, 2.0), ("x", "x")]
    for one, other in pairs:
        groups = rank_groups([cell("a", 1.0, v=one, seed=1), cell("b", 3.0, v=other, seed=2)], "max")
        assert [(group.mean, len(group.results)) for group in groups] == [(2.0, 2)], (one, other)
        assert find_differing([*groups, *groups]) == []
    for one, other in [(1, True), ("1.10", "1.1x"), (None, ""), (None, "None"), ("a", "A"), ([1], [2])]:
        assert len(rank_groups([cell("a", 1.0, v=one), cell("b", 3.0, v=other)], "max")) == 2, (one, other)
    versions = [cell("a", 1.0, version="1.10"), cell("b", 3.0, version="1.1")]
    assert len(rank_groups(versions, "max")) == 2, "names are no numbers"


def test_a_path_is_the_one_that_it_means_in_its_cells_directory() -> None:
    def placed(name: str, path: str, cwd: str) -> CellState:
        return CellState(Cell(name, "1", {"data": path}, {"cwd": cwd}), 1, "finished", params={"data": path}, value=1.0)

    same = rank_groups([placed("a", "d/x.npz", "/p"), placed("b", "/p/d/x.npz", "/p")], "max")
    other = rank_groups([placed("a", "d/x.npz", "/q"), placed("b", "/p/d/x.npz", "/p")], "max")
    assert (len(same), len(other)) == (1, 2)


def test_a_seed_that_was_cut_short_neither_lifts_nor_lowers_its_setting() -> None:
    whole = [cell("a1", 1.780, q=1.8, seed=1), cell("a2", 1.776, q=1.8, seed=2)]
    cut = [cell("a3", 1.66, state, q=1.8, seed=3) for state in ("stopped", "killed", "timed_out", "live")]
    other = [cell(f"b{seed}", 1.70, q=1.7, seed=seed) for seed in (1, 2)]
    for one in cut:
        first = rank_groups([*other, *whole, one], "max")[0]
        assert (first.first.cell.name, len(first.results)) == ("a1", 2)
        assert first.mean == pytest.approx(1.778)


def test_where_every_cell_ended_at_its_time_limit_that_is_a_whole_training() -> None:
    cells = [cell("a", 1.0, "timed_out", lr=0.1), cell("b", 2.0, "timed_out", lr=0.2)]
    assert [group.mean for group in rank_groups(cells, "max")] == [2.0, 1.0]
    assert [group.mean for group in rank_groups([*cells, cell("c", 0.5, lr=0.3)], "max")] == [0.5, None, None]


def test_a_seed_that_was_killed_turns_no_comparison() -> None:
    """A mean of two whole trainings out of three says which setting is better; one of a single seed does not."""
    worse = [cell(f"a{seed}", value, q=2.0, seed=seed) for seed, value in enumerate((1.975, 1.984, 1.962), 1)]
    better = [
        cell("b1", 2.062, q=2.1, seed=1),
        cell("b2", 2.059, q=2.1, seed=2),
        cell("b3", 1.3, "killed", q=2.1, seed=3),
    ]
    assert [group.settings["q"] for group in rank_groups([*worse, *better], "max")] == [2.1, 2.0]
    assert [group.settings["q"] for group in rank_groups([*worse, better[0]], "max")] == [2.0, 2.1]
    more = [cell(f"c{seed}", 1.0, q=1.0, seed=seed) for seed in range(5)]
    assert [group.settings["q"] for group in rank_groups([*worse, *better, *more], "max")] == [2.0, 1.0, 2.1]


def test_a_mean_of_few_seeds_ranks_behind_one_of_many() -> None:
    two = [cell("a1", 21.0, n=2048, seed=1), cell("a2", 21.7, n=2048, seed=2)]
    ran = CellState(Cell("n8192-seed1", "1", {"n": 8192, "seed": 1}), 3, params={"n": 4096, "seed": 1})
    lucky = replace(ran, state="finished", runs=("r",), value=21.79)
    groups = rank_groups([lucky, *two], "max")
    assert [group.label for group in groups] == ["a2", "n8192-seed1 (ran n 4096)"]
    alone = rank_groups([lucky, *two], "max", by_mean_alone=True)
    assert describe_test(alone) == "Best, of one result, against a2 21.35±0.49 (n 2): chance is not excluded."


def test_the_lowest_is_the_best_where_the_goal_says_so_and_ties_keep_the_order_of_the_plan() -> None:
    groups = rank_groups([cell("a", 2.0, lr=0.1), cell("b", 4.0, lr=0.2), cell("z", 2.0, lr=0.9)], "min")
    assert [(group.mean, group.first.cell.name) for group in groups] == [(2.0, "a"), (2.0, "z"), (4.0, "b")]


def test_a_cell_that_a_retry_changed_is_not_averaged_with_those_that_ran_as_planned() -> None:
    def planned(name: str, **changed: Any) -> CellState:
        launch = {"params": {"num_envs": 4096}}
        return CellState(Cell(name, "1", {}, launch), 1, "finished", params=changed, value=1.0)

    groups = rank_groups([planned("a"), planned("b", num_envs=2048), planned("c")], "max")
    assert [[c.cell.name for c in group.cells] for group in groups] == [["a", "c"], ["b"]]
    assert [group.settings for group in groups] == [{"num_envs": 4096}, {"num_envs": 2048}]
    assert find_differing(groups) == ["num_envs"]


def test_a_retry_that_makes_a_cell_equal_to_another_counts_no_seed_twice() -> None:
    def halved(name: str, planned: int, seed: int, value: float) -> CellState:
        ran = cell(name, value, n=128, seed=seed)
        return replace(ran, cell=Cell(name, "1", {"n": planned, "seed": seed}))

    as_planned = [cell("a1", 1.0, n=128, seed=1), cell("a2", 3.0, n=128, seed=2)]
    changed = [halved("b1", 256, 1, 1.0), halved("b2", 256, 2, 3.0), halved("c1", 512, 1, 1.0)]
    groups = rank_groups([*as_planned, *changed], "max")
    assert [(group.show("n"), group.mean, len(group.results)) for group in groups] == [
        ("128", 2.0, 2),
        ("256→128", 2.0, 2),
        ("512→128", 1.0, 1),
    ]
    assert find_differing(groups[:2]) == ["n"]
    assert describe_test(groups) == "", "both ran with 128"
    assert name_setting(changed[0]) == name_setting(changed[1]) != name_setting(as_planned[0])


def test_cells_whose_launches_differ_are_not_one_group_whatever_their_names() -> None:
    entries: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2}, {"seed": 3, "launch": {"gpus": 4}}]
    common = {"command": "train.py --out {cell} --seed {seed} --gpus 1"}
    cells = expand([Phase("1", common, cells=entries), Phase("2", common, cells=entries[:1])], "s-abcd")
    groups = rank_groups([CellState(c, n, "finished", value=1.0) for n, c in enumerate(cells)], "max")
    assert [[c.cell.name for c in group.cells] for group in groups] == [["seed1", "seed2"], ["seed3"], ["cell"]]


def test_an_average_is_of_what_is_known() -> None:
    assert average([]) == (None, None)
    assert average([math.inf, math.nan]) == (None, None)
    assert average([3, math.nan]) == (3.0, None)
    assert average([1, 2, 3]) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (name, True)
            for name in ("seed", "trainer.seed", "random_seed", "rng", "random-state", "model.random_state")
        ),
        *((name, False) for name in ("seeds", "string", "state", "rng_kind")),
    ],
)
def test_seeds_repeat_an_experiment(name: str, expected: bool) -> None:
    assert is_seed(name) is expected


def best_of(*cells: CellState, goal: str = "max", metric: str | None = "reward") -> Best | None:
    return find_best(Sweep(SweepSpec(metric=metric, goal=goal), "running", cells))


def test_the_best_setting_has_the_best_mean_not_the_luckiest_seed_and_a_close_runner_up_is_named() -> None:
    seeds = [cell("a1", 9.0, lr=0.1, seed=1), cell("a2", 1.0, lr=0.1, seed=2)]
    others = [cell("b1", 6.0, lr=0.2, seed=1), cell("b2", 7.0, lr=0.2, seed=2)]
    best = best_of(*seeds, *others)
    assert best is not None
    assert (best.cell.cell.name, best.runner_up_text) == ("b2", "a1 5±5.7 (n 2), Welch t 0.372, df 1.03, p 0.77")
    assert best.text == "6.5±0.71 (n 2) by b2; within the deviation: a1 5±5.7 (n 2), Welch t 0.372, df 1.03, p 0.77"
    clear = best_of(*others, cell("c", 3.0, lr=0.3, seed=1), cell("d", 2.0, lr=0.4))
    assert clear is not None
    assert (clear.text, clear.runner_up) == ("6.5±0.71 (n 2) by b2", None)
    promoted = best_of(
        CellState(Cell("p", "2", {"lr": 0.2, "seed": 2}), 9, "finished", ("r",), value=7.5), *seeds, *others
    )
    assert promoted is not None
    assert (
        promoted.text == "6.5±0.71 (n 2) by b2; within the deviation: a1 5±5.7 (n 2), Welch t 0.372, df 1.03, p 0.77"
    ), "p is one seed more of b"
    alone = best_of(cell("c", 3.0, lr=0.3), cell("d", 2.9, lr=0.4), cell("e", 9.0, "failed", lr=0.5))
    assert alone is not None
    assert alone.text == "3 by c", "of single values no deviation is known"
    assert best_of(*others, metric=None) is None
    assert best_of(replace(cell("n"), bad_end="nan")) is None
    assert best_of(cell("k", 9.0, "killed", lr=0.1)) is None


def test_settings_with_one_value_are_told_as_equal_to_the_first_of_the_plan() -> None:
    three = [cell(name, 3.0, lr=lr) for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    two, several = best_of(*three[:2], cell("d", 2.9, lr=0.4)), best_of(*three)
    assert two is not None
    assert several is not None
    assert (two.text, two.runner_up_text) == ("3 by a; equal: b 3", "b 3")
    assert several.text == "3 by a; equal: b 3 and 1 more"


def trained(name: str, value: float, step: int | None, **more: Any) -> CellState:
    launch = more.pop("launch", {})
    one = Cell(name, "1", {**more}, launch)
    return CellState(one, 1, more.pop("state", "finished"), params=one.params, value=value, end={"step": step})


def test_a_training_that_took_more_steps_is_not_simply_better() -> None:
    seeds = [trained(f"a{seed}", 100.0 + seed, 150, n=1, seed=seed) for seed in range(4)]
    longer = best_of(*seeds, trained("p", 110.0, 500, n=2))
    alike = best_of(*seeds, trained("p", 110.0, 148, n=2))
    assert longer is not None
    assert alike is not None
    assert longer.behind_text == "p 110 is better, with fewer seeds, trained to step 500, the best to 150"
    assert alike.behind_text == "p 110 is better, with fewer seeds"
    pairs = [
        trained(f"{name}{seed}", value + seed, step, n=name, seed=seed)
        for name, value, step in (("b", 5.0, 900), ("c", 3.0, 300), ("d", 1.0, 300))
        for seed in (1, 2)
    ]
    told = describe_test(rank_groups(pairs, "max"))
    assert told.startswith("Best against c2, trained to step 300, the best to 900: Welch t ")
    assert told.endswith("(two-sided; chosen among 3 settings with a value, for which p is not corrected).")


def test_a_setting_that_the_command_itself_has_is_known_beside_one_that_a_parameter_has() -> None:
    launch = {"command": "python train.py --epochs 8 --lr {lr}"}
    short = replace(cell("a", 1.0, lr=0.1), cell=Cell("a", "1", {"lr": 0.1}, launch=launch))
    longer = replace(cell("b", 2.0, lr=0.1, epochs=16), cell=Cell("b", "2", {"lr": 0.1, "epochs": 16}, launch=launch))
    assert [group.settings for group in rank_groups([short, longer], "min")] == [
        {"lr": 0.1, "epochs": "8"},
        {"lr": 0.1, "epochs": 16},
    ]
