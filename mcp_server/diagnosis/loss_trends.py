"""Two signs of divergence over many steps: all optimizer steps skipped, and an exploding loss. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from statistics import median
from typing import NamedTuple

from mcp_server.diagnosis.progress.tracker import MetricLine

# Consecutive steps. A loss scale that starts at 2^32 reaches 1 within 33 skipped steps.
_SKIPPED_AT_END, _SKIPPED_LIVE = 20, 40
_HISTORY, _RISEN, _FACTOR = 20, 5, 10.0
_LEAST_EXPLODED = 1.0  # below this, a factor of 10 is a curriculum, or a loss that began at 0
_MAX_VALUES = 1_000


class Grade(IntEnum):
    """How much a rule proves: nothing, divergence if the log ends here, or divergence in any case."""

    GOOD = 0
    END_OF_LOG = 1
    PROVEN = 2


class RuleResult(NamedTuple):
    """Result of one rule for one line. A rule that does not apply yields nothing."""

    rule: str
    grade: Grade
    text: str = ""
    since: int | None = None


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
            yield RuleResult("skips", grade, text, self._start[0] + 1)


class LossHistory:
    """Past values of the training loss. Old values are merged in pairs, keeping the larger."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RISEN)
        self._step: int | None = None

    def check(self, value: float, step: int | None) -> Iterator[RuleResult]:
        """Compare the last five values with all values before their rise."""
        if step is not None and self._step is not None:
            if step == self._step:  # the line of another rank
                return
            if step < self._step:  # a new phase with its own loss
                self._values.clear()
                self._recent.clear()
        self._step = step
        self._add_value(abs(value))
        values, low = self._values, min(self._recent)
        # The cheap test first: the maximum of all values is at least that of the first ones.
        if len(values) < _HISTORY + _RISEN or low <= max(_FACTOR * max(values[:_HISTORY]), _LEAST_EXPLODED):
            yield RuleResult("explosion", Grade.GOOD)
            return
        # The rise starts where the loss was last at its usual level; values during a slow rise are not history.
        usual = 2 * median(values)
        start = next((n for n in range(len(values), 0, -1) if values[n - 1] <= usual), 0)
        if start >= _HISTORY and low > _FACTOR * (before := max(values[:start])):
            text = f"The loss has exploded to {value:.3g}; it never was above {before:.3g} before."
            yield RuleResult("explosion", Grade.PROVEN, text, step)

    def _add_value(self, size: float) -> None:
        self._recent.append(size)
        values, half = self._values, _MAX_VALUES // 2
        if len(values) >= _MAX_VALUES:
            values[:half] = list(map(max, islice(values, 0, half, 2), islice(values, 1, half, 2)))
        values.append(size)
