"""Decisions of an agent about a run: what ``wait_run(until="decision")`` returns for. Pure.

An end is a decision, because nobody retries it. So are a stall, an error, a missing first step, trouble with GPUs, and
judging that was lost, unless the run's own recovery policy deals with it: it stops the attempt and tries again, or ends
the run, and then the end is the decision. What a later event has settled is none any more: a stall that resumed, an
error before a retry, a first step that came late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcp_server.record.events import CLEARING, Event, Noteworthy
from mcp_server.record.state import Run
from mcp_server.runs.cursors import Cursor

# Which word in the policy's ``stop_on`` says that the policy stops an attempt for an event of this kind.
_STOPPED_ON: Mapping[str, str] = {"stalled": "stall", "first_step_timeout": "first_step_timeout"}
_SETTLED_BY_AN_ATTEMPT: tuple[Noteworthy, ...] = ("error_seen", "stalled", "first_step_timeout")
_DECISIONS: tuple[Noteworthy, ...] = (
    *(*_SETTLED_BY_AN_ATTEMPT, "gpu_deviation", "judging_lost"),
    *("cell_failed", "launch_refused", "metric_missing", "phase_done"),  # of a sweep
)


def find_decisions(run: Run, cursor: Cursor) -> set[Noteworthy]:
    """Return the kinds of events of a live run that its reader has not seen, and has to decide about."""
    stop_on = (run.spec.recovery or {}).get("stop_on") or ()
    return _unsettled((event for event in run.events if event["seq"] > cursor.seq), stop_on)


def needs_decision(run: Run, cursor: Cursor) -> bool:
    """Return whether its reader has something new to decide about ``run``."""
    return cursor.state != run.state if run.ended else bool(find_decisions(run, cursor))


def _unsettled(events: Iterable[Event], stop_on: Iterable[str]) -> set[Noteworthy]:
    pending: set[Noteworthy] = set()
    for event in events:
        kind = event["kind"]
        if kind == "retrying" or kind in CLEARING:
            pending.difference_update(_SETTLED_BY_AN_ATTEMPT)
        elif kind == "first_step":
            pending.discard("first_step_timeout")
        elif kind in _DECISIONS and not _is_stopped_by_policy(event, stop_on):
            pending.add(kind)
    return pending


def _is_stopped_by_policy(event: Event, stop_on: Iterable[str]) -> bool:
    cause = _STOPPED_ON.get(event["kind"])
    if event["kind"] == "error_seen":
        cause = (event.get("failure") or {}).get("kind")
    elif event["kind"] == "gpu_deviation":
        cause = event.get("what")
    return cause is not None and cause in stop_on
