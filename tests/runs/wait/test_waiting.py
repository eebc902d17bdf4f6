"""Waiting for runs, on virtual time: an event ends a wait at once, "still running" follows a schedule."""

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

import anyio
import pytest
from trio.testing import MockClock

from mcp_server.errors import RunNotFound
from mcp_server.record.events import EventKind, RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, RunState
from mcp_server.runs.wait.cursors import CallerCursors, Cursor
from mcp_server.runs.wait.waiting import Until, WaitOutcome, decide, wait_for_runs

P = ParamSpec("P")
A, B, C = "cfm-7kqz", "gen-2mxw", "vae-9pst"
SCHEDULE = [30, 60, 120, 240, 480, 960]


def virtually(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on a clock that jumps to the next deadline as soon as all tasks wait."""

    @functools.wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        clock = MockClock(autojump_threshold=0)
        anyio.run(functools.partial(test, *args, **kwargs), backend="trio", backend_options={"clock": clock})

    return run_test


def at(state: RunState, events: int = 1, run_id: str = A, **facts: Any) -> Run:
    """A run in ``state`` with so many events."""
    plain = tuple(RecordEvent(seq=seq, at="", kind="screen_lost", text="") for seq in range(1, events + 1))
    return replace(Run(RunSpec(run_id=run_id), state, plain), **facts)


@dataclass
class Timeline:
    """Runs that change at set times, in seconds. Each change is announced ``early_s`` before it can be observed."""

    ends_s: float = math.inf
    exit_code: int = 0
    changes: dict[str, dict[float, Run]] = field(default_factory=dict)
    early_s: float = 0.0
    announced_s: float = 0.0
    observations: int = 0

    def __post_init__(self) -> None:
        if not self.changes:
            end = at("failed" if self.exit_code else "finished", 2, exit_code=self.exit_code)
            self.changes = {A: {0: at("running"), self.ends_s: end}}

    def observe(self, run_id: str) -> Run:
        self.observations += 1
        return [run for since_s, run in self.changes[run_id].items() if since_s <= anyio.current_time()][-1]

    async def observe_all(self, run_ids: Sequence[str]) -> tuple[Run, ...]:
        return tuple(self.observe(run_id) for run_id in run_ids)

    async def next_change(self) -> None:
        times = [t - self.early_s for run_id in self.changes for t in self.changes[run_id]]
        due_s = min((t for t in times if t > self.announced_s), default=math.inf)
        await anyio.sleep_until(due_s)
        self.announced_s = max(due_s, anyio.current_time())


def cursors_at(*runs: Run) -> dict[str, Cursor]:
    """The cursors of a caller that has seen ``runs``."""
    return {run.run_id: Cursor.at(run) for run in runs}


async def wait(
    timeline: Timeline, cursors: dict[str, Cursor] | None = None, run_ids: Sequence[str] | None = None, **how: Any
) -> WaitOutcome:
    """Wait as one caller does: after the answer, ``cursors`` are those of the outcome."""
    ids = list(run_ids or timeline.changes)
    if cursors is None:
        cursors = cursors_at(*(timeline.changes[run_id][0] for run_id in ids))
    before = dict(cursors)
    outcome = await wait_for_runs(ids, timeline.observe_all, timeline, before, **how)
    assert before == cursors, "a wait changes nothing of its caller's"
    cursors.update(outcome.cursors)
    return outcome


def exit_code(answer: WaitOutcome) -> int | None:
    (run,) = answer.runs
    return run.exit_code if isinstance(run, Run) else None


# --- one run


@virtually
async def test_a_wait_returns_when_the_run_ends_not_when_the_wait_does() -> None:
    answer = await wait(Timeline(ends_s=41, exit_code=1), timeout_s=960)
    assert answer.reason == "ended"
    assert (answer.runs[0].state, exit_code(answer)) == ("failed", 1)
    assert anyio.current_time() == answer.waited_s == 41


@virtually
async def test_an_end_during_a_default_wait_is_answered_at_once() -> None:
    answer = await wait(Timeline(ends_s=12.5))
    assert (answer.reason, exit_code(answer), answer.waited_s) == ("ended", 0, 12.5)


@virtually
async def test_an_end_that_is_observable_a_moment_after_its_change_is_not_missed() -> None:
    # A killed supervisor's lock file is closed a moment before its lock is free.
    answer = await wait(Timeline(ends_s=41, early_s=0.03), timeout_s=960)
    assert answer.reason == "ended"
    assert answer.waited_s == pytest.approx(41.02)


@virtually
async def test_a_run_that_has_already_ended_is_answered_at_once() -> None:
    timeline = Timeline(changes={A: {0: at("failed", 2, exit_code=3)}})
    for until in ("event", "end"):
        answer = await wait(timeline, cursors_at(at("running")), until=until, timeout_s=960)
        assert (answer.reason, answer.waited_s) == ("ended", 0)
    assert (await wait(timeline)).reason == "ended"  # also to a caller that has seen it


@virtually
async def test_a_timeout_of_0_answers_the_state_now() -> None:
    timeline = Timeline(ends_s=41)
    answer = await wait(timeline, timeout_s=0)
    assert (answer.reason, answer.runs[0].state, answer.waited_s) == ("heartbeat", "running", 0)
    assert timeline.observations == 1
    await anyio.sleep(41)
    assert (await wait(timeline, timeout_s=0)).reason == "ended"


@virtually
async def test_a_heartbeat_comes_when_the_wait_is_over() -> None:
    answer = await wait(Timeline(), timeout_s=100)
    assert (answer.reason, answer.runs[0].state, answer.waited_s) == ("heartbeat", "running", 100)
    assert anyio.current_time() == 100


@virtually
async def test_an_end_at_the_last_moment_is_an_end() -> None:
    assert (await wait(Timeline(ends_s=100), timeout_s=100)).reason == "ended"


@virtually
async def test_a_wait_without_limit_lasts_until_the_end() -> None:
    answer = await wait(Timeline(ends_s=10_000), until="end", timeout_s=math.inf)
    assert (answer.reason, answer.waited_s) == ("ended", 10_000)


@virtually
async def test_an_event_that_changes_no_state_does_not_end_a_wait() -> None:
    notes = {float(t): at("running", t + 1) for t in range(90)}
    answer = await wait(Timeline(changes={A: {**notes, 90: at("finished", 99)}}), timeout_s=960)
    assert (answer.reason, answer.waited_s) == ("ended", 90)


@virtually
async def test_a_quiet_run_is_hardly_observed() -> None:
    timeline = Timeline()
    await wait(timeline, timeout_s=960)
    assert timeline.observations <= 960 / 15 + 1


@virtually
async def test_a_queued_run_that_starts_is_news() -> None:
    timeline = Timeline(changes={A: {0: at("queued"), 20: at("running", 2)}})
    answer = await wait(timeline, timeout_s=960)
    assert (answer.reason, answer.waited_s) == ("started", 20)
    assert (await wait(timeline, cursors_at(at("running", 2)), timeout_s=60)).reason == "heartbeat"


@virtually
async def test_a_run_that_is_gone_ends_the_wait_with_its_error() -> None:
    async def observe(run_ids: Sequence[str]) -> tuple[Run, ...]:
        if anyio.current_time() >= 41:
            raise RunNotFound(run_ids[0], [])
        return (at("running"),)

    with pytest.raises(RunNotFound):
        await wait_for_runs([A], observe, Timeline(ends_s=41), cursors_at(at("running")), timeout_s=960)
    assert anyio.current_time() == 41


# --- several runs

THREE: dict[str, dict[float, Run]] = {
    A: {0: at("running"), 50: at("finished", 2)},
    B: {0: at("running", run_id=B), 20: at("failed", 2, run_id=B)},
    C: {0: at("running", run_id=C), 70: at("killed", 2, run_id=C)},
}


@pytest.mark.parametrize(("until", "waited_s"), [("event", 20), ("end", 70)])
@virtually
async def test_any_end_is_an_event_and_the_last_end_is_the_end(until: Until, waited_s: float) -> None:
    answer = await wait(Timeline(changes=THREE), until=until, timeout_s=960)
    assert (answer.reason, answer.waited_s) == ("ended", waited_s)
    assert [run.run_id for run in answer.runs] == [A, B, C]


@virtually
async def test_each_end_is_answered_once_until_all_have_ended() -> None:
    timeline = Timeline(changes=THREE)
    cursors = cursors_at(*(timeline.changes[run_id][0] for run_id in THREE))
    answers = [await wait(timeline, cursors, timeout_s=960) for _ in range(4)]
    assert [answer.reason for answer in answers] == ["ended"] * 4
    assert [sum(answer.waited_s for answer in answers[:n]) for n in (1, 2, 3, 4)] == [20, 50, 70, 70]


@virtually
async def test_a_wait_for_all_is_not_ended_by_one() -> None:
    answer = await wait(Timeline(changes=THREE), until="end", timeout_s=60)
    assert (answer.reason, [run.state for run in answer.runs]) == ("heartbeat", ["finished", "failed", "running"])


@virtually
async def test_other_runs_do_not_end_a_wait() -> None:
    timeline = Timeline(changes=THREE)
    answer = await wait(timeline, run_ids=[A], timeout_s=960)
    assert ([run.run_id for run in answer.runs], answer.waited_s) == ([A], 50)


@pytest.mark.parametrize(
    ("runs", "cursors", "until", "reason"),
    [
        ([at("running")], [at("running")], "event", None),
        ([at("running")], [at("starting", 0)], "event", None),
        ([at("running")], [at("queued", 0)], "event", "started"),
        ([at("running")], [at("queued", 0)], "end", None),
        ([at("lost")], [at("running")], "event", "ended"),
        ([at("killed"), at("running", run_id=B)], [at("lost"), at("running", run_id=B)], "event", "ended"),
        ([at("lost"), at("running", run_id=B)], [at("lost"), at("running", run_id=B)], "event", None),
        ([at("failed"), at("running", run_id=B)], [at("running"), at("running", run_id=B)], "event", "ended"),
        ([at("failed"), at("running", run_id=B)], [at("running"), at("running", run_id=B)], "end", None),
        ([at("failed"), at("lost", run_id=B)], [at("failed"), at("lost", run_id=B)], "event", "ended"),
        ([at("failed"), at("lost", run_id=B)], [at("failed"), at("lost", run_id=B)], "end", "ended"),
        # An end comes before a start.
        ([at("running"), at("failed", run_id=B)], [at("queued"), at("running", run_id=B)], "event", "ended"),
    ],
)
def test_what_ends_a_wait(runs: list[Run], cursors: list[Run], until: Until, reason: str | None) -> None:
    assert decide(runs, cursors_at(*cursors), until) == reason


# --- the schedule


@virtually
async def test_a_backoff_of_1890_s_passes_on_virtual_time() -> None:
    timeline, cursors = Timeline(), cursors_at(at("running"))
    answers = [await wait(timeline, cursors) for _ in SCHEDULE]
    assert [answer.waited_s for answer in answers] == pytest.approx(SCHEDULE)
    assert [answer.next_timeout_s for answer in answers] == [*SCHEDULE[1:], 960]
    assert {answer.reason for answer in answers} == {"heartbeat"}
    assert anyio.current_time() == pytest.approx(1890)


@virtually
async def test_a_first_wait_is_the_shortest_even_for_a_new_run() -> None:
    answer = await wait(Timeline(), {A: Cursor()})
    assert (answer.waited_s, answer.next_timeout_s) == (30, 30)  # the state itself was news


@virtually
async def test_an_event_restarts_the_schedule() -> None:
    timeline = Timeline(changes={A: {0: at("running"), 100: at("running", 2), 1e9: at("finished", 3)}})
    cursors = cursors_at(at("running"))
    waits = [(await wait(timeline, cursors)).waited_s for _ in range(5)]
    # 30 + 60 + 120: the event came in the third; it does not end the wait, but the next is short again.
    assert waits == pytest.approx([30, 60, 120, 30, 60])


@virtually
async def test_a_wait_of_the_callers_own_length_leaves_the_schedule_alone() -> None:
    timeline, cursors = Timeline(), cursors_at(at("running"))
    assert (await wait(timeline, cursors)).next_timeout_s == 60
    assert (await wait(timeline, cursors, timeout_s=7)).next_timeout_s == 60
    assert (await wait(timeline, cursors, timeout_s=0)).next_timeout_s == 60
    assert (await wait(timeline, cursors)).waited_s == pytest.approx(60)


@virtually
async def test_each_caller_has_its_own_schedule() -> None:
    timeline, callers = Timeline(), CallerCursors()
    for name in ("alice", "bob"):
        callers.remember(name, cursors_at(at("running")))
    for name, next_s in (("alice", 60), ("alice", 120), ("bob", 60)):
        outcome = await wait(timeline, {A: callers.recall(name, at("running"))})
        assert outcome.next_timeout_s == next_s
        callers.remember(name, outcome.cursors)


@virtually
async def test_of_two_runs_the_one_that_is_due_first_sets_the_wait() -> None:
    timeline = Timeline(changes={A: {0: at("running")}, B: {0: at("running", run_id=B)}})
    cursors = cursors_at(at("running"), at("running", run_id=B))
    for _ in range(3):
        await wait(timeline, cursors, [A])
    assert cursors[A].next_wait_s == 240
    answer = await wait(timeline, cursors, [A, B])
    assert [answer.waited_s, answer.next_timeout_s] == pytest.approx([30, 60])


# --- what a supervisor notices


def noticing(*kinds: EventKind, run_id: str = A, state: RunState = "running") -> Run:
    """A live run whose events are of these kinds, the first of them its start."""
    all_kinds: tuple[EventKind, ...] = ("started", *kinds)
    events = tuple(RecordEvent(seq=seq, at="", kind=kind, text="") for seq, kind in enumerate(all_kinds, 1))
    return replace(at(state, run_id=run_id), events=events)


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (("first_step",), "first_step"),
        (("first_step_timeout",), "first_step_timeout"),
        (("first_step", "stalled"), "stalled"),
        (("stalled", "error_seen"), "error_seen"),
        (("first_step", "retrying"), "retrying"),
        (("resumed",), None),
        (("interrupted", "screen_lost"), None),
    ],
)
def test_of_several_events_the_most_urgent_is_the_reason(kinds: tuple[EventKind, ...], reason: str | None) -> None:
    run = noticing(*kinds)
    assert decide([run], {A: Cursor(1, "running")}, "event") == reason
    assert decide([run], {A: Cursor(run.last_seq, "running")}, "event") is None, "the caller has seen it"
    assert decide([run], {A: Cursor(1, "running")}, "end") is None


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ((), None),
        (("first_step",), "first_step"),
        (("first_step_timeout",), "first_step_timeout"),
        (("retrying",), "retrying"),
        (("error_seen",), "error_seen"),
        (("first_step", "retrying"), "retrying"),
    ],
)
def test_a_wait_for_the_first_step_also_ends_where_it_may_never_come(
    kinds: tuple[EventKind, ...], reason: str | None
) -> None:
    assert decide([noticing(*kinds)], {A: Cursor(1, "running")}, "first_step") == reason


def test_a_first_step_that_the_caller_has_seen_still_ends_the_wait_for_it() -> None:
    run = noticing("first_step")
    assert decide([run], {A: Cursor(run.last_seq, "running")}, "first_step") == "first_step"


def test_the_first_step_of_several_runs_is_the_last_of_them() -> None:
    cursors = {A: Cursor(1, "running"), B: Cursor(1, "running")}
    assert decide([noticing("first_step"), noticing(run_id=B)], cursors, "first_step") is None
    assert decide([noticing("first_step"), noticing("first_step", run_id=B)], cursors, "first_step") == "first_step"
    cursors[B] = Cursor(1, "finished")
    assert decide([noticing("first_step"), at("finished", run_id=B)], cursors, "first_step") == "first_step"


@virtually
async def test_a_stall_is_answered_when_it_happens_and_restarts_the_schedule() -> None:
    stalled = noticing("stalled", state="stalled")
    timeline = Timeline(changes={A: {0: noticing(), 17: stalled}})
    cursors = {A: Cursor(1, "running", heartbeats=4)}
    answer = await wait(timeline, cursors)
    assert (answer.reason, answer.waited_s, answer.next_timeout_s) == ("stalled", 17, 30)


# --- what a caller has seen


@virtually
async def test_an_outcome_has_the_cursors_for_the_next_wait() -> None:
    timeline = Timeline(changes={A: {0: at("running", 3), 41: at("finished", 5)}})
    cursors = cursors_at(at("running", 2))
    first = await wait(timeline, cursors, timeout_s=0)
    assert first.cursors == cursors == {A: Cursor(3, "running")}
    second = await wait(timeline, cursors, timeout_s=960)
    assert second.cursors == cursors == {A: Cursor(5, "finished")}


@virtually
async def test_a_cancelled_wait_leaves_the_cursors_alone() -> None:
    cursors = cursors_at(at("running"))
    with anyio.move_on_after(100) as scope:
        await wait(Timeline(ends_s=41_000), cursors, timeout_s=960)
    assert scope.cancelled_caught
    assert anyio.current_time() == 100
    assert cursors == cursors_at(at("running"))


@virtually
async def test_twenty_waits_end_with_one_run_at_the_same_time() -> None:
    ended_s: list[float] = []

    async def one(n: int) -> None:
        answer = await wait(Timeline(ends_s=41), timeout_s=60 + n)
        assert answer.reason == "ended"
        ended_s.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(one, n)
    assert ended_s == [41] * 20


# --- progress


async def reported(timeline: Timeline, **how: Any) -> list[tuple[float, float]]:
    calls: list[tuple[float, float]] = []

    async def progress(waited_s: float, limit_s: float, _: Sequence[Run]) -> None:
        calls.append((waited_s, limit_s))

    await wait(timeline, report=progress, **how)
    return calls


@virtually
async def test_progress_is_reported_every_15_s() -> None:
    assert await reported(Timeline(ends_s=70), timeout_s=960) == [(15, 960), (30, 960), (45, 960), (60, 960)]


@virtually
async def test_a_wait_that_is_over_is_answered_and_not_reported() -> None:
    assert await reported(Timeline(), timeout_s=60) == [(15, 60), (30, 60), (45, 60)]
    assert await reported(Timeline(), timeout_s=7) == []
    assert await reported(Timeline(), timeout_s=0) == []


@pytest.mark.parametrize(
    "event_times_s",
    [
        pytest.param([t * 0.7 for t in range(1, 100)], id="often"),
        pytest.param([14.98, 29.98, 44.98, 59.98], id="a moment before each report"),
    ],
)
@virtually
async def test_events_do_not_delay_a_report(event_times_s: list[float]) -> None:
    # A client that hears nothing drops the call, so a run that is busy must not silence the reports.
    notes = {t: at("running", n) for n, t in enumerate([0, *event_times_s])}
    calls = await reported(Timeline(changes={A: {**notes, 70: at("finished", 200)}}), timeout_s=960)
    assert [waited_s for waited_s, _ in calls] == pytest.approx([15, 30, 45, 60], abs=0.1)


@virtually
async def test_a_report_that_takes_long_delays_no_later_one() -> None:
    calls: list[float] = []

    async def progress(waited_s: float, _limit_s: float, _runs: Sequence[Run]) -> None:
        calls.append(waited_s)
        await anyio.sleep(4)

    await wait(Timeline(ends_s=70), timeout_s=960, report=progress)
    assert calls == [15, 30, 45, 60]
