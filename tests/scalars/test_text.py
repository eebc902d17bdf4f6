"""Scalars as lines of text: exact digits, bounded tokens."""

import json
import math

import numpy as np
import pytest

from mcp_server.scalars import text
from mcp_server.scalars.summary import SeriesSummary
from tests.support.series import figures, noise


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


def test_a_line_has_last_value_slope_extremes_and_shape() -> None:
    summaries = {"a": figures(range(101)), "b": figures([*range(100), math.nan]), "c": figures([5.0] * 90)}
    assert text.common_step(summaries) == 100
    a, b, c = text.tag_lines(summaries)
    assert a.startswith("a 100 ↑100 0@0 100@100 0000111")
    assert b.startswith("b nan ↑100 0@0 99@99 0")
    assert b.endswith("x 1 NaN from 100")
    assert c == f"c 5@89 ~ 5@0 5@0 {'5' * 32}"


NAMES = """Train/mean_reward Train/mean_episode_length Loss/value_function Loss/surrogate Loss/learning_rate
Policy/mean_noise_std Perf/total_fps Perf/collection_time Perf/learning_time Episode_Reward/track_lin_vel_xy_exp
Episode_Reward/track_ang_vel_z_exp Episode_Reward/lin_vel_z_l2 Episode_Reward/ang_vel_xy_l2
Episode_Reward/dof_torques_l2 Episode_Reward/dof_acc_l2 Episode_Reward/action_rate_l2
Episode_Reward/feet_air_time Episode_Termination/time_out
Curriculum/terrain_levels Metrics/base_velocity/error_vel_xy""".split()  # noqa: SIM905


def of_many(names: list[str]) -> dict[str, SeriesSummary]:
    """Long wandering series of all sizes: the most expensive ones."""
    made = {}
    for number, name in enumerate(names):
        values = np.cumsum(noise(5000, number)) * 10.0 ** (number % 9 - 5)
        made[name] = figures(values, [4000 * i for i in range(5000)])
    return made


@pytest.mark.parametrize("names", [NAMES, [f"t{i}" for i in range(20)], [f"an/uncommonly/{n.upper()}" for n in NAMES]])
def test_twenty_tags_fit_into_eight_hundred_tokens(names: list[str]) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    summaries = of_many(names)
    lines = text.tag_lines(summaries)
    answer = {
        "source": "/home/someone/isaaclab/logs/rsl_rl/anymal_d_flat/2026-11-21_10-15-30",
        "run_id": "anymal-7kqz",
        "step": text.common_step(summaries),
        "age_s": 12.3,
        "columns": text.name_columns(summaries.values()),
        "tags": lines,
    }
    written = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    assert openai.o200k_base().count(written) <= 800
    assert [line.partition(" ")[0] for line in lines] == names


def test_among_twenty_tags_a_spike_and_a_nan_are_named_with_their_steps() -> None:
    summaries = of_many(NAMES)
    spiked, broken = np.abs(noise(100_000)), noise(100_000)
    spiked[31_234], broken[54_321] = 1000, math.nan
    summaries["Loss/value_function"], summaries["Loss/surrogate"] = figures(spiked), figures(broken)
    lines = text.tag_lines(summaries)
    assert "1000@31234" in lines[2]
    assert "1 NaN from 54321" in lines[3]


def test_of_hundreds_of_tags_the_rest_is_counted_by_prefix() -> None:
    openai = pytest.importorskip("rs_bpe").openai
    summaries = {f"Episode/{group}/{n}": figures([n, n + 0.123]) for group in "abcdefghijkl" for n in range(40)}
    lines, left = text.last_value_lines(summaries)
    assert lines[0] == "Episode/a/0 0.123"
    assert left is not None
    assert left.startswith(f"{480 - len(lines)} more tags: Episode/")
    assert openai.o200k_base().count(json.dumps([lines, left], ensure_ascii=False)) <= 800


def test_runs_are_columns_and_a_missing_tag_is_a_dash() -> None:
    a, b = {"loss": figures([3, 2, 1]), "acc": figures([1, 2])}, {"loss": figures([3, 2])}
    lines, left = text.comparison_lines([a, b])
    assert left == 0
    assert lines[0].startswith("loss | 1@2 ")
    assert " | 2@1 " in lines[0]
    assert lines[1].endswith(" | -")


def test_a_narrowed_shape_keeps_what_is_odd_or_extreme() -> None:
    assert text.narrow_shape("12345678x1" + "9" + "2" * 5, 8) == "2468x922"
    assert text.narrow_shape("123", 8) == "123"


def test_a_slope_is_told_per_as_many_steps_as_the_runs_have_and_agrees_with_its_arrow() -> None:
    for count, name in ((6, "step"), (51, "10"), (501, "100"), (5001, "1k")):
        summaries = {"a": figures([2.0 * step for step in range(count)])}
        unit = {"step": 1, "1k": 1000}.get(name) or int(name)
        assert f" slope/{name} " in text.name_columns(summaries.values())
        assert text.tag_lines(summaries)[0].split()[2] == f"↑{text.format_digits(2 * unit, 2)}"
        told = text.build_tag_figures(summaries["a"])
        assert (told.slope, told.slope_steps, told.trend) == (2 * unit, unit, "up")
    for seed in range(50):
        summary = figures((noise(200, seed).cumsum() * (seed % 3) + noise(200, seed + 99)).tolist())
        assert (summary.slope or 0.0) * {"up": 1, "down": -1, "flat": 0, None: 0}[summary.trend] >= 0
        assert (summary.slope is not None) == (summary.trend in ("up", "down") or summary.slope == 0)
