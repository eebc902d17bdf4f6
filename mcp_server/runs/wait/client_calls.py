"""The calls of a client over stdio: what each has left in memory, to be taken back, or used when it is repeated.

A client may give a call up after it was answered, and a server may die before its answer has gone. What the answer says
was then not heard. The next server of the client has these calls from the former one, and finds its own again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_MOST_CALLS = 64
_HEAD, _PLACES = struct.Struct("qq"), (0, 1 << 26)
_current: ContextVar[tuple[ClientCalls, ClientCall] | None] = ContextVar("client_call", default=None)


@dataclass(eq=False)
class ClientCall:
    """One call. ``run_id``: the run or sweep that it has launched. ``changes``: table, key, former and new value."""

    request_id: str
    began_s: float  # on the monotonic clock
    repeated_s: float = 0.0
    run_id: str = ""
    is_cut: bool = False
    has_changed: bool = False
    changes: list[tuple[dict[Any, Any], Any, Any, Any]] = field(default_factory=list)

    def take_back(self) -> None:
        """Let the caller have seen nothing by this call's answer."""
        for table, key, former, present in reversed(self.changes):
            if table.get(key) == present:
                table.pop(key)
                if former is not None:
                    table[key] = former
        self.changes.clear()


def current_call() -> ClientCall | None:
    """Return the call of a client over stdio that is answered now."""
    present = _current.get()
    return None if present is None else present[1]


def waited_before() -> float:
    """Return the seconds since the present call was asked of a server that has died, else 0."""
    call = current_call()
    return call.repeated_s if call is not None else 0.0


def keep_run(run_id: str) -> None:
    """Note, before it starts, which run or sweep the present call launches."""
    if (present := _current.get()) is not None:
        calls, call = present
        call.run_id = run_id
        calls.keep()


def keep_value(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Put a value into a table of what callers have seen, unless the present call was given up."""
    if (call := current_call()) is not None:
        if call.is_cut:
            return
        call.changes.append((table, key, table.get(key), value))
        call.has_changed = True
    table[key] = value


class ClientCalls:
    """The newest calls of the client. ``keep`` writes what the next server shall have."""

    def __init__(self) -> None:
        self.by_request: dict[str, ClientCall] = {}
        self.keep: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def open(self, request_id: str, repeated_s: float | None, *, changes: bool) -> Iterator[None]:
        """Answer a call in the block; ``repeated_s``: so long ago it was asked of a server that has died.

        ``changes``: it may leave something that only ``keep`` knows.
        """
        call = self.by_request.pop(request_id, None)
        if repeated_s is None or call is None:
            call = ClientCall(request_id, time.monotonic() - (repeated_s or 0.0))
        call.take_back()
        call.repeated_s = repeated_s or 0.0
        self.by_request[request_id] = call
        while len(self.by_request) > _MOST_CALLS:
            del self.by_request[next(iter(self.by_request))]
        token = _current.set((self, call))
        try:
            yield
        finally:
            _current.reset(token)
            if call.has_changed or changes:
                call.has_changed = False
                self.keep()

    def cut(self, request_id: str) -> None:
        """Note that the client has given a call up: it has heard no answer."""
        if (call := self.by_request.get(request_id)) is not None:
            call.is_cut = True
            call.take_back()
            self.keep()


class KeptState:
    """A value in the memory that the servers of one client have in common. A death during a write loses that write."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._number = 0

    def read(self) -> Any:
        """Return what was last written whole; None where there is none, or another version wrote it."""
        read = ((os.pread(self._fd, _HEAD.size, at), at) for at in _PLACES)
        heads = [(*_HEAD.unpack(head), at) for head, at in read if len(head) == _HEAD.size]
        self._number, size, at = max(heads, default=(0, 0, 0))
        try:
            # The memory has no name, and belongs to processes that nobody else can look into.
            return pickle.loads(os.pread(self._fd, size, at + _HEAD.size)) if self._number else None  # noqa: S301
        except Exception:  # of any kind: modules may have changed since
            return None

    def write(self, value: Any) -> None:
        """Let the next server read ``value``."""
        data, self._number = pickle.dumps(value), self._number + 1
        at = _PLACES[self._number % 2]
        if len(data) < _PLACES[1] - _HEAD.size:
            with contextlib.suppress(OSError):  # no memory is left: the next server knows less
                os.pwrite(self._fd, data, at + _HEAD.size)
                os.pwrite(self._fd, _HEAD.pack(self._number, len(data)), at)
