"""Summaries of series, by value over all points."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from mcp_server.scalars import text
from mcp_server.scalars.downsample import median_curve, pick_points
from mcp_server.scalars.summary import Detail, SeriesSummary, summarise_series
from tests.support.series import BEGUN_S, figures, noise, series


def test_a_straight_line_is_summarised_exactly() -> None:
    summary = summarise_series(
        series([2 * i - 3 for i in range(200)], [10 * i for i in range(200)]), now_s=BEGUN_S + 209
    )
    assert (summary.count, summary.first, summary.first_step, summary.last, summary.last_step) == (
        200,
        -3,
        0,
        395,
        1990,
    )
    assert (summary.min, summary.min_step, summary.max, summary.max_step, summary.mean) == (-3, 0, 395, 1990, 196)
    assert summary.slope == pytest.approx(200)  # 0.2 a step
    assert summary.trend == "up"
    assert (summary.age_s, summary.steps_per_s, summary.plateau) == (10, 10, None)
    assert (summary.nan, summary.inf, summary.first_nan_step, summary.first_inf_step) == (0, 0, None, None)
    assert summary.shape[0] == "0"
    assert summary.shape[-1] == "9"
    assert all(a <= b for a, b in pairwise(summary.shape))


def test_the_slope_is_that_of_the_last_tenth() -> None:
    summary = figures([*range(900), *range(900, 700, -2)])
    assert summary.slope == pytest.approx(-2000)
    assert summary.trend == "down"


def test_a_curve_that_ends_in_nan_has_no_slope_at_its_end() -> None:
    summary = figures([*range(40), *([math.nan] * 60)])
    assert (summary.slope, summary.trend, summary.first_nan_step) == (None, None, 40)


def test_a_slope_that_could_be_noise_is_flat() -> None:
    assert figures(noise(1000)).trend == "flat"
    assert figures(noise(1000) + np.arange(1000) * 0.1).trend == "up"


def test_a_slope_that_may_be_noise_is_not_named_and_is_no_proof_of_a_flat_curve() -> None:
    falling = 20 + 1.3 * noise(28) - 0.05 * np.arange(28)
    assert (figures(falling).trend, figures(falling).slope) == (None, None)
    flat = figures(noise(1000))
    assert (flat.trend, flat.slope) == ("flat", None)
    assert (figures(np.ones(50)).trend, figures(np.ones(50)).slope) == ("flat", 0)
    for seed in range(200):
        one = figures(noise(60, seed) + np.arange(60) * 0.02 * (seed % 5))
        assert (one.slope is not None) == (one.trend in ("up", "down"))


def test_a_random_walk_seldom_has_a_trend_and_a_smooth_curve_has() -> None:
    rng = np.random.default_rng(0)
    walks = [figures(rng.normal(size=5000).cumsum()).trend for _ in range(100)]
    assert sum(trend not in ("up", "down") for trend in walks) > 60, "by independent points 5 of 100"
    assert walks.count("flat") < 10, "it moves, though nobody knows where to"
    assert figures(1 / np.arange(1, 201)).trend == "down"
    assert figures(np.sqrt(np.arange(5000))).trend == "up"


@pytest.mark.parametrize("smooth", [0.0, 0.6, 0.99])
def test_the_average_is_tensorboards(smooth: float) -> None:
    values = noise(300).tolist()
    last, weight = 0.0, 1.0
    for value in values:
        last, weight = last * smooth + (1 - smooth) * value, weight * smooth
    assert summarise_series(series(values), now_s=0, smooth=smooth).ema == pytest.approx(last / (1 - weight))


def test_nans_and_infinities_are_counted_and_named_and_no_part_of_the_rest() -> None:
    summary = figures([1, math.nan, 2, math.inf, math.nan, -math.inf, 3])
    assert (summary.nan, summary.first_nan_step, summary.inf, summary.first_inf_step) == (2, 1, 2, 3)
    assert (summary.min, summary.max, summary.mean, summary.count, summary.last) == (1, 3, 2, 7, 3)
    assert summary.shape == "0x5xxx9"


def test_a_nan_at_the_end_is_the_last_value() -> None:
    summary = figures([1.0, 2.0, math.nan])
    assert summary.last is not None
    assert math.isnan(summary.last)
    assert text.build_tag_figures(summary).last == "nan"


def test_a_plateau_begins_where_the_climb_ends() -> None:
    climb = 10 * (1 - np.exp(-np.arange(10_000) / 1000)) + noise(10_000) * 0.2
    summary = figures(climb)
    assert summary.plateau is not None
    assert 2000 < summary.plateau < 5000  # after two to five time constants
    assert figures(np.arange(10_000) + noise(10_000)).plateau is None
    assert figures(noise(10_000)).plateau == 0 or (figures(noise(10_000)).plateau or 0) < 1000
    assert figures([3.0] * 50).plateau == 0


def test_a_short_rest_at_the_end_is_not_a_plateau() -> None:
    assert figures([*range(900), *[900] * 100]).plateau is None


def test_restarts_and_writers_are_passed_on() -> None:
    summary = figures([1, 2, 3], restarts=(1,), writers=2)
    assert (summary.restarts, summary.writers) == ((1,), 2)
    answer = text.build_tag_figures(summary).model_dump()
    assert (answer["restarts"], answer["writers"]) == ([1], 2)
    assert not {"restarts", "writers"} & text.build_tag_figures(figures([1, 2, 3])).model_dump().keys()


def test_unknown_times_give_no_age_and_no_speed() -> None:
    summary = figures([1, 2, 3], walls=[math.nan] * 3)
    assert (summary.age_s, summary.steps_per_s) == (None, None)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [math.nan],
        [math.nan] * 40,
        [math.inf, -math.inf],
        [0.1] * 50,
        [-0.0] * 50,
        [1e300, -1e300] * 50,
        [1.7e308, -1.7e308, math.nan] * 50,
        [5e-324] * 20 + [0.0],
        [1e-310, 1e308] * 40,
    ],
    ids=lambda values: str(values[:2]),
)
@pytest.mark.parametrize("steps", ["counted", "all zero", "huge", "falling"])
def test_no_values_of_a_series_warn_or_fail(values: list[float], steps: str) -> None:
    count = len(values)
    numbers = {
        "counted": list(range(count)),
        "all zero": [0] * count,
        "huge": [-(2**63), *range(2**63 - count, 2**63)][:count],
        "falling": list(range(count, 0, -1)),
    }[steps]
    summary = figures(values, numbers)
    assert summary.count == count
    assert len(summary.shape) == min(32, count)
    finite = [v for v in values if math.isfinite(v)]
    assert (summary.min, summary.max) == ((min(finite), max(finite)) if finite else (None, None))
    assert summary.mean is None or min(finite) <= summary.mean <= max(finite)
    chosen = pick_points(series(values, numbers), 20)
    assert len(chosen[0]) == min(len(chosen[0]), 20, len(finite))
    assert len(median_curve(series(values, numbers), 50)[0]) <= 50
    json.dumps(
        text.build_tag_figures(summary, [(1, v) for v in chosen[1].tolist()]).model_dump(mode="json"), allow_nan=False
    )
    assert text.tag_lines({"tag": summary})[0].startswith("tag ")


def test_steps_beyond_doubles_are_exact() -> None:
    summary = figures([1, 2], [2**53 + 1, 2**62 + 1])
    assert (summary.first_step, summary.last_step) == (2**53 + 1, 2**62 + 1)


@pytest.mark.parametrize("count", [20_000, 100_000, 1_000_000])
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_a_thousand_rising_points_at_the_end_are_not_flat(count: int, spread: float) -> None:
    end = np.linspace(0, 1, 1_000) + spread * noise(1_000, 1)
    summary = figures(np.concatenate([spread * noise(count), end]))
    assert (summary.trend, summary.plateau) == ("up", None)
    assert summary.shape.endswith("9")
    assert figures(-np.concatenate([spread * noise(count), end])).trend == "down"


def test_an_end_within_the_noise_is_flat() -> None:
    trends = [figures(noise(20_000, seed)).trend for seed in range(100)]
    assert trends.count("flat") >= 97


def test_the_age_is_of_the_point_logged_last_which_may_be_a_late_one() -> None:
    assert summarise_series(series([1, 2, 3], walls=[10.0, 30.0, 20.0]), now_s=40).age_s == 10


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [math.nan, 1.0, math.inf, 2.0], [math.nan], []])
@pytest.mark.parametrize(("detail", "left_out"), [("range", ("mean", "ema")), ("last", ("mean", "min", "first"))])
def test_less_detail_leaves_fields_out_and_changes_none(
    values: list[float], detail: Detail, left_out: tuple[str, ...]
) -> None:
    points = series(values)
    whole = asdict(summarise_series(points, now_s=BEGUN_S + 9))
    less = asdict(summarise_series(points, now_s=BEGUN_S + 9, detail=detail))
    empty = asdict(SeriesSummary(0))
    assert not [name for name, value in less.items() if repr(value) not in (repr(whole[name]), repr(empty[name]))]
    assert all(less[name] is None for name in left_out)
    kept = ("count", "last", "nan", "inf", "first_nan_step", "age_s", *(() if detail == "last" else ("first", "max")))
    assert [repr(less[name]) for name in kept] == [repr(whole[name]) for name in kept]


def test_a_series_is_summarised_once_and_its_age_is_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    points = series(noise(100))
    first = summarise_series(points, now_s=BEGUN_S + 200)
    with monkeypatch.context() as patch:
        patch.setattr("mcp_server.scalars.summary.shape_digits", None)  # what a second summary would call
        again = summarise_series(points, now_s=BEGUN_S + 500)
    assert (again.age_s, replace(again, age_s=first.age_s)) == (401.0, first)
    assert summarise_series(points, now_s=BEGUN_S + 200, smooth=0.9).ema != first.ema
