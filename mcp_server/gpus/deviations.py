"""Usage figures and deviations of one attempt's GPUs, from samples. Pure.

The caller says when each sample was taken, in monotonic seconds. A sample covers the time since the one before it, as
NVML's utilisation does, and three usual gaps at most: the sampler may have been dead in between. A value that a sample
lacks is unknown: neither zero nor the end of a deviation.

Each deviation is reported once, and again only after a full window of samples without it.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

from mcp_server.gpus.snapshot import Gpu, Snapshot, shorten_uuid
from mcp_server.gpus.xid import describe_xid

DeviationKind = Literal["imbalance", "idle", "xid", "throttling", "clock", "power", "lost"]

# A GPU that never was above this utilisation (%) was only initialised. A checkpoint may take 100 s, and a little more.
_USED, _IDLE_WINDOWS = 10.0, 2.5
_USUAL_GAPS, _LONGEST_GAPS = 9, 3
_MINUTE_S = 60.0
# A power cap and set clocks are normal settings of a machine. These are faults.
_SLOWDOWNS = frozenset({"thermal", "hw_thermal", "power_brake", "hw_slowdown"})
_THROTTLED_S, _SEVERAL, _FEW = 10.0, 3, 2  # samples in a row; few where samples are rare
_ROUNDED_W = 0.5  # drivers round a limit


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


@dataclass(frozen=True)
class Deviation:
    """An unexpected state of a run's GPUs. ``facts``: its values, for JSON."""

    what: DeviationKind
    text: str
    facts: dict[str, Any]


class _TrackedGpu:
    """The usage and the state of one GPU."""

    def __init__(self, uuid: str, short_uuid: str) -> None:
        self.uuid, self._short_uuid = uuid, short_uuid
        self.name = short_uuid
        self.attempt, self.minute = GpuUsage(), GpuUsage()
        self.throttled, self.above_clock = Streak(), Streak()
        self.is_present = False
        self.missing_since_s: float | None = None

    def mark_seen(self, gpu: Gpu) -> None:
        self.is_present, self.missing_since_s, self.name = True, None, f"{gpu.index} ({self._short_uuid})"

    def add_sample(self, gpu: Gpu, duration_s: float) -> None:
        self.attempt.add_sample(gpu, duration_s)
        self.minute.add_sample(gpu, duration_s)


class UsageTracker:
    """Accumulates the samples of one attempt's GPUs, which are named by full UUIDs.

    ``max_sm_clock_mhz`` and ``power_limit_w`` are the run's requirements, None when it has none.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        window_s: float = 120.0,
        max_sm_clock_mhz: int | None = None,
        power_limit_w: float | None = None,
    ) -> None:
        self._gpus = {uuid: _TrackedGpu(uuid, shorten_uuid(uuid, uuids)) for uuid in uuids}
        self._window_s, self._window = window_s, Window(window_s)
        self._max_mhz, self._limit_w = max_sm_clock_mhz, power_limit_w
        self._gaps: deque[float] = deque(maxlen=_USUAL_GAPS)
        self._last_s: float | None = None
        self._minute_from_s: float | None = None
        self._used = False
        self._idle_from_s: float | None = None
        self._seen_s: float | None = None  # when the newest sample showed whether all GPUs are idle
        # When the first sample without a deviation was taken; None while it lasts.
        self._ended_s: dict[tuple[Any, ...], float | None] = {}

    def add_sample(self, snapshot: Snapshot, now_s: float) -> list[Deviation]:
        """Count a sample and return the deviations that begin with it."""
        gpus = list({gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid in self._gpus}.values())
        deviations: list[Deviation] = []
        if self._last_s is not None and now_s <= self._last_s:  # repeated or late: count only what needs no order
            for gpu in gpus:
                self._gpus[gpu.uuid].attempt.add_peaks(gpu)
                deviations += self._check_xids(gpu, now_s)
            return deviations
        duration_s = self._measure_duration(now_s) if gpus else 0.0
        for gpu in gpus:
            self._gpus[gpu.uuid].mark_seen(gpu)
            deviations += [*self._check_lost(gpu, now_s), *self._check_xids(gpu, now_s)]
            if not (gpu.lost or gpu.hangs):
                self._gpus[gpu.uuid].add_sample(gpu, duration_s)
                deviations += [*self._check_throttling(gpu, now_s), *self._check_limits(gpu, now_s)]
        deviations += self._check_missing(snapshot, {gpu.uuid for gpu in gpus}, now_s)
        if gpus:
            answering = (gpu for gpu in gpus if not (gpu.lost or gpu.hangs))
            utils = {gpu.uuid: util for gpu in answering if (util := drop_implausible(gpu.utilisation)) is not None}
            self._window.add(utils, now_s, duration_s)
            deviations += [*self._check_imbalance(now_s), *self._check_idle(utils, now_s)]
        return deviations

    def figures(self) -> dict[str, dict[str, float]]:
        """Return, by UUID, peak_mib, mean_util (%), mean_w and max_c of the attempt. Unknown ones are left out."""
        figures = {
            uuid: {name: value for name, value in gpu.attempt.figures()._asdict().items() if value is not None}
            for uuid, gpu in self._gpus.items()
        }
        return {uuid: each for uuid, each in figures.items() if each}

    def minute_figures(self, now_s: float) -> dict[str, UsageFigures] | None:
        """Return, once a minute and by UUID, the figures of that minute. None in between, and when all are unknown."""
        if self._minute_from_s is None or now_s - self._minute_from_s < _MINUTE_S:
            return None
        self._minute_from_s = now_s
        figures = {uuid: gpu.minute.figures() for uuid, gpu in self._gpus.items()}
        for gpu in self._gpus.values():
            gpu.minute = GpuUsage()
        return {uuid: each for uuid, each in figures.items() if any(v is not None for v in each)} or None

    def idle_s(self, now_s: float) -> float | None:
        """Return for how long all GPUs have been at 0 %, or None when they were never used, or samples are missing."""
        if not self._used or self._seen_s is None or now_s - self._seen_s > self._window_s:
            return None
        return 0.0 if self._idle_from_s is None else max(0.0, now_s - self._idle_from_s)

    def _measure_duration(self, now_s: float) -> float:
        """Return the time that a sample of now covers, and remember it as the newest sample."""
        if self._last_s is None:
            self._last_s = self._minute_from_s = now_s
            return 0.0
        self._gaps.append(now_s - self._last_s)
        self._last_s = now_s
        return min(self._gaps[-1], _LONGEST_GAPS * median(self._gaps))

    def _begins(self, key: tuple[Any, ...], state: bool, now_s: float) -> bool:
        """Return whether a deviation begins with this sample; ``state``: whether the sample shows it."""
        if state:
            begins = key not in self._ended_s
            self._ended_s[key] = None
            return begins
        if key in self._ended_s:
            ended_s = self._ended_s[key]
            if ended_s is None:
                self._ended_s[key] = now_s
            elif now_s - ended_s >= self._window_s:
                del self._ended_s[key]
        return False

    def _check_lost(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        hanging = ", ".join(name for name, error in (gpu.failed or {}).items() if error == "hangs")
        if self._begins(("lost", gpu.uuid), gpu.lost or gpu.hangs, now_s):
            what = "has fallen off the bus" if gpu.lost else f"does not answer; what hangs: {hanging}"
            yield Deviation("lost", f"GPU {self._gpus[gpu.uuid].name} {what}.", {"gpu": gpu.uuid})

    def _check_missing(self, snapshot: Snapshot, uuids: set[str], now_s: float) -> Iterator[Deviation]:
        """Yield GPUs that samples have lacked for a window, and a driver that hangs. ``uuids``: of this sample."""
        if self._begins(("driver",), snapshot.trouble == "hangs", now_s):
            yield Deviation("lost", f"The GPU driver does not answer. {snapshot.text}".strip(), {})
        for gpu in () if snapshot.trouble else self._gpus.values():
            if not gpu.is_present or gpu.uuid in uuids:
                continue
            if gpu.missing_since_s is None:
                gpu.missing_since_s = now_s
            missing_s = now_s - gpu.missing_since_s
            if missing_s >= self._window_s and self._begins(("lost", gpu.uuid), True, now_s):
                text = f"GPU {gpu.name} is gone: the driver has not reported it for {missing_s:.0f} s."
                yield Deviation("lost", text, {"gpu": gpu.uuid})

    def _check_xids(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        causes = {
            "program": "usually an error of the program",
            "corrected": "the GPU corrected it",
            "fault": "a fault of the GPU or its driver",
        }
        ongoing = {key[2] for key in self._ended_s if key[:2] == ("xid", gpu.uuid)}
        for number in sorted(ongoing | set(gpu.xids)):
            if self._begins(("xid", gpu.uuid, number), number in gpu.xids, now_s):
                xid = describe_xid(number)
                text = f"GPU {self._gpus[gpu.uuid].name}: Xid {number}, {xid.meaning}: {causes[xid.cause]}."
                facts = {"gpu": gpu.uuid, "xid": number, "by_program": xid.cause == "program"}
                yield Deviation("xid", text, facts)

    def _check_throttling(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        tracked, reasons = self._gpus[gpu.uuid], sorted(_SLOWDOWNS & set(gpu.throttle))
        streak = tracked.throttled
        streak.add(bool(reasons), now_s)
        slow = bool(self._gaps) and median(self._gaps) >= _THROTTLED_S
        lasts_s = now_s - streak.since_s
        enough = streak.count >= (_FEW if slow else _SEVERAL) and lasts_s >= _THROTTLED_S
        if self._begins(("throttling", gpu.uuid), enough, now_s):
            now = [
                *([] if gpu.temperature_c is None else [f"{gpu.temperature_c} C"]),
                *([] if gpu.sm_clock_mhz is None else [f"SM clock {gpu.sm_clock_mhz} MHz"]),
            ]
            text = f"GPU {tracked.name} has been slowed down for {lasts_s:.0f} s: {', '.join([*reasons, *now])}."
            facts = {"temperature_c": gpu.temperature_c, "sm_clock_mhz": gpu.sm_clock_mhz}
            facts = {name: value for name, value in facts.items() if value is not None}
            yield Deviation("throttling", text, {"gpu": gpu.uuid, "reasons": reasons, **facts})

    def _check_limits(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        """Compare the GPU with the run's requirements: a person may have changed its settings."""
        tracked = self._gpus[gpu.uuid]
        clock, limit_w = drop_implausible(gpu.sm_clock_mhz), drop_implausible(gpu.power_limit_w)
        if self._max_mhz is not None and clock is not None:
            tracked.above_clock.add(clock > self._max_mhz, now_s)
            if self._begins(("clock", gpu.uuid), tracked.above_clock.count >= _FEW, now_s):
                text = f"GPU {tracked.name}: SM clock {clock:.0f} MHz, above the required {self._max_mhz} MHz."
                yield Deviation("clock", text, {"gpu": gpu.uuid, "sm_clock_mhz": clock})
        if self._limit_w is None or limit_w is None:
            return
        if self._begins(("power", gpu.uuid), limit_w > self._limit_w + _ROUNDED_W, now_s):
            text = f"GPU {tracked.name}: power limit {limit_w:.0f} W, above the required {self._limit_w:.0f} W."
            yield Deviation("power", text, {"gpu": gpu.uuid, "power_limit_w": limit_w})

    def _check_imbalance(self, now_s: float) -> Iterator[Deviation]:
        means = self._window.means(now_s)
        if (imbalance := find_imbalance(means)) is None:
            return
        for uuid, mean in means.items():
            if self._begins(("imbalance", uuid), uuid in imbalance.lagging, now_s):
                text = (
                    f"GPU {self._gpus[uuid].name} worked at {mean:.0f} % in the last {self._window_s:.0f} s; "
                    f"the median of the run's {len(means)} GPUs is {imbalance.median:.0f} %."
                )
                facts = {"gpu": uuid, "mean_util": round(mean, 1), "median_util": round(imbalance.median, 1)}
                yield Deviation("imbalance", text, facts)

    def _check_idle(self, utils: Mapping[str, float], now_s: float) -> Iterator[Deviation]:
        self._used = self._used or any(util > _USED for util in utils.values())
        works = any(utils.values())
        if not works and len(utils) < len(self._gpus):
            return
        unseen = self._seen_s is not None and now_s - self._seen_s > self._window_s
        self._seen_s = now_s
        if works:
            self._idle_from_s = None
            self._begins(("idle",), False, now_s)
            return
        if self._idle_from_s is None or unseen:
            self._idle_from_s = now_s
        idle_s = now_s - self._idle_from_s
        # A shorter pause does not end an idle time that was reported before: only work does.
        if self._used and idle_s >= _IDLE_WINDOWS * self._window_s and self._begins(("idle",), True, now_s):
            which = f"All {len(utils)} GPUs of the run have" if len(utils) > 1 else "The run's GPU has"
            text = f"{which} been at 0 % for {idle_s:.0f} s, after having worked: it may hang."
            yield Deviation("idle", text, {"idle_s": round(idle_s)})
