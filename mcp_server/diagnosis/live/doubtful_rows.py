"""Rows of files that another run may have written too: those whose numbers the run prints as well are its own. Pure.

A line of output shows a row where it has its step and two of its values, or the only one, as rounded there. Three rows
so shown prove a file, unless the output shows other values at most of its steps. A row whose step was not printed
counts once later ones are shown, and none was shown otherwise.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.record.curves.tails import CurveRow

_NUMBER = re.compile(r"(?<![\w.])(?<!\d:)(?<!/)(?<!of )(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?(?!\w|:\d)")
_MOST_LINES, _MOST_ROWS, _MOST_STEPS, _MOST_FILES, _MOST_AGAIN = 200, 500, 2_000, 20, 20
_ENOUGH, _MOST_OTHERS = 3, 2  # rows that prove; unlike rows for each that is alike
_TELLING_DIGITS = 3
_DIGITS_OF_A_ROW = 5e-5  # a row may be rounded too


@dataclass
class _File:
    other: str
    rows: deque[CurveRow] = field(default_factory=lambda: deque(maxlen=_MOST_ROWS))  # not shown so far
    alike: int = 0
    unlike: set[tuple[int, tuple[float, ...]]] = field(default_factory=set)  # whose steps the output shows otherwise

    @property
    def is_proven(self) -> bool:
        return self.alike >= _ENOUGH and len(self.unlike) <= _MOST_OTHERS * self.alike


class DoubtfulRows:
    """Give it all lines and the doubtful rows; ``take`` returns the rows that have proved to be the run's."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)  # not searched while there is no such file
        self._shown: dict[int, list[list[tuple[float, float, bool]]]] = {}  # by step, the other numbers of lines
        self._files: dict[str, _File] = {}

    def read_lines(self, lines: Sequence[str]) -> None:
        """Take lines of output."""
        self._lines.extend(lines)

    def note_rows(self, path: str, rows: Iterable[CurveRow], other: str) -> None:
        """Take new rows of a file that ``other`` may have written too."""
        if path in self._files or len(self._files) < _MOST_FILES:
            file = self._files.setdefault(path, _File(other))
            file.other = other
            file.rows.extend(rows)

    def take(self) -> Mapping[str, list[CurveRow]]:
        """Return by file the rows that are proved to be the run's, in order, once each."""
        if not self._files:
            return {}
        while self._lines:
            self._note_line(self._lines.popleft())
        taken = {path: self._take_of(file) for path, file in self._files.items()}
        return {path: rows for path, rows in taken.items() if rows}

    def describe(self, only: str = "") -> str | None:
        """Return which file was left out, and who else may have written it, None where it is none, or not ``only``."""
        for path, file in self._files.items():
            if not file.is_proven and only in ("", path):
                return f"{path}: {file.other} works there too, and whose rows these are is unknown"
        return None

    def _take_of(self, file: _File) -> list[CurveRow]:
        verdicts = [(row, self._is_shown(row)) for row in file.rows]
        file.unlike.update(_key(row) for row, is_shown in verdicts if is_shown is False)
        alike = [row for row, is_shown in verdicts if is_shown]
        file.unlike.difference_update(map(_key, alike))
        if file.alike + len(alike) < _ENOUGH:
            return []
        if not file.is_proven:
            file.alike = len(alike)
            if not file.is_proven:
                return []
        else:
            file.alike += len(alike)
        # Between rows that are shown, those that were not printed are the run's where no other was among them.
        until = max((row.step for row in alike), default=-1) if not file.unlike else -1
        taken = [row for row, is_shown in verdicts if is_shown or row.step <= until]
        # The line of one that is shown otherwise may still come: an earlier one has its number by chance.
        latest = len(verdicts) - _MOST_AGAIN
        left = [(n, row, shown) for n, (row, shown) in enumerate(verdicts) if not shown and row.step > until]
        file.rows = deque((row for n, row, shown in left if shown is None or n >= latest), _MOST_ROWS)
        return taken

    def _note_line(self, line: str) -> None:
        steps, numbers = [], []
        for whole, part, power in (match.groups() for match in _NUMBER.finditer(line)):
            value = float(f"{whole}.{part or 0}e{power or 0}")
            if part is None and power is None:
                steps.append(int(whole[:18]))
            else:
                digits = (whole + (part or "")).lstrip("0")
                numbers.append((value, 0.501 * 10.0 ** (int(power or 0) - len(part or "")), len(digits)))
        for step in steps if numbers else ():
            self._shown.setdefault(step, []).append([(v, t, n >= _TELLING_DIGITS) for v, t, n in numbers])
        while len(self._shown) > _MOST_STEPS:
            del self._shown[next(iter(self._shown))]

    def _is_shown(self, row: CurveRow) -> bool | None:
        """Return whether a line shows the row, None where none shows its step."""
        lines = self._shown.get(row.step)
        values = {abs(value) for value in row.values.values() if math.isfinite(value) and value}
        if not lines or not values:
            return None
        return any(_shows(numbers, values) for numbers in lines)


def _key(row: CurveRow) -> tuple[int, tuple[float, ...]]:
    return row.step, tuple(row.values.values())


def _shows(numbers: Sequence[tuple[float, float, bool]], values: Iterable[float]) -> bool:
    found = []
    for value in values:
        is_near = [tells for n, within, tells in numbers if abs(n - value) <= max(within, _DIGITS_OF_A_ROW * value)]
        if is_near:
            found.append(any(is_near))
    return len(found) >= min(2, len(list(values))) and any(found)
