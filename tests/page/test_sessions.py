"""Links open once, sessions end with their token, and nobody gets in by the names of files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.page.sessions import PageSessions, Visitor
from mcp_server.store.page_servers import announce, find_server
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    return StateHome(tmp_path / "state")


def test_a_link_opens_the_page_once(home: StateHome) -> None:
    sessions = PageSessions(home)
    code = sessions.make_link()
    cookie = sessions.redeem(code)
    assert cookie is not None
    assert sessions.redeem(code) is None
    assert sessions.find(cookie) == Visitor(None, is_person=True, may_act=True)
    assert PageSessions(home).find(cookie) is not None, "of another server of this state directory"


def test_a_link_that_is_late_opens_nothing(home: StateHome) -> None:
    sessions = PageSessions(home)
    code = sessions.make_link()
    (file,) = (home.path / "page" / "links").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "expires": time.time() - 1}))
    assert sessions.redeem(code) is None
    assert sessions.redeem(code) is None


@pytest.mark.parametrize("secret", ["", "..", "../links/x", "a" * 42, "é" * 43, "a" * 10_000, "/etc/passwd\0"])
def test_a_text_that_is_no_secret_is_nobody(home: StateHome, secret: str) -> None:
    sessions = PageSessions(home)
    sessions.redeem(sessions.make_link())
    names = [path.name for path in (home.path / "page").rglob("*") if path.is_file()]
    for word in (secret, *names):
        assert sessions.find(word) is None
        assert sessions.redeem(word) is None
        sessions.log_out(word)
    assert names == [path.name for path in (home.path / "page").rglob("*") if path.is_file()]


def test_files_of_links_and_sessions_are_for_their_user_alone(home: StateHome) -> None:
    sessions = PageSessions(home)
    sessions.redeem(sessions.make_link())
    sessions.make_link()
    files = list((home.path / "page").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in files if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in files if path.is_dir()} == {0o700}


def test_a_session_ends_with_its_token_and_does_not_come_back_with_another(home: StateHome) -> None:
    tokens = Tokens(home)
    token = tokens.add("ada")
    sessions = PageSessions(home)
    by_token, by_link = sessions.log_in(token), sessions.redeem(sessions.make_link("ada"))
    assert by_token is not None
    assert by_link is not None
    assert sessions.find(by_token) == Visitor("ada", is_person=False, may_act=True)
    assert sessions.find(by_link) == Visitor("ada", is_person=True, may_act=True)
    tokens.remove("ada")
    assert [sessions.find(by_token), sessions.find(by_link)] == [None, None]
    tokens.add("ada")
    assert [sessions.find(by_token), sessions.find(by_link)] == [None, None]
    assert sessions.log_in(token) is None


def test_who_logs_out_is_out(home: StateHome) -> None:
    sessions = PageSessions(home)
    cookie = sessions.redeem(sessions.make_link())
    assert cookie is not None
    sessions.log_out(cookie)
    assert sessions.find(cookie) is None


def test_a_link_for_a_name_without_a_token_is_refused(home: StateHome) -> None:
    Tokens(home).add("ada")
    with pytest.raises(BadArgument, match="Names with a token: ada"):
        PageSessions(home).make_link("bob")


def test_a_visitor_controls_its_own_and_a_person_controls_all() -> None:
    person, ada, agent, anyone = Visitor(None, True, True), Visitor("ada", True, True), Visitor("ada"), Visitor()
    assert [each.controls("ada") for each in (person, ada, agent, anyone)] == [True, True, False, False]
    assert [each.controls("bob") for each in (person, ada, agent, anyone)] == [True, False, False, False]


def test_a_server_is_found_while_it_lives(home: StateHome) -> None:
    assert find_server(home) is None
    with announce(home, "127.0.0.1:8765"):
        assert find_server(home) == "127.0.0.1:8765"
        assert find_server(home, 8765) == "127.0.0.1:8765"
        assert find_server(home, 8766) is None
    assert find_server(home) is None


def test_another_process_with_the_number_of_a_dead_server_is_not_taken_for_it(home: StateHome) -> None:
    directory = home.path / "page" / "servers"
    directory.mkdir(parents=True)
    (directory / "1.json").write_text(json.dumps({"address": "127.0.0.1:1", "pid": os.getpid(), "started": 1}))
    assert find_server(home) is None
    assert list(directory.iterdir()) == []
