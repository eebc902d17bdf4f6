"""Blocking work in threads, so that a file system that does not answer holds up nobody but the caller who uses it.

A thread that waits for a silent disk cannot be ended. Each caller of a server therefore has a number of threads of its
own, and its further calls wait until one of them is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
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
_free: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@contextlib.contextmanager
def use_threads_of(caller: str | None) -> Iterator[None]:
    """Count the threads of this task as those of ``caller``; callers without a name share theirs."""
    token = _caller.set(caller or "")
    try:
        yield
    finally:
        _caller.reset(token)


async def run_in_thread(act: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Return ``act(...)``, called in a thread. A cancelled caller does not wait for it; the thread stays counted."""
    loop = asyncio.get_running_loop()
    free = _free.setdefault(loop, {}).setdefault(_caller.get(), asyncio.Semaphore(_THREADS_A_CALLER))
    await free.acquire()

    def call() -> T:
        try:
            return act(*arguments, **keywords)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(free.release)

    # A limiter of its own: the semaphore counts, also after a cancellation.
    return await anyio.to_thread.run_sync(partial(call), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
