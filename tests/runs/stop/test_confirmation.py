"""A token confirms one kill, of one run and attempt; an owner is respected."""

from dataclasses import replace

import pytest

from mcp_server.errors import ForeignRun, KillNotConfirmed
from mcp_server.record.run_processes import RunProcess
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.stop.confirmation import TOKEN_VALID_S, Confirmations, check_owner, describe_for_confirmation

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


def grant(confirmations: Confirmations, run: Run) -> str:
    return confirmations.grant_token([run.run_id], {run.run_id: run.attempt})


def redeem(confirmations: Confirmations, token: str, run: Run) -> None:
    assert confirmations.redeem_token(token, [run.run_id], run).attempts == {run.run_id: run.attempt}


def ask(confirmations: Confirmations) -> None:
    confirmations.ask("client", ["cfm-7kqz"], {"cfm-7kqz": 1}, "Stop it?")


def refusal(confirmations: Confirmations, token: str, run: Run = RUN) -> str:
    with pytest.raises(KillNotConfirmed) as refused:
        redeem(confirmations, token, run)
    return str(refused.value)


# --- questions


@pytest.mark.parametrize(("after_s", "at_once"), [(0.015, True), (0.1, True), (0.6, False), (60, False)])
def test_only_an_answer_within_a_moment_is_a_programs(after_s: float, at_once: bool) -> None:
    clock = Clock()
    questions = Confirmations(clock)
    ask(questions)
    clock.now_s += after_s
    assert questions.answer("client", ["cfm-7kqz"])[1] == at_once


def test_an_answer_to_no_known_question_is_a_persons() -> None:
    questions = Confirmations(Clock())
    assert not questions.answer("client", ["cfm-7kqz"])[1]
    ask(questions)
    assert not questions.answer("another", ["cfm-7kqz"])[1]
    assert not questions.answer("client", ["gen-2mxw"])[1]
    assert questions.answer("client", ["cfm-7kqz"])[1]
    assert not questions.answer("client", ["cfm-7kqz"])[1], "one answer a question"


def test_while_an_older_question_is_open_no_answer_is_a_programs() -> None:
    clock = Clock()
    questions = Confirmations(clock)
    ask(questions)
    clock.now_s += 5
    ask(questions)
    assert not questions.answer("client", ["cfm-7kqz"])[1]
    clock.now_s += TOKEN_VALID_S
    ask(questions)  # those that nobody answered count no more
    assert questions.answer("client", ["cfm-7kqz"])[1]


# --- tokens


def test_a_token_confirms_one_kill() -> None:
    confirmations = Confirmations()
    token = grant(confirmations, RUN)
    redeem(confirmations, token, RUN)
    assert refusal(confirmations, token) == f"{STILL}the confirm_token is unknown, used, or for another run.{AGAIN}"


@pytest.mark.parametrize("token", ["", "cfm-7kqz", "yes", "AAAAAAAAAAAA"])
def test_an_unknown_token_confirms_nothing(token: str) -> None:
    confirmations = Confirmations()
    granted = grant(confirmations, RUN)
    assert "unknown, used, or for another run" in refusal(confirmations, token)
    redeem(confirmations, granted, RUN)


def test_a_token_is_for_its_run_alone() -> None:
    confirmations = Confirmations()
    token = grant(confirmations, OTHER)
    expected = f"the confirm_token is for another run ({OTHER.run_id}), and is still valid for it."
    assert expected in refusal(confirmations, token, RUN)
    redeem(confirmations, token, OTHER)


def test_a_token_is_for_its_attempt_alone() -> None:
    confirmations = Confirmations()
    token = grant(confirmations, RUN)
    assert "the confirm_token was for an earlier attempt" in refusal(confirmations, token, replace(RUN, attempt=2))


def test_a_token_that_was_refused_is_used_up() -> None:
    confirmations = Confirmations()
    token = grant(confirmations, RUN)
    refusal(confirmations, token, replace(RUN, attempt=2))
    refusal(confirmations, token, RUN)


def test_a_token_is_valid_for_10_minutes() -> None:
    clock = Clock()
    confirmations = Confirmations(clock)
    token = grant(confirmations, RUN)
    clock.now_s += TOKEN_VALID_S - 0.001
    redeem(confirmations, token, RUN)

    token = grant(confirmations, RUN)
    clock.now_s += TOKEN_VALID_S
    assert refusal(confirmations, token) == f"{STILL}the confirm_token has expired (10 min).{AGAIN}"
    assert TOKEN_VALID_S == 600


def test_a_newer_token_voids_the_older_one_of_the_same_run_only() -> None:
    confirmations = Confirmations()
    other = grant(confirmations, OTHER)
    older = grant(confirmations, RUN)
    newer = grant(confirmations, RUN)
    assert "unknown, used" in refusal(confirmations, older)
    redeem(confirmations, newer, RUN)
    redeem(confirmations, other, OTHER)


def test_tokens_are_not_guessed() -> None:
    confirmations = Confirmations()
    tokens = {grant(confirmations, RUN) for _ in range(200)}
    assert len(tokens) == 200
    assert min(map(len, tokens)) >= 12


# --- owners


@pytest.mark.parametrize(
    ("owner", "caller", "force"), [("alice", "alice", False), ("alice", "bob", True), ("", "bob", False)]
)
def test_an_owner_or_a_caller_with_force_may_stop_a_run(owner: str, caller: str, force: bool) -> None:
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
    assert describe_for_confirmation(RUN, []) == (
        "cfm-7kqz (running, owner alice, started 2026-11-21T15:30:45.123Z): python train.py --lr 3e-4"
    )


def test_the_facts_of_an_old_run_say_what_is_unknown() -> None:
    assert describe_for_confirmation(Run(RunSpec(run_id="cfm-7kqz", command=["python", "x.py"]), "starting"), []) == (
        "cfm-7kqz (starting, owner unknown): python x.py"
    )


def test_the_facts_of_a_long_command_stay_short_and_keep_the_parameters_at_its_end() -> None:
    spec = replace(RUN.spec, command="x" * 5000, params={"logdir": "runs/{run_id}", "lr": 0.1})
    text = describe_for_confirmation(replace(RUN, spec=spec), [])
    assert text.endswith(" --logdir runs/cfm-7kqz --lr 0.1")
    assert len(text.partition("): ")[2]) == 200


def test_the_facts_name_at_most_ten_leftovers() -> None:
    left = [RunProcess(pid, f"worker{pid}") for pid in range(11, 31)]
    _, _, leftovers = describe_for_confirmation(RUN, left).partition("; left-over processes: ")
    assert leftovers.split(", ") == [f"{pid} worker{pid}" for pid in range(11, 21)]


def test_the_same_question_is_asked_in_the_same_words() -> None:
    assert describe_for_confirmation(RUN, []) == describe_for_confirmation(
        replace(RUN, events=({"seq": 1, "kind": "started"},)), []
    )


def test_a_question_about_several_is_bound_to_the_runs_that_it_named() -> None:
    sets = Confirmations()
    sets.ask("client", ["tag:a"], {"x-1": 1}, "Stop x-1?")
    assert sets.find_question("client", ["tag:a"]) == "Stop x-1?"
    assert sets.find_question("bob", ["tag:a"]) is None
    answered, _ = sets.answer("client", ["tag:a"])
    assert answered is not None
    assert answered.attempts == {"x-1": 1}
    assert sets.answer("client", ["tag:a"])[0] is None, "used once"


def test_of_two_open_questions_that_named_other_runs_no_answer_is_clear() -> None:
    sets = Confirmations()
    for attempts in ({"x-1": 1, "x-2": 1}, {"x-2": 1, "x-3": 1}):
        sets.ask(None, ["tag:a"], attempts, f"Stop {', '.join(attempts)}?")
    assert sets.answer(None, ["tag:a"])[0] is None
    sets.ask(None, ["tag:a"], {"x-1": 1}, "Stop x-1?")
    sets.ask(None, ["tag:a"], {"x-1": 1}, "Stop x-1?")
    assert sets.answer(None, ["tag:a"])[0] is not None, "the same question twice"


def test_a_question_and_a_token_are_valid_for_10_minutes() -> None:
    clock = Clock()
    sets = Confirmations(clock)
    sets.ask("client", ["tag:a"], {"x-1": 1}, "Stop x-1?")
    token = sets.grant_token(["tag:a"], {"x-1": 1})
    clock.now_s += TOKEN_VALID_S
    assert sets.answer("client", ["tag:a"])[0] is None
    with pytest.raises(KillNotConfirmed, match="expired"):
        sets.redeem_token(token, ["tag:a"])


def test_a_token_for_several_is_for_its_words_and_one_use() -> None:
    sets = Confirmations()
    old = sets.grant_token(["tag:a"], {"x-1": 1})
    token = sets.grant_token(["tag:a"], {"x-1": 2})
    assert sets.redeem_token(token, ["tag:a"]).attempts == {"x-1": 2}
    other = sets.grant_token(["a", "b"], {"a": 1})
    for void in (old, token):
        with pytest.raises(KillNotConfirmed, match="no run was stopped; the confirm_token is unknown, used"):
            sets.redeem_token(void, ["tag:a"])
    with pytest.raises(KillNotConfirmed, match=r"for other runs \(a b\), and is still valid for them"):
        sets.redeem_token(other, ["a"])
    assert sets.redeem_token(other, ["a", "b"]).attempts == {"a": 1}


def test_a_token_for_a_launch_survives_a_call_with_another_command() -> None:
    launches = Confirmations(of_launches=True)
    token = launches.grant_token(["pkill python"], {"x-1": 1})
    with pytest.raises(
        KillNotConfirmed,
        match=r"nothing was started; .*for another command \(pkill python\), and is still valid for it",
    ):
        launches.redeem_token(token, ["pkill -f train"])
    assert launches.redeem_token(token, ["pkill python"]).attempts == {"x-1": 1}
