"""Reads tables that a run prints: of names and numbers, of columns, of Ray Tune's trials. Pure."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable

from mcp_server.diagnosis.progress.custom_loops import read_counted
from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    HELD_OUT,
    MAX_COUNT,
    NamedValue,
    classify_name,
)
from mcp_server.diagnosis.progress.step_counters import StepReading
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "tables")

_SIGNS = ("|", "│", "┃")
_CELLS = compile_lazily(r"[|│┃]")
_NUMBER = compile_lazily(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf")
_TRIAL_KEY = "rllib"  # of the counter: other lines of Ray Tune count the same iterations
_TRIAL_BORDERS = ("|", "│", "+", "├", "╰", "╭")
_BETWEEN_TRIAL_CELLS = compile_lazily(r"\s*[|│]\s*|\s{2,}")
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
            cells = [cell.strip() for cell in _CELLS.split(line) if cell.strip()]
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


def read_cells(line: str) -> list[str]:
    """Return the cells of a table of columns that blanks separate."""
    return re.split(r"\s{2,}", line.strip())


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
        values = [] if len(self._steps) > 1 else read_row(row.items())
        return StepReading(CounterRank.FRAMEWORK, _TRIAL_KEY, step), values


def _read_trial_cells(line: str) -> list[str]:
    return _BETWEEN_TRIAL_CELLS.split(line.strip(" \t|│"))


def read_row(cells: Iterable[tuple[str, str]]) -> list[NamedValue]:
    """Return the named numbers of a row, given as pairs of column and cell."""
    named = ((classify_name(column), cell) for column, cell in cells if _NUMBER.fullmatch(cell))
    return [(name, float(cell), "") for name, cell in named if name is not None]
