"""Notices arrive, are tried again in order, are limited, and name no secret; time is virtual."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.notices.notice import NoticedRun, Target, make_notice
from mcp_server.record.notices.sender import RETRIES_S, Allowance, DeliveryFailed, Sender, deliver
from mcp_server.system import processes
from mcp_server.system.lock_files import hold_lock
from mcp_server.text.redaction import Redactor
from tests.support.receiver import Receiver, receive
from tests.support.slow_answers import answer_slowly

RUN = NoticedRun("cfm-7kqz", "cfm", "alice", "box1")
ENDED = {"seq": 3, "kind": "ended", "state": "finished", "text": "Finished with exit code 0.", "elapsed_s": 3.0}
STALLED = {"seq": 2, "kind": "stalled", "text": "No progress since 10 min."}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receive() as receiver:
        yield receiver


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "runs" / "cfm-7kqz"
    path.mkdir(parents=True)
    return path


def make_sender(directory: Path, *targets: Target, wait: Callable[[float], None] = lambda _: None) -> Sender:
    return Sender(list(targets), RUN, directory, Redactor({"KEY": "a-very-secret-value"}), env={}, wait=wait)


def record(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "notices.jsonl").read_text().splitlines()]
    assert all(line["accepted"] for line in lines if "sent" not in line)
    return [line for line in lines if "sent" in line]


def test_each_target_gets_what_it_wants_in_order(receiver: Receiver, directory: Path) -> None:
    url = receiver.url
    all_events, ends = Target("a", url=f"{url}/a", events=("stalled", "ended")), Target("e", url=f"{url}/e")
    sender = make_sender(directory, all_events, ends)
    for event in ({"kind": "started", "text": "x"}, STALLED, ENDED):
        sender.add(event)
    sender.close()
    by_path = {path: [body["kind"] for at, _, body in receiver.posts if at == path] for path in ("/a", "/e")}
    assert by_path == {"/a": ["stalled", "ended"], "/e": ["stalled", "ended"]}
    assert all(each["sent"] for each in record(directory))


def test_a_service_in_trouble_is_tried_again_and_the_order_stays(receiver: Receiver, directory: Path) -> None:
    receiver.answers = [503, 429, 200]
    waits: list[float] = []
    sender = make_sender(directory, Target("a", url=receiver.url), wait=waits.append)
    sender.add(STALLED)
    sender.add(ENDED)
    sender.close()
    assert [body["kind"] for body in receiver.bodies] == ["stalled", "stalled", "stalled", "ended"]
    assert waits == list(RETRIES_S[:2])


def test_it_is_given_up_at_last_and_the_record_says_so(directory: Path) -> None:
    waits: list[float] = []
    sender = make_sender(directory, Target("a", url="http://127.0.0.1:1/secret-topic"), wait=waits.append)
    sender.add(ENDED)
    sender.close()
    assert waits == list(RETRIES_S)
    (line,) = record(directory)
    assert (line["sent"], line["target"], line["kind"]) == (False, "a", "ended")
    assert "refused" in line["cause"]
    assert "secret-topic" not in json.dumps(line)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_end_that_the_record_of_a_dead_supervisor_proves_is_the_notice(
    receiver: Receiver, directory: Path, is_stopped: bool
) -> None:
    begun = {"seq": 1, "at": "2026-11-21T15:30:45.500Z", "kind": "started", "text": "Runs.", "attempt": 1}
    (directory / "events.jsonl").write_text(json.dumps(begun) + "\n")
    (directory / "spec.json").write_text(json.dumps({"run_id": directory.name, "created_at": begun["at"]}))
    stop = {"by": "ada", "reason": "", "at": begun["at"]}

    def carry_out(_: float) -> None:
        done = {"carried_out": {"at": begun["at"], "signals_sent": ["SIGKILL"]}}
        (directory / "stop.json").write_text(json.dumps({**stop, **done}))

    if is_stopped:
        (directory / "stop.json").write_text(json.dumps(stop))
    else:
        (directory / "attempts/1").mkdir(parents=True)
        (directory / "attempts/1/exit.json").write_text(json.dumps({"state": "failed", "exit_code": 7}))
    make_sender(directory, Target("a", url=receiver.url), wait=carry_out).close()
    (body,) = receiver.bodies
    assert (body["state"], body.get("exit_code")) == (("killed", None) if is_stopped else ("failed", 7))


@pytest.mark.parametrize("status", [301, 400, 403, 404])
def test_what_cannot_succeed_is_not_tried_again(receiver: Receiver, directory: Path, status: int) -> None:
    receiver.answers = [status]
    sender = make_sender(directory, Target("a", url=receiver.url), wait=lambda _: pytest.fail("tried again"))
    sender.add(ENDED)
    sender.close()
    assert len(receiver.posts) == 1
    assert record(directory)[0]["cause"] == f"HTTP {status}"


def test_the_death_of_the_supervisor_is_a_notice(receiver: Receiver, directory: Path) -> None:
    sender = make_sender(directory, Target("a", url=receiver.url))
    sender.add(STALLED)
    sender.close()
    assert [(body["kind"], body.get("state")) for body in receiver.bodies] == [("stalled", None), ("ended", "lost")]


def test_secrets_of_the_run_are_masked(receiver: Receiver, directory: Path) -> None:
    sender = make_sender(directory, Target("a", url=receiver.url))
    unknown = "ghp_" + "a1B2" * 9
    failure = {"kind": "auth_error", "line": f"RuntimeError: {unknown} is refused"}
    sender.add({**ENDED, "text": "It printed a-very-secret-value.", "failure": failure})
    sender.close()
    assert "a-very-secret-value" not in json.dumps(receiver.bodies)
    assert unknown not in json.dumps(receiver.bodies)
    assert "is refused" in json.dumps(receiver.bodies)


def test_a_limit_of_an_hour_holds_for_all_runs_and_says_what_was_left_out(tmp_path: Path) -> None:
    target = Target("a", url="https://box/x", max_per_hour=2)
    first, other = Allowance(tmp_path / "n", target), Allowance(tmp_path / "n", target)
    assert [first.take(0), other.take(1), first.take(2), other.take(3)] == [
        (True, 0),
        (True, 0),
        (False, 1),
        (False, 2),
    ]
    assert first.take(3600.5) == (True, 2)
    assert other.take(3601.5) == (True, 0)


def test_a_clock_that_went_back_locks_nothing_out(tmp_path: Path) -> None:
    allowance = Allowance(tmp_path, Target("a", url="https://box/x", max_per_hour=1))
    assert allowance.take(1e9) == (True, 0)
    assert allowance.take(1e9 - 7200) == (True, 0)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"sent": "x"}', '{"sent": [], "left_out": null}', "[" * 99_999, '{"sent": [], "left_out": 1e999}'],
)
def test_a_damaged_count_is_begun_anew(tmp_path: Path, content: str) -> None:
    target = Target("a", url="https://box/x")
    Allowance(tmp_path, target).take(0)
    next(tmp_path.glob("*.json")).write_text(content)
    assert Allowance(tmp_path, target).take(1) == (True, 0)


def test_a_count_that_is_no_file_and_a_lock_that_is_never_released_stop_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.record.notices.sender._PATIENCE_S", 0.0)
    allowance = Allowance(tmp_path, Target("a", url="https://box/x", max_per_hour=1))
    allowance.take(0)
    count = next(tmp_path.glob("*.json"))
    count.unlink()
    os.mkfifo(count)
    assert allowance.take(1) == (True, 0)
    assert allowance.take(2) == (False, 1), "it was replaced"
    with hold_lock(next(tmp_path.glob("*.lock"))):
        assert allowance.take(3) == (True, 0)


def test_a_full_directory_of_counts_stops_no_notice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Allowance(tmp_path / "file" / "below", Target("a", url="https://box/x")).take(0) == (True, 0)


def test_a_command_gets_the_facts_and_nothing_of_it_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f'cat > {out}; echo "$RUNWARD_NOTICE_TITLE|$RUNWARD_NOTICE_STATE|$PATH" >> {out}; sleep 600 & exit 0'
    deliver(Target("c", command=("/bin/sh", "-c", script)), make_notice(ENDED, RUN), {"PATH": "/usr/bin:/bin"})
    facts, _, words = out.read_text().partition("}")
    assert json.loads(facts + "}")["run_id"] == "cfm-7kqz"
    assert words.strip() == "finished: cfm-7kqz after 3 s|finished|/usr/bin:/bin"


@pytest.mark.parametrize(
    ("command", "cause", "may_pass"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), "the command ended with 3", True),
        (("/no/such/program",), "/no/such/program: No such file or directory", False),
        (("/bin/tr\0ue",), "it cannot be used", False),
    ],
)
def test_a_command_that_fails_is_said(command: tuple[str, ...], cause: str, may_pass: bool) -> None:
    with pytest.raises(DeliveryFailed) as failure:
        deliver(Target("c", command=command), make_notice(ENDED, RUN), {})
    assert cause in failure.value.cause
    assert failure.value.may_pass == may_pass


@pytest.mark.parametrize("answer", ["body", "head"])
def test_a_service_that_answers_byte_by_byte_did_not_answer(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("mcp_server.record.notices.sender._TIMEOUT_S", 0.2)
    with answer_slowly(answer) as address, pytest.raises(DeliveryFailed, match="TimeoutError") as failure:
        deliver(Target("slow", url=address), make_notice(ENDED, RUN), {})
    assert failure.value.may_pass


DETACHED = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
"""


def sleepers(word: str) -> list[processes.Process]:
    return [each for each in processes.list_processes() if processes.command_words(each.pid) == ["sleep", word]]


@pytest.mark.parametrize("env", ["", "env -i "])
def test_a_command_of_a_notice_leaves_no_daemon_behind(env: str) -> None:
    command = f"{env}setsid sleep 6113.7 </dev/null & {sys.executable} -c '{DETACHED}' 6113.7; exit 0"
    deliver(Target("c", command=("/bin/sh", "-c", command)), make_notice(ENDED, RUN), {"PATH": "/usr/bin:/bin"})
    assert not sleepers("6113.7")
    assert not [pid for pid in processes.children_of_threads(os.getpid()) if processes.find_process(pid) is None]


def test_a_command_that_takes_too_long_ends_with_its_daemons_and_beside_another_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mcp_server.record.notices.sender._COMMAND_S", 1.0)
    for fifo in ("begun", "go"):
        os.mkfifo(tmp_path / fifo)
    kept, failures = f"(setsid sh -c 'echo > {tmp_path}/begun; read line < {tmp_path}/go' &) ; cat {tmp_path}/go", []

    def run_slowly() -> None:
        try:
            deliver(Target("c", command=("/bin/sh", "-c", kept)), make_notice(ENDED, RUN), {"PATH": "/usr/bin:/bin"})
        except DeliveryFailed as failure:
            failures.append(failure.cause)

    other = threading.Thread(target=run_slowly)
    other.start()
    (tmp_path / "begun").read_text()
    deliver(Target("c", command=("/bin/sh", "-c", "true")), make_notice(ENDED, RUN), {"PATH": "/usr/bin:/bin"})
    assert processes.find_by_variable("RUNWARD_NOTICE_STATE", "finished"), "the other command goes on with its daemon"
    other.join()
    assert failures == ["the command took more than 1 s"]
    assert not processes.find_by_variable("RUNWARD_NOTICE_STATE", "finished")
