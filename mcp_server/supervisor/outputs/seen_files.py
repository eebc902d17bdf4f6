"""The files that an attempt wrote, as far as they were seen: their names, sizes and times, and whose they are.

File times are as exact as the kernel's tick. The state of a closed file is therefore final, or settled, only once it is
older than that, and once nobody else has changed it meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.scalar_files import parse_event_name
from mcp_server.record.written_files import MOST_FILES, WrittenFile
from mcp_server.supervisor.outputs.scalar_tails import find_curve_files
from mcp_server.supervisor.outputs.write_sessions import WriteSessions
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.inotify import Inotify

SETTLE_S = 0.03
_SETTLES_NS = 20 * 10**6  # what was written later than so long ago may have the same time
_LIST_S, _LIST_MENTIONED_S, _LIST_DEPTH, _LIST_ENTRIES = 1.0, 0.3, 5, 20_000
_MOST_EVENT_FILES = 500


class SeenFiles:
    """Files by device and inode. ``take_events`` reads the changes that inotify has to report.

    ``cut``: there were more than are recorded.
    """

    def __init__(self, sessions: WriteSessions, inotify: Inotify, take_events: Callable[[], None]) -> None:
        self.cut = False
        self._sessions, self._inotify, self._take_events = sessions, inotify, take_events
        self._files: dict[tuple[int, int], _SeenFile] = {}
        self._event_files: dict[str, None] = {}  # that somebody created

    def written(self) -> tuple[WrittenFile, ...]:
        """Return all files, as the record holds them."""
        return tuple(file.written() for file in self._files.values())

    def directories(self) -> list[str]:
        """Return the directories of all files."""
        return list(dict.fromkeys(os.path.dirname(file.path) for file in self._files.values()))  # noqa: PTH120 - hot path

    def find_held(self, path: str, inode: int) -> _SeenFile | None:
        """Return the file at ``path`` that the attempt had open for writing, or that its name proves to be its own."""
        return next((one for one in self._files.values() if (one.path, one.inode) == (path, inode)), None)

    def list_held(self) -> list[_SeenFile]:
        """Return all such files."""
        return [file for file in self._files.values() if not file.listed]

    def note_open(self, path: str, status: os.stat_result, *, append: bool) -> bool:
        """Note that a process of the attempt has a file open for writing, and return whether it is new or has grown.

        ``append``: in append mode.
        """
        key = status.st_dev, status.st_ino
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = _SeenFile(path, status.st_ino)
        file.path, file.open = path, True
        file.append |= append
        former_ns = file.changed_ns
        file.size, file.changed_ns = status.st_size, status.st_mtime_ns
        return former_ns != file.changed_ns

    def note_event_file(self, path: str) -> None:
        """Note an event file that somebody created."""
        if len(self._event_files) < _MOST_EVENT_FILES:
            self._event_files[path] = None

    @property
    def has_event_files(self) -> bool:
        """Whether an event file of the attempt is known."""
        return any("tfevents" in file.path for file in self._files.values())

    def find_event_files(self, directory: str) -> list[str]:
        """Note the event files at or below a directory, and return them with others that may hold curves."""
        paths = find_curve_files(directory, _LIST_DEPTH, _LIST_ENTRIES, _LIST_S)
        self._event_files.update(dict.fromkeys([path for path in paths if "tfevents" in path][:_MOST_EVENT_FILES]))
        return paths

    def name_event_files(self, pids: Container[int]) -> None:
        """Record the event files that hold the number of a process of the attempt: some are open for instants only."""
        paths = {file.path for file in self._files.values()}
        for path in [path for path in self._event_files if path not in paths]:
            name = parse_event_name(path.rpartition("/")[2])
            if name is None or not any(pid in pids for pid, _ in name.writers):
                continue
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116 - hot path
                file = self._files[status.st_dev, status.st_ino] = _SeenFile(path, status.st_ino, unsure=True)
                file.size, file.changed_ns = status.st_size, status.st_mtime_ns
            del self._event_files[path]

    def end_sample(self, open_inodes: Container[tuple[int, int]], pids: Container[int]) -> None:
        """Note which files are open no more. ``pids``: the numbers of the attempt's processes."""
        self.name_event_files(pids)
        for inode, file in self._files.items():
            if inode in open_inodes:
                file.unsure = self._sessions.may_hold_others(file.path, append=file.append)
            elif file.open:
                file.open, file.unsure = False, True  # until it is settled
        if (surplus := len(self._files) - MOST_FILES) > 0:
            self.cut = True
            for inode in [inode for inode, file in self._files.items() if not file.open][:surplus]:  # seen first
                del self._files[inode]

    def follow(self, former: str, path: str) -> None:
        """Know the files at or below ``former`` by their new paths."""
        for file in self._files.values():
            if file.path == former or file.path.startswith(former + "/"):
                file.path = path + file.path[len(former) :]

    def settle(self) -> bool:
        """Record size and time of closed files that hold what the attempt wrote; return whether none is left to do."""
        proven = [(file, file.stat()) for file in self._files.values() if self._is_proven(file)]
        latest_ns = time.time_ns() - _SETTLES_NS
        if proven:
            self._take_events()  # what changed them since is known now
        for file, status in proven:
            if status is not None and status.st_mtime_ns < latest_ns and self._is_proven(file, status.st_mtime_ns):
                file.unsure, file.size, file.changed_ns = False, status.st_size, status.st_mtime_ns
        return all(status is None or status.st_mtime_ns < latest_ns for _, status in proven)

    def close(self, pids: Container[int]) -> None:
        """Record the state of all files, which no process of the attempt has open any more."""
        self._take_events()
        self.name_event_files(pids)
        for file in self._files.values():
            if file.open:
                file.open, file.unsure = False, True
        if not self.settle():
            time.sleep(_SETTLES_NS / 10**9)
            self.settle()
        for file in self._files.values():
            file.note_state()

    def list_changed(self, directories: Iterable[str], since_ns: int) -> None:
        """List the files that changed during the attempt in the directories that it wrote or named.

        ``directories``: those that it named.
        """
        self.cut |= self._list_below([*directories, *self.directories()], since_ns, _LIST_S)

    def list_mentioned(self, directories: Iterable[str], since_ns: int) -> list[str]:
        """List the files that changed in directories that may be inputs, and return the directories that have any."""
        directories = list(directories)
        self._list_below(directories, since_ns, _LIST_MENTIONED_S)
        return [one for one in directories if any(file.path.startswith(f"{one}/") for file in self._files.values())]

    def _list_below(self, directories: Iterable[str], since_ns: int, max_s: float) -> bool:
        """List the files that changed below ``directories``; return whether some may be left out."""
        deadline_s, is_cut = time.monotonic() + max_s, False
        roots = [path for path in dict.fromkeys(directories) if may_be_listed(path)]
        paths = {file.path for file in self._files.values()}
        for root in roots:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return True
            scan = DirectoryScan(_LIST_DEPTH, max_entries=_LIST_ENTRIES, max_s=left_s)
            for _, entries in scan.walk(Path(root), _regular_file, skip=lambda name: name.startswith(".")):
                for path, status in entries:
                    key = status.st_dev, status.st_ino
                    if path in paths or status.st_mtime_ns < since_ns or key in self._files:
                        continue
                    if len(self._files) >= MOST_FILES:
                        return True
                    self._files[key] = _SeenFile(path, status.st_ino, status.st_size, status.st_mtime_ns, listed=True)
            is_cut |= scan.cut
        return is_cut

    def _is_proven(self, file: _SeenFile, changed_ns: int = 2**63) -> bool:
        """Return whether an unsure file was closed, and changed by the attempt alone, last at ``changed_ns``."""
        if file.open or not file.unsure or file.listed:
            return False
        directory = os.path.dirname(file.path)  # noqa: PTH120 - hot path
        is_proven = self._sessions.is_proven(file.path, changed_ns, self._inotify.watched_ns(directory))
        return is_proven and not (file.append and self._sessions.has_strangers(file.path))


def may_be_listed(path: str) -> bool:
    """Return whether a directory may be listed. The temporary and home directories hold everybody's files."""
    return path not in ("/", "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"))  # noqa: S108, PTH111


@dataclass
class _SeenFile:
    """A file that was open for writing, or is listed at the end."""

    path: str
    inode: int
    size: int = 0
    changed_ns: int = 0
    open: bool = False
    append: bool = False
    listed: bool = False
    unsure: bool = False

    @property
    def is_sure(self) -> bool:
        """Whether what it holds is the attempt's although others work there."""
        return not self.unsure

    def stat(self) -> os.stat_result | None:
        """Return its status, or None where it is gone or another file has its path."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - hot path
        except OSError:
            return None
        return status if status.st_ino == self.inode else None

    def note_state(self) -> None:
        """Record size and time at the end. It is unsure if they are not those that were settled."""
        status = self.stat()
        if status is None or (self.size, self.changed_ns) == (status.st_size, status.st_mtime_ns):
            return
        self.unsure = True
        self.size, self.changed_ns = status.st_size, status.st_mtime_ns

    def written(self) -> WrittenFile:
        facts = (self.path, self.inode, self.size, self.changed_ns)
        return WrittenFile(*facts, open=self.open, append=self.append, listed=self.listed, unsure=self.unsure)


def _regular_file(entry: os.DirEntry[str]) -> tuple[str, os.stat_result] | None:
    status = entry.stat(follow_symlinks=False)
    return (entry.path, status) if stat.S_ISREG(status.st_mode) else None


_MOST = 50
_LOOK_DEPTH, _LOOK_ENTRIES, _LOOK_S = 2, 300, 0.05


class MentionedDirectories:
    """Directories that a command mentions without saying that it writes there: ``python eval.py /data/out``.

    One may be an input. It is an output if all of its files are of the attempt's time: then the attempt filled it. Else
    what changes in it is uncertain, unless a process had the file open for writing, or it is below ``cwd``, where it
    says no more than any other.

    ``shared``: those elsewhere that had files before the attempt began (``begun_ns``), or too many to look at.
    """

    def __init__(self, cwd: str, begun_ns: int) -> None:
        self.shared: dict[str, None] = {}
        self._cwd, self._begun_ns = cwd.rstrip("/"), begun_ns
        self._undecided: dict[str, None] = {}  # empty, or not there yet
        self._known: set[str] = set()

    def add(self, paths: Iterable[str]) -> None:
        """Note paths that a command mentions."""
        for path in paths:
            if path in self._known or len(self._known) >= _MOST or f"{self._cwd}/".startswith(f"{path.rstrip('/')}/"):
                continue  # above the working directory everybody's files are
            self._known.add(path)
            if may_be_listed(path):
                self._undecided[path] = None

    def decide(self) -> list[str]:
        """Return those that prove to be outputs now."""
        outputs = []
        for path in list(self._undecided):
            scan = DirectoryScan(_LOOK_DEPTH, max_entries=_LOOK_ENTRIES, max_s=_LOOK_S)
            times = [file.st_mtime_ns for _, found in scan.walk(Path(path), _regular_file) for _, file in found]
            if not times and not scan.cut:
                continue
            del self._undecided[path]
            if not scan.cut and min(times) >= self._begun_ns:
                outputs.append(path)
            elif not path.startswith(f"{self._cwd}/"):
                self.shared[path] = None
        return outputs

    def watchable(self) -> list[str]:
        """Return the directories in which changes are worth a look."""
        return [*self.shared, *self._undecided]

    def expected_in(self) -> set[str]:
        """Return the directories below the working directory in which one that is mentioned may appear."""
        below = [path for path in self._undecided if path.startswith(f"{self._cwd}/")]
        return {os.path.dirname(path) for path in below} - {self._cwd}  # noqa: PTH120 - hot path
