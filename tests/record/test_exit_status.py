"""A wait status and a stop request become one ending and one sentence."""

import os
import signal
from pathlib import Path

import pytest

from mcp_server.record.exit_status import Ending, StopRequest, classify_ending, closing_line
from mcp_server.record.run_directory import RunDir

PERSON = StopRequest("killed", "alice", "diverged")
LIMIT = StopRequest("timed_out", "time limit", "3600 s have passed")


def exited(code: int) -> int:
    """A raw wait status, as Linux lays it out."""
    return code << 8


def died(number: int, *, dumped: bool = False) -> int:
    return number | (0x80 if dumped else 0)


@pytest.mark.parametrize(
    ("status", "state", "exit_code", "name"),
    [
        (exited(0), "finished", 0, None),
        (exited(1), "failed", 1, None),
        (exited(2), "failed", 2, None),
        (exited(127), "failed", 127, None),
        (exited(128), "failed", 128, None),
        (exited(129), "failed", 129, None),
        (exited(130), "failed", 130, None),
        (exited(137), "failed", 137, None),
        (exited(139), "failed", 139, None),
        (exited(143), "failed", 143, None),
        (exited(162), "failed", 162, None),
        (exited(163), "failed", 163, None),
        (exited(160), "failed", 160, None),
        (exited(200), "failed", 200, None),
        (exited(255), "failed", 255, None),
        (died(signal.SIGKILL), "failed", None, "SIGKILL"),
        (died(signal.SIGTERM), "failed", None, "SIGTERM"),
        (died(signal.SIGSEGV, dumped=True), "failed", None, "SIGSEGV"),
        (died(signal.SIGRTMIN), "failed", None, "SIGRTMIN"),
        (died(signal.SIGRTMAX), "failed", None, "SIGRTMIN+30"),
        (None, "lost", None, None),
    ],
)
def test_a_wait_status_becomes_an_exit_code_or_a_signal_and_no_code_is_taken_for_one(
    status: int | None, state: str, exit_code: int | None, name: str | None
) -> None:
    assert classify_ending(status, None, interrupted=False) == Ending(state, exit_code, name)


def test_every_exit_code_is_reported_as_it_is() -> None:
    for code in range(256):
        ending = classify_ending(exited(code), None, interrupted=False)
        assert (ending.exit_code, ending.status) == (code, code)
        assert (ending.state == "finished") == (code == 0)


@pytest.mark.parametrize("stop_request", [PERSON, LIMIT])
@pytest.mark.parametrize("status", [exited(0), exited(1), exited(143), died(signal.SIGKILL), None])
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_stop_request_names_the_state_whatever_the_status(
    stop_request: StopRequest, status: int | None, interrupted: bool
) -> None:
    ending = classify_ending(status, stop_request, interrupted=interrupted)
    assert (ending.state, ending.stop_request) == (stop_request.state, stop_request)


def test_ctrl_c_makes_any_end_that_persons_but_success() -> None:
    typed = StopRequest("killed", "a person at the terminal", "Ctrl-C", "person")
    assert classify_ending(exited(0), None, interrupted=True) == Ending("finished", 0, None)
    assert classify_ending(exited(1), None, interrupted=True) == Ending("killed", 1, None, typed)
    assert classify_ending(exited(130), None, interrupted=True) == Ending("killed", 130, None, typed)
    assert classify_ending(died(signal.SIGINT), None, interrupted=True) == Ending("killed", None, "SIGINT", typed)


@pytest.mark.parametrize(
    ("ending", "leftovers", "text"),
    [
        (Ending("finished", 0, None), 0, "finished: exit code 0."),
        (Ending("failed", 3, None), 0, "failed: exit code 3."),
        (Ending("failed", None, "SIGKILL"), 0, "failed: SIGKILL."),
        (Ending("failed", 137, None), 0, "failed: exit code 137."),
        (Ending("killed", None, "SIGINT", PERSON), 0, "killed: SIGINT (diverged; alice)."),
        (Ending("killed", 0, None, StopRequest("killed", "alice", "")), 0, "killed: exit code 0 (alice)."),
        (Ending("killed", 0, None, StopRequest("killed", "", "")), 0, "killed: exit code 0."),
        (Ending("timed_out", 143, None, LIMIT), 0, "timed_out: exit code 143 (3600 s have passed; time limit)."),
        (Ending("killed", None, None, PERSON), 0, "killed: the exit status is unknown (diverged; alice)."),
        (Ending("finished", 0, None), 2, "finished: exit code 0. Stopped 2 process(es) that it left behind."),
    ],
)
def test_an_ending_is_one_sentence(ending: Ending, leftovers: int, text: str) -> None:
    assert ending.text(leftovers) == text


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending("finished", 0, None), 0),
        (Ending("failed", 3, None), 3),
        (Ending("failed", 137, None), 137),
        (Ending("failed", None, "SIGKILL"), 137),
        (Ending("killed", None, "SIGTERM", PERSON), 143),
        (Ending("killed", None, None, PERSON), 125),
    ],
)
def test_the_supervisors_own_status_is_what_a_shell_would_say(ending: Ending, status: int) -> None:
    assert ending.status == status


def test_a_death_by_any_signal_has_the_status_of_a_shell() -> None:
    for number in sorted(signal.valid_signals()):
        assert classify_ending(died(number), None, interrupted=False).status == 128 + number


def test_the_record_holds_code_signal_state_and_both_times() -> None:
    began, ended = "2026-11-21T15:30:45.123Z", "2026-11-21T15:31:26.000Z"
    assert Ending("killed", None, "SIGKILL", PERSON).record(began, ended) == {
        "exit_code": None,
        "signal": "SIGKILL",
        "state": "killed",
        "started_at": began,
        "ended_at": ended,
    }


def test_the_pane_ends_with_the_sentence_the_time_and_the_log() -> None:
    rundir = RunDir(Path("/state/runs/cfm-7kqz"))
    assert closing_line(rundir.log(1), Ending("failed", 3, None), 3725.4) == (
        b"\x1b[0m\x1b[?25h\r\n\x1b[1;31m[runward] cfm-7kqz failed: exit code 3\x1b[0m after 1:02:05\r\n"
        b"[runward] log: /state/runs/cfm-7kqz/attempts/1/output.log\r\n"
    )


def test_the_layout_of_a_wait_status_is_the_kernels() -> None:
    assert os.waitstatus_to_exitcode(exited(3)) == 3
    assert os.waitstatus_to_exitcode(died(signal.SIGSEGV, dumped=True)) == -signal.SIGSEGV
