"""The file of what a project's agents know."""

from __future__ import annotations

from pathlib import Path

from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import ToldNews


def test_what_agents_know_only_grows_and_each_project_has_its_own(tmp_path: Path) -> None:
    home, here, there = StateHome(tmp_path / "state"), tmp_path / "here", tmp_path / "there"
    told = ToldNews(home, here)
    assert told.read_own() == {}
    told.note({"a": (4, "running"), "b": (2, "finished")})
    told.note({"a": (3, "running")})
    told.note({"a": (4, "failed")})
    assert ToldNews(home, here).read_own() == {"a": (4, "failed"), "b": (2, "finished")}
    assert ToldNews(home, there).read_own() == {}


def test_the_oldest_runs_are_forgotten_and_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    told = ToldNews(StateHome(tmp_path), tmp_path)
    told.note({f"run-{number}": (1, "running") for number in range(400)})
    known = told.read_own()
    assert len(known) == 300
    assert "run-399" in known
    (file,) = told.directory.glob("*.json")
    file.write_text('{"a": 3}')
    assert told.read_own() == {}
    told.note({"a": (1, "running")})
    assert told.read_own() == {"a": (1, "running")}


def test_a_monitor_tells_its_session_and_one_of_them_those_without(tmp_path: Path) -> None:
    home = StateHome(tmp_path / "state")
    first, second, third = (ToldNews(home, tmp_path, name) for name in ("first", "second", "third"))
    for told in (first, second):
        told.tell_own()
    for run_id, told in (("a", first), ("b", second), ("c", third), ("d", ToldNews(home, tmp_path))):
        told.note({run_id: (1, "running")})
    assert first.read_own().keys() == {"a", "c", "d"}
    assert second.read_own().keys() == {"b", "d"}
    first.note({"b": (1, "running")})
    assert second.read_own().keys() == {"d"}, "who asked last is told"
    assert ToldNews(home, tmp_path).read_own().keys() == {"a", "b", "c", "d"}, "an unknown session hears of all"


def test_a_record_of_the_time_before_sessions_is_everybodys(tmp_path: Path) -> None:
    told = ToldNews(StateHome(tmp_path), tmp_path, "first")
    told.note({"a": (1, "running")})
    (file,) = told.directory.glob("*.json")
    file.write_text('{"a": [1, "running"]}')
    assert told.read_own() == {"a": (1, "running")}
