"""Stop sequences: each stage once, in order, to every living process."""

import signal
from dataclasses import replace

import pytest

from mcp_server.system import processes
from mcp_server.system.processes import Process, Stage, StopSequence, stop_stages

INT, TERM, KILL, CONT = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGCONT
ONE, TWO, THREE = (Process(pid, started=pid, parent=1, session=1) for pid in (101, 102, 103))
Sent = list[tuple[int, signal.Signals]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What was sent, and to which process; no process receives it."""
    calls: Sent = []

    def send(target: Process, number: signal.Signals) -> bool:
        calls.append((target.pid, number))
        return True

    monkeypatch.setattr(processes, "send_signal", send)
    monkeypatch.setattr(processes, "wait_channel", lambda _: "D jbd2_log_wait_commit")
    return calls


def take(sent: Sent) -> Sent:
    """What was sent since the last call."""
    taken = sent.copy()
    sent.clear()
    return taken


def test_the_stages_are_interrupt_terminate_kill() -> None:
    assert stop_stages(8) == (Stage(INT, 8), Stage(TERM, 8), Stage(KILL, 5.0))


def test_a_polite_run_gets_one_signal(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    assert not stopping.step([ONE, TWO], 100)
    assert take(sent) == [(101, INT), (101, CONT), (102, INT), (102, CONT)]
    assert not stopping.step([TWO], 101)
    assert stopping.step([], 102)
    assert take(sent) == []
    assert stopping.sent == ["SIGINT"]


def test_nothing_is_sent_where_nothing_lives(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    assert stopping.step([], 100)
    assert (take(sent), stopping.sent) == ([], [])


def test_each_stage_is_sent_once_when_the_last_ones_time_is_over(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    calls_at: dict[float, Sent] = {}
    for now_s in (100, 100.05, 104.99, 105, 105.05, 109.9, 110, 110.05, 114.9):
        assert not stopping.step([ONE], now_s)
        calls_at[now_s] = take(sent)
    assert {now_s: calls for now_s, calls in calls_at.items() if calls} == {
        100: [(101, INT), (101, CONT)],
        105: [(101, TERM), (101, CONT)],
        110: [(101, KILL)],
    }
    assert stopping.sent == ["SIGINT", "SIGTERM", "SIGKILL"]


def test_a_process_that_outlives_the_last_stage_is_not_signalled_again(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    for now_s in (100, 105, 110):
        assert not stopping.step([ONE], now_s)
    take(sent)
    assert stopping.step([ONE], 115)
    assert take(sent) == []


def test_a_killed_process_that_only_waits_for_a_processor_is_waited_for(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {101: "R", 102: "D rpc_wait_bit_killable"}
    monkeypatch.setattr(processes, "wait_channel", states.__getitem__)
    stopping = StopSequence([Stage(KILL, 3.0)])
    assert not stopping.step([ONE, TWO], 100)
    take(sent)
    assert not stopping.step([ONE, TWO], 120), "a machine at a load of 20 takes that long"
    assert stopping.step([TWO], 120), "that one waits for a disk"
    assert StopSequence([Stage(KILL, 3.0)]).step([], 100)
    stopping = StopSequence([Stage(KILL, 3.0)])
    stopping.step([ONE], 100)
    assert stopping.step([ONE], 128)


def test_a_new_process_gets_the_signal_of_the_stage(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    stopping.step([ONE], 100)
    take(sent)
    stopping.step([ONE, TWO], 101)
    assert take(sent) == [(102, INT), (102, CONT)]
    stopping.step([ONE, TWO], 105)
    assert take(sent) == [(101, TERM), (101, CONT), (102, TERM), (102, CONT)]
    stopping.step([TWO, THREE], 110)
    assert take(sent) == [(102, KILL), (103, KILL)]


def test_a_process_with_a_reused_number_is_a_new_process(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    stopping.step([ONE], 100)
    take(sent)
    stopping.step([replace(ONE, started=999)], 101)
    assert take(sent) == [(101, INT), (101, CONT)]


def test_a_process_that_could_not_be_signalled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def send(target: Process, _: signal.Signals) -> bool:
        tried.append(target.pid)
        return False

    monkeypatch.setattr(processes, "send_signal", send)
    stopping = StopSequence(stop_stages(5))
    stopping.step([ONE], 100)
    stopping.step([ONE], 101)
    assert (tried, stopping.sent) == ([101, 101], [])


def test_a_late_step_skips_no_stage(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(5))
    stopping.step([ONE], 100)
    stopping.step([ONE], 100_000)
    assert [number for _, number in take(sent)] == [INT, CONT, TERM, CONT]


def test_without_grace_each_step_is_a_stage(sent: Sent) -> None:
    stopping = StopSequence(stop_stages(0))
    for _ in range(3):
        assert not stopping.step([ONE], 100)
    assert [number for _, number in take(sent) if number is not CONT] == [INT, TERM, KILL]


def test_two_sequences_share_no_stages(sent: Sent) -> None:
    plan = (Stage(TERM, 1), Stage(KILL, 1))
    for _ in range(2):
        stopping = StopSequence(plan)
        for now_s in (100, 101):
            assert not stopping.step([ONE], now_s)
        assert stopping.sent == ["SIGTERM", "SIGKILL"]
    assert len(plan) == 2


def test_only_living_processes_get_the_next_signal(sent: Sent) -> None:
    everybody = [Process(pid, started=pid, parent=1, session=1) for pid in range(200, 220)]
    stopping = StopSequence(stop_stages(5))
    for second, _ in enumerate(everybody):
        assert not stopping.step(everybody[second:], 100 + second * 0.5)
    assert stopping.step([], 120)
    calls_at = {number: [pid for pid, n in sent if n is number] for number in (INT, TERM, KILL)}
    assert calls_at == {INT: list(range(200, 220)), TERM: list(range(210, 220)), KILL: []}
