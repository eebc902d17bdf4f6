"""Calls that may never come back: made in a thread that can be left behind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_EVERY_S = 0.02

T = TypeVar("T")


class Hang(Exception):
    """A call did not come back in time."""


class Caller:
    """A thread that makes one call after the other; to be replaced once one has hung."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except Exception as error:  # raised where it was asked
                self._answers.put((None, error))

    def ask(self, call: Callable[[], T], patience_s: float) -> T:
        """Return what ``call`` returns, or raise what it raises.

        Raises:
            Hang: it did not come back within ``patience_s``. Ask nothing more of this caller.
        """
        self._calls.put(call)
        try:
            value, error = self._answers.get(timeout=patience_s)
        except queue.Empty:
            raise Hang from None
        if error is not None:
            raise error
        answer: T = value
        return answer

    def is_back(self, within_s: float = 0.0) -> bool:
        """Whether the call that hung has come back after all, or does within ``within_s``."""
        until_s = time.monotonic() + within_s
        while self._answers.empty() and time.monotonic() < until_s:
            time.sleep(_EVERY_S)
        return not self._answers.empty()
