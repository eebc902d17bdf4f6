"""Reads the status tables of Ray Tune, which show each trial's iteration and are printed again every few seconds. Pure.

A row counts only where its trial has gone on since the table before: the table of a hung trial is not a sign of life.
"""

from __future__ import annotations

from mcp_server.diagnosis.progress.frameworks import Rank
from mcp_server.diagnosis.progress.named_values import MAX_COUNT, NamedValue, classify_name
from mcp_server.diagnosis.progress.step_counters import StepReading
from mcp_server.text.regex import compile_lazily

TRIAL_KEY = "rllib"  # of the counter: other lines of Ray Tune count the same iterations
_HEADER = compile_lazily(r"[\s|│]*Trial name\s+[|│]?\s*status\b.{0,600}?\biter\b")
_BORDERS = ("|", "│", "+", "├", "╰", "╭")
_BETWEEN_CELLS = compile_lazily(r"\s*[|│]\s*|\s{2,}")
_NUMBER = compile_lazily(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf")
_MAX_TRIALS = 1_000


class TrialTables:
    """The tables of one run. ``is_open``: the lines of one are expected."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._steps: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether the last line belonged to a table."""
        return bool(self._columns)

    def read_line(self, line: str) -> tuple[StepReading, list[NamedValue]] | None:
        """Return the iteration and the metrics of a trial that has gone on, or None for any other line."""
        if "Trial name" in line and _HEADER.match(line):
            self._columns = _read_cells(line)
            return None
        if not self._columns:
            return None
        if not line.lstrip().startswith(_BORDERS):
            self._columns = []
            return None
        cells = _read_cells(line)
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
        values = (
            [] if len(self._steps) > 1 else [value for column, cell in row.items() for value in _read(column, cell)]
        )
        return StepReading(Rank.FRAMEWORK, TRIAL_KEY, step), values


def _read_cells(line: str) -> list[str]:
    return _BETWEEN_CELLS.split(line.strip(" \t|│"))


def _read(column: str, cell: str) -> list[NamedValue]:
    name = classify_name(column) if _NUMBER.fullmatch(cell) else None
    return [(name, float(cell), "")] if name is not None else []
