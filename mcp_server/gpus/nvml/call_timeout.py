"""Calls that may never return, made in a thread that can be abandoned."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_POLL_S = 0.02

T = TypeVar("T")


class CallTimeout(Exception):
    """A call did not return in time."""


class Caller:
    """A thread that makes one call after the other. Replace it once a call has timed out."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            function = self._calls.get()
            try:
                self._answers.put((function(), None))
            except Exception as error:  # ``call`` raises it in the caller's thread
                self._answers.put((None, error))

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what ``function`` returns, or raise what it raises.

        Raises:
            CallTimeout: it did not return within ``timeout_s``. Make no further calls with this caller.
        """
        self._calls.put(function)
        try:
            value, error = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise CallTimeout from None
        if error is not None:
            raise error
        answer: T = value
        return answer

    def has_returned(self, within_s: float = 0.0) -> bool:
        """Return whether the call that timed out has returned meanwhile, or does within ``within_s``."""
        until_s = time.monotonic() + within_s
        while self._answers.empty() and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return not self._answers.empty()
