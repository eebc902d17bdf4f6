"""Keeps the index of runs in step with their directories, which it looks at before each question."""

import contextlib
import math
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mcp_server.errors import RunNotFound, RunUnreadable
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.store.run_index import Row, RunIndex, open_index, remove_index
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import is_shared_filesystem
from mcp_server.system.lock_files import is_locked

Found = TypeVar("Found")
# Reads more of ended runs, and returns what writes that beside their rows.
Heed = Callable[[RunIndex, Sequence[Run]], Callable[[], None]]

_ROWS_AT_ONCE = 500  # written: a process that dies while it makes the index leaves those before to the next
_RETRY_S = 30.0  # until a file that could not be written is tried again
_TRIES_TOGETHER = 60  # a second each, of processes that make the index together, and write one by one
# Linux notes the times of files by this clock, which moves every 4 or 10 ms: what has its present time may change once
# more and look the same. Some filesystems note only whole seconds.
CLOCK_OF_FILES, _COARSE_TICK_NS = 5, 2 * 10**9  # CLOCK_REALTIME_COARSE
_LOST_AFTER_S = 60.0  # a run whose supervisor may still start is not asked about in the index


class ManyUnread(Exception):
    """More runs are unread than one process should read alone."""


class RecordStore(Protocol):
    """The reader of one run's record: see ``RunStore``."""

    home: StateHome

    def observe(self, run_id: str) -> Run: ...  # noqa: D102
    def is_final(self, run: Run) -> bool: ...  # noqa: D102
    def is_cut_off_launch(self, run: Run) -> bool: ...  # noqa: D102
    def forget(self, run_ids: Iterable[str]) -> None: ...  # noqa: D102
    def list_remembered(self) -> set[str]: ...  # noqa: D102


class Catalogue:
    """Answers questions about many runs. May be shared by threads."""

    def __init__(self, store: RecordStore, share: tuple[int, int] = (0, 1)) -> None:
        self.live: dict[str, Run] = {}  # those that may change, as they were at the last question
        self.unreadable: list[str] = []  # ids of those whose state was unknown then
        self._store: RecordStore = weakref.proxy(store)  # which has this catalogue: both end at once, and their file
        self._lock = threading.RLock()
        self._thread = threading.local()  # ``needs_look`` within ``one_look``
        self._index: RunIndex | None = None
        self._known: dict[str, tuple[int, str]] = {}  # inodes and marks of the rows in the file
        self._version: int | None = None  # of the file, when they were read
        self._looks: object = None  # what the directories of runs looked like when they were read
        self._open: dict[str, int] = {}  # inodes of the runs without a row in the file
        self._marked: dict[str, tuple[int, str]] = {}  # inodes and marks of those whose row may become false
        self._stale: list[str] = []  # with a row in the file that is false, and not among the known ones
        self._unwritten: dict[str, Row] = {}  # of runs in ``_open``
        self._rows: dict[str, tuple[Run, Row]] = {}  # of live runs, as they were when they last changed
        self._own: object = None  # the rows and the hidden ids that the index was told last
        self._fresh: list[Run] = []  # those of ``_unwritten``, as they were read
        self._heed: Heed | None = None
        self._retry_s = 0.0
        self._share = share
        self._most_unread = math.inf

    def ask(
        self, question: Callable[[RunIndex], Found], heed: Heed | None = None, most_unread: float = math.inf
    ) -> Found:
        """Return the answer of the index once it says what the directories say.

        ``heed`` gets the ended runs that are read for it: what another module keeps of them need not read them again.

        Raises:
            ManyUnread: more than ``most_unread`` runs are to be read, into a file that other processes can write too.
        """
        with self._lock:
            self._heed, self._most_unread = heed, most_unread
            for is_last in (False, False, True):
                try:
                    return question(self._renew(is_last=is_last))
                except sqlite3.Error as error:
                    if is_last:
                        raise
                    self._drop_index(is_damaged=not isinstance(error, sqlite3.OperationalError))
        raise AssertionError

    def _renew(self, *, is_last: bool) -> RunIndex:
        if self._index is None:
            self._looks = self._version = self._own = None
            self._index = RunIndex(None) if is_last else open_index(self._store.home.path)
            self._look_anew()
        if getattr(self._thread, "needs_look", True):
            self._refresh(self._index)
            if hasattr(self._thread, "needs_look"):
                self._thread.needs_look = False
        return self._index

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Answer all questions of this thread in the block by one look at the directories: 5 ms for 200 live runs."""
        self._thread.needs_look = True
        try:
            yield
        finally:
            del self._thread.needs_look

    def _look_anew(self) -> None:
        if hasattr(self._thread, "needs_look"):
            self._thread.needs_look = True

    def _drop_index(self, *, is_damaged: bool) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()
            if index.path is not None and is_damaged:
                remove_index(index.path)

    def doubt(self, run_id: str) -> None:
        """Read a run anew whose record says another thing than its row."""
        with self._lock:
            self._open[run_id] = self.list_inodes().get(run_id, 0)
            self._stale.append(run_id)
            self._known.pop(run_id, None)
            self._look_anew()

    def list_inodes(self) -> dict[str, int]:
        """Return the ids of all directories that may be a run's, and their inodes."""
        inodes: dict[str, int] = {}
        for place in self._list_places():
            with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        inodes.setdefault(entry.name, entry.inode() & 2**63 - 1)  # SQLite has no larger numbers
        return inodes

    def _list_places(self) -> list[Path]:
        home = self._store.home
        return [home.runs, *(mirror / "runs" for mirror in home.list_mirrors())]

    def _look(self) -> object:
        """Return what the directories of runs look like; None where they may change without looking different."""
        if is_shared_filesystem(self._store.home.path):
            return None
        looks, begun_ns = [], time.clock_gettime_ns(CLOCK_OF_FILES)
        for place in (self._store.home.hosts, *self._list_places()):
            with contextlib.suppress(OSError):
                status = place.stat()
                looks.append((place, status.st_ino, status.st_mtime_ns))
        return looks if all(is_settled(changed_ns, begun_ns) for *_, changed_ns in looks) else None

    def _refresh(self, index: RunIndex) -> None:
        looks = self._look()
        if looks is None or looks != self._looks:
            self._compare(index)
            if len(self._open) > self._most_unread and index.path is not None:
                raise ManyUnread
            self._looks = looks
        for run_id, (inode, mark) in list(self._marked.items()):
            if self._find_mark(run_id, int(mark.partition(" ")[0])) != mark:
                del self._marked[run_id]
                self._open[run_id] = inode
        rows = []
        self.live, self.unreadable = {}, []
        for run_id, inode in list(self._open.items()):
            if run_id not in self._unwritten and (row := self._read(run_id, inode)) is not None:
                rows.append(row)
            if len(self._unwritten) >= _ROWS_AT_ONCE:
                self._write(index)
        self._write(index)
        self._rows = {run_id: each for run_id, each in self._rows.items() if run_id in self.live}
        own = [*rows, *self._unwritten.values()], [*self._open, *self._stale]
        if own != self._own:
            index.set_own(*own)
            self._own = own

    def _compare(self, index: RunIndex) -> None:
        inodes, version = self.list_inodes(), index.read_version()
        if version != self._version:
            self._known, self._version, self._stale = index.read_known(), version, []
        known = self._known
        stale = [run_id for run_id, (inode, _) in known.items() if inodes.get(run_id) != inode]
        for run_id in stale:
            del known[run_id]
        self._stale += stale
        self._marked = {run_id: each for run_id, each in known.items() if each[1]}
        self._open = {id_: inode for id_, inode in inodes.items() if id_ not in known and self.is_shared_out(id_)}
        self._unwritten = {id_: row for id_, row in self._unwritten.items() if self._open.get(id_) == row.inode}
        self._store.forget([*stale, *self._store.list_remembered() - inodes.keys()])

    def is_shared_out(self, run_id: str) -> bool:
        """Return whether a run is in the share of the unread ones that this process reads, by default all of them."""
        number, count = self._share
        return count == 1 or zlib.crc32(run_id.encode(errors="replace")) % count == number

    def _read(self, run_id: str, inode: int) -> Row | None:
        """Return the row of a run that may change, and note it. The row of another is noted to be written."""
        begun_ns = time.clock_gettime_ns(CLOCK_OF_FILES)
        try:
            run = self._store.observe(run_id)
            is_cut_off = self._store.is_cut_off_launch(run)
        except RunNotFound:  # removed meanwhile, or not a run's directory
            return None
        except RunUnreadable:
            self.unreadable.append(run_id)
            return None
        if self._store.is_final(run):
            self._unwritten[run_id] = Row.of(run, inode)
            self._fresh.append(run)
            return None
        mark = ""
        if run.abandoned and run.spec.backend == "tmux" and not run.spec.mirror:
            mark = self._find_mark(run_id, run.attempt, before_ns=begun_ns)
        if mark:
            self._unwritten[run_id] = Row.of(run, inode, mark=mark, is_cut_off=is_cut_off)
            return None
        self.live[run_id] = run
        known, row = self._rows.get(run_id, (None, None))
        if known is not run or row is None or row.inode != inode:
            row = Row.of(run, inode, is_cut_off=is_cut_off)
            self._rows[run_id] = run, row
        return row

    def _find_mark(self, run_id: str, attempt: int, before_ns: int | None = None) -> str:
        """Return what the record of a run without a supervisor looks like, with its attempt; empty where one lives.

        ``before_ns``: also where it has just changed, and may have done so after it was read at this time.
        """
        directory = RunDir(self._store.home.runs / run_id)
        words = [str(attempt)]
        try:
            if is_locked(directory.lock):
                return ""
            for path in (directory.path, directory.attempt(attempt), directory.events, directory.spec):
                status = path.stat() if path == directory.path or path.exists() else None
                words.append(f"{status.st_mtime_ns}-{status.st_size}" if status is not None else "")
                if before_ns is None or status is None:
                    continue
                patience_ns = int(_LOST_AFTER_S * 1e9) if path == directory.path else 0
                if not is_settled(status.st_mtime_ns + patience_ns, before_ns):
                    return ""
        except OSError:
            return ""
        return " ".join(words)

    def _write(self, index: RunIndex) -> None:
        fresh, self._fresh = self._fresh, []
        if not (self._unwritten or self._stale) or time.monotonic() < self._retry_s:
            return
        stale = [run_id for run_id in self._stale if run_id not in self._unwritten]
        keep = self._heed(index, fresh) if self._heed is not None and fresh else lambda: None
        tries = range(1 if self._share[1] == 1 else _TRIES_TOGETHER)
        if not any(index.write(self._unwritten.values(), stale, keep) for _ in tries):
            self._retry_s = time.monotonic() + _RETRY_S
            return
        for run_id, row in self._unwritten.items():
            del self._open[run_id]
            self._known[run_id] = (row.inode, row.mark)
            if row.mark:
                self._marked[run_id] = (row.inode, row.mark)
        self._unwritten, self._stale = {}, []


def is_settled(changed_ns: int, then_ns: int) -> bool:
    """Return whether what last changed at ``changed_ns`` gets another time by any change after ``then_ns``."""
    return then_ns > changed_ns + (0 if changed_ns % 10**9 else _COARSE_TICK_NS)
