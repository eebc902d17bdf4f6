"""A time limit for work that a user's pattern, or a bug, could make endless."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class TimeLimitExceeded(Exception):
    """Work took longer than its limit. Not an OSError, since much code ignores those."""


def within(limit_s: float, act: Callable[[], T]) -> T:
    """Return the result of ``act``. For the main thread only. Ends pattern matching as well, which checks for signals.

    Raises:
        TimeLimitExceeded: it took longer than ``limit_s``.
    """

    def expire(*_: object) -> NoReturn:
        raise TimeLimitExceeded(f"it took longer than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return act()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
