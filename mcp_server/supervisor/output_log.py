"""The log of an attempt on disk: everything that the command printed, with secrets masked."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path


class OutputLog:
    """Appends output to a file. A full disk never stops the run: the lost bytes are counted and noted in the log."""

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._on_failure = on_failure
        self._cause = ""
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append ``data``, after a note about earlier bytes that were lost."""
        if self.lost_bytes:
            note = f"\n[runward: {self.lost_bytes:,} bytes of output were lost here: {self._cause}]\n"
            if not self._append(note.encode(), whole=True):
                self.lost_bytes += len(data)
                return
            self.lost_bytes = 0
        self._append(data)

    def send(self) -> None:
        """Do nothing: readers on this host see at once what was written."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, data: bytes, *, whole: bool = False) -> bool:
        """Append ``data`` and return whether all of it was written. With ``whole``, a part is removed again."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            if whole:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                return False
            if not self.lost_bytes:
                self._cause = os.strerror(error.errno or errno.EIO)
                self._on_failure(self._cause)
            self.lost_bytes += len(data) - written
            return False
        return True
