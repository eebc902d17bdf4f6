"""Shapes and chosen points of a series keep its extremes."""

import math

import numpy as np
import pytest

from mcp_server.scalars.downsample import pick_points
from tests.support.series import figures, noise, series


def test_one_spike_in_a_hundred_thousand_shows_and_flattens_nothing() -> None:
    values = np.exp(-np.arange(100_000) / 20_000) + 0.01 * noise(100_000)
    calm = figures(values).shape
    values[50_000] = 40
    spiked = figures(values).shape
    assert spiked[16] == "9"
    assert [a for i, a in enumerate(spiked[1:]) if i != 15] == [a for i, a in enumerate(calm[1:]) if i != 15]
    assert len(set(spiked)) >= 8


def test_one_nan_in_a_hundred_thousand_shows() -> None:
    values = noise(100_000)
    values[70_000] = math.nan
    summary = figures(values)
    assert (summary.nan, summary.first_nan_step, summary.shape.count("x"), summary.shape[22]) == (1, 70_000, 1, "x")


def test_steps_without_points_are_a_gap() -> None:
    shape = figures(range(40), [*range(20), *range(1000, 1020)]).shape
    assert len(shape) == 32
    assert set(shape[1:-1]) == {"."}


def test_a_few_points_are_a_digit_each() -> None:
    assert figures([0, 1, 2, 1, 0]).shape == "05950"
    assert figures([7] * 5).shape == "55555"


@pytest.mark.parametrize("points", [1, 2, 3, 4, 5, 20, 21, 1000])
def test_points_keep_the_ends_and_the_extremes(points: int) -> None:
    values = noise(10_000)
    values[3333], values[7777] = 50, -50
    steps, values_at = pick_points(series(values), points)
    assert len(steps) <= points
    assert steps[-1] == 9999
    assert (np.diff(steps) > 0).all()
    assert values_at.tolist() == values[steps].tolist()
    if points >= 4:
        assert {0, 3333, 7777, 9999} <= set(steps.tolist())
    if points >= 20:
        assert len(steps) >= points // 2


def test_few_points_are_all_kept() -> None:
    assert pick_points(series([1, math.nan, 3]), 20)[1].tolist() == [1, 3]
