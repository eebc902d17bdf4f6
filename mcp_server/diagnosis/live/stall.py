"""Decides when silence is a stall. Pure: events and their times (monotonic seconds) are arguments.

With a limit of the user, a run stalls after that time without a step, or before the first one without output. Otherwise
the limit adapts: after three gaps between printed steps it is the largest of 300 s (healthy runs print every 107 s, and
evaluate in between), 40 usual gaps (the larger median of the last 64 and of the last 3, so that a pause of 10 steps
with a slow-down to a third is healthy) and 3 times the longest gap. It triples when a line names work that delays
steps, and when the CPU is busy; a progress bar that moves restarts the plain limit, a heartbeat that repeats itself
does not.

Without three step gaps, bursts of output replace steps: ten of them, at least 1,800 s, and only while the processes are
idle, because silent data preparation is healthy. With fewer, but a step, it is 60 times the longest wait for a step, at
least 3,600 s. Until the third gap of a new round (progress/rounds.py), which compiles anew, it is at least 1,800 s and
3 times that wait. The first three stalls are reported as they come, then one in ten minutes.

A limit of 20 usual gaps called 9 of 4,000 random healthy runs (tests/diagnosis/test_stall.py) stalled, 30 called 6, and
40 none (2 of 20,000). The price: a hang of a run with one-minute steps is reported after 40 minutes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from mcp_server.diagnosis.progress.step_counters import median
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/live/patterns", "stall")

_USUAL_GAPS, _LONGEST_GAPS = 40, 3
_WINDOW, _LAST = 64, 3
_STEP_GAPS, _STEP_FLOOR_S = 3, 300.0
_BURST_GAPS, _BURST_FLOOR_S = 9, 1_800.0
_EARLY_WAITS, _EARLY_FLOOR_S = 60, 3_600.0
_EXTENSION_FACTOR = 3
# Lines that arrive together are one print: pipes and block buffers hold back many steps and release them at once.
_SAME_PRINT_S = 1.0
_RECHECK_S = 300.0  # of a silent run that uses CPU time
_MAX_BAR_POSITIONS = 4_096

_BAR_POSITION = compile_lazily(r"(?<![\d/.])(\d{1,9}) ?/ ?(\d{1,9})(?![\d/.])")
_BAR = compile_lazily(r"%\||it/s|s/it|[━█▏▎▍▌▋▊▉#=>]{2}|\d \[")
_FREE_REPORTS, _EVERY_S = 3, 600.0  # of a trouble that comes and goes: each report would wake an agent


@dataclass
class ReportLimit:
    """Lets the first three reports of one trouble through, and then one in ten minutes."""

    reports: int = 0
    quiet_until_s: float = -math.inf

    def note_report(self, at_s: float) -> None:
        """Note a report at ``at_s``. The next one is due at ``quiet_until_s``."""
        self.reports += 1
        if self.reports >= _FREE_REPORTS:
            self.quiet_until_s = at_s + _EVERY_S

    @property
    def remark(self) -> str:
        """A sentence for the newest report, where the next ones are limited, else empty."""
        if self.reports < _FREE_REPORTS:
            return ""
        return f"This comes and goes; from now on it is reported once in {_EVERY_S:.0f} s."


class _GapHistory:
    def __init__(self, gaps_needed: int, floor_s: float, skipped: int = 0) -> None:
        self.gaps: deque[float] = deque(maxlen=_WINDOW)
        self.last_s: float | None = None
        self.limit_s: float | None = None
        self._gaps_needed, self._floor_s, self._gaps_to_skip = gaps_needed, floor_s, skipped
        self._print_started_s = 0.0
        self._longest_s = 0.0
        self._skipped = skipped
        self.early_gaps = 0  # of a new round, still to come

    def note_sign(self, at_s: float) -> None:
        if self.last_s is None:
            self._print_started_s = at_s
        elif at_s - self._print_started_s >= _SAME_PRINT_S:
            self._add_gap(at_s - self.last_s if at_s - self.last_s >= _SAME_PRINT_S else at_s - self._print_started_s)
            self._print_started_s = at_s
        self.last_s = at_s

    def begin_round(self) -> None:
        self.last_s, self._gaps_to_skip, self.early_gaps = None, self._skipped, self._gaps_needed

    def _add_gap(self, gap_s: float) -> None:
        self.early_gaps = max(0, self.early_gaps - 1)
        if self._gaps_to_skip:
            self._gaps_to_skip -= 1
            return
        self.gaps.append(gap_s)
        self._longest_s = max(self._longest_s, gap_s)
        if len(self.gaps) >= self._gaps_needed:
            usual_s = max(median(self.gaps), median(list(self.gaps)[-_LAST:]))
            self.limit_s = max(self._floor_s, _USUAL_GAPS * usual_s, _LONGEST_GAPS * self._longest_s)


class StallDetector:
    """Detects silences that are too long. Output that waits in a pipe is a sign of life: read it before each check."""

    def __init__(self, started_s: float, stall_timeout_s: float | None = None) -> None:
        self.is_stalled = False
        self.report_limit = ReportLimit()  # a run that stalls and resumes in turns would wake an agent without end
        self._fixed_s = stall_timeout_s
        self._started_s = started_s
        self._steps = _GapHistory(_STEP_GAPS, _STEP_FLOOR_S, skipped=1)
        self._bursts = _GapHistory(_BURST_GAPS, _BURST_FLOOR_S)
        self._longest_wait_s = 0.0  # for a step
        self._step_before_s: float | None = None  # the last one of the round before
        self._checked_s: float | None = None
        self._is_extended = False
        self._bar_moved_s: float | None = None
        self._bar_positions: set[tuple[str, str]] = set()

    @property
    def median_gap_s(self) -> float | None:
        """Median time between two printed steps, seconds, or None before the first gap."""
        return median(self._steps.gaps) if self._steps.gaps else None

    def describe_gap(self, step_s: float | None) -> str:
        """Return the usual time between two prints of steps in words, or nothing before the first gap.

        Steps that come faster than once a second are seen together: then it is ``step_s``, the time of one.
        """
        gap_s = self.median_gap_s or 0.0
        if gap_s >= 2 * _SAME_PRINT_S:
            return f"one in {gap_s:.3g} s"
        return f"one in {step_s:.3g} s" if gap_s and step_s else ""

    def note_step(self, at_s: float) -> bool:
        """Record a step and return whether it ends a stall."""
        last_s = self._started_s if self._steps.last_s is None else self._steps.last_s
        last_s, self._step_before_s = self._step_before_s or last_s, None
        self._longest_wait_s = max(self._longest_wait_s, at_s - last_s)
        self._steps.note_sign(at_s)
        self._bursts.note_sign(at_s)
        self._is_extended, self._bar_moved_s, self._checked_s = False, None, None
        self._bar_positions.clear()
        return self._end_stall()

    def begin_round(self) -> None:
        """Note that the next step is the first one of another training."""
        self._step_before_s = self._steps.last_s
        self._steps.begin_round()

    def note_output(self, at_s: float, text: str = "") -> bool:
        """Record output without a step; return whether it ends a stall, as it does while no step gaps are known."""
        self._bursts.note_sign(at_s)
        self._checked_s = None
        if self._counts_steps():
            self._read_line(at_s, text)
            return False
        return self._end_stall()

    @property
    def last_sign_s(self) -> float:
        """Time of the last sign of life: a step, or output while no step gaps are known, or else the start."""
        last_s = self._steps.last_s if self._counts_steps() else self._bursts.last_s
        return self._started_s if last_s is None else last_s

    def due_s(self) -> float | None:
        """Return the monotonic time of the next ``detect_stall``, or None while no limit applies."""
        due_s = self._limit_ends_s()
        return None if due_s is None else max(due_s, self.report_limit.quiet_until_s)

    def _limit_ends_s(self) -> float | None:
        last_s = self.last_sign_s
        if self.is_stalled:
            return None
        if self._fixed_s is not None:
            return last_s + self._fixed_s
        if (limit_s := self._steps.limit_s) is not None:
            if self._steps.early_gaps:
                limit_s = max(limit_s, _BURST_FLOOR_S, _LONGEST_GAPS * self._longest_wait_s)
            due_s = last_s + limit_s * (_EXTENSION_FACTOR if self._is_extended else 1)
            return due_s if self._bar_moved_s is None else max(due_s, self._bar_moved_s + limit_s)
        limit_s = self._bursts.limit_s
        if limit_s is None and self._steps.last_s is not None:
            limit_s = max(_EARLY_FLOOR_S, _EARLY_WAITS * self._longest_wait_s)
        if limit_s is None:
            return None
        return max(last_s + limit_s, 0 if self._checked_s is None else self._checked_s + _RECHECK_S)

    def detect_stall(self, at_s: float, cpu_idle: bool) -> bool:
        """Return True once per stall. ``cpu_idle``: almost no CPU time was used; a busy run gets a longer limit."""
        due_s = self.due_s()
        if due_s is None or at_s < due_s:
            return False
        if self._fixed_s is None and not cpu_idle:
            if not self._counts_steps():
                self._checked_s = at_s
                return False
            if not self._is_extended:
                self._is_extended = True
                return self.detect_stall(at_s, cpu_idle)
        self.is_stalled = True
        self.report_limit.note_report(at_s)
        return True

    def _counts_steps(self) -> bool:
        return self._steps.last_s is not None if self._fixed_s is not None else self._steps.limit_s is not None

    def _end_stall(self) -> bool:
        was_stalled, self.is_stalled = self.is_stalled, False
        return was_stalled

    def _read_line(self, at_s: float, text: str) -> None:
        """Note what a line between two steps shows: work that delays steps, or a progress bar at a new position."""
        is_slow_work = _RX.slow_work.search(text) is not None
        self._is_extended = self._is_extended or is_slow_work
        if not is_slow_work and not _BAR.search(text):
            return
        # A bar redrawn during a hang, or two bars in turn, show no new position.
        positions = {(m[1], m[2]) for m in _BAR_POSITION.finditer(text) if int(m[1]) <= int(m[2])}
        if positions - self._bar_positions:
            self._bar_moved_s = at_s
            if len(self._bar_positions) > _MAX_BAR_POSITIONS:
                self._bar_positions.clear()
            self._bar_positions |= positions
