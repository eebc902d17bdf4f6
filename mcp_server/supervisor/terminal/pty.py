"""The pseudo-terminal (pty) of a command: starting the command on it, reading its output, its size and its modes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.supervisor.guard import NUMBER_BYTES, SpareGuard, Work, guard

_DEFAULT_SIZE = struct.pack("HHHH", 50, 200, 0, 0)  # rows, columns, and two unused numbers
_CHUNK_BYTES, _LAST_BYTES = 8192, 1024  # Linux returns at most 4 KiB of a pty at a time; so little is all there is
_READS_A_TURN = 32
_OFLAG, _LFLAG, _CC = 1, 3, 6  # positions in what tcgetattr returns


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
