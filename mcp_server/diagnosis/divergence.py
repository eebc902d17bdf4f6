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

from mcp_server.diagnosis.loss_trends import Grade, LossHistory, RuleResult, SkippedSteps
from mcp_server.diagnosis.progress.tracker import MetricLine

_MAX_NAMES = 256
_RECOVERED_AFTER = 5  # healthy readings
_MAX_RANKS = 32  # that many lines of one step may be one line of each rank
_BAR = re.compile(r"%\||it/s|s/it|\u2501")


class _StreakLimits(NamedTuple):
    """How many readings in a row prove it: as the end of a log, and while the run goes on."""

    at_end: int
    live: int


_NAN = _StreakLimits(3, 3)
_NEVER_FINITE = _StreakLimits(2, 3)
_INFINITE = _StreakLimits(3, 10)
_IN_BAR = _StreakLimits(5, 25)
_NEVER_FINITE_IN_BAR = _StreakLimits(5, 200)
_RL_NEVER_FINITE = _StreakLimits(20, 100)
_DEAD_GRADIENT = _StreakLimits(3, 5)
_GRADIENT_ALONE = _StreakLimits(20, 40)
_ZERO_LOSS = _StreakLimits(5, 5)  # and a loss on held-out data that is NaN

_FALLS = 0.98  # a loss that trains falls below this share of its start
_ENDS = 5  # readings, of which the medians are compared


class _Role(IntEnum):
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


def _role_of(name: str) -> _Role:
    results = [result for result in _SPLIT.split(name.lower().replace("\u635f\u5931", " loss ")) if result]
    kinds = frozenset(results)
    if any(result.endswith(("loss", "losses")) or result == "nll" for result in results):
        if kinds & _NO_LOSS:
            return _Role.NONE
        if kinds & _HELD:
            return _Role.HELD_OUT
        return _Role.WHOLE if kinds <= _PLAIN else _Role.PART
    if any(result.startswith(("grad", "gnorm")) for result in results):
        return _Role.GRADIENT if results == ["grad"] or any("norm" in result for result in results) else _Role.NONE
    return _Role.RL if kinds & _RL else _Role.NONE


@dataclass
class _Streak:
    """Readings in a row that were all bad in one respect."""

    ever_good: bool = False
    nan: bool = False
    since: int | None = None
    losses: list[float] = field(default_factory=list)
    _steps: int = 0
    _repeats: int = 0
    _last: tuple[int | None, str] | None = None

    @property
    def count(self) -> int:
        """How many; lines of one step are those of several ranks, unless steps are never told apart."""
        return max(self._steps, self._repeats // _MAX_RANKS)

    def bad(self, metric_line: MetricLine) -> None:
        if self._last is None:
            self.since = metric_line.step
        step, line = self._last or (None, "")
        if metric_line.step is None or metric_line.step != step:
            self._steps += 1
        elif metric_line.line != line:
            self._repeats += 1
        self._last = (metric_line.step, metric_line.line)

    def grade(self, limits: _StreakLimits) -> Grade | None:
        if self.count >= limits.live:
            return Grade.PROVEN
        return Grade.END_OF_LOG if self.count >= limits.at_end else None


class DivergenceDetector:
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
        self._good_lines = 0
        self._roles: dict[str, _Role] = {}
        self._streaks: dict[str, _Streak] = {}
        self._last_loss: float | None = None  # the newest
        self._is_rl = False
        self._skips = SkippedSteps()
        self._history = LossHistory()

    def read_metrics(self, metric_line: MetricLine) -> None:
        """Take the numbers of one line."""
        if not metric_line.metrics and metric_line.skipped is None:
            return
        results = list(self._apply_rules(metric_line))
        worst = max(results, key=lambda result: result.grade, default=None)
        if worst is not None and worst.grade:
            self._note_suspicion(worst, metric_line.line)
        elif any(result.rule == self._rule for result in results):
            self._note_good_line()

    def _note_suspicion(self, result: RuleResult, line: str) -> None:
        if self.text is not None and result.grade < Grade.PROVEN:
            return
        self.line, self.since_step, self._rule, self._good_lines = line, result.since, result.rule, 0
        if result.grade is Grade.PROVEN:
            self.text, self.recovered = result.text, False

    def _note_good_line(self) -> None:
        if self.text is None:
            self.line, self.since_step, self._rule = None, None, ""
            return
        self._good_lines += 1
        self.recovered = self._good_lines >= _RECOVERED_AFTER

    def _apply_rules(self, metric_line: MetricLine) -> Iterator[RuleResult]:
        values_by_role: list[dict[str, float]] = [{}, {}, {}, {}, {}, {}]
        for name, value in metric_line.metrics.items():
            values_by_role[self._role(name)][name] = value
        self._is_rl = self._is_rl or bool(values_by_role[_Role.RL])
        whole, parts = values_by_role[_Role.WHOLE], values_by_role[_Role.PART]
        finite = [value for value in whole.values() if math.isfinite(value)]
        if whole:
            self._last_loss = next(iter(whole.values()))
        for name, value in (whole if finite else whole | parts).items():
            yield from self._check_finite(name, value, metric_line)
        yield from self._check_gradient(list(values_by_role[_Role.GRADIENT].values()), metric_line)
        yield from self._check_zero_loss(bool(whole), list(values_by_role[_Role.HELD_OUT].values()), metric_line)
        yield from self._skips.check(metric_line)
        if finite and not self._is_rl:
            yield from self._history.check(finite[0], metric_line.step)

    def _role(self, name: str) -> _Role:
        if (sort := self._roles.get(name)) is None:
            if len(self._roles) >= _MAX_NAMES:
                return _Role.NONE
            sort = self._roles[name] = _role_of(name)
        return sort

    def _update_streak(self, rule: str, *, bad: bool, metric_line: MetricLine) -> _Streak:
        streak = self._streaks.get(rule)
        if streak is None or not bad:
            streak = self._streaks[rule] = _Streak(ever_good=not bad)
        if bad:
            streak.bad(metric_line)
        return streak

    def _check_finite(self, name: str, value: float, metric_line: MetricLine) -> Iterator[RuleResult]:
        streak = self._update_streak(name, bad=not math.isfinite(value), metric_line=metric_line)
        if math.isfinite(value):
            yield RuleResult(name, Grade.GOOD)
            return
        streak.nan = streak.nan or math.isnan(value)
        if grade := streak.grade(self._limits_for(streak, metric_line.line)):
            text = f"{name} has been {value} in {streak.count} readings in a row{_since(streak.since)}."
            yield RuleResult(name, grade, text, streak.since)

    def _limits_for(self, streak: _Streak, line: str) -> _StreakLimits:
        if self._is_rl and not streak.ever_good:
            return _RL_NEVER_FINITE
        if _BAR.search(line) and "{" not in line:
            return _IN_BAR if streak.ever_good else _NEVER_FINITE_IN_BAR
        if not streak.nan:
            return _INFINITE
        return _NAN if streak.ever_good else _NEVER_FINITE

    def _check_gradient(self, norms: list[float], metric_line: MetricLine) -> Iterator[RuleResult]:
        if not norms:
            return
        bad = not math.isfinite(norms[0])
        streak = self._update_streak("gradient", bad=bad, metric_line=metric_line)
        alive = self._last_loss is None or (math.isfinite(self._last_loss) and self._last_loss != 0)
        dead = self._update_streak("dead gradient", bad=bad and not alive, metric_line=metric_line)
        if not bad:
            yield RuleResult("gradient", Grade.GOOD)
            return
        if alive and self._last_loss is not None:
            streak.losses = [*streak.losses[:_ENDS], *streak.losses[_ENDS:][-_ENDS + 1 :], self._last_loss]
        if alive and (self._is_rl or _falls(streak.losses)):
            return
        if grade := streak.grade(_GRADIENT_ALONE) if alive else dead.grade(_DEAD_GRADIENT):
            count = streak.count if alive else dead.count
            of_loss = "the loss does not fall" if alive else f"the loss is {self._last_loss:g}"
            text = f"The gradient norm has been {norms[0]} in {count} readings in a row while {of_loss}."
            yield RuleResult("gradient", grade, text, streak.since)

    def _check_zero_loss(self, has_loss: bool, held_out: list[float], metric_line: MetricLine) -> Iterator[RuleResult]:
        if has_loss:
            streak = self._update_streak("zero", bad=self._last_loss == 0, metric_line=metric_line)
            if self._last_loss != 0:
                yield RuleResult("zero", Grade.GOOD)
        elif held_out and not self._is_rl and all(math.isnan(value) for value in held_out):
            streak = self._streaks.get("zero", _Streak())
            if grade := streak.grade(_ZERO_LOSS):
                text = f"The loss is 0 and NaN on held-out data{_since(streak.since)}."
                yield RuleResult("zero", grade, text, streak.since)


def _falls(losses: list[float]) -> bool:
    """Whether the last of the losses lie below the first of them; too few of them may."""
    return len(losses) < 2 * _ENDS or median(losses[-_ENDS:]) < _FALLS * median(losses[:_ENDS])


def _since(step: int | None) -> str:
    return "" if step is None else f", since step {step}"
