"""How far runs are, in a few words."""

from dataclasses import replace
from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, RunState, posix
from mcp_server.views.progress_text import describe_progress

STARTED_AT = "2026-11-22T10:00:00.000Z"
NOW_S = posix(STARTED_AT) + 750
TRAINING = {"step": 812, "total_steps": 5000, "metrics": {"lr": 0.1, "loss": 1.9312}, "eta_s": 7200.0}


def run(state: RunState = "running", progress: dict[str, Any] | None = None, **facts: Any) -> Run:
    return replace(Run(RunSpec(run_id="cfm-7kqz"), state, started_at=STARTED_AT, progress=progress or {}), **facts)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (run(progress=TRAINING), "step 812/5000, loss 1.93, 2 h left"),
        (run(progress={"step": 7}), "step 7"),
        (run(progress={"step": 7, "metrics": {"acc": "nan"}}), "step 7, acc nan"),
        (run(), "running for 12 min"),
        (run("stalled", TRAINING), "stalled, step 812/5000, loss 1.93"),
        (run("queued", started_at=None, queue_position=3), "queued, place 3"),
        (run("starting", started_at=None), "starting"),
        (run("failed", TRAINING), "failed, step 812/5000, loss 1.93"),
        (run("finished"), "finished"),
    ],
)
def test_one_run_says_step_metric_and_what_is_left(one: Run, text: str) -> None:
    assert describe_progress([one], NOW_S) == text


def test_several_runs_are_counts_by_state_the_live_ones_first() -> None:
    runs = [run("finished"), run("failed"), run(progress=TRAINING), run(progress={**TRAINING, "eta_s": 90.0})]
    assert describe_progress([*runs, run("finished")], NOW_S) == "2 running, 2 finished, 1 failed, 2 h left"


def test_nothing_is_said_to_be_left_where_one_run_does_not_know() -> None:
    assert describe_progress([run(progress=TRAINING), run()], NOW_S) == "2 running"
    assert describe_progress([run(progress=TRAINING), run("queued")], NOW_S) == "1 queued, 1 running"


def test_a_long_metric_does_not_make_a_long_text() -> None:
    assert len(describe_progress([run(progress={"step": 1, "metrics": {"m" * 400: 1.0}})], NOW_S)) <= 100
