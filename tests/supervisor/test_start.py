"""What a supervisor imports before its command starts: every run of every user pays for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_START = """
import sys
sys.path.append(sys.argv[1])
import mcp_server.supervisor.supervise
heavy = {"ssl", "socket", "http.client", "urllib.request", "email", "html"}
heavy |= {"uuid", "subprocess", "statistics", "hashlib", "tempfile"}
print(*sorted(heavy & set(sys.modules)), *(name for name in sys.modules if name.startswith("mcp_server.diagnosis")))
"""


def test_a_supervisor_starts_without_http_and_without_what_judges_output() -> None:
    command = [sys.executable, "-I", "-S", "-c", _START, str(Path(__file__).parents[2])]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split() == []
