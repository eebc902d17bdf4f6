"""Builds series from rows of named values, as tables, JSON lines and databases hold them. Pure.

The step column and the time column are recognised by their names.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcp_server.record.scalar_files import (
    TIME_KEYS,
    is_epoch,
    is_split,
    name_in_split,
    parse_number,
    plain_name,
    rank_step,
)
from mcp_server.scalars.series import MOST_TAGS, FilePoints, Series, merge_files

_LARGEST_STEP = 2.0**62
# The unit of a number in a time column, by its size; seconds since a start are not a time of day.
_EPOCH_UNITS = ((1e8, 1e11, 1.0), (1e11, 1e14, 1e3), (1e14, 1e17, 1e6), (1e17, 1e20, 1e9))


class NumberColumn(NamedTuple):
    """The numbers of one column in a block of rows: the rows that have one, and the numbers, both of shape (n,)."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]


class WrongStepColumn(Exception):
    """The step column used so far is wrong: the file must be read again from its start."""


def parse_time(text: Any) -> float | None:
    """Return the POSIX seconds of an ISO 8601 text, local time where it names no zone, or None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        return None


def collect_columns(records: Iterable[Iterable[tuple[str, Any]]]) -> tuple[int, dict[str, NumberColumn]]:
    """Return the number of records, and their numbers by column, those of each split of the data apart."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    values: defaultdict[str, list[float]] = defaultdict(list)
    count = 0
    for row, record in enumerate(records):
        count, scope = row + 1, ""
        for tag, value in record:
            if isinstance(value, str) and is_split(tag):
                scope = f"{value}/"
                continue
            number = value if type(value) is float else parse_number(value)
            if number is None and tag.lower() in TIME_KEYS:
                number = parse_time(value)
            if number is not None:
                tag = name_in_split(tag, scope) if scope else tag  # noqa: PLW2901
                rows[tag].append(row)
                values[tag].append(number)
    return count, {tag: NumberColumn(np.array(rows[tag], np.int64), np.array(values[tag], np.float64)) for tag in rows}


def _posix(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times in POSIX seconds from s, ms, µs or ns, and nan where a number is not a time of day."""
    seconds = np.full(values.shape, np.nan)
    for low, high, per_s in _EPOCH_UNITS:
        inside = (values >= low) & (values < high)
        seconds[inside] = values[inside] / per_s
    return seconds


class Rows:
    """The rows of one run so far, in the order logged.

    ``step_key`` names the step column. Without it, the step is the best column by its name that is suitable, or else
    the row number. A row without a step has that of a column of the same name in another scope, or of the row before.
    """

    def __init__(self, step_key: str | None = None) -> None:
        self._fixed = step_key
        self._unfit: set[str] = set()
        self._preferred: str | None = None
        self.clear()

    def clear(self) -> None:
        """Drop the rows so that the file can be read again. Its step column stays known."""
        self.count = 0
        self.dropped = False
        self._key = self._fixed or self._preferred
        self._last_step = self._last_epoch = math.nan
        self._numbered = 0
        self._seen: Counter[str] = Counter()
        self._repeats: Counter[str] = Counter()
        self._points: dict[str, list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]] = {}
        self._beginnings: list[dict[str, int]] = []  # per writer after the first: the points before it by tag

    def forget_step_column(self) -> None:
        """Start with another file, of whose columns nothing is known."""
        self._unfit.clear()
        self._preferred = None
        self.clear()

    def begin_again(self) -> None:
        """Note that another writer begins here: rows without a step are numbered from 0."""
        self._beginnings.append({tag: sum(len(part[0]) for part in parts) for tag, parts in self._points.items()})
        self._numbered = 0
        self._last_step = self._last_epoch = math.nan

    def add(self, count: int, columns: Mapping[str, NumberColumn]) -> None:
        """Add ``count`` more rows. After WrongStepColumn, clear() and add all of them again."""
        steps, key = self._steps(count, columns)
        time_tag, walls = _walls(count, columns)
        for tag, column in columns.items():
            if tag in (time_tag, key):
                continue
            if tag not in self._points and len(self._points) >= MOST_TAGS:
                self.dropped = True
                continue
            self._points.setdefault(tag, []).append((steps[column.rows], walls[column.rows], column.values))
            if self._key is not None and not self._fixed and is_epoch(self._key):
                self._check_epochs(tag)
        self.count += count
        self._numbered += count

    def add_whole(self, count: int, columns: Mapping[str, NumberColumn]) -> None:
        """Add all rows at once."""
        while True:
            try:
                return self.add(count, columns)
            except WrongStepColumn:
                self.clear()

    def series(self) -> dict[str, Series]:
        """Return the series of the rows by tag."""
        series = {}
        for tag, parts in self._points.items():
            steps, walls, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            for array in (steps, walls, values):
                array.flags.writeable = False
            self._points[tag] = [(steps, walls, values)]
            if rank_step(tag) is not None:  # a counter, which several rows of one step repeat
                changes = np.append(True, (np.diff(steps) != 0) | (np.diff(values) != 0))
                steps, walls, values = steps[changes], walls[changes], values[changes]
            begins = [before.get(tag, 0) for before in self._beginnings]
            starts = [(at, int(steps[at])) for at in begins if at < len(steps)]
            series[tag] = merge_files([FilePoints(steps, walls, values, starts, is_table=True)])
        return series

    @property
    def nbytes(self) -> int:
        """Memory that the points take."""
        return sum(array.nbytes for parts in self._points.values() for part in parts for array in part)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for a reader of the series."""
        notes = []
        if self._points and self._key is None:
            unfit = ", ".join(repr(key) for key in sorted(self._unfit))
            why = f": {unfit} cannot be one (rare, fractions, repeats, or restarts in each epoch)" if unfit else ""
            notes.append(f"Steps are row numbers{why}.")
        if self.dropped:
            notes.append(f"Only the first {MOST_TAGS:,} tags were kept.")
        return tuple(notes)

    def _steps(self, count: int, columns: Mapping[str, NumberColumn]) -> tuple[NDArray[np.int64], str | None]:
        names = {tag.strip().lower(): tag for tag in columns}
        if not self._fixed:
            self._choose_step_column(count, columns, names)
        numbered = np.arange(self._numbered, self._numbered + count, dtype=np.int64)
        if self._key is None:
            return numbered, None
        tag = names.get(self._key)
        steps = _dense(count, columns.get(tag) if tag else None)
        steps[~(np.abs(steps) < _LARGEST_STEP)] = np.nan
        if not self._fixed:
            epochs = next((columns[names[name]] for name in names if is_epoch(name) and name != self._key), None)
            self._check_steps(steps, _dense(count, epochs))
            self._fill_steps(steps, columns, names)
        steps = _carry_forward(steps, self._last_step)
        if np.isnan(steps).any():  # rows before the first step
            present = steps[~np.isnan(steps)]
            steps[np.isnan(steps)] = present[0] if len(present) else 0
        if count:
            self._last_step = float(steps[-1])
        return steps.astype(np.int64), tag

    def _choose_step_column(self, count: int, columns: Mapping[str, NumberColumn], names: Mapping[str, str]) -> None:
        """Choose the best step column that a tenth of the rows so far have."""
        ranks = {key: rank for key in names if (rank := rank_step(key)) is not None}
        self._seen.update({key: len(columns[names[key]].rows) for key in ranks})
        current, enough = self._key, (self.count + count) / 10
        if current and self._seen[current] < enough:
            self._reject_step_column()
        frequent = [key for key, seen in self._seen.items() if key not in self._unfit and seen and seen >= enough]
        best = min(frequent, key=lambda key: rank_step(key) or 0, default=None)
        if best != current:
            self._preferred = self._key = best
            if self.count:
                raise WrongStepColumn

    def _fill_steps(
        self, steps: NDArray[np.float64], columns: Mapping[str, NumberColumn], names: Mapping[str, str]
    ) -> None:
        """Give rows without a step that of a column of the same name in another scope: `eval/step` for `step`."""
        last = (self._key or "").rpartition("/")[2]
        for name, tag in names.items():
            if name != self._key and name.endswith((f"/{last}", f"_{last}")) and rank_step(name) is not None:
                other = _dense(len(steps), columns[tag])
                steps[:] = np.where(np.isnan(steps), other, steps)

    def _check_steps(self, steps: NDArray[np.float64], epochs: NDArray[np.float64]) -> None:
        """Raise WrongStepColumn where the steps have fractions, as epochs may, or restart with each epoch."""
        present = steps[~np.isnan(steps)]
        both = ~np.isnan(steps) & np.isfinite(epochs)
        falls = np.diff(steps[both], prepend=self._last_step) < 0
        rises = np.diff(epochs[both], prepend=self._last_epoch) > 0
        if both.any():
            self._last_epoch = float(epochs[both][-1])
        if (present != np.rint(present)).any() or (falls & rises).any():
            self._reject_step_column()

    def _check_epochs(self, tag: str) -> None:
        """Raise WrongStepColumn where most points of a tag repeat the epoch before: they are logged per batch."""
        parts = self._points[tag]
        before = parts[-2][0][-1:] if len(parts) > 1 else parts[-1][0][:0]
        self._repeats[tag] += int((np.diff(np.concatenate([before, parts[-1][0]])) == 0).sum())
        if self._repeats[tag] * 2 > sum(len(steps) for steps, _, _ in parts):
            self._reject_step_column()

    def _reject_step_column(self) -> None:
        if self._key is not None:
            self._unfit.add(self._key)
        self._preferred = None
        raise WrongStepColumn


def _dense(count: int, column: NumberColumn | None) -> NDArray[np.float64]:
    whole = np.full(count, np.nan)
    if column is not None:
        whole[column.rows] = column.values
    return whole


def _carry_forward(values: NDArray[np.float64], last: float) -> NDArray[np.float64]:
    """Return the values with each missing one replaced by the value before it."""
    whole = np.concatenate([[last], values])
    at = np.where(np.isnan(whole), 0, np.arange(len(whole)))
    carried: NDArray[np.float64] = whole[np.maximum.accumulate(at)][1:]
    return carried


def _walls(count: int, columns: Mapping[str, NumberColumn]) -> tuple[str | None, NDArray[np.float64]]:
    """Return the column with times of day, if there is one, and the time of each row in POSIX seconds."""
    names = {plain_name(tag): tag for tag in columns}
    for key in TIME_KEYS:
        if key in names:
            column = columns[names[key]]
            seconds = _posix(column.values)
            if not np.isnan(seconds).all():
                return names[key], _dense(count, NumberColumn(column.rows, seconds))
    return None, np.full(count, np.nan)
