"""At each rung the worse half of the cells that reached it is stopped, whatever the order of the reports."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.halving import Halving, Stop, find_stops, parse_halving

RUNGS = Halving((100, 300))
NAN = float("nan")


def reports(*values: float, step: int = 100) -> dict[str, list[tuple[int, float]]]:
    return {f"c{number}": [(step, value)] for number, value in enumerate(values)}


def stopped(found: list[Stop]) -> list[str]:
    return [stop.cell for stop in found]


@pytest.mark.parametrize(
    ("values", "goal", "cells"),
    [
        ((1, 2, 3), "max", []),  # fewer than least
        ((1, 2, 3, 4), "max", ["c0", "c1"]),
        ((1, 2, 3, 4), "min", ["c2", "c3"]),
        ((1, 2, 3, 4, 5), "max", ["c0", "c1"]),
        ((2, 2, 2, 2), "max", []),
        ((1, 2, 2, 2), "max", ["c0"]),
        ((NAN, float("inf"), 1, 0), "max", ["c0", "c1"]),  # the worst are no numbers
        ((NAN, NAN, NAN, NAN), "min", []),
    ],
)
def test_the_worse_half_of_those_at_a_rung_is_stopped(values: tuple[float, ...], goal: str, cells: list[str]) -> None:
    given = reports(*values)
    assert stopped(find_stops(given, RUNGS, goal, given)) == cells


def test_a_value_at_a_rung_is_the_last_before_it_and_only_the_highest_rung_counts() -> None:
    given = {
        "early": [(90, 9.0), (101, 0.0), (310, 5.0)],  # 9 at rung 100, 0 at rung 300
        "late": [(300, 8.0)],
        "exact": [(100, 1.0), (300, 7.0)],
        "below": [(99, 100.0)],  # has not reached any
        "silent": [],
        "ended": [(400, 6.0)],
    }
    assert find_stops(given, RUNGS, "max", {"early", "late", "exact", "below", "silent"}) == [
        Stop("early", 300, 0.0, 3, 4)
    ]
    assert find_stops(given, Halving((100,)), "max", {"exact"}) == [Stop("exact", 100, 1.0, 3, 4)]


def test_the_text_says_why() -> None:
    (stop,) = find_stops(reports(1, 2, 2, 2, step=1500), Halving((1000,)), "max", {"c0"})
    assert stop.text == "At step 1,000 it had 1, and 3 of 4 cells were better."


def test_in_any_order_of_arrival_the_best_quarter_survives_two_rungs() -> None:
    values = list(range(16))
    for seed in range(20):
        arrivals = [(f"c{value}", value, step) for value in values for step in RUNGS.steps]
        random.Random(seed).shuffle(arrivals)
        arrivals.sort(key=lambda arrival: arrival[2])  # each reaches the first rung before the second
        given: dict[str, list[tuple[int, float]]] = {f"c{value}": [] for value in values}
        live = set(given)
        for cell, value, step in arrivals:
            if cell in live:
                given[cell].append((step, float(value)))
                live -= set(stopped(find_stops(given, RUNGS, "max", live)))
        assert "c15" in live
        assert len(live) <= 4


@pytest.mark.parametrize(
    "facts",
    [{}, {"steps": []}, {"steps": [100], "keep": 2}, {"steps": [3, 3]}, {"steps": [1.5]}, {"steps": [1], "factor": 1}],
)
def test_what_is_not_a_halving_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="halving"):
        parse_halving(facts)
    assert parse_halving({"steps": [100, 300]}) == RUNGS
