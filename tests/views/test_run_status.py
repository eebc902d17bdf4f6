"""The status of a run: short, rounded, and without absent fields."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.answer import Answer
from mcp_server.record.state import NEVER_BEGAN, UNKNOWN_END, Evidence, Liveness, LivenessReport, Run, fold
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views import run_status
from mcp_server.views.run_status import Event, Leftover, describe, describe_left_behind, status_of
from tests.record.test_state import BEGAN, BEGAN_S, ENDED_AT, SPEC, STARTED, ended, event, record, run

# --- which fields an answer has


def test_a_new_run_has_no_unknown_fields() -> None:
    status = describe(Run(SPEC, "starting"), now_s=BEGAN_S).model_dump()
    assert status == {"run_id": "cfm-7kqz", "name": "cfm", "state": "starting"}


def test_a_heartbeat_omits_what_its_reader_knows() -> None:
    status = describe(run(), now_s=BEGAN_S + 41.26, since=1, last_output_at_s=BEGAN_S + 40, tail=["step 7"])
    brief = describe(run(), now_s=BEGAN_S + 41.26, since=1, last_output_at_s=BEGAN_S + 40, tail=["step 7"], brief=True)
    heartbeat = {"run_id": "cfm-7kqz", "state": "running", "elapsed_s": 41.3, "last_output_s": 1.3, "tail": ["step 7"]}
    assert brief.model_dump() == heartbeat
    assert status.model_dump() == heartbeat | {"name": "cfm", "attempt": 1, "started_at": BEGAN}


def test_an_end_has_its_exit_code_and_its_event() -> None:
    folded = fold(Evidence(SPEC, (STARTED, ended("failed")), record("failed", 3)))
    assert describe(folded, now_s=BEGAN_S + 1e6, since=1, last_output_at_s=BEGAN_S).model_dump() == {
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


def test_exit_code_0_is_not_omitted() -> None:
    folded = fold(Evidence(SPEC, (STARTED, ended("finished")), record("finished")))
    assert describe(folded, now_s=BEGAN_S).model_dump()["exit_code"] == 0


def test_absent_fields_are_omitted_in_json_too() -> None:
    assert "null" not in describe(run(), now_s=BEGAN_S).model_dump_json()


def test_a_lost_run_has_its_reason_and_its_leftovers() -> None:
    folded = run("lost", reason="The machine was rebooted while it ran.")
    left = [Leftover(pid=812, command="python train.py")]
    status = describe(folded, now_s=BEGAN_S, last_output_at_s=BEGAN_S, leftovers=left).model_dump()
    assert status["reason"] == "The machine was rebooted while it ran."
    assert status["leftovers"] == [{"pid": 812, "command": "python train.py"}]
    assert "last_output_s" not in status
    gone = run("lost", reason=UNKNOWN_END)
    text = "Its supervisor is gone and wrote no end: a process of it still runs, and nobody watches."
    assert describe(gone, now_s=BEGAN_S, leftovers=left).reason == text
    seen = fold(Evidence(SPEC, (STARTED,), guard_exit={"exit_code": 3, "signal": None, "ended_at": ENDED_AT}))
    text = "Its supervisor is gone and wrote no end: the command went on without a terminal, and ended with exit code 3"
    assert (seen.state, seen.exit_code) == ("lost", None)
    assert describe(seen, now_s=BEGAN_S).reason == f"{text} at {ENDED_AT}."
    still = f"{text} at {ENDED_AT}. Yet a process of it still runs."
    assert describe(seen, now_s=BEGAN_S, leftovers=left).reason == still
    waited = describe(fold(Evidence(SPEC, (STARTED,), guard_exit=NEVER_BEGAN)), now_s=BEGAN_S).reason or ""
    assert waited.endswith("it died before it let the command begin, and nothing of it ran.")


def test_a_lost_run_has_its_last_known_step_with_its_time_and_nothing_as_if_it_were_current() -> None:
    progress = {
        "at": "2026-11-22T19:40:01.123Z",
        "step": 120,
        "total_steps": 900,
        "eta_s": 7.0,
        "metrics": {"loss": 2.5},
    }
    lost = run("lost", reason="Its supervisor is gone.", progress=progress)
    for status in (describe(lost, now_s=BEGAN_S, listed=listed).model_dump() for listed in (False, True)):
        assert status["reason"] == "Its supervisor is gone. Its last known step: 120, noted 2026-11-22T19:40:01Z."
        assert status.keys().isdisjoint({"step", "total_steps", "step_s", "eta_s", "metrics"})
    assert "unknown time" in str(run("lost", progress={"step": 1}).last_known_step)


def test_empty_lists_are_absent() -> None:
    status = describe(run(), now_s=BEGAN_S, since=1, tail=[], leftovers=[])
    assert (status.events, status.tail, status.leftovers) == (None, None, None)


def test_only_events_after_since_are_listed_and_the_start_never() -> None:
    folded = run(events=(STARTED, *(event(seq, "screen_lost") for seq in range(2, 5))))
    seqs = {since: [e.seq for e in describe(folded, now_s=BEGAN_S, since=since).events or []] for since in range(6)}
    assert seqs == {0: [2, 3, 4], 1: [2, 3, 4], 2: [3, 4], 3: [4], 4: [], 5: []}


def test_of_many_events_the_newest_are_listed() -> None:
    folded = run(events=tuple(event(seq, "screen_lost") for seq in range(1, 41)))
    assert [e.seq for e in describe(folded, now_s=BEGAN_S).events or []] == [35, 36, 37, 38, 39, 40]
    failed = replace(folded, failure={"kind": "other", "line": "?"})
    assert [e.seq for e in describe(failed, now_s=BEGAN_S).events or []] == [39, 40]


@pytest.mark.parametrize(
    ("elapsed_s", "rounded_s"),
    [(0.0, 0.0), (0.04, 0.0), (1.26, 1.3), (59.94, 59.9), (60.4, 60.0), (3725.5, 3726.0), (86400.2, 86400.0)],
)
def test_seconds_are_rounded_to_what_a_reader_needs(elapsed_s: float, rounded_s: float) -> None:
    assert describe(run(), now_s=BEGAN_S + elapsed_s).elapsed_s == rounded_s


def test_output_of_a_clock_that_is_ahead_was_just_now() -> None:
    assert describe(run(), now_s=BEGAN_S, last_output_at_s=BEGAN_S + 9).last_output_s == 0.0


def test_an_event_is_listed_without_its_facts() -> None:
    status = Event.model_validate(ended("failed", exit_code=3, survivors=[{"pid": 1}]))
    assert status.model_dump() == {"seq": 2, "at": ENDED_AT, "kind": "ended", "text": "ended."}


def test_of_a_long_event_the_error_is_cut_and_never_what_to_do() -> None:
    then = f"Trying again in 1 s with {'num_envs 8192 -> 4096, ' * 6}(retry 1, at most 3)."
    long = event(2, "retrying", text=f"Attempt 1 failed: {'x' * 400}. {then}", then=then)
    (shown,) = describe(run(events=(STARTED, long)), now_s=BEGAN_S).events or []
    assert shown.text.endswith(f" {then}")
    assert shown.text.startswith("Attempt 1 failed: ")
    assert len(shown.text) < len(then) + 110


class Outer(Answer):
    inner: Leftover | None = None
    many: list[Leftover] | None = None
    count: int = 0
    flag: bool = False
    text: str = ""


def test_an_answer_omits_none_and_nothing_else() -> None:
    assert Outer().model_dump() == {"count": 0, "flag": False, "text": ""}
    assert Outer(many=[], inner=Leftover(pid=1, command="")).model_dump() == {
        "inner": {"pid": 1, "command": ""},
        "many": [],
        "count": 0,
        "flag": False,
        "text": "",
    }


def test_an_answer_reads_back_as_it_was_written() -> None:
    status = describe(run(), now_s=BEGAN_S + 3)
    assert type(status).model_validate_json(status.model_dump_json()) == status


# --- progress and failures


def test_progress_has_four_digits_and_the_remaining_time_only_while_the_run_lives() -> None:
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
    assert describe(run("retrying", progress=progress), now_s=BEGAN_S).eta_s is None, "it may begin at step 0"
    assert describe(run(progress=progress), now_s=BEGAN_S, listed=True).metrics is None


def test_the_remaining_time_goes_on_between_steps_and_is_unknown_where_they_stop_coming() -> None:
    hung = run(progress={"step": 38, "total_steps": 100, "step_s": 0.25, "eta_s": 15.6, "at": BEGAN})
    lefts = [describe(hung, now_s=BEGAN_S + after_s).eta_s for after_s in (0, 5, 20, 21, 117)]
    assert lefts == [15.6, 10.6, 15.6, None, None], "without a step all that were left are left"
    last = run(progress={"step": 60, "total_steps": 60, "step_s": 0.03, "eta_s": 0, "at": BEGAN})
    assert describe(last, now_s=BEGAN_S).eta_s is None, "its first round of several may have ended"
    slow = run(progress={"step": 3, "total_steps": 90, "step_s": 0.25, "eta_s": 22_000, "at": BEGAN})
    assert [slow.paused_s(BEGAN_S + after_s) for after_s in (30, 31)] == [None, 31]
    assert run("stalled", progress=hung.progress).left_s(BEGAN_S) is None


FAILURE = {
    "kind": "oom_gpu",
    "line": "RuntimeError: CUDA out of memory.",
    "line_number": 812,
    "retryable": True,
    "action": "retry",
    "advice": "Halve the batch.",
    "context": ["  File train.py, line 3", "RuntimeError: CUDA out of memory."],
}


def test_a_failure_has_the_lines_around_it_but_none_twice() -> None:
    status = describe(run("failed", failure=FAILURE), now_s=BEGAN_S).model_dump()["failure"]
    assert status == {**FAILURE, "context": ["  File train.py, line 3"]}


def test_in_a_list_a_failure_is_its_kind_and_its_line() -> None:
    status = describe(run("failed", failure=FAILURE), now_s=BEGAN_S, listed=True).model_dump()["failure"]
    assert status == {"kind": "oom_gpu", "line": "RuntimeError: CUDA out of memory."}


def test_long_lines_of_a_failure_keep_their_beginning_and_their_end() -> None:
    failure = {**FAILURE, "line": "ValueError: " + "x" * 4000 + " at the end", "context": ["y" * 4000] * 40}
    status = describe(run("failed", failure=failure), now_s=BEGAN_S).failure
    assert status is not None
    assert status.line is not None
    assert status.line.startswith("ValueError: xxx")
    assert status.line.endswith("at the end")
    assert len(status.model_dump_json()) < 1000


def test_nonsense_in_a_failure_is_answered_as_far_as_possible() -> None:
    assert describe(run("failed", failure={"kind": 7}), now_s=BEGAN_S).failure is not None


# --- parameters

HALVED = run(
    "finished",
    spec=replace(SPEC, params={"num_envs": 8192, "note": "x" * 200}),
    events=(
        STARTED,
        event(2, "retrying", attempt=1, params={"num_envs": 4096, "note": "x" * 200}),
        event(3, "started", attempt=2),
    ),
    attempt=2,
)


def test_the_parameters_are_those_of_the_attempt_that_ran() -> None:
    for listed, chars in ((False, 60), (True, 30)):
        status = describe(HALVED, now_s=BEGAN_S, listed=listed)
        assert status.params is not None
        assert (status.params["num_envs"], len(status.params["note"])) == (4096, chars)
        assert status.params_changed == ["num_envs 8192 → 4096 after attempt 1"]


def test_a_heartbeat_names_changed_parameters_once() -> None:
    first, later = (describe(HALVED, now_s=BEGAN_S, since=since, brief=True) for since in (2, 3))
    assert (first.params, first.params_changed) == (None, ["num_envs 8192 → 4096 after attempt 1"])
    assert (later.params, later.params_changed) == (None, None)


def test_of_many_parameters_those_that_changed_are_shown_first() -> None:
    params = {f"p{n}": n for n in range(30)}
    changed = event(2, "retrying", attempt=1, params={**params, "p29": 0})
    many = replace(HALVED, spec=replace(SPEC, params=params), events=(STARTED, changed, event(3, "started", attempt=2)))
    shown = describe(many, now_s=BEGAN_S, listed=True).params
    assert shown == {"p29": 0, "p0": 0, "p1": 1, "p2": 2, "p3": 3, "p4": 4, "…": "24 more"}


def test_bars_in_the_lines_around_a_failure_are_folded() -> None:
    bar = " 97%|█████████▋| 4001/4100 [30:59<30:42,  1.21it/s]"
    context = [
        bar * 2,
        f"{bar}torch.OutOfMemoryError: CUDA out of memory",
        "20/40 ━━━━━━━━━━╸━━━━━━━━━ 1s 9ms/step - loss: 0.3",
    ]
    facts = {"kind": "oom_gpu", "line": f"{bar}torch.OutOfMemoryError: CUDA out of memory", "context": context}
    failure = describe(Run(SPEC, "failed", failure=facts), now_s=BEGAN_S).failure
    assert failure is not None
    assert failure.line == " 97%|…| 4001/4100 [30:59<30:42,  1.21it/s]torch.OutOfMemoryError: CUDA out of memory"
    assert failure.context is not None
    assert not set("█▋━╸") & set("".join(failure.context))


def test_a_host_that_answers_again_leaves_nothing_of_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = LivenessReport(Liveness.UNREACHABLE, "m2 cannot be reached.", {"host": "m2", "since": BEGAN, "why": "x"})
    home = StateHome(tmp_path)
    seen = fold(Evidence(replace(SPEC, mirror=str(home.hosts / "m2")), (STARTED,), supervisor=away))
    directory = home.hosts / "m2" / "runs" / SPEC.run_id
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text("{}")

    class Answers:
        def liveness(self, *_: object) -> LivenessReport:
            return LivenessReport(Liveness.ALIVE)

    monkeypatch.setattr(run_status, "backend_of", lambda _: Answers())
    status = status_of(RunStore(home), seen, listed=True)
    assert (status.state, status.unreachable, status.reason) == ("running", None, None)


def test_what_a_later_attempt_left_behind_is_not_timed_by_the_whole_run_and_helpers_are_named() -> None:
    left = [{"pid": 5, "command": "tensorboard"}]
    spec = replace(SPEC, command="tensorboard --logdir o &\npython train.py")
    end = event(3, "ended", state="finished", leftovers=left, elapsed_s=14.74)
    folded = replace(Run(spec, "finished"), events=(end,), attempt=2)
    note = describe_left_behind(folded) or ""
    assert "The command ended in attempt 2 and left 1 process behind" in note
    assert "The command itself starts tensorboard in the background: such a helper ends with the run." in note
    assert describe_left_behind(folded, short=True) == "left 1 process behind, stopped (starts helpers)"


def test_the_time_of_a_row_is_that_of_its_step() -> None:
    one, now_s = run(events=(STARTED,), progress={"step": 40}), BEGAN_S + 60
    assert describe(one, now_s=now_s).elapsed_s == 60.0
    assert describe(one, now_s=now_s, lag_s=4.0).elapsed_s == 56.0


def test_a_field_is_left_out_in_cases_that_exist_and_taken_from_places_that_have_it() -> None:
    source = inspect.getsource(run_status._list_cases)
    cases = {case for shown in run_status.SHOWN.values() for case in shown.without.split(", ") if case}
    assert [case for case in cases if f'"{case}":' not in source] == []
    assert {shown.source for shown in run_status.SHOWN.values()} == {"", "run", "spec", "progress"}
    assert {shown.row for shown in run_status.SHOWN.values()} == {"", "all", "live"}
    ranks = sorted(shown.heartbeat for shown in run_status.SHOWN.values() if shown.heartbeat > 1)
    assert ranks == list(range(2, 2 + len(ranks))), "two fields of one rank have no order"
