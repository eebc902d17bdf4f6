"""Records which files the processes of an attempt write, in `attempts/<n>/outputs.json`.

A thread samples the descriptors of the attempt's processes: at first after 0.1 s, then ever more rarely, and at once
when inotify reports a change in a directory where they write. It uses at most 2 % of a core. A descriptor that is open
for an instant can be missed all the same; so at the end the files are listed that changed during the attempt in the
directories that were written or named. A file server that hangs stops this thread alone, never the supervisor.

That a file was open does not say who wrote what it holds now: several runs may write one file. `write_sessions` proves
that; a file without such a proof is recorded as ``unsure``. `outsiders` finds programs that no supervisor started.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.record.output_directories import configuration_words, find_in_command, find_in_configuration
from mcp_server.record.outputs import MOST_FILES, Outputs, WrittenFile, write_outputs
from mcp_server.record.run_directory import now
from mcp_server.supervisor.outsiders import OutsiderWatch
from mcp_server.supervisor.write_sessions import WriteSessions
from mcp_server.system import processes
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.files import read_regular_file
from mcp_server.system.inotify import CREATED, MODIFIED, MOVED_TO, OPENED, Inotify
from mcp_server.system.open_files import list_written_files

_FIRST_S, _SLOWER, _LONGEST_S = 0.1, 3.0, 10.0  # between two samples without a change
_SHARE = 50  # a sample that took t is followed by a pause of at least 50 t
_LEAST_PAUSE_S = 0.01
_AFTER_CHANGE_S = 2.0  # new processes are looked for at least so often while files change
_SAMPLES_AT_ONCE, _SAMPLES_PER_S = 40, 5  # that changes cause
_LOOKED_S, _QUIET_S, _MOST_LOOKED = 5.0, 0.05, 1000  # growing files
_WRITE_S, _WRITE_SLOWER_S, _LONGEST_WRITE_S = 0.3, 0.2, 10.0  # between two writes of the record
_FLUSH_S, _FINISH_S = 0.25, 3.0  # the end waits so long for what was seen, and afterwards for the listing
# File times are as exact as the kernel's tick: what was written later than so long ago may have the same time.
_SETTLES_NS, _SETTLE_S = 20 * 10**6, 0.03
_OUTSIDERS_EVERY_S, _OUTSIDERS_SHARE = 3.0, 200
_LIST_S, _LIST_DEPTH, _LIST_ENTRIES = 1.0, 5, 20_000
_MOST_WATCHES, _MOST_DIRECTORIES, _MOST_PIDS, _MOST_OPENED = 200, 200, 512, 10_000
_MOST_CONFIG_BYTES, _MOST_EVENT_FILES = 1_000_000, 500
_EVENT_FILE_PID = re.compile(r"tfevents\.\d+\.(?:.*\.)?(\d+)\.\d+(?:\D.*)?$")
_SLACK_NS = 2 * 10**9


class OutputRecorder(threading.Thread):
    """Records the files that an attempt writes, from ``start()`` to ``flush()`` and ``close()``.

    ``list_living`` returns the attempt's processes. ``command`` are the words that the attempt runs, with ``cwd``.
    """

    def __init__(
        self,
        path: Path,
        list_living: Callable[[], Sequence[processes.Process]],
        command: str | Sequence[str],
        cwd: str,
        params: Mapping[str, Any],
    ) -> None:
        super().__init__(name="outputs", daemon=True)
        self.problem: str | None = None
        self._path, self._list_living = path, list_living
        self._command, self._cwd, self._params = command, cwd or "/", params
        self._real_cwd = os.path.realpath(self._cwd)  # as the kernel names open files
        self._run_path = f"{path.parent.parent.parent}/"
        self._ending, self._flushed = threading.Event(), threading.Event()
        self._wakeup = os.pipe()
        self._begun_ns = time.time_ns() - _SLACK_NS
        self._pids: dict[int, None] = {}
        self._budget = _Budget()
        self._looked_s: dict[str, float] = {}  # when a changed path was looked at
        self._living: list[processes.Process] = []
        self._seen: dict[processes.Process, str] = {}  # by what name
        self._written: Outputs | None = None
        self._directories: dict[str, None] = {}
        self._files: dict[tuple[int, int], _SeenFile] = {}  # by device and inode
        self._saved: dict[str, None] = {}
        self._saved_lock = threading.Lock()
        self._cut = False
        self._inotify = Inotify(_MOST_WATCHES)
        self._sessions = WriteSessions()
        self._changes: dict[str, bool] = {}  # paths that changed, with whether that may be the first of many changes
        self._event_files: dict[str, None] = {}  # that somebody created
        self._opened: set[str] = set()  # paths that were opened, and have not changed since
        self._overflows = 0
        self._outsiders, self._outsiders_due_s = OutsiderWatch(self._cwd, str(path.parents[4])), 0.0

    def note_saved(self, path: str) -> None:
        """Record a path that the output says was saved. May be called by any thread."""
        with self._saved_lock:
            self._saved[os.path.normpath(Path(self._cwd) / path)] = None

    def flush(self) -> None:
        """Write what was seen: call it when the attempt's processes have ended. Waits 0.25 s at most."""
        self._ending.set()
        with contextlib.suppress(OSError):
            os.write(self._wakeup[1], b"\0")
        if self.ident is not None:
            self._flushed.wait(_FLUSH_S)

    def close(self) -> None:
        """Wait for the listing of changed files, 3 s at most. Call it after ``flush()``."""
        if self.ident is not None:
            self.join(_FINISH_S)
        if not self.is_alive():
            for fd in self._wakeup:
                os.close(fd)

    def run(self) -> None:
        """Sample until the end. An error ends the recording, never the run."""
        try:
            self._name_directories()
            with contextlib.closing(self._inotify):
                self._watch()
                self._sample_until_end()
                self._close_files()
            self._write()
            self._flushed.set()
            self._list_changed_files()
            self._write(ended=True)
        except Exception as error:
            self.problem = f"The files of the attempt were not recorded to the end: {error!r}"
        finally:
            self._flushed.set()

    # --- sampling

    def _sample_until_end(self) -> None:
        pause_s, write_pause_s = _FIRST_S, _WRITE_S
        write_due_s = whole_due_s = time.monotonic()
        while not self._ending.is_set():
            begun_s = time.monotonic()
            # Listing the processes costs the most: after a change those that are known are looked at.
            is_whole = begun_s >= whole_due_s
            self._sample(is_whole=is_whole)
            self._watch()
            is_settled = self._settle()
            now_s = time.monotonic()
            earliest_s = now_s + _LEAST_PAUSE_S
            if is_whole:
                whole_due_s = now_s + max(pause_s, _SHARE * (now_s - begun_s))
                pause_s = min(pause_s * _SLOWER, _LONGEST_S)
            else:
                earliest_s = now_s + max(_LEAST_PAUSE_S, _SHARE * (now_s - begun_s))
            if now_s >= write_due_s and self._write():
                write_due_s = time.monotonic() + write_pause_s
                write_pause_s = min(write_pause_s + _WRITE_SLOWER_S, _LONGEST_WRITE_S)
            until_s = whole_due_s if time.monotonic() >= write_due_s else min(whole_due_s, write_due_s)
            if not is_settled:
                until_s = min(until_s, max(earliest_s, time.monotonic() + _SETTLE_S))
            if self._wait(earliest_s, until_s):
                pause_s = min(pause_s, _AFTER_CHANGE_S)

    def _wait(self, earliest_s: float, until_s: float) -> bool:
        """Wait until ``until_s`` (monotonic), or from ``earliest_s`` on for a change; return whether there was one.

        That a file grows, which was looked at a moment ago, is not a change.
        """
        poll, inotify = select.poll(), self._inotify
        poll.register(self._wakeup[0], select.POLLIN)
        if inotify.fd is not None and not self._budget.take():
            earliest_s = max(earliest_s, time.monotonic() + 1 / _SAMPLES_PER_S)
        while True:
            if poll.poll(max(0.0, 1000 * (earliest_s - time.monotonic()))) or time.monotonic() >= until_s:
                return False
            if inotify.fd is not None:
                poll.register(inotify.fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(max(0.0, 1000 * (until_s - time.monotonic())))]
            now_s = time.monotonic()
            if self._wakeup[0] in ready or not ready:
                return False
            begun_s = now_s
            self._take_events()
            changes, self._changes = self._changes, {}
            now_s = time.monotonic()
            news = [path for path, other in changes.items() if other or now_s - self._looked_s.get(path, 0) > _LOOKED_S]
            if len(self._looked_s) > _MOST_LOOKED:
                self._looked_s.clear()
            self._looked_s.update(dict.fromkeys(changes, now_s))
            if news:
                return True
            earliest_s = now_s + max(_QUIET_S, _SHARE * (now_s - begun_s))
            if inotify.fd is not None:
                poll.unregister(inotify.fd)

    def _sample(self, *, is_whole: bool) -> None:
        if is_whole:
            self._living = list(self._list_living())[:_MOST_PIDS]
            self._look_for_outsiders()
        self._take_events()
        self._sessions.begin_sample()
        open_inodes: set[tuple[int, int]] = set()
        open_paths: set[str] = set()
        for process in self._living:
            if self._seen.get(process) != process.name:  # new, or another program since
                self._meet(process)
            for path, status, append in list_written_files(process.pid):
                if not path.startswith(self._run_path):
                    open_inodes.add((status.st_dev, status.st_ino))
                    open_paths.add(path)
                    self._note_open(path, status, append=append)
        self._take_events()
        self._sessions.end_sample(open_paths)
        self._name_event_files()
        for inode, file in self._files.items():
            if inode in open_inodes:
                file.unsure = self._sessions.may_hold_others(file.path, append=file.append)
            elif file.open:
                file.open, file.unsure = False, True  # until it is settled
        if len(self._files) > MOST_FILES:
            self._forget_files()

    def _take_events(self) -> None:
        """Read what inotify has to say about files, and note which have changed."""
        for event in self._inotify.read_events():
            self._sessions.take(event)
            if event.kind == MOVED_TO and event.former:
                self._follow(event.former, event.path)
            if event.is_directory and event.kind == CREATED:
                self._find_event_files(event.path)
            elif event.kind == CREATED and "tfevents" in event.path and len(self._event_files) < _MOST_EVENT_FILES:
                self._event_files[event.path] = None
            if event.kind == OPENED:
                self._opened.add(event.path)
            elif event.is_change:
                is_news = event.kind != MODIFIED or event.path in self._opened
                self._opened.discard(event.path)
                self._changes[event.path] = self._changes.get(event.path, False) or is_news
        if len(self._opened) > _MOST_OPENED:
            self._opened.clear()
        if self._inotify.overflows != self._overflows:
            self._overflows = self._inotify.overflows
            self._sessions.forget_all()

    def _find_event_files(self, directory: str) -> None:
        """Note the event files that were created in a new directory before it was watched."""
        scan = DirectoryScan(_LIST_DEPTH, max_entries=_MOST_EVENT_FILES, max_s=_LIST_S)
        for _, paths in scan.walk(Path(directory), _event_file, skip=lambda name: name.startswith(".")):
            self._event_files.update(dict.fromkeys(paths[:_MOST_EVENT_FILES]))

    def _name_event_files(self) -> None:
        """Record the event files that hold the number of a process of the attempt: some are open for instants only."""
        known = {file.path for file in self._files.values()}
        for path in [path for path in self._event_files if path not in known]:
            match = _EVENT_FILE_PID.search(path)
            if match is None or int(match[1]) not in self._pids:
                continue
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116 - hot path
                file = self._files[status.st_dev, status.st_ino] = _SeenFile(path, status.st_ino, unsure=True)
                file.size, file.changed_ns = status.st_size, status.st_mtime_ns
            del self._event_files[path]

    def _follow(self, former: str, path: str) -> None:
        """Know the files at or below ``former`` by their new paths."""
        for file in self._files.values():
            if file.path == former or file.path.startswith(former + "/"):
                file.path = path + file.path[len(former) :]

    def _settle(self) -> bool:
        """Record size and time of closed files that hold what the attempt wrote; return whether none is left to do."""
        proven = [(file, file.stat()) for file in self._files.values() if self._is_proven(file)]
        latest_ns = time.time_ns() - _SETTLES_NS
        if proven:
            self._take_events()  # what changed them since is known now
        for file, status in proven:
            if status is not None and status.st_mtime_ns < latest_ns and self._is_proven(file, status.st_mtime_ns):
                file.unsure, file.size, file.changed_ns = False, status.st_size, status.st_mtime_ns
        return all(status is None or status.st_mtime_ns < latest_ns for _, status in proven)

    def _is_proven(self, file: _SeenFile, changed_ns: int = 2**63) -> bool:
        """Return whether an unsure file was closed, and changed by the attempt alone, last at ``changed_ns``."""
        if file.open or not file.unsure or file.listed:
            return False
        directory = os.path.dirname(file.path)  # noqa: PTH120 - hot path
        is_proven = self._sessions.is_proven(file.path, changed_ns, self._inotify.watched_ns(directory))
        return is_proven and not (file.append and self._sessions.has_strangers(file.path))

    def _look_for_outsiders(self) -> None:
        begun_s = time.monotonic()
        if begun_s >= self._outsiders_due_s:
            self._outsiders.look(self._living, time.time())
            now_s = time.monotonic()
            self._outsiders_due_s = now_s + max(_OUTSIDERS_EVERY_S, _OUTSIDERS_SHARE * (now_s - begun_s))

    def _meet(self, process: processes.Process) -> None:
        """Record a process that is new: its numbers, and the directories that its command names."""
        self._seen[process] = process.name
        self._pids |= dict.fromkeys(_numbers(process.pid))
        with contextlib.suppress(OSError):
            cwd = os.readlink(f"/proc/{process.pid}/cwd")  # noqa: PTH115 - a plain string is wanted
            self._add_directories(find_in_command(processes.command_words(process.pid), cwd))

    def _note_open(self, path: str, status: os.stat_result, *, append: bool) -> None:
        key = status.st_dev, status.st_ino
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = _SeenFile(path, status.st_ino)
        file.path, file.open = path, True
        file.append |= append
        file.size, file.changed_ns = status.st_size, status.st_mtime_ns

    def _forget_files(self) -> None:
        """Forget the closed files that were seen first."""
        self._cut = True
        closed = [inode for inode, file in self._files.items() if not file.open]
        for inode in closed[: len(self._files) - MOST_FILES]:
            del self._files[inode]

    def _write(self, *, ended: bool = False) -> bool:
        """Write the record if a reader learns something from it, and return whether it was written."""
        outputs = self._outputs(ended=ended)
        if not ended and self._written is not None and _news(outputs) == _news(self._written):
            return False
        write_outputs(self._path, outputs)
        self._written = outputs
        return True

    # --- directories

    def _name_directories(self) -> None:
        self._add_directories(find_in_command(self._command, self._cwd, self._params))
        for word in configuration_words(self._command)[:5]:
            with contextlib.suppress(OSError):
                text = read_regular_file(Path(self._cwd) / word, max_bytes=_MOST_CONFIG_BYTES)
                self._add_directories(find_in_configuration(text.decode(errors="replace"), self._cwd))

    def _add_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            if len(self._directories) < _MOST_DIRECTORIES:
                self._directories[path] = None

    def _written_directories(self) -> list[str]:
        return list(dict.fromkeys(os.path.dirname(file.path) for file in self._files.values()))  # noqa: PTH120 - hot path

    def _watch(self) -> None:
        """Watch the directories where files appear, so that a file that is open for an instant is seen as well."""
        for path in [self._real_cwd, *self._directories, *self._written_directories()]:
            if _is_root(path):
                self._inotify.add(path)

    # --- the end

    def _close_files(self) -> None:
        self._take_events()
        self._name_event_files()
        for file in self._files.values():
            if file.open:
                file.open, file.unsure = False, True
        if not self._settle():
            time.sleep(_SETTLE_S)
            self._settle()
        for file in self._files.values():
            file.note_state()
        self._outsiders.look((), time.time())

    def _list_changed_files(self) -> None:
        """List the files that changed during the attempt in the directories that it wrote or named."""
        deadline_s = time.monotonic() + _LIST_S
        roots = [path for path in dict.fromkeys([*self._directories, *self._written_directories()]) if _is_root(path)]
        known = {file.path for file in self._files.values()}
        for root in roots:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._cut = True
                return
            scan = DirectoryScan(_LIST_DEPTH, max_entries=_LIST_ENTRIES, max_s=left_s)
            for _, entries in scan.walk(Path(root), _regular_file, skip=lambda name: name.startswith(".")):
                for path, status in entries:
                    key = status.st_dev, status.st_ino
                    if path in known or status.st_mtime_ns < self._begun_ns or key in self._files:
                        continue
                    if len(self._files) >= MOST_FILES:
                        self._cut = True
                        return
                    self._files[key] = _SeenFile(path, status.st_ino, status.st_size, status.st_mtime_ns, listed=True)
            self._cut |= scan.cut

    def _outputs(self, *, ended: bool = False) -> Outputs:
        with self._saved_lock:
            saved = tuple(self._saved)
        return Outputs(
            at=now(),
            ended=ended,
            cut=self._cut,
            pids=frozenset(self._pids),
            directories=tuple(self._directories),
            files=tuple(file.written() for file in self._files.values()),
            saved=saved,
            outsiders=self._outsiders.outsiders(),
        )


class _Budget:
    """Allows 40 samples at once and 5 a second on average."""

    def __init__(self) -> None:
        self._left, self._at_s = float(_SAMPLES_AT_ONCE), time.monotonic()

    def take(self) -> bool:
        """Return whether a sample is left, and take it."""
        now_s = time.monotonic()
        self._left = min(_SAMPLES_AT_ONCE, self._left + _SAMPLES_PER_S * (now_s - self._at_s))
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


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

    def stat(self) -> os.stat_result | None:
        """Return its status; None where it is gone or another file has its path."""
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


def _news(outputs: Outputs) -> object:
    """Return what a reader learns from a record. That an open file grows is not news."""
    files = [(one.path, one.open, one.unsure, 0 if one.open else one.changed_ns) for one in outputs.files]
    return outputs.pids, outputs.directories, outputs.saved, outputs.outsiders, files


def _numbers(pid: int) -> list[int]:
    """Return the numbers of a process in its namespaces: a name of a file may hold any of them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return [pid, *(int(word) for word in line.split()[1:])]
    return [pid]


def _regular_file(entry: os.DirEntry[str]) -> tuple[str, os.stat_result] | None:
    status = entry.stat(follow_symlinks=False)
    return (entry.path, status) if stat.S_ISREG(status.st_mode) else None


def _event_file(entry: os.DirEntry[str]) -> str | None:
    return entry.path if "tfevents" in entry.name else None


def _is_root(path: str) -> bool:
    """Return whether a directory may be listed. The temporary and home directories hold everybody's files."""
    return path not in ("/", "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"))  # noqa: S108, PTH111
