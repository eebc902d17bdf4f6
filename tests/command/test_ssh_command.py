"""What an ssh command line runs on which host."""

from __future__ import annotations

import pytest

from mcp_server.command.ssh_command import parse_ssh


@pytest.mark.parametrize(
    ("line", "host", "text", "has_terminal"),
    [
        ("ssh gpu7 python train.py", "gpu7", "python train.py", False),
        ("/usr/bin/ssh -p 22 -i key -o BatchMode=yes alice@lab nohup x", "alice@lab", "nohup x", False),
        ("ssh -tt lab python -t x", "lab", "python -t x", True),
        ("ssh -t -t lab x", "lab", "x", True),
        ("ssh lab -tt x", "lab", "x", True),
        ("ssh -t lab x", "lab", "x", False),
        ("ssh -o RequestTTY=force lab x", "lab", "x", True),
        ("ssh -oRequestTTY=force -4C lab x", "lab", "x", True),
        ("ssh -ttp2222 lab x", "lab", "x", True),
        ("ssh -- lab x -N", "lab", "x -N", False),
    ],
)
def test_a_command_on_another_host(line: str, host: str, text: str, has_terminal: bool) -> None:
    remote = parse_ssh(line.split())
    assert remote is not None
    assert (remote.host, remote.text, remote.has_terminal) == (host, text, has_terminal)


NOT_WAITED_FOR = (
    "|python ssh lab x|ssh|ssh lab|ssh -N lab x|ssh -fNL 1:a:2 lab|ssh -O check lab x|ssh -V|ssh -p"
    "|ssh lab rsync --server .|ssh -x lab git-upload-pack a|ssh -s lab sftp"
)


@pytest.mark.parametrize("line", NOT_WAITED_FOR.split("|"))
def test_what_runs_no_command_that_ssh_waits_for(line: str) -> None:
    assert parse_ssh(line.split()) is None
