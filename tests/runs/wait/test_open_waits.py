"""Open waits of a caller: which one says what it has seen, and how many may be left behind."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest

from mcp_server.record.events import EventKind, RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.wait.cursors import MOST_ALIKE, MOST_OF_CALLER, Cursor, OpenWaits

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


def with_events(*kinds: EventKind, **progress: Any) -> Run:
    events = tuple(RecordEvent(seq=seq, at="", kind=kind, text="") for seq, kind in enumerate(kinds, 1))
    return Run(RunSpec(run_id="x"), "running", events, progress=progress)


def test_trouble_that_only_a_lost_answer_may_have_named_is_in_the_next_one_once_more() -> None:
    run = with_events("started", "first_step", "stalled", step=3)
    seen = Cursor(3, "running").unconfirmed(Cursor(1, "running"))
    assert (seen.seq, seen.listed_after(run)) == (3, 1)
    assert Cursor(3, "running").unconfirmed(seen).listed_after(run) == 3, "once more, not for ever"
    assert Cursor(1, "running").unconfirmed(Cursor(3)).listed_after(run) == 1, (
        "a `since` from the future repeats nothing"
    )


def test_a_first_step_is_repeated_only_where_the_status_shows_no_step() -> None:
    seen = Cursor(2, "running").unconfirmed(Cursor(1, "running"))
    assert seen.listed_after(with_events("started", "first_step")) == 1
    assert seen.listed_after(with_events("started", "first_step", step=3)) == 2
