"""Supervisors on this host, each the process of a tmux session's pane."""

import contextlib
import errno
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.to_thread
from typing_extensions import override

from mcp_server.backends import tmux_client
from mcp_server.backends.base import Backend, GpuState, ListEnded
from mcp_server.backends.supervisor_copy import supervisor_program
from mcp_server.errors import BadArgument, InterpreterGone, LaunchFailed, ProcForeign, RunElsewhere, RunwardError
from mcp_server.gpus.leases import Leases
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record import run_processes
from mcp_server.record.handover import Handover, prepare_directory
from mcp_server.record.run_directory import LAUNCHED_AGAIN, RunDir, forbid_launch
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import LivenessReport, Run
from mcp_server.system import processes, tmux
from mcp_server.system.lock_files import may_be_locked, take_lock
from mcp_server.system.starter_client import start_supervisor
from mcp_server.system.time_bounds import wait_longer
from mcp_server.threads import CallAbandoned, run_in_thread, stop_if_abandoned

_STARTED_WITHIN_S = 15.0
_FILE_STEPS, _MOST_FOR_DISK_S, _SLOW_S = 400, 240.0, 0.1  # opened files until the command runs, a few operations each
DISCARDED_WITHIN_S = 2.0  # the refusal is not delayed longer by a tmux that does not answer
_POLL_S = 0.01
_PROBES_S = 0.1  # longer than readers hold a lock
_F_SETPIPE_SZ = 1031


class LocalBackend(Backend):
    """Runs supervisors in tmux sessions of this host. The run's state never comes from tmux."""

    leases_gpus = True

    def __init__(self) -> None:
        self._host = run_processes.ThisHost()

    @override
    def check_usable(self) -> None:
        tmux.check_installed()
        check_interpreter()
        check_proc()

    @override
    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        return replace(spec, session=spec.run_id, tmux_socket=tmux_socket(environ))

    @override
    def create(self, directory: RunDir, spec: RunSpec) -> None:
        prepare_directory(directory, spec.facts())

    @override
    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Start the supervisor in a new session, pass the handover through the FIFO, and await its first event.

        What a caller may rely on:

        - The FIFO is open at both ends before the supervisor exists. If this process dies, the supervisor reads the
          end of file and does not start its command.
        - A session that tmux refuses leaves no directory.
        - A supervisor that is not there after 15 s, on a busy machine up to 60 s, on a slow disk later, finds
          ``stop.json``: it does not start its command, or stops it at once. The FIFO is closed only after that file
          is written.

        Raises:
            LaunchFailed: tmux refused, or no event came in time.
        """
        began_s = time.monotonic()
        fifo = await run_in_thread(_open_handover, directory)
        file_s = time.monotonic() - began_s
        is_made, within_s = False, wait_longer(_STARTED_WITHIN_S) + min(file_s * _FILE_STEPS, _MOST_FOR_DISK_S)
        try:
            argv = await run_in_thread(supervisor_argv, sys.executable, directory.path)
            with anyio.move_on_after(within_s):
                try:
                    await anyio.to_thread.run_sync(
                        partial(start_supervisor, spec.session, argv, server=spec.tmux_socket), abandon_on_cancel=True
                    )
                except LaunchFailed:
                    # tmux also fails when it has made the session and then refuses one of its options.
                    if not await run_in_thread(may_be_locked, directory.lock):
                        await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)
                        raise
                is_made = True
                await write_handover(fifo, handover.encode())
                await first_event()
                return
            with contextlib.suppress(OSError):
                await run_in_thread(forbid_launch, directory, "it did not start in time")
        finally:
            os.close(fifo)
        raise LaunchFailed(
            f"The supervisor of {spec.run_id} did not start its command within {within_s:.0f} s: "
            f"{await _explain_silence(spec, argv, is_made=is_made, file_s=file_s)}.",
            "If it starts later, it stops at once.",
            "Try again; runward doctor says what is wrong.",
        )

    @override
    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove directory and session of a refused launch, waiting up to 2 s for its supervisor to exit."""
        with anyio.move_on_after(DISCARDED_WITHIN_S):
            while await run_in_thread(may_be_locked, directory.lock):  # noqa: ASYNC110 - no event announces that
                await anyio.sleep(_POLL_S)
            await tmux_client.query_in_thread(partial(tmux_client.close_session, spec.session, socket=spec.tmux_socket))
            while await run_in_thread(directory.path.exists):  # it writes for a moment after its lock is free
                await run_in_thread(shutil.rmtree, directory.path, ignore_errors=True)

    @override
    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
        del spec
        return not await run_in_thread(_stop_before_start, directory)

    @override
    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        return self._host.liveness(directory, spec)

    @override
    def check_stoppable(self, spec: RunSpec) -> None:
        if not self._host.supervises(spec):
            raise RunElsewhere(spec.run_id, spec.host)

    @override
    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        supervisor = run_processes.supervisor_of(directory.path, run)
        return supervisor is not None and processes.send_signal(supervisor, signal.SIGTERM)

    @override
    async def reap(self, directory: RunDir, run: Run) -> run_processes.ReapResult:
        reaping = run_processes.Reaping(self._host, directory.path, run)
        while (result := reaping.step()) is None:  # noqa: ASYNC110 - no event announces the end of a process
            await anyio.sleep(run_processes.REAP_STEP_S)
        return result

    @override
    def find_leftovers(self, run: Run) -> list[run_processes.RunProcess]:
        return run_processes.name_processes(self._host.find_leftovers(run))

    @override
    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        return await _capture(spec.session, spec.tmux_socket, history=history)

    @override
    def attach_command(self, spec: RunSpec) -> str:
        return tmux.attach_command(spec.session, spec.tmux_socket)

    @override
    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        tmux.check_installed()
        spec = run.spec
        if spec.session not in tmux_client.list_sessions(spec.tmux_socket):
            follow = ["tail", "-n", "10000", "-F", str(directory.log(run.attempt))]
            tmux.new_session(spec.session, follow, socket=spec.tmux_socket)
        tmux_client.become_client(spec.session, spec.tmux_socket)

    @override
    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        snapshot = query_gpus(sys.executable, env, near=near) if query else Snapshot()
        return GpuState(snapshot, {uuid: holder.text for uuid, holder in Leases(Path(spec.leases)).holders().items()})

    @override
    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        await tmux_client.query_in_thread(partial(_close_old_sessions, spec.tmux_socket, keep, ended))


def check_interpreter() -> None:
    """Raise InterpreterGone where this process's interpreter, which starts supervisors, cannot be executed."""
    python = Path(sys.executable)
    if not os.access(python, os.X_OK):
        raise InterpreterGone(python, "may not be executed" if os.path.lexists(python) else "is missing")


def check_proc() -> None:
    """Raise ProcForeign where /proc is another process namespace's: what it shows must not be signalled."""
    with contextlib.suppress(OSError):  # none is mounted
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - a number
            raise ProcForeign


def check_program(module: str) -> None:
    """Raise InterpreterGone where this process's interpreter does not start, or lacks ``module``, a program."""
    check_interpreter()
    words = [sys.executable, "-I", "-S", "-c", ""]
    try:
        status = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        status = 0  # slow is not gone
    except OSError as error:
        raise InterpreterGone(Path(sys.executable), f"does not start ({error.strerror})") from error
    if status:
        raise InterpreterGone(Path(sys.executable), f"does not start (exit status {status})")
    try:
        is_there = importlib.util.find_spec(f"{module}.__main__") is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise InterpreterGone(Path(sys.executable), f"has no {module} any more")


def _open_handover(directory: RunDir) -> int:
    """Return a descriptor of the handover's FIFO, open at both ends."""
    fifo = os.open(directory.handover, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        stop_if_abandoned()
    except CallAbandoned:
        os.close(fifo)
        raise
    return fifo


def tmux_socket(environ: Mapping[str, str]) -> str:
    """Return the name of the tmux server (``tmux -L``): ``$RUNWARD_TMUX_SOCKET``, else the user's ordinary one.

    Raises:
        BadArgument: the variable holds a path.
    """
    name = environ.get("RUNWARD_TMUX_SOCKET") or "default"
    if "/" in name:
        raise BadArgument("RUNWARD_TMUX_SOCKET", f"is a name for tmux -L, no path: {name!r}.")
    return name


def supervisor_argv(python: str, run_dir: Path) -> list[str]:
    """Return the command that starts a supervisor: isolated from the user's Python settings and site-packages.

    Its program is the copy in the state directory that the run is in.

    The supervisor shows another command line as soon as it runs (system/own_process.py).
    """
    return [python, "-I", "-S", "-X", "utf8", str(supervisor_program(run_dir.parents[1])), str(run_dir)]


def _stop_before_start(directory: RunDir) -> bool:
    """Leave a stop request for a supervisor that starts late; return whether the run has none now."""
    lock = take_lock(directory.lock, _PROBES_S)
    if lock is None:
        return False
    forbid_launch(directory, LAUNCHED_AGAIN)
    os.close(lock)
    return True


async def capture_session(name: str, environ: Mapping[str, str], *, history: bool) -> list[str]:
    """Return the lines of any tmux session of this user, also of one that is not a run's.

    Raises:
        ScreenNotFound: there is no session of exactly this name.
        ScreenNotAnswering: tmux does not answer.
    """
    return await _capture(name, tmux_socket(environ), history=history)


async def list_sessions(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the tmux sessions beside which runs have theirs."""
    return await tmux_client.query_in_thread(partial(tmux_client.list_sessions, tmux_socket(environ)))


async def _capture(session: str, server: str, *, history: bool) -> list[str]:
    return await tmux_client.query_in_thread(partial(tmux_client.capture_pane, session, socket=server, history=history))


async def _explain_silence(spec: RunSpec, argv: Sequence[str], *, is_made: bool, file_s: float = 0.0) -> str:
    """Return why a supervisor may not have started, as far as its command line ``argv`` and tmux say.

    ``file_s``: how long one file of the state directory took to open.
    """
    for path in (*argv[:1], *argv[-2:-1]):
        if not await run_in_thread(Path(path).exists):
            return f"its program {path} is missing"
    try:
        sessions = await tmux_client.query_in_thread(partial(tmux_client.list_sessions, spec.tmux_socket))
    except RunwardError:
        return "tmux does not answer"
    if is_made and spec.session not in sessions:
        return "tmux has closed its session, perhaps by a hook in tmux.conf (tmux show-hooks -g)"
    if file_s > _SLOW_S:
        return f"its state directory is slow ({file_s:.1f} s to open one file), or the machine is overloaded"
    return "perhaps the machine is overloaded"


def _close_old_sessions(server: str, keep: int, ended: ListEnded) -> None:
    sessions = tmux_client.list_sessions(server)
    if len(sessions) <= keep:
        return
    for spec in ended(sessions)[keep:]:
        tmux_client.close_session(spec.session, socket=server)


async def write_handover(fifo: int, data: bytes) -> None:
    """Write ``data`` into the FIFO, which holds 64 KiB unless its size is raised."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fifo, _F_SETPIPE_SZ, max(65536, len(data)))
    while data:
        try:
            data = data[os.write(fifo, data) :]
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            await anyio.wait_writable(fifo)
