"""A limit for work that somebody else's pattern, or a bug, could make endless."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class TooLong(Exception):
    """Work took longer than it may; no OSError, which many pass over."""


def within(limit_s: float, act: Callable[[], T]) -> T:
    """Return what ``act`` returns. For the main thread only; pattern matching looks for signals, so it can be ended.

    Raises:
        TooLong: it took longer than ``limit_s``.
    """

    def expire(*_: object) -> NoReturn:
        raise TooLong(f"it took longer than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return act()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
