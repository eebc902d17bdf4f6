"""The run's own terminal: a pty for the command, its log on disk, and the pane where people watch.

The log is written first and must never miss a line; the pane is written if it takes the bytes. A frozen
or closed pane costs the run nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

_DEFAULT_SIZE = struct.pack("HHHH", 50, 200, 0, 0)
_CHUNK_BYTES = 65536
_READS_A_TURN = 32  # Linux hands out 4 KiB of a pty at a time
_PANE_BACKLOG_BYTES = 262144
_NUMBER_BYTES = 8
_IFLAG, _OFLAG, _LFLAG, _CC = 0, 1, 3, 6


@dataclass(frozen=True)
class Child:
    """The command, seen from the supervisor.

    ``guard_pid`` leads the session of the pty and waits for the command, so that the command is no group
    leader: `setsid` does not fork away, and a program may call ``os.setpgrp()``. ``news_fd`` yields the
    command's pid and then its raw wait status, each as eight bytes. The guard stays until ``release_fd`` is
    closed: its end hangs up on everything that still uses the terminal.
    """

    guard_pid: int
    pid: int
    master_fd: int
    news_fd: int
    release_fd: int


def spawn(argv: list[str], env: Mapping[str, str], cwd: str, size: bytes | None) -> Child:
    """Start ``argv`` on a new pty, with exactly ``env``.

    Raises:
        OSError: no pty or no process could be had; nothing was started.
    """
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    # Output stays as written, which is also cheaper for the command: the pane adds its own carriage returns,
    # the log needs none.
    modes[_OFLAG] &= ~(termios.OPOST | termios.ONLCR)
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size or _DEFAULT_SIZE)
    news, told = os.pipe()
    released, release = os.pipe()
    guard = os.fork()
    if guard == 0:
        _guard(argv, env, cwd, slave, told, released)
    for fd in (slave, told, released):
        os.close(fd)
    os.set_blocking(master, False)
    if (pid := read_number(news)) is None:
        raise OSError(errno.EAGAIN, "the command's process could not be created")
    return Child(guard, pid, master, news, release)


def read_number(news_fd: int) -> int | None:
    """Read what the guard tells; None when it is gone."""
    told = os.read(news_fd, _NUMBER_BYTES)
    return int.from_bytes(told, "little") if len(told) == _NUMBER_BYTES else None


def _guard(argv: list[str], env: Mapping[str, str], cwd: str, slave: int, told: int, released: int) -> NoReturn:
    """Lead the session, start the command, pass on its pid and its wait status."""
    try:
        signal.set_wakeup_fd(-1)  # the supervisor's; its number may soon be another's
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGWINCH):
            signal.signal(number, signal.SIG_DFL)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        # Nothing else stays open here, above all not the lock: it must fall with the supervisor.
        ends = [os.dup(told), os.dup(released)]
        told, released = ends
        for above, below in pairwise([2, *sorted(ends), 65536]):
            os.closerange(above + 1, below)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        pid = os.fork()
        if pid == 0:
            _become(argv, env, cwd)
        os.write(told, pid.to_bytes(_NUMBER_BYTES, "little"))
        os.write(told, os.waitpid(pid, 0)[1].to_bytes(_NUMBER_BYTES, "little"))
        os.read(released, 1)
    finally:
        os._exit(0)


def _become(argv: list[str], env: Mapping[str, str], cwd: str) -> NoReturn:
    """Turn this process into the command."""
    try:
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP stay as they are
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(cwd)
        os.execvpe(argv[0], argv, dict(env))
    except OSError as error:
        os.write(2, f"runward: cannot start {argv[0]} in {cwd}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def read_output(fd: int) -> tuple[bytes, bool]:
    """Read what the pty has now, and tell whether any process still holds its other end."""
    chunks: list[bytes] = []
    try:
        for _ in range(_READS_A_TURN):
            chunks.append(os.read(fd, _CHUNK_BYTES))  # noqa: PERF401 - kept when the next one fails
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b"".join(chunks), False
    return b"".join(chunks), True


class Log:
    """The output on disk. A full disk never stops the run: what is lost is counted, and told in the log."""

    def __init__(self, path: Path, on_trouble: Callable[[str], None]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._on_trouble = on_trouble
        self.lost_bytes = 0
        self.cause = ""

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        if self.lost_bytes:
            note = f"\n[runward: {self.lost_bytes:,} bytes of output were lost here: {self.cause}]\n"
            if not self._append(note.encode(), whole=True):
                self.lost_bytes += len(data)
                return
            self.lost_bytes = 0
        self._append(data)

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)

    def _append(self, data: bytes, *, whole: bool = False) -> bool:
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
                self.cause = os.strerror(error.errno or errno.EIO)
                self._on_trouble(self.cause)
            self.lost_bytes += len(data) - written
            return False
        return True


class Pane:
    """The tmux pane. Keys go to the command, output comes from it, and neither ever waits."""

    def __init__(self, fd: int) -> None:
        # A description of its own: O_NONBLOCK must not reach others that share the pane's.
        self.fd = os.open(os.ttyname(fd), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.open = True
        self._backlog = bytearray()
        self._skipped = 0
        self._modes = termios.tcgetattr(self.fd)
        raw = termios.tcgetattr(self.fd)
        raw[_IFLAG] &= ~(termios.ICRNL | termios.IXON | termios.BRKINT | termios.ISTRIP)
        raw[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(self.fd, termios.TCSANOW, raw)

    @property
    def wants_to_write(self) -> bool:
        """Whether output waits for the pane."""
        return self.open and bool(self._backlog)

    def size(self) -> bytes:
        """Rows and columns, as TIOCSWINSZ takes them."""
        return fcntl.ioctl(self.fd, termios.TIOCGWINSZ, b"\0" * 8)

    def read(self) -> bytes | None:
        """Keys typed by whoever is attached; None when the pane is gone."""
        try:
            return os.read(self.fd, 4096) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, data: bytes = b"") -> None:
        """Show ``data`` as far as the pane takes it now; a pane that is stuck skips, and says so."""
        if not self.open:
            return
        self._backlog += data
        try:
            while self._backlog:
                del self._backlog[: os.write(self.fd, self._backlog[:_CHUNK_BYTES])]
            self._skipped = 0
        except BlockingIOError:
            if len(self._backlog) > _PANE_BACKLOG_BYTES:
                keep = self._backlog.rfind(b"\n", 0, -4096) + 1 or len(self._backlog)
                self._skipped += keep
                note = f"\x1b[0m\r\n[runward: {self._skipped:,} bytes skipped here; the log has them]\r\n"
                self._backlog[:keep] = note.encode()
        except OSError:
            self.close()

    def leave(self) -> None:
        """Show what still waits, for half a second at most, and give the pane its modes back."""
        with contextlib.suppress(OSError, termios.error):
            until_s = time.monotonic() + 0.5
            while self.wants_to_write and (left_s := until_s - time.monotonic()) > 0:
                select.select([], [self.fd], [], left_s)
                self.write()
            termios.tcsetattr(self.fd, termios.TCSANOW, self._modes)

    def close(self) -> None:
        """Forget the pane: it is gone."""
        if self.open:
            self.open = False
            os.close(self.fd)


def pane_of(fd: int) -> Pane | None:
    """Return the pane on ``fd``, or None when that is no terminal, or one that is gone already."""
    with contextlib.suppress(OSError, termios.error):
        return Pane(fd) if os.isatty(fd) else None
    return None


def interrupts(master_fd: int, keys: bytes) -> bool:
    """Tell whether ``keys`` make the command's terminal send SIGINT or SIGQUIT (a raw terminal does not)."""
    modes = termios.tcgetattr(master_fd)
    if not modes[_LFLAG] & termios.ISIG:
        return False
    return any(modes[_CC][index] in keys for index in (termios.VINTR, termios.VQUIT))


def resize(master_fd: int, size: bytes) -> None:
    """Give the command's terminal the pane's size, so that it follows whoever is attached."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(master_fd, termios.TIOCSWINSZ, size)


def bash() -> str:
    """Return bash, also when the run's own PATH lacks it."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "bash")


def tmux_server() -> int | None:
    """Return a pidfd of the tmux server that this pane belongs to, or None outside tmux."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return os.pidfd_open(int(os.environ.get("TMUX", "").split(",")[1]))
    return None
