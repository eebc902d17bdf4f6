"""Reads tables that a run prints: of names and numbers, of columns, of Ray Tune's trials. Pure."""

from __future__ import annotations

import functools
import operator
import re
from collections import deque

from mcp_server.diagnosis.progress.counted_lines import Row, counts_by_rise
from mcp_server.diagnosis.progress.custom_loops import read_counted
from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    HELD_OUT,
    LOSS,
    MAX_COUNT,
    QUALITY,
    STEP,
    NamedValue,
    ValueName,
    classify_name,
    names_count,
    parse_integer,
)
from mcp_server.diagnosis.progress.step_counters import StepReading
from mcp_server.record.scalar_files import FEWEST_COUNTED, find_counter
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "tables")

_SIGNS = ("|", "│", "┃")
_HEADER_LINES = 3  # above a row of numbers, rules not counted
_MAX_COLUMN_CHARS = 40
_TRIAL_KEY = "rllib"  # of the counter: other lines of Ray Tune count the same iterations
_TRIAL_BORDERS = ("|", "│", "+", "├", "╰", "╭")
_MAX_TRIALS = 1_000


def is_row(line: str) -> bool:
    """Whether ``line`` is a row of a drawn table."""
    return line.startswith(_SIGNS) or (line.startswith(" ") and line.lstrip().startswith(_SIGNS))


class DrawnTable:
    """A table of names and numbers while it is open. Its numbers are of one step, which any of its rows may name.

    ``step``: as its rows have named it so far. ``count_row``: a row with a count that no row above has metrics for.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.count_row = ""
        self._values: list[NamedValue] = []
        self._section = ""

    def read_row(self, line: str, values: list[NamedValue], *, is_counted: bool) -> list[NamedValue]:
        """Take the values of a row, and return them with names that say so below a heading of held-out data."""
        if not values:
            cells = [cell.strip() for cell in _RX.cells.split(line) if cell.strip()]
            self._section = cells[0] if len(cells) == 1 and cells[0].endswith("/") else self._section
        elif self._section:
            named = [(classify_name(self._section + name.text), value, of) for name, value, of in values]
            values = [
                (one if one is not None and one.bits & HELD_OUT else name, value, of)
                for (one, value, of), (name, _, _) in zip(named, values)
            ]
        self._values += values
        if not is_counted and any(name.bits & COUNTS for name, _, _ in values):
            self.count_row = line
        return values

    def close(self) -> StepReading | None:
        """Return the count of a table that names it below its metrics, unless another row was one of a known format."""
        bits = functools.reduce(operator.or_, (name.bits for name, _, _ in self._values), 0)
        return read_counted(self._values, bits) if bits & ~COUNTS and bits & COUNTS and self.step is None else None

    @property
    def has_metrics(self) -> bool:
        """Whether a row has a metric."""
        return any(not name.bits & COUNTS for name, _, _ in self._values)


class ColumnTables:
    """Tables of columns below a header of names: a row of numbers below it is a step, if one of them counts.

    A column counts by its name, or as in files: it rises by 1 in each row. ``restarts``: how many headers came again
    with a count that began anew, as each training of fastai prints one. ``earlier``: lines that prove to be rows now.
    ``is_row``: whether the last line had a number for each column. ``count``: the column that counts, and its number in
    that line.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self.is_row = False
        self.count: tuple[str, int] | None = None
        self.earlier: list[tuple[str, Row]] = []
        self._above: deque[str] = deque(maxlen=_HEADER_LINES)
        self._columns: list[str] = []
        self._counter: int | None = None
        self._rows: list[tuple[str, list[str]]] = []  # that no column counts yet
        self._last = -1, -1  # epoch and position
        self._is_again = False  # the header above the row is the one of the rows before

    def read_line(self, line: str) -> Row | None:
        """Return the count and the metrics of a row, without a step 0; None for any other line."""
        self.earlier, self.count, self.is_row = [], None, False
        row = _read_numbers(line, len(self._columns)) if _RX.row.match(line) else None
        if row is None:
            if not _RX.rule.match(line):
                self._above.append(line)
            return None
        if self._above and (header := self._find_header(len(row))):
            self._open(header, row)
        self._above.clear()
        self.is_row = len(row) == len(self._columns)
        if not self.is_row:
            return None
        if self._counter is None:
            self._rows = [*self._rows[1 - FEWEST_COUNTED :], (line, row)]
            self._counter = self._find_counter()
            if self._counter is not None:
                read = [(former, self._read_row(cells)) for former, cells in self._rows[:-1]]
                self.earlier = [(former, found) for former, found in read if found is not None]
        return self._read_row(row)

    def _find_counter(self) -> int | None:
        rows = [[cell.replace(",", "") for cell in row] for _, row in self._rows]
        known = [n for n, cells in enumerate(zip(*rows)) if all(map(_RX.figure.fullmatch, cells))]
        names = [self._columns[n] for n in known]
        name = find_counter(names, [[cells[n] for n in known] for cells in rows])
        return known[names.index(name)] if name else None

    def _open(self, columns: list[str], row: list[str]) -> None:
        """Begin the table of these columns, or go on with it where its header is printed again."""
        self._is_again = columns == self._columns
        if not self._is_again:
            self._columns, self._rows, self._last = columns, [], (-1, -1)
            names = ((n, column.lower()) for n, column in enumerate(columns) if _RX.count.fullmatch(row[n]))
            self._counter = next((n for n, one in names if names_count(one) or (one[1:] and counts_by_rise(one))), None)

    def _find_header(self, cells: int) -> list[str]:
        """Return the names of so many columns in the nearest line above that has them, empty without one."""
        for line in reversed(self._above):
            for split in (_split_cells, str.split):
                names = split(line.lstrip(" #"))
                if len(names) == cells and all(_is_column(name) for name in names) and len(set(names)) == cells:
                    return names
        return []

    def _read_row(self, row: list[str]) -> Row | None:
        if self._counter is None or (match := _RX.count.fullmatch(row[self._counter])) is None:
            return None
        counter = self._columns[self._counter].lower()
        values = [
            (classify_name(counter) or ValueName(counter, STEP, None), float(parse_integer(match[1])), match[2] or "")
        ]
        for n, (column, cell) in enumerate(zip(self._columns, row)):
            parts = cell[1:-1].split(",") if cell[0] == "[" else [cell]
            names = [column] if len(parts) == 1 else [f"{column}[{part}]" for part in range(len(parts))]
            figures = [(name, part.strip()) for name, part in zip(names, parts) if n != self._counter]
            values += [
                (
                    classify_name(name) or ValueName(name.lower(), QUALITY, None),
                    float(one.rstrip("%").replace(",", "")),
                    "",
                )
                for name, one in figures
                if _RX.figure.fullmatch(one)
            ]
        if not any(not measured.bits & COUNTS for measured, _, _ in values):
            return None
        self.count = counter, parse_integer(match[1])
        reading = read_counted(values, LOSS)
        if reading is None:
            return None, values
        position = reading.epoch or 0, reading.step or reading.n or 0
        self.restarts += self._is_again and position <= self._last
        self._last, self._is_again = position, False
        return None if reading.step == 0 else reading, [one for one in values if not one[0].bits & COUNTS]


def _split_cells(line: str) -> list[str]:
    """Return the cells of a line: between signs or tabs where it has them, else between two blanks."""
    if (sign := next((sign for sign in (*_SIGNS, "\t") if sign in line), None)) is not None:
        return [cell.strip() for cell in line.strip(f" {sign}\r\n").split(sign)]
    return re.split(r"\s{2,}", line.strip())


def _read_numbers(line: str, columns: int) -> list[str] | None:
    """Return the cells of a line that holds numbers, durations and gaps alone, at least two of them.

    A row of a drawn table of so many ``columns`` may have some words.
    """
    cells = _split_cells(line)
    may_have_words = len(cells) == columns and any(sign in line for sign in _SIGNS)
    cells = cells if len(cells) > 1 else line.split()
    figures = sum(_RX.cell.fullmatch(cell) is not None for cell in cells)
    is_row = figures == len(cells) or (may_have_words and 2 * figures > len(cells))
    return cells if len(cells) > 1 and is_row else None


def _is_column(name: str) -> bool:
    return 0 < len(name) <= _MAX_COLUMN_CHARS and _RX.cell.fullmatch(name) is None and name[-1] not in ":,.;"


class TrialTables:
    """Ray Tune's status tables, printed again every few seconds: a row counts where its trial has gone on since."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._steps: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether a header has begun a table."""
        return bool(self._columns)

    def read_line(self, line: str) -> tuple[StepReading, list[NamedValue]] | None:
        """Return the iteration and the metrics of a trial that has gone on, or None for any other line."""
        if "Trial name" in line and _RX.trial_header.match(line):
            self._columns = _read_trial_cells(line)
            return None
        if not self._columns:
            return None
        if not line.lstrip().startswith(_TRIAL_BORDERS):
            self._columns = []
            return None
        cells = _read_trial_cells(line)
        if len(cells) != len(self._columns) or cells[1] != "RUNNING":
            return None
        row = dict(zip(self._columns, cells))
        if not row["iter"].isdecimal():
            return None
        trial, step = cells[0], min(int(row["iter"][:12]), MAX_COUNT)
        if step <= self._steps.get(trial, 0) or (trial not in self._steps and len(self._steps) >= _MAX_TRIALS):
            return None
        self._steps[trial] = step
        # The losses of several trials are not one curve.
        named = [(classify_name(column), cell) for column, cell in row.items() if _RX.number.fullmatch(cell)]
        values = [(name, float(cell), "") for name, cell in named if name is not None and len(self._steps) == 1]
        return StepReading(CounterRank.FRAMEWORK, _TRIAL_KEY, step), values


def _read_trial_cells(line: str) -> list[str]:
    return _RX.between_trial_cells.split(line.strip(" \t|│"))
