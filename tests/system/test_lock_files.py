"""Locks of one user's processes: held while the holder lives, seen by every reader."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.system import lock_files
from mcp_server.system.lock_files import hold_lock, is_locked, take_lock, try_lock

PACKAGE = Path(lock_files.__file__).parents[2]


def elsewhere(expression: str, *words: str) -> str:
    """What ``expression`` says in another process, with ``path`` the first word."""
    code = (
        f"import sys, os; sys.path.insert(0, {str(PACKAGE)!r}); from pathlib import Path\n"
        f"from mcp_server.system.lock_files import is_locked, take_lock; path = Path(sys.argv[1]); print({expression})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    assert not is_locked(path)
    fd = take_lock(path)
    assert fd is not None
    assert is_locked(path)
    assert take_lock(path) is None
    os.close(fd)
    assert not is_locked(path)


def test_other_processes_see_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    fd = take_lock(path)
    assert fd is not None
    assert elsewhere("is_locked(path), take_lock(path)", str(path)) == "True None"
    os.close(fd)
    assert elsewhere("is_locked(path)", str(path)) == "False"


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    assert elsewhere("take_lock(path) is not None, is_locked(path)", str(path)) == "True True"
    assert not is_locked(path)
    fd = take_lock(path)
    assert fd is not None
    os.close(fd)


def test_a_held_lock_is_seen_while_its_holder_lives(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    code = (
        "import sys, fcntl; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_locked(path)
        assert take_lock(path) is None
        holder.kill()
        holder.wait()
        assert not is_locked(path)


def test_two_readers_do_not_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not is_locked(path)


class Sleeper:
    """A clock that only sleeping moves; ``wake`` is called with each moment slept to."""

    def __init__(self, wake: Callable[[float], None]) -> None:
        self.now_s = 1000.0
        self._wake = wake

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._wake(self.now_s - 1000)


def test_a_probing_reader_does_not_cost_a_supervisor_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # launch_run probes the lock file as soon as it appears, a moment before the supervisor locks it.
    path = tmp_path / "supervisor.lock"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(lock_files, "time", Sleeper(lambda slept_s: reader.close() if slept_s > 0.002 else None))
        fd = take_lock(path, patience_s=2)
    assert fd is not None
    os.close(fd)


def test_patience_does_not_take_the_lock_of_a_living_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "supervisor.lock"
    fd = take_lock(path)
    assert fd is not None
    clock = Sleeper(lambda _: None)
    monkeypatch.setattr(lock_files, "time", clock)
    assert take_lock(path, patience_s=2) is None
    assert clock.now_s - 1000 == pytest.approx(2, abs=0.01)
    os.close(fd)


def test_a_file_in_a_missing_directory_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        take_lock(tmp_path / "none" / "supervisor.lock")
    assert not is_locked(tmp_path / "none" / "supervisor.lock")


def test_a_lock_held_for_a_block_shuts_others_out_until_its_end(tmp_path: Path) -> None:
    path = tmp_path / "tokens.lock"
    with hold_lock(path), path.open() as other:
        assert not try_lock(other.fileno())
    with path.open() as other:
        assert try_lock(other.fileno())


def test_the_list_of_some_files_locks_changes_with_these_alone(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (ours, other)]
    inodes = {ours.stat().st_ino}
    free = lock_files.list_locks(inodes)
    assert try_lock(fds[1])
    assert lock_files.list_locks(inodes) == free
    assert try_lock(fds[0])
    held = lock_files.list_locks(inodes)
    assert held != free
    os.close(fds[1])
    assert lock_files.list_locks(inodes) == held
    os.close(fds[0])
    assert lock_files.list_locks(inodes) == free
