"""Chooses the counter whose steps are the training steps of a run, among all counters that its output shows.

The counter of highest rank leads. Another takes the lead where the leader is silent for long, where it begins a later
training, or where the leader turns out to count inside its steps. A round of the leader is a round of the run.
"""

from __future__ import annotations

from collections import deque

from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.rounds import Move, NamedEpoch, RoundCounter
from mcp_server.diagnosis.progress.step_counters import StepReading, StepSpeed

_MAX_COUNTERS, _RECENT = 64, 40
# Updates of other counters, without any of the leading one, after which they count as steps; after which a counter of
# equal rank takes the lead; after which one of lower rank does. A step printed on two lines, flushed after an error, is
# not a sign of life.
_ALIVE, _SUCCEEDS, _REPLACES = 3, 20, 2_000


class CounterLead:
    """All counters of a run. ``step``, ``total_steps`` and ``speed`` are those of ``leader`` in its present round.

    ``round``: the training of several in one run, from 1. ``advances`` counts the lines that showed progress.
    ``recent_steps``: the last ones of the round.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.total_steps: int | None = None
        self.round = 1
        self.advances = 0
        self.leader: RoundCounter | None = None
        self.speed = StepSpeed()
        self.recent_steps: deque[int] = deque(maxlen=_RECENT)
        self._counters: dict[str, RoundCounter] = {}
        self._silent_leader: tuple[RoundCounter, int, int] | None = None  # the one before, its rounds, and the run's
        self._readings = 0
        self._moves_of_others = 0
        self._lent_total: int | None = None
        self._loss_at = -1
        self._moving: RoundCounter | None = None  # the counter of the last line, unless it counts less than steps
        self._bar: RoundCounter | None = None  # the last that moved
        self._unproven_rounds = 0  # that began after a counter without losses

    def note_losses(self) -> None:
        """Note that a loss or reward of training was printed. A count that ended without any before was other work."""
        self._loss_at = self._readings
        if self._moving is not None:
            self._moving.has_losses = True
        if self._unproven_rounds and self._moving is self.leader:
            self.round, self._unproven_rounds = max(1, self.round - self._unproven_rounds), 0

    def find_total(self, step: int, *, except_key: str) -> int | None:
        """Return the total of a counter at ``step``, if one has a total."""
        counters = (self._counters[key].counter for key in self._counters if key != except_key)
        return next((one.total for one in counters if one.step == step and one.total is not None), None)

    def move_counter(self, reading: StepReading, named: NamedEpoch | None, at_s: float, jobs: int = 0) -> RoundCounter:
        """Update the counter of ``reading``, and return it. ``named``: the epoch that other lines named last.

        ``jobs``: how many trainings of the run headings have announced.
        """
        self._readings += 1
        counter = self._find_counter(reading)
        was_leader = counter is self.leader
        move = counter.update(reading, named, self._readings, jobs)
        grew = move is not Move.STILL
        if counter.rank >= CounterRank.UNLABELLED or self._moving is None:
            self._moving = counter
            is_bar = counter.rank in (CounterRank.BAR, CounterRank.UNLABELLED)
            self._bar = counter if is_bar and counter.counter.total is not None else self._bar
        if was_leader and move is Move.NEW_ROUND and (outer := self._find_outer(counter)) is not None:
            counter.is_nested, self.leader = True, outer
            self._begin_round(self.round - counter.rounds + 2)
            self._adopt(outer, None)
        if counter is not self.leader and not self._takes_lead(counter, move):
            self.advances += grew and self._moves_of_others >= _ALIVE
            return counter
        if was_leader and move in (Move.NEW_ROUND, Move.TAKEN_BACK):
            self._begin_round(self.round + (1 if move is Move.NEW_ROUND else -1))
        self._moves_of_others = 0
        if self._bar is not None and self._bar is not counter and counter.counter.total is None:
            self._lend_total(counter, self._bar)
        self.advances += grew
        self._adopt(counter, at_s if grew else None)
        if reading.step_s is not None:
            self.speed.printed_s = reading.step_s
        return counter

    def _adopt(self, rounds: RoundCounter, at_s: float | None) -> None:
        """Take step and total from the leading counter. ``at_s``: when it grew, or None."""
        counter = rounds.counter
        if counter.step is not None:
            self.step = counter.step
            self.total_steps = counter.total if counter.total is not None else self._lent_total
            if at_s is not None:
                self.recent_steps.append(counter.step)
                self.speed.note_step(at_s, counter.step)

    def _begin_round(self, number: int) -> None:
        self.round = max(1, number)
        self.speed, self._lent_total = StepSpeed(), None
        self.step = self.total_steps = None
        self.recent_steps.clear()

    def _find_counter(self, reading: StepReading) -> RoundCounter:
        """Return the counter of ``reading``. The same words with another total may belong to another loop."""
        key = reading.key
        counter = self._counters.get(key)
        changes = counter is not None and reading.step is not None and reading.total != counter.total is not None
        if counter is not None and changes and not reading.is_planned:
            other = f"{key} of {reading.total}"
            if other in self._counters or (reading.total is not None and not counter.continues(reading)):
                key, counter = other, self._counters.get(other)
        if counter is None:
            if len(self._counters) >= _MAX_COUNTERS:
                self._counters = {k: c for k, c in self._counters.items() if c is self.leader}
            counter = self._counters[key] = RoundCounter(reading.rank, reading.key)
        return counter

    def _find_outer(self, inner: RoundCounter) -> RoundCounter | None:
        """Return the counter of equal rank, if any, that only grew while ``inner`` began again and again."""
        for counter in self._counters.values():
            is_outer = counter.rank == inner.rank and counter is not inner and not counter.is_nested
            if is_outer and counter.rounds == 1 and counter.moves and counter.moved_at > inner.former_lap_began:
                return counter
        return None

    def _takes_lead(self, counter: RoundCounter, move: Move) -> bool:
        """Whether ``counter`` leads from now on: the one of highest rank does, until it is silent for long."""
        leader = self.leader
        if leader is not None:
            self._lend_total(counter, leader)
            if counter.rank is CounterRank.USER and leader.rounds > 1 and not leader.is_nested:
                leader.is_nested = True  # it counts inside the steps of the user's pattern
                self._begin_round(self.round - leader.rounds + 1)
            elif (
                counter.rank is CounterRank.USER
                and leader.counter.total is not None
                and (leader.counter.step != counter.counter.step)
            ):
                return False  # the number of the user's pattern has another unit
            before = self._silent_leader
            goes_on = before is not None and before[0] is counter and before[1] == counter.rounds
            if before is not None and goes_on and move is Move.FURTHER:  # after an inner loop
                leader.is_nested, self._silent_leader = True, None
                self._begin_round(before[2])
            else:
                if counter.rank <= leader.rank or counter.is_nested:
                    self._moves_of_others += move is not Move.STILL
                    # The first line of a later training is its own, whatever moved before it.
                    own = counter.moves if self._follows(counter, leader) else self._moves_of_others
                    if min(own, self._moves_of_others) < self._moves_needed(counter, leader):
                        return False
                self._silent_leader = (leader, leader.rounds, self.round) if counter.rank <= leader.rank else None
                if self._follows(counter, leader):
                    is_next = leader.has_losses or not counter.has_losses
                    self._begin_round(self.round + is_next)
                    self._unproven_rounds += is_next and not leader.has_losses
        self.leader = counter
        self.speed = StepSpeed()
        self.recent_steps.clear()
        return True

    def _moves_needed(self, counter: RoundCounter, leader: RoundCounter) -> int:
        """Return how often other counters must move, and the leader not, before ``counter`` takes the lead."""
        # After the training bar, a bare bar is other work, unless losses are printed beside it.
        is_shorter = (counter.counter.total or 0) < (leader.counter.total or 0)
        is_other_bar = (
            counter.rank is CounterRank.UNLABELLED
            and counter is not leader
            and (is_shorter or leader.has_losses)
            and self._loss_at < counter.lap_began
        )
        if counter.is_nested:
            return _REPLACES
        if leader.rank is CounterRank.USER and counter.total is not None:
            return _ALIVE  # the user's pattern matches some steps only, or the first one alone
        if self._follows(counter, leader) and not is_other_bar:
            return 1 if counter.key == leader.key else _ALIVE
        return _SUCCEEDS if counter.rank == leader.rank and not is_other_bar else _REPLACES

    def _follows(self, counter: RoundCounter, leader: RoundCounter) -> bool:
        """Whether ``counter`` counts another training, which began after that of ``leader`` was complete."""
        is_later = counter.lap_began >= leader.moved_at and counter.rank > CounterRank.LOSS
        return is_later and leader.is_complete and leader.moves > 1 and not leader.is_nested

    def _lend_total(self, one: RoundCounter, other: RoundCounter) -> None:
        """Take the total of a training bar at the same step as a better counter: verl prints its total nowhere else."""
        bar = one if one.rank < other.rank else other
        worse, better = (one.counter, other.counter) if bar is one else (other.counter, one.counter)
        is_bar = worse.rank >= CounterRank.BAR or (worse.rank is CounterRank.UNLABELLED and bar.moves > _ALIVE)
        if not is_bar or worse.total is None or worse.step is None or better.step is None:
            return
        if abs(worse.step - better.step) <= 1 and worse.total >= better.step:
            self._lent_total = worse.total
            self.total_steps = self.total_steps or worse.total
