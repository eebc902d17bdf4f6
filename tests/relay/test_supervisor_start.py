"""Where a far host has no tmux, and where its home is shared."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.ssh import ssh_bootstrap
from mcp_server.relay import supervisor_start
from tests.support.sandbox import until


@pytest.mark.parametrize("has_session", [True, False])
def test_without_tmux_a_supervisor_is_in_a_scope_of_the_user_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_session: bool
) -> None:
    program = tmp_path / "systemd-run"
    refusal = "" if has_session else "exit 1; "
    program.write_text(f'#!/bin/sh\n{refusal}echo "$@" >> {tmp_path}/asked; shift 4; exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = f"ps -o sid= -p $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/sid"
    supervisor_start._start_without_tmux(["sh", "-c", script])
    until((tmp_path / "sid").exists)
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)
    asked = (tmp_path / "asked").read_text().splitlines() if has_session else []
    assert [line.split()[:5] for line in asked] == [
        ["--user", "--scope", "--quiet", "--", program] for program in ("true", "sh")[: len(asked)]
    ]
    assert len(asked) == 2 * has_session


@pytest.mark.parametrize(
    ("path", "shared"),
    [("/home/alice/.local", True), ("/scratch/a", True), ("/homework", False), ("/home/local/a", False)],
)
def test_a_state_directory_on_a_shared_disk_is_recognised(path: str, shared: bool) -> None:
    disks = ("vda / ext4", "nas:/h /home nfs4", "vdb /home/local xfs", "o2ib:/s /scratch lustre")
    mounts = "".join(f"{disk} rw 0 0\n" for disk in disks)
    source = ssh_bootstrap._STAGE
    code = source[source.index("def is_shared") : source.index("def take_environment")]
    names: dict[str, Any] = {"open": lambda _: io.StringIO(mounts)}
    exec(code, names)
    assert names["is_shared"](path) is shared
