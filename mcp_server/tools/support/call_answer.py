"""The answer of a call: whether it reached its caller, which HTTP alone knows, and whether a task may replace it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.store.wait_files import WaitFiles, WaitRecord
from mcp_server.threads import run_in_thread

_KEY = "runward.delivery"
_offered: ContextVar[TaskOffer | None] = ContextVar("task_offer", default=None)


class Delivery:
    """The answer to one HTTP request: open, then sent whole, or lost because its client has gone."""

    def __init__(self) -> None:
        self._state: Literal["open", "sent", "lost"] = "open"
        self._scopes: set[anyio.CancelScope] = set()
        self._callbacks: list[Callable[[], None]] = []

    @classmethod
    def of(cls, scope: Mapping[str, Any] | None) -> Delivery | None:
        """Return the delivery that the scope of a request holds, or None over stdio."""
        return None if scope is None else scope.get(_KEY)

    @classmethod
    def attach(cls, scope: Any) -> Delivery:
        """Put a delivery into the scope of a request."""
        delivery: Delivery = scope.setdefault(_KEY, cls())
        return delivery

    def finish(self) -> None:
        """Note that the whole answer was sent."""
        if self._state == "open":
            self._state = "sent"
            for callback in self._callbacks:
                callback()

    def lose(self) -> None:
        """Note that the client has gone. Work for it alone is cancelled."""
        if self._state == "open":
            self._state = "lost"
            for scope in tuple(self._scopes):
                scope.cancel()

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the answer is sent, never if it is lost."""
        if self._state == "sent":
            callback()
        else:
            self._callbacks.append(callback)

    @contextlib.contextmanager
    def cancel_when_lost(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel ``scope`` as soon as the client has gone."""
        if self._state == "lost":
            scope.cancel()
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)


@dataclass(eq=False)
class TaskOffer:
    """A task that may answer the present call. Once accepted it has a ``record``, which a power cut does not end."""

    files: WaitFiles
    owner: str | None
    record: WaitRecord | None = None
    runs: Sequence[Watched] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Offer the task to the tool that is called in the block."""
        token = _offered.set(self)
        try:
            yield
        finally:
            _offered.reset(token)

    @staticmethod
    def current() -> TaskOffer | None:
        """Return the offer to the present call, or None where its client did not declare tasks."""
        return _offered.get()

    async def accept(self, facts: Mapping[str, Any], runs: Sequence[Watched]) -> bool:
        """Keep the wait with these ``facts``. False where it cannot be kept, so that the call must block."""
        with contextlib.suppress(OSError):
            self.record = await run_in_thread(self.files.create, self.owner, facts)
        self.runs = runs
        return self.record is not None
