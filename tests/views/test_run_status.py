"""What an agent is told of a run: short, rounded, and without what is absent."""

from dataclasses import replace

import pytest

from mcp_server.answer import Answer
from mcp_server.record.state import Evidence, Run, fold
from mcp_server.views.run_status import Event, Leftover, describe
from tests.record.test_state import BEGAN, BEGAN_S, ENDED_AT, SPEC, STARTED, ended, event, record, run

# --- what an agent is told


def test_a_new_run_is_told_without_what_is_not_known() -> None:
    told = describe(Run(SPEC, "starting"), now_s=BEGAN_S).model_dump()
    assert told == {"run_id": "cfm-7kqz", "name": "cfm", "state": "starting"}


def test_a_heartbeat_leaves_out_what_its_reader_knows() -> None:
    told = describe(run(), now_s=BEGAN_S + 41.26, since=1, last_output_at_s=BEGAN_S + 40, tail=["step 7"])
    brief = describe(run(), now_s=BEGAN_S + 41.26, since=1, last_output_at_s=BEGAN_S + 40, tail=["step 7"], brief=True)
    heartbeat = {
        "run_id": "cfm-7kqz",
        "state": "running",
        "elapsed_s": 41.3,
        "last_output_s": 1.3,
        "tail": ["step 7"],
    }
    assert brief.model_dump() == heartbeat
    assert told.model_dump() == heartbeat | {"name": "cfm", "attempt": 1, "started_at": BEGAN}


def test_an_end_is_told_with_its_code_and_its_event() -> None:
    found = fold(Evidence(SPEC, (STARTED, ended("failed")), record("failed", 3)))
    assert describe(found, now_s=BEGAN_S + 1e6, since=1, last_output_at_s=BEGAN_S).model_dump() == {
        "run_id": "cfm-7kqz",
        "name": "cfm",
        "state": "failed",
        "attempt": 1,
        "exit_code": 3,
        "started_at": BEGAN,
        "ended_at": ENDED_AT,
        "elapsed_s": 41.0,
        "events": [{"seq": 2, "at": ENDED_AT, "kind": "ended", "text": "ended."}],
    }


def test_exit_code_0_is_told() -> None:
    found = fold(Evidence(SPEC, (STARTED, ended("finished")), record("finished")))
    assert describe(found, now_s=BEGAN_S).model_dump()["exit_code"] == 0


def test_the_absent_are_left_out_of_json_too() -> None:
    assert "null" not in describe(run(), now_s=BEGAN_S).model_dump_json()


def test_a_lost_run_is_told_with_its_reason_and_its_leftovers() -> None:
    found = run("lost", reason="The machine was rebooted while it ran.")
    left = [Leftover(pid=812, command="python train.py")]
    told = describe(found, now_s=BEGAN_S, last_output_at_s=BEGAN_S, leftovers=left).model_dump()
    assert told["reason"] == "The machine was rebooted while it ran."
    assert told["leftovers"] == [{"pid": 812, "command": "python train.py"}]
    assert "last_output_s" not in told


def test_empty_lists_are_absent() -> None:
    told = describe(run(), now_s=BEGAN_S, since=1, tail=[], leftovers=[])
    assert (told.events, told.tail, told.leftovers) == (None, None, None)


def test_only_events_after_since_are_told_and_the_start_is_in_the_state_already() -> None:
    found = run(events=(STARTED, *(event(seq, "screen_lost") for seq in range(2, 5))))
    seqs = {since: [e.seq for e in describe(found, now_s=BEGAN_S, since=since).events or []] for since in range(6)}
    assert seqs == {0: [2, 3, 4], 1: [2, 3, 4], 2: [3, 4], 3: [4], 4: [], 5: []}


def test_of_many_events_the_newest_are_told() -> None:
    found = run(events=tuple(event(seq, "screen_lost") for seq in range(1, 41)))
    assert [e.seq for e in describe(found, now_s=BEGAN_S).events or []] == [35, 36, 37, 38, 39, 40]
    failed = replace(found, failure={"kind": "other", "line": "?"})
    assert [e.seq for e in describe(failed, now_s=BEGAN_S).events or []] == [39, 40]


@pytest.mark.parametrize(
    ("elapsed_s", "told_s"),
    [(0.0, 0.0), (0.04, 0.0), (1.26, 1.3), (59.94, 59.9), (60.4, 60.0), (3725.5, 3726.0), (86400.2, 86400.0)],
)
def test_seconds_are_rounded_to_what_a_reader_needs(elapsed_s: float, told_s: float) -> None:
    assert describe(run(), now_s=BEGAN_S + elapsed_s).elapsed_s == told_s


def test_output_of_a_clock_that_is_ahead_was_just_now() -> None:
    assert describe(run(), now_s=BEGAN_S, last_output_at_s=BEGAN_S + 9).last_output_s == 0.0


def test_events_are_told_without_their_facts() -> None:
    told = Event.model_validate(ended("failed", exit_code=3, survivors=[{"pid": 1}]))
    assert told.model_dump() == {"seq": 2, "at": ENDED_AT, "kind": "ended", "text": "ended."}


class Outer(Answer):
    inner: Leftover | None = None
    many: list[Leftover] | None = None
    count: int = 0
    flag: bool = False
    text: str = ""


def test_an_answer_leaves_out_none_and_nothing_else() -> None:
    assert Outer().model_dump() == {"count": 0, "flag": False, "text": ""}
    assert Outer(many=[], inner=Leftover(pid=1, command="")).model_dump() == {
        "inner": {"pid": 1, "command": ""},
        "many": [],
        "count": 0,
        "flag": False,
        "text": "",
    }


def test_an_answer_reads_back_as_it_was_written() -> None:
    told = describe(run(), now_s=BEGAN_S + 3)
    assert type(told).model_validate_json(told.model_dump_json()) == told


# --- progress and failures


def test_progress_is_told_in_four_figures_and_the_rest_of_the_time_only_while_it_runs() -> None:
    progress = {
        "step": 340,
        "total_steps": 1000,
        "step_s": 0.123456,
        "eta_s": 81.48,
        "metrics": {"loss": 0.04567891, "reward": "nan"},
    }
    live = describe(run(progress=progress), now_s=BEGAN_S)
    assert (live.step, live.total_steps, live.step_s, live.eta_s) == (340, 1000, 0.1235, 81.0)
    assert live.metrics == {"loss": 0.04568, "reward": "nan"}
    assert describe(run("finished", progress=progress), now_s=BEGAN_S).eta_s is None
    assert describe(run(progress=progress), now_s=BEGAN_S, listed=True).metrics is None


FAILURE = {
    "kind": "oom_gpu",
    "line": "RuntimeError: CUDA out of memory.",
    "line_number": 812,
    "retryable": True,
    "action": "retry",
    "advice": "Halve the batch.",
    "context": ["  File train.py, line 3", "RuntimeError: CUDA out of memory."],
}


def test_a_failure_is_told_with_the_lines_around_it_but_not_twice() -> None:
    told = describe(run("failed", failure=FAILURE), now_s=BEGAN_S).model_dump()["failure"]
    assert told == {**FAILURE, "context": ["  File train.py, line 3"]}


def test_in_a_list_a_failure_is_its_kind_and_its_line() -> None:
    told = describe(run("failed", failure=FAILURE), now_s=BEGAN_S, listed=True).model_dump()["failure"]
    assert told == {"kind": "oom_gpu", "line": "RuntimeError: CUDA out of memory."}


def test_long_lines_of_a_failure_keep_their_beginning_and_their_end() -> None:
    failure = {**FAILURE, "line": "ValueError: " + "x" * 4000 + " at the end", "context": ["y" * 4000] * 40}
    told = describe(run("failed", failure=failure), now_s=BEGAN_S).failure
    assert told is not None
    assert told.line.startswith("ValueError: xxx")
    assert told.line.endswith("at the end")
    assert len(told.model_dump_json()) < 1000


def test_nonsense_in_a_failure_is_told_as_far_as_it_goes() -> None:
    assert describe(run("failed", failure={"kind": 7}), now_s=BEGAN_S).failure is not None
