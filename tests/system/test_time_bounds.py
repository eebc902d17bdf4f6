"""Work that takes too long is ended, whatever it catches."""

import contextlib
import os
import re
import signal
import time

import pytest

from mcp_server.system.time_bounds import TimeLimitExceeded, wait_longer, within


def test_what_is_done_in_time_is_returned_and_no_alarm_is_left() -> None:
    before = signal.getsignal(signal.SIGPROF)
    assert within(5, lambda: 7) == 7
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) is before


def test_a_pattern_that_never_ends_is_ended() -> None:
    with pytest.raises(TimeLimitExceeded, match=r"more than 0\.1 s"):
        within(0.1, lambda: re.search("(a|aa)+$", "a" * 3000 + "!"))


def test_waiting_does_not_count() -> None:
    assert within(0.01, lambda: time.sleep(0.1)) is None


def test_who_passes_over_errors_of_the_world_does_not_pass_over_this() -> None:
    def passes_over() -> None:
        with contextlib.suppress(OSError):
            while True:
                sum(range(1000))

    with pytest.raises(TimeLimitExceeded):
        within(0.05, passes_over)


@pytest.mark.parametrize(("load", "waits_s"), [(0.1, 15.0), (2.0, 15.0), (5.0, 37.5), (99.0, 60.0)])
def test_a_busy_machine_has_longer_for_a_start(monkeypatch: pytest.MonkeyPatch, load: float, waits_s: float) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert wait_longer(15.0) == waits_s
