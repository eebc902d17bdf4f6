"""Processes with secrets leave no core dump, and their commands may."""

import resource
import subprocess
import sys

PROGRAM = """
import ctypes, os, resource, subprocess, sys
from mcp_server.system import own_process
def soft(): return resource.getrlimit(resource.RLIMIT_CORE)[0]
if sys.argv[1] == "limit":
    before = soft()
    own_process.restore_limit()
    assert soft() == before
    own_process.forbid_core_dumps()
    during = soft()
    own_process.restore_limit()
    print(during, soft() == before)
else:
    dumpable = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    before = dumpable()
    own_process.close_memory()
    print(before, dumpable(), os.path.exists(f"/proc/{os.getpid()}/stat"))
    child = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    print(subprocess.check_output([sys.executable, "-c", child], text=True).strip())
"""


def output(argument: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_the_limit_is_one_byte_and_can_be_undone() -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert output("limit") == ["0" if hard == 0 else "1", "True"]


def test_closed_memory_is_that_of_one_program() -> None:
    assert output("memory") == ["1", "0", "True", "1"]
