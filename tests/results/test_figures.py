"""Which value of a curve ranks, by value."""

from __future__ import annotations

import math

import pytest

from mcp_server.results.figures import Figure, choose_goal, summarise
from mcp_server.scalars.curve_questions import parse_ranking

CURVE: list[tuple[int | None, float]] = [(step, 20.0 - abs(step - 15)) for step in range(1, 21)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Train/mean_reward", ("Train/mean_reward", "last")),
        ("last:loss", ("loss", "last")),
        ("best:eval/success", ("eval/success", "best")),
        ("mean10%:loss", ("loss", "mean10%")),
        ("loss@best", ("loss", "best")),
        ("loss@300", ("loss@300", "last")),
        ("best:", ("best:", "last")),
        ("worst:loss", ("worst:loss", "last")),
    ],
)
def test_a_metric_says_which_of_its_values_ranks(text: str, expected: tuple[str, str]) -> None:
    assert parse_ranking(text) == expected


@pytest.mark.parametrize(
    ("ranking", "goal", "value", "step"),
    [("last", "max", 15.0, 20), ("best", "max", 20.0, 15), ("best", "min", 6.0, 1), ("mean10%", "max", 15.5, 20)],
)
def test_the_value_and_its_step(ranking: str, goal: str, value: float, step: int) -> None:
    figure = summarise(CURVE, goal, ranking)
    assert (figure.value, figure.step, figure.bad_end) == (value, step, None)


@pytest.mark.parametrize("ranking", ["last", "best", "mean10%"])
@pytest.mark.parametrize(("end", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")])
def test_a_bad_end_is_no_value_whatever_ranks(ranking: str, end: float, name: str) -> None:
    figure = summarise([*CURVE, (21, end)], "max", ranking)
    assert figure == Figure(step=21, bad_end=name, figures={"best": (20.0, 15)})


@pytest.mark.parametrize(
    ("tag", "goal"),
    [
        ("loss", "min"),
        ("val/perplexity", "min"),
        ("error", "min"),
        ("infer/latency_ms", "min"),
        ("reward", "max"),
        ("n_things", "max"),
    ],
)
def test_the_goal_follows_from_the_name_unless_it_is_given(tag: str, goal: str) -> None:
    assert choose_goal(tag, None) == goal
    assert choose_goal(tag, "max") == "max"
