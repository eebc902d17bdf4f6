"""Which session ends for a new one."""

from __future__ import annotations

import pytest

from mcp_server.serve import gateway
from mcp_server.serve.gateway import Sessions


def open_sessions(holders: dict[str, str | None]) -> Sessions:
    known = Sessions(most=5, most_of_token=3)
    for session_id, holder in holders.items():
        known.add(session_id, holder)
    return known


def test_the_longest_idle_session_of_the_same_token_ends_and_none_in_use() -> None:
    known = open_sessions({"a1": "alice", "a2": "alice", "b1": "bob", "a3": "alice"})
    assert known.make_room("bob") == []
    with known.use("a1"):
        assert known.make_room("alice") == [("a2", "alice")]
        known.add("a4", "alice")
        with known.use("a3"), known.use("a4"):
            assert known.make_room("alice") is None
            assert known.make_room("bob") == []
    assert known.make_room("alice") == [("a1", "alice")], "used before the others"


def test_where_all_places_are_taken_whoever_has_most_gives_one() -> None:
    known = open_sessions({"b1": "bob", "a1": "alice", "a2": "alice", "a3": "alice", "c1": "carol"})
    assert known.make_room("dave") == [("a1", "alice")]
    assert known.make_room("dave") == []


def test_a_session_that_the_sdk_has_ended_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    known = open_sessions({"a1": "alice", "a2": "alice", "a3": "alice"})
    monkeypatch.setattr(gateway, "IDLE_SESSION_S", -1.0)
    assert known.make_room("alice") == []
    assert len(known) == 0


def test_without_tokens_only_all_places_together_are_bounded() -> None:
    known = open_sessions(dict.fromkeys(("1", "2", "3", "4"), None))
    assert known.make_room(None) == []
    known.add("5", None)
    assert known.make_room(None) == [("1", None)]
