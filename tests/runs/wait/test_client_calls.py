"""A client's calls: what a cut one has said was not heard, and after what time the client cuts."""

from __future__ import annotations

import math
import os
import time

import pytest

from mcp_server.runs.wait import client_calls
from mcp_server.runs.wait.client_calls import ClientCalls, KeptState
from mcp_server.runs.wait.cursors import CallerCursors, Cursor


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def answer(calls: ClientCalls, cursors: CallerCursors, number: str, seq: int) -> None:
    with calls.open(number, None, changes=False):
        cursors.remember("client", {"run": Cursor(seq, "running")})


def seen(cursors: CallerCursors) -> int:
    known = cursors.tables[0].get(("client", "run"))
    return 0 if known is None else int(known.seq)


def test_the_news_of_a_cut_call_is_unseen_again_unless_a_later_answer_told_it() -> None:
    calls, cursors = ClientCalls(), CallerCursors()
    answer(calls, cursors, "1", 4)
    answer(calls, cursors, "2", 6)
    calls.cut("2")
    assert seen(cursors) == 4
    answer(calls, cursors, "3", 6)
    calls.cut("2")
    assert seen(cursors) == 6
    with calls.open("4", None, changes=False):
        calls.cut("4")
        cursors.remember("client", {"run": Cursor(9, "running")})
    assert seen(cursors) == 6, "an answer that is made after the cancel is not heard"


def test_a_repeated_call_begins_where_its_first_answer_did_not_arrive() -> None:
    calls, cursors = ClientCalls(), CallerCursors()
    answer(calls, cursors, "1", 4)
    with calls.open("1", 2.5, changes=False):
        assert seen(cursors) == 0
        assert client_calls.waited_before() == 2.5


@pytest.mark.parametrize(
    ("cuts", "expected_s"),
    [
        ([(5.0, "Request timed out")], 5.0),
        ([(300.0, "deadline exceeded"), (60.0, "timed out after 60s")], 60.0),
        ([(37.0, "")], None),
        ([(37.0, ""), (12.0, "user abort")], None),
        ([(30.0, ""), (30.4, "")], 30.4),
    ],
)
def test_a_limit_is_learned_from_cancels_of_a_clock_and_not_from_those_of_a_person(
    cuts: list[tuple[float, str]], expected_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = _Clock(monkeypatch), ClientCalls()
    assert calls.longest_wait_s == math.inf
    for number, (after_s, reason) in enumerate(cuts):
        with calls.open(str(number), None, changes=False):
            clock.now_s += after_s
            calls.cut(str(number), reason)
    assert calls.cut_off_s == (None if expected_s is None else pytest.approx(expected_s))
    told = calls.tell_cut_off()
    assert (told is None) == (expected_s is None)
    assert calls.tell_cut_off() is None, "it is told once"


def test_waits_that_are_left_open_without_a_word_shorten_later_ones_until_they_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, calls = _Clock(monkeypatch), ClientCalls()
    limits_s = []
    for number in range(4):  # a client that cuts at 5 s, and whose model needs 9 s more
        with calls.open(str(number), None, changes=False):
            calls.begin_wait(["run"], "end", hears_progress=False)
            limits_s.append(calls.longest_wait_s)
        clock.now_s += 14.0
    assert limits_s == [math.inf, math.inf, pytest.approx(5.6), pytest.approx(2.8)]
    patient = ClientCalls()
    for number in range(3):
        with patient.open(str(number), None, changes=False):
            patient.begin_wait(["run"], "end", hears_progress=True)
        clock.now_s += 14.0
    for number in range(3, 6):  # all at once, each for something else
        with patient.open(str(number), None, changes=False):
            patient.begin_wait(["run"], f"loss < {number}", hears_progress=False)
        clock.now_s += 14.0
    assert patient.longest_wait_s == math.inf


def test_what_a_server_keeps_is_read_by_the_next_one_also_where_a_write_was_cut_off() -> None:
    fd = os.memfd_create("test")
    first = KeptState(fd)
    assert first.read() is None
    first.write({"a": 1})
    first.write({"a": 2})
    assert KeptState(fd).read() == {"a": 2}
    os.pwrite(fd, b"\xff" * 40, 16)  # a third one, without its head
    second = KeptState(fd)
    assert second.read() in ({"a": 2}, None)
    second.write({"a": 3})
    assert KeptState(fd).read() == {"a": 3}
    os.close(fd)
