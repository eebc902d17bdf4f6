"""The sockets of the HTTP server: how many it holds, for whom, and which one gives way to a new one.

A connection is unproven until a request on it has shown a token. Unproven connections never take the places of proven
ones: where theirs are full, the oldest one of the address with the most of them gives way. So a flood of silent
connections costs a caller with a token nothing, whatever address it comes from.
"""

from __future__ import annotations

import errno
import resource
import socket
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

# More is of no use, and children of the server inherit the limit: some programs close every descriptor below it.
_ENOUGH_DESCRIPTORS = 1 << 16
_MOST, _MOST_UNPROVEN = 4096, 512
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_QUEUE = 1024  # connections that the kernel keeps until they are accepted
# Accepted in one turn of the event loop, which closes those that give way only two turns later.
ACCEPTED_AT_ONCE = 8


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as useful and allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= top:
        return _ENOUGH_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
        return top
    return soft


@dataclass(frozen=True)
class ConnectionLimits:
    """The most connections altogether, without a token, and of one token."""

    total: int
    unproven: int
    per_token: int

    @classmethod
    def within(cls, descriptors: int) -> ConnectionLimits:
        """Return limits that leave a quarter of the descriptors, at least 64 or half of them, to all other work."""
        total = max(4, min(_MOST, descriptors - max(descriptors // 4, min(64, descriptors // 2))))
        unproven = max(2, min(_MOST_UNPROVEN, total // 3))
        return cls(total, unproven, max(1, (total - unproven) // 2))


class Connection(Protocol):
    """One connection, as the protocol of the server implements it."""

    @property
    def peer(self) -> str:
        """The address of the other side."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""

    def abort(self) -> None:
        """Close it at once."""


class Connections:
    """All open connections. ``refused`` counts those that were closed to make room."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused = 0
        self._sockets = 0  # accepted and not closed yet
        self._unproven: dict[str, dict[Connection, None]] = {}  # by peer, the oldest first
        self._proven: dict[str, dict[Connection, None]] = {}  # by holder of the token, "" where none is needed
        self._holders: dict[Connection, str] = {}
        self._closing: set[Connection] = set()

    # --- sockets, as the listener sees them

    def count_socket(self, accepted: socket.socket) -> None:
        """Count ``accepted`` until it is closed."""
        self._sockets += 1
        release = weakref.finalize(accepted, self._release_socket)
        release.atexit = False
        if isinstance(accepted, _AcceptedSocket):
            accepted.release = release

    def _release_socket(self) -> None:
        self._sockets -= 1

    def check_room(self) -> None:
        """Make room for one more connection. BlockingIOError: not before the next turn of the event loop."""
        made = sum(map(len, self._unproven.values())) + len(self._holders) + len(self._closing)
        unproven = self._sockets - len(self._holders)
        if self._sockets < self.limits.total and unproven < self.limits.unproven:
            return
        # One is closed in two turns, or has been accepted and is not known here before the next one.
        if self._closing or self._sockets > made or self.evict_unproven():
            raise BlockingIOError

    def evict_unproven(self) -> bool:
        """Close the oldest unproven connection of the address that has most and return whether there was one."""
        if not self._unproven:
            return False
        peer = max(self._unproven, key=lambda peer: len(self._unproven[peer]))
        self._close(next(iter(self._unproven[peer])))
        return True

    # --- connections, as the protocol and the gateway see them

    def add(self, connection: Connection) -> None:
        """Know a new connection."""
        self._unproven.setdefault(connection.peer, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._forget(connection)
        self._closing.discard(connection)

    def is_proven(self, connection: Connection) -> bool:
        """Return whether a request on the connection has shown a token."""
        return connection in self._holders

    def prove(self, connection: Connection, holder: str | None) -> bool:
        """Note whose token a request has shown, and return whether there is room; an idle one of his gives way."""
        if connection in self._holders or connection in self._closing:
            return True
        name = holder or ""
        room = self.limits.total - self.limits.unproven
        most = self.limits.per_token if holder else room
        own = self._proven.get(name, {})
        if len(own) >= most and not self._close_idle(own):
            return False
        if len(self._holders) >= room:
            largest = max(self._proven.values(), key=len)
            if not (self._close_idle(largest) or self._close_idle(own)):
                return False
        self._forget(connection)
        self._proven.setdefault(name, {})[connection] = None
        self._holders[connection] = name
        return True

    def touch(self, connection: Connection) -> None:
        """Note that a connection has just been used."""
        if (name := self._holders.get(connection)) is not None:
            own = self._proven[name]
            del own[connection]
            own[connection] = None

    def _close_idle(self, candidates: Iterable[Connection]) -> bool:
        idle = next((connection for connection in candidates if connection.is_idle), None)
        if idle is not None:
            self._close(idle)
        return idle is not None

    def _close(self, connection: Connection) -> None:
        self.refused += 1
        self._forget(connection)
        self._closing.add(connection)
        connection.abort()

    def _forget(self, connection: Connection) -> None:
        holder = self._holders.pop(connection, None)
        groups, key = (self._unproven, connection.peer) if holder is None else (self._proven, holder)
        if (group := groups.get(key)) is not None:
            group.pop(connection, None)
            if not group:
                del groups[key]


class _AcceptedSocket(socket.socket):
    """A connection's socket that is counted until it is closed."""

    release: Any = None

    def close(self) -> None:
        super().close()
        if self.release is not None:
            self.release()


class Listener(socket.socket):
    """A listening socket that accepts only while there is room."""

    connections: Connections

    def listen(self, backlog: int = 0) -> None:
        """Listen. Asyncio would take the number that it accepts at once for the length of the kernel's queue."""
        del backlog
        super().listen(_QUEUE)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection. BlockingIOError: none, or no room in this turn. OSError: asyncio waits a second."""
        self.connections.check_room()
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR and self.connections.evict_unproven():
                raise BlockingIOError from error
            raise
        accepted = _AcceptedSocket(self.family, self.type, self.proto, fileno=connection.detach())
        self.connections.count_socket(accepted)
        return accepted, address
