"""Two signs of divergence over many steps: all optimizer steps skipped, and an exploding loss. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, IntEnum, auto
from itertools import islice
from typing import NamedTuple

from mcp_server.diagnosis.progress.step_counters import median
from mcp_server.diagnosis.progress.tracker import MetricLine

# Consecutive steps. A loss scale that starts at 2^32 reaches 1 within 33 skipped steps.
_SKIPPED_AT_END, _SKIPPED_LIVE = 20, 40
_SKIPPED_LONG = 100
_HISTORY, _RISEN, _FACTOR = 20, 5, 10.0
_LEAST_EXPLODED = 1.0  # below this, a factor of 10 is a curriculum, or a loss that began at 0
# A second stage, a new curriculum or another term of the loss may jump to any scale, or grow to it, and then falls or
# stays there. An explosion goes on: it grows by this factor in both halves of the time since its jump.
_GROWS, _MAX_SINCE = 3.0, 100
_AT_END, _LIVE = (10, 30.0), (20, 100.0)  # readings since the jump, and the least factor above all history
_FAR_ABOVE = 10_000.0  # a factor that proves an explosion without further growth
_LONG_SINCE = 40
_MAX_VALUES = 1_000


class Grade(IntEnum):
    """How much a rule proves: nothing, divergence if the log ends here, or divergence in any case."""

    GOOD = 0
    END_OF_LOG = 1
    PROVEN = 2


class Sign(Enum):
    """A sign of divergence that is independent of the others. Two of them are enough to stop a run."""

    LOSS = auto()  # it is NaN, infinite or exactly 0
    LONG = auto()  # another sign lasts: 20 readings, 100 skipped steps or 40 readings of an explosion
    GRADIENT = auto()  # its norm is NaN or infinite
    NO_FALL = auto()  # the loss does not fall
    HELD_OUT = auto()  # the loss on held-out data is NaN
    REWARD = auto()  # it is NaN
    SKIPS = auto()  # every optimizer step is skipped
    EXPLOSION = auto()  # of the loss


class RuleResult(NamedTuple):
    """Result of one rule for one line, and the signs that it found. A rule that does not apply yields nothing."""

    rule: str
    grade: Grade
    text: str = ""
    since: int | None = None
    signs: frozenset[Sign] = frozenset()
    first_line: str = ""


class SkippedSteps:
    """Compares the optimizer steps that were skipped with those that were made."""

    def __init__(self) -> None:
        self._start: tuple[int, int] | None = None  # step, skipped
        self._last = (0, 0)

    def check(self, metric_line: MetricLine) -> Iterator[RuleResult]:
        """Compare skipped steps and steps since the previous line."""
        if metric_line.skipped is None or metric_line.step is None:
            return
        current, (step, before) = (metric_line.step, metric_line.skipped), self._last
        if self._start is None or metric_line.step < step:
            self._start = (0, 0) if metric_line.step == metric_line.skipped > 0 else current
        elif metric_line.step == step:
            return
        elif metric_line.skipped - before != metric_line.step - step:
            self._start = current
        self._last = current
        steps = metric_line.step - self._start[0]
        if steps == 0:
            yield RuleResult("skips", Grade.GOOD)
        elif steps >= _SKIPPED_AT_END:
            text = f"Every optimizer step since step {self._start[0] + 1} was skipped, {steps} of them."
            grade = Grade.PROVEN if steps >= _SKIPPED_LIVE else Grade.END_OF_LOG
            signs = {Sign.SKIPS} | ({Sign.LONG} if steps >= _SKIPPED_LONG else set())
            yield RuleResult("skips", grade, text, self._start[0] + 1, frozenset(signs))


class LossHistory:
    """Past values of the training loss. Old values are merged in pairs, keeping the larger."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RISEN)
        self._jump: _Jump | None = None
        self._step: int | None = None

    def check(self, value: float, step: int | None) -> Iterator[RuleResult]:
        """Compare the last five values with all values before their rise."""
        if step is not None and self._step is not None:
            if step == self._step:  # the line of another rank
                return
            if step < self._step:  # a new phase with its own loss
                self._values.clear()
                self._recent.clear()
                self._jump = None
        self._step = step
        size = abs(value)
        self._add_value(size)
        if self._jump is not None and min(self._recent) > _FACTOR * self._jump.before:
            yield self._jump.check(size, step)
            return
        self._jump = self._find_jump(step)
        yield RuleResult("explosion", Grade.GOOD)

    def _find_jump(self, step: int | None) -> _Jump | None:
        values, low = self._values, min(self._recent)
        # The cheap test first: the maximum of all values is at least that of the first ones.
        if len(values) < _HISTORY + _RISEN or low <= max(_FACTOR * max(values[:_HISTORY]), _LEAST_EXPLODED):
            return None
        # The rise starts where the loss was last at its usual level; values during a slow rise are not history.
        usual = 2 * median(values)
        start = next((n for n in range(len(values), 0, -1) if values[n - 1] <= usual), 0)
        if start >= _HISTORY and low > _FACTOR * (before := max(values[:start])):
            return _Jump(before, step, list(self._recent))
        return None

    def _add_value(self, size: float) -> None:
        self._recent.append(size)
        values, half = self._values, _MAX_VALUES // 2
        if len(values) >= _MAX_VALUES:
            values[:half] = list(map(max, islice(values, 0, half, 2), islice(values, 1, half, 2)))
        values.append(size)


class _Jump:
    """A loss that has left its scale: an explosion if it goes on to rise, another phase of the training if not."""

    def __init__(self, before: float, step: int | None, first: list[float]) -> None:
        self.before = before
        self._step, self._count, self._since = step, len(first), first

    def check(self, size: float, step: int | None) -> RuleResult:
        self._count += 1
        if self._count <= _MAX_SINCE:
            self._since.append(size)
        else:
            self._since[-_RISEN:] = [*self._since[1 - _RISEN :], size]
        tail = median(self._since[-_RISEN:])
        grade = Grade.GOOD
        for (readings, factor), proves in ((_AT_END, Grade.END_OF_LOG), (_LIVE, Grade.PROVEN)):
            is_high = tail > factor * self.before and self._is_rising(tail)
            if self._count >= readings and (is_high or tail > _FAR_ABOVE * self.before):
                grade = proves
        if not grade:
            return RuleResult("explosion", Grade.GOOD)
        text = f"The loss has exploded to {size:.3g}; it never was above {self.before:.3g} before."
        signs = {Sign.EXPLOSION} | ({Sign.LONG} if self._count >= _LONG_SINCE else set())
        return RuleResult("explosion", grade, text, step if self._step is None else self._step, frozenset(signs))

    def _is_rising(self, tail: float) -> bool:
        half = max(_RISEN, len(self._since) // 2)
        head, middle = median(self._since[:_RISEN]), median(self._since[half - _RISEN // 2 - 1 :][:_RISEN])
        return self._count <= _MAX_SINCE and middle > _GROWS * head and tail > _GROWS * middle
