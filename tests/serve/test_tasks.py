"""A client is asked to poll less for a wait that is old or one of many, and not at the moment of all others."""

from __future__ import annotations

import pytest

from mcp_server.serve.tasks import RecentTasks, choose_poll_interval_ms


@pytest.mark.parametrize(
    ("age_s", "middle_ms"), [(0, 500), (50, 500), (100, 1_000), (300, 3_000), (500, 5_000), (864_000, 5_000)]
)
def test_the_interval_is_a_hundredth_of_the_age_within_limits_and_spread_by_a_fifth(
    age_s: float, middle_ms: int
) -> None:
    assert choose_poll_interval_ms(age_s, 1, 0.5) == middle_ms
    assert choose_poll_interval_ms(age_s, 1, 0.0) == round(middle_ms * 0.8)
    assert choose_poll_interval_ms(age_s, 1, 1.0) == round(middle_ms * 1.2)


@pytest.mark.parametrize(("tasks", "middle_ms"), [(1, 500), (38, 500), (64, 832), (300, 3_900), (5_000, 5_000)])
def test_many_tasks_share_one_rate_of_polls(tasks: int, middle_ms: int) -> None:
    assert choose_poll_interval_ms(0, tasks, 0.5) == middle_ms
    assert choose_poll_interval_ms(500, tasks, 0.5) == 5_000


def test_a_task_counts_once_and_until_nobody_asked_about_it_for_two_of_the_longest_intervals() -> None:
    now_s = 0.0
    polled = RecentTasks(clock=lambda: now_s)
    assert [polled.note(task_id) for task_id in ("a", "b", "a", "c")] == [1, 2, 2, 3]
    now_s = 9.0
    assert polled.note("a") == 3
    now_s = 10.5
    assert polled.note("b") == 2
    now_s = 60.0
    assert polled.note("b") == 1
