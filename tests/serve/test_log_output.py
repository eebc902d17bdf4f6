"""What the server writes about trouble, where nothing can be opened or imported any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import asyncio, logging, os, resource, sys
from mcp_server.serve.log_output import LoopErrors, configure_logging

configure_logging()
from mcp_server.serve.app import build
build(os.environ)
kinds = [type(handler).__name__ for handler in logging.getLogger().handlers]
loop, handler = asyncio.new_event_loop(), LoopErrors()
loop.set_exception_handler(handler)
before = set(sys.modules)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def fail():
    raise ZeroDivisionError("of a callback")

for _ in range(3):
    loop.call_exception_handler({"message": "accept failed", "exception": OSError(24, "Too many open files")})
loop.call_soon(fail)
loop.call_soon(loop.stop)
loop.run_forever()
try:
    fail()
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("of a logger")
sys.stderr = None
loop.call_exception_handler({"message": "nowhere to write"})
print(kinds, sorted(set(sys.modules) - before))
"""


def test_trouble_is_written_without_a_descriptor_and_without_an_import_and_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "RUNWARD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['StreamHandler'] []\n"
    assert done.stderr.count("Too many open files") == 1
    assert "ZeroDivisionError: of a callback" in done.stderr
    assert "of a logger" in done.stderr
