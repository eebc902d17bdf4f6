"""Reads bars and counts of batches as steps, or tells by where they begin that they are of other work. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from mcp_server.diagnosis.progress.custom_loops import announces_other_work, find_values_behind_bar, is_held_out
from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import NamedValue, as_held_out, find_named_values
from mcp_server.diagnosis.progress.progress_bars import BarSubject, ProgressBar
from mcp_server.diagnosis.progress.step_counters import StepReading

_MAX_LAPS = 64

BarRow = tuple[Optional[StepReading], list[NamedValue], str]  # step and values of a bar, and the line they stand on


class _Lap(NamedTuple):
    """One way of a count through its length. ``headings``: of epochs, when it began; ``is_other``: is no training."""

    n: int
    per: int | None
    headings: int
    is_other: bool


class TrainingLaps:
    """The bars and counts of a run, each from its beginning to its end."""

    def __init__(self) -> None:
        self._laps: dict[str, _Lap] = {}
        self._outer: ProgressBar | None = None
        self._shows_training: dict[str, bool] = {}  # by the key of an unlabelled bar
        self._inner: set[str] = set()  # bars that moved since the outer one did
        self._young: tuple[ProgressBar, str] | None = None

    def read_bar(
        self, bar: ProgressBar, line: str, lines_before: Sequence[str], *, is_trained: bool, is_alone: bool
    ) -> BarRow | None:
        """Return the step and the values of a bar, only values of an evaluation's, None for other work.

        ``is_trained``: a step was made before. ``is_alone``: no counter has steps.
        """
        title, is_unlabelled = bar.title, bar.kind is BarSubject.UNLABELLED
        key = f"bar {title.key} {bar.total}" if is_unlabelled else f"bar {title.key}"
        if bar.kind is BarSubject.OTHER:
            is_end = bar.n == bar.total and is_trained and is_held_out(title.text)
            return _read_held_out(bar, line) if is_end else None
        if is_unlabelled and not self._shows_steps(bar, key, lines_before, is_trained=is_trained, is_alone=is_alone):
            return None
        if is_unlabelled and bar.n and bar.is_young and not is_trained:
            self._young = bar, line  # a bar over a list is done within a second; training takes longer
            return None
        if not is_unlabelled and self._is_of_evaluation(key, bar.n, lines_before):
            return _read_held_out(bar, line) if bar.n else None
        self._note_training_bar(bar)
        if bar.n == 0:
            return None
        rank = CounterRank.UNLABELLED if is_unlabelled else CounterRank.BAR
        reading = StepReading(rank, key, None, None, title.epoch, title.epochs, bar.n, bar.total, step_s=bar.step_s)
        values = find_named_values(bar.rest) if bar.rest else []
        if bar.behind:  # the bar leaves its line open, so print() in its loop goes on there
            printed = find_values_behind_bar(bar.behind)
            values, line = values + printed, bar.behind if printed and bar.behind[0] != "{" else line
        return reading, find_named_values(title.text) + values if title.shows_loss else values, line

    def take_young(self) -> tuple[ProgressBar, str] | None:
        """Return the bar, with its line, that was too young to show training, once."""
        young, self._young = self._young, None
        return young

    def is_unnamed(self, reading: StepReading, headings: int) -> bool:
        """Whether a count of batches began without a heading of its epoch, which the one before had: an evaluation."""
        if reading.n is None or reading.per is None or not headings:
            return False
        lap = self._laps.get(reading.key)
        if lap is None or reading.n < lap.n or reading.per != lap.per or lap.headings != headings:
            lap = _Lap(reading.n, reading.per, headings, lap is not None and lap.headings == headings)
        return self._keep(reading.key, lap._replace(n=reading.n))

    def _is_of_evaluation(self, key: str, n: int, lines_before: Sequence[str]) -> bool:
        """Whether a training bar began below a heading of held-out data."""
        lap = self._laps.get(key)
        if lap is None or n < lap.n:
            heading = lines_before[-1].rpartition(" - ")[2] if lines_before else ""
            lap = _Lap(n, None, 0, is_held_out(heading) and announces_other_work(heading))
        return self._keep(key, lap._replace(n=n))

    def _keep(self, key: str, lap: _Lap) -> bool:
        if len(self._laps) >= _MAX_LAPS:
            self._laps = {}
        self._laps[key] = lap
        return lap.is_other

    def _note_training_bar(self, bar: ProgressBar) -> None:
        """Take a training bar; the outermost is the one that others begin and end inside."""
        outer = self._outer
        is_same = outer is not None and outer.total == bar.total and outer.title.key == bar.title.key
        if outer is not None and is_same and bar.n > outer.n > 0:
            # It goes on: the bars inside its last step are no training, also after its end.
            self._shows_training.update(dict.fromkeys(self._inner, False))
            self._inner = set()
        if outer is None or is_same or (bar.n == 0 and (outer.n > 0 or (bar.total or 0) > (outer.total or 0))):
            self._outer = bar

    def _shows_steps(
        self, bar: ProgressBar, key: str, lines_before: Sequence[str], *, is_trained: bool, is_alone: bool
    ) -> bool:
        """Whether an unlabelled bar shows training: the lines before it decide, once; a title speaks against it."""
        if key not in self._shows_training:
            if len(self._shows_training) >= _MAX_LAPS:
                self._shows_training = {}
            is_announced = any(announces_other_work(line) for line in lines_before if "100%" not in line)
            self._shows_training[key] = not is_announced and (not bar.title.key or is_trained)
        elif is_trained and is_alone and not bar.title.key:
            self._shows_training[key] = True  # training goes on
        outer = self._outer
        if outer is None or outer.total == bar.total or outer.total is None or bar.total is None:
            return self._shows_training[key]
        # Inside an unfinished training bar, a shorter bar is an evaluation.
        if bar.total < outer.total and 0 < outer.n < outer.total and len(self._inner) < _MAX_LAPS:
            self._inner.add(key)
        return self._shows_training[key] and (bar.total > outer.total or outer.n >= outer.total)


def _read_held_out(bar: ProgressBar, line: str) -> BarRow | None:
    named = find_named_values(f"{bar.title.text} {bar.rest}")
    values = as_held_out(named)
    return (None, values, line) if values else None
