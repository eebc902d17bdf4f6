"""A minimal inotify, for the supervisor: wakes it when a file below some directories changes, and says which."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

# Of <sys/inotify.h>: modified, closed after writing, moved to, created; a directory only; not through a link.
_MODIFIED = 0x2
_MASK = _MODIFIED | 0x8 | 0x80 | 0x100 | 0x01000000 | 0x02000000
_NEW_DIRECTORY = 0x40000000  # of an event: it is about a directory, which was created or moved here
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES, _MOST_READS = 65536, 64


class Inotify:
    """Watches directories, and new ones below them, at most ``most``.

    ``fd`` is readable after a change; None where the kernel has no inotify for this user.
    """

    def __init__(self, most: int) -> None:
        self.fd: int | None = None
        self._most = most
        self._paths: dict[int, str] = {}  # by watch
        self._watched: dict[str, None] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.suppress(AttributeError):  # not Linux
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self.fd = fd if fd >= 0 else None

    def add(self, path: str, depth: int = 1) -> None:
        """Watch a directory and those ``depth`` levels below it. One that does not exist yet may be added later."""
        if self.fd is None or path in self._watched or len(self._watched) >= self._most:
            return
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MASK)
        if watch < 0:
            return
        self._paths[watch] = path
        self._watched[path] = None
        if depth > 0:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                for one in entries:
                    if one.name[0] != "." and one.is_dir(follow_symlinks=False):
                        self.add(one.path, depth - 1)

    def read_changes(self) -> dict[str, bool]:
        """Return the paths that have changed, with whether some change was other than to the content of an open file.

        Watches new directories.
        """
        changes: dict[str, bool] = {}
        with contextlib.suppress(OSError):
            for _ in range(_MOST_READS if self.fd is not None else 0):
                data = os.read(self.fd or 0, _READ_BYTES)
                at = 0
                while at + _EVENT.size <= len(data):
                    watch, mask, _, length = _EVENT.unpack_from(data, at)
                    name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                    at += _EVENT.size + length
                    path = os.path.join(self._paths.get(watch, ""), os.fsdecode(name))  # noqa: PTH118 - hot path
                    changes[path] = changes.get(path, False) or mask != _MODIFIED
                    if mask & _NEW_DIRECTORY and not name.startswith(b"."):
                        self.add(path)
        return changes

    def close(self) -> None:
        """Stop watching."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
