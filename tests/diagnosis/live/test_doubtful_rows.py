"""Rows that another run may have written count where the run's own output shows their numbers."""

import random

from mcp_server.diagnosis.live.doubtful_rows import DoubtfulRows
from mcp_server.record.curves.tails import CurveRow


def make_rows(seed: int, steps: range) -> list[CurveRow]:
    chance = random.Random(seed)
    return [
        CurveRow(step, None, {"iou": round(chance.random(), 5), "loss": round(chance.random(), 5)}) for step in steps
    ]


def show(rows: list[CurveRow]) -> list[str]:
    return [f"batch {r.step} of 200 recon {r.values['loss']:.4f} iou {r.values['iou']:.4f}" for r in rows]


OWN, OTHER = make_rows(1, range(1, 41)), make_rows(2, range(1, 41))


def test_a_file_whose_rows_the_output_shows_is_the_runs_with_all_its_rows() -> None:
    doubtful = DoubtfulRows()
    doubtful.read_lines(show(OWN[::4]))  # it prints every fourth
    doubtful.note_rows("m.csv", OWN, "b")
    assert doubtful.take() == {"m.csv": OWN[:37]}
    assert doubtful.take() == {}
    assert doubtful.describe() is None
    doubtful.read_lines(show(OWN[39:]))
    assert doubtful.take() == {"m.csv": OWN[37:]}


def test_rows_come_before_or_after_the_lines_that_show_them() -> None:
    doubtful, taken = DoubtfulRows(), list[CurveRow]()
    for row, line in zip(OWN, show(OWN), strict=True):
        doubtful.note_rows("m.csv", [row], "b")
        taken += doubtful.take().get("m.csv", [])
        doubtful.read_lines([line])
        taken += doubtful.take().get("m.csv", [])
    assert taken == OWN
    doubtful.read_lines(["total 41, lr 0.125"])
    last = make_rows(1, range(1, 42))[-1]
    doubtful.note_rows("m.csv", [last], "b")
    assert doubtful.take() == {}
    doubtful.read_lines(show([last]))
    assert doubtful.take() == {"m.csv": [last]}


def test_a_file_whose_rows_the_output_shows_otherwise_is_anothers() -> None:
    doubtful = DoubtfulRows()
    doubtful.read_lines(show(OWN))
    doubtful.note_rows("m.csv", OTHER, "b")
    assert doubtful.take() == {}


def test_the_rows_of_a_shared_file_that_the_output_shows_are_taken() -> None:
    doubtful = DoubtfulRows()
    doubtful.read_lines(show(OWN))
    doubtful.note_rows("m.csv", [row for pair in zip(OTHER, OWN, strict=True) for row in pair], "b")
    assert doubtful.take() == {"m.csv": OWN}


def test_rows_of_another_that_is_ahead_are_not_taken_before_they_are_shown_otherwise() -> None:
    doubtful, taken = DoubtfulRows(), list[CurveRow]()
    for ahead, row in zip(OTHER[6:], OWN, strict=False):
        doubtful.note_rows("m.csv", [ahead, row], "b")
        doubtful.read_lines(show([row]))
        taken += doubtful.take().get("m.csv", [])
    assert taken == OWN[: len(taken)]
    assert len(taken) == 34


def test_without_a_line_that_shows_them_it_is_unknown_whose_rows_they_are() -> None:
    doubtful = DoubtfulRows()
    doubtful.read_lines(["begins", "at 12:30 on 1 GPU, 3.14 s"])
    doubtful.note_rows("m.csv", OWN, "run-b")
    assert doubtful.take() == {}
    assert doubtful.describe() == "m.csv: run-b works there too, and whose rows these are is unknown"


def test_two_equal_digits_prove_no_row_and_neither_do_two_rows() -> None:
    doubtful = DoubtfulRows()
    rows = [CurveRow(step, None, {"loss": 0.5 + step / 1e4}) for step in range(1, 20)]
    doubtful.read_lines([f"step {row.step} loss {row.values['loss']:.1f}" for row in rows])
    doubtful.read_lines([f"step {row.step} loss {row.values['loss']:.4f}" for row in rows[:2]])
    doubtful.note_rows("m.csv", rows, "b")
    assert doubtful.take() == {}
