"""The user's jobs as Slurm listed them last: one query for all runs, seldom, and shared between servers of one home."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mcp_server.record.codec import decode
from mcp_server.record.run_directory import now, read_json, write_json
from mcp_server.record.slurm.commands import SlurmError, list_own_jobs
from mcp_server.record.slurm.job_states import WAITING, Job
from mcp_server.system.lock_files import try_lock

QUIET_S = 30.0  # between two queries: sites ask not to run squeue in loops
EXPECTED_S = 3.0  # at least, also where a change is expected
_JUDGED_S = 3 * QUIET_S  # while nobody asks
_READ_S = 1.0  # between two looks at what other servers have asked
_LONGEST_S = 20.0  # another server's query takes
_MOST_LEFT = 2000  # of the jobs that left while they waited, the newest are known


@dataclass(frozen=True)
class QueueSnapshot:
    """The jobs by id, and their ids by name. ``asked_s`` is POSIX time, of before the query.

    The elements of an array have one name, and here that name means the array.

    ``left``: the jobs that waited when they were listed last, with the time of that query and of the next, both POSIX.

    ``error``: why the last query failed, and ``since`` when that began: the jobs are those of the last that did not.
    """

    asked_s: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    error: str = ""
    since: str = ""
    tried_s: float = 0.0
    left: dict[str, tuple[float, float]] = field(default_factory=dict)

    def find_job(self, run_id: str, job_facts: Mapping[str, Any]) -> str:
        """Return the id of the job that a run became, empty for none; ``job_facts`` is its ``job.json`` so far."""
        if (job_id := self.names.get(run_id)) is not None:
            return job_id
        array_id = self.names.get(str(job_facts.get("array", "")))
        return "" if array_id is None else f"{array_id}_{job_facts.get('index')}"


class Queue:
    """The jobs of this user, asked for by whichever server of the state directory is first."""

    def __init__(self, home: Path, ask: Callable[[], dict[str, tuple[Job, str]]] = list_own_jobs) -> None:
        self._file, self._lock_file = home / "slurm" / "queue.json", home / "slurm" / "queue.lock"
        self._ask, self._lock = ask, threading.Lock()
        self._snapshot = QueueSnapshot()
        self._read_stamp: tuple[int, int] | None = None
        self._read_s = -math.inf

    def look(self, max_age_s: float | None = None) -> QueueSnapshot:
        """Return a snapshot no older than ``max_age_s``, by default 30 s, as far as Slurm answers.

        While another thread or server asks, that is waited for where nothing is known yet.
        """
        limit_s = QUIET_S if max_age_s is None else max_age_s
        self._take_over()
        if self._is_fresh(limit_s):
            return self._snapshot
        if not self._lock.acquire(blocking=not self._snapshot.tried_s or max_age_s is not None, timeout=-1):
            return self._snapshot
        try:
            self._read()
            if not self._is_fresh(limit_s):
                self._refresh(limit_s)
        finally:
            self._lock.release()
        return self._snapshot

    def peek(self) -> QueueSnapshot | None:
        """Return the last snapshot at once; None where there is none that is young enough to judge by."""
        self._take_over()
        return self._snapshot if self._is_fresh(_JUDGED_S) else None

    def _take_over(self) -> None:
        """Take over what another server knows since: it may have stopped jobs."""
        now_s = time.monotonic()
        if now_s - self._read_s >= _READ_S and self._lock.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._lock.release()

    def _is_fresh(self, limit_s: float) -> bool:
        return 0 <= time.time() - self._snapshot.tried_s < limit_s

    def _refresh(self, limit_s: float) -> None:
        """Ask Slurm, unless another server asks now: then take its answer."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
        fd = -1
        with contextlib.suppress(OSError):
            fd = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until_s = time.monotonic() + _LONGEST_S
            while fd >= 0 and not _lock_or_ignore(fd) and time.monotonic() < until_s:
                time.sleep(0.05)
            self._read()
            if not self._is_fresh(limit_s):
                self._snapshot = self._query()
                if not self._snapshot.error:  # which may lie with this process, e.g. its environment
                    with contextlib.suppress(OSError):
                        write_json(self._file, asdict(self._snapshot))
        finally:
            if fd >= 0:
                os.close(fd)

    def _query(self) -> QueueSnapshot:
        asked_s, former = time.time(), self._snapshot
        try:
            found = self._ask()
        except SlurmError as error:
            since = former.since if former.error else now()
            return replace(former, error=error.cause.rstrip("."), since=since, tried_s=time.time())
        jobs = {job_id: job for job_id, (job, _) in found.items()}
        names = {name: job_id.partition("_")[0] for job_id, (_, name) in found.items()}
        waited = [job_id for job_id, job in former.jobs.items() if job.state in WAITING]
        left = {**former.left, **dict.fromkeys(waited, (former.asked_s, asked_s))}
        left = {job_id: times for job_id, times in left.items() if job_id not in jobs}
        return QueueSnapshot(
            asked_s, jobs, names, tried_s=asked_s, left=dict(islice(left.items(), max(0, len(left) - _MOST_LEFT), None))
        )

    def _read(self) -> None:
        self._read_s = time.monotonic()
        try:
            status = self._file.stat()
        except OSError:
            return
        stamp = (status.st_ino, status.st_mtime_ns)
        facts = read_json(self._file) if stamp != self._read_stamp else None
        self._read_stamp = stamp
        with contextlib.suppress(TypeError, KeyError, ValueError):
            if facts is not None and facts["tried_s"] > self._snapshot.tried_s:
                self._snapshot = decode(QueueSnapshot, facts, strict=True)


def _lock_or_ignore(fd: int) -> bool:
    """Lock, or go on without a lock where the shared disk has none: two servers may then both ask."""
    try:
        return try_lock(fd)
    except OSError:
        return True
