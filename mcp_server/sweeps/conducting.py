"""Starts the conductor of a sweep in a tmux session of its own, with this process's environment, and stops a sweep."""

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.backends import tmux_client
from mcp_server.backends.base import load_backend
from mcp_server.backends.local import check_program, write_handover
from mcp_server.errors import LaunchFailed, RunwardError
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.record.sweeps.sweep_state import LIVE, Sweep
from mcp_server.runs.stop.stop_run import Stops, stop_runs
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.sweep_store import find_conductor
from mcp_server.system import tmux
from mcp_server.system.lock_files import try_lock
from mcp_server.system.processes import find_process, read_umask, resume_process
from mcp_server.system.time_bounds import wait_longer
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread

_STARTED_WITHIN_S, _TURN_S, _LOOK_S = 15.0, 0.05, 0.5
_TRIES = 3  # of a conductor that ends before it begins
PROGRAM = "mcp_server.sweeps.conductor"  # of a conductor


def resume_conductor(sweep: Sweep) -> None:
    """Continue the conductor of a sweep where somebody has stopped the process (SIGSTOP): it answers nothing else."""
    if (pid := find_conductor(sweep)) is not None:
        resume_process(pid)


async def ensure_conductor(sweep: Sweep, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str]) -> None:
    """Start a conductor where the sweep needs one. Several processes may try at once, and one conductor stays.

    Raises:
        LaunchFailed: tmux refused, or the conductor did not begin within 15 s.
    """
    if not sweep.ended and not sweep.conducted:
        await start_conductor(store.sweeps.files_of(sweep), sweep, store, file_watch, environ)


async def start_conductor(
    directory: SweepDir,
    sweep: Sweep,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    tries: int = _TRIES,
) -> None:
    """Start a conductor and return once it advances the sweep. One that had ended, as ``sweep`` says, is opened again.

    Raises:
        LaunchFailed: tmux refused, it did not begin in time, or ended before that, so many ``tries`` long.
        TmuxMissing, InterpreterGone: it cannot begin.
    """
    await run_in_thread(load_backend("tmux").check_usable)
    await run_in_thread(check_program, PROGRAM)
    socket, token, reopens = sweep.spec.tmux_socket, secrets.token_hex(2), sweep.ended
    fifo = directory.path / f"handover-{token}"
    fd = await run_in_thread(_open_fifo, fifo)
    turn = await run_in_thread(os.open, directory.path, os.O_RDONLY | os.O_CLOEXEC)
    argv = [sys.executable, "-I", "-X", "utf8", "-m", PROGRAM, str(directory.path)]
    within_s, is_gone = wait_longer(_STARTED_WITHIN_S), False
    try:
        with file_watch.subscribe([directory.path]) as changes, anyio.move_on_after(within_s):
            # One at a time: another would take the session of a conductor that is just beginning for a dead one's.
            while not await run_in_thread(try_lock, turn):  # noqa: ASYNC110 - a lock does not say when it is free
                await anyio.sleep(_TURN_S)
            newest = await run_in_thread(store.sweeps.observe, sweep.sweep_id)
            if (newest.ended and not reopens) or (
                newest.conducted and await run_in_thread(_is_conducted, store, sweep)
            ):
                return  # by one that another process has started meanwhile
            sweep = newest
            session = await tmux_client.query_in_thread(partial(_choose_session, sweep.sweep_id, socket, token))
            argv += [str(fifo), session, *(["reopen"] if reopens else [])]
            start = partial(tmux.new_session, session, argv, socket=socket)
            pid = int(await anyio.to_thread.run_sync(start, abandon_on_cancel=True))
            await write_handover(fd, Handover(dict(environ), {}, read_umask()).encode())
            while not is_gone:
                is_gone = await run_in_thread(_is_gone, pid, store, sweep)
                if await run_in_thread(_is_conducted, store, sweep):
                    return
                with anyio.move_on_after(0 if is_gone else _LOOK_S):
                    await changes.next_change()
    finally:
        os.close(turn)
        os.close(fd)
        with anyio.CancelScope(shield=True):
            await run_in_thread(partial(fifo.unlink, missing_ok=True))
    if not is_gone or tries == 1:
        why = "ended before it began" if is_gone else f"did not begin within {within_s:.0f} s"
        cause, state = f"The conductor of {sweep.sweep_id} {why}.", "The sweep is kept; its live runs go on."
        raise LaunchFailed(cause, state, "Call again; runward doctor says what is wrong.")
    await start_conductor(directory, sweep, store, file_watch, environ, tries - 1)


def _open_fifo(path: Path) -> int:
    """Make the FIFO of a handover, and open both of its ends: the conductor meets no end of it too early."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _choose_session(sweep_id: str, socket: str, token: str) -> str:
    """Close the sessions of dead conductors, and return a name for the next; one with a person in it stays."""
    former = re.compile(rf"{re.escape(sweep_id)}(?:-[0-9a-f]{{4}})?")
    for session in tmux_client.list_sessions(socket):
        if former.fullmatch(session):
            tmux_client.close_session(session, socket=socket)
    return f"{sweep_id}-{token}" if sweep_id in tmux_client.list_sessions(socket) else sweep_id


def _is_gone(pid: int, store: RunStore, sweep: Sweep) -> bool:
    """Return whether a conductor has ended, and not because another one was before it."""
    return find_process(pid) is None and not store.sweeps.observe(sweep.sweep_id).conducted


def _is_conducted(store: RunStore, before: Sweep) -> bool:
    newer = store.sweeps.observe(before.sweep_id).events[len(before.events) :]
    return any(event["kind"] == "conducting" for event in newer)


_ANSWER_WITHIN_S = 15.0  # a conductor may be in the middle of a launch


@dataclass
class SweepStop:
    """The outcome of a sweep's stop: the sweep afterwards, and the stops of its runs."""

    sweep: Sweep
    runs: Stops = field(default_factory=Stops)
    problem: RunwardError | None = None  # its conductor does not answer

    @property
    def problems(self) -> dict[str, str]:
        """Why the sweep or its runs could not be stopped, by id."""
        own = {self.sweep.sweep_id: self.problem} if self.problem is not None else {}
        return {name: str(error) for name, error in (own | self.runs.problems).items()}

    @property
    def is_complete(self) -> bool:
        """Whether the sweep has ended, and nothing of it is known to live."""
        return self.sweep.ended and not self.runs.survivors and not self.problems


async def stop_sweep(
    sweep: Sweep,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    *,
    by: str,
    reason: str,
    stopped_by: str,
) -> SweepStop:
    """Stop a sweep and its live runs, and verify. Call this only after confirmation.

    Raises:
        OSError: the request could not be written; nothing was stopped.
    """
    directory = store.sweeps.files_of(sweep)
    reason = mask_secrets(reason)  # it is kept in files
    request = {"by": by, "reason": reason, "stopped_by": stopped_by, "at": now()}
    stop = SweepStop(sweep)
    with file_watch.subscribe([directory.path]) as changes:
        await run_in_thread(write_json, directory.stop, request)

        async def observe() -> Sweep:
            return await run_in_thread(store.sweeps.observe, sweep.sweep_id)

        async def wait_until(is_done: Callable[[Sweep], bool]) -> None:
            with anyio.move_on_after(_ANSWER_WITHIN_S):
                while not is_done(await observe()):
                    await changes.next_change()

        try:
            await run_in_thread(resume_conductor, sweep)
            await ensure_conductor(await observe(), store, file_watch, environ)
            await wait_until(_is_stopping)  # from then on nothing is launched
        except RunwardError as error:
            stop.problem = error
        live = [cell.run_id for cell in (await observe()).cells if cell.state == LIVE and cell.run_id is not None]
        runs, unreadable = await run_in_thread(_observe, live, store)
        stop.runs = await stop_runs(runs, store, file_watch, by=by, reason=reason, stopped_by=stopped_by)
        stop.runs.problems |= unreadable
        await wait_until(lambda sweep: sweep.ended)
        stop.sweep = await observe()
    return stop


def _observe(run_ids: Sequence[str], store: RunStore) -> tuple[list[Run], dict[str, RunwardError]]:
    runs, problems = [], dict[str, RunwardError]()
    for run_id in run_ids:
        try:
            run = store.observe(run_id)
        except RunwardError as error:
            problems[run_id] = error
        else:
            runs += [run] if not run.ended or run.abandoned else []
    return runs, problems


def _is_stopping(sweep: Sweep) -> bool:
    began = max((e["seq"] for e in sweep.events if e["kind"] == "conducting"), default=0)
    return sweep.ended or any(e["kind"] == "stopping" and e["seq"] > began for e in sweep.events)
