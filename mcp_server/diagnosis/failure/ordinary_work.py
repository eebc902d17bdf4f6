"""Counts the ordinary work that a log shows between two of its lines: steps, bars, metrics. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "ordinary_work")

# A dying Python process flushes its buffered standard output after the traceback: usually one or two lines, at most
# 8 KiB. Ten lines are a compromise: survived tracebacks in healthy logs are more frequent than longer flushes in failed
# ones. With a known exit status the limit does not matter.
_FLUSH_LINES = 10
FIRST_CHARS = 300  # of a line are searched
_LAST_BARS = 6  # every rank draws its bar once more when it closes it
_EPILOGUE_LINES = 250  # of schedulers, wandb, C++ frames; longer text is from another program
_UNSURE_LINES = 3  # after a traceback that may have been caught
LAUNCHER_WORK = 400  # lines that other ranks may print until their launcher stops them


@dataclass
class WorkCount:
    """Counts of the lines that show ordinary work, within a range of lines."""

    bars: int = 0
    lines: int = 0
    other: int = 0
    is_over: bool = False
    after_restart: int = 0  # of the lines and bars: those after a restart
    resumed: int = 0  # ... those after loading a checkpoint

    def outlives(self, evidence: FailureEvidence) -> bool:
        """Return whether this work after ``evidence`` means that the run survived it."""
        if not evidence.sure:
            return self.is_over or self.lines + self.bars > _UNSURE_LINES
        stopped = evidence.weight == Weight.STOPPED
        return (
            self.lines > _FLUSH_LINES
            or self.after_restart > (0 if stopped else _UNSURE_LINES)
            or (self.resumed > 0 and stopped and bool(_RX.will_resume.search(evidence.text)))
            or self.bars > _LAST_BARS
            or self.other > _EPILOGUE_LINES
            or (self.is_over and self.lines + self.bars > 0)
        )

    @property
    def is_enough(self) -> bool:
        """Whether more work cannot change any decision."""
        return self.lines > LAUNCHER_WORK or self.bars > LAUNCHER_WORK


def count_work(lines: Sequence[Line], start: int, end: int) -> WorkCount:
    """Count the ordinary work in the lines from ``start`` up to, but not including, ``end``."""
    work = WorkCount()
    is_restarted = resumed = False
    for at in range(start, end):
        text = lines[at].text
        match = _RX.work.search(text, 0, FIRST_CHARS)
        work.is_over = work.is_over or bool(_RX.finished.search(text, 0, FIRST_CHARS))
        if not match or _RX.no_work.match(text):
            work.other += not text[:1].isspace()
        elif match["bar"]:
            work.bars += 1
        else:
            work.lines += 1
        is_restarted = is_restarted or bool(_RX.restarted.search(text, 0, FIRST_CHARS))
        resumed = resumed or bool(_RX.resumed.search(text, 0, FIRST_CHARS))
        is_work = bool(match) and not _RX.no_work.match(text)
        work.after_restart += is_restarted and is_work
        work.resumed += resumed and is_work
        if work.is_enough:
            break
    return work


def find_last_work_line(lines: Sequence[Line]) -> Line | None:
    """Return the last line that shows ordinary work."""
    near = reversed(lines[-5_000:])
    match = (line for line in near if _RX.work.search(line.text, 0, FIRST_CHARS) and not _RX.no_work.match(line.text))
    return next(match, None)


def count_steps(lines: Sequence[Line], start: int, end: int, most: int) -> int:
    """Return how many lines from ``start`` up to ``end`` show a step of training, ``most`` at most."""
    count = 0
    for at in range(end - 1, max(start, 0) - 1, -1):
        text = lines[at].text
        count += bool(_RX.step.search(text, 0, FIRST_CHARS)) and not _RX.no_step.search(text, 0, FIRST_CHARS)
        if count >= most:
            break
    return count
