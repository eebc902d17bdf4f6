"""A minimal inotify, for the supervisor: which files below some directories are opened, changed, closed and moved."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from typing import NamedTuple

# Of <sys/inotify.h>
MODIFIED, CLOSED_WRITE, CLOSED_READ, OPENED = 0x2, 0x8, 0x10, 0x20
MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x40, 0x80, 0x100, 0x200
_OVERFLOW = 0x4000
_DIRECTORY = 0x40000000  # of an event: it is about a directory
_KINDS = MODIFIED | CLOSED_WRITE | CLOSED_READ | OPENED | MOVED_FROM | MOVED_TO | CREATED | DELETED
_OF_DIRECTORIES = 0x01000000 | 0x02000000  # a directory only; not through a link
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES, _MOST_READS = 65536, 64
_NEW_DEPTH = 6  # below a new directory, whose own new directories may have come before it was watched


class FileEvent(NamedTuple):
    """A change of a file or directory. ``former``: its path before a move from a watched directory."""

    path: str
    kind: int
    is_directory: bool = False
    former: str = ""

    @property
    def is_change(self) -> bool:
        """Whether content or name changed: not by opening, nor by closing what was only read."""
        return self.kind not in (OPENED, CLOSED_READ)


class Inotify:
    """Watches directories, and new ones below them, at most ``most``.

    ``fd`` is readable after an event; None where the kernel has no inotify for this user. ``overflows`` counts how
    often the kernel dropped events. ``kinds``: what is reported; without ``follow`` new directories are not watched.
    """

    def __init__(self, most: int, kinds: int = _KINDS, *, follow: bool = True) -> None:
        self.fd: int | None = None
        self._mask, self._follow = kinds | _OF_DIRECTORIES, follow
        self.overflows = 0
        self._most = most
        self._paths: dict[int, str] = {}  # by watch
        self._watched_ns: dict[str, int] = {}
        self._alone: set[str] = set()  # watched for some kinds, and new directories in them are not
        self._libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.suppress(AttributeError):  # not Linux
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self.fd = fd if fd >= 0 else None

    def add(self, path: str, depth: int = 1, kinds: int | None = None) -> bool:
        """Watch a directory and those ``depth`` levels below it, for ``kinds`` alone. Return whether it is watched.

        One that does not exist yet may be added later.
        """
        if kinds is not None:
            self._alone.add(path)
        if self.fd is None or path in self._watched_ns or len(self._watched_ns) >= self._most:
            return path in self._watched_ns
        mask = self._mask if kinds is None else kinds | _OF_DIRECTORIES
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if watch < 0:
            return False
        self._paths[watch] = path
        self._watched_ns[path] = time.time_ns()
        if depth > 0:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                for one in entries:
                    if one.name[0] != "." and one.is_dir(follow_symlinks=False):
                        self.add(one.path, depth - 1)
        return True

    def remove(self, path: str) -> None:
        """Watch a directory no more."""
        for watch in [watch for watch, one in self._paths.items() if one == path]:
            self._libc.inotify_rm_watch(self.fd, watch)
            del self._paths[watch]
        self._watched_ns.pop(path, None)
        self._alone.discard(path)

    def watched_ns(self, directory: str) -> int | None:
        """Return since when a directory is watched, in POSIX time, or None for one that is not."""
        return self._watched_ns.get(directory)

    def read_events(self) -> list[FileEvent]:
        """Return what happened since the last call, oldest first. Watches new directories.

        The kernel merges an event with an equal one right before it.
        """
        events: list[FileEvent] = []
        moved: dict[int, str] = {}  # from where, by cookie
        with contextlib.suppress(OSError):
            for _ in range(_MOST_READS if self.fd is not None else 0):
                self._decode(os.read(self.fd or 0, _READ_BYTES), moved, events)
        return events

    def _decode(self, data: bytes, moved: dict[int, str], events: list[FileEvent]) -> None:
        at = 0
        while at + _EVENT.size <= len(data):
            watch, mask, cookie, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            self.overflows += bool(mask & _OVERFLOW)
            directory = self._paths.get(watch)
            if directory is None or not name:
                continue
            path = os.path.join(directory, os.fsdecode(name))  # noqa: PTH118 - hot path
            kind, is_directory = mask & _KINDS, bool(mask & _DIRECTORY)
            if kind == MOVED_FROM:
                moved[cookie] = path
            former = moved.pop(cookie, "") if kind == MOVED_TO else ""
            events.append(FileEvent(path, kind, is_directory, former))
            if is_directory and kind in (CREATED, MOVED_TO):
                self._move(former, path)
                if self._follow and directory not in self._alone and not name.startswith(b"."):
                    self.add(path, _NEW_DEPTH)

    def _move(self, former: str, path: str) -> None:
        """Know the watched directories at and below ``former`` by their new paths."""
        if not former:
            return
        for watch, old in list(self._paths.items()):
            if old == former or old.startswith(former + "/"):
                new = path + old[len(former) :]
                self._paths[watch] = new
                self._watched_ns[new] = self._watched_ns.pop(old, time.time_ns())

    def close(self) -> None:
        """Stop watching."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
