"""Finds event files: those of one directory, and the directories below a root that hold any."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from mcp_server.system.directory_scan import DirectoryScan

_WRITTEN_SINCE = re.compile(r"tfevents\.(\d{1,18})(?:\D|$)")  # s, by the clock of the writer
_MOST_ENTRIES = 200_000  # of all directories together: a data set of a million images may be stored next to the logs


def list_event_files(directory: Path) -> list[Path]:
    """Return the event files in ``directory``, links to regular files included, by the time in their names."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if _event_file_status(entry) is not None]
    return [directory / name for name in sorted(names, key=_age)]


def has_event_files(path: Path) -> bool:
    """Return whether ``path`` is a directory with event files directly in it."""
    try:
        return bool(list_event_files(path))
    except OSError:
        return False


def find_event_directories(root: Path, *, deepest: int = 8, most: int = 2000) -> list[tuple[Path, float]]:
    """Return the directories with event files, at most ``deepest`` levels below, with the POSIX time of their change.

    Newest first. No link to a directory is followed except ``root`` itself; unreadable ones are skipped. Reads at most
    200,000 entries and returns at most ``most`` directories. Network file systems report times wrongly.
    """
    found = DirectoryScan(deepest, max_entries=_MOST_ENTRIES).walk(root, _event_file_status)
    dated = [(path, max(status.st_mtime for status in files)) for path, files in found if files]
    return sorted(dated, key=lambda one: (-one[1], one[0]))[:most]


def _event_file_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    # TensorBoard takes any name with "tfevents"; the profiler leaves empty files with this suffix.
    if "tfevents" in entry.name and not entry.name.endswith(".profile-empty"):
        with suppress(OSError):
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                return status
    return None


def _age(name: str) -> tuple[int, str]:
    match = _WRITTEN_SINCE.search(name)
    return (int(match[1]) if match else 0, name)
