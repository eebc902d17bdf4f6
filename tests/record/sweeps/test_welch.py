"""Welch's test against values of scipy.stats.ttest_ind(equal_var=False), and against the density itself."""

from __future__ import annotations

import math

import pytest

from mcp_server.record.sweeps.sweep_ranking import compare_means

STEPS = (12.0, 12.1, 11.9, 12.2, 12.05)


@pytest.mark.parametrize(
    ("one", "other", "t", "df", "p"),
    [
        ((1, 2, 3), (5, 7), -3.464101615137755, 1.6842105263157894, 0.09414817762543444),
        (
            (0.812, 0.805, 0.831, 0.79),
            (0.774, 0.801, 0.769),
            2.1527352426217075,
            4.422722804044821,
            0.09112235113312647,
        ),
        ((0.001, 0.002), (5, 9, 2), -2.629643921487454, 2.0000002432432367, 0.11928454589574392),
        ((1, 2), (1, 2), 0.0, 2.0, 1.0),
        ([x - 1.999 for x in STEPS] * 3, STEPS * 3, -52.9, 28.0, None),
    ],
)
def test_it_is_that_of_scipy(
    one: tuple[float, ...], other: tuple[float, ...], t: float, df: float, p: float | None
) -> None:
    found = compare_means(one, other)
    assert found is not None
    if p is None:
        assert 0 < found.p < 1e-25, "a small chance is no zero"
        return
    assert (found.t, found.df) == pytest.approx((t, df), rel=1e-9)
    assert found.p == pytest.approx(p, rel=1e-8)
    back = compare_means(other, one)
    assert back is not None
    assert (back.t, back.p) == pytest.approx((-t, p), rel=1e-9)


@pytest.mark.parametrize("df", [2, 3, 7, 40])
def test_the_tail_is_the_integral_of_the_density(df: int) -> None:
    values = [float(number) for number in range(df // 2 + 2)]
    found = compare_means(values, [value + 1.3 for value in values])
    assert found is not None
    scale = math.exp(math.lgamma((found.df + 1) / 2) - math.lgamma(found.df / 2)) / math.sqrt(found.df * math.pi)
    steps, width = 2000, abs(found.t) / 2000
    heights = [scale * (1 + (n * width) ** 2 / found.df) ** (-(found.df + 1) / 2) for n in range(steps + 1)]
    inside = width / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    assert found.p == pytest.approx(1 - 2 * inside, abs=1e-9)


def test_where_no_deviation_is_known_there_is_no_test() -> None:
    assert compare_means([1.0], [2.0, 3.0]) is None
    assert compare_means([1.0, 1.0], [2.0, 2.0]) is None, "no value deviates"
    assert compare_means([1e-200, 2e-200], [3e-200, 5e-200]) is None, "a variance below the smallest float"
    assert compare_means([-1e300, 1e300], [0.0, 1.0]) is None
