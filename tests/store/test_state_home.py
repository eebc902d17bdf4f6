"""The state directory, and the operator's settings."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.backends.ssh.ssh_bootstrap import read_ssh_settings
from mcp_server.errors import ConfigInvalid, SecretsFileUnreadable, StateUnusable
from mcp_server.hosts.config import read_hosts_file
from mcp_server.hosts.environment import read_secrets_file
from mcp_server.store.state_home import Config, StateHome


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"RUNWARD_HOME": "/srv/runward", "XDG_STATE_HOME": "/state"}, "/srv/runward"),
        ({"RUNWARD_HOME": "~/runs"}, "/home/alice/runs"),
        ({"RUNWARD_HOME": "here"}, "/anywhere/here"),
        ({"RUNWARD_HOME": "", "XDG_STATE_HOME": "/state"}, "/state/runward"),
        ({"XDG_STATE_HOME": ""}, "/home/alice/.local/state/runward"),
        ({}, "/home/alice/.local/state/runward"),
        # The XDG specification: "If an implementation encounters a relative path … ignore it."
        ({"XDG_STATE_HOME": "state"}, "/home/alice/.local/state/runward"),
    ],
)
def test_home_is_where_the_environment_says(
    environ: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr(os, "getcwd", lambda: "/anywhere")
    assert StateHome.of(environ).path == Path(path)


def test_home_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = StateHome(tmp_path / "a" / "b")
    home.create()
    home.create()
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in (home.path, home.runs, home.keys)} == {
        "b": "0o700",
        "runs": "0o700",
        "keys": "0o700",
    }


def test_a_home_that_cannot_be_made_says_where_and_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "runward"):
        with pytest.raises(StateUnusable, match=f"^{re.escape(str(path))}: .*Nothing was done") as refused:
            StateHome(path).create()
        assert refused.value.path == path
    assert StateHome(file / "runward").read_config() == Config()


def config(tmp_path: Path, text: str | bytes) -> Config:
    (tmp_path / "config.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return StateHome(tmp_path).read_config()


def test_no_config_means_the_defaults(tmp_path: Path) -> None:
    assert StateHome(tmp_path).read_config() == config(tmp_path, "") == Config()
    assert (Config().kill_policy, Config().owner, Config().stop_grace_s) == ("confirm", "", 5.0)


def test_a_config_is_read(tmp_path: Path) -> None:
    text = 'kill_policy = "human"\nowner = "größe"\nstop_grace_s = 0\n'
    assert config(tmp_path, text) == Config(kill_policy="human", owner="größe", stop_grace_s=0)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('kill_polcy = "human"', "kill_polcy: Extra inputs are not permitted."),
        ('kill_policy = "nobody"', "kill_policy: Input should be 'confirm' or 'human'."),
        ("stop_grace_s = -1", "stop_grace_s: Input should be greater than or equal to 0."),
        ("stop_grace_s = 3601", "stop_grace_s: Input should be less than or equal to 3600."),
        ("stop_grace_s = nan", "stop_grace_s: "),
        ("stop_grace_s = inf", "stop_grace_s: "),
        ("owner = 7", "owner: Input should be a valid string."),
        ("[section]\na = 1", "section: Extra inputs are not permitted."),
        ("kill_policy = human", "Invalid value (at line 1, column 15)."),
        ("a = 1\na = 2", "Cannot overwrite a value"),
        (b"owner = '\xff'", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_config_that_is_not_what_it_should_be_is_refused(tmp_path: Path, text: str | bytes, cause: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        config(tmp_path, text)
    file = tmp_path / "config.toml"
    assert str(refused.value).startswith(f"{file}: {cause}")
    assert str(refused.value).endswith(" Nothing was done. A person should fix the file.")


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


UNREADABLE: list[tuple[Callable[[Path], object], str]] = [
    (Path.mkdir, "not a regular file"),
    (make_fifo, "not a regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    (lambda path: path.write_bytes(b"#" * (2**20 + 1)), "it has more than 1 MiB"),
]


@pytest.mark.parametrize(("make", "cause"), UNREADABLE, ids=["directory", "FIFO", "device", "too large"])
def test_configuration_that_cannot_be_read_is_refused_at_once_and_leaves_stops_to_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], cause: str
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    home = StateHome(tmp_path)
    for name in ("config.toml", "hosts.toml", "secrets.env"):
        make(tmp_path / name)
    with pytest.raises(ConfigInvalid, match=cause):
        home.read_config()
    with pytest.raises(ConfigInvalid, match=cause):
        read_hosts_file(home)
    with pytest.raises(ConfigInvalid, match=cause):
        read_ssh_settings(home.hosts / "far")
    with pytest.raises(SecretsFileUnreadable, match=cause):
        read_secrets_file(home.secrets)
    assert (home.read_kill_policy(), home.owner({})) == ("human", "alice")


def test_nesting_without_end_is_a_fault_of_the_file(tmp_path: Path) -> None:
    text = "quotas = " + "[" * 100_000
    with pytest.raises(ConfigInvalid):
        config(tmp_path, text)
    (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(ConfigInvalid):
        read_hosts_file(StateHome(tmp_path))
    assert StateHome(tmp_path).read_kill_policy() == "confirm"


def test_the_owner_is_the_environments_then_the_configs_then_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StateHome(tmp_path)
    monkeypatch.setenv("LOGNAME", "carol")
    assert home.owner({}) == "carol"
    config(tmp_path, 'owner = "bob"')
    assert home.owner({}) == "bob"
    assert home.owner({"RUNWARD_OWNER": "alice"}) == "alice"


@pytest.mark.parametrize(
    ("text", "policy", "owner"),
    [
        ('kill_policy = "human"\nowner = "lab"', "human", "lab"),
        ('owner = "lab"\nnonsense', "confirm", "lab"),
        ('owner = "lab"\nkeep_session = 3', "confirm", "lab"),
        ('kill_policy = "human"\n[[[', "human", "alice"),
        ('kill_policy = "humans"', "human", "alice"),
        ('kill_polcy = "human"\nowner = 3', "human", "alice"),
        ("\x00\xff", "confirm", "alice"),
    ],
)
def test_a_broken_configuration_prevents_no_stop_and_takes_none_from_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, policy: str, owner: str
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    (tmp_path / "config.toml").write_text(text)
    home = StateHome(tmp_path)
    assert (home.read_kill_policy(), home.owner({})) == (policy, owner)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_home_or_secrets_of_another_user_are_named(tmp_path: Path) -> None:
    home = StateHome(tmp_path)
    home.secrets.write_text("")
    assert home.find_warning() is None
    for path in (home.secrets, home.path):
        os.chown(path, 65534, 65534)
        assert str(home.find_warning()).startswith(f"{path} belongs to nobody, and you are root: nobody can change")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_want_of_descriptors_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody should fix a file that is in order."""

    def open_file(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.open", open_file)
    for read in (StateHome(tmp_path).read_config, lambda: read_hosts_file(StateHome(tmp_path))):
        with pytest.raises(OSError, match=os.strerror(number)):
            read()
