"""Waiting for runs: news comes when it happens; the backoff only governs how often "still running" is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, Protocol

import anyio

from mcp_server.record.events import NOTEWORTHY, TROUBLE, Noteworthy
from mcp_server.record.state import Run, posix

Until = Literal["event", "first_step", "end", "condition"]
Reason = Literal["ended", "condition_met", Noteworthy, "started", "heartbeat"]

# Clients drop a silent call: Claude Code after 300 s over HTTP. Each report resets their clock.
PROGRESS_S = 15.0
# A killed supervisor's lock file is closed a moment before its lock is free.
_SETTLE_S = 0.05
_CONDITION_S = 1.0  # between two looks at numbers that another program writes where it likes
_MOST_MEMORIES = 10_000


def backoff(first_s: float = 30, factor: float = 2, longest_s: float = 960) -> Iterator[float]:
    """Yield waits in seconds: 30, 60, 120, 240, 480, 960, 960, ...

    The usual schedule for watching training: 30 s to 16 min.
    """
    wait_s = first_s
    while True:
        yield min(wait_s, longest_s)
        wait_s *= factor


@dataclass
class Memory:
    """What one caller was last told of one run; ``beat`` counts the heartbeats since the last event."""

    seq: int = 0
    state: str = ""
    beat: int = 0

    @property
    def next_s(self) -> float:
        """How long the next wait is by the schedule."""
        return next(islice(backoff(), self.beat, None))

    def told(self, run: Run, *, scheduled: bool = True) -> None:
        """Note that the caller knows ``run`` as it is now; any event starts the schedule anew.

        ``scheduled``: the wait was as long as the schedule said, so the next one is longer.
        """
        news = run.last_seq > self.seq or run.state != self.state
        self.seq, self.state = run.last_seq, run.state
        self.beat = 0 if news else self.beat + scheduled


def guess(run: Run, now_s: float) -> Memory:
    """Return the memory of a caller that cannot be told apart from others.

    It knows the run as it is, since otherwise an end would be news for ever; its schedule follows the time
    since the run's last event.
    """
    age_s = now_s - posix(run.events[-1]["at"]) if run.events and "at" in run.events[-1] else 0.0
    beat = 0
    for wait_s in islice(backoff(), 64):
        age_s -= wait_s
        if age_s < 0:
            break
        beat += 1
    return Memory(run.last_seq, run.state, beat)


class Callers:
    """What each caller was told. Forgotten with the server: ``since`` makes a caller independent of it."""

    def __init__(self) -> None:
        self._memories: dict[tuple[str, str], Memory] = {}

    def recall(self, caller: str, run_id: str) -> Memory:
        """Return a copy of what ``caller`` knows of ``run_id``: one wait cannot take another's news."""
        return replace(self._memories.get((caller, run_id), Memory()))

    def remember(self, caller: str, run_id: str, memory: Memory) -> None:
        """Note what ``caller`` has been told, once it has been."""
        while len(self._memories) >= _MOST_MEMORIES:
            del self._memories[next(iter(self._memories))]
        self._memories[caller, run_id] = memory


class News(Protocol):
    """Returns at the next change."""

    async def news(self) -> None:
        """Return when something may have changed since the last call."""


@dataclass(frozen=True)
class Outcome:
    """Why a wait returned, and the runs at that moment.

    ``since`` is what the caller knew before, ``met`` what came true of a condition.
    """

    reason: Reason
    runs: tuple[Run, ...]
    since: Mapping[str, int]
    waited_s: float
    next_timeout_s: float
    met: str | None = None


def decide(runs: Sequence[Run], known: Mapping[str, Memory], until: Until) -> Reason | None:
    """Return the reason to end a wait now, or None. Pure.

    ``end`` waits for all runs; ``first_step`` until each has one in its present attempt, or trouble instead;
    ``condition`` only for that trouble: what is to come true is not in the runs.
    ``event`` returns on the first news of any run; a run whose end the caller knows already is news no more,
    unless all have ended.
    """
    if all(run.ended for run in runs):
        return "ended"
    if until == "end":
        return None
    if any(run.ended and known[run.run_id].state != run.state for run in runs):
        return "ended"
    told = {e["kind"] for run in runs if not run.ended for e in run.events if e["seq"] > known[run.run_id].seq}
    if until in ("first_step", "condition"):
        if until == "first_step" and all(run.ended or run.stepped for run in runs):
            return "first_step"
        return next((kind for kind in NOTEWORTHY if kind in told and kind in TROUBLE), None)
    if (news := next((kind for kind in NOTEWORTHY if kind in told), None)) is not None:
        return news
    if any(known[run.run_id].state == "queued" and run.state == "running" for run in runs):
        return "started"
    return None


async def watch(
    run_ids: Sequence[str],
    observe: Callable[[str], Run],
    ticket: News,
    known: Mapping[str, Memory],
    *,
    until: Until = "event",
    timeout_s: float | None = None,
    progress: Callable[[float, float], Awaitable[None]] | None = None,
    condition: Callable[[Sequence[Run]], Awaitable[str | None]] | None = None,
) -> Outcome:
    """Wait until something happened to ``run_ids`` that is worth a decision, or the heartbeat is due.

    ``timeout_s``: None takes the caller's backoff schedule, 0 returns the state now. ``progress`` is
    called with the seconds waited and the seconds to wait, every 15 s. ``condition`` says what has come true, or None
    as long as nothing has. Never touches a run.
    """
    begun_s = anyio.current_time()
    limit_s = min(memory.next_s for memory in known.values()) if timeout_s is None else timeout_s
    since = {run_id: known[run_id].seq for run_id in run_ids}
    settling, met = False, None
    report_s = PROGRESS_S
    while True:
        runs = tuple(observe(run_id) for run_id in run_ids)
        waited_s = anyio.current_time() - begun_s
        if condition is not None and (met := await condition(runs)) is not None:
            reason: Reason | None = "condition_met"
        else:
            reason = decide(runs, known, until)
        if reason is not None or waited_s >= limit_s:
            break
        if waited_s >= report_s:
            report_s += PROGRESS_S
            if progress is not None:
                await progress(waited_s, limit_s)
                continue
        slice_s = max(0.0, min(report_s, limit_s) - waited_s)
        if condition is not None:
            slice_s = min(slice_s, _CONDITION_S)
        heard = False
        with anyio.move_on_after(min(_SETTLE_S, slice_s) if settling else slice_s):
            await ticket.news()
            heard = True
        settling = heard
    for run in runs:
        known[run.run_id].told(run, scheduled=timeout_s is None)
    next_s = min(memory.next_s for memory in known.values())
    return Outcome(reason or "heartbeat", runs, since, waited_s, next_s, met)
