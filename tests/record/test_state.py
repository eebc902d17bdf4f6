"""What is on disk becomes one state, and one short answer; nothing is invented."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast, get_args

import pytest

from mcp_server.record.events import EventKind, LiveState, RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import (
    ENDED,
    STARTING_S,
    Evidence,
    JobEnd,
    Liveness,
    LivenessReport,
    Run,
    RunState,
    fold,
    posix,
)
from tests.support.rows import for_each

SPEC = RunSpec(layout=1, run_id="cfm-7kqz", name="cfm", host="node7")
BEGAN, BEGAN_S = "2026-11-21T15:30:45.500Z", datetime(2026, 11, 21, 15, 30, 45, 500_000, UTC).timestamp()
ENDED_AT = "2026-11-21T15:31:26.500Z"


def event(seq: int, kind: EventKind, at: str = BEGAN, text: str = "", **facts: Any) -> RecordEvent:
    return cast(RecordEvent, {"seq": seq, "at": at, "kind": kind, "text": text or f"{kind}.", **facts})


STARTED = event(1, "started", attempt=1, at_start={"pid": 812, "supervisor_pid": 810})
INTERRUPTED = event(2, "interrupted")


def ended(state: str | None, seq: int = 2, **facts: Any) -> RecordEvent:
    return event(seq, "ended", ENDED_AT, **({} if state is None else {"state": state}), **facts)


def record(state: str | None = None, exit_code: int | None = 0, signal: str | None = None) -> dict[str, Any]:
    found = {"exit_code": exit_code, "signal": signal, "started_at": BEGAN, "ended_at": ENDED_AT}
    return found if state is None else {**found, "state": state}


LAUNCHED = replace(SPEC, created_at="2026-11-21T15:30:45.500Z")  # it ends 41 s later

ASKED = {"by": "alice", "reason": "diverged", "at": BEGAN}
CARRIED_OUT = {**ASKED, "carried_out": {"at": ENDED_AT, "signals_sent": ["SIGINT"]}}
FRESH, OLD = STARTING_S - 0.1, STARTING_S
ALIVE, PENDING = LivenessReport(Liveness.ALIVE), LivenessReport(Liveness.PENDING)
WAITING = LivenessReport(Liveness.PENDING, "Resources", job_id="12")
SITE_LIMIT = {"kind": "timeout", "line": "Slurm: TIMEOUT"}
OUT_OF_TIME = LivenessReport(
    Liveness.DEAD,
    job_id="12",
    end=JobEnd("timed_out", "Slurm's time limit ended it.", "2026-11-20T12:00:00Z", "scheduler", SITE_LIMIT),
)
CANCELLED = LivenessReport(
    Liveness.DEAD, job_id="12", end=JobEnd("killed", "Slurm: CANCELLED of job 12 by user 1000.", ENDED_AT, "person")
)
FORGOTTEN = LivenessReport(Liveness.DEAD, job_id="12", end=JobEnd("lost", "Slurm knows nothing of job 12 any more."))
REBOOTED = LivenessReport(Liveness.DEAD, "The machine was rebooted while it ran.")
ELSEWHERE = LivenessReport(Liveness.UNKNOWN, "Supervised on node7: only that host can say whether it still lives.")
UNREACHABLE = LivenessReport(Liveness.UNREACHABLE, "node7 has not answered for 40 s: this is the last known state.")

# What is on disk, and the state that it proves.
TABLE: dict[str, tuple[Evidence, RunState]] = {
    # An end on disk is believed first.
    "ended: finished": (Evidence(SPEC, (STARTED, ended("finished")), record("finished")), "finished"),
    "ended: failed": (Evidence(SPEC, (STARTED, ended("failed")), record("failed", 3)), "failed"),
    "ended: killed with exit code 0": (Evidence(SPEC, (STARTED, ended("killed")), record("killed", 0)), "killed"),
    "ended: timed out": (Evidence(SPEC, (STARTED, ended("timed_out")), record("timed_out", 143)), "timed_out"),
    "ended by its own word, or a moment before its supervisor releases the lock": (
        Evidence(SPEC, (STARTED, ended("finished")), record("finished"), supervisor=ALIVE),
        "running",
    ),
    "ended by its own word while it stalls": (
        Evidence(SPEC, (STARTED, event(2, "stalled"), ended("finished", 3)), supervisor=ALIVE),
        "stalled",
    ),
    "ended, and something was told after it": (
        Evidence(SPEC, (STARTED, ended("failed"), event(3, "log_lost")), record("failed", 1)),
        "failed",
    ),
    "ended before the reboot": (
        Evidence(SPEC, (STARTED, ended("failed")), record("failed", 1), supervisor=REBOOTED),
        "failed",
    ),
    "ended on another host": (Evidence(SPEC, (STARTED, ended("finished")), record(), supervisor=ELSEWHERE), "finished"),
    "ended; a request to stop came too late": (
        Evidence(SPEC, (STARTED, ended("finished")), record("finished"), stop=ASKED),
        "finished",
    ),
    "refused": (Evidence(SPEC, (event(1, "refused", state="failed"),)), "failed"),
    "refused: stopped before it began": (Evidence(SPEC, (event(1, "refused", state="killed"),), stop=ASKED), "killed"),
    "an end with a state nobody knows, lock free": (Evidence(SPEC, (STARTED, ended("exploded"))), "lost"),
    # Then the lock.
    "held, nothing told yet": (Evidence(SPEC, supervisor=ALIVE), "starting"),
    "held, nothing told for long": (Evidence(SPEC, supervisor=ALIVE, age_s=900), "starting"),
    "held, started": (Evidence(SPEC, (STARTED,), supervisor=ALIVE, age_s=900), "running"),
    "held, requeued": (Evidence(SPEC, (STARTED, event(2, "requeued")), record("failed"), supervisor=ALIVE), "starting"),
    "held, started after a requeue": (
        Evidence(SPEC, (STARTED, event(2, "requeued"), event(3, "started", attempt=2)), supervisor=ALIVE),
        "running",
    ),
    "held, a stop under way": (
        Evidence(SPEC, (STARTED, event(2, "stopping")), supervisor=ALIVE, stop=ASKED),
        "running",
    ),
    "held, the command ended, what it left is being stopped": (
        Evidence(SPEC, (STARTED,), record("finished"), supervisor=ALIVE),
        "running",
    ),
    "held on another host": (Evidence(SPEC, (STARTED,), supervisor=ALIVE), "running"),
    # Then the exit record of a supervisor that died before it told the end.
    "record alone: finished": (Evidence(SPEC, (STARTED,), record("finished")), "finished"),
    "record alone: killed": (Evidence(SPEC, (STARTED,), record("killed", 0)), "killed"),
    "record alone, after a reboot": (Evidence(SPEC, (STARTED,), record("failed", 3), supervisor=REBOOTED), "failed"),
    "record alone, on another host": (Evidence(SPEC, (STARTED,), record("failed", 3), supervisor=ELSEWHERE), "failed"),
    "record of an attempt whose retry another host may start": (
        Evidence(SPEC, (STARTED, event(2, "retrying")), record("failed", 3), supervisor=ELSEWHERE),
        "retrying",
    ),
    "record of an old layout: code 0": (Evidence(SPEC, (STARTED,), record()), "finished"),
    "record of an old layout: code 3": (Evidence(SPEC, (STARTED,), record(exit_code=3)), "failed"),
    "record of an old layout: a signal": (
        Evidence(SPEC, (STARTED,), record(exit_code=None, signal="SIGKILL")),
        "failed",
    ),
    "record without any field": (Evidence(SPEC, (STARTED,), {}), "failed"),
    "record with a state nobody knows": (Evidence(SPEC, (STARTED,), record("exploded", 3)), "failed"),
    "an old layout's end without a state": (Evidence(SPEC, (STARTED, ended(None)), record()), "finished"),
    # Then what this kernel can tell.
    "elsewhere": (Evidence(SPEC, (STARTED,), supervisor=ELSEWHERE), "running"),
    "elsewhere, nothing told": (Evidence(SPEC, supervisor=ELSEWHERE, age_s=900), "running"),
    "fresh": (Evidence(SPEC, supervisor=PENDING, age_s=FRESH), "starting"),
    "fresh, by a clock that is ahead": (Evidence(SPEC, supervisor=PENDING, age_s=-3), "starting"),
    "fresh, then rebooted": (Evidence(SPEC, age_s=FRESH, supervisor=REBOOTED), "lost"),
    "fresh, but it had started": (Evidence(SPEC, (STARTED,), age_s=FRESH), "lost"),
    "stopped without its supervisor": (Evidence(SPEC, (STARTED,), stop=CARRIED_OUT, age_s=900), "killed"),
    "stopped without its supervisor, then rebooted": (
        Evidence(SPEC, (STARTED,), stop=CARRIED_OUT, supervisor=REBOOTED),
        "killed",
    ),
    "a stop that was only asked for": (Evidence(SPEC, (STARTED,), stop=ASKED, age_s=900), "lost"),
    "rebooted": (Evidence(SPEC, (STARTED,), supervisor=REBOOTED), "lost"),
    "never started": (Evidence(SPEC, age_s=OLD), "lost"),
    "supervisor gone": (Evidence(SPEC, (STARTED, INTERRUPTED), age_s=900), "lost"),
    # Then what a scheduler or another host can add. Neither queue nor silence is an end.
    "queued by a scheduler a moment ago": (Evidence(SPEC, supervisor=WAITING, age_s=FRESH), "queued"),
    "ended by itself before a scheduler said so": (
        Evidence(SPEC, (STARTED, ended("finished")), supervisor=OUT_OF_TIME, age_s=OLD),
        "finished",
    ),
    "queued by a scheduler": (Evidence(SPEC, supervisor=PENDING, age_s=OLD), "queued"),
    "queued by a scheduler for two days": (Evidence(SPEC, supervisor=PENDING, age_s=172_800), "queued"),
    "requeued after an attempt": (
        Evidence(SPEC, (STARTED,), record("failed", 1), supervisor=PENDING, age_s=FRESH),
        "queued",
    ),
    "ended, and still in a scheduler's queue": (
        Evidence(SPEC, (STARTED, ended("failed")), supervisor=PENDING),
        "failed",
    ),
    "dead, says its scheduler": (
        Evidence(SPEC, (STARTED,), supervisor=LivenessReport(Liveness.DEAD, "Slurm: NODE_FAIL."), age_s=900),
        "lost",
    ),
    "unreachable, nothing heard": (Evidence(SPEC, supervisor=UNREACHABLE, age_s=900), "starting"),
    "unreachable while running": (Evidence(SPEC, (STARTED,), supervisor=UNREACHABLE, age_s=900), "running"),
    "unreachable while stalled": (Evidence(SPEC, (STARTED, event(2, "stalled")), supervisor=UNREACHABLE), "stalled"),
    "unreachable while it waits for GPUs": (Evidence(SPEC, (event(1, "queued"),), supervisor=UNREACHABLE), "queued"),
    "unreachable between two attempts": (
        Evidence(SPEC, (STARTED, event(2, "retrying")), record("failed", 1), supervisor=UNREACHABLE),
        "retrying",
    ),
    "unreachable after an attempt's end": (
        Evidence(SPEC, (STARTED,), record("failed", 1), supervisor=UNREACHABLE),
        "running",
    ),
    "unreachable, and ended before": (Evidence(SPEC, (STARTED, ended("failed")), supervisor=UNREACHABLE), "failed"),
    "elsewhere, stalled when it was last heard of": (
        Evidence(SPEC, (STARTED, event(2, "stalled")), supervisor=ELSEWHERE),
        "stalled",
    ),
    "an empty directory of a former layout": (Evidence(RunSpec(), age_s=900), "lost"),
}


@for_each(TABLE)
def test_evidence_proves_a_state(case: str) -> None:
    evidence, state = TABLE[case]
    run = fold(evidence)
    assert (run.state, run.ended, run.events) == (state, state in ENDED, evidence.events)
    silent = evidence.supervisor.liveness in (Liveness.UNKNOWN, Liveness.UNREACHABLE)
    doubted = case.startswith("ended by its own word")
    dead = evidence.supervisor.liveness is Liveness.DEAD
    unjudged = dead and run.abandoned and (evidence.exit or {}).get("state") == state == "failed"
    assert (run.reason is not None) == (state == "lost" or doubted or unjudged or (silent and state not in ENDED))


@for_each(TABLE)
def test_only_a_known_end_has_an_exit_code_a_signal_and_a_time(case: str) -> None:
    evidence, state = TABLE[case]
    run = fold(evidence)
    if state not in ENDED or state == "lost":
        assert (run.exit_code, run.signal, run.ended_at) == (None, None, None)
    elif evidence.exit is not None:
        assert run.exit_code == evidence.exit.get("exit_code")
        assert run.signal == evidence.exit.get("signal")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rebooted", "The machine was rebooted while it ran."),
        ("never started", "Its launch was cut off: the command never started."),
        (
            "supervisor gone",
            "Its supervisor is gone and wrote no end: whether the command still runs, or how it ended, is unknown.",
        ),
        ("dead, says its scheduler", "Slurm: NODE_FAIL."),
        ("unreachable while running", "node7 has not answered for 40 s: this is the last known state."),
        ("queued by a scheduler", None),
        ("elsewhere", "Supervised on node7: only that host can say whether it still lives."),
        ("ended: failed", None),
        ("held, started", None),
        ("stopped without its supervisor", None),
    ],
)
def test_a_reason_says_what_no_event_does(name: str, reason: str | None) -> None:
    assert fold(TABLE[name][0]).reason == reason


def test_a_job_that_its_scheduler_ends_before_its_retry_has_the_schedulers_end() -> None:
    def find_end(supervisor: LivenessReport) -> tuple[RunState, str | None, int | None, str | None]:
        run = fold(Evidence(SPEC, (STARTED, event(2, "retrying")), record("failed", 3), supervisor=supervisor))
        return run.state, run.reason, run.exit_code, run.stopped_by

    did_not_start = "Its supervisor is gone: the retry that was due did not start."
    assert find_end(CANCELLED) == ("killed", "Slurm: CANCELLED of job 12 by user 1000.", None, "person")
    assert find_end(FORGOTTEN) == ("failed", did_not_start, 3, None)
    assert find_end(LivenessReport(Liveness.DEAD)) == ("failed", did_not_start, 3, None)


@pytest.mark.parametrize(
    ("state", "liveness", "events", "reason"),
    [
        ("failed", Liveness.DEAD, (STARTED,), "Its supervisor died before it judged the end"),
        ("failed", Liveness.UNKNOWN, (STARTED,), None),
        ("failed", Liveness.DEAD, (), None),  # former layouts wrote no events
        ("finished", Liveness.DEAD, (STARTED,), None),
        ("timed_out", Liveness.DEAD, (STARTED,), None),
    ],
)
def test_a_failure_that_nobody_judged_says_so(
    state: Any, liveness: Liveness, events: tuple[RecordEvent, ...], reason: str | None
) -> None:
    run = fold(Evidence(SPEC, events, record(state, 137), supervisor=LivenessReport(liveness)))
    assert (run.state, run.reason and run.reason.partition(":")[0]) == (state, reason)


@pytest.mark.parametrize("liveness", [Liveness.UNKNOWN, Liveness.UNREACHABLE])
def test_a_silent_host_is_explained_also_where_its_backend_gives_no_reason(liveness: Liveness) -> None:
    reason = fold(Evidence(SPEC, (STARTED,), supervisor=LivenessReport(liveness))).reason
    assert reason is not None
    assert reason.endswith("this is the last known state.")


@pytest.mark.parametrize("liveness", [Liveness.PENDING, Liveness.UNREACHABLE])
@pytest.mark.parametrize("events", [(), (STARTED,), (STARTED, INTERRUPTED), (event(1, "queued"),)])
def test_neither_a_queue_nor_silence_ends_a_run(liveness: Liveness, events: tuple[RecordEvent, ...]) -> None:
    for exit_record, stop in ((None, None), (record("failed", 1), None), (None, CARRIED_OUT)):
        found = fold(Evidence(SPEC, events, exit_record, None, stop, LivenessReport(liveness), age_s=900))
        assert not found.ended
        assert not found.abandoned


def test_the_states_are_the_contracts() -> None:
    assert set(get_args(LiveState)) == {"queued", "starting", "running", "stalled", "retrying"}
    assert set(ENDED) == {"finished", "failed", "killed", "timed_out", "lost", "imported"}


def test_the_start_is_told_from_its_event() -> None:
    run = fold(Evidence(SPEC, (STARTED, INTERRUPTED), supervisor=ALIVE))
    assert (run.started_at, run.at_start, run.last_seq) == (BEGAN, {"pid": 812, "supervisor_pid": 810}, 2)


def test_the_start_of_an_old_layout_is_told_from_its_exit_record() -> None:
    run = fold(Evidence(SPEC, (), record("failed", 3)))
    assert (run.started_at, run.ended_at, run.at_start) == (BEGAN, ENDED_AT, {})


def test_an_old_start_without_its_facts_is_still_a_start() -> None:
    run = fold(Evidence(SPEC, (event(1, "started"),), supervisor=ALIVE))
    assert (run.started_at, run.at_start) == (BEGAN, {})


def test_an_end_is_told_from_its_event_where_the_record_has_no_time() -> None:
    assert fold(Evidence(SPEC, (STARTED, ended("finished")), {"exit_code": 0})).ended_at == ENDED_AT
    assert fold(Evidence(SPEC, (STARTED, ended("finished")))).ended_at == ENDED_AT


def test_an_end_is_told_with_its_exit_code_where_the_record_is_missing() -> None:
    # The supervisor says "The exit record could not be written" and tells the same facts in its event.
    told = (STARTED, event(2, "log_lost"), ended("failed", 3, exit_code=137, signal="SIGKILL"))
    run = fold(Evidence(SPEC, told))
    assert (run.state, run.exit_code, run.signal) == ("failed", 137, "SIGKILL")


def test_a_stop_without_a_supervisor_ends_the_run_when_it_was_carried_out() -> None:
    run = fold(Evidence(SPEC, (STARTED,), stop=CARRIED_OUT))
    assert (run.ended_at, run.exit_code) == (ENDED_AT, None)


def test_a_stop_without_a_supervisor_is_the_end_where_a_retry_would_have_followed() -> None:
    recovers = replace(SPEC, recovery={"rules": [{"when": {"kind": "any"}, "do": "retry"}]})
    between = event(2, "retrying", attempt=1, exit_code=3)
    cases: list[tuple[RunSpec, int, dict[str, Any]]] = [
        (SPEC, 3, CARRIED_OUT),
        (recovers, 3, ASKED),
        (recovers, 0, CARRIED_OUT),
        (recovers, 3, CARRIED_OUT),
    ]
    ends = [
        [
            fold(Evidence(spec, events, record("failed" if code else "finished", code), stop=stop))
            for spec, code, stop in cases
        ]
        for events in ((STARTED,), (STARTED, between))
    ]
    assert [[run.state for run in runs] for runs in ends] == [["failed", "failed", "finished", "killed"]] * 2
    assert [runs[-1].exit_code for runs in ends] == [3, 3]


def test_a_lost_job_whose_end_its_cluster_confirmed_to_a_stop_was_stopped() -> None:
    events = (STARTED, ended("lost", far_side="Ray at http://head:8265"))
    lost = fold(Evidence(SPEC, events, stop=ASKED))
    seen_gone = fold(Evidence(SPEC, events, stop=CARRIED_OUT))  # on this host alone
    done = {**ASKED, "carried_out": {"at": ENDED_AT, "far_side_ended": True}}
    confirmed = fold(Evidence(SPEC, events, stop=done))
    assert [run.state for run in (lost, seen_gone, confirmed)] == ["lost", "lost", "killed"]
    assert [run.may_go_on for run in (lost, seen_gone, confirmed)] == [True, True, False]
    assert confirmed.ended_at == ENDED_AT


def test_a_paused_supervisor_that_a_stop_killed_was_stopped() -> None:
    asked = {**ASKED, "killed_paused": {"at": ENDED_AT, "signals_sent": ["SIGKILL"]}}
    frozen = fold(Evidence(SPEC, (STARTED,), stop=asked, supervisor=ALIVE))
    resumed = fold(Evidence(SPEC, (STARTED,), stop=asked))
    assert (frozen.state, frozen.ended_at) == ("running", None)
    assert (resumed.state, resumed.ended_at, resumed.exit_code) == ("killed", None, None)
    assert resumed.reason == "A stop killed it while it was paused: it ended when it was resumed."
    assert resumed.elapsed_s(2e9) is None  # nobody knows when it was resumed
    assert resumed.abandoned  # what is left of it is still looked for


def test_a_run_without_events_has_told_nothing() -> None:
    assert Run(SPEC, "starting").last_seq == 0


def test_a_spec_of_an_unknown_layout_is_read_as_far_as_it_is_known() -> None:
    spec = RunSpec.from_facts({"layout": 99, "command": ["python", "x.py"], "gpus": 8})
    assert (spec.layout, spec.command, spec.time_limit_s, spec.tmux_socket) == (99, ["python", "x.py"], None, "default")
    assert RunSpec.from_facts({}) == RunSpec()


def test_a_spec_reads_back_as_it_was_written() -> None:
    spec = RunSpec(run_id="cfm-7kqz", command="python x.py", env={"A": "é"}, secrets=["HF_TOKEN"], time_limit_s=3600)
    assert RunSpec.from_facts(json.loads(json.dumps(spec.facts()))) == spec


# --- ends that are doubted


def test_a_doubted_end_says_why_and_has_no_exit_code() -> None:
    run = fold(Evidence(LAUNCHED, (STARTED, ended("finished")), record("finished"), supervisor=ALIVE, age_s=60.0))
    assert run.reason is not None
    assert run.reason.startswith("Its record says finished, but its supervisor lives: the command may have written")
    assert (run.ended, run.exit_code, run.ended_at, run.measured_s) == (False, None, None, None)


def test_an_end_of_a_moment_ago_accuses_nobody_of_having_written_it() -> None:
    run = fold(Evidence(LAUNCHED, (STARTED, ended("finished")), record("finished"), supervisor=ALIVE, age_s=41.2))
    assert (run.state, run.exit_code, run.events) == ("running", None, (STARTED,))
    assert run.reason is None


@pytest.mark.parametrize(
    "report",
    [
        LivenessReport(Liveness.UNKNOWN, "Slurm's job 999 is called 'x', not cfm-7kqz: another job, or renamed."),
        LivenessReport(Liveness.UNREACHABLE, "Slurm does not answer.", {"host": "Slurm", "since": BEGAN, "why": "-"}),
        WAITING,
    ],
)
@pytest.mark.parametrize("exit_record", [None, record("finished")])
def test_an_end_of_a_job_of_slurm_is_not_believed_without_the_word_that_its_supervisor_is_gone(
    report: LivenessReport, exit_record: dict[str, Any] | None
) -> None:
    of_slurm = replace(LAUNCHED, backend="slurm")
    run = fold(Evidence(of_slurm, (STARTED, ended("finished")), exit_record, supervisor=report, age_s=60.0))
    assert (run.state, run.exit_code, run.ended) == ("running", None, False)
    assert "the command may have written that line itself" in str(run.reason)


@pytest.mark.parametrize("backend", ["tmux", "slurm"])
def test_an_end_that_a_silent_host_sent_is_believed(backend: str) -> None:
    silent = replace(UNREACHABLE, unreachable={"host": "node7", "since": BEGAN, "why": "-"})
    spec = replace(LAUNCHED, backend=backend)
    assert fold(Evidence(spec, (STARTED, ended("finished")), supervisor=silent, age_s=60.0)).state == "finished"


def test_an_exit_record_alone_does_not_end_a_job_of_which_slurm_says_nothing() -> None:
    of_slurm, unknown = replace(LAUNCHED, backend="slurm"), LivenessReport(Liveness.UNKNOWN, "?", job_id="12")
    assert fold(Evidence(of_slurm, (STARTED,), record("finished"), supervisor=unknown, age_s=60.0)).state == "running"


def test_an_end_is_believed_again_once_the_supervisor_has_gone() -> None:
    evidence = Evidence(LAUNCHED, (STARTED, ended("finished")), record("finished"), supervisor=ALIVE, age_s=60.0)
    assert fold(replace(evidence, supervisor=LivenessReport(Liveness.DEAD))).state == "finished"


# --- elapsed time


def run(state: RunState = "running", **facts: Any) -> Run:
    return replace(Run(SPEC, state, (STARTED,), started_at=BEGAN), **facts)


def test_a_live_run_has_lasted_until_now() -> None:
    assert run().elapsed_s(BEGAN_S + 41.25) == 41.25


def test_an_ended_run_has_lasted_until_its_end() -> None:
    assert run("finished", ended_at=ENDED_AT).elapsed_s(BEGAN_S + 1e6) == 41.0


def test_a_run_that_never_started_has_not_lasted() -> None:
    assert run("starting", started_at=None).elapsed_s(BEGAN_S) is None


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    assert run().elapsed_s(BEGAN_S - 5) == 0.0


def test_times_are_read_with_any_offset() -> None:
    assert posix(BEGAN) == posix("2026-11-21T16:30:45.500+01:00") == BEGAN_S


# --- attempts, and what is known to have gone wrong


OOM = {"kind": "oom_gpu", "line": "CUDA out of memory."}
RETRYING = event(2, "retrying", attempt=1, failure=OOM)
AGAIN = event(3, "started", ENDED_AT, attempt=2, at_start={"pid": 912})
STALLED, RESUMED = event(2, "stalled"), event(3, "resumed")
ERROR_SEEN = event(2, "error_seen", failure=OOM)


@pytest.mark.parametrize(
    ("events", "state", "attempt", "failure"),
    [
        ((STARTED, RETRYING), "retrying", 1, OOM),
        ((STARTED, RETRYING, AGAIN), "running", 2, None),
        ((STARTED, STALLED), "stalled", 1, None),
        ((STARTED, STALLED, RESUMED), "running", 1, None),
        ((STARTED, STALLED, event(3, "first_step_timeout")), "stalled", 1, None),
        ((STARTED, ERROR_SEEN), "running", 1, OOM),
        ((STARTED, ERROR_SEEN, RESUMED), "running", 1, None),
    ],
)
def test_a_live_run_is_what_its_newest_event_says(
    events: tuple[RecordEvent, ...], state: RunState, attempt: int, failure: dict[str, Any] | None
) -> None:
    run = fold(Evidence(SPEC, events, supervisor=ALIVE))
    assert (run.state, run.attempt, run.failure) == (state, attempt, failure)


def test_a_run_of_several_attempts_began_with_the_first_and_is_where_the_last_is() -> None:
    run = fold(Evidence(SPEC, (STARTED, RETRYING, AGAIN), supervisor=ALIVE))
    assert (run.started_at, run.at_start) == (BEGAN, {"pid": 912})


def test_an_end_tells_its_own_failure_or_none() -> None:
    failed = (STARTED, RETRYING, AGAIN, ended("failed", 4, failure={"kind": "other", "line": "?"}))
    assert fold(Evidence(SPEC, failed)).failure == {"kind": "other", "line": "?"}
    assert fold(Evidence(SPEC, (STARTED, ERROR_SEEN, ended("finished", 3)))).failure is None


def test_a_supervisor_that_died_before_a_retry_leaves_the_failure_of_the_last_attempt() -> None:
    run = fold(Evidence(SPEC, (STARTED, RETRYING), record("failed", 1)))
    assert (run.state, run.exit_code, run.failure, run.abandoned) == ("failed", 1, OOM, True)


def test_a_supervisor_that_died_in_the_queue_leaves_a_run_that_waited() -> None:
    found = fold(Evidence(SPEC, (event(1, "queued", position=2),), age_s=900))
    assert (found.state, found.started_at) == ("lost", None)
    assert found.reason == "Its supervisor is gone: when it was last heard of, it waited for GPUs."


def test_a_requeue_clears_the_failure_of_the_former_attempt() -> None:
    failed = event(2, "retrying", failure={"kind": "oom_gpu", "line": "CUDA out of memory"})
    assert fold(Evidence(SPEC, (STARTED, failed), supervisor=ALIVE)).failure is not None
    assert fold(Evidence(SPEC, (STARTED, failed, event(3, "requeued")), supervisor=ALIVE)).failure is None


@pytest.mark.parametrize(
    ("evidence", "state", "stopped_by"),
    [
        ({"events": (STARTED, ended("killed", stopped_by="policy"))}, "killed", "policy"),
        ({"events": (STARTED, ended("timed_out", stopped_by="time_limit"))}, "timed_out", "time_limit"),
        ({"events": (STARTED, ended("killed", stopped_by="you must now"))}, "killed", None),
        ({"events": (STARTED,), "exit": {**record("killed"), "stopped_by": "agent"}}, "killed", "agent"),
        ({"events": (STARTED,), "stop": {**CARRIED_OUT, "stopped_by": "person"}}, "killed", "person"),
        ({"events": (STARTED,), "stop": {**ASKED, "stopped_by": "person"}}, "lost", None),
        ({"events": (STARTED, ended("failed"))}, "failed", None),
    ],
)
def test_who_stopped_a_run_is_what_its_record_says(
    evidence: dict[str, Any], state: str, stopped_by: str | None
) -> None:
    folded = fold(Evidence(SPEC, **evidence))
    assert (folded.state, folded.stopped_by) == (state, stopped_by)


def test_an_attempt_that_the_policy_stopped_before_a_retry_that_never_came_has_failed() -> None:
    events = (STARTED, event(2, "retrying"))
    folded = fold(Evidence(SPEC, events=events, exit={**record("killed"), "stopped_by": "policy"}))
    assert folded.state == "failed"


def test_an_end_on_this_host_of_a_command_that_may_go_on_elsewhere_is_lost_with_the_reason() -> None:
    folded = fold(Evidence(SPEC, events=(STARTED, ended("lost", then="Look there.", far_side="gpu7", exit_code=255))))
    assert (folded.state, folded.reason, folded.exit_code, folded.abandoned) == ("lost", "Look there.", None, False)


def test_the_time_that_an_ended_run_took_is_the_supervisors_whatever_happened_to_the_clock() -> None:
    evidence = Evidence(SPEC, (STARTED, ended("finished", elapsed_s=17.25)), record("finished"))
    assert fold(evidence).elapsed_s(BEGAN_S + 1e6) == 17.25


@pytest.mark.parametrize("kind", ["queued", "requeued"])
def test_the_supervisors_time_is_not_the_commands_where_the_run_was_queued_or_requeued(kind: EventKind) -> None:
    events = (event(1, kind), event(2, "started"), ended("finished", seq=3, elapsed_s=500.0))
    assert fold(Evidence(SPEC, events, record("finished"))).elapsed_s(BEGAN_S) == 41.0


@pytest.mark.parametrize("elapsed_s", [-1, True, "long", None])
def test_a_measured_time_that_is_none_is_passed_over(elapsed_s: object) -> None:
    evidence = Evidence(SPEC, (STARTED, ended("finished", elapsed_s=elapsed_s)), record("finished"))
    assert fold(evidence).elapsed_s(BEGAN_S) == 41.0


def test_a_scheduler_explains_a_wait_and_an_end_that_no_supervisor_wrote() -> None:
    waiting = fold(Evidence(SPEC, supervisor=WAITING, age_s=FRESH))
    assert (waiting.pending_reason, waiting.job_id, waiting.reason) == ("Resources", "12", None)
    ended_by_job = fold(Evidence(SPEC, (STARTED,), supervisor=OUT_OF_TIME, age_s=OLD))
    assert (ended_by_job.state, ended_by_job.stopped_by, ended_by_job.ended_at) == (
        "timed_out",
        "scheduler",
        "2026-11-20T12:00:00Z",
    )
    assert (ended_by_job.failure, ended_by_job.reason) == (SITE_LIMIT, "Slurm's time limit ended it.")
    finished = fold(Evidence(SPEC, (STARTED, ended("finished")), supervisor=OUT_OF_TIME, age_s=OLD))
    assert (finished.failure, finished.stopped_by, finished.pending_reason) == (None, None, None)


def test_a_change_of_code_before_an_earlier_attempt_is_still_told() -> None:
    first, again = "Code changed between launch and start: a.py.", "Code changed between attempt 1 and attempt 2: b.py."
    events = (
        event(1, "started", attempt=1),
        event(2, "code_changed", text=first, attempt=1),
        event(3, "started", attempt=2),
        event(4, "code_changed", text=again, attempt=2),
        event(5, "started", attempt=3),
    )
    assert run(events=events, attempt=3).code_change == f"{first} {again}"
    assert run(events=events[:1]).code_change is None
