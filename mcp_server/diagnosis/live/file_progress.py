"""Tracks step and metrics in the files that a run writes: event files, tables, lines of JSON, files of trackers. Pure.

All files of one training count together: the furthest step of any leads, since a program that logs twice does so at the
same steps. A file that begins after the others have fallen silent, further back, is another round. Numbers of held-out
data are no steps: an initial evaluation, or a program that only evaluates, writes such files as well.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    HEADLINES,
    HELD_OUT,
    LOSS,
    QUALITY,
    REWARD,
    SPEED,
    classify_name,
)
from mcp_server.diagnosis.progress.step_counters import StepSpeed
from mcp_server.diagnosis.progress.tracker import MetricLine
from mcp_server.record.curves.tails import CurveRow

_MOST_FILES, _MOST_TAGS, _MOST_METRICS, _MOST_STEPS = 200, 1_000, 4, 2_000
_MOST_SHOWN = 8  # values of a row, in words
_OTHER_AXES = frozenset({"time", "iter", "frame"})  # over which rl_games and rsl_rl write a metric again
_OF_MACHINE = re.compile(r"(?:^|[/._])(?:system|hardware|gpu|cpu|memory|disk|network)[/._]|^time/", re.IGNORECASE)
_HELD_OUT_WORD = re.compile(r"val|valid|validation|eval|evals|evaluation|evaluations|test|dev", re.IGNORECASE)
_SHOWN = (LOSS, REWARD, QUALITY, HELD_OUT)  # what a metric without a usual name measures, the most telling first
_APART_S = 0.05
_ENOUGH = 10  # a step that log and file share by chance is smaller


@dataclass
class _Curves:
    """One file: the newest step and value of each tag. ``written_s``: its first row. ``moves``: how often it grew."""

    begun_s: float
    grown_s: float
    written_s: float
    first_step: int
    step: int
    moves: int = 0
    axis: str = ""
    tags: dict[str, tuple[int, float]] = field(default_factory=dict)


class FileProgress:
    """Reads rows in order. ``path``: the file whose step leads; ``round``: the training of several, from 1."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.first_step: int | None = None
        self.round = 1
        self.path = ""
        self.advances = 0
        self.speed = StepSpeed()
        self._paced_s = 0.0
        self._files: dict[str, _Curves] = {}
        self._former: dict[str, int] = {}  # the last step of each file of the round before
        self._round_s = 0.0  # when the round began, where something else has told it
        self._steps: deque[int] = deque(maxlen=_MOST_STEPS)

    def begin_round(self, since_s: float) -> None:
        """Begin the next training, which something else has told: what was written before ``since_s`` is left out.

        So is what a file goes on with that was begun before.
        """
        own = {path: curves for path, curves in self._files.items() if curves.written_s >= since_s}
        self._former = {path: curves.step for path, curves in self._files.items() if path not in own}
        self._files, self.round, self.step, self.path, self.speed = {}, self.round + 1, None, "", StepSpeed()
        self._round_s = since_s
        self._steps.clear()
        for path, curves in own.items():
            self._files[path] = curves
            self._take_step(path, curves, curves.step, None)

    def _is_of_former(self, path: str, step: int, written_s: float) -> bool:
        if written_s < self._round_s or step >= self._former.get(path, math.inf):
            self._former[path] = step
            return True
        self._former.pop(path, None)
        return False

    def read_rows(self, path: str, rows: Iterable[CurveRow], at_s: float, wall_s: float) -> bool:
        """Take new rows of a file and return whether they show a step of training.

        ``at_s``: now in monotonic seconds, ``wall_s``: the same in POSIX time. The last row without a time is of now.
        """
        label = _find_held_out(path)
        advanced, rows = False, list(rows)
        has_times = any(row.wall_s is not None for row in rows)
        newest_s = rows[-1].wall_s if rows else None
        for number, row in enumerate(rows, 1):
            since = newest_s if row.wall_s is None else row.wall_s
            written_s = at_s if since is None else at_s - (wall_s - since)
            if self._round_s and self._is_of_former(path, row.step, written_s):
                continue
            values = _label(label, row.values)
            curves = self._files.get(path)
            shows_training = not label and _shows_training(row.step, values)
            if curves is None and not shows_training and len(self._files) >= _MOST_FILES:
                continue
            if curves is None:
                curves = self._files[path] = _Curves(at_s, at_s, written_s, row.step, -1)
            if len(curves.tags) < _MOST_TAGS:
                curves.tags.update((tag, (row.step, value)) for tag, value in values.items())
            if shows_training:
                self.first_step = row.step if self.first_step is None else self.first_step
                row_s = at_s if row.wall_s is None else at_s - min(max(0.0, wall_s - row.wall_s), at_s)
                is_timed = row.wall_s is not None or (number == len(rows) and not has_times)
                curves.axis = row.axis
                self._take_step(path, curves, row.step, row_s if is_timed else None)
                curves.grown_s, advanced = at_s, True
        self.advances += advanced
        return advanced

    def _take_step(self, path: str, curves: _Curves, step: int, at_s: float | None) -> None:
        if step < curves.step:  # written anew, or another program goes on with it
            curves.first_step = min(curves.first_step, step)
        curves.moves += step > curves.step
        curves.step = step
        others = [one for name, one in self._files.items() if name != path and one.step >= 0]
        has_grown = curves.moves > 1 and curves.grown_s > curves.begun_s  # its first rows may be older than their read
        is_again = others and has_grown and all(one.grown_s < curves.begun_s for one in others)
        if is_again and self.step is not None and step < self.step and path != self.path:
            self._files = {path: curves}
            self.round, self.step, self.speed = self.round + 1, None, StepSpeed()
            self._steps.clear()
        if self.step is None or step > self.step or (path == self.path and step < self.step and len(self._files) == 1):
            self.step, self.path = step, path
            self._steps.append(step)
            # Several tags of one moment may have neighbouring steps.
            if at_s is not None and at_s >= self._paced_s + _APART_S:
                self._paced_s = at_s
                self.speed.note_step(at_s, step)

    @property
    def axis(self) -> str:
        """The leading file's name for its step, empty without one."""
        return self._files[self.path].axis if self.path in self._files else ""

    @property
    def metrics(self) -> dict[str, float]:
        """The newest metrics: those with a usual name by it, the others by their tags, four at most.

        A training whose figures all have unknown names shows these: `train/ctc`.
        """
        unknown, is_named = dict[str, float](), False
        found: dict[str, tuple[int, float]] = {}
        others: dict[int, dict[str, tuple[int, float]]] = {bit: {} for bit in _SHOWN}
        for curves in self._files.values():
            for tag, (step, value) in curves.tags.items():
                name = classify_name(tag)
                if name is None and step == self.step and not _OF_MACHINE.search(tag):
                    unknown[tag] = value
                if name is None or name.bits & COUNTS:
                    continue
                is_named = is_named or bool(name.bits & (LOSS | REWARD | QUALITY))
                if name.headline and step >= found.get(name.headline, (-1, 0.0))[0]:
                    found[name.headline] = step, value
                elif name.headline is None:
                    bit = next((one for one in _SHOWN if name.bits & one), 0)
                    if bit:
                        others[bit].setdefault(tag, (step, value))
        metrics = {name: found[name][1] for name in HEADLINES if name in found}
        for one in others.values():
            metrics.update((tag, value) for tag, (_, value) in one.items() if tag not in metrics)
        metrics.update({} if is_named else unknown)
        return dict(list(metrics.items())[:_MOST_METRICS])

    def counts_like(self, step: int, before: Container[int]) -> bool:
        """Return whether output and files have shown one step: both count the same.

        ``before``: the steps that the output showed shortly before ``step``, since a file is read a moment later.
        """
        is_shared = step in self._steps or (self.step in before and (self.step or 0) >= _ENOUGH)
        return step >= min(_ENOUGH, self.step or 0) and is_shared


def make_metric_lines(path: str, rows: Iterable[CurveRow], round_number: int) -> Iterator[MetricLine]:
    """Yield the rows as lines that a program might have printed. Neighbours of one step are one: tags of event files.

    As JSON, a row is not taken for a progress bar; what is not finite stands first.
    """
    label, held, step = _find_held_out(path), dict[str, float](), -1

    def make() -> MetricLine:
        shown = sorted({"step": step, **held}.items(), key=lambda item: math.isfinite(item[1]))[:_MOST_SHOWN]
        line = f"{json.dumps(dict(shown))} in {path}"
        return MetricLine(step, held, line, round=round_number, at=step)

    for row in rows:
        values = _label(label, row.values)
        if held and (row.step != step or not held.keys().isdisjoint(values)):
            yield make()
            held = {}
        held, step = {**held, **values}, row.step
    if held:
        yield make()


def _label(label: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values by tags that say which of them are of held-out data, without those over other axes."""
    named = {tag: value for tag, value in values.items() if tag.rpartition("/")[2] not in _OTHER_AXES}
    return {f"{label}/{tag}": value for tag, value in named.items()} if label else named


def _find_held_out(path: str) -> str:
    """Return the word by which a directory or a table is one of held-out data, empty without: `eval_results.json`."""
    directory, _, name = path.rpartition("/")
    words = [directory.rpartition("/")[2]]
    if "tfevents" not in name and not name.endswith(".wandb"):  # these hold the names of hosts and runs
        words += re.split(r"[^a-zA-Z]+", name)
    found = [word for word in words if _HELD_OUT_WORD.fullmatch(word)]
    return found[0] if found and "train" not in words else ""


def _shows_training(step: int, values: Mapping[str, float]) -> bool:
    """Return whether the values of a row are those of a training that has stepped."""
    names = [classify_name(tag) for tag in values if not _OF_MACHINE.search(tag)]
    bits = [0 if name is None else name.bits for name in names]
    if step > 0:
        return any(not one & (HELD_OUT | COUNTS | SPEED) for one in bits)
    return (
        step == 0 and any(one & (LOSS | REWARD | QUALITY) for one in bits) and not any(one & HELD_OUT for one in bits)
    )
