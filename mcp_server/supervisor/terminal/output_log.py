"""The output of a command on its way: with secrets masked to its log, then to the pane and the observer.

The log is written first and must never miss a line; the pane gets output as far as it takes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from mcp_server.supervisor.terminal import pty
from mcp_server.supervisor.terminal.pty import Pane
from mcp_server.text.redaction import Redactor

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


# A flood is read in large pieces: woken for every line, the reader takes the training's processor (on two cores
# 0.9 s of it for 100,000 lines). During longer pauses the terminal's buffer fills, and the training waits.
_FLOW_S, _GATHER_S = 0.010, 0.002
_DRAIN_READS = 64


class OutputRelay:
    """Masks secrets in the command's output and passes it on: first to the log, then to the pane and the observer."""

    def __init__(
        self, master_fd: int, log: OutputLog, redactor: Redactor, pane: Pane | None, observe: Callable[[bytes], None]
    ) -> None:
        self.log = log
        # Whether any process still has the command's side of the terminal open.
        self.connected = True
        self.last_output_s = 0.0
        self._master_fd, self._pane = master_fd, pane
        self._redactor, self._observe = redactor, observe

    def read(self) -> None:
        """Pass on the output that is there. While output flows, wait 2 ms for more first."""
        if time.monotonic() - self.last_output_s < _FLOW_S:
            time.sleep(_GATHER_S)
        self._pass_on()
        self.last_output_s = time.monotonic()

    def drain(self) -> None:
        """Pass on the last output of processes that have ended."""
        for _ in range(_DRAIN_READS):
            if not self.connected or not self._pass_on():
                break
        self._show(self._redactor.flush())
        self.log.write(b"")  # notes lost bytes, if the disk takes the note by now

    def forward_keys(self) -> Literal["interrupt", "closed"] | None:
        """Pass on keys typed in the pane and return whether they interrupt the command, or that the pane is closed."""
        keys = self._pane.read_keys() if self._pane else b""
        if keys is None:
            return "closed"
        is_interrupt = bool(keys) and pty.interrupts(self._master_fd, keys)
        with contextlib.suppress(OSError):  # a command that reads nothing
            os.write(self._master_fd, keys)
        return "interrupt" if is_interrupt else None

    def resize_terminal(self) -> None:
        """Give the command's terminal the size of the pane, which is that of the attached client."""
        if self._pane and self._pane.is_open:
            with contextlib.suppress(OSError):
                pty.resize(self._master_fd, self._pane.size())

    def _pass_on(self) -> bool:
        output, self.connected = pty.read_output(self._master_fd)
        self._show(self._redactor.feed(output))
        return bool(output)

    def _show(self, output: bytes) -> None:
        if output:
            self.log.write(output)
            if self._pane:
                self._pane.write(output)
            self._observe(output)
