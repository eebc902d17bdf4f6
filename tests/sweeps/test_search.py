"""A search proposes points of its space: the same for the same history, and better ones once values are known."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.plan.search import Range, Trial, TrialState, Value, draw_points, parse_search, propose

SPACE: dict[str, Any] = {
    "lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "layers": {"low": 2, "high": 5, "int": True},
    "clip": {"low": 0, "high": 1, "step": 0.3},
    "optimizer": ["adam", "sgd", None, True],
}


def test_random_points_fill_the_space_evenly_and_begin_alike_for_any_budget() -> None:
    space = parse_search({"space": SPACE, "budget": 500}).space
    points = draw_points(space, 7, 400)
    assert points[:20] == draw_points(space, 7, 20) != draw_points(space, 8, 20)
    below = statistics.mean(point["lr"] < 1e-3 for point in points)  # type: ignore[operator]
    assert 0.4 < below < 0.6  # half of the decades
    for name, values in {"layers": [2, 3, 4, 5], "clip": [0, 0.3, 0.6, 0.9], "optimizer": SPACE["optimizer"]}.items():
        counts = [sum(point[name] == value for point in points) for value in values]
        assert sum(counts) == 400
        assert min(counts) > 65, name  # of 100
    assert all(1e-5 <= point["lr"] <= 1e-1 for point in points)  # type: ignore[operator]
    search = parse_search({"space": SPACE, "budget": 3, "seed": 7})
    assert [propose(search, [], number) for number in range(3)] == points[:3]


def test_a_small_space_is_searched_without_repetition() -> None:
    space = parse_search({"space": {"a": [1, 2], "b": {"low": 1, "high": 3, "int": True}}, "budget": 6}).space
    assert sorted((point["a"], point["b"]) for point in draw_points(space, 0, 6)) == [
        (a, b) for a in (1, 2) for b in (1, 2, 3)
    ]


@pytest.mark.parametrize(("goal", "sign"), [("max", -1), ("min", 1)])
def test_tpe_finds_better_values_than_chance_and_repeats_itself_exactly(goal: str, sign: int) -> None:
    facts = {"strategy": "tpe", "space": {"x": {"low": -10, "high": 10}, "kind": ["good", "bad"]}, "budget": 40}
    search = parse_search(facts)

    def value_of(params: dict[str, Value]) -> float:
        x = params["x"]
        assert isinstance(x, float)
        return sign * ((x - 3) ** 2 + (20 if params["kind"] == "bad" else 0))

    history: list[Trial] = []
    for number in range(40):
        point = propose(search, history, number, goal)
        assert number % 13 or propose(search, list(history), number, goal) == point
        history.append(Trial(point, "finished", value_of(point)))
    chance = statistics.mean(abs(trial.value or 0) for trial in history[:10])
    assert statistics.mean(abs(trial.value or 0) for trial in history[-10:]) < chance / 4
    assert sum(trial.params["kind"] == "good" for trial in history[-10:]) >= 8


def test_tpe_takes_live_stopped_failed_and_changed_cells_into_account() -> None:
    search = parse_search({"strategy": "tpe", "space": {"n": {"low": 0, "high": 40, "int": True}}, "budget": 41})
    finished = [Trial({"n": n}, "finished", float(n)) for n in range(20, 32)]
    states: tuple[TrialState, ...] = ("live", "stopped", "failed", "finished")
    others = [Trial({"n": n}, state, None if state == "live" else -1.0, 100) for n, state in enumerate(states)]
    changed = Trial({"n": 99}, "finished", 99.0)  # a retry changed it
    unmeasured = Trial({"n": 10}, "finished", float("nan"))
    point = propose(search, [*finished, *others, changed, unmeasured], 17)
    assert point["n"] not in {trial.params["n"] for trial in (*finished, *others)}
    few = [*others, changed, unmeasured]  # two have a value: still at random
    assert propose(search, few, 6) == draw_points(search.space, 0, 7)[6]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"budget": 1, "spaces": {}}, "unknown field 'spaces'"),
        ({"space": SPACE, "budget": 0}, "budget must be"),
        ({"space": SPACE, "budget": 9, "strategy": "grid"}, "one of random, tpe"),
        ({"space": SPACE, "budget": 9, "seed": 1.5}, "seed must be"),
        ({"space": {"a": [1, 2]}, "budget": 3}, "only 2 points, fewer than the budget of 3"),
        ({"space": {}, "budget": 1}, "must be an object"),
        ({"space": {"a": []}, "budget": 1}, "a must have at least one"),
        ({"space": {"a": [1, True]}, "budget": 1}, "a has a value twice"),
        ({"space": {"a": 1}, "budget": 1}, "must be a list of values or a range"),
        ({"space": {"a": {"min": 1}}, "budget": 1}, "unknown field 'min'"),
        ({"space": {"a": {"low": 1}}, "budget": 1}, "needs low and high"),
        ({"space": {"a": {"low": 2, "high": 1}}, "budget": 1}, "low must be below high"),
        ({"space": {"a": {"low": 0, "high": 1, "log": True}}, "budget": 1}, "above 0 for log"),
        ({"space": {"a": {"low": 1, "high": 9, "log": True, "step": 1}}, "budget": 1}, "exclude each other"),
        ({"space": {"a": {"low": 1, "high": 2, "step": 3}}, "budget": 1}, "fit between"),
        ({"space": {"a": {"low": 1.5, "high": 3, "int": True}}, "budget": 1}, "are integers"),
    ],
)
def test_what_is_not_a_search_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        parse_search(facts)


def test_a_range_ends_at_its_last_step() -> None:
    space = parse_search({"space": {"a": {"low": 1, "high": 8, "step": 3, "int": True}}, "budget": 3}).space
    assert space["a"] == Range(1, 7, is_int=True, step=3)
