"""At each rung the worse half of the cells that reached it is stopped, whatever the order of the reports."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import optuna
import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.plan import search
from mcp_server.sweeps.plan.halving import Halving, Reached, Stop, find_reached, find_stops, parse_halving
from mcp_server.sweeps.plan.search import parse_search

RUNGS = Halving((100, 300))


def at_rung(*values: float | None, step: int = 100) -> dict[str, Reached]:
    return {f"c{number}": Reached(f"c{number}", {step: value}) for number, value in enumerate(values)}


def stopped(found: list[Stop]) -> list[str]:
    return [stop.cell for stop in found]


@pytest.mark.parametrize(
    ("values", "goal", "cells"),
    [
        ((1, 2, 3), "max", []),  # fewer than least
        ((1, 2, 3, 4), "max", ["c0", "c1"]),
        ((1, 2, 3, 4), "min", ["c2", "c3"]),
        ((1, 2, 3, 4, 5), "max", ["c0", "c1", "c2"]),
        ((2, 2, 2, 2), "max", []),
        ((1, 2, 2, 2), "max", ["c0"]),
        ((None, None, 1, 0), "max", ["c0", "c1"]),  # the worst have no number
        ((None, None, 1, 0), "min", ["c0", "c1"]),
        ((None, None, None, None), "min", []),
    ],
)
def test_the_worse_half_of_those_at_a_rung_is_stopped(
    values: tuple[float | None, ...], goal: str, cells: list[str]
) -> None:
    given = at_rung(*values)
    assert stopped(find_stops(given, RUNGS, goal, given)) == cells
    shuffled = dict(random.Random(3).sample(list(given.items()), len(given)))
    assert sorted(stopped(find_stops(shuffled, RUNGS, goal, given))) == cells, "the order of the reports is no matter"


def test_a_value_at_a_rung_is_the_last_before_it() -> None:
    assert find_reached([(90, 9.0), (101, 0.0), (310, 5.0)], RUNGS.steps) == {100: 9.0, 300: 0.0}
    assert find_reached([(300, 8.0)], RUNGS.steps) == {100: 8.0, 300: 8.0}
    assert find_reached([(99, 100.0)], RUNGS.steps) == {}
    assert find_reached([(100, float("nan")), (100, float("inf"))], RUNGS.steps[:1]) == {100: None}


def in_order(*events: tuple[str, int, float | None], settings: dict[str, str] | None = None) -> dict[str, Reached]:
    """Return what events about a cell, a rung and a value came to, in this order."""
    found: dict[str, Reached] = {}
    for number, (cell, step, value) in enumerate(events, 1):
        former = found.get(cell, Reached((settings or {}).get(cell, cell), {}))
        found[cell] = replace(former, rungs={**former.rungs, step: value}, order={**former.order, step: number})
    return found


def test_only_live_cells_are_stopped_and_the_highest_rung_is_judged_by_all_that_reached_it() -> None:
    others = ("late", "exact", "ended")
    first = [("early", 100, 9.0), ("early", 300, 0.0)]
    given = in_order(*first, *((cell, 100, 9.0) for cell in others), *((cell, 300, 7.0) for cell in others))
    assert find_stops(given, RUNGS, "max", given.keys() - {"ended"}) == [Stop("early", 300, 0.0, 3, 4)]
    assert find_stops(given, RUNGS, "max", {"ended"}) == []


def test_the_few_that_a_rung_left_are_halved_at_the_next_once_all_that_can_come_have() -> None:
    first = [(cell, 100, value) for cell, value in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))]
    one_there = in_order(*first, ("c", 300, 3.0))
    assert find_stops(one_there, RUNGS, "max", {"c", "d"}, more=False) == [], "d may still come"
    both_there = in_order(*first, ("c", 300, 3.0), ("d", 300, 4.0))
    assert find_stops(both_there, RUNGS, "max", {"c", "d"}, more=True) == [], "others still begin"
    assert find_stops(both_there, RUNGS, "max", {"c", "d"}, more=False) == [Stop("c", 300, 3.0, 1, 2)]
    assert find_stops(both_there, RUNGS, "max", {"d"}, more=False) == []
    without_report = find_stops(both_there, RUNGS, "max", {"c", "d", "e"}, more=False)
    assert without_report == [], "a live cell without a report may still come"


def test_each_rung_that_was_passed_between_two_looks_is_judged_from_below() -> None:
    first = [("a", 20, 1.56), ("b", 20, 1.54)]
    at_one_look = [("c", 20, 1.20), ("d", 20, 1.27), ("c", 30, 1.9), ("d", 30, 1.9)]
    found = find_stops(in_order(*first, *at_one_look), Halving((20, 30)), "max", {"a", "b", "c", "d"})
    assert [(stop.cell, stop.step) for stop in found] == [("c", 20), ("d", 20)]
    assert found[0].text == "halved at rung 20: 1.2, 4th of 4"


def test_whom_a_rung_halves_no_higher_rung_counts_also_where_both_were_passed_at_one_look() -> None:
    at = ((6, (1.26, 1.28, 1.32, 1.36)), (12, (0.82, 0.84, 0.87, 0.91)))
    given = in_order(*((cell, step, value) for step, values in at for cell, value in zip("abcd", values, strict=True)))
    found = find_stops(given, Halving((6, 12)), "min", set("abcd"), more=False)
    assert [(stop.cell, stop.step, stop.reached) for stop in found] == [("b", 12, 2), ("c", 6, 4), ("d", 6, 4)]


def test_those_that_come_to_a_lower_rung_later_stop_nobody_that_has_passed_it() -> None:
    passed = [("a", 100, 1.0), ("b", 100, 2.0), ("a", 300, 1.0)]
    later = [("c", 100, 5.0), ("d", 100, 6.0)]
    assert "a" not in stopped(find_stops(in_order(*passed, *later), RUNGS, "max", {"a"}))


def test_seeds_of_a_setting_are_judged_by_their_mean_and_go_together() -> None:
    settings = {f"{name}{seed}": name for name in "abcd" for seed in (1, 2)}
    values = {"a1": 9.0, "a2": 0.0, "b1": 5.0, "b2": 5.0, "c1": 4.9, "c2": 4.9, "d1": 1.0, "d2": 8.0}
    events = [(cell, 100, value) for cell, value in values.items()]
    found = find_stops(in_order(*events, settings=settings), RUNGS, "max", set(values))
    assert stopped(found) == ["a1", "a2", "d1", "d2"], "9 is in no better setting than 4.9"
    assert found[0].text == "halved at rung 100: 4.5, the mean of 2 seeds, 3rd of 4"
    behind = find_stops(in_order(*events, ("a1", 300, 9.0), settings=settings), RUNGS, "max", {"b1"})
    assert behind == [], "a rung that one seed has not reached is not the setting's"


def test_in_any_order_of_arrival_the_best_quarter_survives_two_rungs() -> None:
    values = list(range(16))
    for seed in range(8):
        arrivals = [(f"c{value}", value, step) for value in values for step in RUNGS.steps]
        random.Random(seed).shuffle(arrivals)
        arrivals.sort(key=lambda arrival: arrival[2])  # each reaches the first rung before the second
        given: dict[str, Reached] = {f"c{value}": Reached(f"c{value}", {}) for value in values}
        live = set(given)
        for number, (cell, value, step) in enumerate(arrivals):
            if cell in live:
                former = given[cell]
                order = {**former.order, step: number}
                given[cell] = replace(former, rungs={**former.rungs, step: float(value)}, order=order)
                live -= set(stopped(find_stops(given, RUNGS, "max", live)))
        assert "c15" in live
        assert len(live) <= 4


@pytest.mark.parametrize("factor", [2, 3])
def test_the_last_that_reaches_a_rung_stays_as_optunas_pruner_lets_it(factor: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chance = random.Random(factor)
    for _ in range(150):
        goal = chance.choice(["max", "min"])
        values = [float(chance.randrange(6)) for _ in range(chance.randint(4, 14))]
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=100, reduction_factor=factor)
        study = optuna.create_study(direction="maximize" if goal == "max" else "minimize", pruner=pruner)
        pruned = False
        for value in values:
            trial = study.ask()
            trial.report(value, 100)
            pruned = trial.should_prune()
        given, last = at_rung(*values), f"c{len(values) - 1}"
        found = find_stops(given, Halving((100,), factor), goal, {last})
        assert stopped(found) == ([last] if pruned else []), (goal, values)


def test_without_optuna_halving_works_and_tpe_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    assert parse_halving({"steps": [100]}) == Halving((100,))
    with pytest.raises(BadArgument, match=r"not installed.*pip install 'optuna>=5'.*random needs nothing"):
        parse_search({"strategy": "tpe", "space": {"a": [1, 2]}, "budget": 2})
    assert parse_search({"space": {"a": [1, 2]}, "budget": 2}).strategy == "random"


@pytest.mark.parametrize(
    "facts",
    [{}, {"steps": []}, {"steps": [100], "keep": 2}, {"steps": [3, 3]}, {"steps": [1.5]}, {"steps": [1], "factor": 1}],
)
def test_what_is_not_a_halving_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="halving"):
        parse_halving(facts)
    assert parse_halving({"steps": [100, 300]}) == RUNGS
