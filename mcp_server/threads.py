"""Blocking work in threads, so that a file system that does not answer holds up nobody but the caller who uses it.

A thread that waits for a silent disk cannot be ended. Each caller of a server therefore has a number of threads of its
own, and its further calls wait until one of them is free. Work that only takes long ends itself: it calls
``stop_if_abandoned`` between its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

T = TypeVar("T")
P = ParamSpec("P")

_THREADS_A_CALLER = 16

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")
_abandoned: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("abandoned", default=None)
_free: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


class CallAbandoned(Exception):
    """Nobody waits for the result of this work any more."""


def stop_if_abandoned() -> None:
    """Call this between the steps of long work in a thread.

    Raises:
        CallAbandoned: the caller of ``run_in_thread`` was cancelled.
    """
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise CallAbandoned


@contextlib.contextmanager
def use_threads_of(caller: str | None) -> Iterator[None]:
    """Count the threads of this task as those of ``caller``. Callers without a name share theirs."""
    token = _caller.set(caller or "")
    try:
        yield
    finally:
        _caller.reset(token)


async def run_in_thread(act: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Return ``act(...)``, called in a thread. A cancelled caller does not wait for it. The thread stays counted.

    From the cancellation on, ``stop_if_abandoned`` ends the work in the thread.
    """
    loop = asyncio.get_running_loop()
    free = _free.setdefault(loop, {}).setdefault(_caller.get(), asyncio.Semaphore(_THREADS_A_CALLER))
    await free.acquire()
    turn = threading.Lock()  # taken by the thread that begins, or by a caller that leaves before

    def call() -> T:
        if not turn.acquire(blocking=False):
            raise CallAbandoned
        try:
            return act(*arguments, **keywords)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(free.release)

    abandoned = threading.Event()
    token = _abandoned.set(abandoned)
    try:
        # A limiter of its own: the semaphore counts, also after a cancellation.
        return await anyio.to_thread.run_sync(partial(call), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except asyncio.CancelledError:
        abandoned.set()
        raise
    finally:
        _abandoned.reset(token)
        if turn.acquire(blocking=False):  # cancelled before it began, or no thread could be started
            free.release()
