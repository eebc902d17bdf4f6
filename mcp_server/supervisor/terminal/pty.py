"""The pseudo-terminal (pty) of a command, its output, size and modes, and the tmux pane where people watch and type."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.supervisor.guard import NUMBER_BYTES, SpareGuard, Work, guard

_DEFAULT_SIZE = struct.pack("HHHH", 50, 200, 0, 0)  # rows, columns, and two unused numbers
_CHUNK_BYTES, _LAST_BYTES = 8192, 1024  # Linux returns at most 4 KiB of a pty at a time; so little is all there is
_READS_A_TURN = 32
_IFLAG, _OFLAG, _LFLAG, _CC = 0, 1, 3, 6  # positions in what tcgetattr returns
_WRITTEN_BYTES, _BACKLOG_BYTES = 65536, 262144  # to a pane: at once, and at most kept for it
_LEAVE_S = 0.5  # for the last output, when the run is over


@dataclass(frozen=True)
class Child:
    """The command, as its supervisor sees it.

    ``guard_pid`` leads the session of the pty and waits for the command, so that the command is not a group
    leader: `setsid` does not fork away, and a program may call ``os.setpgrp()``. ``status_fd`` yields the
    command's pid and then its raw wait status, each as eight bytes. The guard lives until ``release_fd`` is
    closed: its end hangs up on everything that still uses the terminal.

    The command waits for ``let_go``. If the supervisor dies before, it exits and has done nothing.
    """

    guard_pid: int
    pid: int
    master_fd: int
    status_fd: int
    release_fd: int
    gate_fd: int

    def let_go(self) -> None:
        """Let the command begin. Call it once, when the record says that it runs."""
        with contextlib.suppress(BrokenPipeError):  # it was killed while it waited
            os.write(self.gate_fd, b"11")  # for the command, and for the guard, which knows by it that it began
        os.close(self.gate_fd)


def spawn(work: Work, size: bytes | None, lock_fds: Sequence[int] = (), spare: SpareGuard | None = None) -> Child:
    """Start a command on a new pty. It begins when ``Child.let_go`` is called.

    ``spare`` becomes its guard; without one this process forks. ``lock_fds``: locks that the guard holds as well, until
    the command has ended.

    Raises:
        OSError: the pty or the process could not be created; nothing was started.
    """
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    # Output stays as written, which is also cheaper for the command: the pane adds its own carriage returns,
    # the log needs none.
    modes[_OFLAG] &= ~(termios.OPOST | termios.ONLCR)
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size or _DEFAULT_SIZE)
    status_fd, status_end = os.pipe()
    release_end, release_fd = os.pipe()
    gate_end, gate_fd = os.pipe()
    ends = [slave, status_end, release_end, gate_end]
    guard_pid = (spare.assign(work, [*ends, *lock_fds]) if spare else None) or os.fork()
    if guard_pid == 0:
        guard(work, [*ends, *lock_fds])
    for fd in ends:
        os.close(fd)
    os.set_blocking(master, False)
    if (command := read_number(status_fd)) is None:
        raise OSError(errno.EAGAIN, "the command's process could not be created")
    return Child(guard_pid, command, master, status_fd, release_fd, gate_fd)


def read_number(status_fd: int) -> int | None:
    """Return the next number that the guard wrote, or None when the guard is gone."""
    data = os.read(status_fd, NUMBER_BYTES)
    return int.from_bytes(data, "little") if len(data) == NUMBER_BYTES else None


def read_output(master_fd: int) -> tuple[bytes, bool]:
    """Return the output that the pty holds now, and whether any process still has the other end open."""
    chunks: list[bytes] = []
    try:
        for _ in range(_READS_A_TURN):
            chunks.append(os.read(master_fd, _CHUNK_BYTES))
            if len(chunks[-1]) < _LAST_BYTES:
                break
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b"".join(chunks), False
    return b"".join(chunks), True


def interrupts(master_fd: int, keys: bytes) -> bool:
    """Return whether ``keys`` make the command's terminal send SIGINT or SIGQUIT (a raw terminal does not)."""
    modes = termios.tcgetattr(master_fd)
    if not modes[_LFLAG] & termios.ISIG:
        return False
    return any(modes[_CC][index] in keys for index in (termios.VINTR, termios.VQUIT))


def resize(master_fd: int, size: bytes) -> None:
    """Set the size of the command's terminal: rows and columns as TIOCSWINSZ takes them."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(master_fd, termios.TIOCSWINSZ, size)


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
                del self._backlog[: os.write(self.fd, self._backlog[:_WRITTEN_BYTES])]
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
