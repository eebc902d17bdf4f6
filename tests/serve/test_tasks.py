"""A client is asked to poll less for a wait that is old, and not at the moment of all others."""

from __future__ import annotations

import pytest

from mcp_server.serve.tasks import choose_poll_interval_ms


@pytest.mark.parametrize(
    ("age_s", "middle_ms"), [(0, 500), (50, 500), (100, 1_000), (300, 3_000), (500, 5_000), (864_000, 5_000)]
)
def test_the_interval_is_a_hundredth_of_the_age_within_limits_and_spread_by_a_fifth(
    age_s: float, middle_ms: int
) -> None:
    assert choose_poll_interval_ms(age_s, 0.5) == middle_ms
    assert choose_poll_interval_ms(age_s, 0.0) == round(middle_ms * 0.8)
    assert choose_poll_interval_ms(age_s, 1.0) == round(middle_ms * 1.2)
