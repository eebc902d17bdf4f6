"""Counts steps across lines: epochs and positions in them, restarts of a count, seconds per step. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import MAX_COUNT, POWERS, parse_integer

_MAX_ADVANCES = 17  # the seconds per step are the median of the last 16
OVERSHOOT = 1.1  # of a total
SMALL_LEAD = 4  # bars of several ranks are a few steps apart


class StepReading(NamedTuple):
    """The step that one line shows.

    ``step`` of ``total``; or position ``n`` of ``per`` in ``epoch`` of ``epochs``. ``mark``: a number that changes with
    each step, e.g. the loss. ``key`` names the counter, ``base`` the number of its first epoch, where known.
    ``step_s``: seconds per step as printed. ``is_planned``: its line does not print the total.
    """

    rank: CounterRank
    key: str
    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    n: int | None = None
    per: int | None = None
    base: int | None = None
    mark: float | None = None
    skipped: int | None = None
    step_s: float | None = None
    is_planned: bool = False

    @property
    def has_position(self) -> bool:
        """Whether the line has anything that can grow."""
        return not (self.step is None and self.n is None and self.epoch is None and self.mark is None)


@dataclass
class StepCounter:
    """The count in one format. ``step`` and ``total`` are None when the format has no numbers."""

    rank: CounterRank
    step: int | None = None
    total: int | None = None
    at: int | None = None  # the step of the last line, which may be less
    epoch_ends: tuple[int, int, int] | None = None  # position in the epoch of the last line, its length, its last step
    _last: tuple[float, ...] = ()
    _mark: float | None = None
    _offset: int = 0
    _rounds: int = 0
    _base: int | None = None
    _first_epoch: int | None = None
    _spans_epochs: bool | None = None  # positions count through the whole run, although epochs are printed

    def update(self, reading: StepReading) -> bool:
        """Take the step of a line and return whether it is further than the line before."""
        last = self._last
        if reading.step is None and reading.n is None and reading.epoch is None:
            self._last, grew = (reading.mark or 0.0,), reading.mark != self._mark
        else:
            self.epoch_ends = None
            self._last, step, total = self._position(reading, last)
            self.at = step
            if step is not None:
                self.step = step if self.step is None else max(self.step, step)
            # The last rollout of PPO goes beyond the total.
            self.total = total if total is None or self.step is None or self.step <= total * OVERSHOOT else None
            # Within an epoch, a changed loss may be the only sign of a new batch.
            grew = not last or self._last > last or (self._last == last and reading.mark != self._mark)
        self._mark = reading.mark
        return grew

    def _position(
        self, reading: StepReading, last: tuple[float, ...]
    ) -> tuple[tuple[float, ...], int | None, int | None]:
        if reading.step is not None:
            return (reading.step,), reading.step, reading.total
        if reading.n is None:
            epoch = reading.epoch or 0
            return (epoch,), epoch, reading.epochs
        if reading.epoch is not None:
            self._first_epoch = reading.epoch if self._first_epoch is None else self._first_epoch
            if reading.per:
                return self._in_epoch(reading, reading.epoch, reading.n, reading.per, last)
            if self._first_epoch > 1:  # it resumed: how many steps the epochs before had is unknown
                return (reading.epoch, reading.n), reading.epoch, reading.epochs
        return self._in_round(reading, reading.n, last)

    def _in_epoch(
        self, reading: StepReading, epoch: int, n: int, per: int, last: tuple[float, ...]
    ) -> tuple[tuple[float, ...], int | None, int | None]:
        if self._base is None:
            # Lightning counts epochs from 0 and prints no total; custom loops print "1/10".
            self._base = reading.base if reading.base is not None else int(epoch == 1 or reading.epochs is not None)
        self._base = min(self._base, epoch)
        if self._spans_epochs is None:
            # True for loops with a total of steps; refuted when the count restarts with the next epoch.
            self._spans_epochs = reading.rank is CounterRank.STEP and reading.epochs is None and reading.base is None
        if (
            reading.rank is CounterRank.STEP
            and last
            and epoch == last[0] + 1
            and (n > last[1] < per) != self._spans_epochs
        ):
            self._spans_epochs, self.step = not self._spans_epochs, None
        if self._spans_epochs:
            return (epoch, n), n, per
        epochs = reading.epochs if reading.epochs and reading.epochs >= epoch else None
        epochs = epoch + 1 if epochs == epoch and self._base == 0 else epochs  # `Epoch 1/1`, the number of the last one
        self.epoch_ends = n, per, (epoch - self._base + 1) * per
        return (epoch, n), (epoch - self._base) * per + n, epochs * per if epochs else None

    def _in_round(
        self, reading: StepReading, n: int, last: tuple[float, ...]
    ) -> tuple[tuple[float, ...], int | None, int | None]:
        """Read a position in an epoch without a number or of unknown length: a decrease starts the next epoch."""
        if last:
            before = int(last[1])
            again = reading.epoch is not None and reading.epoch != self._rounds
            if n < before and (again or before == reading.per or (before >= SMALL_LEAD and n <= before // 2)):
                self._offset += before
                self._rounds += 1
        if reading.epoch is not None:
            self._rounds = reading.epoch
        total = reading.per if not self._offset and reading.epoch is None and reading.base is None else None
        return (self._rounds, n), self._offset + n, total


@dataclass
class StepSpeed:
    """Seconds per step: measured, else as printed by the framework."""

    printed_s: float | None = None
    _advances: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MAX_ADVANCES))

    def note_step(self, at_s: float, step: int) -> None:
        """Note that ``step`` was reached at ``at_s`` (monotonic seconds)."""
        if self._advances and self._advances[-1][1] == step:
            return  # another loss of it
        if self._advances and self._advances[-1][0] >= at_s:
            at_s = self._advances.pop()[0]  # lines that arrived together have one time
        self._advances.append((at_s, step))

    @property
    def step_s(self) -> float | None:
        """The median over recent advances, so that one evaluation or one compilation does not count."""
        advances = list(self._advances)
        slopes = [(t1 - t0) / (n1 - n0) for (t0, n0), (t1, n1) in zip(advances, advances[1:]) if n1 > n0]
        return median(slopes) if slopes else self.printed_s


def parse_count(text: str) -> int | None:
    """Return the value of a printed count: `4,096`, `29.8k`, `1_100`, `1e3`, or None if ``text`` is not a number."""
    if text.isdecimal():
        return parse_integer(text)
    value = _float(text.rstrip("kM").replace("_", "").replace(",", ""))
    return None if value is None else int(min(value * POWERS.get(text[-1], 1), MAX_COUNT))


def seconds_per_step(groups: Mapping[str, str | None]) -> float | None:
    """Return the seconds per step from the groups `s`, `ms` or `rate` of a format."""
    if text := groups.get("s"):
        return _float(text)
    if text := groups.get("ms"):
        ms = _float(text)
        return None if ms is None else ms / 1e3
    rate = _float(groups.get("rate") or "")
    return 1 / rate if rate else None


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # "1.2.", "..": a pattern takes more than numbers
        return None
    return value if math.isfinite(value) else None


def median(values: Iterable[float]) -> float:
    """Return the median. Importing ``statistics`` takes 4 ms of the start of each supervisor, a thirtieth of it."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
