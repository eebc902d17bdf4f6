"""At each rung the worse half of the cells that reached it is stopped, whatever the order of the reports."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps import optuna_extra
from mcp_server.sweeps.halving import Halving, Stop, find_reached, find_stops, parse_halving
from mcp_server.sweeps.search import parse_search

RUNGS = Halving((100, 300))


def at_rung(*values: float | None, step: int = 100) -> dict[str, dict[int, float | None]]:
    return {f"c{number}": {step: value} for number, value in enumerate(values)}


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


def test_only_the_highest_rung_of_a_cell_counts_and_only_live_cells_are_stopped() -> None:
    given: dict[str, dict[int, float | None]] = {
        "early": {100: 9.0, 300: 0.0},
        "late": {100: 8.0, 300: 8.0},
        "exact": {100: 1.0, 300: 7.0},
        "silent": {},
        "ended": {100: 0.5, 300: 6.0},
    }
    assert find_stops(given, RUNGS, "max", given.keys() - {"ended"}) == [Stop("early", 300, 0.0, 3, 4)]
    below: dict[str, dict[int, float | None]] = {**given, "below": {100: 1.5}}
    assert stopped(find_stops(below, RUNGS, "max", {"below"})) == ["below"]


def test_the_text_says_why() -> None:
    (stop,) = find_stops(at_rung(1, 2, 2, 2, step=1000), Halving((1000,)), "max", {"c0"})
    assert stop.text == "At step 1,000 it had 1, and 3 of 4 cells were better."
    (stop,) = find_stops(at_rung(None, 2, 2, 2, step=1000), Halving((1000,)), "min", {"c0"})
    assert stop.text == "At step 1,000 it had no number, and 3 of 4 cells were better."


def test_in_any_order_of_arrival_the_best_quarter_survives_two_rungs() -> None:
    values = list(range(16))
    for seed in range(8):
        arrivals = [(f"c{value}", value, step) for value in values for step in RUNGS.steps]
        random.Random(seed).shuffle(arrivals)
        arrivals.sort(key=lambda arrival: arrival[2])  # each reaches the first rung before the second
        given: dict[str, dict[int, float | None]] = {f"c{value}": {} for value in values}
        live = set(given)
        for cell, value, step in arrivals:
            if cell in live:
                given[cell][step] = float(value)
                live -= set(stopped(find_stops(given, RUNGS, "max", live)))
        assert "c15" in live
        assert len(live) <= 4


def test_without_optuna_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_extra, "find_spec", lambda name: None)
    with pytest.raises(BadArgument, match=r"not installed.*pip install 'runward\[optuna\]'"):
        parse_halving({"steps": [100]})
    with pytest.raises(BadArgument, match=r"not installed.*pip install 'runward\[optuna\]'.*random needs nothing"):
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
