"""Records which files the processes of an attempt write, in `attempts/<n>/outputs.json`.

A thread samples the descriptors of the attempt's processes: at first after 0.1 s, then ever more rarely, and at once
when inotify reports a change in a directory where they write. It uses at most 2 % of a core; an attempt that neither
prints nor computes is sampled once a minute. It also hears of stop requests. A descriptor that is open
for an instant can be missed all the same; so at the end the files are listed that changed during the attempt in the
directories that were written or named. A file server that hangs stops this thread alone, never the supervisor.

That a file was open does not say who wrote what it holds now: several runs may write one file. `write_sessions` proves
that; a file without such a proof is recorded as ``unsure``. `outsiders` finds programs that no supervisor started.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.command.outputs import (
    configuration_words,
    find_in_command,
    find_in_configuration,
    find_mentioned,
    is_output_place,
)
from mcp_server.record.claims import find_linked
from mcp_server.record.curves.tails import CurveRow
from mcp_server.record.run_directory import now
from mcp_server.record.written_files import Outputs, read_outputs, write_outputs
from mcp_server.supervisor.outputs.outsiders import OutsiderWatch
from mcp_server.supervisor.outputs.ownership import CurveOwnership
from mcp_server.supervisor.outputs.scalar_tails import ScalarTails, TemporaryFiles
from mcp_server.supervisor.outputs.seen_files import SETTLE_S, MentionedDirectories, SeenFiles, may_be_listed
from mcp_server.supervisor.outputs.write_sessions import WriteSessions
from mcp_server.system import processes
from mcp_server.system.files import read_regular_file
from mcp_server.system.inotify import CREATED, MODIFIED, MOVED_TO, OPENED, FileEvent, Inotify
from mcp_server.system.processes import list_written_files
from mcp_server.system.time_bounds import RateBudget

_FIRST_S, _SLOWER, _LONGEST_S = 0.1, 3.0, 10.0  # between two samples without a change
_IDLE_S = 60.0  # the same while the attempt uses no processor time and prints nothing
_SHARE = 50  # a sample that took t of processor time is followed by a pause of at least 50 t, however busy the machine
_LEAST_PAUSE_S = 0.01
_AFTER_CHANGE_S = 2.0  # new processes are looked for at least so often while files change
_SAMPLES_AT_ONCE, _SAMPLES_PER_S = 40, 5  # that changes cause
_LOOKED_S, _MOST_LOOKED = 5.0, 1000  # growing files
_QUIET_S, _LONGEST_QUIET_S = 0.05, 0.4  # after events that are no news: another run that lists a directory wakes all
_WRITE_S, _WRITE_SLOWER_S, _LONGEST_WRITE_S = 0.3, 0.2, 10.0  # between two writes of the record
_FLUSH_S, _FINISH_S = 3.0, 3.0  # the end waits so long for what was seen, and afterwards for the listing
_LOOK_S = 0.15  # a reader waits so long for the newest rows
# Between two looks for outsiders: at least 200 times what one takes, and each time twice as long while no file changes.
# An idle attempt rarely looks: where an outsider writes, inotify says so, and a look at each new process of a busy
# machine is the most that a silent run costs.
_OUTSIDERS_EVERY_S, _OUTSIDERS_LONGEST_S, _OUTSIDERS_SHARE, _OUTSIDERS_IDLE_S = 3.0, 30.0, 200, 300.0
# When event files are looked for below the working directory: those in directories that were there are not watched, and
# TensorBoard's own writer opens its file for instants only. The pause doubles until there is one.
_EVENT_FILES_S, _LEAST_WORK_S = 30.0, 0.05  # nobody who used less processor time has written any
_MOST_WATCHES, _MOST_DIRECTORIES, _MOST_PIDS, _MOST_OPENED = 200, 200, 512, 10_000
_MOST_CONFIG_BYTES = 1_000_000
_SLACK_NS = 2 * 10**9
_TEMPORARY = "/tmp"  # noqa: S108 - watched, never written: tempfile would make a file there to try it
# Below directories of outputs that exist, new ones are expected: logs/train/runs/DATE. One with more directories in it
# holds the runs themselves.
_OUTPUT_DEPTH, _MOST_BESIDE, _NEW_DEPTH = 3, 12, 6
_FORMER_DEPTH = 2


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
        on_stop_request: Callable[[], None] = lambda: None,
        on_rows: Callable[[str, list[CurveRow], str], None] = lambda *_: None,
        begun_s: float = math.inf,
    ) -> None:
        super().__init__(name="outputs", daemon=True)
        # Whether ``on_stop_request`` is called, in this thread, soon after one is written by a process of this host.
        self.hears_stop_requests = False
        self._on_stop_request = on_stop_request
        self.problem: str | None = None
        self._path, self._list_living = path, list_living
        self._command, self._cwd, self._params = command, cwd or "/", params
        self._real_cwd = os.path.realpath(self._cwd)  # as the kernel names open files
        self._run_path = f"{path.parent.parent.parent}/"
        self._ending, self._flushed = threading.Event(), threading.Event()
        self._wakeup = os.pipe()
        begun_ns = min(time.time_ns(), int(min(begun_s, 1e10) * 1e9))
        self._begun_ns = begun_ns - _SLACK_NS
        self._pids: dict[int, None] = {}
        self._budget = RateBudget(_SAMPLES_AT_ONCE, _SAMPLES_PER_S)
        self._looked_s: dict[str, float] = {}  # when a changed path was looked at
        self._living: list[processes.Process] = []
        self._seen: dict[processes.Process, str] = {}  # by what name
        self._written: Outputs | None = None
        self._directories: dict[str, None] = {}
        self._mentioned = MentionedDirectories(self._real_cwd, self._begun_ns)
        self._changed_inputs: Sequence[str] | None = None  # of the mentioned directories; None until they are listed
        self._saved: dict[str, None] = {}
        self._saved_lock = threading.Lock()
        self._inotify = Inotify(_MOST_WATCHES)
        self._sessions = WriteSessions()
        self._files = SeenFiles(self._sessions, self._inotify, self._take_events)
        self._tails = ScalarTails(self._find_owner, on_rows, self._begun_ns / 1e9)
        self._temporary = TemporaryFiles(self._inotify)
        self._changes: dict[str, bool] = {}  # paths that changed, with whether that may be the first of many changes
        self._opened: set[str] = set()  # paths that were opened, and have not changed since
        self._overflows = 0
        self._outsiders, self._outsiders_due_s = OutsiderWatch(self._cwd, str(path.parents[4])), 0.0
        self._outsiders_quiet_s, self._has_changed = 0.0, False  # the longer pause; whether a file changed in it
        run_id = path.parents[2].name
        self._ownership = CurveOwnership(run_id, self._real_cwd, begun_ns, self._files, self._outsiders)
        self._has_passed_over = False
        self._looks, self._looked = threading.Event(), threading.Event()  # at the curves: wanted, done
        self._used_s, self._searched_at_s = 0.0, 0.0  # processor time of the attempt; that at the last such search
        self._is_idle, self._woken_s = False, 0.0
        self._event_files_pause_s = _EVENT_FILES_S
        self._event_files_due_s = time.monotonic() + _EVENT_FILES_S

    def note_saved(self, path: str) -> None:
        """Record a path that the output says was saved. May be called by any thread."""
        with self._saved_lock:
            self._saved[os.path.normpath(Path(self._cwd) / path)] = None

    def note_output(self) -> None:
        """Look at the processes soon, where an attempt prints that has been idle. May be called by any thread."""
        now_s = time.monotonic()
        if self._is_idle and now_s - self._woken_s > _LONGEST_S:
            self._woken_s = now_s
            self._wake()

    def flush(self) -> None:
        """Write what was seen: call it when the attempt's processes have ended. Waits 3 s at most."""
        self.hears_stop_requests = False
        self._ending.set()
        self._wake()
        if self.ident is not None:
            self._flushed.wait(_FLUSH_S)

    def read_curves(self, *, before_alarm: bool = False) -> None:
        """Read what is new in the files with curves, for a reader. Waits 0.15 s at most. For another thread to call.

        ``before_alarm``: nothing new means that the attempt makes no progress, which is worth waiting 3 s.
        """
        if (before_alarm or self._tails.is_following) and not self._ending.is_set():
            self._looked.clear()
            self._looks.set()
            self._wake()
            self._looked.wait(_FLUSH_S if before_alarm else _LOOK_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wakeup[1], b"\0")

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
            self._hear_stop_requests()
            self._pass_over_earlier_attempts()
            self._name_directories()
            self._watch_outputs(self._real_cwd, _OUTPUT_DEPTH)
            for linked in find_linked(self._real_cwd):
                self._inotify.add(linked, 0)
                self._watch_outputs(linked, _OUTPUT_DEPTH - 1)
            self._watch()
            self._temporary.add(os.environ.get("TMPDIR", _TEMPORARY))
            self._sample_until_end()
            self._outsiders.inspect_processes((), time.time())  # first: meanwhile what was written last settles
            self._files.close(self._pids)
            self._tails.read_due(at_once=True, ended=True)
            self._add_directories(self._mentioned.decide())
            self._write()
            self._flushed.set()
            self._inotify.close()  # takes the kernel 25 ms, for which the report of the end need not wait
            self._find_event_files()
            self._files.list_changed(self._directories, self._begun_ns)
            self._changed_inputs = self._files.list_mentioned(self._mentioned.shared, self._begun_ns)
            self._write(ended=True)
        except Exception as error:
            self.problem = f"The files of the attempt were not recorded to the end: {error!r}"
        finally:
            self.hears_stop_requests = False
            self._flushed.set()
            self._inotify.close()

    def _hear_stop_requests(self) -> None:
        if self._inotify.add(self._run_path.rstrip("/"), 0, MOVED_TO | CREATED):
            self.hears_stop_requests = True
            self._on_stop_request()  # one may have been written just before

    def _pass_over_earlier_attempts(self) -> None:
        """Note what earlier attempts left in their files, wherever these are, before this one is seen to open them."""
        for path in self._path.parent.parent.glob("*/outputs.json"):
            outputs = read_outputs(path) if path != self._path else None
            for file in outputs.files if outputs else ():
                self._tails.pass_over(file.path, self._begun_ns + _SLACK_NS)

    def _pass_over_former(self) -> None:
        """Note what files with curves held before the attempt began: one that resumes may append to them."""
        self._has_passed_over = True
        before = [self._real_cwd, *(path for path in self._directories if path != self._real_cwd)]
        for directory in filter(may_be_listed, before):
            depth = 0 if directory == self._real_cwd else _FORMER_DEPTH
            self._tails.pass_over_former(directory, depth, self._begun_ns + _SLACK_NS)

    # --- sampling

    def _sample_until_end(self) -> None:
        pause_s, write_pause_s = _FIRST_S, _WRITE_S
        write_due_s = whole_due_s = time.monotonic()
        while not self._ending.is_set():
            begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
            # Listing the processes costs the most: after a change those that are known are looked at.
            is_whole = begun_s >= whole_due_s
            self._sample(is_whole=is_whole)
            self._watch()
            is_settled = self._files.settle()
            now_s, used_s = time.monotonic(), time.thread_time() - begun_cpu_s
            earliest_s = now_s + _LEAST_PAUSE_S
            if is_whole:
                whole_due_s = now_s + max(pause_s, _SHARE * used_s)
                pause_s = min(pause_s * _SLOWER, _IDLE_S if self._is_idle and not self._changes else _LONGEST_S)
            else:
                earliest_s = now_s + max(_LEAST_PAUSE_S, _SHARE * used_s)
            if is_whole:  # what these take is bounded by itself: the next sample need not wait for it
                self._look_for_outsiders()
            if not self._has_passed_over:  # after the first sample: a child may live for a moment
                self._pass_over_former()
            if now_s >= write_due_s and self._write():
                write_due_s = time.monotonic() + write_pause_s
                write_pause_s = min(write_pause_s + _WRITE_SLOWER_S, _LONGEST_WRITE_S)
            until_s = whole_due_s if time.monotonic() >= write_due_s else min(whole_due_s, write_due_s)
            if not is_settled:
                until_s = min(until_s, max(earliest_s, time.monotonic() + SETTLE_S))
            if self._wait(earliest_s, until_s):
                pause_s = min(pause_s, _AFTER_CHANGE_S)
                if self._is_idle:  # the last look at the processes may be a minute old
                    self._is_idle, whole_due_s = False, time.monotonic()

    def _wait(self, earliest_s: float, until_s: float) -> bool:
        """Wait until ``until_s`` (monotonic), or from ``earliest_s`` on for a change; return whether there was one.

        That a file grows, which was looked at a moment ago, is not a change.
        """
        fd = self._inotify.fd
        if fd is not None and not self._budget.take():
            earliest_s = max(earliest_s, time.monotonic() + 1 / _SAMPLES_PER_S)
        quiet_s = _QUIET_S
        while True:
            if self._poll(earliest_s):
                return self._is_woken()
            if time.monotonic() >= until_s:
                return False
            ready = self._poll(min(until_s, self._tails.due_s), fd)
            if self._wakeup[0] in ready:
                return self._is_woken()
            begun_cpu_s = time.thread_time()
            if ready and self._take_news():
                return True
            self._tails.read_due()
            if ready:
                earliest_s = time.monotonic() + max(quiet_s, _SHARE * (time.thread_time() - begun_cpu_s))
                quiet_s = min(2 * quiet_s, _LONGEST_QUIET_S)

    def _poll(self, until_s: float, *fds: int | None) -> list[int]:
        """Return which of ``fds`` are readable, or this thread's own wake-up, at the latest at ``until_s``."""
        poll = select.poll()
        for fd in (self._wakeup[0], *fds):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(max(0.0, 1000 * (until_s - time.monotonic())))]

    def _take_news(self) -> bool:
        """Read what inotify has to say, and return whether a file changed that was not looked at a moment ago."""
        self._take_events()
        changes, self._changes = self._changes, {}
        now_s = time.monotonic()
        news = [path for path, other in changes.items() if other or now_s - self._looked_s.get(path, 0) > _LOOKED_S]
        if len(self._looked_s) > _MOST_LOOKED:
            self._looked_s.clear()
        self._looked_s.update(dict.fromkeys(changes, now_s))
        return bool(news)

    def _is_woken(self) -> bool:
        """Take what woke this thread, and return whether there is news, not the end."""
        os.read(self._wakeup[0], 4096)
        if self._looks.is_set():
            self._looks.clear()
            self._take_events()
            self._tails.read_due(at_once=True)
            self._looked.set()
        return not self._ending.is_set()

    def _sample(self, *, is_whole: bool) -> None:
        if is_whole:
            self._list_processes()
            if time.monotonic() >= self._event_files_due_s:
                self._event_files_pause_s *= 2
                self._event_files_due_s = time.monotonic() + self._event_files_pause_s
                if abs(self._used_s - self._searched_at_s) >= _LEAST_WORK_S:
                    self._searched_at_s = self._used_s
                    self._find_event_files()
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
                    if self._files.note_open(path, status, append=append):
                        self._tails.note_change(path, is_held=True)
        self._take_events()
        self._sessions.end_sample(open_paths)
        self._files.end_sample(open_inodes, self._pids)

    def _list_processes(self) -> None:
        """List the attempt's processes, and note whether they have done anything since the last time."""
        former, used_s = self._living, self._used_s
        self._living = list(self._list_living())[:_MOST_PIDS]
        self._used_s = sum(processes.cpu_used_s(p.pid) for p in self._living)
        self._is_idle = self._living == former and self._used_s == used_s and not self._has_changed

    def _take_events(self) -> None:
        """Read what inotify has to say about files, and note which have changed."""
        for event in self._inotify.read_events():
            if self._is_of_record(event.path) or self._is_of_everybody(event):
                continue
            self._sessions.take(event)
            if event.kind == MOVED_TO and event.former:
                self._files.follow(event.former, event.path)
            self._note_curves(event)
            if event.kind == OPENED:
                self._opened.add(event.path)
            elif event.is_change:
                self._has_changed = True
                is_news = event.kind != MODIFIED or event.path in self._opened
                self._opened.discard(event.path)
                self._changes[event.path] = self._changes.get(event.path, False) or is_news
        if len(self._opened) > _MOST_OPENED:
            self._opened.clear()
        if self._inotify.overflows != self._overflows:
            self._overflows = self._inotify.overflows
            self._sessions.forget_all()

    def _is_of_everybody(self, event: FileEvent) -> bool:
        """Return whether something happened among everybody's temporary files; note the event files of the attempt."""
        found = self._temporary.take(event, self._pids)
        for path in found or ():
            self._files.note_event_file(path)
            self._files.name_event_files(self._pids)
            self._inotify.add(os.path.dirname(path))  # noqa: PTH120 - hot path
            self._tails.note_change(path)
        return found is not None

    def _note_curves(self, event: FileEvent) -> None:
        """Note a file that may hold a curve, and those in a new directory, which was not watched before."""
        if event.is_directory and event.kind == CREATED:
            self._find_curves(event.path)
        elif event.kind == CREATED and "tfevents" in event.path:
            self._files.note_event_file(event.path)
        if not event.is_directory and event.is_change:
            self._tails.note_change(event.path, is_new=event.kind in (CREATED, MOVED_TO))

    def _find_curves(self, directory: str) -> None:
        """Note the files with curves at or below a directory: those of a new one were there before it was watched."""
        for path in self._files.find_event_files(directory):
            self._tails.note_change(path)

    def _find_owner(self, path: str) -> str | None:
        return self._ownership.judge(path, self._directories, self._pids, self._living)

    def _is_of_record(self, path: str) -> bool:
        if path == f"{self._run_path}stop.json":
            self._on_stop_request()
        return path.startswith(self._run_path)

    def _look_for_outsiders(self) -> None:
        begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
        if self._has_changed:
            self._outsiders_quiet_s = 0.0
        if begun_s < self._outsiders_due_s + (_OUTSIDERS_IDLE_S if self._is_idle else self._outsiders_quiet_s):
            return
        self._outsiders.inspect_processes(self._living, time.time())
        pause_s = max(_OUTSIDERS_EVERY_S, _OUTSIDERS_SHARE * (time.thread_time() - begun_cpu_s))
        self._outsiders_due_s = time.monotonic() + pause_s
        self._outsiders_quiet_s = min(2 * self._outsiders_quiet_s + _OUTSIDERS_EVERY_S, _OUTSIDERS_LONGEST_S)
        self._has_changed = False

    def _find_event_files(self) -> None:
        if not self._files.has_event_files and may_be_listed(self._real_cwd):
            self._find_curves(self._real_cwd)
            self._files.name_event_files(self._pids)

    def _meet(self, process: processes.Process) -> None:
        """Record a process that is new: its numbers, and the directories that its command names."""
        self._seen[process] = process.name
        self._pids |= dict.fromkeys(_numbers(process.pid))
        with contextlib.suppress(OSError):
            cwd = os.readlink(f"/proc/{process.pid}/cwd")  # noqa: PTH115 - a plain string is wanted
            words = processes.command_words(process.pid)
            self._add_directories(find_in_command(words, cwd))
            self._mentioned.add(find_mentioned(words, cwd))

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
        self._mentioned.add(find_mentioned(self._command, self._cwd))
        for word in configuration_words(self._command)[:5]:
            with contextlib.suppress(OSError):
                text = read_regular_file(Path(self._cwd) / word, max_bytes=_MOST_CONFIG_BYTES)
                self._add_directories(find_in_configuration(text.decode(errors="replace"), self._cwd))

    def _add_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            if len(self._directories) < _MOST_DIRECTORIES:
                self._directories[path] = None

    def _watch(self) -> None:
        """Watch the directories where files appear, so that a file that is open for an instant is seen as well."""
        for path in self._mentioned.decide():
            self._add_directories([path])
            self._find_curves(path)
        for path in [self._real_cwd, *self._directories, *self._files.directories(), *self._mentioned.watchable()]:
            if may_be_listed(path):
                self._inotify.add(path)
        for path in filter(may_be_listed, self._mentioned.expected_in()):
            self._inotify.add(path, 0)

    def _watch_outputs(self, directory: str, depth: int) -> None:
        """Watch directories of outputs that exist, where new ones will appear, and those that are new already."""
        if not may_be_listed(directory):
            return
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            found = [one for one in entries if one.name[0] != "." and one.is_dir(follow_symlinks=False)]
            is_narrow = len(found) <= _MOST_BESIDE
            for one in found:
                if one.stat(follow_symlinks=False).st_mtime_ns >= self._begun_ns:
                    self._inotify.add(one.path, _NEW_DEPTH)
                    self._find_curves(one.path)
                elif directory != self._real_cwd or is_output_place(one.name) or one.name.endswith("logs"):
                    if is_narrow:
                        self._inotify.add(one.path, 0)
                    if is_narrow and depth > 1:
                        self._watch_outputs(one.path, depth - 1)

    def describe_empty(self) -> tuple[str, ...]:
        """Return the files of the attempt that may hold curves, and hold none yet. May be called by any thread."""
        return self._tails.describe_empty()

    def _outputs(self, *, ended: bool = False) -> Outputs:
        with self._saved_lock:
            saved = tuple(self._saved)
        return Outputs(
            at=now(),
            ended=ended,
            cut=self._files.cut,
            pids=frozenset(self._pids),
            directories=tuple(self._directories),
            files=self._files.written(),
            saved=saved,
            outsiders=self._outsiders.outsiders(),
            mentioned=tuple(self._mentioned.shared if self._changed_inputs is None else self._changed_inputs),
        )


def _news(outputs: Outputs) -> object:
    """Return what a reader learns from a record. That an open file grows is not news."""
    files = [(one.path, one.open, one.unsure, 0 if one.open else one.changed_ns) for one in outputs.files]
    return outputs.pids, outputs.directories, outputs.mentioned, outputs.saved, outputs.outsiders, files


def _numbers(pid: int) -> list[int]:
    """Return the numbers of a process in its namespaces: a name of a file may hold any of them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return [pid, *(int(word) for word in line.split()[1:])]
    return [pid]
