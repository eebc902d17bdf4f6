"""An observer that fails never harms its attempt."""

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.record.curves.tails import CurveRow
from mcp_server.record.events import EventKind, EventLog, read_events, read_record
from mcp_server.record.exit_status import Ending
from mcp_server.record.run_directory import RunDir
from mcp_server.record.script import AttemptInputs
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.control import ControlInputs
from mcp_server.supervisor.judging import observer as module
from mcp_server.supervisor.judging.observer import Observer


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path / "cfm-7kqz")
    rundir.attempt(1).mkdir(parents=True)
    return rundir


def observing(rundir: RunDir, **spec: Any) -> Observer:
    control = ControlInputs(rundir, RunSpec(**spec), EventLog(rundir.events), wakeup_fd=0)
    observer = Observer(control, 1, list)
    observer.begin()
    return observer


def event_kinds(rundir: RunDir) -> list[str]:
    return [event["kind"] for event in read_events(rundir.events)]


def test_output_that_cannot_be_read_is_skipped_and_judging_goes_on(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = observing(rundir)
    read_lines = OutputMonitor._read_lines_of

    def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(OutputMonitor, "_read_lines_of", read_lines)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(OutputMonitor, "_read_lines_of", fail_once)
    observer.feed(b"one\ntwo\n")
    observer.feed(b"step 7 loss 0.5\n")
    assert event_kinds(rundir) == ["observer_error", "first_step"]
    assert observer.step == 7
    assert observer._monitor is not None
    assert observer._monitor.line_feeds == 3


def test_a_monitor_that_fails_again_and_again_rests_and_says_so(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    observer = observing(rundir)
    with monkeypatch.context() as context:
        context.setattr(OutputMonitor, "_read_lines_of", fails)
        for _ in range(10):
            observer.feed(b"step 1 loss 0.5\n")
    assert event_kinds(rundir) == ["observer_error", "judging_lost"]
    assert observer.due_s == 1060.0
    observer.feed(b"step 2 loss 0.5\n")
    assert (observer.step, observer.check_deadlines()) == (None, None)
    clock[0] = 1060.0
    observer.feed(b"step 3 loss 0.5\n")
    assert (observer.step, event_kinds(rundir)[-1]) == (3, "first_step")
    assert observer._monitor is not None
    assert observer._monitor.line_feeds == 12


def test_a_monitor_that_cannot_be_created_is_reported_too(rundir: RunDir) -> None:
    observer = observing(rundir, first_step_pattern="(")
    observer.feed(b"step 1 loss 0.5\n")
    assert event_kinds(rundir) == ["judging_lost"]
    assert observer.due_s is None
    assert observer.check_deadlines() is None
    assert observer.failure(Ending("failed", 1, None)) is None


def test_a_first_step_is_on_disk_before_its_event(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    append = EventLog.append

    def look(self: EventLog, kind: EventKind, text: str, **facts: Any) -> None:
        steps.append((read_record(rundir.progress(1)) or {}).get("step"))
        append(self, kind, text, **facts)

    monkeypatch.setattr(EventLog, "append", look)
    observing(rundir).feed(b"step 3/10 loss 0.5\n")
    assert steps == [3]


def test_a_full_disk_costs_progress_and_nothing_else(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mcp_server.supervisor.judging.bookkeeping.write_atomic", full)
    observer = observing(rundir)
    observer.feed(b"step 3/10 loss 0.5\n")
    assert event_kinds(rundir) == ["first_step"]
    assert observer.step == 3


def test_the_log_of_an_end_without_an_error_is_not_read(rundir: RunDir) -> None:
    observer = observing(rundir)
    observer.feed(b"step 3/10 loss 0.5\n")
    assert observer.failure(Ending("finished", 0, None)) is None, "there is no log"
    assert event_kinds(rundir) == ["first_step"]


def test_the_stack_of_the_commands_own_faulthandler_is_evidence(rundir: RunDir) -> None:
    dump = 'Timeout (0:05:00)!\nThread 0x00007f (most recent call first):\n  File "train.py", line 3 in wait\n'
    rundir.log(1).write_text(f"step 1 loss 0.5\n{dump}")
    observer = observing(rundir, stall_timeout_s=0.001)
    observer.feed(b"step 1 loss 0.5\n")
    while "stalled" not in event_kinds(rundir):
        observer.check_deadlines()
    stalled = next(event for event in read_events(rundir.events) if event["kind"] == "stalled")
    assert stalled["stack"].startswith("Thread 0x00007f (most recent call first):")


def test_files_are_read_before_it_is_said_that_there_is_no_progress(rundir: RunDir) -> None:
    observer = observing(rundir, stall_timeout_s=0.001)
    reads = iter(range(2, 60))

    def read_one() -> None:
        observer.note_rows("/run/progress.csv", [CurveRow(next(reads, 60), None, {"loss": 0.5})], "")

    observer.note_rows("/run/progress.csv", [CurveRow(1, None, {"loss": 0.5})], "")
    observer.read_curves = read_one
    while observer.step != 60 and "stalled" not in event_kinds(rundir):
        observer.check_deadlines()
    assert "stalled" not in event_kinds(rundir), "each look found another row"


def test_the_backtrace_of_a_handled_error_is_not_a_stack(rundir: RunDir) -> None:
    log = "Exception raised from wait at nccl.cpp:3 (most recent call first):\nframe #0: c10\nstep 1 loss 0.5\n"
    rundir.log(1).write_text(log)
    observer = observing(rundir, stall_timeout_s=0.001)
    observer.feed(b"step 1 loss 0.5\n")
    while "stalled" not in event_kinds(rundir):
        observer.check_deadlines()
    assert "stack" not in next(event for event in read_events(rundir.events) if event["kind"] == "stalled")


def test_a_burst_is_read_in_turns_and_completely(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    observer = observing(rundir)
    observer.feed(b"".join(b"step %d loss 0.5\n" % number for number in range(1, 2001)))
    assert observer.due_s == 0.0
    turns = 0
    while observer.due_s == 0.0:
        observer.check_deadlines()
        turns += 1
    assert turns > 1
    assert observer.step == 2000


@pytest.mark.parametrize("name", ["loss", "value function loss", "val_loss"])
def test_a_report_of_divergence_counts_all_that_its_context_counts(rundir: RunDir, name: str) -> None:
    count, observer = 400, observing(rundir)
    rows = [
        b"step 1 %b 0.5\n" % name.encode(),
        *(b"step %d %b nan\n" % (n, name.encode()) for n in range(2, count + 2)),
    ]
    rundir.log(1).write_bytes(b"".join(rows))
    observer.feed(b"".join(rows))
    observer.read_end()
    (event,) = [one for one in read_events(rundir.events) if one["kind"] == "error_seen"]
    assert f"{name} has been nan in {count} readings in a row, since step 2." in event["text"]
    assert f"nan in {count} readings in a row, since step 2" in event["failure"]["context"][0]


def test_the_rest_of_a_burst_is_read_before_the_end_is_reported(rundir: RunDir) -> None:
    observer = observing(rundir)
    observer.feed(b"".join(b"step %d loss 0.5\n" % number for number in range(1, 20001)))
    observer.read_end()
    assert observer.step == 20000


def test_a_healthy_training_is_read_when_its_progress_is_written(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress is as new as before; much output, and what a stop judges, is read as it comes."""
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    observer = observing(rundir)
    for step in range(1, 101):
        clock[0] += 1.0
        observer.feed(b"step %d loss 0.5\n" % step)
        observer.check_deadlines()
    assert observer.step == (read_record(rundir.progress(1)) or {})["step"] == 100
    assert observer._monitor is not None
    assert observer._monitor.progress.step_s == 1.0, "each line has the time at which it came"
    clock[0] += 1.0
    observer.feed(b"step 101 loss 0.5\n")
    assert (observer.due_s or 0.0) - clock[0] == 5.0, "6 s after the last write, or with the first line after 4.8 s"
    assert observer.quiet_until_s == observer.due_s
    observer.feed(b"x" * 5000 + b"\nstep 102 loss 0.5\n")
    assert observer.step == 102
    assert observer.quiet_until_s is None
    observer.feed(b"RuntimeError: CUDA error\n")
    observer.note_stopping()
    assert observer._monitor.suspect is not None


@pytest.mark.parametrize("command", ["python lm.py", ["python", "lm.py"]])
def test_the_parameters_of_an_attempt_plan_its_total(rundir: RunDir, command: str | list[str]) -> None:
    control = ControlInputs(
        rundir, RunSpec(command=command, params={"steps": 200}), EventLog(rundir.events), wakeup_fd=0
    )
    for inputs, total in ((None, 200), (AttemptInputs({"steps": 100}, resumes=True), 100)):
        observer = Observer(control, 1, list)
        observer.begin(inputs)
        observer.feed(b"step=10 loss=0.5\nstep=20 loss=0.4\n")
        assert observer._reader.progress_facts()["total_steps"] == total
