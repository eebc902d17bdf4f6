"""Services on other hosts, of which a run knows the address alone: a thread tries whether they answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mcp_server.record.service import Need

REFUSED = "refuses connections"
_CHECK_S = 5.0
# A service that starts again listens sooner. A host that does not answer at all says nothing of its service.
_REFUSED_S = 60.0


class ServiceAddresses:
    """The addresses that a run needs. ``explain`` says why one does not answer, and may block for a second or two."""

    def __init__(self, needs: Sequence[Need], explain: Callable[[Need], str]) -> None:
        self._needs, self._explain = needs, explain
        self._silent_since_s: dict[Need, float] = {}
        self._why: dict[Need, str] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def find_gone(self) -> tuple[Need, str] | None:
        """Return a service whose host has refused connections for a minute, and the last answer; None without one."""
        before_s = time.monotonic() - _REFUSED_S
        since = list(self._silent_since_s.items())
        return next(((need, self._why[need]) for need, at_s in since if at_s <= before_s), None)

    def look(self) -> None:
        """Try each address once."""
        for need in self._needs:
            why = self._explain(need)
            if REFUSED in why:
                self._why[need] = why
                self._silent_since_s.setdefault(need, time.monotonic())
            else:
                self._silent_since_s.pop(need, None)

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(_CHECK_S)
