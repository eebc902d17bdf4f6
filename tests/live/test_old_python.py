"""The rooms below the line ship to hosts: every module of them compiles and imports on Python 3.9."""

import subprocess
import sys
from pathlib import Path

import pytest

import mcp_server
from tests.support.old_python import find_old_python
from tests.test_arrows import BELOW_THE_LINE, SOURCES

IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
print(len(sys.argv) - 2)
"""


DIAGNOSE_ALL = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mcp_server.diagnosis.log_file import examine_log
for log in sorted(Path(sys.argv[2]).rglob("*.*")):
    for exit_code in (0, 1):
        print(json.dumps([str(log), exit_code, examine_log(log, exit_code).facts()], sort_keys=True))
"""
ROOT = Path(mcp_server.__file__).parents[1]
LOGS = Path(__file__).parents[1] / "data" / "logs"


def modules_below_the_line() -> list[str]:
    return sorted(f"mcp_server.{name}" for name in SOURCES if name.partition(".")[0] in BELOW_THE_LINE)


@pytest.fixture
def old_python() -> str:
    if (python := find_old_python()) is None:
        pytest.skip("this machine has neither Python 3.9 nor 3.10")
    return python


def run(python: str, *words: str) -> str:
    """What an isolated Python prints that treats warnings as errors."""
    words = (python, "-I", "-S", "-B", "-W", "error", "-c", *words)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_every_module_below_the_line_imports_on_an_old_python(old_python: str) -> None:
    modules = modules_below_the_line()
    assert len(modules) > 80
    assert run(old_python, IMPORT_ALL, str(ROOT), *modules) == f"{len(modules)}\n"


@pytest.mark.slow
def test_an_old_python_diagnoses_every_log_sample_as_this_one_does(old_python: str) -> None:
    here, there = (
        run(python, DIAGNOSE_ALL, str(ROOT), str(LOGS)).splitlines() for python in (sys.executable, old_python)
    )
    assert there == here
    assert len(here) > 100
