"""A table that two programs appended to: no row says whose it is, so a restart is claimed only where it is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from mcp_server.scalars.series import RunScalars
from tests.support.scalar_files import points, read

Row = tuple[int, float]
ONE = [(step, 100.0 + step) for step in range(10)]
RESUMED = [(step, 500.0 + step) for step in range(5, 15)]
OTHER = [(step, 500.0 + step) for step in range(10)]
# The second begins while the first is at step 5, and goes on when that has ended.
IN_TURN = [*ONE[:5], *(row for pair in zip(OTHER[:5], ONE[5:], strict=True) for row in pair), *OTHER[5:]]


def write_csv(path: Path, parts: Iterable[list[Row]]) -> RunScalars:
    """Write each part behind a header of its own, as programs do that append."""
    text = "".join("step,loss\n" + "".join(f"{step},{value}\n" for step, value in part) for part in parts)
    (path / "metrics.csv").write_text(text)
    return read(path / "metrics.csv")


def write_lines(path: Path, rows: list[Row]) -> RunScalars:
    lines = (json.dumps({"step": step, "loss": value}) for step, value in rows)
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read(path / "metrics.jsonl")


def test_a_table_that_begins_again_at_the_beginning_may_be_another_programs(tmp_path: Path) -> None:
    csv, lines = write_csv(tmp_path, [ONE, OTHER]), write_lines(tmp_path, [*ONE, *OTHER])
    assert points(csv, "loss") == OTHER
    assert csv.notes == (
        "Another process began again at the beginning, a restart or another program, which its file does not say: "
        "up to 10 earlier points of a tag are not shown.",
    )
    assert points(lines, "loss") == [*ONE, *OTHER]
    (note,) = lines.notes
    assert note.endswith("They may count batches within an epoch, start again, or be another program's.")


def test_a_table_that_goes_on_from_its_middle_was_restarted(tmp_path: Path) -> None:
    for told in (write_csv(tmp_path, [ONE, RESUMED]), write_lines(tmp_path, [*ONE, *RESUMED])):
        assert points(told, "loss") == [*ONE[:5], *RESUMED]
        assert told.notes == ("Restarted at step 5: later points replace earlier ones from there on.",)


def test_rows_of_two_programs_in_turn_are_all_kept_and_called_no_restart(tmp_path: Path) -> None:
    told = write_lines(tmp_path, IN_TURN)
    assert sorted(points(told, "loss")) == sorted([*ONE, *OTHER])
    (note,) = told.notes
    assert note.startswith("Steps of loss go back and forth, as where two programs write one file")
    behind_a_header = write_csv(tmp_path, [IN_TURN[:5], IN_TURN[5:]])
    assert not any(note.startswith("Restarted") for note in behind_a_header.notes)


@pytest.mark.parametrize("late", [[(0, 1.0)], [(2, 1.0), (5, 2.0), (8, 3.0)]])
def test_late_points_of_one_program_are_not_called_two(tmp_path: Path, late: list[Row]) -> None:
    told = write_lines(tmp_path, [*ONE, *late])
    assert not any("two programs" in note for note in told.notes)
