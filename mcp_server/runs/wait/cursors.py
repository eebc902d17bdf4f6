"""News of each run that each caller has seen, the length of its next wait, and the open waits of all callers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import anyio

from mcp_server.record.events import NOTEWORTHY
from mcp_server.record.state import ENDED, posix
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.runs.wait.client_calls import keep_value

# What is repeated to a caller whose last answer may not have arrived.
_REPEATED = frozenset(NOTEWORTHY) - {"first_step"}
_MOST_CURSORS, _MOST_POSITIONS = 10_000, 1000
MOST_ALIKE, MOST_OF_CALLER = 16, 500  # open waits


def backoff(first_s: float = 30, factor: float = 2, longest_s: float = 960) -> Iterator[float]:
    """Yield waits in seconds, the usual schedule for watching training: 30, 60, 120, 240, 480, 960, 960, ..."""
    wait_s = first_s
    while True:
        yield min(wait_s, longest_s)
        wait_s *= factor


@dataclass(frozen=True)
class Cursor:
    """The news of one run that one caller has seen. ``heartbeats`` counts the answers since the last event.

    ``repeated``: how many of the events up to ``seq`` are in the next answer once more, because nothing shows that the
    last one arrived. They end no wait.
    """

    seq: int = 0
    state: str = ""
    heartbeats: int = 0
    repeated: int = 0

    @classmethod
    def at(cls, run: Watched) -> Cursor:
        """Return the cursor of a caller that has seen ``run`` as it is now."""
        return cls(run.last_seq, run.state)

    @classmethod
    def at_launch(cls, run: Watched) -> Cursor:
        """Return the cursor of a caller that was told of its launch alone: what came of a live run since is news."""
        first = next((event["seq"] for event in run.news if event["kind"] in NOTEWORTHY), run.last_seq + 1)
        return cls.at(run) if run.ended else cls(min(run.last_seq, first - 1), run.state)

    def listed_after(self, run: Watched) -> int:
        """Return after which event the next answer lists those of ``run``: only trouble is worth a repetition."""
        first = self.seq - self.repeated
        kinds = {event["kind"] for event in run.news if first < event["seq"] <= self.seq}
        return first if kinds & _REPEATED or ("first_step" in kinds and "step" not in run.progress) else self.seq

    def unconfirmed(self, before: Cursor) -> Cursor:
        """Return this cursor of a caller that had ``before``, and whose answer may not have arrived."""
        return replace(self, repeated=max(0, self.seq - before.seq))

    @property
    def next_wait_s(self) -> float:
        """Length of the next wait by the schedule."""
        return next(islice(backoff(), self.heartbeats, None))

    def advance(self, run: Watched, *, scheduled: bool = True) -> Cursor:
        """Return the cursor after ``run`` was answered. News restarts the schedule, a ``scheduled`` wait follows it."""
        changed = run.last_seq > self.seq or run.state != self.state
        return Cursor(run.last_seq, run.state, 0 if changed else self.heartbeats + scheduled)


@dataclass(frozen=True)
class MetricSource:
    """Where the values of a tag are: its name there, the path, and the run's or the kind of a database in it."""

    tag: str
    path: str
    name: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class MetricPosition:
    """How far a condition has been checked: the points, -1 before the first check, and the series at that time.

    ``told``: the caller knows that its name is unknown.
    """

    tag: str | None = None
    source: MetricSource | None = None
    checked: int = -1
    restarts: tuple[int, ...] = ()
    late: int = 0
    wall: float | None = None
    told: bool = False


def assumed_cursor(run: Watched, now_s: float) -> Cursor:
    """Return the cursor of an anonymous caller: it has seen the run as it is, else an end would always be news."""
    age_s = now_s - posix(run.news[-1]["at"]) if run.news and "at" in run.news[-1] else 0.0
    heartbeats = 0
    for wait_s in islice(backoff(), 64):
        age_s -= wait_s
        if age_s < 0:
            break
        heartbeats += 1
    return Cursor(run.last_seq, run.state, heartbeats)


class CallerCursors:
    """Cursors and positions of all callers by name, in memory only; nothing is kept for None, an anonymous one."""

    def __init__(self) -> None:
        self._cursors: dict[tuple[str, str], Cursor] = {}
        self._positions: dict[tuple[str, str, str], MetricPosition] = {}
        self._answered: dict[str, tuple[int, str]] = {}

    def take_answered(self) -> dict[str, tuple[int, str]]:
        """Return, once, the last event and the state of each run that was answered since."""
        answered, self._answered = self._answered, {}
        return answered

    @property
    def tables(self) -> tuple[dict[Any, Any], ...]:
        """Cursors and positions, for the next server of a client."""
        return self._cursors, self._positions

    @tables.setter
    def tables(self, tables: tuple[dict[Any, Any], ...]) -> None:
        self._cursors, self._positions = tables

    def recall(self, caller: str | None, run: Watched) -> Cursor:
        """Return what ``caller`` has seen of ``run``."""
        if caller is None:
            return assumed_cursor(run, time.time())
        return self._cursors.get((caller, run.run_id), Cursor())

    def saw_alive(self, caller: str | None, run_id: str) -> bool:
        """Return whether ``caller`` last saw a run alive."""
        cursor = self._cursors.get((caller, run_id)) if caller is not None else None
        return cursor is not None and cursor.state not in ENDED

    def remember(self, caller: str | None, cursors: Mapping[str, Cursor]) -> None:
        """Keep the cursors, by run id, of a caller that has received its answer."""
        if caller is None:
            return
        for run_id, cursor in cursors.items():
            _drop_oldest(self._cursors, _MOST_CURSORS)
            keep_value(self._cursors, (caller, run_id), cursor)
            self._answered[run_id] = (cursor.seq, cursor.state)

    def remember_newer(self, caller: str | None, cursors: Mapping[str, Cursor]) -> None:
        """Keep those cursors that are ahead of what ``caller`` has seen through other answers since."""
        ahead = {}
        for run_id, cursor in cursors.items():
            known = self._cursors.get((caller or "", run_id))
            is_known = known is not None and (known.seq, known.state) == (cursor.seq, cursor.state)
            if not is_known and (known is None or known.seq <= cursor.seq):
                ahead[run_id] = cursor
        self.remember(caller, ahead)

    def recall_positions(self, caller: str | None, run_ids: Iterable[str], condition: str) -> dict[str, MetricPosition]:
        """Return, by run id, how far ``caller`` has checked ``condition``. Runs without a check are left out."""
        if caller is None:
            return {}
        keys = {run_id: (caller, run_id, condition) for run_id in run_ids}
        return {run_id: self._positions[key] for run_id, key in keys.items() if key in self._positions}

    def remember_positions(self, caller: str | None, condition: str, positions: Mapping[str, MetricPosition]) -> None:
        """Keep how far a caller, which has received its answer, has checked ``condition``."""
        if caller is None:
            return
        for run_id, position in positions.items():
            _drop_oldest(self._positions, _MOST_POSITIONS)
            keep_value(self._positions, (caller, run_id, condition), position)


def _drop_oldest(entries: dict[Any, Any], most: int) -> None:
    while len(entries) >= most:
        del entries[next(iter(entries))]


@dataclass(eq=False)
class OpenWait:
    """One wait. ``newest_for`` are the runs that no later wait of the same caller waits for."""

    run_ids: frozenset[str]
    newest_for: set[str]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class OpenWaits:
    """All open waits: which of them says what a caller has seen, and how many one caller may leave behind.

    A client that gives up a call over stdio need not say so, and its wait goes on. So a caller's newest wait for a run
    counts: what an older one answers is not remembered as seen. Older ones stay open, because several agents of one
    client may wait for the same run, but the oldest of many ends.
    """

    def __init__(self) -> None:
        self._waits: dict[str | None, dict[OpenWait, None]] = {}  # by caller, the oldest first

    def __len__(self) -> int:
        return sum(map(len, self._waits.values()))

    @contextlib.contextmanager
    def open(self, caller: str | None, run_ids: Iterable[str], *, is_bounded: bool) -> Iterator[OpenWait]:
        """Yield a new wait. ``is_bounded``: nothing else ends waits that were given up, so the oldest ends."""
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
    for wait in waits[: max(0, len(waits) + 1 - most)]:
        wait.newest_for.clear()
        wait.scope.cancel()
