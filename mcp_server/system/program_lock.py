"""The lock of the program that a process runs from: held as long as it lives, so that nobody removes the program.

A program is a directory with a lock file in it, or one file, which is locked itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

LOCK_NAME = "in_use.lock"


def hold_program_lock(program: Path) -> None:
    """Share the lock of ``program`` until this process exits. Does nothing where it has none."""
    with contextlib.suppress(OSError):
        path = program if program.is_file() else program / LOCK_NAME
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)


def remove_unused_files(used: Path, unused_s: float) -> None:
    """Remove the programs beside ``used``, each one file, that nobody holds and that nobody began for so long."""
    with contextlib.suppress(OSError):
        os.utime(used)
        for path in used.parent.glob(f"*{used.suffix}*"):
            if path != used and time.time() - path.stat().st_mtime > unused_s:
                _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)
