"""What a series comes to, and how it is told: by value, over all points."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from mcp_server.scalars import text
from mcp_server.scalars.downsample import median_curve, pick_points
from mcp_server.scalars.series import Series
from mcp_server.scalars.summary import SeriesSummary, points_since, summarise_series

BEGUN_S = 1_700_000_000.0


def series(values: object, steps: object = None, walls: object = None, **more: object) -> Series:
    """Points a second and a step apart, unless told otherwise."""
    told = np.asarray(values, np.float64)
    return Series(
        np.arange(told.size) if steps is None else np.asarray(steps, np.int64),
        np.asarray(BEGUN_S + np.arange(told.size) if walls is None else walls, np.float64),
        told,
        **more,  # type: ignore[arg-type]
    )


def figures(values: object, steps: object = None, **more: object) -> SeriesSummary:
    return summarise_series(series(values, steps, **more), now_s=BEGUN_S + 1_000_000)


def noise(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=count)


# --- figures


def test_a_line_is_told_exactly() -> None:
    found = summarise_series(series([2 * i - 3 for i in range(200)], [10 * i for i in range(200)]), now_s=BEGUN_S + 209)
    assert (found.count, found.first, found.first_step, found.last, found.last_step) == (200, -3, 0, 395, 1990)
    assert (found.min, found.min_step, found.max, found.max_step, found.mean) == (-3, 0, 395, 1990, 196)
    assert found.slope == pytest.approx(200)  # 0.2 a step
    assert found.trend == "up"
    assert (found.age_s, found.steps_per_s, found.plateau) == (10, 10, None)
    assert (found.nan, found.inf, found.first_nan_step, found.first_inf_step) == (0, 0, None, None)
    assert found.shape[0] == "0"
    assert found.shape[-1] == "9"
    assert all(a <= b for a, b in pairwise(found.shape))


def test_the_slope_is_that_of_the_last_tenth() -> None:
    found = figures([*range(900), *range(900, 700, -2)])
    assert found.slope == pytest.approx(-2000)
    assert found.trend == "down"


def test_a_slope_that_could_be_noise_is_flat() -> None:
    assert figures(noise(1000)).trend == "flat"
    assert figures(noise(1000) + np.arange(1000) * 0.1).trend == "up"


def test_a_random_walk_seldom_has_a_trend_and_a_smooth_curve_has() -> None:
    rng = np.random.default_rng(0)
    walks = [figures(rng.normal(size=5000).cumsum()).trend for _ in range(100)]
    assert walks.count("flat") > 60, "by independent points 5 of 100 are flat"
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
    found = figures([1, math.nan, 2, math.inf, math.nan, -math.inf, 3])
    assert (found.nan, found.first_nan_step, found.inf, found.first_inf_step) == (2, 1, 2, 3)
    assert (found.min, found.max, found.mean, found.count, found.last) == (1, 3, 2, 7, 3)
    assert found.shape == "0x5xxx9"


def test_a_nan_at_the_end_is_the_last_value() -> None:
    found = figures([1.0, 2.0, math.nan])
    assert found.last is not None
    assert math.isnan(found.last)
    assert text.build_tag_figures(found).last == "nan"


def test_a_plateau_begins_where_the_climb_ends() -> None:
    climb = 10 * (1 - np.exp(-np.arange(10_000) / 1000)) + noise(10_000) * 0.2
    found = figures(climb)
    assert found.plateau is not None
    assert 2000 < found.plateau < 5000  # after two to five time constants
    assert figures(np.arange(10_000) + noise(10_000)).plateau is None
    assert figures(noise(10_000)).plateau == 0 or (figures(noise(10_000)).plateau or 0) < 1000
    assert figures([3.0] * 50).plateau == 0


def test_a_rest_at_the_very_end_is_no_plateau() -> None:
    assert figures([*range(900), *[900] * 100]).plateau is None


def test_restarts_and_writers_are_passed_on() -> None:
    found = figures([1, 2, 3], restarts=(1,), writers=2)
    assert (found.restarts, found.writers) == ((1,), 2)
    told = text.build_tag_figures(found).model_dump()
    assert (told["restarts"], told["writers"]) == ([1], 2)
    assert not {"restarts", "writers"} & text.build_tag_figures(figures([1, 2, 3])).model_dump().keys()


def test_unknown_times_give_no_age_and_no_speed() -> None:
    found = figures([1, 2, 3], walls=[math.nan] * 3)
    assert (found.age_s, found.steps_per_s) == (None, None)


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
def test_nothing_a_series_holds_warns_or_fails(values: list[float], steps: str) -> None:
    count = len(values)
    numbers = {
        "counted": list(range(count)),
        "all zero": [0] * count,
        "huge": [-(2**63), *range(2**63 - count, 2**63)][:count],
        "falling": list(range(count, 0, -1)),
    }[steps]
    found = figures(values, numbers)
    assert found.count == count
    assert len(found.shape) == min(32, count)
    finite = [v for v in values if math.isfinite(v)]
    assert (found.min, found.max) == ((min(finite), max(finite)) if finite else (None, None))
    assert found.mean is None or min(finite) <= found.mean <= max(finite)
    chosen = pick_points(series(values, numbers), 20)
    assert len(chosen[0]) == min(len(chosen[0]), 20, len(finite))
    assert len(median_curve(series(values, numbers), 50)[0]) <= 50
    json.dumps(
        text.build_tag_figures(found, [(1, v) for v in chosen[1].tolist()]).model_dump(mode="json"), allow_nan=False
    )
    assert text.tag_lines({"tag": found})[0].startswith("tag ")


def test_steps_beyond_doubles_are_told_exactly() -> None:
    found = figures([1, 2], [2**53 + 1, 2**62 + 1])
    assert (found.first_step, found.last_step) == (2**53 + 1, 2**62 + 1)


def test_only_later_steps_are_kept() -> None:
    kept = points_since(series([1, 2, 3], [10, 20, 30]), 20)
    assert (kept.steps.tolist(), kept.values.tolist()) == ([20, 30], [2, 3])


# --- shapes and points


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
    found = figures(values)
    assert (found.nan, found.first_nan_step, found.shape.count("x"), found.shape[22]) == (1, 70_000, 1, "x")


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
    steps, kept = pick_points(series(values), points)
    assert len(steps) <= points
    assert steps[-1] == 9999
    assert (np.diff(steps) > 0).all()
    assert kept.tolist() == values[steps].tolist()
    if points >= 4:
        assert {0, 3333, 7777, 9999} <= set(steps.tolist())
    if points >= 20:
        assert len(steps) >= points // 2


def test_few_points_are_all_kept() -> None:
    assert pick_points(series([1, math.nan, 3]), 20)[1].tolist() == [1, 3]


# --- text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (21.3456, "21.35"),
        (0.000025, "2.5e-5"),
        (12345.6, "12346"),
        (1.5e9, "1.5e9"),
        (0.0, "0"),
        (-3.0, "-3"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1e-310, "1e-310"),
    ],
)
def test_numbers_have_four_digits_and_no_more_signs_than_they_need(value: float, written: str) -> None:
    assert text.format_digits(value) == written


def test_a_line_tells_last_slope_extremes_and_shape() -> None:
    told = {"a": figures(range(101)), "b": figures([*range(100), math.nan]), "c": figures([5.0] * 90)}
    assert text.common_step(told) == 100
    a, b, c = text.tag_lines(told)
    assert a.startswith("a 100 ↑1000 0@0 100@100 0000111")
    assert b.startswith("b nan ↑1000 0@0 99@99 0")
    assert b.endswith("x 1 NaN from 100")
    assert c == f"c 5@89 ~ 5@0 5@0 {'5' * 32}"


NAMES = """Train/mean_reward Train/mean_episode_length Loss/value_function Loss/surrogate Loss/learning_rate
Policy/mean_noise_std Perf/total_fps Perf/collection_time Perf/learning_time Episode_Reward/track_lin_vel_xy_exp
Episode_Reward/track_ang_vel_z_exp Episode_Reward/lin_vel_z_l2 Episode_Reward/ang_vel_xy_l2
Episode_Reward/dof_torques_l2 Episode_Reward/dof_acc_l2 Episode_Reward/action_rate_l2
Episode_Reward/feet_air_time Episode_Termination/time_out
Curriculum/terrain_levels Metrics/base_velocity/error_vel_xy""".split()  # noqa: SIM905


def of_many(names: list[str]) -> dict[str, SeriesSummary]:
    """Long wandering series of all sizes: the dearest that there are."""
    made = {}
    for number, name in enumerate(names):
        values = np.cumsum(noise(5000, number)) * 10.0 ** (number % 9 - 5)
        made[name] = figures(values, [4000 * i for i in range(5000)])
    return made


@pytest.mark.parametrize("names", [NAMES, [f"t{i}" for i in range(20)], [f"an/uncommonly/{n.upper()}" for n in NAMES]])
def test_twenty_tags_fit_into_eight_hundred_tokens(names: list[str]) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    told = of_many(names)
    lines = text.tag_lines(told)
    answer = {
        "source": "/home/someone/isaaclab/logs/rsl_rl/anymal_d_flat/2026-11-21_10-15-30",
        "run_id": "anymal-7kqz",
        "step": text.common_step(told),
        "age_s": 12.3,
        "columns": text.COLUMNS,
        "tags": lines,
    }
    written = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    assert openai.o200k_base().count(written) <= 800
    assert [line.partition(" ")[0] for line in lines] == names


def test_among_twenty_tags_a_spike_and_a_nan_are_named_with_their_steps() -> None:
    told = of_many(NAMES)
    spiked, broken = np.abs(noise(100_000)), noise(100_000)
    spiked[31_234], broken[54_321] = 1000, math.nan
    told["Loss/value_function"], told["Loss/surrogate"] = figures(spiked), figures(broken)
    lines = text.tag_lines(told)
    assert "1000@31234" in lines[2]
    assert "1 NaN from 54321" in lines[3]


def test_of_hundreds_of_tags_the_rest_is_counted_by_prefix() -> None:
    openai = pytest.importorskip("rs_bpe").openai
    told = {f"Episode/{group}/{n}": figures([n, n + 0.123]) for group in "abcdefghijkl" for n in range(40)}
    lines, left = text.last_value_lines(told)
    assert lines[0] == "Episode/a/0 0.123"
    assert left is not None
    assert left.startswith(f"{480 - len(lines)} more tags: Episode/")
    assert openai.o200k_base().count(json.dumps([lines, left], ensure_ascii=False)) <= 800


def test_runs_stand_side_by_side_and_a_missing_tag_is_a_dash() -> None:
    a, b = {"loss": figures([3, 2, 1]), "acc": figures([1, 2])}, {"loss": figures([3, 2])}
    lines, left = text.comparison_lines([a, b])
    assert left == 0
    assert lines[0].startswith("loss | 1@2 ")
    assert " | 2@1 " in lines[0]
    assert lines[1].endswith(" | -")


def test_a_narrowed_shape_keeps_what_is_odd_or_extreme() -> None:
    assert text.narrow_shape("12345678x1" + "9" + "2" * 5, 8) == "2468x922"
    assert text.narrow_shape("123", 8) == "123"
