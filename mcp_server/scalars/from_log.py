"""Reads the metrics that a run printed to its log: the only ones of a run that writes no scalars to files.

An evaluation before the first training step counts as step 0, the baseline of the others.
"""

import contextlib
import functools
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mcp_server.command.outputs import list_redirected
from mcp_server.diagnosis.progress.custom_loops import is_quoted
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    HELD_OUT,
    LOSS,
    QUALITY,
    REWARD,
    classify_name,
    find_named_values,
    names_count,
    replace_leaders,
)
from mcp_server.diagnosis.progress.progress_bars import find_bar
from mcp_server.diagnosis.progress.tables import is_row
from mcp_server.diagnosis.progress.tracker import MetricLine, ProgressTracker
from mcp_server.record.run_directory import RunDir
from mcp_server.record.scalar_files import rank_step
from mcp_server.record.state import Run
from mcp_server.record.written_files import read_outputs
from mcp_server.scalars.run_scalars import ScalarReading, ScalarTarget
from mcp_server.scalars.series import FilePoints, Series, merge_files
from mcp_server.scalars.tag_names import match_tags
from mcp_server.store.attribution.timed_search import TimedSearch
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import open_regular
from mcp_server.text.lines import split_lines
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("scalars/patterns", "from_log")


_MOST_BYTES = 2 << 20  # at each end of a log, which takes half a second
_MOST_NAMES, _MOST_OTHERS, _UNPROVEN = 200, 12, 8  # the last: lines that a count is read from before it is proved
_MOST_READERS = 64  # logs that are read on where they grow
_MARK_BYTES = 64  # before the place where a log is read on: they must be there still
# A file that is further ahead of the output, as share and in steps, counts something else, such as samples.
_SAME_COUNTER, _AHEAD = 1.25, 10
_PATTERN_S = 5.0  # for all lines of a log

# A name as somebody says it, whatever stands between its words, and its number behind a sign or a space: `solved 7/10`;
# or a share before it: `7 of 10 trials solved`.
_WORDS = compile_lazily(r"[^\W\d_]+|\d+")
_BETWEEN_WORDS = r"[\s_./@-]{0,3}"
_AS_SAID = (
    r"(?i)(?<![\w./@-])%s[\"'`*]{0,3}\s{0,9}(?:[:=][\s*`]{0,9}|(?<=[\s*`]))"
    r"(?:(?P<part>\d{1,9})\s?(?:/|of)\s?(?P<whole>[1-9]\d{0,8})"
    r"|(?P<value>[-+]?(?:[\d,]*\.\d+(?:e[-+]?\d+)?|\d[\d,]*(?:\.|e[-+]?\d+)?(?!\s+[a-z])|nan|inf)))(?![\w:/-]|,?\d|\.\d)"
    r"|(?<![\w./:-])(?P<some>\d{1,9})\s?(?:/|of)\s?(?P<all>[1-9]\d{0,8})\s+(?:[a-z]+\s+){0,2}%s(?![\w./@-])"
)
_LONGEST_NAME = 100

_CUT = "The log is long: only its beginning and end were read for metrics."
_SLOW_PATTERN = (
    f"Searching the log for first_step_pattern took longer than {_PATTERN_S:g} s and ended there: steps that it would "
    "have found later are missing. A simpler pattern reads all of them."
)

_TABLE_SIGNS = "│┃|"
_CELLS = compile_lazily(f"[{_TABLE_SIGNS}]")
_LINES_AFTER_TITLE = 6  # without a table: the title was of something else


LogPoints = list[tuple[int | None, float]]


@dataclass(frozen=True)
class LogMetrics:
    """``points`` by name (``reward``, ``loss``), each with its step if printed. ``notes`` say what was not read.

    ``printed``: the same numbers, and others, by the program's own names (``critic/score/mean``; in a line that counts
    also ``ctc 0.72 (ema 0.74)``). ``log``: the file, None without points. ``step``, ``headlines``: the step at its end,
    and the metrics that wait_run shows then.
    ``counts``: what it counts, by its own words (``iteration``). ``percents``: the names of figures in per cent.
    """

    points: Mapping[str, LogPoints]
    notes: tuple[str, ...] = ()
    log: Path | None = None
    printed: Mapping[str, LogPoints] = field(default_factory=dict)
    step: int | None = None
    headlines: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, LogPoints] = field(default_factory=dict)
    percents: frozenset[str] = frozenset()

    def select(self, pattern: str) -> dict[str, LogPoints]:
        """Return the points of the names that ``pattern`` means: of the product's, else of the program's own."""
        for names in (self.points, self.printed):
            if found := match_tags(pattern, names):
                return {name: names[name] for name in found}
        return {}

    @property
    def own_series(self) -> dict[str, LogPoints]:
        """The numbers of the program's own names alone that change and count nothing."""
        known = {name.lower() for name in self.points}
        series = {name: pairs for name, pairs in self.printed.items() if name.lower() not in known}
        return {n: pairs for n, pairs in series.items() if not names_count(n) and len({v for _, v in pairs}) > 1}


def read_log_metrics(run: Run, rundir: RunDir) -> LogMetrics:
    """Return the metrics of the last attempt that reached a step, from its log or a file that has its output."""
    notes: tuple[str, ...] = ()
    for number in range(run.attempt, 0, -1):
        for log in (rundir.log(number), *find_redirected(run, rundir, number)):
            try:
                metrics = _read_log(log, run.spec.first_step_pattern, is_whole=run.ended)
            except OSError:  # it was removed
                continue
            if metrics.points or metrics.printed:
                return metrics
            notes = notes or metrics.notes
    return LogMetrics({}, notes)


def read_printed_value(log: Path, name: str, after: str = "") -> float | None:
    """Return the last number that a log has by this name, with or without steps; ``after``: below this line alone.

    Somebody has said the name, so it may be of any words, and a space is enough before its number, as
    ``print("val_loss", 0.5)`` writes it: `%WER 24.48 [ 2448 / 10000 ]`, `CV AUROC 0.8567 ± 0.0057`. None without any,
    or where the log cannot be read. NaN and infinity are numbers here.
    """
    lines = _read_end(log)
    if after:
        marks = [number for number, line in enumerate(lines) if line.strip() == after]
        lines = lines[marks[-1] + 1 :] if marks else []
    as_said = _compile_said(name)
    of_best = [line for line in lines if "best" in line.lower()]
    for line in (*reversed(_leave_out_best(lines)), *reversed(of_best)):
        named = {**_find_spaced(line), **_find_own_names(line)}
        if found := match_tags(name, named):
            return named[found[-1]]
        if as_said is not None and (said := _find_said(as_said, [line])):
            return said[-1].value
    return None


def count_lines(log: Path, line: str) -> int:
    """Return how often a log says just this, as far as it is read for a printed value."""
    return sum(each.strip() == line for each in _read_end(log))


def _read_end(log: Path) -> list[str]:
    try:
        with open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            return [*map(replace_leaders, split_lines(file.read(_MOST_BYTES).decode(errors="replace")))]
    except OSError:
        return []


def _leave_out_best(lines: Iterable[str]) -> list[str]:
    """Return the lines without the figures that they call the best: these are not the last, nor is their epoch."""
    return [_RX.best.sub("", line) if "best" in line.lower() else line for line in lines]


def _compile_said(name: str) -> re.Pattern[str] | None:
    words = [re.escape(word) for word in _WORDS.findall(name[:_LONGEST_NAME])]
    said = _BETWEEN_WORDS.join(words)
    return re.compile(_AS_SAID % (said, said)) if words else None


def read_as_said(run: Run, rundir: RunDir, name: str) -> LogMetrics:
    """Return the metrics of a log, where it has none of this name also the numbers behind it, none with a step.

    These are read from the end of the newest attempt's log. A setting is none of them, nor is what stands behind a word
    that counts: `Epoch 24 of 24: best in epoch 22`.
    """
    log, as_said = read_log_metrics(run, rundir), _compile_said(name)
    if as_said is None or log.select(name) or match_tags(name, log.counts):
        return log
    for path in (rundir.log(run.attempt), *find_redirected(run, rundir, run.attempt)):
        lines = _read_end(path)
        if said := _find_said(as_said, _leave_out_best(lines)) or _find_said(as_said, lines):
            parts, wholes = [one.part for one in said], {one.whole for one in said}
            # `fold 1/4`, `fold 2/4`: how far it is; `solved 7/10` is a share.
            rises = {after - before for before, after in pairwise(parts)}
            counts = parts[0] <= 1 and len(wholes) == 1 and 0 not in wholes and rises <= {0, 1}
            if counts and 1 not in rises and not run.ended:
                continue
            values = parts if counts and 1 in rises else [one.value for one in said]
            return replace(log, printed={name: [(None, value) for value in values], **log.printed})
    return log


class _Said(NamedTuple):
    """A number behind a name. ``7/10`` and ``7 of 10`` have a share, a part and a whole; else the whole is 0."""

    value: float
    part: float
    whole: int


def _find_said(as_said: re.Pattern[str], lines: Iterable[str]) -> list[_Said]:
    said = []
    for found in (found.groupdict() for line in lines if not is_quoted(line) for found in as_said.finditer(line)):
        part, whole = found["part"] or found["some"], int(found["whole"] or found["all"] or 0)
        number = float((part or found["value"]).replace(",", ""))
        said.append(_Said(number / whole if whole else number, number, whole))
    return said


def find_redirected(run: Run, rundir: RunDir, attempt: int) -> list[Path]:
    """Return the files that hold output of an attempt, by its command, and that no one else has written since."""
    targets = {Path(target).name for target in list_redirected(run.command, run.spec.cwd)}
    record = read_outputs(rundir.outputs(attempt)) if targets else None
    found = []
    for file in record.files if record else ():
        if Path(file.path).name in targets and not (file.unsure or file.listed or file.append):
            with contextlib.suppress(OSError):
                status = Path(file.path).stat()
                is_left = (status.st_size, status.st_mtime_ns) == (file.size, file.changed_ns)
                if status.st_ino == file.inode and (is_left or (file.open and not run.ended)):
                    found.append(Path(file.path))
    return found


def count_alike(step_of_file: int, step: int) -> bool:
    """Return whether a step of a run's files counts what its output counts, which may be a little behind."""
    return step_of_file <= step * _SAME_COUNTER + _AHEAD


def open_tracker(first_step_pattern: str | None) -> tuple[ProgressTracker, TimedSearch | None]:
    """Return a tracker of a log's steps, and its search for the user's pattern, whose time is limited."""
    if not first_step_pattern:
        return ProgressTracker(), None
    search = TimedSearch(first_step_pattern, _PATTERN_S)
    return ProgressTracker(first_step_pattern, search.search), search


def _read_log(log: Path, first_step_pattern: str | None, *, is_whole: bool) -> LogMetrics:
    """Return the metrics of a log; ``is_whole``: nothing is written to it any more."""
    if first_step_pattern:  # its search has a limit for all lines
        return _LogReader(log, first_step_pattern).read(is_whole=True)
    return _open_reader(log).read(is_whole=is_whole)


class _LogReader:
    """Reads the metrics of a growing log: each line once, of a log that is large at first its beginning and end."""

    def __init__(self, log: Path, first_step_pattern: str | None = None) -> None:
        self._log, self._pattern = log, first_step_pattern
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._progress, self._search = open_tracker(self._pattern)
        self._baseline = _BaselineReader()
        self._points: dict[str, LogPoints] = {}
        self._printed: dict[str, LogPoints] = {}
        self._counts: dict[str, LogPoints] = {}
        self._percents: set[str] = set()
        self._rows: list[tuple[str, list[MetricLine], bool]] = []  # of an open table
        self._below: list[str] = []  # lines below the heading of the first step
        self._offset, self._is_cut, self._rest, self._seen = 0, False, b"", b""

    def read(self, *, is_whole: bool) -> LogMetrics:
        with self._lock, open_regular(self._log) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, self._offset - len(self._seen)))
            if file.read(len(self._seen)) != self._seen:  # it was cut off, or is another file
                self._begin()
            if size - self._offset > 2 * _MOST_BYTES:
                self._is_cut = True
                file.seek(self._offset)
                self._take((self._rest + file.read(_MOST_BYTES)).rpartition(b"\n")[0])
                file.seek(size - _MOST_BYTES)
                data = file.read(_MOST_BYTES).partition(b"\n")[2]
            else:
                file.seek(self._offset)
                data = self._rest + file.read(size - self._offset)
            file.seek(max(0, size - _MARK_BYTES))
            self._offset, self._seen = size, file.read(min(size, _MARK_BYTES))
            end = len(data) if is_whole else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            self._take(data[:end])
            self._rest = data[end:]
            return self._describe()

    def _take(self, data: bytes) -> None:
        for line in map(replace_leaders, split_lines(data.decode(errors="replace"))):
            readings = self._progress.read_lines([line])
            is_row_of_names = self._progress.is_row_of_names
            if self._rows and not is_row_of_names:
                self._take_rows()
            step = readings[-1].at if readings else self._progress.step_between
            if not self._progress.first_step_seen:
                self._baseline.read(line)
            if is_row_of_names:
                self._rows.append((line, readings, self._progress.first_step_seen))
            elif self._progress.first_step_seen or step == 0:
                for former in self._below:
                    self._take_line(former, (), step)
                self._take_line(line, readings, step)
            is_early = self._progress.is_below_heading and not self._progress.first_step_seen
            self._below = [*self._below[-_UNPROVEN:], line] if is_early else []

    def _take_rows(self) -> None:
        """Take the numbers of a table at its own step, which may stand below them."""
        rows, self._rows = self._rows, []
        for row, readings, is_after_first in rows:
            if is_after_first or self._progress.table_step is not None:
                self._take_line(row, readings, self._progress.table_step)

    def _take_line(self, line: str, readings: Sequence[MetricLine], step: int | None) -> None:
        if self._progress.is_between_jobs:
            return  # settings of the next one
        for reading in readings:
            is_bar = reading.step is not None and find_bar(line) is not None  # it draws the last evaluation again
            at = step if reading is readings[-1] else reading.at  # the last is of this line
            _add(self._points, at, (pair for pair in reading.metrics.items() if not is_bar or self._is_new(*pair)))
        if not is_quoted(line):
            named = _find_own_names(line)
            if readings and readings[-1].step is not None:  # where a line counts, a space may stand before a number
                named = {**{n: value for n, value in _find_spaced(line).items() if not names_count(n)}, **named}
            _add(self._printed, step, named.items())
            _add(self._counts, None, self._find_counts(line))
            if "%" in line and len(self._percents) < _MOST_NAMES:
                self._percents.update(found["name"] for found in _RX.per_cent.finditer(line))

    def _find_counts(self, line: str) -> Iterator[tuple[str, float]]:
        """Yield what ``line`` counts, by its own words or by the column of its table."""
        if (row := self._progress.count_of_row) is not None:
            yield row[0], float(row[1])
        for name, value, _ in find_named_values(_leave_out_best([line])[0]):
            word = name.text.rpartition(" ")[2]
            if name.bits & COUNTS and (word == name.text or rank_step(name.text) is not None):
                yield word, value

    def _is_new(self, name: str, value: float) -> bool:
        measure, before = classify_name(name), self._points.get(name)
        return measure is None or not measure.bits & HELD_OUT or before is None or before[-1][1] != value

    def _describe(self) -> LogMetrics:
        if not self._progress.first_step_seen:  # a run without a step has no metrics
            return LogMetrics({}, tuple(self._notes()))
        printed = {name: list(pairs) for name, pairs in self._printed.items()}
        own = {name.lower(): pairs for name, pairs in printed.items() if pairs[1:] == self._points.get(name.lower())}
        points = {name: list(own.get(name, pairs)) for name, pairs in self._points.items()}  # or the first one, too
        for name, value in reversed(self._baseline.values):
            if (name in points or len(points) < _MOST_NAMES) and (0, value) not in points.get(name, [])[:1]:
                points.setdefault(name, []).insert(0, (0, value))
        source = self._log if points or printed else None
        progress = self._progress
        counts = {name: list(pairs) for name, pairs in self._counts.items()}
        now = progress.step, dict(progress.metrics)
        return LogMetrics(points, tuple(self._notes()), source, printed, *now, counts, frozenset(self._percents))

    def _notes(self) -> list[str]:
        return [_CUT] * self._is_cut + [_SLOW_PATTERN] * (self._search is not None and self._search.is_over)


_open_reader = functools.lru_cache(_MOST_READERS)(_LogReader)


def _add(points: dict[str, LogPoints], step: int | None, values: Iterable[tuple[str, float]]) -> None:
    """Add the values at a step, each in the place of the same value whose step was not known yet."""
    for name, value in values:
        if name in points or len(points) < _MOST_NAMES:
            found = points.setdefault(name, [])
            newest = found[-_UNPROVEN:]
            at = newest.index((None, value)) - len(newest) if step is not None and (None, value) in newest else None
            if at is not None:
                found[at] = step, value
            elif step is None or found[-1:] != [(step, value)]:  # the last line may be printed again
                found.append((step, value))


def _find_own_names(line: str) -> dict[str, float]:
    """Return the numbers of ``line`` by its own names, the first of each; neither its settings nor a model's size."""
    line = _RX.prefix.sub("", line, count=1)
    cells = [cell.strip() for cell in _CELLS.split(line) if cell.strip()] if is_row(line) else []
    line = ": ".join(cells) if len(cells) == 2 else line  # noqa: PLR2004 - a name and its number
    named: dict[str, float] = {}
    for found in _RX.own_name.finditer(_RX.parameters.split(line, 1)[0]):
        name = found["name"].strip("'\" ").rpartition(" with ")[2]
        if not _RX.no_metric.search(name):
            with contextlib.suppress(ValueError):
                named.setdefault(name, float(found["value"].replace(",", "")))
    for found in _RX.list.finditer(line) if "[" in line else ():
        items = [_RX.item.fullmatch(item) for item in found["items"].split(",")]
        name = found["name"].strip()
        if len(items) > 1 and all(items) and not name[-1].isdecimal():  # `return 28.2 [-0.6, 57.1]`: its bounds
            named.update((f"{name}[{n}]", float(item[1])) for n, item in enumerate(items) if item)
    if (whole := _RX.whole.match(line)) is not None:
        named[" ".join(whole[1].split())] = float(whole[2])
    return named


def _find_spaced(line: str) -> dict[str, float]:
    return {each["name"]: float(each["value"]) for each in _RX.spaced_value.finditer(line)}


class _BaselineReader:
    """Collects the scores of an evaluation: of a line that names it, and of the table below such a line."""

    def __init__(self) -> None:
        self.values: list[tuple[str, float]] = []
        self._lines_left = 0

    def read(self, line: str) -> None:
        is_row = any(sign in line for sign in _TABLE_SIGNS)
        if _RX.evaluation.search(line):
            self._lines_left = _LINES_AFTER_TITLE
            if not (is_row or any(sign in line for sign in ("{", "=", " - ", " loss "))):
                return
        elif is_row and self._lines_left:
            self._lines_left = _LINES_AFTER_TITLE
        else:
            self._lines_left = max(0, self._lines_left - 1)
            return
        for name, value, _ in find_named_values(line):
            if name.bits & (REWARD | QUALITY | HELD_OUT | LOSS) and len(self.values) < _MOST_NAMES:
                self.values.append((name.text, value))


def read_log_lines(log: Path) -> tuple[Iterator[str], bool]:
    """Return the lines of a log, of a large one those of both ends, and whether its middle was left out."""
    with open_regular(log) as file:
        size = os.fstat(file.fileno()).st_size
        cut = size > 2 * _MOST_BYTES
        parts = [file.read(_MOST_BYTES if cut else size)]
        if cut:
            file.seek(size - _MOST_BYTES)
            parts = [parts[0].rpartition(b"\n")[0], file.read(_MOST_BYTES).partition(b"\n")[2]]
    return (line for part in parts for line in split_lines(part.decode(errors="replace"))), cut


def read_printed(run: Run, store: RunStore, names: Sequence[str] = ()) -> tuple[ScalarTarget, ScalarReading] | None:
    """Return the printed metrics of a run, without wall times, as a reading whose notes name the log, or None.

    ``names``: what somebody asks for, which may be the program's own.
    """
    store.fetch_log(run)
    printed = read_log_metrics(run, store.run_directory(run.run_id))
    if printed.log is None:
        return None
    notes = [
        "Numbers that the run printed, read from its log: no event file or table is known to be its own. "
        "compare_runs shows their last and best beside other runs."
    ]
    if run.attempt > 1:
        notes.append("They are of one attempt, the newest with a step: read_log has those of the others.")
    notes += printed.notes
    if others := list(printed.own_series)[:_MOST_OTHERS]:
        notes.append(f"By the program's own names also: {', '.join(others)}.")
    own = {name: points for pattern in names for name, points in printed.select(pattern).items()}
    reading = ScalarReading(run.run_id, _build_series({**own, **printed.points}), tuple(notes))
    return ScalarTarget(str(printed.log), [printed.log], run.run_id), reading


def _build_series(points: Mapping[str, LogPoints]) -> dict[str, Series]:
    series = {}
    for name, pairs in points.items():
        steps, last = [], 0
        for number, (step, _) in enumerate(pairs):
            last = step if step is not None else last if any(one is not None for one, _ in pairs) else number
            steps.append(last)
        values = np.array([value for _, value in pairs], np.float64)
        series[name] = merge_files([FilePoints(np.array(steps, np.int64), np.full(len(pairs), math.nan), values)])
    return series
