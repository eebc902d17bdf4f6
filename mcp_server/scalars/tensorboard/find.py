"""Finds event files: those of one directory, and the directories below a root that hold any."""

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mcp_server.system.directory_scan import DirectoryScan

_WRITTEN_SINCE = re.compile(r"tfevents\.(\d{1,18})(?:\D|$)")  # s, by the clock of the writer
_MOST_ENTRIES = 200_000  # of all directories together: a data set of a million images may be stored next to the logs


@dataclass(frozen=True)
class EventDirectory:
    """A directory with event files. ``files`` and ``bytes`` are totals.

    ``newest_s``: POSIX time of the newest change. Network file systems report it wrongly: use it only for sorting.
    """

    path: Path
    newest_s: float
    files: int
    bytes: int


def list_event_files(directory: Path) -> list[Path]:
    """Return the event files directly in ``directory``, oldest first by the time in their names, then by name.

    A link to a regular file counts; a pipe, a device or a directory of such a name does not.

    Raises:
        OSError: the directory cannot be listed.
    """
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if _event_file_status(entry) is not None]
    return [directory / name for name in sorted(names, key=_age)]


def has_event_files(path: Path) -> bool:
    """Return whether ``path`` is a directory with event files directly in it."""
    try:
        return bool(list_event_files(path))
    except OSError:
        return False


def find_event_directories(root: Path, *, deepest: int = 8, most: int = 2000) -> list[EventDirectory]:
    """Return the directories with event files, ``root`` and at most ``deepest`` levels below, newest change first.

    No link to a directory is followed except ``root`` itself, so the search stays below it and ends. Unreadable
    directories are skipped. Reads at most 200,000 directory entries and returns at most ``most`` directories.
    """
    directories = []
    for path, files in DirectoryScan(deepest, max_entries=_MOST_ENTRIES).walk(root, _event_file_status):
        if files:
            newest_s, size = max(status.st_mtime for status in files), sum(status.st_size for status in files)
            directories.append(EventDirectory(path, newest_s, len(files), size))
    return sorted(directories, key=lambda directory: (-directory.newest_s, directory.path))[:most]


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
