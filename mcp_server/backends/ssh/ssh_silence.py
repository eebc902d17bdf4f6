"""Ends a connection that has gone silent: packets may vanish without a word.

An idle connection is pinged every 10 s, and given up after 30 s without a word. Where somebody waits for an answer, it
is pinged as soon as nothing has come for 2 s, and given up 8 s after that. A relay that is busy still answers pings,
each in a thread of its own, and every byte counts as a word: a host that works long, or a slow line, is not silent.
"""

import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mcp_server.backends.ssh.ssh_link import SshLink

_PING_S, _SILENT_S = 10.0, 30.0
_ASKED_S, _ANSWERED_WITHIN_S = 2.0, 8.0
_SLOWEST = 64 * 2**10  # bytes a second: what is sent goes before the ping
_LOOK_S = 0.5  # between two looks while somebody waits


@dataclass(frozen=True)
class Awaited:
    """A request that others wait for: since when, in monotonic seconds, and how many bytes their questions have."""

    since_s: float
    sent_bytes: int = 0


@dataclass
class Silence:
    """What is known of a connection's silence, in monotonic seconds. Pure.

    ``unanswered_s``: when the first ping was sent after which nothing has come, if that is later than the last word.
    """

    pinged_s: float
    unanswered_s: float = 0.0

    def decide(self, now_s: float, heard_s: float, awaited: Awaited | None) -> Literal["ping", "dead"] | None:
        """Return what is due. ``heard_s``: when the last byte came."""
        allowed_s = awaited.sent_bytes / _SLOWEST if awaited else 0.0
        is_unanswered = self.unanswered_s > heard_s
        if now_s - heard_s > _SILENT_S + allowed_s:
            return "dead"
        if awaited and now_s - max(heard_s, awaited.since_s) >= _ASKED_S:
            if not is_unanswered:
                return "ping"
            if now_s - self.unanswered_s >= _ANSWERED_WITHIN_S + allowed_s:
                return "dead"
        return "ping" if now_s - self.pinged_s >= _PING_S else None

    def note_ping(self, now_s: float, heard_s: float) -> None:
        """Note that a ping is sent."""
        self.pinged_s = now_s
        if self.unanswered_s <= heard_s:
            self.unanswered_s = now_s


class SilenceWatch:
    """Pings a connection, and kills it once it is silent. Starts a thread, which never waits for the connection.

    ``find_awaited`` says what others wait for. ``on_ping`` is called with each ping.
    """

    def __init__(self, link: SshLink, find_awaited: Callable[[], Awaited | None], on_ping: Callable[[], None]) -> None:
        self._link, self._find_awaited, self._on_ping = link, find_awaited, on_ping
        self._wake, self._stopped = threading.Event(), False
        threading.Thread(target=self._run, daemon=True).start()

    def wake(self) -> None:
        """Call this when somebody begins to wait."""
        self._wake.set()

    def stop(self) -> None:
        """End the watch: the connection has ended."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        silence = Silence(time.monotonic())
        while not self._stopped:
            awaited, link = self._find_awaited(), self._link
            now_s, heard_s = time.monotonic(), link.heard_s
            due = silence.decide(now_s, heard_s, awaited)
            if due == "dead" and not self._has_unread():
                link.silent_s = now_s - heard_s
                link.kill()
                return
            if due == "ping":
                silence.note_ping(now_s, heard_s)
                link.writer.write_if_free({"id": 0, "ask": "ping"})
                self._on_ping()
            self._wake.wait(_LOOK_S if awaited else max(_LOOK_S, silence.pinged_s + _PING_S - now_s))
            self._wake.clear()

    def _has_unread(self) -> bool:
        """Return whether something has come that is not read yet: this process was suspended, or its disk is slow."""
        poll = select.poll()
        try:
            poll.register(self._link.process.stdout, select.POLLIN)  # type: ignore[arg-type]
        except ValueError:  # it was closed
            return False
        return bool(poll.poll(0))
