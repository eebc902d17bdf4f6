"""Curves as the page draws them: reduced without losing what a person looks for."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mcp_server.errors import BadArgument
from mcp_server.page.curves import draw_curves, draw_spark, list_tags, reduce_series
from mcp_server.page.exchange import Raw, to_json
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.scalars.run_scalars import ScalarReading
from mcp_server.scalars.series import Series

RUN = Run(RunSpec(run_id="a"), "running")


def make_series(values: np.ndarray, first: int = 0) -> Series:
    steps = np.arange(first, first + values.size, dtype=np.int64)
    return Series(steps, 1.8e9 + steps.astype(float), values.astype(float))


def test_a_million_points_keep_the_one_spike_and_the_one_nan_within_200_kb() -> None:
    values = np.sin(np.arange(1_000_000) / 1e4)
    values[123_456], values[654_321] = 50.0, np.nan
    told = reduce_series(make_series(values), 1_500)
    assert len(to_json(told)) < 200_000
    assert told["total"] == 1_000_000
    assert told["nan"] == [654_321]
    by_step = dict(zip(told["steps"], told["values"], strict=True))
    assert by_step[123_456] == 50.0
    assert by_step[654_321] is None
    assert (told["steps"][0], told["steps"][-1]) == (0, 999_999)
    assert told["steps"] == sorted(told["steps"])
    assert len(told["times"]) == len(told["steps"])


def test_a_point_without_a_wall_time_has_none_and_the_others_keep_theirs() -> None:
    series = replace(make_series(np.array([1.0, 2.0, 3.0])), walls=np.array([10.0, np.nan, 30.004]))
    assert reduce_series(series, 100)["times"] == [10.0, None, 30.0]
    assert reduce_series(replace(series, walls=np.full(3, np.nan)), 100)["times"] is None


def test_infinite_values_are_marked_and_not_drawn() -> None:
    told = reduce_series(make_series(np.array([1.0, np.inf, -np.inf, 2.0])), 100)
    assert (told["values"], told["inf"], told["nan"]) == ([1.0, 2.0], [1, 2], [])


def test_many_tags_share_the_room_of_one_answer() -> None:
    reading = ScalarReading("a", {f"loss/{n}": make_series(np.random.default_rng(n).random(9_000)) for n in range(40)})
    told = draw_curves(RUN, reading, list(reading.series), 5_000, None, None)
    assert len(told["series"]) == 40
    assert len(to_json(told)) < 200_000
    with pytest.raises(BadArgument, match="at most 40"):
        draw_curves(RUN, reading, [f"x{n}" for n in range(41)], 100, None, None)


def test_a_part_of_the_steps_is_drawn_more_finely() -> None:
    reading = ScalarReading("a", {"loss": make_series(np.arange(100_000.0))})
    told = draw_curves(RUN, reading, ["loss", "none"], 100, 500, 560)
    assert told["series"][0]["steps"] == list(range(500, 561))


def test_the_small_curve_is_of_the_metric_whose_value_stands_beside_it() -> None:
    run = replace(RUN, progress={"metrics": {"reward": 3.0, "loss": 0.1}})
    reading = ScalarReading("a", {tag: make_series(np.arange(1_000.0)) for tag in ("loss", "train/mean_reward")})
    spark = draw_spark(run, reading, None)
    assert spark is not None
    assert (spark["tag"], spark["last"]) == ("train/mean_reward", 999.0)
    assert len(spark["values"]) <= 40
    assert [one["tag"] for one in list_tags(run, reading)["tags"]] == ["train/mean_reward", "loss"]
    assert draw_spark(run, reading, "none") is None
    assert draw_spark(RUN, reading, None) is None, "no value stands there"
    assert draw_spark(run, ScalarReading("a", {"reward": make_series(np.array([np.nan]))}), None) is None


def test_without_a_value_the_tag_that_says_most_comes_first() -> None:
    reading = ScalarReading(
        "a", {tag: make_series(np.arange(9.0)) for tag in ("misc/lr", "train/loss", "eval/success")}
    )
    assert [one["tag"] for one in list_tags(RUN, reading)["tags"]] == ["eval/success", "train/loss", "misc/lr"]


def test_json_has_no_numbers_that_a_browser_cannot_read_and_no_text_that_misleads() -> None:
    told = to_json({"a": [float("nan"), float("inf"), 1.5], "\u202e": "b\u202ec\ud800", "raw": Raw("\x1b[31mred")})
    assert json.loads(told) == {"a": ["nan", "inf", 1.5], "\\u202e": "b\\u202ec\\ud800", "raw": "\x1b[31mred"}
