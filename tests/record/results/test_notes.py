"""Notes among the events of a run: in their order, each with who wrote it."""

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.results import notes
from mcp_server.record.results.notes import append_note, fold_notes, read_notes, tell_note

EVENTS = [
    {"seq": 1, "at": "2026-11-27T10:00:00.000Z", "kind": "started", "text": "started."},
    {"seq": 2, "at": "2026-11-27T11:00:00.000Z", "kind": "ended", "text": "finished."},
]


def test_a_note_stands_behind_the_event_that_it_follows() -> None:
    written = [{"at": f"2026-11-27T{hour}:30:00.000Z", "by": "ada", "text": hour} for hour in ("09", "10", "11", "12")]
    told = [(event["seq"], event["text"]) for event in fold_notes(EVENTS, written)]
    assert told == [
        *((0, "09 (ada)"), (1, "started."), (1, "10 (ada)")),
        *((2, "finished."), (2, "11 (ada)"), (2, "12 (ada)")),
    ]
    assert fold_notes([], written[:1])[0]["seq"] == 0
    assert fold_notes(EVENTS, []) == EVENTS


def test_a_note_is_one_line_whatever_it_holds() -> None:
    assert tell_note({"verdict": "keep", "text": "best\nso far", "by": "ada, on the page"}) == (
        "keep: best so far (ada, on the page)"
    )
    assert tell_note({"verdict": "discard", "text": "", "by": ""}) == "discard (unknown)"
    assert tell_note({}) == " (unknown)"


def test_what_is_no_note_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    assert read_notes(file) == []
    file.write_text('{"text": "a", "by": {"x": 1}, "verdict": null}\n[1]\nnot JSON\n')
    assert read_notes(file) == [{"text": "a"}]


def test_a_full_file_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "notes.jsonl"
    append_note(file, {"by": "ada", "text": "first"})
    monkeypatch.setattr(notes, "_MOST_BYTES", file.stat().st_size)
    with pytest.raises(BadArgument, match="too many notes"):
        append_note(file, {"by": "ada", "text": "second"})
    (kept,) = read_notes(file)
    assert (kept["by"], kept["text"], file.stat().st_mode & 0o777) == ("ada", "first", 0o600)
