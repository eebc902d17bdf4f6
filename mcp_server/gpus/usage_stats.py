"""Statistics over the samples of one run's GPUs: means, peaks, streaks, windows, and the imbalance rule. Pure.

The caller says when each sample was taken, and for how long it counts.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from mcp_server.gpus.snapshot import Gpu

BUSY_PERCENT = 20.0  # a median utilisation below it is noise
_LAGS = 0.7  # of the median; a GPU below it lags behind the others
_EPSILON = 1e-6  # for a mean that is exactly at the limit
_FULL = 0.8  # of a window covered by samples; the others may have failed
_FEWEST = 4  # samples of work in a window: a single one covers only NVML's last second


class UsageFigures(NamedTuple):
    """Usage of one GPU: mean utilisation (%), peak memory (MiB), mean power (W), highest temperature (C).

    None: no sample reported it.
    """

    mean_util: float | None = None
    peak_mib: float | None = None
    mean_w: float | None = None
    max_c: float | None = None


class Imbalance(NamedTuple):
    """The median utilisation (%) of a run's GPUs, and the UUIDs of those that lag behind it."""

    median: float
    lagging: frozenset[str]


def find_imbalance(mean_utils: Mapping[str, float]) -> Imbalance | None:
    """Return which GPUs work less than 0.7 of the median, or None when the median is below 20 %.

    ``mean_utils``: mean utilisation (%) by UUID, over the same time.
    """
    middle = median(mean_utils.values()) if mean_utils else 0.0
    if middle < BUSY_PERCENT:
        return None
    return Imbalance(middle, frozenset(uuid for uuid, mean in mean_utils.items() if mean < _LAGS * middle - _EPSILON))


@dataclass
class Mean:
    """A mean over time. Before any time has passed, the newest value."""

    sum: float = 0.0
    weight_s: float = 0.0
    last: float | None = None

    def add(self, value: float | None, duration_s: float) -> None:
        """Count ``value`` for ``duration_s``. None does not count."""
        if value is not None:
            self.sum, self.weight_s, self.last = self.sum + value * duration_s, self.weight_s + duration_s, value

    @property
    def value(self) -> float | None:
        """The mean, or None when there was no value."""
        return self.sum / self.weight_s if self.weight_s else self.last


@dataclass
class GpuUsage:
    """Accumulates the samples of one GPU."""

    util: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)
    peak_mib: float | None = None
    max_c: float | None = None

    def add_sample(self, gpu: Gpu, duration_s: float) -> None:
        """Count a sample for ``duration_s``."""
        self.util.add(drop_implausible(gpu.utilisation), duration_s)
        self.power.add(drop_implausible(gpu.power_w), duration_s)
        self.add_peaks(gpu)

    def add_peaks(self, gpu: Gpu) -> None:
        """Count only the peaks of a sample, which do not depend on its time."""
        self.peak_mib = _larger(self.peak_mib, drop_implausible(gpu.memory_used_mib))
        self.max_c = _larger(self.max_c, drop_implausible(gpu.temperature_c))

    def figures(self) -> UsageFigures:
        """Return the figures, rounded."""
        util, power = self.util.value, self.power.value
        return UsageFigures(
            None if util is None else round(util, 1),
            None if self.peak_mib is None else round(self.peak_mib),
            None if power is None else round(power, 1),
            None if self.max_c is None else round(self.max_c),
        )


@dataclass
class Streak:
    """How many samples in a row showed a state, and since when."""

    count: int = 0
    since_s: float = 0.0

    def add(self, state: bool, now_s: float) -> None:
        """Count the next sample."""
        if state and not self.count:
            self.since_s = now_s
        self.count = self.count + 1 if state else 0


@dataclass(frozen=True)
class _Row:
    """One sample of all GPUs: its time, the time that it covers, and the utilisation (%) by UUID where known."""

    at_s: float
    duration_s: float
    utils: Mapping[str, float]
    busy: bool


class Window:
    """The utilisation of all GPUs over the last ``length_s``."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._rows: deque[_Row] = deque()
        self._from_s: float | None = None

    def add(self, utils: Mapping[str, float], now_s: float, duration_s: float) -> None:
        """Add a sample that covers the ``duration_s`` before now: the utilisation (%) by UUID, where known."""
        self._from_s = now_s if self._from_s is None else self._from_s
        busy = bool(utils) and median(utils.values()) >= BUSY_PERCENT
        self._rows.append(_Row(now_s, duration_s, utils, busy))
        while self._rows[0].at_s <= now_s - self._length_s:
            self._rows.popleft()

    def means(self, now_s: float) -> dict[str, float]:
        """Return the means over the window that ends now, by UUID, or empty unless samples fill it, several of work.

        The means are compared with each other, so all are taken from the same samples. Where two GPUs had little
        work in the window, one would lag if a single sample of it were missing. GPUs with few samples are left out.
        """
        if self._from_s is None or now_s - self._from_s < self._length_s:
            return {}
        enough_s = _FULL * self._length_s
        known_s: defaultdict[str, float] = defaultdict(float)
        for row in self._rows:
            for uuid in row.utils:
                known_s[uuid] += row.duration_s
        compared = [uuid for uuid, covered_s in known_s.items() if covered_s >= enough_s]
        rows = [row for row in self._rows if all(uuid in row.utils for uuid in compared)]
        covered_s = sum(row.duration_s for row in rows)
        if covered_s < enough_s or sum(row.busy for row in rows) < _FEWEST:
            return {}
        return {uuid: sum(row.duration_s * row.utils[uuid] for row in rows) / covered_s for uuid in compared}


def drop_implausible(value: float | None) -> float | None:
    """Return ``value``, or None when it is negative or not finite, which no driver can mean."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _larger(one: float | None, other: float | None) -> float | None:
    return max((v for v in (one, other) if v is not None), default=None)
