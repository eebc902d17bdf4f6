"""Whether a training is numerically dead, from the numbers that it prints. Pure.

A false alarm may stop a healthy run, so every rule waits for more than the longest stumble that is known of healthy
runs; what would do as the last words of an ended log is told apart from what is beyond doubt while the run goes on.

- A loss that is NaN or infinite, reading after reading. One part of it is no proof while the whole is finite: some
  parts average over nothing. CTC losses are infinite for a while; a bar shows a mean over 20 steps, and NaN until
  gradients have been accumulated; reinforcement learning averages losses over nothing until learning starts.
- A gradient norm that is NaN while the loss is 0 or NaN (HF Trainer filters NaN losses into 0), or while the loss does
  not fall. Alone it proves nothing: mixed precision skips steps, and some trainers never compute a norm.
- Every optimizer step skipped, and a loss that explodes: see trends.py. In reinforcement learning losses mean little.

Held-out data, rewards and accuracies never count by themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median
from typing import NamedTuple

from mcp_server.diagnosis.loss_trends import Grade, History, Skips, Word
from mcp_server.diagnosis.progress.tracker import Reading

_NAMES_KEPT = 256
_RECOVERED_AFTER = 5  # healthy readings
_RANKS = 32  # that many lines of one step may be one line of each rank
_BAR = re.compile(r"%\||it/s|s/it|\u2501")


class _Readings(NamedTuple):
    """How many readings in a row prove it: as the end of a log, and while the run goes on."""

    at_end: int
    live: int


_NAN = _Readings(3, 3)
_NEVER_FINITE = _Readings(2, 3)
_INFINITE = _Readings(3, 10)
_IN_BAR = _Readings(5, 25)
_NEVER_FINITE_IN_BAR = _Readings(5, 200)
_RL_NEVER_FINITE = _Readings(20, 100)
_DEAD_GRADIENT = _Readings(3, 5)
_GRADIENT_ALONE = _Readings(20, 40)
_ZERO_LOSS = _Readings(5, 5)  # and a loss on held-out data that is NaN

_FALLS = 0.98  # a loss that trains falls below this share of its start
_ENDS = 5  # readings, of which the medians are compared


class _Sort(IntEnum):
    """What a number is; whole numbers, since every number of every line is asked for its sort."""

    WHOLE = 0  # the training loss
    PART = 1  # one of several losses
    GRADIENT = 2
    HELD_OUT = 3  # a loss on held-out data
    RL = 4  # tells that this is reinforcement learning
    NONE = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN = _words(
    "loss losses train training lm total avg average mean batch running epoch step iter iteration global smooth"
    " smoothed metrics reduced current log"
)
_HELD = _words("val valid validation eval evaluation test testing dev holdout valloss testloss evalloss")
_NO_LOSS = _words("scale scaler weight weights coef coeff best min lowest max target")
_RL = _words("reward rewards rew return returns episode episodes episodic rollout")
_SPLIT = re.compile(r"[^a-z0-9]+")


def _sort_of(name: str) -> _Sort:
    words = [word for word in _SPLIT.split(name.lower().replace("\u635f\u5931", " loss ")) if word]
    kinds = frozenset(words)
    if any(word.endswith(("loss", "losses")) or word == "nll" for word in words):
        if kinds & _NO_LOSS:
            return _Sort.NONE
        if kinds & _HELD:
            return _Sort.HELD_OUT
        return _Sort.WHOLE if kinds <= _PLAIN else _Sort.PART
    if any(word.startswith(("grad", "gnorm")) for word in words):
        return _Sort.GRADIENT if words == ["grad"] or any("norm" in word for word in words) else _Sort.NONE
    return _Sort.RL if kinds & _RL else _Sort.NONE


@dataclass
class _Streak:
    """Readings in a row that were all bad in one respect."""

    ever_well: bool = False
    nan: bool = False
    since: int | None = None
    losses: list[float] = field(default_factory=list)
    _steps: int = 0
    _repeats: int = 0
    _last: tuple[int | None, str] | None = None

    @property
    def count(self) -> int:
        """How many; lines of one step are those of several ranks, unless steps are never told apart."""
        return max(self._steps, self._repeats // _RANKS)

    def bad(self, reading: Reading) -> None:
        if self._last is None:
            self.since = reading.step
        step, line = self._last or (None, "")
        if reading.step is None or reading.step != step:
            self._steps += 1
        elif reading.line != line:
            self._repeats += 1
        self._last = (reading.step, reading.line)

    def grade(self, needed: _Readings) -> Grade | None:
        if self.count >= needed.live:
            return Grade.PROVEN
        return Grade.END_OF_LOG if self.count >= needed.at_end else None


class Divergence:
    """Reads what training prints; ``line`` and ``text`` are None while nothing speaks against it.

    ``line``: the newest line that would prove it if the log ended there. ``text``: one sentence, once it is proven
    whatever follows. ``since_step``: the step it began with. ``recovered``: what was proven is over again.
    """

    def __init__(self) -> None:
        self.line: str | None = None
        self.text: str | None = None
        self.since_step: int | None = None
        self.recovered = False
        self._rule = ""
        self._well = 0
        self._sorts: dict[str, _Sort] = {}
        self._streaks: dict[str, _Streak] = {}
        self._loss: float | None = None  # the newest
        self._rl = False
        self._skips = Skips()
        self._history = History()

    def feed(self, reading: Reading) -> None:
        """Take the numbers of one line."""
        if not reading.metrics and reading.skipped is None:
            return
        words = list(self._judge(reading))
        worst = max(words, key=lambda word: word.grade, default=None)
        if worst is not None and worst.grade:
            self._accuse(worst, reading.line)
        elif any(word.rule == self._rule for word in words):
            self._acquit()

    def _accuse(self, word: Word, line: str) -> None:
        if self.text is not None and word.grade < Grade.PROVEN:
            return
        self.line, self.since_step, self._rule, self._well = line, word.since, word.rule, 0
        if word.grade is Grade.PROVEN:
            self.text, self.recovered = word.text, False

    def _acquit(self) -> None:
        if self.text is None:
            self.line, self.since_step, self._rule = None, None, ""
            return
        self._well += 1
        self.recovered = self._well >= _RECOVERED_AFTER

    def _judge(self, reading: Reading) -> Iterator[Word]:
        sorted_: list[dict[str, float]] = [{}, {}, {}, {}, {}, {}]
        for name, value in reading.metrics.items():
            sorted_[self._sort(name)][name] = value
        self._rl = self._rl or bool(sorted_[_Sort.RL])
        whole, parts = sorted_[_Sort.WHOLE], sorted_[_Sort.PART]
        finite = [value for value in whole.values() if math.isfinite(value)]
        if whole:
            self._loss = next(iter(whole.values()))
        for name, value in (whole if finite else whole | parts).items():
            yield from self._nonfinite(name, value, reading)
        yield from self._gradient(list(sorted_[_Sort.GRADIENT].values()), reading)
        yield from self._zero(bool(whole), list(sorted_[_Sort.HELD_OUT].values()), reading)
        yield from self._skips.feed(reading)
        if finite and not self._rl:
            yield from self._history.feed(finite[0], reading.step)

    def _sort(self, name: str) -> _Sort:
        if (sort := self._sorts.get(name)) is None:
            if len(self._sorts) >= _NAMES_KEPT:
                return _Sort.NONE
            sort = self._sorts[name] = _sort_of(name)
        return sort

    def _streak(self, rule: str, *, bad: bool, reading: Reading) -> _Streak:
        streak = self._streaks.get(rule)
        if streak is None or not bad:
            streak = self._streaks[rule] = _Streak(ever_well=not bad)
        if bad:
            streak.bad(reading)
        return streak

    def _nonfinite(self, name: str, value: float, reading: Reading) -> Iterator[Word]:
        streak = self._streak(name, bad=not math.isfinite(value), reading=reading)
        if math.isfinite(value):
            yield Word(name, Grade.WELL)
            return
        streak.nan = streak.nan or math.isnan(value)
        if grade := streak.grade(self._needed(streak, reading.line)):
            text = f"{name} has been {value} in {streak.count} readings in a row{_since(streak.since)}."
            yield Word(name, grade, text, streak.since)

    def _needed(self, streak: _Streak, line: str) -> _Readings:
        if self._rl and not streak.ever_well:
            return _RL_NEVER_FINITE
        if _BAR.search(line) and "{" not in line:
            return _IN_BAR if streak.ever_well else _NEVER_FINITE_IN_BAR
        if not streak.nan:
            return _INFINITE
        return _NAN if streak.ever_well else _NEVER_FINITE

    def _gradient(self, norms: list[float], reading: Reading) -> Iterator[Word]:
        if not norms:
            return
        bad = not math.isfinite(norms[0])
        streak = self._streak("gradient", bad=bad, reading=reading)
        alive = self._loss is None or (math.isfinite(self._loss) and self._loss != 0)
        dead = self._streak("dead gradient", bad=bad and not alive, reading=reading)
        if not bad:
            yield Word("gradient", Grade.WELL)
            return
        if alive and self._loss is not None:
            streak.losses = [*streak.losses[:_ENDS], *streak.losses[_ENDS:][-_ENDS + 1 :], self._loss]
        if alive and (self._rl or _falls(streak.losses)):
            return
        if grade := streak.grade(_GRADIENT_ALONE) if alive else dead.grade(_DEAD_GRADIENT):
            count = streak.count if alive else dead.count
            of_loss = "the loss does not fall" if alive else f"the loss is {self._loss:g}"
            text = f"The gradient norm has been {norms[0]} in {count} readings in a row while {of_loss}."
            yield Word("gradient", grade, text, streak.since)

    def _zero(self, told: bool, held_out: list[float], reading: Reading) -> Iterator[Word]:
        if told:
            streak = self._streak("zero", bad=self._loss == 0, reading=reading)
            if self._loss != 0:
                yield Word("zero", Grade.WELL)
        elif held_out and not self._rl and all(math.isnan(value) for value in held_out):
            streak = self._streaks.get("zero", _Streak())
            if grade := streak.grade(_ZERO_LOSS):
                text = f"The loss is 0 and NaN on held-out data{_since(streak.since)}."
                yield Word("zero", grade, text, streak.since)


def _falls(losses: list[float]) -> bool:
    """Whether the last of the losses lie below the first of them; too few of them may."""
    return len(losses) < 2 * _ENDS or median(losses[-_ENDS:]) < _FALLS * median(losses[:_ENDS])


def _since(step: int | None) -> str:
    return "" if step is None else f", since step {step}"
