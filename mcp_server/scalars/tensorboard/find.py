"""Finds event files: those of a directory, and the directories below a root that have any."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_WRITTEN_SINCE = re.compile(r"tfevents\.(\d{1,18})(?:\D|$)")  # s, by the clock of the writer
_MOST_ENTRIES = 200_000  # of all directories looked into: a data set of a million images may lie beside the logs


@dataclass(frozen=True)
class EventDirectory:
    """A directory with event files, and what they are together.

    ``newest_s`` is the POSIX time of the newest change. Network file systems tell it wrong: good for sorting, no more.
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
        names = [entry.name for entry in entries if _is_named_so(entry.name) and _regular(entry) is not None]
    return [directory / name for name in sorted(names, key=_age)]


def find_event_directories(root: Path, *, deepest: int = 8, most: int = 2000) -> list[EventDirectory]:
    """Return the directories with event files, ``root`` and at most ``deepest`` levels below, newest change first.

    No link to a directory is followed, except ``root`` itself, so the search stays below it and ends. What cannot be
    read is passed over. Looks level by level, at 200,000 directory entries at most, and returns at most ``most``.
    """
    found: list[EventDirectory] = []
    level, entries_left = [root], _MOST_ENTRIES
    for _ in range(deepest + 1):
        below: list[Path] = []
        for directory in level:
            here, inner, entries = _look_into(directory, entries_left)
            entries_left -= entries
            below += inner
            if here is not None:
                found.append(here)
        level = below
    return sorted(found, key=lambda one: (-one.newest_s, one.path))[:most]


def _look_into(directory: Path, most: int) -> tuple[EventDirectory | None, list[Path], int]:
    """Return what a directory has directly, the directories in it, and how many entries were looked at."""
    count, inner, files = 0, [], []
    with suppress(OSError):
        for count, entry in enumerate(_entries(directory), 1):
            if count > most:
                break
            if entry.is_dir(follow_symlinks=False):
                inner.append(directory / entry.name)
            elif _is_named_so(entry.name) and (status := _regular(entry)) is not None:
                files.append(status)
    if not files:
        return None, sorted(inner), count
    newest_s = max(status.st_mtime for status in files)
    return (
        EventDirectory(directory, newest_s, len(files), sum(status.st_size for status in files)),
        sorted(inner),
        count,
    )


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from entries


def _is_named_so(name: str) -> bool:
    # TensorBoard takes any name with "tfevents"; the profiler leaves files of that suffix that hold nothing.
    return "tfevents" in name and not name.endswith(".profile-empty")


def _regular(entry: os.DirEntry[str]) -> os.stat_result | None:
    with suppress(OSError):
        status = entry.stat()
        if stat.S_ISREG(status.st_mode):
            return status
    return None


def _age(name: str) -> tuple[int, str]:
    match = _WRITTEN_SINCE.search(name)
    return (int(match[1]) if match else 0, name)
