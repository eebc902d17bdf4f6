"""Waiting for runs: an event ends a wait at once. The backoff only governs how often "still running" is answered."""

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import anyio

from mcp_server.errors import RunUnreadable
from mcp_server.record.events import CLEARING, NOTEWORTHY, TROUBLE, Noteworthy, RecordEvent
from mcp_server.record.sweeps.sweep_state import LIVE, WAITING, Sweep, Watched
from mcp_server.runs.wait.cursors import Cursor

Until = Literal["event", "decision", "first_step", "end", "condition"]
Reason = Literal["ended", "condition_met", Noteworthy, "started", "heartbeat"]

# Clients drop a silent call: Claude Code after 300 s over HTTP. Each report resets their clock.
PROGRESS_S = 15.0
# A killed supervisor's lock file is closed a moment before its lock is free.
_SETTLE_S = 0.05
_UNREADABLE_S, _UNREADABLE_RETRY_S = 10.0, 0.25  # a record that cannot be read is tried for so long, so often
_CONDITION_S = 1.0  # between two checks of metrics, which another program writes where no watch is

# Which word in the policy's ``stop_on`` says that the policy stops an attempt for an event of this kind.
_STOPPED_ON: Mapping[str, str] = {"stalled": "stall", "first_step_timeout": "first_step_timeout"}
_SETTLED_BY_AN_ATTEMPT: tuple[Noteworthy, ...] = ("error_seen", "stalled", "first_step_timeout")
_DECISIONS: tuple[Noteworthy, ...] = (
    *(*_SETTLED_BY_AN_ATTEMPT, "gpu_deviation", "judging_lost"),
    *("cell_failed", "launch_refused", "outputs_shared", "metric_missing", "phase_done"),  # of a sweep
    *("verdict", "budget_spent", "wants_proposals"),  # of an open one
)
_WISH: Noteworthy = "wants_proposals"  # which a proposal settles
_ALIKE = 2  # failures of cells for one cause that are told one by one

ObserveRuns = Callable[[Sequence[str]], Awaitable[tuple[Watched, ...]]]
CheckCondition = Callable[[Sequence[Watched]], Awaitable[str | None]]


class ChangeSource(Protocol):
    """Announces changes of run directories, such as :class:`mcp_server.store.file_watch.Subscription`."""

    async def next_change(self) -> None:
        """Return when something may have changed since the last call."""


@dataclass(frozen=True)
class WaitOutcome:
    """Why a wait returned, the runs at that moment, and the caller's cursors once it has this answer.

    ``met`` says which value met a condition. ``news``: the ids of the runs that changed for the caller.
    """

    reason: Reason
    runs: tuple[Watched, ...]
    cursors: Mapping[str, Cursor]
    waited_s: float
    next_timeout_s: float
    met: str | None = None
    news: frozenset[str] = frozenset()


def decide(runs: Sequence[Watched], cursors: Mapping[str, Cursor], until: Until) -> Reason | None:
    """Return the reason to end a wait now, or None. Pure.

    - ``end``: all runs have ended.
    - ``event``: any run has news. An end that the caller has seen is not news, unless all runs have ended.
    - ``decision``: any run has ended, or has trouble that nobody deals with; see :func:`find_decisions`.
    - ``first_step``: every live run has made a step in its present attempt, or has trouble, so that it may never make
      one.
    - ``condition``: only that trouble; of a sweep, what needs a decision, but no failed cell: its plan goes on. Whether
      the condition holds is not in the runs.
    """
    if all(run.ended for run in runs):
        return "ended"
    if until == "end":
        return None
    if any(run.ended and find_cursor(cursors, run).state != run.state for run in runs):
        return "ended"
    live_runs = [run for run in runs if not run.ended]
    kinds: set[str]
    if until == "decision" or (until != "event" and any(isinstance(run, Sweep) for run in live_runs)):
        kinds = {kind for run in live_runs for kind in find_decisions(run, find_cursor(cursors, run))}
        kinds -= {"cell_failed"} if until == "condition" else set()
    else:
        kinds = {e["kind"] for run in live_runs for e in run.news if e["seq"] > find_cursor(cursors, run).seq}
    if until in ("first_step", "condition"):
        if until == "first_step" and all(run.stepped for run in live_runs):
            return "first_step"
        kinds &= TROUBLE
    if (most_urgent := next((kind for kind in NOTEWORTHY if kind in kinds), None)) is not None:
        return most_urgent
    if until == "event" and any(find_cursor(cursors, run).state == "queued" and run.state == "running" for run in runs):
        return "started"
    return None


def find_cursor(cursors: Mapping[str, Cursor], run: Watched) -> Cursor:
    """Return what the caller has seen of ``run``: nothing, if it joined the wait later."""
    return cursors.get(run.run_id, Cursor())


def has_news(run: Watched, cursor: Cursor, until: Until) -> bool:
    """Return whether ``run`` changed for a caller that has seen it as ``cursor`` says. Pure."""
    if until == "decision":
        return needs_decision(run, cursor)
    return run.last_seq > cursor.seq or run.state != cursor.state or cursor.listed_after(run) < cursor.seq


def find_decisions(run: Watched, cursor: Cursor) -> set[Noteworthy]:
    """Return the kinds of events of a live run that its reader has not seen, and has to decide about.

    An end is a decision, because nobody retries it. So are a stall, an error, a missing first step, trouble with GPUs,
    and judging that was lost, unless the run's own recovery policy deals with it: it stops the attempt and tries again,
    or ends the run, and then the end is the decision. What a later event has settled is none any more: a stall that
    resumed, an error before a retry, a first step that came late. A cell that failed as two before it is none either:
    its reader has decided about those.
    """
    known = _find_known_failures(run.news)
    unseen = [event for event in run.news if event["seq"] > cursor.seq and event["seq"] not in known]
    if not isinstance(run, Sweep) or run.spec.open is None:
        return _unsettled(unseen, run.stop_on)
    if not any(cell.state in (LIVE, WAITING) for cell in run.cells):
        unseen += [event for event in run.news[-1:] if event["kind"] == _WISH]  # no wait brings anything
    return _unsettled(unseen, run.stop_on) - {"cell_failed"}  # which has its verdict


def _find_known_failures(events: Iterable[RecordEvent]) -> set[int]:
    """Return the numbers of the events of cells that failed as two before them did, figures aside."""
    known, counts = set(), Counter[tuple[str, str]]()
    for event in events:
        if event["kind"] == "cell_failed":
            failure = event.get("failure") or {}
            cause = (str(failure.get("kind")), re.sub(r"[\d.,]+", "", str(failure.get("line") or event.get("state"))))
            if counts[cause] >= _ALIKE:
                known.add(event["seq"])
            counts[cause] += 1
    return known


def needs_decision(run: Watched, cursor: Cursor) -> bool:
    """Return whether its reader has something new to decide about ``run``."""
    return cursor.state != run.state if run.ended else bool(find_decisions(run, cursor))


def _unsettled(events: Iterable[RecordEvent], stop_on: Iterable[str]) -> set[Noteworthy]:
    pending: set[tuple[Noteworthy, object]] = set()  # with the cell of a sweep, where another one settles nothing
    for event in events:
        kind, cell = event["kind"], event.get("cell")
        if kind == "retrying" or kind in CLEARING:
            pending.difference_update((each, cell) for each in _SETTLED_BY_AN_ATTEMPT)
        elif kind == "proposed":
            pending.discard((_WISH, None))
        elif kind == "first_step":
            pending.discard(("first_step_timeout", cell))
        elif kind in _DECISIONS and not _is_stopped_by_policy(event, stop_on):
            pending.add((kind, cell))
    return {kind for kind, _ in pending}


def _is_stopped_by_policy(event: RecordEvent, stop_on: Iterable[str]) -> bool:
    cause = _STOPPED_ON.get(event["kind"])
    if event["kind"] == "error_seen":
        cause = (event.get("failure") or {}).get("kind")
    elif event["kind"] == "gpu_deviation":
        cause = event.get("what")
    return cause is not None and cause in stop_on


async def _observe_patiently(run_ids: Sequence[str], observe: ObserveRuns) -> tuple[Watched, ...]:
    """Return the runs as they are now. A record that cannot be read is tried again for 10 s."""
    until_s = anyio.current_time() + _UNREADABLE_S
    while True:
        try:
            return await observe(run_ids)
        except RunUnreadable:
            if anyio.current_time() >= until_s:
                raise
            await anyio.sleep(_UNREADABLE_RETRY_S)


async def wait_for_runs(
    run_ids: Sequence[str],
    observe: ObserveRuns,
    changes: ChangeSource,
    cursors: Mapping[str, Cursor],
    *,
    until: Until = "event",
    timeout_s: float | None = None,
    report: Callable[[float, float, Sequence[Watched]], Awaitable[None]] | None = None,
    check_condition: CheckCondition | None = None,
    is_unknown: Callable[[Sequence[Watched]], bool] = lambda _: False,
    waited_s: float = 0.0,
    longest_s: float = math.inf,
) -> WaitOutcome:
    """Wait until one of the runs has news that deserves a decision, or the heartbeat is due. Never touches a run.

    ``observe`` returns these runs as they are now, and those that joined. ``timeout_s``: None takes the caller's
    schedule, 0 returns the state now. ``report``: called every 15 s with the seconds waited and to wait, and the runs.
    ``check_condition`` returns which value meets the caller's condition; ``is_unknown``, whether to say now that it
    names nothing. ``waited_s``: so long the caller has waited already, for a server that has died.
    ``longest_s``: the caller hears no answer that comes later.
    """
    begun_s = anyio.current_time() - waited_s
    limit_s = min(longest_s, _shortest(cursors.values()) if timeout_s is None else timeout_s)
    settling = False
    report_s = PROGRESS_S * (waited_s // PROGRESS_S + 1)
    while True:
        runs = await _observe_patiently(run_ids, observe)
        waited_s = anyio.current_time() - begun_s
        reason, met = await find_reason(runs, cursors, until, check_condition)
        if reason is not None or waited_s >= limit_s or is_unknown(runs):
            break
        if waited_s >= report_s:
            report_s += PROGRESS_S
            if report is not None:
                await report(waited_s, limit_s, runs)
                continue
        slice_s = max(0.0, min(report_s, limit_s) - waited_s)
        if check_condition is not None:
            slice_s = min(slice_s, _CONDITION_S)
        changed = False
        with anyio.move_on_after(min(_SETTLE_S, slice_s) if settling else slice_s):
            await changes.next_change()
            changed = True
        settling = changed
    outcome = make_outcome(reason, runs, cursors, waited_s, met, until=until, scheduled=timeout_s is None)
    return replace(outcome, next_timeout_s=min(outcome.next_timeout_s, longest_s))


async def find_reason(
    runs: Sequence[Watched], cursors: Mapping[str, Cursor], until: Until, check_condition: CheckCondition | None
) -> tuple[Reason | None, str | None]:
    """Return why a wait ends now, and which value met its condition."""
    if check_condition is not None and (met := await check_condition(runs)) is not None:
        return "condition_met", met
    return decide(runs, cursors, until), None


def make_outcome(
    reason: Reason | None,
    runs: Sequence[Watched],
    cursors: Mapping[str, Cursor],
    waited_s: float,
    met: str | None = None,
    *,
    until: Until,
    scheduled: bool,
) -> WaitOutcome:
    """Return how a wait ends now, without a ``reason`` as a heartbeat; ``scheduled``: it was as long as planned."""
    news = frozenset(run.run_id for run in runs if has_news(run, find_cursor(cursors, run), until))
    advanced = {}
    for run in runs:
        cursor = find_cursor(cursors, run)
        # What is not news to the caller, and so is not answered, stays unseen: a wait for every event may follow.
        is_seen = until != "decision" or run.run_id in news
        advanced[run.run_id] = (
            cursor.advance(run, scheduled=scheduled)
            if is_seen
            else replace(cursor, heartbeats=cursor.heartbeats + scheduled)
        )
    next_s = _shortest(advanced.values())
    return WaitOutcome(reason or "heartbeat", tuple(runs), advanced, waited_s, next_s, met, news)


def _shortest(cursors: Iterable[Cursor]) -> float:
    return min((cursor.next_wait_s for cursor in cursors), default=Cursor().next_wait_s)
