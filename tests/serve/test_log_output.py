"""What the server writes about trouble, where nothing can be opened or imported any more."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.serve.log_output import OncePerMinute

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
for number in range(3):
    try:
        fail()
    except ZeroDivisionError:
        logging.getLogger("asyncio").exception(f"of a logger {number}")
    logging.getLogger("mcp").warning("dropped %r", number)
logging.getLogger("mcp").warning("of another line")
sys.stderr = None
loop.call_exception_handler({"message": "nowhere to write"})
print(kinds, sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
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
    assert re.findall("of a logger .|dropped .|of another line", done.stderr) == [
        *("of a logger 0", "dropped 0", "of another line")
    ]


def test_after_a_minute_an_error_is_written_again_with_the_number_of_those_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    written = OncePerMinute()

    def log(text: str, line: int) -> str | None:
        record = logging.LogRecord("mcp", logging.WARNING, "runner.py", line, text, ("a",), None)
        return record.getMessage() if written.filter(record) else None

    assert [log("dropped %r", 1), log("dropped %s", 1), log("dropped %s", 1), log("other %r", 2)] == [
        *("dropped 'a'", None, None, "other 'a'")
    ]
    now_s[0] += 61
    assert log("dropped %r", 1) == "dropped 'a' (2 more of these since the last one)"
