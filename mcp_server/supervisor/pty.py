"""The pseudo-terminal (pty) of a command: starting the command on it, reading its output, its size and its modes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mcp_server.record.exit_status import classify_ending
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import NEVER_BEGAN
from mcp_server.system.core_dumps import restore_limit

_DEFAULT_SIZE = struct.pack("HHHH", 50, 200, 0, 0)  # rows, columns, and two unused numbers
_CHUNK_BYTES, _LAST_BYTES = 8192, 1024  # Linux returns at most 4 KiB of a pty at a time; so little is all there is
_READS_A_TURN = 32
_NUMBER_BYTES = 8
_DUMPED_CORE = 0x80  # in a raw wait status
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


@dataclass(frozen=True)
class GuardDuties:
    """The guard's work for a supervisor that dies.

    ``lock_fds``: locks that it holds as well, until the command has ended. Where ``exit_record`` is missing then, it
    writes the command's end to ``guard_record``.
    """

    lock_fds: Sequence[int] = ()
    exit_record: Path | None = None
    guard_record: Path | None = None


_NO_DUTIES = GuardDuties()


def spawn(
    argv: list[str], env: Mapping[str, str], cwd: str, size: bytes | None, duties: GuardDuties = _NO_DUTIES
) -> Child:
    """Start ``argv`` on a new pty, with exactly ``env``. It begins when ``Child.let_go`` is called.

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
    guard = os.fork()
    if guard == 0:
        _run_guard(argv, env, cwd, slave, (status_end, release_end, gate_end), duties)
    for fd in (slave, status_end, release_end, gate_end):
        os.close(fd)
    os.set_blocking(master, False)
    if (pid := read_number(status_fd)) is None:
        raise OSError(errno.EAGAIN, "the command's process could not be created")
    return Child(guard, pid, master, status_fd, release_fd, gate_fd)


def read_number(status_fd: int) -> int | None:
    """Return the next number that the guard wrote, or None when the guard is gone."""
    data = os.read(status_fd, _NUMBER_BYTES)
    return int.from_bytes(data, "little") if len(data) == _NUMBER_BYTES else None


def _run_guard(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    slave: int,
    pipe_ends: tuple[int, int, int],
    duties: GuardDuties,
) -> NoReturn:
    """Lead the session, start the command, and report its pid and its wait status.

    ``pipe_ends``: of the status, the release and the gate. The locks stay open here, and not in the command.
    """
    try:
        signal.set_wakeup_fd(-1)  # it is the supervisor's, and its number may soon belong to another file
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGWINCH):
            signal.signal(number, signal.SIG_DFL)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        # Nothing else stays open here, above all not the run's lock, which must be released when the supervisor dies.
        status_end, release_end, gate_end = ends = [os.dup(end) for end in pipe_ends]
        open_fds = [2, *sorted([*ends, *(os.dup(fd) for fd in duties.lock_fds)]), 65536]
        for above, below in zip(open_fds, open_fds[1:]):
            os.closerange(above + 1, below)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        pid = os.fork()
        if pid == 0:
            _exec_command(argv, env, cwd, gate_end)
        os.write(status_end, pid.to_bytes(_NUMBER_BYTES, "little"))
        status = _await_end(pid)
        ended_at = now()
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
            os.write(status_end, status.to_bytes(_NUMBER_BYTES, "little"))
        os.waitpid(pid, 0)
        os.read(release_end, 1)  # a supervisor writes its exit record first
        if duties.exit_record and duties.guard_record and not duties.exit_record.exists():
            write_json(duties.guard_record, _describe_end(status, ended_at) if _has_begun(gate_end) else NEVER_BEGAN)
    finally:
        os._exit(0)


def _has_begun(gate_end: int) -> bool:
    """Return whether the gate was opened for the command that has ended."""
    os.set_blocking(gate_end, False)
    try:
        return bool(os.read(gate_end, 1))
    except BlockingIOError:
        return False


def _describe_end(status: int, ended_at: str) -> dict[str, Any]:
    ending = classify_ending(status, None, interrupted=False)
    return {"exit_code": ending.exit_code, "signal": ending.signal, "ended_at": ended_at}


def _await_end(pid: int) -> int:
    """Wait for the command and return its raw wait status, without taking it from the kernel.

    A guard that is killed between the command's end and its report leaves the status to the supervisor.
    """
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None  # noqa: S101 - None needs WNOHANG
    if end.si_code == os.CLD_EXITED:
        return end.si_status << 8
    return end.si_status | (_DUMPED_CORE if end.si_code == os.CLD_DUMPED else 0)


def _exec_command(argv: list[str], env: Mapping[str, str], cwd: str, gate_end: int) -> NoReturn:
    """Turn this process into the command, once the gate opens."""
    try:
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP cannot be set
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        restore_limit()
        if not os.read(gate_end, 1):  # the supervisor died, and nothing says that the command runs
            os._exit(127)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, dict(env))
    except (OSError, ValueError) as error:  # e.g. a variable that the locale cannot encode
        cause = getattr(error, "strerror", None) or error
        os.write(2, f"runward: cannot start {argv[0]} in {cwd}: {cause}\n".encode(errors="replace"))
    finally:
        os._exit(127)


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
