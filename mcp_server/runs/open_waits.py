"""Open waits of all callers: which of them says what a caller has seen, and how many one caller may leave behind.

A client that gives up a call over stdio need not say so, and its wait goes on. So a caller's newest wait for a run
counts: what an older one answers is not remembered as seen. Older ones stay open, because several agents of one client
may wait for the same run, but the oldest of many ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import anyio

MOST_ALIKE, MOST_OF_CALLER = 16, 500


@dataclass(eq=False)
class OpenWait:
    """One wait. ``newest_for`` are the runs that no later wait of the same caller waits for."""

    run_ids: frozenset[str]
    newest_for: set[str]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class OpenWaits:
    """All open waits."""

    def __init__(self) -> None:
        self._waits: dict[str | None, dict[OpenWait, None]] = {}  # by caller, the oldest first

    def __len__(self) -> int:
        return sum(map(len, self._waits.values()))

    @contextlib.contextmanager
    def open(self, caller: str | None, run_ids: Iterable[str], *, is_bounded: bool) -> Iterator[OpenWait]:
        """Yield a new wait of ``caller``, None for an anonymous one.

        ``is_bounded``: nothing else ends waits that were given up, so the oldest of too many ends.
        """
        ids = frozenset(run_ids)
        wait = OpenWait(ids, set(ids))
        own = self._waits.setdefault(caller, {})
        if caller is not None:
            for older in own:
                older.newest_for -= ids
            if is_bounded:
                _end_oldest([older for older in own if older.run_ids == ids], MOST_ALIKE)
                _end_oldest(list(own), MOST_OF_CALLER)
        own[wait] = None
        try:
            yield wait
        finally:
            del own[wait]
            if not own:
                self._waits.pop(caller, None)


def _end_oldest(waits: list[OpenWait], most: int) -> None:
    """Make room for one more among ``most``."""
    for wait in waits[: max(0, len(waits) + 1 - most)]:
        wait.newest_for.clear()
        wait.scope.cancel()
