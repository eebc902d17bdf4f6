"""Axes of a picture: logarithmic where values span decades, steps written short."""

import pytest

from mcp_server.scalars.drawing import format_step, is_log


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([1, 1000], True), ([1, 100], False), ([-1, 1000], False), ([0, 1000], False), ([], False), ([1e-9, 1], True)],
)
def test_an_axis_is_logarithmic_where_positive_values_span_decades(values: list[float], logarithmic: bool) -> None:
    assert is_log(values) == logarithmic


@pytest.mark.parametrize(
    ("step", "written"),
    [(900, "900"), (1500, "1.5k"), (2_000_000, "2M"), (1.25e9, "1.25G"), (-3000, "-3k"), (0.5, "0.5"), (4e18, "4e+18")],
)
def test_steps_are_written_short(step: float, written: str) -> None:
    assert format_step(step) == written
