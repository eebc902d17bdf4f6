"""What a tmux that starts no session is quoted with."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import LaunchFailed
from mcp_server.system import tmux


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 7", "it ended without a word (exit status 7)"),
        ("kill -SEGV $$", "it ended without a word (signal 11)"),
        ("echo 'no server' >&2; exit 1", "no server"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "x" * 500),
    ],
)
def test_a_tmux_that_starts_no_session_is_quoted_or_named_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    program = tmp_path / "tmux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(LaunchFailed) as refused:
        tmux.new_session("s", ["true"], socket="none")
    assert refused.value.cause == f"tmux could not start the session: {told}."
