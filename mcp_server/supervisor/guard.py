"""The guard of a command: it starts the command, waits for it, and records its end where the supervisor is gone.

It lives as long as the command. So it is forked before the supervisor loads its program, 8 MB of memory that it would
keep a copy of, and this module imports only what the interpreter has loaded by then, or what is small.
"""

from __future__ import annotations

import _signal
import _socket
import fcntl
import marshal
import os
import termios
import time

from mcp_server.system.own_process import forbid_core_dumps, read_status, restore_limit, set_title

TYPE_CHECKING = False  # without the module `typing`, which takes 0.4 MB
if TYPE_CHECKING:
    from typing import NoReturn

NUMBER_BYTES = 8
NEVER_BEGAN = '{"began": false}\n'  # what is recorded of a command whose supervisor died before it let it begin
_DUMPED_CORE = 0x80  # in a raw wait status
_READ_BYTES, _MOST_FDS, _FD_BYTES = 1 << 16, 200, 4
_PATIENCE_S = 5.0  # with a guard that takes no work, because somebody has stopped it
_IGNORED = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGTSTP)
_RESET = (_signal.SIGCHLD, _signal.SIGWINCH)


class Work:
    """The work of a guard: start ``argv`` in ``cwd`` with exactly ``env`` and ``umask`` (None: as it is).

    Where ``exit_record`` is missing after the end, and the supervisor is gone, it writes the end to ``guard_record``.
    It shows ``title``, the supervisor's, where it was forked before that was known.
    """

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        umask: int | None = None,
        exit_record: str = "",
        guard_record: str = "",
        title: tuple[str, ...] = (),
    ) -> None:
        self.argv, self.env, self.cwd, self.umask = argv, env, cwd, umask
        self.exit_record, self.guard_record, self.title = exit_record, guard_record, title


class SpareGuard:
    """A guard that has no command yet. It exits with the process that started it."""

    def __init__(self, pid: int, channel: _socket.socket) -> None:
        self._pid, self._channel = pid, channel

    def assign(self, work: Work, fds: list[int]) -> int | None:
        """Hand ``work`` and descriptors over, once, and return its pid, or None if it does not take them."""
        data = marshal.dumps(list(vars(work).values()))
        sent = 0
        self._channel.settimeout(_PATIENCE_S)
        try:
            rights = b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in fds)
            header = len(data).to_bytes(NUMBER_BYTES, "little")
            self._channel.sendmsg([header], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
            while sent < len(data):
                sent += self._channel.send(data[sent:])
            is_taken = bool(self._channel.recv(1))
        except OSError:
            is_taken = False
        self._channel.close()
        if not is_taken:
            os.kill(self._pid, _signal.SIGKILL)
        return self._pid if is_taken else None


def start_spare() -> SpareGuard | None:
    """Fork a guard that waits for its work, or return None where there is no process or descriptor for it."""
    try:
        channel, far_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        pid = os.fork()
    except OSError:
        return None
    if pid == 0:
        _await_work(channel, far_end)
    far_end.close()
    return SpareGuard(pid, channel)


def _await_work(channel: _socket.socket, far_end: _socket.socket) -> NoReturn:
    try:
        channel.close()
        os.setsid()  # what is typed into the pane, and its end, reach this process no more
        forbid_core_dumps()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        header, ancillary, _, _ = far_end.recvmsg(NUMBER_BYTES, _socket.CMSG_SPACE(_MOST_FDS * _FD_BYTES))
        data, left = b"", int.from_bytes(header, "little")
        while header and left > len(data) and (more := far_end.recv(min(_READ_BYTES, left - len(data)))):
            data += more
        if header and left == len(data):
            rights = b"".join(content for _, _, content in ancillary)
            fds = [int.from_bytes(rights[at : at + _FD_BYTES], "little") for at in range(0, len(rights), _FD_BYTES)]
            far_end.send(b"1")
            work = Work(*marshal.loads(data))  # noqa: S302 - from the process that forked this one
            if work.title:
                set_title(work.title)
            guard(work, fds)
    finally:
        os._exit(0)


def guard(work: Work, fds: list[int]) -> NoReturn:
    """Lead a session, start the command, and report its pid and its wait status.

    ``fds``: the terminal, the ends of the status, release and gate pipes, and locks. Those stay open here, and not in
    the command.
    """
    try:
        _signal.set_wakeup_fd(-1)  # it is the supervisor's, and its number may soon belong to another file
        for number in _IGNORED:
            _signal.signal(number, _signal.SIG_IGN)
        for number in _RESET:
            _signal.signal(number, _signal.SIG_DFL)
        for fd in (0, 1, 2):
            os.dup2(fds[0], fd)
        # Nothing else stays open here, above all not the run's lock, which must be released when the supervisor dies.
        status_end, release_end, gate_end, *_ = kept = [os.dup(fd) for fd in fds[1:]]
        open_fds = [2, *sorted(kept), 65536]
        for above, below in zip(open_fds, open_fds[1:]):
            os.closerange(above + 1, below)
        if os.getsid(0) != os.getpid():
            os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        pid = os.fork()
        if pid == 0:
            _exec_command(work, gate_end)
        os.write(status_end, pid.to_bytes(NUMBER_BYTES, "little"))
        status = _await_end(pid)
        ended_s = time.time()
        try:
            os.write(status_end, status.to_bytes(NUMBER_BYTES, "little"))
        except BrokenPipeError:  # the supervisor is gone
            pass
        os.waitpid(pid, 0)
        os.read(release_end, 1)  # a supervisor writes its exit record first
        if work.guard_record and not os.path.exists(work.exit_record):
            _write_record(work.guard_record, _describe_end(status, ended_s) if _has_begun(gate_end) else NEVER_BEGAN)
    finally:
        os._exit(0)


def _has_begun(gate_end: int) -> bool:
    """Return whether the gate was opened for the command that has ended."""
    os.set_blocking(gate_end, False)
    try:
        return bool(os.read(gate_end, 1))
    except BlockingIOError:
        return False


def _describe_end(status: int, ended_s: float) -> str:
    exit_code, name = read_status(status)
    ended_at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ended_s))}.{int(ended_s * 1000) % 1000:03}Z"
    code, quoted = "null" if exit_code is None else exit_code, "null" if name is None else f'"{name}"'
    return f'{{"exit_code": {code}, "signal": {quoted}, "ended_at": "{ended_at}"}}\n'


def _write_record(path: str, text: str) -> None:
    """Write a file that appears atomically. ``system/files`` would take 1 MB."""
    directory, name = os.path.split(path)
    part = f"{directory}/.{name}.{os.getpid()}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.write(fd, text.encode())
    os.fsync(fd)
    os.rename(part, path)


def _await_end(pid: int) -> int:
    """Wait for the command and return its raw wait status, without taking it from the kernel.

    A guard that is killed between the command's end and its report leaves the status to the supervisor.
    """
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None  # noqa: S101 - None needs WNOHANG
    if end.si_code == os.CLD_EXITED:
        return end.si_status << 8
    return end.si_status | (_DUMPED_CORE if end.si_code == os.CLD_DUMPED else 0)


def _exec_command(work: Work, gate_end: int) -> NoReturn:
    """Turn this process into the command, once the gate opens."""
    program = work.argv[0]
    try:
        for number in _signal.valid_signals():
            try:
                _signal.signal(number, _signal.SIG_DFL)
            except (OSError, ValueError):  # SIGKILL and SIGSTOP cannot be set
                pass
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        restore_limit()
        if not os.read(gate_end, 1):  # the supervisor died, and nothing says that the command runs
            os._exit(127)
        os.chdir(work.cwd)
        if work.umask is not None:
            os.umask(work.umask)
        os.execvpe(program, work.argv, work.env)
    except (OSError, ValueError) as error:  # e.g. a variable that the locale cannot encode
        cause = getattr(error, "strerror", None) or error
        os.write(2, f"runward: cannot start {program} in {work.cwd}: {cause}\n".encode(errors="replace"))
    finally:
        os._exit(127)
