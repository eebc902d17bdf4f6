"""Blocking work in threads, so that a file system that does not answer holds up nobody but those who use it.

A thread that waits for a silent disk cannot be ended. Each caller of a server therefore has a number of threads of its
own, and within it each directory that its calls look at; further calls wait until one is free. Work that only takes
long ends itself: it calls ``stop_if_abandoned`` between its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from mcp_server.errors import RunwardError

T = TypeVar("T")
P = ParamSpec("P")

# For calls that look at records of runs alone; for all others together; of these, for the calls about one directory.
_THREADS_A_CALLER, _THREADS_OF_DIRECTORIES, _THREADS_A_DIRECTORY = 16, 48, 8
_PATIENCE_S = 30.0
# Long work pauses so often and so long. Without it a busy machine takes the processor from a thread that holds Python's
# lock, for some 20 ms each time, and every other call of the server waits for it several times.
_STRETCH_S, _PAUSE_S = 0.002, 0.001

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")
_directory: contextvars.ContextVar[str] = contextvars.ContextVar("directory", default="")
_abandoned: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("abandoned", default=None)
_resumed = threading.local()
_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, ...], _Limit]] = WeakKeyDictionary()


class DirectorySilent(RunwardError):
    """All threads for a directory are in use, and none has become free."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"{_THREADS_A_DIRECTORY} calls about {directory[:200]} have not come back in {_PATIENCE_S:g} s: "
            "its disk may not answer.",
            "This call was not begun. Runs go on.",
            "wait_run, list_runs, kill_run, and calls about other directories are answered.",
        )


class CallAbandoned(Exception):
    """Nobody waits for the result of this work any more."""


def is_abandoned() -> bool:
    """Return whether the caller of ``run_in_thread`` was cancelled."""
    abandoned = _abandoned.get()
    return abandoned is not None and abandoned.is_set()


def stop_if_abandoned() -> None:
    """Raise CallAbandoned between steps of long work whose caller was cancelled, else let other threads run."""
    if is_abandoned():
        raise CallAbandoned
    if _abandoned.get() is not None and time.perf_counter() - getattr(_resumed, "at_s", 0.0) > _STRETCH_S:
        time.sleep(_PAUSE_S)
        _resumed.at_s = time.perf_counter()


@contextlib.contextmanager
def use_threads_of(caller: str | None, directory: str = "") -> Iterator[None]:
    """Count the threads of this task as those of ``caller``; with a ``directory``, as those for its files."""
    token = _caller.set(caller or "")
    try:
        with use_threads_for(directory):
            yield
    finally:
        _caller.reset(token)


@contextlib.contextmanager
def use_threads_for(directory: str) -> Iterator[None]:
    """Count the threads of this task among its caller's for ``directory``; see ``use_threads_of``."""
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)


class _Limit:
    """So many threads at once. ``users``: how many calls hold or await one."""

    def __init__(self, most: int) -> None:
        self.free, self.users = asyncio.Semaphore(most), 0


class _Slot:
    """One call's share of its limits. Use it on the event loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        caller, directory = _caller.get(), _directory.get()
        sizes: dict[tuple[str, ...], int] = {(caller,): _THREADS_A_CALLER}
        if directory:
            sizes = {(caller, "at", directory): _THREADS_A_DIRECTORY, (caller, "at"): _THREADS_OF_DIRECTORIES}
        self._all = _limits.setdefault(loop, {})
        self._limits = {key: self._all.setdefault(key, _Limit(most)) for key, most in sizes.items()}
        self._held: list[_Limit] = []
        for limit in self._limits.values():
            limit.users += 1

    async def take(self) -> None:
        """Wait until there is a thread. DirectorySilent: none of the directory's comes back."""
        try:
            with anyio.move_on_after(_PATIENCE_S if _directory.get() else math.inf) as patience:
                for limit in self._limits.values():
                    await limit.free.acquire()
                    self._held.append(limit)
        except BaseException:
            self.release()
            raise
        if patience.cancelled_caught:
            self.release()
            raise DirectorySilent(_directory.get())

    def release(self) -> None:
        """Let the next call have it."""
        for limit in self._held:
            limit.free.release()
        for key, limit in self._limits.items():
            limit.users -= 1
            if not limit.users:
                self._all.pop(key, None)


def is_idle() -> bool:
    """Return whether no call uses or awaits a thread of this event loop now; one that sleeps uses none."""
    return not _limits.get(asyncio.get_running_loop())


async def run_in_thread(act: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Return ``act(...)``, called in a thread. A cancelled caller does not wait for it. The thread stays counted.

    From then on ``stop_if_abandoned`` ends the work. DirectorySilent: the directory's threads do not come back.
    """
    loop = asyncio.get_running_loop()
    slot = _Slot(loop)
    await slot.take()
    turn = threading.Lock()  # taken by the thread that begins, or by a caller that leaves before

    def call() -> T:
        if not turn.acquire(blocking=False):
            raise CallAbandoned
        try:
            return act(*arguments, **keywords)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(slot.release)

    abandoned = threading.Event()
    token = _abandoned.set(abandoned)
    try:
        # A limiter of its own: the slot counts, also after a cancellation.
        return await anyio.to_thread.run_sync(partial(call), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except asyncio.CancelledError:
        abandoned.set()
        raise
    finally:
        _abandoned.reset(token)
        if turn.acquire(blocking=False):  # cancelled before it began, or no thread could be started
            slot.release()
