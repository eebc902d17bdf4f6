"""What is summed up of one GPU's samples. Pure: the caller says when each was taken, and for how long it speaks."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from mcp_server.gpus.snapshot import Gpu

# Mean utilisation (%), peak memory (MiB), mean power (W), highest temperature (C); None: no sample told.
Figures: TypeAlias = tuple[float | None, int | None, float | None, int | None]

WORKING = 20.0  # per cent; below that a utilisation is noise
_FULL = 0.8  # of a window covered by samples; the rest may have failed
_FEWEST = 4  # samples of work in a window: a single one speaks for NVML's last second


@dataclass
class Mean:
    """A mean over time; before any time has passed, the newest value."""

    sum: float = 0.0
    weight_s: float = 0.0
    last: float | None = None

    def add(self, value: float | None, held_s: float) -> None:
        """Let ``value`` count for ``held_s``; None does not count."""
        if value is not None:
            self.sum, self.weight_s, self.last = self.sum + value * held_s, self.weight_s + held_s, value

    @property
    def value(self) -> float | None:
        """The mean; None when there was no value."""
        return self.sum / self.weight_s if self.weight_s else self.last


@dataclass
class Tally:
    """The figures of one GPU over a time."""

    util: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)
    peak_mib: float | None = None
    max_c: float | None = None

    def add(self, gpu: Gpu, held_s: float) -> None:
        """Take a sample that speaks for ``held_s``."""
        self.util.add(known(gpu.utilisation), held_s)
        self.power.add(known(gpu.power_w), held_s)
        self.add_peaks(gpu)

    def add_peaks(self, gpu: Gpu) -> None:
        """Take of a sample only what counts whenever it was."""
        self.peak_mib = _larger(self.peak_mib, known(gpu.memory_used_mib))
        self.max_c = _larger(self.max_c, known(gpu.temperature_c))

    def figures(self) -> Figures:
        """Return them, rounded."""
        util, power = self.util.value, self.power.value
        return (
            None if util is None else round(util, 1),
            None if self.peak_mib is None else round(self.peak_mib),
            None if power is None else round(power, 1),
            None if self.max_c is None else round(self.max_c),
        )


@dataclass
class Streak:
    """How many samples in a row told of a thing, and since when."""

    count: int = 0
    since_s: float = 0.0

    def add(self, state: bool, now_s: float) -> None:
        """Take the next sample's word."""
        if state and not self.count:
            self.since_s = now_s
        self.count = self.count + 1 if state else 0


@dataclass(frozen=True)
class _Row:
    """One sample of all GPUs: when, for how long it speaks, and the utilisation (%) of those that told it, by UUID."""

    at_s: float
    held_s: float
    utils: Mapping[str, float]
    at_work: bool


class Window:
    """The utilisation of all GPUs over the last ``length_s``."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._rows: deque[_Row] = deque()
        self._from_s: float | None = None

    def add(self, utils: Mapping[str, float], now_s: float, held_s: float) -> None:
        """Take a sample that speaks for the ``held_s`` before now: the utilisation of those that told it."""
        self._from_s = now_s if self._from_s is None else self._from_s
        at_work = bool(utils) and median(utils.values()) >= WORKING
        self._rows.append(_Row(now_s, held_s, utils, at_work))
        while self._rows[0].at_s <= now_s - self._length_s:
            self._rows.popleft()

    def means(self, now_s: float) -> dict[str, float]:
        """Return their means over the window that ends now, by UUID; none unless samples fill it, several of work.

        They are to be compared, so that all are of the same samples: of two GPUs with little work in the window, one
        of whose samples is missing, one would lag. GPUs that seldom tell are left out.
        """
        if self._from_s is None or now_s - self._from_s < self._length_s:
            return {}
        enough_s = _FULL * self._length_s
        told_s: defaultdict[str, float] = defaultdict(float)
        for row in self._rows:
            for uuid in row.utils:
                told_s[uuid] += row.held_s
        compared = [uuid for uuid, covered_s in told_s.items() if covered_s >= enough_s]
        rows = [row for row in self._rows if all(uuid in row.utils for uuid in compared)]
        covered_s = sum(row.held_s for row in rows)
        if covered_s < enough_s or sum(row.at_work for row in rows) < _FEWEST:
            return {}
        return {uuid: sum(row.held_s * row.utils[uuid] for row in rows) / covered_s for uuid in compared}


def known(value: float | None) -> float | None:
    """Return a value that a driver can mean: nothing negative, nothing infinite."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _larger(one: float | None, other: float | None) -> float | None:
    return max((v for v in (one, other) if v is not None), default=None)
