"""A word stands for what a caller has seen, in any server of the same state directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.store import told_news
from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import CursorFiles, SeenRuns

SEEN = SeenRuns({"cfm-7kqz": (4, "running"), "dp3-b3xq": (9, "finished")}, frozenset({"old-mm2k"}))


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    home = StateHome(tmp_path / "state")
    home.create()
    return home


def test_a_word_is_short_and_read_by_another_server(home: StateHome) -> None:
    word = CursorFiles(home).keep(SEEN)
    assert len(word) == 11
    assert CursorFiles(home).read(word) == SEEN
    assert (home.path / "cursors").stat().st_mode & 0o077 == 0


def test_what_is_equal_has_one_word_and_what_differs_another(home: StateHome) -> None:
    files = CursorFiles(home)
    words = {files.keep(SEEN), files.keep(SeenRuns(dict(reversed(list(SEEN.runs.items()))), SEEN.left_out))}
    words |= {
        files.keep(SeenRuns(SEEN.runs)),
        files.keep(SeenRuns({**SEEN.runs, "cfm-7kqz": (5, "running")}, SEEN.left_out)),
    }
    assert len(words) == 3
    assert len(list((home.path / "cursors").iterdir())) == 3


@pytest.mark.parametrize("word", ["", "c", "caaaaaaaaaa", "../../etc", "c" * 5000, "7"])
def test_an_unknown_word_is_refused_with_the_way_on(home: StateHome, word: str) -> None:
    with pytest.raises(
        BadArgument, match=r"is not a cursor of this machine, or too old. Nothing was done. Leave since"
    ):
        CursorFiles(home).read(word)


def test_a_damaged_file_is_refused(home: StateHome) -> None:
    word = CursorFiles(home).keep(SEEN)
    for damage in (
        "",
        "[]",
        "[" * 100_000,
        '{"runs": {"a": [1e999, ""]}, "left_out": null}',
        '{"runs": {"a": 3}, "left_out": null}',
        '{"runs": {}}',
    ):
        (home.path / "cursors" / f"{word}.json").write_text(damage)
        with pytest.raises(BadArgument, match="is not a cursor"):
            CursorFiles(home).read(word)


def test_of_too_many_those_go_that_were_not_used_for_longest(home: StateHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_news, "MOST_FILES", 5)
    monkeypatch.setattr(told_news, "_REMOVED_AT_ONCE", 2)
    files = CursorFiles(home)
    words = [files.keep(SeenRuns({"cfm-7kqz": (number, "running")})) for number in range(5)]
    for number, word in enumerate(words):
        os.utime(home.path / "cursors" / f"{word}.json", (number, number))
    files.read(words[0])
    newest = files.keep(SeenRuns({"cfm-7kqz": (9, "running")}))
    assert {path.stem for path in (home.path / "cursors").iterdir()} == {words[0], words[3], words[4], newest}
