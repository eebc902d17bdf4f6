"""Limits of time for work that could be endless: by a user's pattern, a bug, or a file server that is silent."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
_MOST_TIMES = 4.0


class TimeLimitExceeded(Exception):
    """Work used more processor time than its limit. Not an OSError, since much code ignores those."""


def wait_longer(usual_s: float) -> float:
    """Return how long to wait for a process that takes ``usual_s`` at most: up to four times that on a busy machine."""
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        load = 1.0
    return usual_s * min(_MOST_TIMES, max(1.0, load))


def within(limit_s: float, act: Callable[[], T]) -> T:
    """Return the result of ``act``. For the main thread only. Ends pattern matching as well, which checks for signals.

    Only processor time counts: while the machine is suspended, or a file system is silent, nothing is too slow.

    Raises:
        TimeLimitExceeded: it used more than ``limit_s`` of processor time.
    """

    def expire(*_: object) -> NoReturn:
        raise TimeLimitExceeded(f"it used more than {limit_s:g} s of processor time")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return act()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def call_aside(limit_s: float, act: Callable[[], T]) -> list[T]:
    """Return the result of ``act``, called in a thread, as a list; an empty one after ``limit_s``. Raises its error."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    return results


class RateBudget:
    """Allows so many acts at once, and so many a second on average."""

    def __init__(self, at_once: float, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left, self._at_s = at_once, time.monotonic()

    def take(self) -> bool:
        """Return whether an act is left, and take it."""
        now_s = time.monotonic()
        self._left = min(self._at_once, self._left + self._per_s * (now_s - self._at_s))
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
