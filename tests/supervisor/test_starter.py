"""A starter's child takes over the pane of a process that has begun its own program."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mcp_server.supervisor.starter import await_hold

LATE = """
import os, sys
os.read(0, 1)  # a copy of tmux still, however long it waits for a processor
os.execv("/bin/sh", ["/bin/sh", "-c", "sleep 300", sys.argv[1]])
"""


def test_a_pane_is_taken_over_once_its_own_program_runs(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    child = subprocess.Popen([sys.executable, "-c", LATE, fifo, "copy"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    pane, taken = Path("/proc") / str(child.pid), threading.Event()

    def take() -> None:
        await_hold(pane, fifo)
        taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        assert not taken.wait(0.1)
        child.stdin.write(b"x")
        child.stdin.flush()
        assert taken.wait(30)
        assert (pane / "exe").readlink().name != Path(sys.executable).resolve().name
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdin.close()
    with pytest.raises(FileNotFoundError):
        await_hold(pane, fifo)
