"""Reads the evaluations that a run printed: dicts with a number of episodes, as RLinf's, and success rates."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mcp_server.command.habits import classify_launch
from mcp_server.command.started import find_programs
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.results.evaluations.evaluation_series import is_count
from mcp_server.results.evaluations.evaluation_text import (
    MOST_ROWS,
    Row,
    find_step,
    has_step,
    parse_mapping,
    parse_rows,
)
from mcp_server.results.evaluations.evaluations import Evaluation
from mcp_server.results.evaluations.success_lines import PrintedRates, SuccessLines
from mcp_server.scalars.from_log import open_tracker, read_log_lines, read_printed_value
from mcp_server.scalars.tag_names import is_glob, match_tags

_MOST_LINES = 60  # of a dict that is printed over several lines
_REPEATED_ROWS = 20


def read_printed_evaluations(run: Run, rundir: RunDir, named: Sequence[str] = ()) -> list[Evaluation]:
    """Return the evaluations in the log of the newest attempt that printed any, as at most one table.

    ``named``: metrics that somebody asks for by name; the last number behind such a name counts too.

    A dict counts where it says of how many episodes or tasks it is. Where a command only evaluates, rates and scores
    count without that, if nothing else does. The step of an evaluation is its own, or that of the training when it was
    printed: 0 before the first step, None where nothing is trained.
    """
    kinds = {classify_launch(program) for program in find_programs(run.spec.command)}
    evaluates = "evaluation" in kinds and "training" not in kinds
    for number in range(run.attempt, 0, -1):
        try:
            rows = _read_log(rundir.log(number), run.spec.first_step_pattern, evaluates=evaluates)
        except OSError:  # the log was removed
            continue
        known = {name for row in rows for name in row}
        plain = [name for name in named if not is_glob(name) and not match_tags(name, known, held_out=True)]
        read = {name: read_printed_value(rundir.log(number), name) for name in plain}
        rows += [{name: value} for name, value in read.items() if value is not None]
        if rows:
            return [Evaluation(rundir.log(number), tuple(rows[-MOST_ROWS:]))]
    return []


def _read_log(log: Path, first_step_pattern: str | None, *, evaluates: bool) -> list[Row]:
    progress, search = open_tracker(first_step_pattern)
    rows: list[tuple[int | None, Row]] = []
    sentences, others = SuccessLines(), PrintedRates()
    lines, _ = read_log_lines(log)
    for line, found in _find_dicts(lines):
        progress.read_lines([line])
        step = progress.step_between if progress.first_step_seen else 0
        sentences.read(line, step)
        if evaluates:
            others.read(line)
        for row in filter(_is_evaluation, found):
            if (step, row) not in rows[-_REPEATED_ROWS:]:  # lerobot prints the whole twice
                rows.append((step, row))
    rows += [(rate.at, rate.as_row()) for rate in sentences.rates]
    if not rows:
        rows = [(None, row) for row in others.as_rows()]
    trains = not evaluates and progress.first_step_seen and not (search is not None and search.is_over)
    return [row if has_step(row) or not trains or step is None else {"step": step, **row} for step, row in rows]


def _find_dicts(lines: Iterator[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield each line, the last line of a dict with its rows. A dict may span several lines, as pprint prints it."""
    opened: list[str] = []
    for line in lines:
        rows: list[Row] = []
        if not opened and (begin := line.find("{")) >= 0 and line[begin + 1 : begin + 2] in {"'", '"', ""}:
            opened, prefix = [line[begin:]], line[:begin]
        elif opened:
            opened.append(line.strip())
        if opened and "}" in line:
            text = " ".join(opened)
            content = parse_mapping(text[: text.rfind("}") + 1])
            rows = list(parse_rows(content)) if content else []
            step = find_step(prefix) if rows else None
            rows = [row if step is None or has_step(row) else {"step": step, **row} for row in rows]
            opened = []
        elif len(opened) > _MOST_LINES:
            opened = []
        yield line, rows


def _is_evaluation(row: Row) -> bool:
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    counts = [name for name in numbers if is_count(name)]
    return bool(counts) and len(numbers) > len(counts)
