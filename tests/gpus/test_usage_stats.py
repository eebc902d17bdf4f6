"""The imbalance rule: a GPU lags below 0.7 of the median, unless the median is below 20 %."""

from __future__ import annotations

import pytest

from mcp_server.gpus.deviations import find_imbalance


@pytest.mark.parametrize(
    ("mean_utils", "lagging"),
    [
        ({"a": 90.0, "b": 90.0, "c": 62.9}, {"c"}),
        ({"a": 100.0, "b": 100.0, "c": 70.0}, set()),  # exactly at the limit
        ({"a": 90.0, "b": 90.0, "c": 90.0 * 0.7}, set()),
        ({"a": 100.0, "b": 60.0}, set()),  # the median is 80
        ({"a": 20.0, "b": 20.0, "c": 13.9}, {"c"}),
        ({"a": 100.0}, set()),
    ],
)
def test_a_gpu_below_seven_tenths_of_the_median_lags(mean_utils: dict[str, float], lagging: set[str]) -> None:
    imbalance = find_imbalance(mean_utils)
    assert imbalance is not None
    assert imbalance.lagging == lagging


@pytest.mark.parametrize("mean_utils", [{}, {"a": 19.9}, {"a": 19.9, "b": 19.9, "c": 0.0}])
def test_there_is_no_imbalance_below_a_median_of_twenty_percent(mean_utils: dict[str, float]) -> None:
    assert find_imbalance(mean_utils) is None
