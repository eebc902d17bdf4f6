"""What the guard of a command records when its supervisor has died."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mcp_server
from mcp_server.record.state import NEVER_BEGAN
from mcp_server.system.processes import find_process
from mcp_server.text.formatting import parse_time
from tests.support.sandbox import until

ROOT = Path(mcp_server.__file__).parents[1]

SUPERVISE_AND_DIE = """
import os, sys
from mcp_server.supervisor.terminal import pty
from mcp_server.supervisor.guard import Work, start_spare
directory, begins, is_spare = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
records = f"{directory}/exit.json", f"{directory}/guard_exit.json"
work = Work(["sh", "-c", sys.argv[4]], dict(os.environ), directory, None, *records)
child = pty.spawn(work, None, spare=start_spare() if is_spare else None)
if begins:
    child.let_go()
else:
    os.close(child.gate_fd)
os.close(child.release_fd)
os.waitpid(child.guard_pid, 0)
"""


SPAWN = """
import os, sys
from mcp_server.supervisor.terminal import pty
from mcp_server.supervisor.guard import Work, start_spare
spare = start_spare()
SETUP
lock_end, lock_fd = os.pipe()
child = pty.spawn(Work(["sh", "-c", "umask; exit 3"], dict(os.environ), "/", 0o027), None, [lock_fd], spare)
os.close(lock_fd)
child.let_go()
status = pty.read_number(child.status_fd)
output, _ = pty.read_output(child.master_fd)
os.set_blocking(lock_end, False)
try:
    held = bool(os.read(lock_end, 1))
except BlockingIOError:
    held = True
os.close(child.release_fd)
os.waitpid(child.guard_pid, 0)
print(status >> 8, output.decode().strip(), held, os.read(lock_end, 1) == b"", child.guard_pid == spare._pid)
"""


def run_python(source: str, *words: object) -> str:
    argv = [sys.executable, "-c", source, *map(str, words)]
    return subprocess.run(argv, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("is_spare", [True, False])
def test_a_guard_tells_a_command_that_never_began_from_one_that_ended(
    tmp_path: Path, *, is_spare: bool, begins: bool
) -> None:
    run_python(SUPERVISE_AND_DIE, tmp_path, begins, is_spare, "touch ran; exit 6")
    end = json.loads((tmp_path / "guard_exit.json").read_text())
    assert (tmp_path / "ran").exists() == begins
    if begins:
        assert (end["exit_code"], end["signal"]) == (6, None)
        assert abs(parse_time(end["ended_at"]).timestamp() - time.time()) < 60
    else:
        assert end == NEVER_BEGAN
    assert (tmp_path / "guard_exit.json").stat().st_mode & 0o777 == 0o600


def test_a_guard_names_the_signal_that_ended_the_command(tmp_path: Path) -> None:
    run_python(SUPERVISE_AND_DIE, tmp_path, True, True, "kill -SEGV $$")
    end = json.loads((tmp_path / "guard_exit.json").read_text())
    assert (end["exit_code"], end["signal"]) == (None, "SIGSEGV")


def test_a_spare_guard_starts_the_command_with_its_umask_and_holds_the_locks_until_its_end() -> None:
    assert run_python(SPAWN.replace("SETUP", "")) == "3 0027 True True True\n"


def test_a_command_starts_where_the_spare_guard_was_killed() -> None:
    killed = "os.kill(spare._pid, 9); os.waitid(os.P_PID, spare._pid, os.WEXITED | os.WNOWAIT)"
    assert run_python(SPAWN.replace("SETUP", killed)) == "3 0027 True True False\n"


def test_a_command_starts_where_the_spare_guard_is_stopped_and_takes_no_work() -> None:
    stopped = "os.kill(spare._pid, 19); from mcp_server.supervisor import guard; guard._PATIENCE_S = 0.2"
    large = SPAWN.replace("SETUP", stopped).replace("dict(os.environ)", "{**os.environ, **LARGE}")
    large = large.replace("spare = ", "LARGE = {f'V{n}': 'x' * 1000 for n in range(1000)}; spare = ")
    assert run_python(large) == "3 0027 True True False\n"


def test_a_spare_guard_ends_with_the_process_that_started_it() -> None:
    source = "from mcp_server.supervisor.guard import start_spare; print(start_spare()._pid)"
    pid = int(run_python(source))  # the pipe closes once nobody has it
    until(lambda: find_process(pid) is None, "the end of the guard")


def test_a_guard_is_forked_before_anything_large_is_loaded(tmp_path: Path) -> None:
    source = (
        "import sys; sys.argv[1:] = [sys.argv[1]]; from mcp_server.supervisor import __main__, guard\n"
        "guard.start_spare.__globals__['os'].fork = lambda: print(*sys.modules) or sys.exit(0)\n"
        "__main__.main()"
    )
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {source}", str(tmp_path)]
    loaded = subprocess.run(argv, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout.split()
    assert "mcp_server.supervisor.guard" in loaded
    assert {"pathlib", "contextlib", "typing", "enum", "json", "re", "collections"}.isdisjoint(loaded)
