"""The processor time that an attempt uses: what tells a stalled training from one that computes in silence."""

from __future__ import annotations

import os
import time

from mcp_server.system import processes

_MEASURE_S = 30.0  # between two measurements while there is progress
# An idle command uses less of one core, beside what its guard and the keeper of its code took at the start.
_IDLE, _START_S = 0.05, 0.1


class CpuUse:
    """Measures the processor time of the supervisor's descendants, in seconds from the last measurement on."""

    def __init__(self) -> None:
        self._at_s, self._used_s = time.monotonic(), 0.0
        self._silent_mark: tuple[float, float] | None = None  # the same, once since the last progress

    def measure(self) -> None:
        """Count from here."""
        self._at_s, self._used_s = time.monotonic(), processes.cpu_s(os.getpid())

    def measure_sometimes(self, now_s: float) -> None:
        """Count from here, if the last measurement is half a minute old."""
        if now_s - self._at_s >= _MEASURE_S:
            self.measure()

    def measure_silence(self, now_s: float) -> None:
        """Note that there has been no progress for a while: a stall reports what was used from here."""
        self._silent_mark = (now_s, processes.cpu_s(os.getpid()))

    def has_measured_silence(self, since_s: float) -> bool:
        """Return whether ``measure_silence`` was called since ``since_s``."""
        return self._silent_mark is not None and self._silent_mark[0] >= since_s

    @property
    def is_idle(self) -> bool:
        """Whether less than 5 % of a core was used since the last measurement, and 0.1 s."""
        used_s = max(0.0, processes.cpu_s(os.getpid()) - self._used_s)
        return used_s < _START_S + _IDLE * (time.monotonic() - self._at_s)

    def since_silence(self) -> tuple[float, float]:
        """Return since when the silence has been measured, monotonic, and the seconds used since then."""
        since_s, before_s = self._silent_mark or (self._at_s, self._used_s)
        return since_s, max(0.0, processes.cpu_s(os.getpid()) - before_s)
