"""When a connection is pinged and given up, on virtual time."""

from __future__ import annotations

import os

import pytest

from mcp_server.backends.ssh.ssh_link import Awaited, Silence
from mcp_server.record.relay_channel import FrameWriter


def give_up_s(
    heard_s: float, awaited: Awaited | None, *, answered_until_s: float = 0.0, end_s: float = 200.0
) -> float | None:
    """Return when a connection is given up whose last word came at ``heard_s``; pings are answered for a time."""
    silence, now_s = Silence(pinged_s=0.0), 0.0
    while now_s < end_s:
        due = silence.decide(now_s, heard_s, awaited if awaited and now_s >= awaited.since_s else None)
        if due == "dead":
            return now_s
        if due == "ping":
            silence.note_ping(now_s, heard_s)
            if now_s <= answered_until_s:
                heard_s = now_s + 0.1
        now_s += 0.5
    return None


def test_an_idle_connection_is_given_up_after_half_a_minute() -> None:
    assert give_up_s(0.0, None) == 30.5


@pytest.mark.parametrize("asked_s", [0.0, 3.0, 15.0])
def test_where_somebody_waits_a_connection_is_given_up_within_ten_seconds(asked_s: float) -> None:
    at_s = give_up_s(0.0, Awaited(asked_s))
    assert at_s is not None
    assert asked_s + 2.0 <= at_s <= asked_s + 10.5


def test_a_host_that_answers_pings_is_never_given_up_however_long_the_answer_takes() -> None:
    assert give_up_s(0.0, Awaited(5.0), answered_until_s=200.0) is None
    assert give_up_s(0.0, Awaited(5.0), answered_until_s=50.0) == pytest.approx(60.0, abs=2.5)


def test_what_is_sent_may_take_its_time_on_a_slow_line() -> None:
    at_s = give_up_s(0.0, Awaited(0.0, sent_bytes=2**20))
    assert at_s == pytest.approx(10.0 + 16.0, abs=1.0)


@pytest.mark.parametrize("asked", [None, Awaited(40.0)])
def test_an_idle_connection_is_pinged_every_ten_seconds_and_more_often_only_where_somebody_waits(
    asked: Awaited | None,
) -> None:
    silence, heard_s, pings = Silence(pinged_s=0.0), 0.0, []
    for half_seconds in range(121):
        now_s = half_seconds / 2
        if silence.decide(now_s, heard_s, asked if asked and now_s >= asked.since_s else None) == "ping":
            silence.note_ping(now_s, heard_s)
            heard_s = now_s
            pings.append(now_s)
    idle = [10.0, 20.0, 30.0, 40.0]
    assert pings[:4] == idle
    assert (len(pings) > 6) == (asked is not None)


def test_a_frame_waits_for_no_full_pipe() -> None:
    reader, fd = os.pipe()
    os.set_blocking(fd, False)
    filled = 0
    try:
        while True:
            filled += os.write(fd, bytes(65536))
    except BlockingIOError:
        os.set_blocking(fd, True)
    writer = FrameWriter(fd)
    writer.write_if_free({"ask": "ping"})
    assert os.read(reader, filled + 1000) == bytes(filled)
    writer.write_if_free({"ask": "ping"})
    assert os.read(reader, 1000) == b'{"ask": "ping"}\n'
    os.close(reader)
    writer.write_if_free({"ask": "ping"})
    os.close(fd)
