"""Reads the evaluations that a run printed as dicts: RLinf's and AgentJet's, with their number of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.results.evaluation_series import is_count
from mcp_server.results.evaluation_text import MOST_ROWS, Row, find_step, has_step, parse_dict
from mcp_server.results.evaluations import Evaluation
from mcp_server.scalars.from_log import open_tracker, read_log_lines

_MOST_LINES = 60  # of a dict that is printed over several lines


def read_printed_evaluations(run: Run, rundir: RunDir) -> list[Evaluation]:
    """Return the evaluations in the log of the newest attempt that printed any, as at most one table.

    A dict counts where it says of how many episodes or tasks it is. Its step is its own, or that of the training when
    it was printed: 0 before the first step, None where nothing is trained.
    """
    for number in range(run.attempt, 0, -1):
        try:
            rows = _read_log(rundir.log(number), run.spec.first_step_pattern)
        except OSError:  # the log was removed
            continue
        if rows:
            return [Evaluation(rundir.log(number), tuple(rows[-MOST_ROWS:]))]
    return []


def _read_log(log: Path, first_step_pattern: str | None) -> list[Row]:
    progress, search = open_tracker(first_step_pattern)
    rows: list[tuple[int | None, Row]] = []
    lines, _ = read_log_lines(log)
    for line, row in _find_dicts(lines):
        progress.read_lines([line])
        if row is not None and _is_evaluation(row):
            rows.append((progress.step if progress.first_step_seen else 0, row))
    trains = progress.first_step_seen and not (search is not None and search.is_over)
    return [row if has_step(row) or not trains or step is None else {"step": step, **row} for step, row in rows]


def _find_dicts(lines: Iterator[str]) -> Iterator[tuple[str, Row | None]]:
    """Yield each line, the last line of a dict with its content. A dict may span several lines, as pprint prints it."""
    opened: list[str] = []
    for line in lines:
        row = None
        if not opened and (begin := line.find("{")) >= 0 and line[begin + 1 : begin + 2] in {"'", '"', ""}:
            opened, prefix = [line[begin:]], line[:begin]
        elif opened:
            opened.append(line.strip())
        if opened and "}" in line:
            text = " ".join(opened)
            row = parse_dict(text[: text.rfind("}") + 1])
            step = find_step(prefix) if row else None
            row = {"step": step, **row} if row and step is not None and not has_step(row) else row
            opened = []
        elif len(opened) > _MOST_LINES:
            opened = []
        yield line, row


def _is_evaluation(row: Row) -> bool:
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    counts = [name for name in numbers if is_count(name)]
    return bool(counts) and len(numbers) > len(counts)
