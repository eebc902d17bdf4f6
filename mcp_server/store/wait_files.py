"""The waits that outlive their server: a file for each, and a second one for how it ended.

A wait's id is its file's name: random, and begun with a digest of its owner. A file is never changed after it was
made. Its time of change is when the wait was last asked for.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.events import is_time
from mcp_server.record.run_directory import now
from mcp_server.record.state import posix
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import is_absent, read_regular_file, write_atomic
from mcp_server.system.lock_files import hold_lock

KEPT_S = 30 * 86400.0  # since a wait was last asked for
MOST_OF_OWNER = 500
_POLLED_S = 600.0  # who has not asked for so long does not poll
_TOUCHED_S = 60.0  # more often, its time of change is not set
_LEFT_OVER_S = 3600.0  # a file that a dead server has begun
_ID = re.compile(r"[0-9a-f]{12}-[A-Za-z0-9_-]{32}")
_END = ".end"
_FILE = re.compile(rf"({_ID.pattern})\.json")
_PART = re.compile(rf"\.{_ID.pattern}(?:\.end)?\.json\.\d+-\d+")  # of write_atomic


class WaitNotFound(RunwardError):
    """There is no such wait, or it belongs to another owner: nobody learns which."""

    def __init__(self) -> None:
        super().__init__("Task not found.", "Its runs, if it had any, go on.", "Call wait_run again.")


class WaitUnreadable(RunwardError):
    """The file of a wait is damaged, or cannot be read now."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            f"The record of this wait cannot be used: {name}: {cause}.", "Its runs go on.", "Call wait_run again."
        )


@dataclass(frozen=True)
class WaitRecord:
    """A wait as its files say. ``facts``: what is waited for. ``end``: how it ended, None while it is open."""

    wait_id: str
    created_at: str
    polled_s: float  # POSIX time
    facts: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] | None = None

    @property
    def age_s(self) -> float:
        """The seconds since it was made."""
        return max(0.0, time.time() - posix(self.created_at))

    @property
    def ttl_s(self) -> float:
        """How long a wait is kept after it was made. Whoever asks for it again prolongs that."""
        return max(0.0, self.polled_s - posix(self.created_at)) + KEPT_S


class WaitFiles:
    """The directory of waits. Any number of servers may use it at the same time. An owner is None for this user.

    Raises:
        WaitNotFound: there is no such wait, or it is another owner's.
        WaitUnreadable: its file, or that of its end, is damaged or cannot be read now.
        OSError: it could not be written; nothing is kept.
    """

    def __init__(self, home: StateHome) -> None:
        self._directory = home.waits

    def create(self, owner: str | None, facts: Mapping[str, Any]) -> WaitRecord | None:
        """Keep a wait so that it survives a power cut, or None where this owner has too many that are still polled."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = _mark(owner)
        if not self._make_room(mark):
            return None
        record = WaitRecord(f"{mark}-{secrets.token_urlsafe(24)}", now(), time.time(), facts)
        contents = {"layout": 1, "owner": owner, "created_at": record.created_at, **facts}
        write_atomic(self._path(record.wait_id), json.dumps(contents).encode())
        return record

    def read(self, wait_id: str, owner: str | None) -> WaitRecord:
        """Return a wait of ``owner``, and keep it for longer."""
        if not _ID.fullmatch(wait_id) or not wait_id.startswith(f"{_mark(owner)}-"):
            raise WaitNotFound
        path = self._path(wait_id)
        facts = _read(path)
        if facts is None or facts.get("owner") != owner:
            raise WaitNotFound
        if not is_time(facts.get("created_at")):
            raise WaitUnreadable(path.name, "it does not say when it was made")
        polled_s = self._touch(path)
        return WaitRecord(wait_id, facts["created_at"], polled_s, facts, _read(self._path(wait_id + _END)))

    def end(self, record: WaitRecord, end: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep how a wait ended, and return that. The first end counts, whichever server wrote it."""
        path = self._path(record.wait_id + _END)
        with _locked(self._path(record.wait_id)):
            if (first := _read(path)) is not None:
                return first
            write_atomic(path, json.dumps(end).encode())
        return end

    def find_awaited(self) -> set[str]:
        """Return the runs and sweeps of waits whose clients asked for them in the last two minutes.

        Those that ended in the last minute are among them: their answers may be on the way.
        """
        awaited, now_s = set[str](), time.time()
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(self._directory)):
                with contextlib.suppress(OSError, WaitUnreadable):
                    name = _FILE.fullmatch(entry.name)
                    if name and now_s - entry.stat(follow_symlinks=False).st_mtime < 2 * _TOUCHED_S:
                        facts = _read(Path(entry.path)) or {}
                        awaited.update(map(str, facts.get("run_ids") or ()) if self._is_open(name[1], now_s) else ())
        return awaited

    def _is_open(self, wait_id: str, now_s: float) -> bool:
        try:
            return now_s - self._path(wait_id + _END).stat().st_mtime < _TOUCHED_S
        except FileNotFoundError:
            return True

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _touch(self, path: Path) -> float:
        """Return when a wait was last asked for, which is now; note that, at most once a minute."""
        now_s = time.time()
        with contextlib.suppress(OSError):  # a full disk must not hide the news
            if now_s - path.stat().st_mtime > _TOUCHED_S:
                os.utime(path, (now_s, now_s))
        return now_s

    def _make_room(self, mark: str) -> bool:
        """Remove waits that nobody has asked for in a month, and of too many the oldest; False if those are polled.

        Files of other names are left alone: a link may lead the directory elsewhere.
        """
        now_s, own = time.time(), {}
        for entry in list(os.scandir(self._directory)):
            with contextlib.suppress(OSError):  # removed meanwhile
                changed_s = entry.stat(follow_symlinks=False).st_mtime
                if _PART.fullmatch(entry.name):
                    if now_s - changed_s > _LEFT_OVER_S:
                        Path(entry.path).unlink()
                elif name := _FILE.fullmatch(entry.name):
                    if now_s - changed_s > KEPT_S:
                        self._remove(name[1])
                    elif entry.name.startswith(f"{mark}-"):
                        own[name[1]] = changed_s
        oldest = sorted(own, key=lambda wait_id: own[wait_id])
        surplus = oldest[: max(0, len(oldest) + 1 - MOST_OF_OWNER)]
        if any(now_s - own[wait_id] < _POLLED_S for wait_id in surplus):
            return False
        for wait_id in surplus:
            self._remove(wait_id)
        return True

    def _remove(self, wait_id: str) -> None:
        for name in (wait_id, wait_id + _END):  # an end without its wait is not found
            with contextlib.suppress(OSError):
                self._path(name).unlink()


def _mark(owner: str | None) -> str:
    """Return what the ids of an owner's waits begin with. A token's name is never empty."""
    return hashlib.sha256((owner or "").encode()).hexdigest()[:12]


def _read(path: Path) -> dict[str, Any] | None:
    """Return the facts in a file; None where there is none."""
    try:
        facts = json.loads(read_regular_file(path, follow_links=False))
    except OSError as error:
        if is_absent(error):
            return None
        raise WaitUnreadable(path.name, str(error.strerror or error)) from error
    except (ValueError, RecursionError) as error:
        raise WaitUnreadable(path.name, "it is damaged") from error
    if not isinstance(facts, dict):
        raise WaitUnreadable(path.name, "it is damaged")
    return facts


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path, create=False))
        except FileNotFoundError:
            raise WaitNotFound from None
        yield
