"""What the ssh backend makes of a host's answers, without a host."""

from __future__ import annotations

import pytest

from mcp_server.backends.ssh import ssh_backend
from mcp_server.backends.ssh.ssh_backend import SshBackend
from mcp_server.errors import RunNotFound
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run


def test_a_run_whose_directory_there_was_removed_has_no_left_overs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Host:
        def ask(self, name: str, *, run: str) -> None:
            assert name == "leftovers"
            raise RunNotFound(run, [])

    monkeypatch.setattr(ssh_backend, "_channel", lambda _: Host())
    removed = Run(RunSpec(run_id="cfm-7kqz"), "lost", abandoned=True, started_at="2026-11-24T02:00:00Z")
    assert SshBackend().find_leftovers(removed) == []
