"""Pushes what is new in the run directories of this host: bytes of the events, small files, liveness.

A push of a run holds its liveness as it was *before* its files were read: once a supervisor is dead, the pushed events
hold its last word. Runs whose supervisor is dead are pushed once more, and are not watched any longer.

Inotify announces news at once. Progress and the size of the log change all the time, and are
looked at every second. Without inotify, events and locks are looked at every 0.25 s, on a local disk.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.record.run_processes import ThisHost
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, LivenessReport
from mcp_server.relay.slurm_jobs import SlurmJobs, is_job
from mcp_server.system.files import is_shared_filesystem, open_regular, read_regular_file
from mcp_server.system.inotify import CLOSED_WRITE, CREATED, MODIFIED, MOVED_TO, Inotify

_POLL_S, _POLL_WITHOUT_INOTIFY_S = 1.0, 0.25
_LOG_S = 5.0  # how often the size of a log is pushed that alone has changed
_SETTLE_S = 0.02  # a flood of events is pushed at most 50 times a second
_MOST_RUNS = 200  # ended runs of other launchers that are pushed, the newest
_MOST_WATCHES = 4096
_MOST_EVENT_BYTES, _MOST_FILE_BYTES = 4 * 2**20, 2 * 2**20  # of one push, of one small file
_MOST_LOG_BYTES = 32 * 2**10
_LAUNCHED_WITHIN_S = 30.0  # a launch gives its supervisor 15 s
_OF_ATTEMPT = ("exit", "guard_exit", "progress", "outputs")
_SETTLED_S = 60.0  # until a name that this host has looked for in vain appears on NFS
_OWN_BACKENDS = (None, "", "local", "tmux")

Send = Callable[[Mapping[str, Any], bytes], None]


class RunWatch:
    """Watches all runs of a state directory for one server.

    ``send`` takes a push and its bytes. It raises OSError where the server has gone, which ends the watch.
    """

    def __init__(self, runs: Path, send: Send) -> None:
        self._runs, self._send, self._host = runs, send, ThisHost()
        self._watched: dict[str, _WatchedRun] = {}
        self._dead: set[str] = set()
        self._lock = threading.Lock()
        kinds = MODIFIED | CLOSED_WRITE | MOVED_TO | CREATED
        self._inotify = Inotify(_MOST_WATCHES, kinds, follow=False)
        self.jobs = SlurmJobs(runs.parent)
        self._push_lock = threading.Lock()  # what is new of a run is read and sent by one thread at a time

    @property
    def has_inotify(self) -> bool:
        """Whether the kernel announces changes."""
        return self._inotify.fd is not None

    def subscribe(self, have: Mapping[str, int], dead: Iterable[str]) -> None:
        """Push all runs from now on. ``have``: bytes of the events that the server has. ``dead``: of no interest."""
        with self._lock:
            self._dead = set(dead)
            for run_id, offset in have.items():
                self._watch(run_id, offset)
            missing = [run_id for run_id in have if not (self._runs / run_id).is_dir()]
        for run_id in missing:
            self._send({"push": "gone", "run": run_id}, b"")
        threading.Thread(target=self._run, daemon=True).start()

    def push_now(self, run_id: str) -> None:
        """Push a run, also one that has ended: something was changed, or it is new. What follows comes after it."""
        with self._lock:
            self._dead.discard(run_id)
            self._watch(run_id, 0)
        self._push([run_id])

    def _watch(self, run_id: str, offset: int) -> None:
        path = self._runs / run_id
        if run_id not in self._watched and path.is_dir():
            self._watched[run_id] = _WatchedRun(RunDir(path), offset, self.jobs)
            self._inotify.add(str(path), 0)

    def _run(self) -> None:
        self._inotify.add(str(self._runs), 0)
        self._find_runs()
        polled_s = 0.0
        with contextlib.suppress(OSError):
            self._push(list(self._watched))
            self._send({"push": "synced"}, b"")
            while True:
                poll_s = _POLL_S if self.has_inotify else _POLL_WITHOUT_INOTIFY_S
                fds = [self._inotify.fd] if self._inotify.fd is not None else []
                ready = select.select(fds, [], [], max(0.0, polled_s + poll_s - time.monotonic()))[0]
                changed = self._read_changes(ready)
                if time.monotonic() - polled_s >= poll_s:
                    polled_s = time.monotonic()
                    if not self.has_inotify:
                        self._find_runs()
                    changed = set(self._watched)
                self._push(changed)
                if ready:
                    time.sleep(_SETTLE_S)

    def _read_changes(self, ready: list[int]) -> set[str]:
        changed: set[str] = set()
        overflows = self._inotify.overflows
        if self._inotify.fd in ready:
            for event in self._inotify.read_events():
                parent, name = os.path.split(event.path)
                if Path(parent) == self._runs:
                    with self._lock:
                        self._watch(name, 0) if not name.startswith(".") else None
                    changed.add(name)
                else:
                    changed.add(Path(parent).name)
        with self._lock:
            return set(self._watched) if self._inotify.overflows > overflows else changed & self._watched.keys()

    def _find_runs(self) -> None:
        """Watch the runs that are new, and of those that nobody named the newest."""
        entries: list[tuple[float, str]] = []
        with contextlib.suppress(OSError), os.scandir(self._runs) as names:
            for entry in names:
                if not entry.name.startswith(".") and entry.name not in self._dead:
                    with contextlib.suppress(OSError):
                        entries.append((entry.stat().st_mtime, entry.name))
        newest = {name for _, name in sorted(entries)[-_MOST_RUNS:]}
        with self._lock:
            for _, name in entries:
                if name in newest or ((self._runs / name / "supervisor.lock").exists() and self._lives(name)):
                    self._watch(name, 0)

    def _lives(self, run_id: str) -> bool:
        with contextlib.suppress(OSError):
            return self._host.liveness(RunDir(self._runs / run_id), RunSpec()).liveness is Liveness.ALIVE
        return False

    def _push(self, run_ids: Iterable[str]) -> None:
        for run_id in list(run_ids):
            with self._push_lock:
                self._push_run(run_id)

    def _push_run(self, run_id: str) -> None:
        run = self._watched.get(run_id)
        if run is not None:
            if not run.directory.path.is_dir():
                with self._lock:
                    self._watched.pop(run_id, None)
                self._send({"push": "gone", "run": run_id}, b"")
                return
            while True:
                message, data, more = run.read_news(self._host)
                if message is not None:
                    self._send(message, data)
                if not more:
                    break
            if run.is_dead:
                with self._lock:
                    self._watched.pop(run_id, None)
                    self._dead.add(run_id)


class _WatchedRun:
    """The server's knowledge of one run."""

    def __init__(self, directory: RunDir, offset: int, jobs: SlurmJobs) -> None:
        self.directory, self._jobs = directory, jobs
        self.is_dead = False
        self._offset = offset
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._liveness: LivenessReport | None = None
        self._log: tuple[int, int, int] | None = None
        self._log_sent_s = 0.0
        self._spec: RunSpec | None = None
        self._is_foreign = self._is_job = False
        self._ended_s: float | None = None  # monotonic

    def read_news(self, host: ThisHost) -> tuple[dict[str, Any] | None, bytes, bool]:
        """Return a push, or None where nothing is new, with its bytes and whether more events follow."""
        liveness = self._read_liveness(host)
        events, more = self._read_events()
        if events and self._is_job:
            liveness = self._renew(liveness, host)
        files, parts = self._read_files()
        if events:  # after what they refer to, such as an exit record
            files.append(["events.jsonl", self._offset, len(events)])
            parts.append(events)
            self._offset += len(events)
        log = self._read_log()
        is_news = bool(files) or liveness != self._liveness
        if log != self._log and (is_news or time.monotonic() - self._log_sent_s >= _LOG_S):
            is_news, self._log, self._log_sent_s = True, log, time.monotonic()
        if not more:  # a liveness counts once everything before it was pushed
            self.is_dead = self._is_settled(liveness)
        if not is_news:
            return None, b"", False
        self._liveness = liveness
        message: dict[str, Any] = {"push": "run", "run": self.directory.run_id, "files": files, "log": self._log}
        if not more and liveness is not None:
            message["report"] = liveness.facts()
        return message, b"".join(parts), more

    def _is_settled(self, liveness: LivenessReport | None) -> bool:
        """Return whether nothing more is to be expected of it.

        What a supervisor on another host wrote last may appear later on a shared disk.
        """
        if liveness is None or liveness.liveness is not Liveness.DEAD:
            self._ended_s = None
            return False
        self._ended_s = self._ended_s or time.monotonic()
        is_late = time.monotonic() - self._ended_s >= _SETTLED_S
        return is_late or not self._is_job or not is_shared_filesystem(self.directory.path)

    def _read_liveness(self, host: ThisHost) -> LivenessReport | None:
        """Return whether the supervisor lives, None where that is unknown now."""
        if self._spec is None and (facts := read_json(self.directory.spec)) is not None:
            self._spec = RunSpec.from_facts({**facts, "run_id": self.directory.run_id})
            self._is_job = is_job(self._spec)
            self._is_foreign = facts.get("backend") not in _OWN_BACKENDS and not self._is_job
        if self._is_foreign:
            return LivenessReport(Liveness.UNKNOWN, "A scheduler of that host supervises it: ask there.")
        try:
            if self._is_job and self._spec is not None:
                return self._jobs.report(self.directory, self._spec)
            report = host.liveness(self.directory, self._spec or RunSpec(created_at="1970-01-01T00:00:00Z"))
            if report.liveness is Liveness.DEAD and not self.directory.events.exists() and self._is_new():
                return LivenessReport(Liveness.PENDING)
        except OSError:
            return self._liveness
        return report

    def _read_files(self) -> tuple[list[list[Any]], list[bytes]]:
        """Return name, offset and size of the small files that have changed, and their contents."""
        files: list[list[Any]] = []
        parts: list[bytes] = []
        for name in self._small_files():
            if (content := self._read_changed(name)) is not None:
                files.append([name, None, len(content)])
                parts.append(content)
        for name in [name for name, *_ in files if name.endswith("/exit.json")]:  # its log is whole
            log_name = name.replace("exit.json", "output.log")
            if (content := _read_small_log(self.directory.path / log_name)) is not None:
                files.append([log_name, 0, len(content)])
                parts.append(content)
        return files, parts

    def _renew(self, liveness: LivenessReport | None, host: ThisHost) -> LivenessReport | None:
        """Return the liveness of a job that waited before its events were read, and may have begun since."""
        if liveness is not None and liveness.liveness is Liveness.PENDING:
            newer = self._read_liveness(host)
            return newer if newer is not None and newer.liveness is Liveness.ALIVE else liveness
        return liveness

    def _is_new(self) -> bool:
        """Return whether its supervisor may not have come yet.

        When it was asked for says its launcher's clock, and that may be long ago: the connection broke meanwhile. This
        host knows when it made the directory.
        """
        return abs(time.time() - self.directory.spec.stat().st_mtime) < _LAUNCHED_WITHIN_S

    def _small_files(self) -> list[str]:
        names = ["spec.json", "stop.json", "attempts.md"]
        with contextlib.suppress(OSError), os.scandir(self.directory.path / "attempts") as attempts:
            for attempt in sorted(attempts, key=lambda entry: entry.name):
                names += [f"attempts/{attempt.name}/{name}.json" for name in _OF_ATTEMPT]
        return names

    def _read_changed(self, name: str) -> bytes | None:
        """Return the content of a small file, None where it is missing or has not changed since the last push."""
        path = self.directory.path / name
        with contextlib.suppress(OSError):
            if self._is_job:  # a shared disk says only who opens a file what another host wrote
                open_regular(path).close()
            status = path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._stamps.get(name) != stamp and status.st_size <= _MOST_FILE_BYTES:
                content = read_regular_file(path)
                self._stamps[name] = stamp
                return content
        return None

    def _read_events(self) -> tuple[bytes, bool]:
        with contextlib.suppress(OSError):
            with self.directory.events.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = os.pread(file.fileno(), min(_MOST_EVENT_BYTES, max(0, size - self._offset)), self._offset)
            return data, bool(data) and self._offset + len(data) < size
        return b"", False

    def _read_log(self) -> tuple[int, int, int] | None:
        with contextlib.suppress(OSError):
            if attempt := self.directory.newest_attempt():
                status = self.directory.log(attempt).stat()
                return attempt, status.st_size, status.st_mtime_ns
        return None


def _read_small_log(path: Path) -> bytes | None:
    """Return the content of a log that is pushed with the end of its attempt, so that nobody has to ask for it."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MOST_LOG_BYTES:
            return read_regular_file(path)
    return None
