"""A kill is confirmed once and for one run; then everything is told, stage by stage."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import ForeignRun, KillNotConfirmed
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.stop import TOKEN_VALID_S, Confirmations, check_owner, facts, supervisor_of
from mcp_server.system import processes
from mcp_server.system.processes import Process, Stage, Stopping, stages

RUN = Run(
    RunSpec(run_id="cfm-7kqz", owner="alice", command="python train.py --lr 3e-4"),
    "running",
    started_at="2026-11-21T15:30:45.123Z",
)
OTHER = replace(RUN, spec=replace(RUN.spec, run_id="gen-2mxw"))
STILL = "Kill not confirmed: 'cfm-7kqz' is still running; "
AGAIN = " Call kill_run without confirm_token for a new one."


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def refusal(confirmations: Confirmations, token: str, run: Run = RUN) -> str:
    with pytest.raises(KillNotConfirmed) as refused:
        confirmations.redeem(token, run)
    return str(refused.value)


# --- tokens


def test_a_token_confirms_one_kill() -> None:
    confirmations = Confirmations()
    token = confirmations.grant(RUN)
    confirmations.redeem(token, RUN)
    assert refusal(confirmations, token) == f"{STILL}the confirm_token is unknown, used, or for another run.{AGAIN}"


@pytest.mark.parametrize("token", ["", "cfm-7kqz", "yes", "AAAAAAAAAAAA"])
def test_a_token_that_nobody_granted_confirms_nothing(token: str) -> None:
    confirmations = Confirmations()
    granted = confirmations.grant(RUN)
    assert "unknown, used, or for another run" in refusal(confirmations, token)
    confirmations.redeem(granted, RUN)


def test_a_token_is_for_its_run_alone() -> None:
    confirmations = Confirmations()
    token = confirmations.grant(OTHER)
    assert "for another run" in refusal(confirmations, token, RUN)


def test_a_token_is_for_its_attempt_alone() -> None:
    confirmations = Confirmations()
    token = confirmations.grant(RUN)
    assert "the confirm_token was for an earlier attempt" in refusal(confirmations, token, replace(RUN, attempt=2))


def test_a_token_that_was_refused_is_used_up() -> None:
    confirmations = Confirmations()
    token = confirmations.grant(RUN)
    refusal(confirmations, token, replace(RUN, attempt=2))
    refusal(confirmations, token, RUN)


def test_a_token_is_valid_for_10_minutes() -> None:
    clock = Clock()
    confirmations = Confirmations(clock)
    token = confirmations.grant(RUN)
    clock.now_s += TOKEN_VALID_S - 0.001
    confirmations.redeem(token, RUN)

    token = confirmations.grant(RUN)
    clock.now_s += TOKEN_VALID_S
    assert refusal(confirmations, token) == f"{STILL}the confirm_token has expired (10 min).{AGAIN}"
    assert TOKEN_VALID_S == 600


def test_a_newer_token_voids_the_older_one_of_the_same_run_only() -> None:
    confirmations = Confirmations()
    other = confirmations.grant(OTHER)
    older = confirmations.grant(RUN)
    newer = confirmations.grant(RUN)
    assert "unknown, used" in refusal(confirmations, older)
    confirmations.redeem(newer, RUN)
    confirmations.redeem(other, OTHER)


def test_tokens_are_not_guessed() -> None:
    confirmations = Confirmations()
    tokens = {confirmations.grant(RUN) for _ in range(200)}
    assert len(tokens) == 200
    assert min(map(len, tokens)) >= 12


# --- owners


@pytest.mark.parametrize(
    ("owner", "caller", "force"),
    [("alice", "alice", False), ("alice", "bob", True), ("", "bob", False)],
)
def test_an_owner_or_whoever_insists_may_stop_a_run(owner: str, caller: str, force: bool) -> None:
    check_owner(replace(RUN, spec=replace(RUN.spec, owner=owner)), caller, force=force)


@pytest.mark.parametrize("caller", ["bob", "", "Alice"])
def test_another_owners_run_is_left_alone(caller: str) -> None:
    with pytest.raises(ForeignRun) as refused:
        check_owner(RUN, caller, force=False)
    assert str(refused.value) == (
        f"Run 'cfm-7kqz' belongs to 'alice', you are {caller!r}; it was left alone. "
        "If its owner agreed, call again with force_other_owner=true."
    )


# --- what whoever confirms should know


def test_the_facts_name_run_state_owner_start_and_command() -> None:
    assert facts(RUN, []) == (
        "cfm-7kqz (running, owner alice, started 2026-11-21T15:30:45.123Z): python train.py --lr 3e-4"
    )


def test_the_facts_of_an_old_run_say_what_is_unknown() -> None:
    assert facts(Run(RunSpec(run_id="cfm-7kqz", command=["python", "x.py"]), "starting"), []) == (
        "cfm-7kqz (starting, owner unknown): python x.py"
    )


def test_the_facts_of_a_long_command_stay_short() -> None:
    spec = replace(RUN.spec, command="x" * 5000)
    assert facts(replace(RUN, spec=spec), []).endswith("): " + "x" * 200)


def test_the_facts_name_at_most_ten_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.system.processes.program", lambda p: f"worker{p.pid}")
    left = [Process(pid, started=1, parent=1, session=1) for pid in range(11, 31)]
    _, _, told = facts(RUN, left).partition("; left-over processes: ")
    assert told.split(", ") == [f"{pid} worker{pid}" for pid in range(11, 21)]


def test_the_same_question_is_asked_in_the_same_words() -> None:
    assert facts(RUN, []) == facts(replace(RUN, events=({"seq": 1, "kind": "started"},)), [])


# --- the supervisor is told apart from a stranger


@pytest.mark.parametrize("at_start", [{}, {"supervisor_pid": None}, {"supervisor_pid": "1"}, {"supervisor_pid": 2**22}])
def test_without_a_living_number_there_is_no_supervisor(at_start: dict[str, Any]) -> None:
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), replace(RUN, at_start=at_start)) is None


def test_a_process_that_reused_the_number_is_no_supervisor() -> None:
    run = replace(RUN, at_start={"supervisor_pid": os.getpid()})
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), run) is None


def test_a_signal_does_not_reach_a_process_that_reused_a_number() -> None:
    mine = processes.process(os.getpid())
    assert mine is not None
    assert not processes.send(replace(mine, started=mine.started - 1), signal.SIGCONT)
    assert processes.send(mine, signal.SIGCONT)


def test_a_signal_to_a_process_that_is_gone_is_told() -> None:
    assert not processes.send(Process(2**22, started=1, parent=1, session=1), signal.SIGCONT)
    assert processes.process(2**22) is None


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    assert Process(7, started=1, parent=2, session=3) == Process(7, started=1, parent=1, session=1)
    assert Process(7, started=1, parent=2, session=3) != Process(7, started=2, parent=2, session=3)


# --- stages

INT, TERM, KILL, CONT = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGCONT
ONE, TWO, THREE = (Process(pid, started=pid, parent=1, session=1) for pid in (101, 102, 103))
Sent = list[tuple[int, signal.Signals]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What was sent, to whom; nobody receives it."""
    calls: Sent = []

    def send(target: Process, number: signal.Signals) -> bool:
        calls.append((target.pid, number))
        return True

    monkeypatch.setattr(processes, "send", send)
    return calls


def news(sent: Sent) -> Sent:
    """What was sent since the last call."""
    found = sent.copy()
    sent.clear()
    return found


def test_the_stages_are_interrupt_terminate_kill() -> None:
    assert stages(8) == (Stage(INT, 8), Stage(TERM, 8), Stage(KILL, 5.0))


def test_a_polite_run_gets_one_signal(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    assert not stopping.step([ONE, TWO], 100)
    assert news(sent) == [(101, INT), (101, CONT), (102, INT), (102, CONT)]
    assert not stopping.step([TWO], 101)
    assert stopping.step([], 102)
    assert news(sent) == []
    assert stopping.sent == ["SIGINT"]


def test_nothing_is_sent_where_nothing_lives(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    assert stopping.step([], 100)
    assert (news(sent), stopping.sent) == ([], [])


def test_each_stage_is_sent_once_when_the_last_ones_time_is_over(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    told: dict[float, Sent] = {}
    for now_s in (100, 100.05, 104.99, 105, 105.05, 109.9, 110, 110.05, 114.9):
        assert not stopping.step([ONE], now_s)
        told[now_s] = news(sent)
    assert {now_s: calls for now_s, calls in told.items() if calls} == {
        100: [(101, INT), (101, CONT)],
        105: [(101, TERM), (101, CONT)],
        110: [(101, KILL)],
    }
    assert stopping.sent == ["SIGINT", "SIGTERM", "SIGKILL"]


def test_what_outlives_the_last_stage_survives_and_is_signalled_no_more(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    for now_s in (100, 105, 110):
        assert not stopping.step([ONE], now_s)
    news(sent)
    assert stopping.step([ONE], 115)
    assert news(sent) == []


def test_a_newcomer_gets_the_signal_of_the_stage(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    stopping.step([ONE], 100)
    news(sent)
    stopping.step([ONE, TWO], 101)
    assert news(sent) == [(102, INT), (102, CONT)]
    stopping.step([ONE, TWO], 105)
    assert news(sent) == [(101, TERM), (101, CONT), (102, TERM), (102, CONT)]
    stopping.step([TWO, THREE], 110)
    assert news(sent) == [(102, KILL), (103, KILL)]


def test_a_process_with_a_reused_number_is_a_newcomer(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    stopping.step([ONE], 100)
    news(sent)
    stopping.step([replace(ONE, started=999)], 101)
    assert news(sent) == [(101, INT), (101, CONT)]


def test_a_process_that_could_not_be_reached_is_tried_again_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def send(target: Process, _: signal.Signals) -> bool:
        tried.append(target.pid)
        return False

    monkeypatch.setattr(processes, "send", send)
    stopping = Stopping(stages(5))
    stopping.step([ONE], 100)
    stopping.step([ONE], 101)
    assert (tried, stopping.sent) == ([101, 101], [])


def test_a_late_step_skips_no_stage(sent: Sent) -> None:
    stopping = Stopping(stages(5))
    stopping.step([ONE], 100)
    stopping.step([ONE], 100_000)
    assert [number for _, number in news(sent)] == [INT, CONT, TERM, CONT]


def test_without_grace_each_step_is_a_stage(sent: Sent) -> None:
    stopping = Stopping(stages(0))
    for _ in range(3):
        assert not stopping.step([ONE], 100)
    assert [number for _, number in news(sent) if number is not CONT] == [INT, TERM, KILL]


def test_two_stoppings_share_no_plan(sent: Sent) -> None:
    plan = (Stage(TERM, 1), Stage(KILL, 1))
    for _ in range(2):
        stopping = Stopping(plan)
        for now_s in (100, 101):
            assert not stopping.step([ONE], now_s)
        assert stopping.sent == ["SIGTERM", "SIGKILL"]
    assert len(plan) == 2


def test_only_those_who_still_live_hear_the_next_stage(sent: Sent) -> None:
    everybody = [Process(pid, started=pid, parent=1, session=1) for pid in range(200, 220)]
    stopping = Stopping(stages(5))
    for second, _ in enumerate(everybody):
        assert not stopping.step(everybody[second:], 100 + second * 0.5)
    assert stopping.step([], 120)
    told = {number: [pid for pid, n in sent if n is number] for number in (INT, TERM, KILL)}
    assert told == {INT: list(range(200, 220)), TERM: list(range(210, 220)), KILL: []}
