"""What each caller has seen of each run, and the schedule of its waits."""

from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest

from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, RunState, posix
from mcp_server.runs.wait.cursors import CallerCursors, Cursor, MetricPosition, assumed_cursor, backoff
from mcp_server.runs.wait.waiting import decide

A, B = "cfm-7kqz", "gen-2mxw"
BEGAN = "2026-11-21T10:00:00Z"


def at(state: RunState, events: int = 1, run_id: str = A, **facts: Any) -> Run:
    """A run in ``state`` with so many events."""
    plain = tuple(RecordEvent(seq=seq, at=BEGAN, kind="screen_lost", text="") for seq in range(1, events + 1))
    return replace(Run(RunSpec(run_id=run_id), state, plain), **facts)


def test_the_backoff_doubles_from_30_s_to_16_min() -> None:
    assert list(islice(backoff(), 8)) == [30, 60, 120, 240, 480, 960, 960, 960]
    assert list(islice(backoff(5, 3, 100), 5)) == [5, 15, 45, 100, 100]


def test_a_heartbeat_lengthens_the_next_wait_and_an_event_or_a_new_state_shortens_it() -> None:
    cursor = Cursor.at(at("running")).advance(at("running")).advance(at("running"))
    assert cursor.next_wait_s == 120
    assert cursor.advance(at("running"), scheduled=False).next_wait_s == 120
    assert cursor.advance(at("running", 2)) == Cursor(2, "running")
    assert cursor.advance(at("stalled")) == Cursor(1, "stalled")


def test_each_caller_has_a_cursor_for_each_run() -> None:
    callers = CallerCursors()
    for number, (name, run_id) in enumerate(product(("alice", "bob"), (A, B))):
        callers.remember(name, {run_id: Cursor(seq=number)})
    pairs = product(("alice", "bob"), (A, B))
    assert [callers.recall(name, at("running", run_id=run_id)).seq for name, run_id in pairs] == [0, 1, 2, 3]


def test_a_caller_that_is_new_has_seen_nothing() -> None:
    assert CallerCursors().recall("alice", at("failed", 2)) == Cursor()


def test_an_anonymous_caller_is_not_remembered_and_has_seen_the_present() -> None:
    callers, run = CallerCursors(), at("failed", 2)
    callers.remember(None, {A: Cursor(1, "running")})
    assert (callers.recall(None, run).seq, callers.recall(None, run).state) == (2, "failed")
    callers.remember_positions(None, "loss < 1", {A: MetricPosition("loss")})
    assert callers.recall_positions(None, [A], "loss < 1") == {}


def test_metric_positions_are_kept_by_caller_run_and_condition() -> None:
    callers, position = CallerCursors(), MetricPosition("loss", checked=7)
    callers.remember_positions("alice", "loss < 1", {A: position})
    assert callers.recall_positions("alice", [A, B], "loss < 1") == {A: position}
    assert callers.recall_positions("alice", [A, B], "loss < 2") == {}
    assert callers.recall_positions("bob", [A, B], "loss < 1") == {}


@pytest.mark.parametrize(
    ("age_s", "next_s"), [(0, 30), (29, 30), (31, 60), (89, 60), (91, 120), (1889, 960), (100_000, 960)]
)
def test_an_anonymous_caller_waits_by_the_age_of_the_last_event(age_s: float, next_s: float) -> None:
    run = at("running")
    ended = replace(run, spec=RunSpec(run_id=B), state="failed")
    assert assumed_cursor(run, posix(BEGAN) + age_s).next_wait_s == next_s
    cursors = {A: assumed_cursor(run, 0), B: assumed_cursor(ended, 0)}
    assert decide([run, ended], cursors, "event") is None, "or it would spin"


def test_whoever_launched_a_run_hears_of_a_first_step_that_the_launch_has_seen() -> None:
    step = RecordEvent(seq=3, at=BEGAN, kind="first_step", text="")
    run = at("running", 2)
    assert Cursor.at_launch(run) == Cursor(2, "running")
    seen = replace(run, events=(*run.events, step))
    assert Cursor.at_launch(seen) == Cursor(2, "running")
    assert Cursor.at_launch(replace(seen, state="finished")) == Cursor(3, "finished")
