"""Starts supervisors as forks of one process that has loaded their program: `… supervisor --starter SOCKET PADDING`.

A fork costs 5 ms of processor time where an interpreter that loads the program costs 80, and shares its memory.
`system/starter_client` asks. A starter is a job of the tmux server whose panes its supervisors have: so they inherit
what a pane inherits. It reaps them, for a container whose first process does not; its death ends none of them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from mcp_server.supervisor.guard import SpareGuard, start_spare
from mcp_server.system.lock_files import hold_program_lock
from mcp_server.system.own_process import STARTER, forbid_core_dumps, set_title, supervisor_title
from mcp_server.system.starter_client import PATIENCE_S, READY

Supervise = Callable[[Path, "SpareGuard | None"], int]
_PROGRAM = Path(__file__).resolve().parents[2]
_IDLE_S = 300.0
_SELDOM, _QUIET_S = 2, 10.0  # so many launches, and so long after one, are too few and too soon for a warm program
_POLL_S = 0.002
_REQUEST_BYTES = 65536
_WAKING = (signal.SIGCHLD, signal.SIGTERM)  # a tmux server that ends terminates its jobs
_SAME = ("cgroup", "limits", "oom_score_adj")  # of /proc/PID: what a command inherits from its pane


def serve(path: str) -> int:
    """Fork a supervisor for each request, until tmux dies, or nobody has asked for five minutes and all have ended."""
    set_title([STARTER])
    tmux_server = os.getppid()
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - that of a former starter
    listener.bind(path)
    listener.listen()  # before the program is loaded: tmux opens the session meanwhile
    hold_program_lock(_PROGRAM)
    from mcp_server.supervisor.supervise import supervise  # noqa: PLC0415 - 40 ms, in which tmux opens the session

    starter = Starter(listener, tmux_server, path, supervise)
    starter.run()
    if starter.is_current():
        os.unlink(path)  # noqa: PTH108 - as it was made
    return 0


class Starter:
    """The process that forks supervisors. ``tmux_server`` is the process in whose panes they are."""

    def __init__(self, listener: socket.socket, tmux_server: int, path: str, supervise: Supervise) -> None:
        self._listener, self._tmux_server, self._path, self._supervise = listener, tmux_server, Path(path), supervise
        self._made = self._path.stat()
        self._tmux_fd = os.pidfd_open(tmux_server)
        self._wakeup_fd, self._wakeup_end = os.pipe()
        for fd in (self._wakeup_fd, self._wakeup_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        for number in _WAKING:
            signal.signal(number, lambda *_: None)

    def is_current(self) -> bool:
        """Return whether nobody has replaced this starter, or removed its program."""
        with contextlib.suppress(OSError):
            return _PROGRAM.exists() and os.path.samestat(self._path.stat(), self._made)
        return False

    def run(self) -> None:
        """Serve requests, and return once nobody needs this process."""
        poll, children, forks, is_warm = select.poll(), 0, 0, False
        for fd in (self._listener.fileno(), self._tmux_fd, self._wakeup_fd):
            poll.register(fd, select.POLLIN)
        while True:
            wait_s = _IDLE_S if is_warm else _QUIET_S if forks < _SELDOM else 0
            ready = {fd for fd, _ in poll.poll(wait_s * 1000)}
            if not ready and not is_warm:  # after a launch, which need not wait for it
                from mcp_server.supervisor.warm_up import warm_up  # noqa: PLC0415 - 73 ms

                warm_up()
                is_warm = True
            elif self._tmux_fd in ready or not (ready or children) or not self.is_current():
                return
            if self._wakeup_fd in ready:
                if signal.SIGTERM in os.read(self._wakeup_fd, 4096):
                    return
                children -= _reap()
            if self._listener.fileno() in ready:
                with contextlib.suppress(OSError):  # the caller finds the connection closed
                    children += self._fork()
                    forks += 1

    def _fork(self) -> int:
        channel = self._listener.accept()[0]
        with channel:
            if os.fork() == 0:
                for fd in (self._listener.fileno(), self._tmux_fd, self._wakeup_fd, self._wakeup_end):
                    os.close(fd)
                _become_supervisor(channel, self._tmux_server, self._supervise)
        return 1


def _reap() -> int:
    """Reap the children that have ended, and return how many. Continue those that were stopped, as tmux does."""
    count = 0
    with contextlib.suppress(ChildProcessError):
        while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            if os.WIFSTOPPED(changed[1]):
                os.kill(changed[0], signal.SIGCONT)
            else:
                count += 1
    return count


def _become_supervisor(channel: socket.socket, tmux_server: int, supervise: Supervise) -> NoReturn:
    """Supervise the run that the caller at the other end of ``channel`` names, unless it has given up."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _WAKING:
            signal.signal(number, signal.SIG_DFL)
        guard = start_spare()  # before this process changes anything, of which the guard would keep a copy
        os.setsid()
        channel.settimeout(PATIENCE_S)
        directory, pane_pid, fifo = json.loads(channel.recv(_REQUEST_BYTES))
        set_title(supervisor_title(Path(directory).name))
        await_hold(Path("/proc") / pane_pid, fifo)
        _adopt(Path("/proc") / pane_pid, tmux_server)
        holder = _open_holder(fifo)
        os.write(holder, f"{os.getpid()}\n".encode())
        forbid_core_dumps()
        if channel.send(READY) and channel.recv(1) == READY:
            channel.close()
            status = supervise(Path(directory), guard)
            os.write(holder, f"{status}\n".encode())
    except BaseException:
        traceback.print_exc()  # into the pane
    finally:
        os._exit(status)


def await_hold(pane: Path, fifo: str) -> None:
    """Return once a pane's process runs its own program: until then it is a copy of tmux, without terminal.

    Raises:
        OSError: it is gone, or takes too long.
    """
    until_s = time.monotonic() + PATIENCE_S
    while not (pane / "cmdline").read_bytes().endswith(os.fsencode(fifo) + b"\0"):
        if time.monotonic() >= until_s:
            raise OSError(errno.ETIMEDOUT, "the pane's program does not begin")
        time.sleep(_POLL_S)


def _adopt(pane: Path, tmux_server: int) -> None:
    """Take the environment and the terminal of a pane's process, given its directory in ``/proc``.

    Raises:
        OSError: it is gone, or a command would inherit something else from it than from this process.
    """
    parent = int((pane / "stat").read_text(errors="replace").rpartition(") ")[2].split()[1])
    if parent != tmux_server or any(
        (pane / each).read_bytes() != Path("/proc/self", each).read_bytes() for each in _SAME
    ):
        raise OSError(errno.EPERM, "the pane is not like this process")
    environ = [variable.partition(b"=") for variable in (pane / "environ").read_bytes().split(b"\0")]
    os.environ.clear()
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, _, value in environ if name})
    time.tzset()
    terminal = os.open(pane / "fd" / "1", os.O_RDWR | os.O_NOCTTY)  # its shell reads other files as 0 at times
    for fd in (0, 1, 2):
        os.dup2(terminal, fd)
    os.close(terminal)


def _open_holder(fifo: str) -> int:
    """Return the writing end of the FIFO that the pane's process reads, once it does: then the name may go."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            holder = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:  # noqa: PERF203 - a FIFO without a reader is tried again
            if error.errno != errno.ENXIO or time.monotonic() >= until_s:
                raise
            time.sleep(_POLL_S)
        else:
            os.set_blocking(holder, True)
            return holder
