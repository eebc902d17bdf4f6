"""The MCP sessions of the older protocol: how many each token may have open, and which one ends for a new one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST, MOST_OF_TOKEN = 2000, 200
# The SDK ends a session then, without a word.
IDLE_S = 1800.0


@dataclass
class _Session:
    holder: str | None
    used_s: float
    requests: int = 0


@dataclass
class Sessions:
    """All open sessions, the longest unused first. A holder is the name of a token, None where none is needed."""

    most: int = MOST
    most_of_token: int = MOST_OF_TOKEN
    _sessions: dict[str, _Session] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session_id: str, holder: str | None) -> None:
        """Know a session that was opened."""
        self._sessions[session_id] = _Session(holder, time.monotonic())

    def discard(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._sessions.pop(session_id, None)

    @contextlib.contextmanager
    def use(self, session_id: str) -> Iterator[None]:
        """Keep the session while a request of it is answered. Other ids are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            yield
            return
        self._sessions[session_id] = session
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.used_s = time.monotonic()

    def make_room(self, holder: str | None) -> list[tuple[str, str | None]] | None:
        """Return the sessions, with their holders, to end before ``holder`` opens one. None where too many are in use.

        They are forgotten here. They are its own, or where all places are taken those of whoever has most.
        """
        ended_s = time.monotonic() - IDLE_S
        for session_id, session in list(self._sessions.items()):
            if not session.requests and session.used_s < ended_s:
                del self._sessions[session_id]
        counts: dict[str | None, int] = {}
        for session in self._sessions.values():
            counts[session.holder] = counts.get(session.holder, 0) + 1
        if holder is not None and counts.get(holder, 0) >= self.most_of_token:
            return self._end_one(holder)
        if len(self._sessions) >= self.most:
            return self._end_one(max(counts, key=lambda each: counts[each]))
        return []

    def _end_one(self, holder: str | None) -> list[tuple[str, str | None]] | None:
        for session_id, session in self._sessions.items():
            if session.holder == holder and not session.requests:
                del self._sessions[session_id]
                return [(session_id, holder)]
        return None
