"""What the guard of a command records when its supervisor has died."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.record.state import NEVER_BEGAN

SUPERVISE_AND_DIE = """
import os, sys
from pathlib import Path
from mcp_server.supervisor import pty
directory, begins = Path(sys.argv[1]), sys.argv[2] == "True"
duties = pty.GuardDuties((), directory / "exit.json", directory / "guard_exit.json")
child = pty.spawn(["sh", "-c", "touch ran; exit 6"], dict(os.environ), str(directory), None, duties)
if begins:
    child.let_go()
else:
    os.close(child.gate_fd)
os.close(child.release_fd)
os.waitpid(child.guard_pid, 0)
"""


@pytest.mark.parametrize("begins", [True, False])
def test_a_guard_tells_a_command_that_never_began_from_one_that_ended(tmp_path: Path, *, begins: bool) -> None:
    subprocess.run([sys.executable, "-c", SUPERVISE_AND_DIE, tmp_path, str(begins)], check=True, timeout=60)
    end = json.loads((tmp_path / "guard_exit.json").read_text())
    assert (tmp_path / "ran").exists() == begins
    if begins:
        assert (end["exit_code"], end["signal"]) == (6, None)
    else:
        assert end == NEVER_BEGAN
