"""Reads the output of one attempt as it arrives and returns the events an agent should see. Times are arguments.

Reading a step line takes about 10 µs, and ordinary training runs print a few KB per second. In a flood,
only the newest lines are read for steps, 20 times per second; all of them are searched for lines that could prove a
failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_server.diagnosis.failure.last_lines import gives_up
from mcp_server.diagnosis.live.checkpoint_lines import find_checkpoint
from mcp_server.diagnosis.live.divergence import DivergenceDetector, DivergenceJudge, Doubt
from mcp_server.diagnosis.live.doubtful_rows import DoubtfulRows
from mcp_server.diagnosis.live.fatal_lines import FATAL_WORDS, LivePrefixes
from mcp_server.diagnosis.live.file_progress import FileProgress, make_metric_lines
from mcp_server.diagnosis.live.stall import ReportLimit, StallDetector
from mcp_server.diagnosis.progress.named_values import HEADLINES
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.record.curves.tails import CurveRow
from mcp_server.record.events import EventKind
from mcp_server.text.lines import ESCAPED_TRACEBACK, LINE_CHARS, TRACEBACK_CHARS, split_lines
from mcp_server.text.regex import compile_lazily

_FIRST_STEP_TIMEOUT_S = 1200.0
# Output is read completely up to this burst size and this lasting rate. Above that, only the newest bytes are read, at
# this interval.
_BURST_BYTES, _STEADY_BYTES_PER_S = 2**18, 2**17
_NEWEST_BYTES, _FLOOD_READ_EVERY_S = 4096, 0.05
_UNFINISHED_AFTER_S = 0.2  # of silence, before a line without a line end is read
_UNFINISHED_BYTES = 65536  # kept of a line without a line end
_MATCHES_PER_WORD = 8  # in one piece of output
_FATAL_WORDS = tuple(word.encode() for word in FATAL_WORDS)
# A suspect line is diagnosed once no step has followed it for this time and for this number of usual step gaps.
_SUSPECT_AFTER_S, _SUSPECT_AFTER_GAPS, _EARLY_SUSPECT_AFTER_S = 10.0, 5.0, 60.0
_MAX_METRICS = 4
_NAME_PART = compile_lazily(r"[^\W_]+")
_CLEARING_ADVANCES = 2  # one metrics line may be flushed after a traceback


@dataclass(frozen=True)
class OutputEvent:
    """An event that the output causes, in the fields of ``EventLog.append``."""

    kind: EventKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


_RESUMED = OutputEvent("resumed", "The run makes progress again.")


@dataclass
class Suspect:
    """A line that could prove a failure, at ``offset`` bytes. ``advances``, ``round``: counted when it came."""

    line: str
    offset: int
    number: int
    at_s: float
    advances: int
    round: int = 0  # before the first step
    dismissed: bool = False


def _read_line_at(piece: bytes, start: int) -> str:
    """Return the line that begins at ``start``; one that holds a whole traceback as a string is cut later."""
    for chars in (LINE_CHARS, TRACEBACK_CHARS):
        cut = piece[start : start + chars]
        ends = [at for at in (cut.find(b"\n"), cut.find(b"\r")) if at >= 0]
        if ends or ESCAPED_TRACEBACK not in cut:
            break
    lines = split_lines(cut[: min(ends, default=len(cut))].decode(errors="replace"), TRACEBACK_CHARS)
    return lines[0] if lines else ""


def _newest_lines(data: bytes) -> bytes:
    """Return the complete lines among the last 4 KiB of ``data``."""
    if len(data) <= _NEWEST_BYTES:
        return data
    cut = data[-_NEWEST_BYTES:]
    ends = [at for at in (cut.find(b"\n"), cut.find(b"\r")) if at >= 0]
    return cut[min(ends) + 1 :] if ends else cut


class OutputMonitor:
    """State of one attempt. Pass all output to ``read_output``, and call the checks again at ``next_check_s``."""

    def __init__(self, spec: Mapping[str, Any], started_s: float) -> None:
        self.progress = ProgressTracker(spec.get("first_step_pattern"), command=str(spec.get("command") or ""))
        self.stall_detector = StallDetector(started_s, spec.get("stall_timeout_s"))
        self.files = FileProgress()
        self._has_pattern = bool(spec.get("first_step_pattern"))
        self._is_fixed = spec.get("stall_timeout_s") is not None
        self._judge = DivergenceJudge()
        self.suspect: Suspect | None = None
        self._prefixes = LivePrefixes()
        self.passed_over: Suspect | None = None  # the first one after which another round began
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
        self.doubtful = DoubtfulRows()
        self._clock_s = 0.0  # POSIX time at monotonic 0
        self._counts_alike = False  # output and files have shown the same step
        self._divergence_reported = False
        self._doubts_reported: set[str] = set()
        # Metrics that are NaN every few steps, or errors that steps follow, would wake an agent without end.
        self._divergence_limit, self._suspect_limit = ReportLimit(), ReportLimit()
        self._suspect_reported = False

    @property
    def divergence(self) -> DivergenceDetector:
        """The judgement by the output, or by the file that proves most."""
        return self._judge.worst

    @property
    def next_check_s(self) -> float | None:
        """Monotonic time of the next check, or None when only more output can change anything."""
        due = [self._first_step_due_s, self.stall_check_s, self._suspect_due_s()]
        return min((t for t in due if t is not None), default=None)

    @property
    def stall_check_s(self) -> float | None:
        """Monotonic time from which silence may be a stall, or None after the last step: uploads are silent."""
        step, total = self.step, self.total_steps
        is_done = step is not None and total is not None and step >= total
        return None if is_done and not self._is_fixed else self.stall_detector.due_s()

    @property
    def _shows_files(self) -> bool:
        """Whether the step in the run's files is the one to show: no other is printed, or one that is behind it."""
        printed, written = self.progress.step, self.files.step
        return written is not None and (printed is None or (printed <= written and self._counts_alike))

    @property
    def step(self) -> int | None:
        """The newest training step, printed or written."""
        return self.files.step if self._shows_files else self.progress.step

    @property
    def round(self) -> int:
        """The training of several in one run, from 1."""
        return self.files.round if self.progress.step is None else self.progress.round

    @property
    def total_steps(self) -> int | None:
        """The steps of the present round, as printed or planned. One that the files have passed counts otherwise."""
        step, total = self.step, self.progress.total_steps
        if step is not None and total is None and self._shows_files:
            return self.progress.planned.find_total(step, self.files.axis)
        return total if step is None or total is None or step <= total else None

    @property
    def place(self) -> str:
        """Where training is, in words: `step 8 of 12`, `round 2, step 8`, or empty before the first step."""
        if not self._shows_files:
            return self.progress.place
        words = f"step {self.step}" + (f" of {self.total_steps}" if self.total_steps else "")
        return words if self.round == 1 else f"round {self.round}, {words}"

    @property
    def step_s(self) -> float | None:
        """Seconds per step."""
        return (self.files.speed.step_s if self._shows_files else None) or self.progress.step_s

    @property
    def _advances(self) -> int:
        return self.progress.advances + self.files.advances

    def read_rows(
        self, path: str, rows: Sequence[CurveRow], at_s: float, wall_s: float, other: str = ""
    ) -> list[OutputEvent]:
        """Return the events that new rows in a file of the run cause. ``wall_s``: ``at_s`` in POSIX time.

        ``other``: who else may have written them; then those count which the output shows too.
        """
        self._clock_s = wall_s - at_s
        if other:
            self.doubtful.note_rows(path, rows, other)
            return self._read_proven_rows(at_s)
        return self._read_own_rows(path, rows, at_s)

    def _read_proven_rows(self, at_s: float) -> list[OutputEvent]:
        found = self.doubtful.take().items()
        return [event for path, rows in found for event in self._read_own_rows(path, rows, at_s)]

    def _read_own_rows(self, path: str, rows: Sequence[CurveRow], at_s: float) -> list[OutputEvent]:
        former_round = self.files.round
        shows_training = self.files.read_rows(path, rows, at_s, at_s + self._clock_s)
        if self.files.round > former_round:
            self._judge.forget_files()
        for metric_line in make_metric_lines(path, rows, self.files.round):
            self._judge.read_file(path, metric_line)
        return (self._note_rows(path, at_s) if shows_training else []) + self._note_health(at_s)

    def _note_rows(self, path: str, at_s: float) -> list[OutputEvent]:
        step = self.progress.step
        self._counts_alike |= step is not None and self.files.counts_like(step, self.progress.recent_steps)
        events = []
        if self.first_step_s is None and not self._has_pattern:
            step = self.files.first_step
            events.append(self._note_first_step(step, f"step {step}, in {path}", f"{path}: step {step}", at_s))
        return events + self._note_advance(at_s)

    def read_output(self, data: bytes, at_s: float) -> list[OutputEvent]:
        """Return the events that ``data``, which came at ``at_s``, causes. Unreadable output raises."""
        whole, self._received_s = self._unfinished + data, at_s
        cut = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        piece, self._unfinished = whole[:cut], whole[cut:][-_UNFINISHED_BYTES:]
        try:
            return self._read_lines_of(piece, at_s) if piece else []
        finally:
            self._bytes += len(piece) + max(0, len(whole) - cut - _UNFINISHED_BYTES)
            self.line_feeds += piece.count(b"\n")

    def skip_output(self, data: bytes, at_s: float) -> None:
        """Pass over ``data`` unread. It counts as a sign of life."""
        whole, self._unfinished = self._unfinished + data, b""
        self._bytes += len(whole)
        self.line_feeds += whole.count(b"\n")
        self.output_s = self._received_s = at_s
        self.stall_detector.note_output(at_s, "")

    def _read_lines_of(self, piece: bytes, at_s: float) -> list[OutputEvent]:
        self._find_suspect(piece, at_s)
        self._byte_budget = min(
            _BURST_BYTES, self._byte_budget + max(0.0, at_s - self._budget_at_s) * _STEADY_BYTES_PER_S
        )
        self._budget_at_s = at_s
        if len(piece) > self._byte_budget:
            self._unread_flood = _newest_lines(self._unread_flood + piece[-_NEWEST_BYTES:])
            return self.read_newest_lines(at_s) if at_s - self._flood_read_s >= _FLOOD_READ_EVERY_S else []
        self._byte_budget -= len(piece)
        piece, self._unread_flood = self._unread_flood + piece, b""
        return self._read_lines(split_lines(piece.decode(errors="replace")), at_s)

    @property
    def has_unread_line(self) -> bool:
        """Whether a line without a line end is still unread. A progress bar ends its line only with the next update."""
        return bool(self._unfinished) and self._unfinished != self._unfinished_read

    def read_unfinished_line(self, at_s: float) -> list[OutputEvent]:
        """After a short silence, read the rest of a flood and the line without a line end."""
        events = self.read_newest_lines(at_s)
        if self.has_unread_line and at_s - self._received_s >= _UNFINISHED_AFTER_S:
            self._unfinished_read = self._unfinished
            advances = self.progress.advances
            # Read for its steps only: the complete line is read once it ends.
            self.progress.read_lines(split_lines(self._unfinished.decode(errors="replace"))[-1:], at_s)
            if self.progress.advances > advances or self.first_step_s is None:
                events += self._note_progress(advances, at_s)
        return events

    def read_end(self, at_s: float) -> list[OutputEvent]:
        """Read what is unread at the end of the output, as a bar's last update; only a first step is an event."""
        last, self._unfinished = self._unfinished, b""
        events = [*self.read_newest_lines(at_s), *self._read_lines(split_lines(last.decode(errors="replace")), at_s)]
        self._bytes += len(last)
        return [event for event in events if event.kind == "first_step"]

    def read_newest_lines(self, at_s: float) -> list[OutputEvent]:
        """Read the newest unread lines of a flood and return the events they cause."""
        newest, self._unread_flood, self._flood_read_s = self._unread_flood, b"", at_s
        return self._read_lines(split_lines(newest.decode(errors="replace")), at_s)

    def _read_lines(self, lines: list[str], at_s: float) -> list[OutputEvent]:
        if not lines:
            return []
        former_s, self.last_line, self.output_s = self.output_s, lines[-1], at_s
        advances, former_round = self.progress.advances, self.progress.round
        new = self.suspect is not None and self.suspect.offset >= self._bytes
        before = (
            lines.index(self.suspect.line) + 1 if new and self.suspect and self.suspect.line in lines else len(lines)
        )
        for number, some in enumerate((lines[:before], lines[before:])):
            for metric_line in self.progress.read_lines(some, at_s) if some else ():
                self._judge.read_output(metric_line)
            if number == 0 and new and self.suspect is not None:
                self.suspect.round = self.progress.round if self.progress.first_step_seen else 0
        if new and self.suspect is not None:  # the diagnosis decides which steps of this piece followed it
            self.suspect.advances = self._advances
        self._note_passed_over()
        for line in lines:
            if ("heckpoint" in line or "ckpt" in line) and (name := find_checkpoint(line)):
                self.checkpoint = name
        if self.progress.round > former_round:
            self.stall_detector.begin_round()
            if self._counts_alike:
                self.files.begin_round((former_s + at_s) / 2)  # a row is written just before its line, or after
                self._judge.forget_files()
        self.doubtful.read_lines(lines)
        events = self._note_progress(advances, at_s) + self._read_proven_rows(at_s)
        return events + self._note_health(at_s)

    def _note_health(self, at_s: float) -> list[OutputEvent]:
        return self._note_divergence(at_s) + self._note_doubts(at_s)

    def _note_divergence(self, at_s: float) -> list[OutputEvent]:
        is_proven = self.divergence.is_proven
        if self._divergence_reported and not is_proven:
            self._divergence_reported = False
            return [OutputEvent("resumed", "The metrics are healthy again.")]
        if not is_proven or self._divergence_reported:
            return []
        if at_s < self._divergence_limit.quiet_until_s:
            return []
        self._divergence_reported = True
        self._divergence_limit.note_report(at_s)
        return [self._describe_divergence(None)]

    def _note_doubts(self, at_s: float) -> list[OutputEvent]:
        """Report what has been NaN for long and proves no divergence by itself, and the end of it."""
        lasting = {rule: doubt for rule, doubt in self._judge.doubts.items() if doubt.text}
        gone = self._doubts_reported - set(self._judge.doubts)
        self._doubts_reported -= gone
        if self._divergence_reported:
            return []
        if gone and not self._doubts_reported:
            return [OutputEvent("resumed", "The metrics are healthy again.")]
        rule = next((rule for rule in lasting if rule not in self._doubts_reported), None)
        if rule is None or at_s < self._divergence_limit.quiet_until_s:
            return []
        self._doubts_reported.add(rule)
        self._divergence_limit.note_report(at_s)
        return [self._describe_divergence(lasting[rule])]

    def _describe_divergence(self, doubt: Doubt | None) -> OutputEvent:
        text = f"Diverged: {self.divergence.text}"
        if doubt is not None:
            text = f"{doubt.text} By itself it proves no divergence: the run goes on."
        return OutputEvent("error_seen", f"{text} {self._divergence_limit.remark}".strip(), {"divergence": doubt})

    def renew(self, event: OutputEvent) -> OutputEvent:
        """Return a report of divergence with the counts of now: more may have been read since it was made."""
        if "divergence" not in event.facts:
            return event
        old: Doubt | None = event.facts["divergence"]
        doubts = self._judge.doubts.values()
        return self._describe_divergence(old and next((d for d in doubts if d.name == old.name and d.text), old))

    def _note_progress(self, advances: int, at_s: float) -> list[OutputEvent]:
        events = []
        if self.progress.first_step_seen and self.first_step_s is None:
            line = self.progress.first_step_line[:300]
            events.append(self._note_first_step(self.progress.step, self.progress.place, line, at_s))
        if self.progress.advances > advances:
            return events + self._note_advance(at_s)
        if self.stall_detector.note_output(at_s, self.last_line):
            events.append(_RESUMED)
        return events

    def _note_first_step(self, step: int | None, place: str | None, line: str, at_s: float) -> OutputEvent:
        self.first_step_s, self._first_step_due_s = at_s, None
        text = f"First training step seen after {at_s - self.started_s:.0f} s{f': {place}' if place else ''}."
        return OutputEvent("first_step", text, {"step": step, "line": line})

    def _note_advance(self, at_s: float) -> list[OutputEvent]:
        resumed = self.stall_detector.note_step(at_s)
        if self.suspect is not None and self._advances - self.suspect.advances >= _CLEARING_ADVANCES:
            resumed = resumed or self._suspect_reported  # withdraws the reported error
            self.suspect, self._suspect_reported = None, False
        return [_RESUMED] if resumed else []

    def _note_passed_over(self) -> None:
        """Note that another round began after the suspect line: the script went on after an error."""
        suspect = self.suspect
        if suspect is not None and self.passed_over is None and self.progress.round > suspect.round > 0:
            self.passed_over = suspect

    def _find_suspect(self, piece: bytes, at_s: float) -> None:
        """Set ``suspect`` to the first line of ``piece`` that could prove a failure, unless there is one already."""
        if self.suspect is not None:
            return
        self._prefixes.read_output(piece)
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
            if self._prefixes.may_be_fatal(line):
                number = self.line_feeds + piece.count(b"\n", 0, start) + 1
                self.suspect = Suspect(line, self._bytes + start, number, at_s, self._advances)
                return

    @property
    def gave_up(self) -> bool:
        """Whether the newest line says what is missing and that the program ends."""
        return gives_up(self.newest_line)

    @property
    def newest_line(self) -> str:
        """The last line, with or without a line end: a prompt that waits for input has none."""
        lines = split_lines(self._unfinished.decode(errors="replace"))
        return lines[-1] if lines else self.last_line

    def _suspect_due_s(self) -> float | None:
        suspect = self.suspect
        if suspect is None or suspect.dismissed or self._suspect_reported:
            return None
        gap_s = self.stall_detector.median_gap_s
        if gap_s is not None:
            due_s = suspect.at_s + max(_SUSPECT_AFTER_S, _SUSPECT_AFTER_GAPS * gap_s)
        else:  # all output must have stopped. Silence between the first steps may last longer.
            wait_s = _EARLY_SUSPECT_AFTER_S if self.progress.first_step_seen else _SUSPECT_AFTER_S
            due_s = max(suspect.at_s, self.output_s) + wait_s
        return max(due_s, self._suspect_limit.quiet_until_s)

    def should_diagnose_suspect(self, at_s: float, *, idle: bool) -> bool:
        """Whether to diagnose the suspect line now; without a step gap only if ``idle``: compiling takes minutes."""
        next_check_s, suspect = self._suspect_due_s(), self.suspect
        if next_check_s is None or suspect is None or at_s < next_check_s:
            return False
        if self.stall_detector.median_gap_s is not None or idle:
            return True
        suspect.at_s = at_s
        return False

    def note_suspect_diagnosed(self, at_s: float, *, confirmed: bool) -> str:
        """Note that the suspect line has been diagnosed, so that it is reported at most once; return a remark on it."""
        if self.suspect is not None:
            self.suspect.dismissed = True
        self._suspect_reported = self._suspect_reported or confirmed
        if not confirmed:
            return ""
        self._suspect_limit.note_report(at_s)
        return self._suspect_limit.remark

    def check_first_step_timeout(self, at_s: float) -> bool:
        """Return True once, when the time limit for the first step has passed."""
        if self._first_step_due_s is None or at_s < self._first_step_due_s:
            return False
        self._first_step_due_s = None
        return True

    def progress_facts(self) -> dict[str, Any]:
        """Return the content of ``progress.json``, durations in seconds."""
        step, total, step_s = self.step, self.total_steps, self.step_s
        own, others = self.progress.metrics, self.files.metrics
        own, others = (others, own) if self._shows_files else (own, others)
        metrics = {**others, **own}
        names: dict[tuple[str, ...], str] = {}  # one of `loss/critic` and `critic loss`
        for name in filter(metrics.__contains__, (*HEADLINES, *own, *others)):
            names.setdefault(tuple(sorted(_NAME_PART.findall(name.lower()))) or (name,), name)
        is_left = None not in (step, total, step_s)
        facts = {
            "round": self.round if self.round > 1 else None,
            "step": step,
            "total_steps": total,
            "step_s": step_s,
            "eta_s": max(0, (total or 0) - (step or 0)) * (step_s or 0.0) if is_left else None,
            # JSON has no NaN.
            "metrics": {
                name: metrics[name] if math.isfinite(metrics[name]) else str(metrics[name])
                for name in list(names.values())[:_MAX_METRICS]
            },
            "read_from": self._describe_source(),
            "left_out": self._describe_left_out(),
            "checkpoint": self.checkpoint,
            "nan_since": {doubt.name: doubt.since for doubt in self._judge.doubts.values()},
        }
        return {name: value for name, value in facts.items() if value not in (None, {})}

    def _describe_left_out(self) -> str | None:
        if self.step is None:
            return self.doubtful.describe()
        return self.doubtful.describe(self.files.path) if self._shows_files else None  # the step is of before the doubt

    def _describe_source(self) -> str | None:
        """Return from which file step and metrics are, or that it counts something else than the output."""
        step, path = self.files.step, self.files.path
        if step is None or self._shows_files:
            return path or None
        return None if self._counts_alike else f"output; {path} has step {step}"
