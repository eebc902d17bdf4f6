"""Reads one attempt's output as it comes, and says what an agent should hear of it. No clock: times are arguments.

Reading a step line takes about 10 µs, and ordinary trainings print some KB a second. Of a flood beyond that only the
newest lines are read, twenty times a second; lines that could prove a failure are searched for in all of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.diagnosis.divergence import DivergenceDetector
from mcp_server.diagnosis.failure.diagnose import FATAL_WORDS, may_be_fatal
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.diagnosis.stall import StallDetector
from mcp_server.record.events import EventKind
from mcp_server.text.lines import LINE_CHARS, split

_FIRST_STEP_TIMEOUT_S = 1200.0
# What is read whole: so much at once, and so much a second for ever. Of what is more, the newest bytes, so often.
_BURST_BYTES, _STEADY_BYTES_PER_S = 2**20, 2**17
_NEWEST_BYTES, _FLOOD_READ_EVERY_S = 4096, 0.05
_UNFINISHED_AFTER_S = 0.2
_UNFINISHED_BYTES = 65536  # of a line that has no end yet
_MATCHES_PER_WORD = 8  # of one word in one piece
_FATAL_WORDS = tuple(word.encode() for word in FATAL_WORDS)
# A line that could prove a failure is believed when steps stop: after so long, or so many step gaps.
_SUSPECT_AFTER_S, _SUSPECT_AFTER_GAPS, _EARLY_SUSPECT_AFTER_S = 10.0, 5.0, 60.0
_CLEARING_ADVANCES = 2  # one metrics line may be flushed after a traceback
_CHECKPOINT = re.compile(
    r"(?i)\b(?:sav(?:ed|ing)|wr(?:ote|iting))\b.{0,80}?([^\s'\"]{0,200}(?:ckpt|checkpoint|step|epoch)[^\s'\"]{0,100}\d)"
)


@dataclass(frozen=True)
class OutputEvent:
    """Something that an agent should hear of: the kind and the text of an event, and its facts."""

    kind: EventKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Suspect:
    """A line that could prove a failure: where it is in the log, and what was so when it came.

    ``offset`` in bytes, ``at_s`` in monotonic seconds; ``advances``: steps counted by then.
    """

    line: str
    offset: int
    number: int
    at_s: float
    advances: int
    dismissed: bool = False


def _read_line_at(piece: bytes, start: int) -> str:
    """Return the line that begins at ``start``."""
    cut = piece[start : start + LINE_CHARS]
    ends = [at for at in (cut.find(b"\n"), cut.find(b"\r")) if at >= 0]
    lines = split(cut[: min(ends, default=len(cut))].decode(errors="replace"))
    return lines[0] if lines else ""


def _newest_lines(data: bytes) -> bytes:
    """Return the last 4 KiB of lines, without one that has lost its beginning."""
    if len(data) <= _NEWEST_BYTES:
        return data
    cut = data[-_NEWEST_BYTES:]
    ends = [at for at in (cut.find(b"\n"), cut.find(b"\r")) if at >= 0]
    return cut[min(ends) + 1 :] if ends else cut


class OutputMonitor:
    """What the output of one attempt tells. Feed it everything; ask it again at ``due_s``."""

    def __init__(self, spec: Mapping[str, Any], started_s: float) -> None:
        self.progress = ProgressTracker(spec.get("first_step_pattern"))
        self.stall_detector = StallDetector(started_s, spec.get("stall_timeout_s"))
        self._is_fixed = spec.get("stall_timeout_s") is not None
        self.divergence = DivergenceDetector()
        self.suspect: Suspect | None = None
        self.line_feeds = 0
        self.last_line = ""
        self.checkpoint: str | None = None
        self.first_step_s: float | None = None
        self.output_s = started_s
        self.started_s = started_s
        self._first_step_due_s: float | None = started_s + (spec.get("first_step_timeout_s") or _FIRST_STEP_TIMEOUT_S)
        self._bytes = 0
        self._unfinished = b""
        self._byte_budget, self._budget_at_s = float(_BURST_BYTES), started_s
        self._unread_flood, self._flood_read_s = b"", -math.inf
        self._unfinished_read, self._received_s = b"", started_s
        self._divergence_reported = False
        self._suspect_reported = False

    @property
    def next_check_s(self) -> float | None:
        """When the observer should look again, in monotonic seconds; None: only after more output."""
        due = [self._first_step_due_s, self.stall_check_s, self._suspect_due_s()]
        return min((t for t in due if t is not None), default=None)

    @property
    def stall_check_s(self) -> float | None:
        """When a silence may be a stall, in monotonic seconds; never after the last step: uploads are silent."""
        step, total = self.progress.step, self.progress.total_steps
        is_done = step is not None and total is not None and step >= total
        return None if is_done and not self._is_fixed else self.stall_detector.due_s()

    def read_output(self, data: bytes, at_s: float) -> list[OutputEvent]:
        """Read ``data``, which came at ``at_s``; return what it tells."""
        whole, self._received_s = self._unfinished + data, at_s
        cut = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        piece, self._unfinished = whole[:cut], whole[cut:][-_UNFINISHED_BYTES:]
        events = self._read_lines_of(piece, at_s) if piece else []
        self._bytes += len(piece) + max(0, len(whole) - cut - _UNFINISHED_BYTES)
        return events

    def _read_lines_of(self, piece: bytes, at_s: float) -> list[OutputEvent]:
        self._find_suspect(piece, at_s)
        self.line_feeds += piece.count(b"\n")
        self._byte_budget = min(
            _BURST_BYTES, self._byte_budget + max(0.0, at_s - self._budget_at_s) * _STEADY_BYTES_PER_S
        )
        self._budget_at_s = at_s
        if len(piece) > self._byte_budget:
            self._unread_flood = _newest_lines(self._unread_flood + piece[-_NEWEST_BYTES:])
            return self.read_newest_lines(at_s) if at_s - self._flood_read_s >= _FLOOD_READ_EVERY_S else []
        self._byte_budget -= len(piece)
        piece, self._unread_flood = self._unread_flood + piece, b""
        return self._read_lines(split(piece.decode(errors="replace")), at_s)

    @property
    def has_unread_line(self) -> bool:
        """Whether a line waits for its end that nothing was read of: a bar is ended by its next update."""
        return bool(self._unfinished) and self._unfinished != self._unfinished_read

    def read_unfinished_line(self, at_s: float) -> list[OutputEvent]:
        """Read what is left of a flood, and the line that has no end yet, if nothing came for a moment."""
        events = self.read_newest_lines(at_s)
        if self.has_unread_line and at_s - self._received_s >= _UNFINISHED_AFTER_S:
            self._unfinished_read = self._unfinished
            advances = self.progress.advances
            # Only for its steps: once it ends, it is read as a whole.
            self.progress.read_lines(split(self._unfinished.decode(errors="replace"))[-1:], at_s)
            if self.progress.advances > advances or self.first_step_s is None:
                events += self._note_progress(advances, at_s)
        return events

    def read_newest_lines(self, at_s: float) -> list[OutputEvent]:
        """Read the newest lines of a flood, as far as they are not read yet; return what they tell."""
        newest, self._unread_flood, self._flood_read_s = self._unread_flood, b"", at_s
        return self._read_lines(split(newest.decode(errors="replace")), at_s)

    def _read_lines(self, lines: list[str], at_s: float) -> list[OutputEvent]:
        if not lines:
            return []
        self.last_line, self.output_s = lines[-1], at_s
        advances, new = self.progress.advances, self.suspect is not None and self.suspect.offset >= self._bytes
        for metric_line in self.progress.read_lines(lines, at_s):
            self.divergence.read_metrics(metric_line)
        if new and self.suspect is not None:  # which steps of this piece came after it, its judgement will tell
            self.suspect.advances = self.progress.advances
        for line in lines:
            if ("heckpoint" in line or "ckpt" in line) and (match := _CHECKPOINT.search(line)):
                self.checkpoint = match[1]
        events = self._note_progress(advances, at_s)
        if self._divergence_reported and self.divergence.recovered:
            self._divergence_reported = False
            events.append(OutputEvent("resumed", "The numbers are sound again."))
        if self.divergence.text and not (self.divergence.recovered or self._divergence_reported):
            self._divergence_reported = True
            events.append(OutputEvent("error_seen", f"Diverged: {self.divergence.text}", {"divergence": True}))
        return events

    def _note_progress(self, advances: int, at_s: float) -> list[OutputEvent]:
        events = []
        if self.progress.first_step_seen and self.first_step_s is None:
            self.first_step_s, self._first_step_due_s = at_s, None
            step, total = self.progress.step, self.progress.total_steps
            which = f"step {step}{f' of {total}' if total else ''}" if step is not None else "a step"
            text = f"First training step seen after {at_s - self.started_s:.0f} s: {which}."
            events.append(OutputEvent("first_step", text, {"step": step, "line": self.progress.first_step_line[:300]}))
        if self.progress.advances > advances:
            resumed = self.stall_detector.note_step(at_s)
            suspect = self.suspect
            if suspect is not None and self.progress.advances - suspect.advances >= _CLEARING_ADVANCES:
                resumed = resumed or self._suspect_reported  # what was told is taken back
                self.suspect, self._suspect_reported = None, False
        else:
            resumed = self.stall_detector.note_output(at_s, self.last_line)
        if resumed:
            events.append(OutputEvent("resumed", "It goes on."))
        return events

    def _find_suspect(self, piece: bytes, at_s: float) -> None:
        """Note the first line since the last steps that could prove a failure."""
        if self.suspect is not None:
            return
        starts = set()
        for word in _FATAL_WORDS:
            at = piece.find(word)
            for _ in range(_MATCHES_PER_WORD):
                if at < 0:
                    break
                starts.add(max(piece.rfind(b"\n", 0, at), piece.rfind(b"\r", 0, at)) + 1)
                at = piece.find(word, at + len(word))
        for start in sorted(starts):
            line = _read_line_at(piece, start)
            if may_be_fatal(line):
                number = self.line_feeds + piece.count(b"\n", 0, start) + 1
                self.suspect = Suspect(line, self._bytes + start, number, at_s, self.progress.advances)
                return

    @property
    def newest_line(self) -> str:
        """The last line, also one without an end: a prompt that waits for an answer has none."""
        lines = split(self._unfinished.decode(errors="replace"))
        return lines[-1] if lines else self.last_line

    def _suspect_due_s(self) -> float | None:
        suspect = self.suspect
        if suspect is None or suspect.dismissed or self._suspect_reported:
            return None
        gap_s = self.stall_detector.median_gap_s
        if gap_s is not None:
            return suspect.at_s + max(_SUSPECT_AFTER_S, _SUSPECT_AFTER_GAPS * gap_s)
        # Without a pace all output must have stopped; between its first steps a run may be silent for longer.
        return max(suspect.at_s, self.output_s) + (
            _EARLY_SUSPECT_AFTER_S if self.progress.first_step_seen else _SUSPECT_AFTER_S
        )

    def should_diagnose_suspect(self, at_s: float, *, idle: bool) -> bool:
        """Whether the suspect line should be judged now; ``idle``: the attempt has hardly computed of late.

        Without a pace an attempt that computes is not suspected: a compilation may take minutes.
        """
        next_check_s, suspect = self._suspect_due_s(), self.suspect
        if next_check_s is None or suspect is None or at_s < next_check_s:
            return False
        if self.stall_detector.median_gap_s is not None or idle:
            return True
        suspect.at_s = at_s
        return False

    def note_suspect_diagnosed(self, *, confirmed: bool) -> None:
        """Note that the suspect has been judged, so that it is not told twice."""
        if self.suspect is not None:
            self.suspect.dismissed = True
        self._suspect_reported = self._suspect_reported or confirmed

    def check_first_step_timeout(self, at_s: float) -> bool:
        """Whether the time for the first step has passed, told once."""
        if self._first_step_due_s is None or at_s < self._first_step_due_s:
            return False
        self._first_step_due_s = None
        return True

    def progress_facts(self) -> dict[str, Any]:
        """Return how far the attempt is, as ``progress.json`` keeps it; durations in seconds."""
        progress = self.progress
        facts = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "step_s": progress.step_s,
            "eta_s": progress.eta_s,
            # JSON knows no NaN.
            "metrics": {name: v if math.isfinite(v) else str(v) for name, v in progress.metrics.items()},
            "checkpoint": self.checkpoint,
        }
        return {name: value for name, value in facts.items() if value not in (None, {})}
