"""The log of an attempt on disk: everything that the command printed, with secrets masked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class OutputLog:
    """Appends output to a file. A full disk never stops the run: the lost bytes are counted and noted in the log.

    A file that somebody removes, replaces or cuts is followed: the rest goes into the one at its path, after a note.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        """``on_failure`` is told in a sentence what is lost, once of each kind in a row."""
        self._path, self._fd = path, os.open(path, _FLAGS, 0o600)
        self._size = os.fstat(self._fd).st_size  # at least, unless somebody cuts it
        self._is_gone = False
        self._on_failure = on_failure
        self._cause = ""
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append ``data``, after a note about earlier bytes that were lost."""
        self._follow()
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

    def _follow(self) -> None:
        """Go on in the file at the path where that is another one, or was cut, and note what is missing there."""
        with contextlib.suppress(OSError):  # no word of the disk for a moment, or no directory to go on in
            own, other = os.fstat(self._fd), None
            with contextlib.suppress(FileNotFoundError):
                other = os.lstat(self._path)
            is_same = other is not None and (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino)
            missing = self._size - own.st_size if is_same else own.st_size
            if is_same and missing <= 0:
                return
            cause = "cut its file" if is_same else "removed or replaced its file"
            if not self._is_gone:
                self._is_gone = True
                self._on_failure(
                    f"Somebody {cause}: {missing:,} bytes of output are missing in the log. The run goes on."
                )
            if not is_same:
                # The command can place a link or a pipe there.
                fd = os.open(self._path, _FLAGS | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
                try:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
                        return
                    os.dup2(fd, self._fd, inheritable=False)
                finally:
                    os.close(fd)
            self._size = os.fstat(self._fd).st_size
            self._append(f"\n[runward: {missing:,} bytes of output are missing here: somebody {cause}]\n".encode())

    def _append(self, data: bytes, *, whole: bool = False) -> bool:
        """Append ``data`` and return whether all of it was written. With ``whole``, a part is removed again."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
            self._size += written
        except OSError as error:
            if whole:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                return False
            self._size += written
            if not self.lost_bytes:
                self._cause = os.strerror(error.errno or errno.EIO)
                self._on_failure(f"Output is not being written to the log: {self._cause}. The run goes on.")
            self.lost_bytes += len(data) - written
            return False
        return True


_PAUSE_S = 2.0


class SharedLog(OutputLog):
    """A log on a disk that hosts share. Network file systems keep what is written for half a minute otherwise.

    A thread sends it, so that a disk that hangs does not hold up the command.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        super().__init__(path, on_failure)
        self._unsent, self._closing = threading.Event(), threading.Event()
        self._sender = threading.Thread(target=self._send_until_closed, daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is left: then the end sends all
            self._sender.start()

    def write(self, data: bytes) -> None:
        """Append ``data``, and have it sent."""
        super().write(data)
        self._unsent.set()

    def send(self) -> None:
        """Return once readers on other hosts see all that was written, or the disk refused."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """End the thread, and close the file, which sends the rest."""
        self._closing.set()
        self._unsent.set()
        if self._sender.is_alive():
            self._sender.join()
        super().close()

    def _send_until_closed(self) -> None:
        while self._unsent.wait() and not self._closing.is_set():
            self._unsent.clear()
            self.send()
            self._closing.wait(_PAUSE_S)
