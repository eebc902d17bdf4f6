"""Follows the files with curves that an attempt writes: what is new in them goes to who judges its progress.

A file is read where it has changed, ever more rarely, and at most so often that it takes 2 % of a core.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.curves.follow import open_tail
from mcp_server.record.curves.tails import CurveRow, Tail
from mcp_server.record.scalar_files import find_scalar_file, parse_event_name
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.files import open_regular_file
from mcp_server.system.inotify import CREATED, MOVED_TO, FileEvent, Inotify
from mcp_server.system.time_bounds import RateBudget

_FIRST_S, _SLOWER, _LONGEST_S = 0.2, 1.5, 3.0  # between two reads of a file that grows
_LONGEST_OTHER_S = 30.0  # between two questions whose a file is that is not the attempt's
_SHARE = 50
_MOST_FILES, _HEAD_BYTES, _MOST_NAMED = 300, 4096, 2
_MOST_FORMER, _FORMER_S = 2_000, 0.15  # entries that are looked at, time that it may take
_WAL = "-wal"  # beside a database, which grows only later


OWN = ""  # the owner of a file of the attempt


def may_hold_curve(path: str) -> bool:
    """Return whether a file of this name is worth a look."""
    path = path.removesuffix(_WAL)
    return "tfevents" in path or "/metrics/" in path or find_scalar_file(path.rpartition("/")[2]) is not None


def find_curve_files(directory: str, depth: int, max_entries: int, max_s: float) -> list[str]:
    """Return the files that may hold curves, at most so many levels below a directory, as far as that time allows."""

    def curve_file(entry: os.DirEntry[str]) -> str | None:
        return entry.path if may_hold_curve(entry.path) and entry.is_file(follow_symlinks=False) else None

    scan = DirectoryScan(depth, max_entries=max_entries, max_s=max_s)
    found = scan.walk(Path(directory), curve_file, skip=lambda name: name.startswith("."))
    return [path for _, some in found for path in some]


@dataclass
class _Followed:
    """One file. ``due_s``: when it is read next, ``inf`` while it has not changed. ``is_none``: it holds no curve."""

    due_s: float
    pause_s: float = _FIRST_S
    tail: Tail | None = None
    is_none: bool = False
    owner: str | None = None
    is_known: bool = False  # it was read, or is not the attempt's
    has_rows: bool = False
    is_empty: bool = False
    changed: str = ""  # the file that did, which may be the one beside a database


class ScalarTails:
    """The files of one attempt, begun at ``begun_wall_s`` (POSIX).

    ``find_owner`` says whose a file is, as ``CurveOwnership.judge`` does. ``take`` gets the path, the new rows, and who
    else may have written them, empty for nobody. The newest row of a file that holds no times has that of the file.
    """

    def __init__(
        self,
        find_owner: Callable[[str], str | None],
        take: Callable[[str, list[CurveRow], str], None],
        begun_wall_s: float = 0.0,
    ) -> None:
        self.due_s = math.inf
        self._begun_wall_s = begun_wall_s
        self._find_owner, self._take = find_owner, take
        self._files: dict[str, _Followed] = {}

    @property
    def is_following(self) -> bool:
        """Whether a file with rows is, or may be, the attempt's."""
        return any(file.has_rows for file in list(self._files.values()))

    def note_change(self, path: str, *, is_new: bool = False, is_held: bool = False) -> None:
        """Note that a file has changed; ``is_new``: it may be another one than before; ``is_held``: by the attempt."""
        changed, path = path, path.removesuffix(_WAL)
        file = self._files.get(path)
        if file is None:
            if not may_hold_curve(path) or len(self._files) >= _MOST_FILES:
                return
            file = self._files[path] = _Followed(math.inf)
        file.changed = changed
        file.is_none = file.is_none and not is_new
        is_sooner = (is_held or is_new) and file.owner is None
        if is_sooner:
            file.pause_s = _FIRST_S
        if not file.is_none and (is_sooner or file.due_s == math.inf):  # never later: it may change without end
            file.due_s = min(file.due_s, time.monotonic() + (file.pause_s if file.is_known else 0.0))
            self.due_s = min(self.due_s, file.due_s)

    def pass_over_former(self, directory: str, depth: int, before_ns: int) -> None:
        """Take none of the rows that files so far below a directory hold that changed last before a time."""
        for path in find_curve_files(directory, depth, _MOST_FORMER, _FORMER_S):
            self.pass_over(path, before_ns)

    def pass_over(self, path: str, before_ns: int) -> None:
        """Take none of the rows that a file holds now, where it changed last before a time."""
        path = path.removesuffix(_WAL)
        if not may_hold_curve(path):
            return
        with contextlib.suppress(OSError, EOFError):
            fd = open_regular_file(path)  # type: ignore[arg-type] # as os.open takes it
            try:
                is_former = os.fstat(fd).st_mtime_ns < before_ns and path not in self._files
                tail = open_tail(path, os.pread(fd, _HEAD_BYTES, 0), self._begun_wall_s) if is_former else None
                if tail is not None and len(self._files) < _MOST_FILES:
                    tail.pass_over(fd)
                    self._files[path] = _Followed(math.inf, tail=tail)
            finally:
                os.close(fd)

    def read_due(self, *, at_once: bool = False, ended: bool = False) -> None:
        """Read the files that are due; ``at_once``: all that have changed. ``ended``: the attempt writes no more."""
        begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
        if begun_s < self.due_s and not at_once:
            return
        for path, file in list(self._files.items()):
            if file.due_s != math.inf and (at_once or file.due_s <= begun_s):
                file.due_s = math.inf
                with contextlib.suppress(OSError):
                    self._read(path, file, is_slower=not at_once, ended=ended)
        earliest_s = time.monotonic() + _SHARE * (time.thread_time() - begun_cpu_s)
        self.due_s = min((max(file.due_s, earliest_s) for file in self._files.values()), default=math.inf)

    def _read(self, path: str, file: _Followed, *, is_slower: bool, ended: bool) -> None:
        if file.owner != OWN or not ended:  # another run may have begun to write it
            former, file.owner = file.owner, self._find_owner(file.changed)
            file.pause_s = _FIRST_S if former is None and file.owner is not None else file.pause_s
        rows = self._read_rows(path, file) if file.owner is not None else []
        file.is_known |= bool(rows) or file.owner != OWN
        if file.is_known and is_slower:
            longest_s = _LONGEST_OTHER_S if file.owner is None else _LONGEST_S
            file.pause_s = min(longest_s, file.pause_s * _SLOWER)
        if rows:
            file.has_rows = True
            self._take(path, rows, file.owner or OWN)

    def _read_rows(self, path: str, file: _Followed) -> list[CurveRow]:
        fd = open_regular_file(path)  # type: ignore[arg-type] # as os.open takes it
        try:
            changed_s = os.fstat(fd).st_mtime
            if file.tail is None:
                try:
                    file.tail = open_tail(path, os.pread(fd, _HEAD_BYTES, 0), self._begun_wall_s)
                except EOFError:
                    file.is_empty = True
                    return []
                file.is_none = file.tail is None
            rows = file.tail.read(fd) if file.tail is not None else []
        finally:
            os.close(fd)
        file.is_empty = not rows and not file.has_rows and file.tail is not None and file.tail.is_certain
        if rows and rows[-1].wall_s is None:
            rows[-1] = rows[-1]._replace(wall_s=changed_s)
        return rows

    def describe_empty(self) -> tuple[str, ...]:
        """Return the files of the attempt in which nothing was found yet."""
        empty = [path for path, file in self._files.items() if file.owner == OWN and file.is_empty]
        return tuple(empty[:_MOST_NAMED])


_MOST_NEW, _MOST_ENTRIES, _LOOK_S = 20, 300, 0.02
_AT_ONCE, _PER_S = 100, 0.2  # of everybody's new files, about which one hears


class TemporaryFiles:
    """Hears of event files in new directories for temporary files, which are everybody's, by the number in their names.

    TensorBoard's own writer opens its file for instants only, so no look at a process shows it. Where others make many
    files there, nothing more is heard: that would cost each run a share of what all do.
    """

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._roots: set[str] = set()
        self._new: dict[str, None] = {}  # directories, in which a file may follow
        self._budget = RateBudget(_AT_ONCE, _PER_S)

    def add(self, root: str) -> None:
        """Listen in a directory for temporary files, unless it is watched for all that happens there."""
        if self._inotify.watched_ns(root) is None and self._inotify.add(root, 0, CREATED | MOVED_TO):
            self._roots.add(root)

    def take(self, event: FileEvent, pids: Container[int]) -> list[str] | None:
        """Return the event files of processes of these numbers that ``event`` shows, None where it is of the run."""
        directory = os.path.dirname(event.path)  # noqa: PTH120 - hot path
        if directory not in self._roots and directory not in self._new:
            return None
        own = [path for path in self._list_event_files(event) if _is_of(path, pids)]
        for path in [one for one in self._new if any(file.startswith(f"{one}/") for file in own)]:
            self._forget(path)
        if not own and not self._budget.take():
            self._close()
        return own

    def _list_event_files(self, event: FileEvent) -> list[str]:
        if not event.is_directory:
            return [event.path] if "tfevents" in event.path else []
        self._new[event.path] = None
        self._inotify.add(event.path, 0, CREATED | MOVED_TO)
        if len(self._new) > _MOST_NEW:
            self._forget(next(iter(self._new)))
        scan = DirectoryScan(4, max_entries=_MOST_ENTRIES, max_s=_LOOK_S)
        return [path for _, found in scan.walk(Path(event.path), _event_file) for path in found]

    def _forget(self, path: str) -> None:
        self._new.pop(path, None)
        self._inotify.remove(path)

    def _close(self) -> None:
        for path in [*self._roots, *self._new]:
            self._inotify.remove(path)
        self._roots.clear()
        self._new.clear()


def _is_of(path: str, pids: Container[int]) -> bool:
    name = parse_event_name(path.rpartition("/")[2])
    return name is not None and any(pid in pids for pid, _ in name.writers)


def _event_file(entry: os.DirEntry[str]) -> str | None:
    return entry.path if "tfevents" in entry.name else None
