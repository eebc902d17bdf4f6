"""When a silence is a stall. Pure: the caller tells what happened, and when (monotonic seconds).

A fixed limit, where the user gave one: no step for so long, or no output while no step has ever been seen. It counts
from the start, and nothing extends it.

Otherwise the limit adapts. After three gaps between steps as they are printed it is the largest of

- 300 s (real healthy runs print every 107 s, and evaluate in between);
- 40 times the usual gap: the larger of the medians of the last 64 and of the last 3. A pause of 10 steps is healthy,
  and so is one that comes with a slow-down to a third, as where a curriculum changes after an evaluation;
- 3 times the longest gap so far.

Three times that, once a line since the last step spoke of what makes steps wait, and where the processors are busy: an
evaluation may be silent, but ranks that wait for one another spin too. A bar that moves meanwhile is work being done,
so that the plain limit counts from its last move; a heartbeat that prints the same line is not.

Where steps are not recognised, or not three gaps of them yet, bursts of output are the pace: ten of them, at least
1,800 s, and only while the processes idle, since a silent preparation of data is healthy. Where there are not ten
either, but a step has been seen: 60 times the longest wait for a step so far, the first included, and at least 3,600 s.

The time to the first step belongs to another deadline, and the gap after it often holds a compilation, so that neither
is part of the pace. Of 4,000 random healthy runs (see test_pace.py) 20 usual gaps called 9 stalled, 30 called 6, and
40 none (2 of 20,000); the price is that a hang of a run with steps of one minute is told after 40 minutes.
"""

from __future__ import annotations

import re
from collections import deque
from statistics import median

_USUAL_GAPS, _LONGEST_GAPS = 40, 3
_WINDOW, _LAST = 64, 3
_STEP_GAPS, _STEP_FLOOR_S = 3, 300.0
_BURST_GAPS, _BURST_FLOOR_S = 9, 1_800.0
_EARLY_WAITS, _EARLY_FLOOR_S = 60, 3_600.0
_EXTENSION_FACTOR = 3
# Lines that arrive together are one print: pipes and block buffers hold many steps back and let them go at once.
_SAME_PRINT_S = 1.0
_RECHECK_S = 300.0  # at a silent run whose processors are busy
_MAX_BAR_POSITIONS = 4_096

_SLOW_WORK = re.compile(
    r"eval|valid|checkpoint|ckpt|sav(?:e|ed|ing)\b|snapshot|load(?:ed|ing)?\b|compil|captur|generat|rollout|inference"
    r"|\btest(?:ing)?\b|sanity|sampl|upload|push|download|shuffl|prefill",
    re.IGNORECASE,
)
_BAR_POSITION = re.compile(r"(?<![\d/.])(\d{1,9}) ?/ ?(\d{1,9})(?![\d/.])")
_BAR = re.compile(r"%\||it/s|s/it|[━█▏▎▍▌▋▊▉#=>]{2}|\d \[")


class _GapHistory:
    """The gaps between signs of one sort."""

    def __init__(self, gaps_needed: int, floor_s: float, skipped: int = 0) -> None:
        self.gaps: deque[float] = deque(maxlen=_WINDOW)
        self.last_s: float | None = None
        self.limit_s: float | None = None
        self._gaps_needed, self._floor_s, self._gaps_to_skip = gaps_needed, floor_s, skipped
        self._print_started_s = 0.0
        self._longest_s = 0.0

    def note_sign(self, at_s: float) -> None:
        if self.last_s is None:
            self._print_started_s = at_s
        elif at_s - self._print_started_s >= _SAME_PRINT_S:
            self._add_gap(at_s - self.last_s if at_s - self.last_s >= _SAME_PRINT_S else at_s - self._print_started_s)
            self._print_started_s = at_s
        self.last_s = at_s

    def _add_gap(self, gap_s: float) -> None:
        if self._gaps_to_skip:
            self._gaps_to_skip -= 1
            return
        self.gaps.append(gap_s)
        self._longest_s = max(self._longest_s, gap_s)
        if len(self.gaps) >= self._gaps_needed:
            usual_s = max(median(self.gaps), median(list(self.gaps)[-_LAST:]))
            self.limit_s = max(self._floor_s, _USUAL_GAPS * usual_s, _LONGEST_GAPS * self._longest_s)


class StallDetector:
    """Learns how a run goes on, and says until when a silence is ordinary.

    Ask after reading what the run has printed by then: output that waits in a pipe is a sign of life too.
    """

    def __init__(self, started_s: float, stall_timeout_s: float | None = None) -> None:
        self.is_stalled = False
        self._fixed_s = stall_timeout_s
        self._started_s = started_s
        self._steps = _GapHistory(_STEP_GAPS, _STEP_FLOOR_S, skipped=1)
        self._bursts = _GapHistory(_BURST_GAPS, _BURST_FLOOR_S)
        self._longest_wait_s = 0.0  # for a step
        self._checked_s: float | None = None
        self._is_extended = False
        self._bar_moved_s: float | None = None
        self._bar_positions: set[tuple[str, str]] = set()

    @property
    def median_gap_s(self) -> float | None:
        """The usual time between two steps as they are printed, in seconds; None until there is one."""
        return median(self._steps.gaps) if self._steps.gaps else None

    def note_step(self, at_s: float) -> bool:
        """Note that a step was made; return whether this ends a stall."""
        last_s = self._started_s if self._steps.last_s is None else self._steps.last_s
        self._longest_wait_s = max(self._longest_wait_s, at_s - last_s)
        self._steps.note_sign(at_s)
        self._bursts.note_sign(at_s)
        self._is_extended, self._bar_moved_s, self._checked_s = False, None, None
        self._bar_positions.clear()
        return self._end_stall()

    def note_output(self, at_s: float, text: str = "") -> bool:
        """Note output that is no step, and its last line; return whether this ends a stall.

        It does where output is what counts: under a fixed limit before the first step, and where the pace
        of steps is not known.
        """
        self._bursts.note_sign(at_s)
        self._checked_s = None
        if self._counts_steps():
            self._read_line(at_s, text)
            return False
        return self._end_stall()

    @property
    def last_sign_s(self) -> float:
        """When the last sign came that counts: a step, or any output where output is what counts; else the start."""
        last_s = self._steps.last_s if self._counts_steps() else self._bursts.last_s
        return self._started_s if last_s is None else last_s

    def due_s(self) -> float | None:
        """Return the time at which a stall must be looked at; None while no deadline is running."""
        last_s = self.last_sign_s
        if self.is_stalled:
            return None
        if self._fixed_s is not None:
            return last_s + self._fixed_s
        if (limit_s := self._steps.limit_s) is not None:
            due_s = last_s + limit_s * (_EXTENSION_FACTOR if self._is_extended else 1)
            return due_s if self._bar_moved_s is None else max(due_s, self._bar_moved_s + limit_s)
        limit_s = self._bursts.limit_s
        if limit_s is None and self._steps.last_s is not None:
            limit_s = max(_EARLY_FLOOR_S, _EARLY_WAITS * self._longest_wait_s)
        if limit_s is None:
            return None
        return max(last_s + limit_s, 0 if self._checked_s is None else self._checked_s + _RECHECK_S)

    def detect_stall(self, at_s: float, cpu_idle: bool) -> bool:
        """Return whether the run stalls from now on; True once per stall.

        ``cpu_idle``: its processes used next to no processor time of late; the caller says how little that is. A
        busy run gets more time; where only an idle one can be called stalled, it is looked at again in 300 s.
        """
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
        return True

    def _counts_steps(self) -> bool:
        """Whether steps are what counts, and not output."""
        return self._steps.last_s is not None if self._fixed_s is not None else self._steps.limit_s is not None

    def _end_stall(self) -> bool:
        was_stalled, self.is_stalled = self.is_stalled, False
        return was_stalled

    def _read_line(self, at_s: float, text: str) -> None:
        """Take a line between two steps for what it says: work that steps wait for, a bar at a new place."""
        is_slow_work = _SLOW_WORK.search(text) is not None
        self._is_extended = self._is_extended or is_slow_work
        if not is_slow_work and not _BAR.search(text):
            return
        # A bar that is redrawn during a hang, or two of them in turn, show no place that was not seen before.
        positions = {(m[1], m[2]) for m in _BAR_POSITION.finditer(text) if int(m[1]) <= int(m[2])}
        if positions - self._bar_positions:
            self._bar_moved_s = at_s
            if len(self._bar_positions) > _MAX_BAR_POSITIONS:
                self._bar_positions.clear()
            self._bar_positions |= positions
