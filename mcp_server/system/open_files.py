"""The files that processes have open for writing, as Linux lists them in `/proc/PID/fd`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_FDS = 4_096  # of one process
_NOT_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")


def list_written_files(pid: int) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield path, status and whether it only appends, of each regular file that a process has open for writing.

    Nothing for a process that has exited or belongs to another user. A deleted file is left out.
    """
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - hot path
    except OSError:
        return
    for name in names[:_MOST_FDS]:
        link = f"{directory}/{name}"
        try:
            target = os.readlink(link)  # noqa: PTH115 - hot path
            # A link in /proc has the owner's write bit if the file was opened for writing.
            if not target.startswith("/") or target.startswith(_NOT_FILES) or target.endswith(" (deleted)"):
                continue
            if not os.lstat(link).st_mode & stat.S_IWUSR:
                continue
            status = os.stat(link)  # noqa: PTH116 - hot path
            if stat.S_ISREG(status.st_mode):
                yield target, status, _appends(pid, name)
        except OSError:
            continue


def _appends(pid: int, name: str) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        facts = Path(f"/proc/{pid}/fdinfo/{name}").read_bytes()
        return bool(int(facts.partition(b"flags:")[2].split()[0], 8) & os.O_APPEND)
    return False
