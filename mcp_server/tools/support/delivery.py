"""Whether the answer of a call reached its caller: over HTTP the request knows, over stdio nobody does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import anyio

_KEY = "runward.delivery"


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
