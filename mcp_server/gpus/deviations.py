"""What samples of a run's GPUs tell of one attempt. Pure: the caller says when each was taken (monotonic seconds).

A sample speaks for the time since the one before it, as NVML's utilisation does, and for three usual gaps at most: the
sampler may have been dead in between. What a sample does not tell is unknown: neither zero nor the end of anything.

A deviation is told once: again only after samples have told, for a whole window, that it had ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from mcp_server.gpus.snapshot import Gpu, Snapshot, short
from mcp_server.gpus.usage_stats import WORKING, Figures, Streak, Tally, Window, known
from mcp_server.gpus.xid import BY_PROGRAM, meaning

What = Literal["imbalance", "idle", "xid", "throttling", "clock", "power", "lost"]

# Below so much of the median of the run's GPUs one of them lags, unless hardly any works.
_LAGS = 0.7
# An idle GPU that was never above this had only been initialised; a checkpoint may take 100 s, and a little more.
_USED, _IDLE_WINDOWS = 10.0, 2.5
_USUAL_GAPS, _LONGEST_GAPS = 9, 3
_MINUTE_S = 60.0
# A power cap is how a machine is run, a setting of the clocks too; the rest is trouble.
_TROUBLE = frozenset({"thermal", "hw_thermal", "power_brake", "hw_slowdown"})
_THROTTLED_S, _SEVERAL, _FEW = 10.0, 3, 2  # samples in a row; as few as can be where they are seldom
_EPSILON = 1e-6  # of a mean that is exactly at the limit
_ROUNDED_W = 0.5  # drivers round a limit


@dataclass(frozen=True)
class Deviation:
    """Something about a run's GPUs that somebody should know. ``facts``: by value, fit for JSON."""

    what: What
    text: str
    facts: dict[str, Any]


class _One:
    """All that is kept of one GPU."""

    def __init__(self, uuid: str, short_uuid: str) -> None:
        self.uuid, self._short_uuid = uuid, short_uuid
        self.name = short_uuid
        self.whole, self.minute = Tally(), Tally()
        self.throttled, self.fast = Streak(), Streak()
        self.seen = False
        self.gone_s: float | None = None  # since when the driver has told nothing of it

    def see(self, gpu: Gpu) -> None:
        self.seen, self.gone_s, self.name = True, None, f"{gpu.index} ({self._short_uuid})"

    def add(self, gpu: Gpu, held_s: float) -> None:
        self.whole.add(gpu, held_s)
        self.minute.add(gpu, held_s)


class Usage:
    """Accumulates the samples of one attempt's GPUs, told by full UUIDs.

    ``max_sm_clock_mhz`` and ``power_limit_w`` are what the run requires, where it does.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        window_s: float = 120.0,
        max_sm_clock_mhz: int | None = None,
        power_limit_w: float | None = None,
    ) -> None:
        self._all = {uuid: _One(uuid, short(uuid, uuids)) for uuid in uuids}
        self._window_s, self._window = window_s, Window(window_s)
        self._max_mhz, self._limit_w = max_sm_clock_mhz, power_limit_w
        self._gaps: deque[float] = deque(maxlen=_USUAL_GAPS)
        self._last_s: float | None = None
        self._minute_from_s: float | None = None
        self._used = False
        self._idle_from_s: float | None = None
        self._seen_s: float | None = None  # when samples last told whether all stand still
        # When it was first told that a deviation had ended; None while it lasts.
        self._ended_s: dict[tuple[Any, ...], float | None] = {}

    def add(self, snapshot: Snapshot, now_s: float) -> list[Deviation]:
        """Take a sample; return the deviations that it shows and that were not told yet."""
        found = list({gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid in self._all}.values())
        told: list[Deviation] = []
        if self._last_s is not None and now_s <= self._last_s:  # twice, or late: only what has no order counts
            for gpu in found:
                self._all[gpu.uuid].whole.add_peaks(gpu)
                told += self._xids(gpu, now_s)
            return told
        held_s = self._held_s(now_s) if found else 0.0
        for gpu in found:
            self._all[gpu.uuid].see(gpu)
            told += [*self._losses(gpu, now_s), *self._xids(gpu, now_s)]
            if not (gpu.lost or gpu.hangs):
                self._all[gpu.uuid].add(gpu, held_s)
                told += [*self._throttling(gpu, now_s), *self._limits(gpu, now_s)]
        told += self._absences(snapshot, {gpu.uuid for gpu in found}, now_s)
        if found:
            well = (gpu for gpu in found if not (gpu.lost or gpu.hangs))
            utils = {gpu.uuid: util for gpu in well if (util := known(gpu.utilisation)) is not None}
            self._window.add(utils, now_s, held_s)
            told += [*self._imbalances(now_s), *self._idleness(utils, now_s)]
        return told

    def figures(self) -> dict[str, dict[str, float]]:
        """Return, by UUID, peak_mib, mean_util (%), mean_w and max_c of the attempt; without what no sample told."""
        named = {
            uuid: zip(("mean_util", "peak_mib", "mean_w", "max_c"), one.whole.figures(), strict=True)
            for uuid, one in self._all.items()
        }
        figures = {uuid: {name: value for name, value in each if value is not None} for uuid, each in named.items()}
        return {uuid: each for uuid, each in figures.items() if each}

    def minute(self, now_s: float) -> dict[str, Figures] | None:
        """Return, once a minute and by UUID, its mean utilisation, peak MiB, mean W and max C; None in between."""
        if self._minute_from_s is None or now_s - self._minute_from_s < _MINUTE_S:
            return None
        self._minute_from_s = now_s
        figures = {uuid: one.minute.figures() for uuid, one in self._all.items()}
        for one in self._all.values():
            one.minute = Tally()
        return {uuid: each for uuid, each in figures.items() if any(v is not None for v in each)} or None

    def idle_s(self, now_s: float) -> float | None:
        """Return for how long all GPUs have been at 0 %; None when they were never used, or no sample tells."""
        if not self._used or self._seen_s is None or now_s - self._seen_s > self._window_s:
            return None
        return 0.0 if self._idle_from_s is None else max(0.0, now_s - self._idle_from_s)

    def _held_s(self, now_s: float) -> float:
        """Return for how long a sample of now speaks, and remember it as the newest."""
        if self._last_s is None:
            self._last_s = self._minute_from_s = now_s
            return 0.0
        self._gaps.append(now_s - self._last_s)
        self._last_s = now_s
        return min(self._gaps[-1], _LONGEST_GAPS * median(self._gaps))

    def _is_new(self, key: tuple[Any, ...], state: bool, now_s: float) -> bool:
        """Tell whether a deviation begins; one that is not spoken of stays as it is."""
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

    def _losses(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        hanging = ", ".join(name for name, said in (gpu.failed or {}).items() if said == "hangs")
        if self._is_new(("lost", gpu.uuid), gpu.lost or gpu.hangs, now_s):
            what = "has fallen off the bus" if gpu.lost else f"does not answer; what hangs: {hanging}"
            yield Deviation("lost", f"GPU {self._all[gpu.uuid].name} {what}.", {"gpu": gpu.uuid})

    def _absences(self, snapshot: Snapshot, found: set[str], now_s: float) -> Iterator[Deviation]:
        """GPUs that nothing is heard of for a window, and a driver that tells of none."""
        if self._is_new(("driver",), snapshot.trouble == "hangs", now_s):
            yield Deviation("lost", f"The GPU driver does not answer. {snapshot.text}".strip(), {})
        for one in () if snapshot.trouble else self._all.values():
            if not one.seen or one.uuid in found:
                continue
            if one.gone_s is None:
                one.gone_s = now_s
            gone_s = now_s - one.gone_s
            if gone_s >= self._window_s and self._is_new(("lost", one.uuid), True, now_s):
                text = f"GPU {one.name} is gone: the driver has told nothing of it for {gone_s:.0f} s."
                yield Deviation("lost", text, {"gpu": one.uuid})

    def _xids(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        open_ones = {key[2] for key in self._ended_s if key[:2] == ("xid", gpu.uuid)}
        for number in sorted(open_ones | set(gpu.xids)):
            if self._is_new(("xid", gpu.uuid, number), number in gpu.xids, now_s):
                program = number in BY_PROGRAM
                cause = "as a rule the program's own doing" if program else "a fault of the GPU or what drives it"
                text = f"GPU {self._all[gpu.uuid].name}: Xid {number}, {meaning(number)}: {cause}."
                yield Deviation("xid", text, {"gpu": gpu.uuid, "xid": number, "by_program": program})

    def _throttling(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        one, reasons = self._all[gpu.uuid], sorted(_TROUBLE & set(gpu.throttle))
        streak = one.throttled
        streak.add(bool(reasons), now_s)
        slow = bool(self._gaps) and median(self._gaps) >= _THROTTLED_S
        lasts_s = now_s - streak.since_s
        enough = streak.count >= (_FEW if slow else _SEVERAL) and lasts_s >= _THROTTLED_S
        if self._is_new(("throttling", gpu.uuid), enough, now_s):
            now = [
                *([] if gpu.temperature_c is None else [f"{gpu.temperature_c} C"]),
                *([] if gpu.sm_clock_mhz is None else [f"SM clock {gpu.sm_clock_mhz} MHz"]),
            ]
            text = f"GPU {one.name} has been slowed down for {lasts_s:.0f} s: {', '.join([*reasons, *now])}."
            facts = {"temperature_c": gpu.temperature_c, "sm_clock_mhz": gpu.sm_clock_mhz}
            facts = {name: value for name, value in facts.items() if value is not None}
            yield Deviation("throttling", text, {"gpu": gpu.uuid, "reasons": reasons, **facts})

    def _limits(self, gpu: Gpu, now_s: float) -> Iterator[Deviation]:
        """Hold the GPU against what the run requires: somebody may have changed it."""
        one, clock, limit_w = self._all[gpu.uuid], known(gpu.sm_clock_mhz), known(gpu.power_limit_w)
        if self._max_mhz is not None and clock is not None:
            one.fast.add(clock > self._max_mhz, now_s)
            if self._is_new(("clock", gpu.uuid), one.fast.count >= _FEW, now_s):
                text = f"GPU {one.name}: SM clock {clock:.0f} MHz, above the required {self._max_mhz} MHz."
                yield Deviation("clock", text, {"gpu": gpu.uuid, "sm_clock_mhz": clock})
        if self._limit_w is None or limit_w is None:
            return
        if self._is_new(("power", gpu.uuid), limit_w > self._limit_w + _ROUNDED_W, now_s):
            text = f"GPU {one.name}: power limit {limit_w:.0f} W, above the required {self._limit_w:.0f} W."
            yield Deviation("power", text, {"gpu": gpu.uuid, "power_limit_w": limit_w})

    def _imbalances(self, now_s: float) -> Iterator[Deviation]:
        means = self._window.means(now_s)
        middle = median(means.values()) if means else 0.0
        for uuid, mean in means.items() if middle >= WORKING else ():
            one = self._all[uuid]
            if self._is_new(("imbalance", uuid), mean < _LAGS * middle - _EPSILON, now_s):
                text = (
                    f"GPU {one.name} worked at {mean:.0f} % in the last {self._window_s:.0f} s; "
                    f"the median of the run's {len(means)} GPUs is {middle:.0f} %."
                )
                facts = {"gpu": uuid, "mean_util": round(mean, 1), "median_util": round(middle, 1)}
                yield Deviation("imbalance", text, facts)

    def _idleness(self, utils: Mapping[str, float], now_s: float) -> Iterator[Deviation]:
        self._used = self._used or any(util > _USED for util in utils.values())
        works = any(utils.values())
        if not works and len(utils) < len(self._all):
            return
        unseen = self._seen_s is not None and now_s - self._seen_s > self._window_s
        self._seen_s = now_s
        if works:
            self._idle_from_s = None
            self._is_new(("idle",), False, now_s)
            return
        if self._idle_from_s is None or unseen:
            self._idle_from_s = now_s
        idle_s = now_s - self._idle_from_s
        # A pause that is not long enough does not end a former one, either: only work does.
        if self._used and idle_s >= _IDLE_WINDOWS * self._window_s and self._is_new(("idle",), True, now_s):
            which = f"All {len(utils)} GPUs of the run have" if len(utils) > 1 else "The run's GPU has"
            text = f"{which} been at 0 % for {idle_s:.0f} s, after having worked: it may hang."
            yield Deviation("idle", text, {"idle_s": round(idle_s)})
