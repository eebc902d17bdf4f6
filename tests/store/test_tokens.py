"""The file of agents' tokens."""

import os
import stat
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens, TokensUnusable, hash_of


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(StateHome(tmp_path / "state"))


def test_a_token_is_its_holders_and_nobody_elses(tokens: Tokens) -> None:
    alices, bobs = tokens.add("alice"), tokens.add("bob")
    assert (tokens.holder(alices), tokens.holder(bobs)) == ("alice", "bob")
    for wrong in ("", "alice", alices[:-1], f"{alices}x", alices.upper(), hash_of(alices), "x" * 10_000, "\udcff"):
        assert tokens.holder(wrong) is None


def test_tokens_have_256_random_bits_and_are_kept_nowhere(tokens: Tokens) -> None:
    made = tokens.add("alice")
    assert made.startswith("runward_")
    assert len(made) == len("runward_") + 43
    assert made not in tokens.file.read_text()
    assert hash_of(made) in tokens.file.read_text()


def test_the_file_is_its_owners_alone(tokens: Tokens) -> None:
    tokens.add("alice")
    assert stat.S_IMODE(tokens.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.file.parent.stat().st_mode) == 0o700


def test_another_process_sees_what_was_added_and_removed(tokens: Tokens) -> None:
    other = Tokens(StateHome(tokens.file.parent))
    assert other.names == []
    made = tokens.add("alice")
    assert other.holder(made) == "alice"
    tokens.remove("alice")
    assert other.holder(made) is None
    assert other.names == []


def test_a_lost_file_lets_nobody_in(tokens: Tokens) -> None:
    made = tokens.add("alice")
    assert tokens.holder(made) == "alice"
    tokens.file.unlink()
    assert tokens.required
    assert tokens.holder(made) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_open_is_not_used(tokens: Tokens, mode: int) -> None:
    made = tokens.add("alice")
    tokens.file.chmod(mode)
    for look in (lambda: tokens.holder(made), lambda: tokens.names, lambda: tokens.required, lambda: tokens.add("bob")):
        with pytest.raises(TokensUnusable, match="chmod 600"):
            look()
    tokens.file.chmod(0o600)
    assert tokens.holder(made) == "alice"


@pytest.mark.parametrize(
    "text", ["alice", "alice = 1", 'alice = "abc"', f'"../x" = "{hash_of("x")}"', '[alice]\nhash = "x"', "\0"]
)
def test_a_file_of_something_else_is_not_used(tokens: Tokens, text: str) -> None:
    tokens.add("alice")
    tokens.file.write_text(text)
    with pytest.raises(TokensUnusable):
        tokens.holder("x")


def test_a_link_or_a_fifo_is_not_used(tokens: Tokens, tmp_path: Path) -> None:
    tokens.add("alice")
    tokens.file.rename(tmp_path / "elsewhere")
    tokens.file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokensUnusable):
        tokens.holder("x")
    tokens.file.unlink()
    os.mkfifo(tokens.file, 0o600)
    with pytest.raises(TokensUnusable, match="not a regular file"):
        tokens.holder("x")


@pytest.mark.parametrize("name", ["", "../x", "a b", "a\n", "-a", "a" * 65, 'a"b', "ü"])
def test_a_name_that_is_none_is_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(BadArgument):
        tokens.add(name)
    assert not tokens.file.exists()


def test_a_second_token_of_a_name_is_refused_and_the_first_one_stays(tokens: Tokens) -> None:
    made = tokens.add("alice")
    with pytest.raises(BadArgument, match="token rm alice"):
        tokens.add("alice")
    with pytest.raises(BadArgument, match="Names with a token: alice"):
        tokens.remove("bob")
    assert tokens.holder(made) == "alice"
