"""The file of what a project's agents know."""

from __future__ import annotations

from pathlib import Path

from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import ToldNews


def test_what_agents_know_only_grows_and_each_project_has_its_own(tmp_path: Path) -> None:
    home, here, there = StateHome(tmp_path / "state"), tmp_path / "here", tmp_path / "there"
    told = ToldNews(home, here)
    assert told.read() == {}
    told.note({"a": (4, "running"), "b": (2, "finished")})
    told.note({"a": (3, "running")})
    told.note({"a": (4, "failed")})
    assert ToldNews(home, here).read() == {"a": (4, "failed"), "b": (2, "finished")}
    assert ToldNews(home, there).read() == {}


def test_the_oldest_runs_are_forgotten_and_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    told = ToldNews(StateHome(tmp_path), tmp_path)
    told.note({f"run-{number}": (1, "running") for number in range(400)})
    known = told.read()
    assert len(known) == 300
    assert "run-399" in known
    (file,) = told.directory.glob("*.json")
    file.write_text('{"a": 3}')
    assert told.read() == {}
    told.note({"a": (1, "running")})
    assert told.read() == {"a": (1, "running")}
