"""Takes over a run: the lock, the signals, the environment, then its attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mcp_server.supervisor.attempt import Attempt
from mcp_server.supervisor.handover import HandoverError, StoppedBefore, receive
from mcp_server.supervisor.rundir import EventLog, RunDir, read_json, take_lock

_NOT_OURS = 75
_LOCK_PATIENCE_S = 2.0
_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE)


def supervise(path: Path) -> int:
    """Run what ``path`` holds to its end; return the command's exit status.

    75: somebody else supervises this run, or it has been supervised before. 1: the command never started.
    """
    rundir = RunDir(path)
    if not rundir.spec.is_file():  # its launch was given up
        return _NOT_OURS
    lock = take_lock(rundir.lock, _LOCK_PATIENCE_S)
    if lock is None or rundir.events.exists():
        return _NOT_OURS
    spec = read_json(rundir.spec)
    if spec is None:
        return _NOT_OURS
    woken = _listen()
    events = EventLog(rundir.events)
    try:
        handover = receive(rundir.handover)
    except HandoverError as error:
        events.append("refused", f"Never started: {error}.", state="failed")
        return 1
    try:
        attempt = Attempt(rundir, spec, events, handover, woken)
    except StoppedBefore:
        events.append("refused", "Never started: it was stopped before.", state="killed")
        return 1
    except OSError as error:
        events.append("refused", f"Never started: {error}.", state="failed")
        return 1
    attempt.loop()
    os.close(lock)  # last: until here a reader sees a living supervisor
    return attempt.ending.status  # tmux shows it to whoever attaches later


def _listen() -> int:
    """Turn signals into bytes on a pipe; return its reading end."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in _WAKING:
        signal.signal(number, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return read_fd
