"""Work that takes too long is ended, whatever it catches."""

import contextlib
import re
import signal
import time

import pytest

from mcp_server.system.time_limit import TimeLimitExceeded, within


def test_what_is_done_in_time_is_returned_and_no_alarm_is_left() -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert within(5, lambda: 7) == 7
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_pattern_that_never_ends_is_ended() -> None:
    with pytest.raises(TimeLimitExceeded, match=r"longer than 0\.1 s"):
        within(0.1, lambda: re.search("(a|aa)+$", "a" * 3000 + "!"))


def test_who_passes_over_errors_of_the_world_does_not_pass_over_this() -> None:
    def passes_over() -> None:
        with contextlib.suppress(OSError):
            time.sleep(5)

    with pytest.raises(TimeLimitExceeded):
        within(0.05, passes_over)
