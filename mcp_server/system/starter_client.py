"""Starts supervisors through a starter: a process of their tmux server that has loaded their program, and forks.

Where there is none, or it does not answer, the supervisor is started by itself, in the same session.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from mcp_server.errors import LaunchFailed
from mcp_server.system import tmux
from mcp_server.system.lock_files import try_lock

READY = b"1"  # the answer of a starter's child that has all of the session, and the word that lets it go on
PATIENCE_S = 5.0
_COMES_WITHIN_S, _GIVEN_UP_S, _POLL_S = 3.0, 60.0, 0.005
_TITLE_BYTES = 512  # of memory for the title of a supervisor, see own_process
_NOT_RUNNING = "TtZX"
_KEY_DIGITS = 16
# The process of a pane whose supervisor is a starter's. It passes on resizing and termination, ends
# as that does, and works in no directory: the watch for programs beside a run need not look at it.
_HOLD = """\
trap "" INT QUIT TSTP; cd /; exec 3<"$0"; read -r p <&3; trap 'w=1; kill -WINCH $p' WINCH; trap 'w=1; kill $p' TERM
kill -WINCH $p; while w=; ! read -r s <&3 && [ "$w" ]; do :; done; exit "${s:-137}"
"""

_given_up_s: dict[str, float] = {}  # until when a starter is not tried again, by its path


def start_supervisor(session: str, argv: Sequence[str], *, server: str) -> None:
    """Start ``argv``, a supervisor's command whose last word is the run directory, in a new session of a tmux server.

    Raises:
        LaunchFailed: tmux refused, with its error message, or does not answer.
    """
    path = _starter_path(argv[:-1], server)
    channel = _reach(path, argv[:-1], server) if time.monotonic() >= _given_up_s.get(path, 0.0) else None
    if channel is None:
        tmux.new_session(session, argv, socket=server)
        return
    fifo = f"{path}-{secrets.token_hex(4)}"
    with channel:
        try:
            os.mkfifo(fifo, 0o600)
            pane_pid = tmux.new_session(session, ["/bin/sh", "-c", _HOLD, fifo], socket=server, starts_server=False)
            if not _hand_over(channel, [argv[-1], pane_pid, fifo]):
                _given_up_s[path] = time.monotonic() + _GIVEN_UP_S
                tmux.restart_session(session, argv, socket=server)
        finally:
            Path(fifo).unlink(missing_ok=True)


def _hand_over(channel: socket.socket, request: Sequence[str]) -> bool:
    """Return whether the starter's child has taken the session over. Else it never will."""
    try:
        channel.settimeout(PATIENCE_S)
        channel.send(json.dumps(request).encode())
        return channel.recv(1) == READY and channel.send(READY) == 1
    except OSError:
        return False


def _starter_path(words: Sequence[str], server: str) -> str:
    """Return the path of a starter's socket, beside that of its tmux: whoever reaches the one reaches the other."""
    directory = f"{os.environ.get('TMUX_TMPDIR') or '/tmp'}/tmux-{os.geteuid()}"  # noqa: S108 - as tmux chooses it
    key = hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:_KEY_DIGITS]
    return f"{directory}/{server}.runward-{key}"


def _reach(path: str, words: Sequence[str], server: str) -> socket.socket | None:
    """Return a connection to the starter, which is started where there is none; None where that takes too long."""
    if (channel := _connect(path)) is not None:
        return channel
    with contextlib.suppress(OSError, LaunchFailed):
        tmux.start_server(server)
        lock = os.open(Path(path).parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _await_starter(path, words, server, lock)
        finally:
            os.close(lock)
    return None


def _await_starter(path: str, words: Sequence[str], server: str, lock: int) -> socket.socket | None:
    """Return a connection to a starter that this process, or another one that holds ``lock``, starts."""
    until_s, is_locked, is_asked = time.monotonic() + _COMES_WITHIN_S, False, False
    while time.monotonic() < until_s:
        is_alone = is_locked
        if (channel := _connect(path)) is not None:
            return channel
        if is_alone and not is_asked:
            command = shlex.join([*words, "--starter", path, "-" * _TITLE_BYTES])
            tmux.run_in_background(f"exec {command}", socket=server)
            is_asked = True
        is_locked = is_locked or try_lock(lock)
        time.sleep(_POLL_S)
    _given_up_s[path] = time.monotonic() + _GIVEN_UP_S
    return None


def _connect(path: str) -> socket.socket | None:
    """Return a connection to a starter of this user that runs."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(PATIENCE_S)
        channel.connect(path)
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
        if uid == os.geteuid() and state and state not in _NOT_RUNNING:
            return channel
    except OSError:
        pass
    channel.close()
    return None
