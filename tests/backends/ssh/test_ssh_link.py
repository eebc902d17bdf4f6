"""What is said of a connection that does not come about, by a program in place of ssh."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mcp_server.backends.ssh import ssh_channel
from mcp_server.backends.ssh.mirror import Mirror
from mcp_server.backends.ssh.ssh_bootstrap import SshSettings
from mcp_server.backends.ssh.ssh_link import ConnectionFailedError, SshLink
from mcp_server.errors import HostUnreachable


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("kill -KILL $$", "ssh here was ended by SIGKILL"),
        ("echo 'ssh: connect to host n: No route to host' >&2; exit 255", "ssh: connect to host n: No route to host"),
        (
            "echo 'ssh: connect to host j: No route to host' >&2; echo 'Connection closed by UNKNOWN port 65535' >&2",
            "ssh: connect to host j: No route to host",
        ),
        ("exit 1", "the login shell ended before /bin/sh could start"),
    ],
)
def test_why_a_connection_failed_is_said_by_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nread -r line\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ConnectionFailedError) as failed:
        SshLink.open(SshSettings("n", "n"))
    assert str(failed.value) == why


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        ("exit 0", "its prepare line fails: 'exit 0'"),
        ("echo no such module >&2; false", "fails: 'echo no such module >&2; false', which says: no such module"),
        ("export PATH=/nowhere", "env: not found"),
    ],
)
def test_nothing_goes_on_without_the_environment_that_prepare_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str, why: str
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec /bin/sh\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConnectionFailedError) as failed:
        SshLink.open(SshSettings("n", "n", state=str(tmp_path / "state"), prepare=prepare))
    assert why in str(failed.value)
    assert not (tmp_path / "state").exists()


def test_a_full_disk_here_is_not_blamed_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec /bin/sh\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hosts.toml").write_text(f"[hosts.n]\nssh = 'n'\nstate = '{tmp_path}/state'\n")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ssh_channel, "write_json", refuse)
    channel = ssh_channel.Channel(Mirror(tmp_path / "hosts" / "n"))
    try:
        with pytest.raises(HostUnreachable, match=r"cannot write what it hears, .*/hosts/n: No space left on device"):
            channel.open()
    finally:
        channel.close()
