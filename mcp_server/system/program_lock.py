"""The lock of the program that a supervisor runs from: held as long as it lives, so that nobody removes the program."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

LOCK_NAME = "in_use.lock"


def hold_program_lock(directory: Path) -> None:
    """Share the lock of the program in ``directory`` until this process exits. Does nothing where it has none."""
    with contextlib.suppress(OSError):
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
