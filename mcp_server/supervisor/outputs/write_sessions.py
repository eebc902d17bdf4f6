"""Whose write a file holds: the write sessions of each path, from inotify events and from samples of descriptors.

A write session lasts from the first descriptor of a file that is opened to the last one that is closed. inotify names
no process, and a sample of `/proc` sees the attempt's descriptors of one moment. Together they prove a write: in the
session during which the attempt had the file open for writing, one descriptor was closed that could write, so it was
the attempt's. What the file holds after that is the attempt's until another session writes. Everything else proves
nothing: two writers at once, a session that no sample has seen, events that the kernel dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mcp_server.system import inotify

_MOST_PATHS = 20_000


@dataclass
class _Session:
    """The present session of a path, or its last one, with what the sessions before left."""

    open: int = 0  # descriptors, as far as their opening was seen
    writers: int = 0  # descriptors for writing that were closed in this session
    is_own: bool = False  # the attempt had the file open for writing in it
    is_whole: bool = True  # its beginning was seen
    is_mixed: bool = False  # its beginning was not seen, and another session ended meanwhile
    is_proven: bool = False  # the content is what the attempt left
    proof_is_whole: bool = True  # by a whole session
    strangers: int = 0  # sessions so far that may have been another's

    @property
    def is_exclusive(self) -> bool:
        return self.writers == 1 and self.is_own and not self.is_mixed

    def prove(self) -> None:
        """Note what the end of an exclusive session proves."""
        self.is_proven, self.proof_is_whole = True, self.is_whole


class WriteSessions:
    """Follows the sessions of all paths in watched directories.

    Call ``begin_sample()``, list the attempt's descriptors, ``take()`` the events since, and ``end_sample()``.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._sample: dict[str, tuple[bool, int]] = {}  # of paths with events: open at the beginning, sessions begun

    def take(self, event: inotify.FileEvent) -> None:
        """Take the next event. A directory's counts only if it was moved."""
        if event.kind == inotify.MOVED_TO:
            self._move(event.former, event.path, is_directory=event.is_directory)
        if event.is_directory or event.kind == inotify.MOVED_TO:
            return
        if event.kind in (inotify.CREATED, inotify.DELETED):
            self._sessions.pop(event.path, None)
        elif event.kind == inotify.OPENED:
            session = self._session(event.path)
            if session.open == 0:
                self._begin(event.path, session)
            session.open += 1
        elif event.kind == inotify.MODIFIED:
            # Also just before an opening that truncates. By a descriptor from before the watch, its closing will show.
            self._session(event.path).is_proven = False
        elif event.kind in (inotify.CLOSED_WRITE, inotify.CLOSED_READ):
            self._close(event.path, writes=event.kind == inotify.CLOSED_WRITE)
        elif event.kind == inotify.MOVED_FROM:
            pass  # the next event says where it went

    def begin_sample(self) -> None:
        """Begin a sample: all events so far were taken."""
        self._sample.clear()

    def end_sample(self, written: Collection[str]) -> None:
        """Note the paths that the attempt had open for writing at some moment since ``begin_sample()``."""
        for path in written:
            session = self._session(path)
            was_open, begun = self._sample.get(path, (session.open > 0, 0))
            if was_open + begun == 0:
                self._begin(path, session, is_whole=False)
                session.open = 1
            elif was_open + begun > 1:
                continue  # in which of them is not known
            if not session.is_own:
                session.is_own = True
                if session.open == 0 and session.is_exclusive:
                    session.prove()
                    session.strangers -= 1
        self._sample.clear()

    def is_proven(self, path: str, changed_ns: int, watched_ns: int | None) -> bool:
        """Return whether the content of a closed file, which changed last at ``changed_ns``, is the attempt's.

        ``watched_ns``: since when its directory is watched.
        """
        session = self._sessions.get(path)
        if session is None or watched_ns is None or not session.is_proven:
            return False
        return session.proof_is_whole or changed_ns > watched_ns

    def may_hold_others(self, path: str, *, append: bool) -> bool:
        """Return whether another may have written into a file that the attempt has open, or appended to it before."""
        session = self._sessions.get(path)
        if session is None:
            return False
        return session.writers > 0 or session.is_mixed or (append and session.strangers > 0)

    def has_strangers(self, path: str) -> bool:
        """Return whether there was a session that may have been another's."""
        session = self._sessions.get(path)
        return session is not None and session.strangers > 0

    def forget_all(self) -> None:
        """Prove nothing from what was seen so far: events were lost."""
        self._sessions.clear()
        self._sample.clear()

    def _session(self, path: str) -> _Session:
        if path not in self._sessions and len(self._sessions) >= _MOST_PATHS:
            self.forget_all()
        return self._sessions.setdefault(path, _Session())

    def _begin(self, path: str, session: _Session, *, is_whole: bool = True) -> None:
        was_open, begun = self._sample.get(path, (False, 0))
        self._sample[path] = was_open, begun + 1
        session.is_mixed = not is_whole and session.writers > 0
        session.writers, session.is_own, session.is_whole = 0, False, is_whole

    def _close(self, path: str, *, writes: bool) -> None:
        session = self._sessions.get(path)
        if session is None:
            if not writes:
                return
            session = self._session(path)
        if session.open == 0 and writes:
            self._begin(path, session, is_whole=False)
            session.open = 1
        self._sample.setdefault(path, (True, 0))
        session.open = max(0, session.open - 1)
        session.writers += writes
        if session.open > 0:
            return
        if session.writers:
            session.is_proven = False
            if session.is_exclusive:
                session.prove()
            else:
                session.strangers += 1
        elif not session.is_proven and not session.strangers:
            del self._sessions[path]  # it was only read

    def _move(self, former: str, path: str, *, is_directory: bool) -> None:
        if not is_directory:
            session = self._sessions.pop(former, None)
            self._sessions.pop(path, None)
            if session is not None:
                self._sessions[path] = session
        elif former:
            for old in [one for one in self._sessions if one.startswith(former + "/")]:
                self._sessions[path + old[len(former) :]] = self._sessions.pop(old)
