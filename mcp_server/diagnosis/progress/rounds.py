"""Decides when a counter starts again: the next epoch, another round (seed, stage, multirun job), or nothing. Pure.

A count that falls back to where it began goes on through the epochs, if the output has named the next one, else a new
round begins; one that was not complete needs a second line for it. A count that falls back less, to a checkpoint, stays
in its round. Several ranks print one count: where the former goes on after a fall, the fall is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.step_counters import SMALL_LEAD, StepCounter, StepReading

_STRIDES = 3  # a larger jump than so many usual ones belongs to another stream of lines
_LATE_MOVES = 3  # of a new round, after which other ranks have ended the round before


class Move(Enum):
    """The effect of a line on a counter."""

    STILL = "not further than before"
    FURTHER = "further than before"
    NEW_ROUND = "starts again"
    TAKEN_BACK = "goes on with the round before"


class NamedEpoch(NamedTuple):
    """The epoch that the output named last, outside of the counter. ``headings``: how many headings there were.

    ``length``: the steps of an epoch, where a line has said so.
    """

    epoch: int
    epochs: int | None
    headings: int
    length: int | None = None


@dataclass
class RoundCounter:
    """One counter through its rounds. ``counter`` counts the present one.

    ``moves``: how often it grew in this round. ``moved_at``: the tracker's readings at its last growth. ``is_nested``:
    it counts inside the steps of another counter. ``has_losses``: some were printed while it led.
    """

    rank: CounterRank
    key: str
    counter: StepCounter = field(init=False)
    total: int | None = None  # as printed
    moves: int = 0
    moved_at: int = 0
    lap_began: int = 0
    rounds: int = 1
    is_nested: bool = False
    has_losses: bool = False
    _jobs: int = 0
    _first: tuple[int, ...] = ()
    _last: tuple[int, ...] = ()
    _top: tuple[int, ...] = ()  # the furthest position of the round
    _stride: int = 1
    _lap_epoch: NamedEpoch | None = None
    _is_by_epoch: bool = False  # its count restarts with each epoch that other lines name
    _former: RoundCounter | None = None
    _seen_pending: tuple[int, ...] = ()  # a place where the count may have started again is a sign of life once
    _pending: tuple[tuple[int, ...], RoundCounter] | None = None

    def __post_init__(self) -> None:
        self.counter = StepCounter(self.rank)

    @property
    def is_complete(self) -> bool:
        """Whether the last line showed the last step of the round."""
        if len(self._last) == 1 and not self._is_by_epoch:
            return self._is_lap_complete
        step, total = self.counter.step, self.counter.total
        return step is not None and total is not None and step >= total

    @property
    def _is_lap_complete(self) -> bool:
        if len(self._last) > 1:
            return self.is_complete
        return bool(self._last) and self.total is not None and self._last[0] >= self.total - (self._first == (0,))

    @property
    def step_between(self) -> int | None:
        """The step of a line below the last one: the end of the epoch, where it has no room for another such line."""
        if self.counter.epoch_ends is None:
            return self.counter.step
        n, per, end = self.counter.epoch_ends
        stride = self._stride if self._stride > 1 or self.moves > SMALL_LEAD else n
        return end if n + stride + (self._first[-1:] == (0,)) > per else self.counter.step

    def is_in_one_epoch(self, named: NamedEpoch | None) -> bool:
        """Return whether a count has not left the epoch of many in which it began: its total may be the epoch's."""
        is_open = named is not None and named == self._lap_epoch and named.epochs != 1
        return is_open and len(self._last) == 1 and not self._is_by_epoch and self.counter.epoch_ends is None

    @property
    def former_lap_began(self) -> int:
        """The tracker's readings when the round before began. For the first round, when this one did."""
        return self.lap_began if self._former is None else self._former.lap_began

    def continues(self, reading: StepReading) -> bool:
        """Whether ``reading``, which has another total, goes on with this count."""
        position = _position(reading)
        return len(position) == len(self._last) and self._last <= position <= self._after(self._last)

    def update(self, reading: StepReading, named: NamedEpoch | None, readings: int, jobs: int = 0) -> Move:
        """Take the step of a line."""
        position = _position(reading)
        if not position:
            grew = self.counter.update(reading)
            return self._note_move(Move.FURTHER if grew else Move.STILL, readings)
        move = self._judge(position, reading, named) if self._last else None
        if jobs != self._jobs and self._last and len(position) == len(self._first) and position <= self._first:
            move = Move.NEW_ROUND  # a heading has announced it
        self._jobs = jobs
        if move is Move.NEW_ROUND:
            self._begin_round(readings)
        if not self._last:
            self._first, self._lap_epoch, self.lap_began = position, named, readings
        elif self._top and position > self._top and position[:-1] == self._top[:-1]:
            self._stride = max(self._stride, position[-1] - self._top[-1])
        self._last, self._top = position, max(self._top, position)
        self.total = reading.total if reading.step is not None else reading.epochs if reading.n is None else reading.per
        grew = self.counter.update(self._by_epoch(reading, position))
        grew = grew or (self._pending is not None and self._pending[0] == position != self._seen_pending)
        self._seen_pending = self._pending[0] if self._pending is not None else ()
        return self._note_move(move or (Move.FURTHER if grew else Move.STILL), readings)

    def _note_move(self, move: Move, readings: int) -> Move:
        if move is not Move.STILL:
            self.moves, self.moved_at = self.moves + 1, readings
        return move

    def _judge(self, position: tuple[int, ...], reading: StepReading, named: NamedEpoch | None) -> Move | None:
        """Return whether ``reading`` begins a new round or takes one back. None: it belongs to this round."""
        if self._former is not None and self._is_of_former(position, self._former):
            self._restore(self._former)
            return Move.TAKEN_BACK
        pending = self._pending
        if pending is not None and pending[0] != position:
            self._pending = None
            if pending[0] < position <= self._after(pending[0]):
                self._restore(pending[1])
                return Move.NEW_ROUND
        last = self._last
        if len(position) != len(last) or position >= last:
            return None
        if len(position) > 1:
            return self._judge_epochs(position)
        is_far = self._is_lap_complete or self.moves > SMALL_LEAD  # at first other ranks may be behind
        is_again = position <= self._first or (self._is_lap_complete and position[0] <= last[0] // 2)
        if reading.step is None and reading.n is not None:  # a position in an epoch without a number
            is_again = is_again or self._is_lap_complete or (last[0] >= SMALL_LEAD and position[0] <= last[0] // 2)
        if not (is_again and (is_far or reading.epoch is not None)):  # or its own line names the next epoch
            return None
        if named is not None and (self._is_next_epoch(named) or named == self._lap_epoch):
            self._go_on_by_epochs(named)  # in the same epoch it is another loop, such as one over held-out data
            return None
        return self._start_again(position)

    def _judge_epochs(self, position: tuple[int, ...]) -> Move | None:
        is_at_start = self._is_lap_complete or position[1] <= self._first[1] + 2 * self._stride
        if position[0] < self._last[0] and position[0] <= self._first[0] and is_at_start:
            return self._start_again(position)
        is_first_half = position[1] <= max(self._first[1], self._last[1] // 2)
        return Move.NEW_ROUND if position[0] == self._last[0] and is_first_half and self._is_lap_complete else None

    def _start_again(self, position: tuple[int, ...]) -> Move | None:
        if self._is_lap_complete:
            return Move.NEW_ROUND
        self._pending = self._pending or (position, self._copy())
        return None

    def _is_of_former(self, position: tuple[int, ...], former: RoundCounter) -> bool:
        if len(position) != len(former._last) or (former.is_complete and self.moves > _LATE_MOVES):
            return False
        return former._last <= position <= former._after(former._last) and not position <= self._after(self._last)

    def _after(self, position: tuple[int, ...]) -> tuple[int, ...]:
        """Return the furthest position that usually follows ``position``."""
        if len(position) > 1:
            return (position[0] + 1, position[1] + _STRIDES * self._stride)
        return (position[0] + _STRIDES * self._stride,)

    def _begin_round(self, readings: int) -> None:
        self._former = None
        former = self._copy()
        self.counter = StepCounter(self.rank)
        self.moves, self.rounds, self.lap_began = 0, self.rounds + 1, readings
        self._first = self._last = self._top = ()
        self._lap_epoch, self._is_by_epoch = None, False
        self._former, self._pending = former, None

    def _copy(self) -> RoundCounter:
        copy = RoundCounter(self.rank, self.key)
        vars(copy).update(vars(self))
        copy.counter = replace(self.counter)
        return copy

    def _restore(self, former: RoundCounter) -> None:
        is_nested = self.is_nested
        vars(self).update(vars(former))
        self._former, self._pending, self.is_nested = None, None, is_nested

    # --- epochs that other lines name

    def _is_next_epoch(self, named: NamedEpoch) -> bool:
        if self._lap_epoch is None:
            return named.epoch <= 1  # the first epoch was named at its end
        return named.epoch == self._lap_epoch.epoch + 1

    def _go_on_by_epochs(self, named: NamedEpoch) -> None:
        """Count through the epochs from now on: the count starts again with each."""
        self._top = ()
        if not self._is_by_epoch:
            self._is_by_epoch = True
            n, per, before = self._last[0], self.total or named.length, named.epoch - (named != self._lap_epoch)
            self.counter = StepCounter(self.rank)
            epoch = before if per else None
            self.counter.update(StepReading(self.rank, "", epoch=epoch, epochs=named.epochs, n=n, per=per))
        self._lap_epoch = named

    def _by_epoch(self, reading: StepReading, position: tuple[int, ...]) -> StepReading:
        if not self._is_by_epoch or self._lap_epoch is None:
            return reading
        epoch, epochs, _, length = self._lap_epoch
        per = self.total or length
        return reading._replace(
            step=None, total=None, epoch=epoch if per else None, epochs=epochs, n=position[0], per=per
        )


def _position(reading: StepReading) -> tuple[int, ...]:
    """Return the position of a reading as numbers that grow: empty where it has none."""
    if reading.step is not None:
        return (reading.step,)
    if reading.n is None:
        return () if reading.epoch is None else (reading.epoch,)
    return (reading.n,) if reading.epoch is None else (reading.epoch, reading.n)
