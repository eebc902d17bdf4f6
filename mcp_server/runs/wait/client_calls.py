"""The calls of a client over stdio: what each has left in memory, to be taken back, or used when it is repeated.

A client may give a call up after it was answered, and a server may die before its answer has gone. What the answer says
was then not heard. The next server of the client has these calls from the former one, and finds its own again.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_MOST_CALLS = 64
_SAYS_TIME = re.compile(r"(?i)tim(?:e|ed)[ -]?out|deadline")
# Of two cancels without a reason that came after so nearly the same time, a clock is the cause, and no person.
_ALIKE_SHARE = 0.05
# The shortest limit that a client is taken to have, and how many silences show one: two agents may wait for one run.
_FEWEST_S, _SILENCES = 3.0, 2
_SHARE_OF_CUT_OFF, _SHARE_OF_SILENCE = 0.8, 0.5
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
    waits_for: tuple[str, ...] = ()  # the runs and the condition of a wait whose client hears no progress
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
    """The newest calls of the client. ``keep`` writes what the next server shall have.

    ``cut_off_s``: after how many seconds the client gives a call up, as far as its cancels, or its silence, show it.
    """

    def __init__(self) -> None:
        self.by_request: dict[str, ClientCall] = {}
        self.keep: Callable[[], None] = lambda: None
        self.cut_off_s: float | None = None
        self._cancelled_s, self._silences, self._is_told = 0.0, 0, False

    @property
    def tables(self) -> tuple[Any, ...]:
        """Everything, for the next server of a client."""
        return self.by_request, self.cut_off_s, self._cancelled_s, self._silences, self._is_told

    @tables.setter
    def tables(self, tables: tuple[Any, ...]) -> None:
        self.by_request, self.cut_off_s, self._cancelled_s, self._silences, self._is_told = tables

    @property
    def longest_wait_s(self) -> float:
        """How long a wait may take, so that its answer is heard."""
        return math.inf if self.cut_off_s is None else _SHARE_OF_CUT_OFF * self.cut_off_s

    def tell_cut_off(self) -> str | None:
        """Return a sentence about the client's limit, once."""
        if self.cut_off_s is None or self._is_told:
            return None
        self._is_told = True
        return (
            f"This client gave a call up after about {self.cut_off_s:.3g} s: later heartbeats come sooner. "
            "Its setting is in guide://clients."
        )

    def begin_wait(self, run_ids: Sequence[str], until: str, *, hears_progress: bool) -> None:
        """Note that the present call waits. An open wait for the same, of a client without a word, was given up.

        A client that hears progress counts its limit from there, and cancels what it gives up.
        """
        call = current_call()
        if call is None or hears_progress or call.repeated_s:
            return
        call.waits_for = (*run_ids, until)
        for older in self.by_request.values():
            after_s = call.began_s - older.began_s
            if older is not call and older.waits_for == call.waits_for and after_s >= _FEWEST_S:
                older.waits_for = ()
                self._silences += 1
                if self._silences >= _SILENCES:
                    shortest_s = min(after_s, self.cut_off_s or math.inf)
                    self._learn(max(_FEWEST_S, _SHARE_OF_SILENCE * shortest_s))

    def end_wait(self) -> None:
        """Note that the present call is answered."""
        if (call := current_call()) is not None:
            call.waits_for = ()

    def _learn(self, cut_off_s: float) -> None:
        if self.cut_off_s is None or cut_off_s < self.cut_off_s:
            self.cut_off_s, self._is_told = cut_off_s, False
            self.keep()

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

    def cut(self, request_id: str, reason: str = "") -> None:
        """Note that the client has given a call up: it has heard no answer."""
        if (call := self.by_request.get(request_id)) is None or call.is_cut:
            return
        after_s = time.monotonic() - call.began_s
        before_s, self._cancelled_s = self._cancelled_s, after_s
        if _SAYS_TIME.search(reason) or abs(after_s - before_s) < _ALIKE_SHARE * after_s:
            self._learn(after_s)
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
