"""Finds the count of lines that no format knows, by its rise: `[200] ROCAUC: 90.2%`, `30: 7.1, 6.9 avg`. Pure.

Lines of one shape differ in their numbers alone. An integer that rises by the same in each of them is a step where
another number is measured beside it, or where its name counts. A list looks alike, but is printed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from mcp_server.diagnosis.progress.custom_loops import NO_DIGITS, reports_no_training
from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    MAX_COUNT,
    NamedValue,
    find_named_values,
    name_own_measure,
    names_count,
    parse_integer,
)
from mcp_server.diagnosis.progress.step_counters import StepReading
from mcp_server.record.scalar_files import is_epoch, measures_time
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "counted_lines")

KEY = "line"  # begins the key of such a counter
_MAX_CHARS, _MAX_FIELDS, _MAX_SHAPES, _MAX_OTHERS = 300, 24, 64, 512
_MAX_SEEN = 32  # lines of a shape without a number that rises
_FEWEST, _LISTED_S, _UNTIMED = 3, 0.7, 8  # lines that prove a count; a list takes less; lines without times
_MOST = 10**9  # seconds since 1970 count no steps
_SHARES = ("progress", "complete", "completed", "done")  # in percent
_BARS = ("%|", "it/s", "s/it", "━")
_BLANKS = compile_lazily(r"\s+")
_LETTERS = compile_lazily(r"[^\W\d_]{2,}")
_WORDS = compile_lazily(
    r"(?<![\w.:])[^\W\d][\w./'-]*(?: [^\W\d_][\w./'-]*){0,2}(?=['\"]?\s{0,3}(?:[:=(\[|#]\s{0,9}){0,2}['\"]?$)"
)

Row = tuple[Optional[StepReading], list[NamedValue]]  # the count and the measures of a line


@dataclass
class _Shape:
    """Lines of one shape. ``names``: of their numbers, in lower case, empty where no word stands before."""

    names: list[str]
    may_count: list[bool]  # which number may count without a name: `[200] auc`, and neither `Read 200` nor `200 files`
    begins: bool  # with its first number, behind a log's prefix
    totals: list[bool]  # which number is the total of the one before
    began_s: float
    rows: list[tuple[str, list[str]]] = field(default_factory=list)  # the last few, with their lines
    seen: int = 0
    counter: int | None = None


class CountedLines:
    """Lines by their shape, until one proves to count. ``earlier``: lines that prove to be of it now."""

    def __init__(self) -> None:
        self.earlier: list[tuple[str, Row]] = []
        self._shapes: dict[str, _Shape] = {}
        self._others: set[str] = set()  # lines without their digits that do not count

    def read_line(self, line: str, at_s: float) -> Row | None:
        """Return step and measures of a line whose shape has proved to count, None for any other.

        ``at_s``: when it was printed, monotonic; 0 where that is not known.
        """
        self.earlier = []
        template = line.translate(NO_DIGITS)
        if template in self._others or template == line:
            return None
        cells = _RX.number.findall(line) if len(line) <= _MAX_CHARS and not any(map(line.count, _BARS)) else []
        text = _BLANKS.sub(" ", _RX.number.sub("\0", template if not cells else line).translate(NO_DIGITS))
        shape = self._shapes.get(text)
        if not 0 < len(cells) <= _MAX_FIELDS or (shape is None and reports_no_training(line)):
            self._leave_out(template)
            return None
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.pop(next(iter(self._shapes)))
            shape = self._shapes[text] = _open(text, at_s)
        shape.rows, shape.seen = [*shape.rows[1 - _UNTIMED :], (line, cells)], shape.seen + 1
        if shape.counter is None:
            rising = _find_rising(shape)
            if not rising and shape.seen > _MAX_SEEN:
                self._leave_out(template)
            shape.counter = _find_counter(shape, rising, at_s)
            if shape.counter is not None:
                former = shape.rows[:-1]
                self.earlier = [(one, _read(one, shape, shape.counter, row, text)) for one, row in former]
        return None if shape.counter is None else _read(line, shape, shape.counter, cells, text)

    def _leave_out(self, template: str) -> None:
        if len(self._others) >= _MAX_OTHERS:
            self._others.clear()
        self._others.add(template)


def _open(text: str, at_s: float) -> _Shape:
    *gaps, end = text.split("\0")
    found = [_WORDS.search(gap) for gap in gaps]
    names = [one[0].lower() if one else "" for one in found]
    totals = [bool(_RX.total.match(gap)) for gap in gaps]
    after = [*gaps[1:], end]
    units = [after[n + 1] if n + 1 < len(gaps) and totals[n + 1] else gap for n, gap in enumerate(after)]
    may_count = [not name and not _RX.things.match(unit) for name, unit in zip(names, units)]
    names = ["time" if _RX.time.match(unit) else name for name, unit in zip(names, units)]
    behind = [match[0].strip() if (match := _RX.unit.match(unit)) else "" for unit in units]
    names = [unit if counts_by_rise(unit) else name for name, unit in zip(names, behind)]
    return _Shape(names, may_count, _RX.head.fullmatch(gaps[0]) is not None, totals, at_s)


def _find_rising(shape: _Shape) -> list[int]:
    """Return which numbers rose in each of the last lines, by the same in the last two; shares in percent by any."""
    rising = []
    for n, cells in enumerate(zip(*(cells for _, cells in shape.rows))):
        is_share = shape.names[n].endswith(_SHARES) and all(cell[-1] == "%" for cell in cells)
        if not is_share and not all(map(_is_count, cells)):
            continue
        strides = [_number(later) - _number(before) for before, later in zip(cells, cells[1:])]
        if strides and min(strides) > 0 and (is_share or len({*strides[-2:]}) == 1):
            rising.append(n)
    return rising


def _find_counter(shape: _Shape, rising: list[int], at_s: float) -> int | None:
    if not rising:
        return None
    columns = [*zip(*(cells for _, cells in shape.rows))]
    named = [n for n, name in enumerate(shape.names) if counts_by_rise(name)]
    if any({*columns[n]} == {"0"} for n in named):
        return None  # `iter 3 step 0`: it counts within a step
    is_measured = any(
        len({*cells}) > 1 and not all(map(_is_count, cells)) and not measures_time(name)
        for name, cells in zip(shape.names, columns)
    )
    if shape.seen < _FEWEST - is_measured:
        return None
    if found := [n for n in rising if n in named and (is_measured or len(shape.names[n]) > 1)]:
        return found[0]
    is_timed = at_s - shape.began_s >= _LISTED_S or (not at_s and shape.seen >= _UNTIMED)
    if named or shape.seen < _FEWEST or not is_measured or not is_timed:
        return None
    free = [n for n in rising if shape.may_count[n] and _number(columns[n][-1]) < _MOST]
    lines = [line for line, _ in shape.rows]
    if _LETTERS.search(lines[-1]):  # between words the first number may count, beside a known measure
        is_list = len({tuple(_RX.thing.findall(line)) for line in lines}) > 1
        measures = [name for name, _, _ in find_named_values(lines[-1]) if not name.bits & COUNTS]
        free = [n for n in free if n == 0 and shape.begins and measures and not is_list]
    return next(iter(free), None)


def _is_count(cell: str) -> bool:
    return cell.replace(",", "").isdecimal()


def _number(cell: str) -> float:
    return float(cell.rstrip("%").replace(",", "").replace("D", "e"))  # Fortran's `1.2D-03`


def counts_by_rise(name: str) -> bool:
    """Return whether a number of this name, in lower case, counts where it rises."""
    return name.endswith(_SHARES) or _RX.rising.fullmatch(name) is not None or names_count(name)


def _read(line: str, shape: _Shape, counter: int, cells: list[str], text: str) -> Row:
    after, count = counter + 1, _number(cells[counter])
    step = int(min(count, MAX_COUNT)) if count > 0 else 0
    has_total = after < len(cells) and shape.totals[after] and _is_count(cells[after])
    own = [
        (measure, _number(cell), "")
        for n, (name, cell) in enumerate(zip(shape.names, cells))
        if name and n != counter and not _is_count(cell) and not measures_time(name)
        if (measure := name_own_measure(name)) is not None
    ]
    values = [*{one[0].text: one for one in (*own, *find_named_values(line)) if not one[0].bits & COUNTS}.values()]
    key = f"{KEY} {shape.names[counter] or text.strip()}"
    has_total = has_total and len({cells[after] for _, cells in shape.rows}) == 1
    total = parse_integer(cells[after]) if has_total else 100 if cells[counter][-1] == "%" else None
    epochs = (n for n, name in enumerate(shape.names) if n != counter and name and _is_count(cells[n]))
    epoch = next((int(_number(cells[n])) for n in epochs if is_epoch(shape.names[n])), None)
    return StepReading(CounterRank.UNLABELLED, key, step, total, epoch) if step else None, values
