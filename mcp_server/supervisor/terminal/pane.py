"""The tmux pane of a run, where people watch and type. A frozen or closed pane costs the run nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import termios
import time
from pathlib import Path

_CHUNK_BYTES = 65536
_BACKLOG_BYTES = 262144
_LEAVE_S = 0.5  # for the last output, when the run is over
_IFLAG, _LFLAG = 0, 3  # positions in what tcgetattr returns


class Pane:
    """Shows output and reads keys. Neither ever blocks."""

    def __init__(self, fd: int) -> None:
        # An open file description of its own: O_NONBLOCK must not reach other processes that use the pane.
        self.fd = os.open(os.ttyname(fd), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_open = True
        self._backlog = bytearray()
        self._skipped_bytes = 0
        self._former_modes = termios.tcgetattr(self.fd)
        raw = termios.tcgetattr(self.fd)
        raw[_IFLAG] &= ~(termios.ICRNL | termios.IXON | termios.BRKINT | termios.ISTRIP)
        raw[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(self.fd, termios.TCSANOW, raw)

    @property
    def has_backlog(self) -> bool:
        """Whether output waits until the pane takes it."""
        return self.is_open and bool(self._backlog)

    def size(self) -> bytes:
        """Return rows and columns, as TIOCSWINSZ takes them."""
        return fcntl.ioctl(self.fd, termios.TIOCGWINSZ, b"\0" * 8)

    def read_keys(self) -> bytes | None:
        """Return the keys typed since the last call, or None when the pane is gone."""
        try:
            return os.read(self.fd, 4096) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, data: bytes = b"") -> None:
        """Show ``data`` as far as the pane takes it now. Beyond 256 KiB of backlog, skip output and note how much.

        A pane that is gone stays open here: its end is told by ``read_keys``, which its reader must hear.
        """
        if not self.is_open:
            return
        self._backlog += data
        try:
            while self._backlog:
                del self._backlog[: os.write(self.fd, self._backlog[:_CHUNK_BYTES])]
            self._skipped_bytes = 0
        except BlockingIOError:
            if len(self._backlog) > _BACKLOG_BYTES:
                skipped = self._backlog.rfind(b"\n", 0, -4096) + 1 or len(self._backlog)
                self._skipped_bytes += skipped
                note = f"\x1b[0m\r\n[runward: {self._skipped_bytes:,} bytes skipped here; the log has them]\r\n"
                self._backlog[:skipped] = note.encode()
        except OSError:
            self._backlog.clear()

    def restore(self) -> None:
        """Show the backlog, for half a second at most, and give the pane its former modes."""
        with contextlib.suppress(OSError, termios.error):
            until_s = time.monotonic() + _LEAVE_S
            while self.has_backlog and (left_s := until_s - time.monotonic()) > 0:
                select.select([], [self.fd], [], left_s)
                self.write()
            termios.tcsetattr(self.fd, termios.TCSANOW, self._former_modes)

    def close(self) -> None:
        """Close the pane, because it is gone."""
        if self.is_open:
            self.is_open = False
            os.close(self.fd)
            self.fd = -1  # its number may soon belong to another file


def open_pane(fd: int) -> Pane | None:
    """Return the pane on ``fd``, or None when ``fd`` is not a terminal, or its terminal is gone already."""
    with contextlib.suppress(OSError, termios.error):
        return Pane(fd) if os.isatty(fd) else None
    return None


def open_tmux_server() -> int | None:
    """Return a pidfd of the tmux server that this process runs in, or None outside tmux."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return os.pidfd_open(int(os.environ.get("TMUX", "").split(",")[1]))
    return None


_QUESTION = ("show-options", "-s", "exit-empty", ";", "list-panes", "-a", "-F", "#{pane_id}")
_ANSWER = "exit-empty"
_ANSWER_BYTES = 4096


class TmuxProbe:
    """A tmux client, of the same program as the server, that asks whether it still runs, and has the pane of this run.

    A server that ends while a client hangs closes all panes at once, takes no new client from then on, and lives until
    the client has gone. So only an answer proves that the server goes on. Then a person has closed the session if the
    pane is gone: the pane of a process that was killed stays.

    ``fd`` yields the answer, and its end when the client has ended. ``pid`` is the client's.
    """

    def __init__(self) -> None:
        path, server = [*os.environ.get("TMUX", "").split(","), "", ""][:2]
        program = Path(f"/proc/{server}/exe").readlink()
        self.fd, answer_end = os.pipe()
        os.set_blocking(self.fd, False)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, answer_end, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        environ = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        try:
            self.pid = os.posix_spawn(program, ["tmux", "-S", path, *_QUESTION], environ, file_actions=actions)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(answer_end)
        self._answer = b""

    def read(self) -> str | None:
        """Return why there is no screen, empty if a person closed it, or None while the client has not ended."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _ANSWER_BYTES):
                self._answer += data
            server, *panes = self._answer.decode(errors="replace").split("\n")
            if not server.startswith(_ANSWER):
                return "tmux is ending"
            return "the process of its pane was killed" if os.environ.get("TMUX_PANE") in panes else ""
        return None

    def close(self) -> None:
        """End the client, and close the pipe. The supervisor reaps it with its other children."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
