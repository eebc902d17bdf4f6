"""Open waits of a caller: which one says what it has seen, and how many may be left behind."""

from __future__ import annotations

import contextlib

import anyio
import pytest

from mcp_server.runs.cursors import CallerCursors, Cursor
from mcp_server.runs.open_waits import MOST_ALIKE, MOST_OF_CALLER, OpenWaits

pytestmark = pytest.mark.anyio


async def test_the_newest_wait_of_a_caller_for_a_run_says_what_it_has_seen() -> None:
    waits = OpenWaits()
    with waits.open("a", ["x", "y"], is_bounded=False) as older, waits.open("b", ["x"], is_bounded=False) as other:
        with waits.open("a", ["y"], is_bounded=False) as newer:
            assert (older.newest_for, newer.newest_for, other.newest_for) == ({"x"}, {"y"}, {"x"})
        assert older.newest_for == {"x"}, "whoever came later may have been answered meanwhile"
        assert len(waits) == 2
    assert len(waits) == 0


async def test_two_thousand_waits_that_nobody_reads_leave_a_few_open() -> None:
    waits, ended = OpenWaits(), []

    async def wait(number: int) -> None:
        with waits.open("client", ["x"], is_bounded=True) as opened, opened.scope:
            await anyio.sleep_forever()
        ended.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(2000):
            tasks.start_soon(wait, number)
            if number % 100 == 0:
                await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert len(waits) == MOST_ALIKE
        assert sorted(ended) == list(range(2000 - MOST_ALIKE)), "the oldest ended"
        tasks.cancel_scope.cancel()
    assert len(waits) == 0


async def test_the_waits_of_one_caller_for_many_runs_are_bounded_as_well_and_others_are_left_alone() -> None:
    waits = OpenWaits()
    with contextlib.ExitStack() as stack:
        others = stack.enter_context(waits.open("other", ["x"], is_bounded=True))
        opened = [
            stack.enter_context(waits.open("client", [f"run-{number}"], is_bounded=True))
            for number in range(MOST_OF_CALLER + 3)
        ]
        assert [wait.scope.cancel_called for wait in opened[:4]] == [True, True, True, False]
        assert not opened[-1].scope.cancel_called
        assert not others.scope.cancel_called


def test_events_of_an_answer_that_may_not_have_arrived_are_in_the_next_one_and_end_no_wait() -> None:
    first = Cursor(5, "running").unconfirmed(Cursor(2, "running"))
    assert (first.seq, first.listed_seq) == (5, 2)
    cursors = CallerCursors()
    cursors.remember("client", {"x": first})
    assert Cursor(5, "running").unconfirmed(first).listed_seq == 5, "once more, not for ever"
    assert Cursor(1, "running").unconfirmed(Cursor(2)).listed_seq == 1, "a `since` from the future repeats nothing"
