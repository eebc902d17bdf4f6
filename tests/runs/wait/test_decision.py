"""What an agent has to decide, by value: not what a policy deals with, and not what has settled itself."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, RunState
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState, Sweep
from mcp_server.recovery.policy import normalize_policy
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.waiting import find_decisions, needs_decision

DIVERGED = {"failure": {"kind": "divergence", "line": "loss nan"}}
CRASHED = {"failure": {"kind": "python_error", "line": "KeyError: 'lr'"}}


def run(*kinds: str | tuple[str, dict[str, Any]], recovery: Any = None, state: RunState = "running") -> Run:
    events = []
    for seq, kind in enumerate(kinds, 1):
        name, facts = (kind, {}) if isinstance(kind, str) else kind
        events.append(RecordEvent(seq=seq, kind=name, at="", **facts))  # type: ignore[typeddict-item]
    policy = None if recovery is None else normalize_policy(recovery)
    return Run(RunSpec(run_id="cfm-7kqz", recovery=policy), state, tuple(events))


@pytest.mark.parametrize("kind", ["stalled", "error_seen", "first_step_timeout", "gpu_deviation", "judging_lost"])
def test_trouble_that_nobody_deals_with_is_a_decision(kind: str) -> None:
    assert find_decisions(run("started", kind), Cursor()) == {kind}
    assert find_decisions(run("started", kind), Cursor(seq=2)) == set(), "it was answered before"


def test_a_retry_of_one_cell_settles_nothing_of_another_one() -> None:
    of_c0, of_c1 = {"cell": "c0"}, {"cell": "c1"}
    both = [("stalled", of_c0), ("error_seen", of_c1), ("retrying", of_c0)]
    assert find_decisions(run("conducting", *both), Cursor()) == {"error_seen"}
    assert find_decisions(run("conducting", *both, ("retrying", of_c1)), Cursor()) == set()


def failed(cell: str, line: str, kind: str = "oom_gpu") -> tuple[str, dict[str, Any]]:
    return "cell_failed", {"cell": cell, "failure": {"kind": kind, "line": line}, "state": "failed"}


def test_a_cell_that_failed_as_two_before_it_is_none_and_another_cause_is_one() -> None:
    alike = [failed(f"c{n}", f"CUDA out of memory. Tried to allocate {n}.50 GiB") for n in range(4)]
    assert find_decisions(run("conducting", *alike), Cursor(seq=2)) == {"cell_failed"}
    assert find_decisions(run("conducting", *alike), Cursor(seq=3)) == set()
    other = failed("c4", "KeyError: 'lr'", "python_error")
    assert find_decisions(run("conducting", *alike, other), Cursor(seq=3)) == {"cell_failed"}


@pytest.mark.parametrize("kind", ["queued", "started", "first_step", "retrying", "resumed", "screen_lost", "stopping"])
def test_what_goes_its_way_is_none(kind: str) -> None:
    assert find_decisions(run("started", kind), Cursor()) == set()


@pytest.mark.parametrize(
    ("event", "policy"),
    [
        ("stalled", {"on_stall": "stop", "stall": "retry"}),
        ("first_step_timeout", {"on_first_step_timeout": "stop"}),
        (("error_seen", DIVERGED), {"on_divergence": "stop"}),
        (("gpu_deviation", {"what": "imbalance"}), {"imbalance": "retry"}),
        ("stalled", "default"),
        (("error_seen", DIVERGED), "default"),
    ],
)
def test_what_the_policy_stops_is_none_and_without_the_policy_it_is_one(event: Any, policy: Any) -> None:
    assert find_decisions(run("started", event, recovery=policy), Cursor()) == set()
    assert len(find_decisions(run("started", event, recovery="none"), Cursor())) == 1


def test_an_error_that_the_policy_does_not_watch_is_a_decision() -> None:
    assert find_decisions(run("started", ("error_seen", CRASHED), recovery="default"), Cursor()) == {"error_seen"}


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (("stalled", "resumed"), set()),
        (("error_seen", "retrying", "started"), set()),
        (("stalled", "resumed", "stalled"), {"stalled"}),
        (("first_step_timeout", "first_step"), set()),
        (("stalled", "first_step"), {"stalled"}),
        (("gpu_deviation", "retrying", "started"), {"gpu_deviation"}),
        (("judging_lost", "resumed"), {"judging_lost"}),
    ],
)
def test_what_settled_itself_is_none_any_more(kinds: tuple[str, ...], left: set[str]) -> None:
    assert find_decisions(run("started", *kinds), Cursor()) == left


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "timed_out", "lost"])
def test_an_end_is_a_decision_once(state: RunState) -> None:
    ended = run("started", "ended", state=state)
    assert needs_decision(ended, Cursor(2, "running"))
    assert needs_decision(ended, Cursor())
    assert not needs_decision(ended, Cursor(2, state))
    assert needs_decision(run("started", state="lost"), Cursor(1, "running")), "an end without an event"


def open_sweep(*kinds: str, state: str = "finished") -> Sweep:
    spec = SweepSpec("s", "s", cells=(Cell("t0.0", "1"),), metric="loss", goal="min", open={"budget": 9})
    events = tuple(RecordEvent(seq=seq, kind=kind, at="") for seq, kind in enumerate(kinds, 1))  # type: ignore[typeddict-item]
    return Sweep(spec, "running", (CellState(spec.cells[0], 1, state=state),), events)


def test_a_proposal_settles_the_wish_for_one() -> None:
    assert find_decisions(open_sweep("conducting", "wants_proposals", state="live"), Cursor()) == {"wants_proposals"}
    settled = open_sweep("conducting", "wants_proposals", "proposed", state="live")
    assert find_decisions(settled, Cursor()) == set()


def test_an_open_sweep_in_which_nothing_runs_or_waits_says_so_to_each_wait() -> None:
    idle = open_sweep("conducting", "verdict", "wants_proposals")
    assert find_decisions(idle, Cursor(seq=3)) == {"wants_proposals"}, "no wait brings anything"
    live = open_sweep("conducting", "verdict", "wants_proposals", state="live")
    assert find_decisions(live, Cursor(seq=3)) == set(), "it was answered before"
