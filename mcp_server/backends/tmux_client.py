"""tmux sessions: create, list, close, capture and attach. tmux is never the source of a run's state."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mcp_server.errors import ScreenNotAnswering, TmuxMissing
from mcp_server.system.tmux import capture_command, read_capture

T = TypeVar("T")

_ANSWER_WITHIN_S = 10.0
_MOST_THREADS = 8
_LIMITER: RunVar[anyio.CapacityLimiter | None] = RunVar("tmux")


def list_sessions(socket: str) -> list[str]:
    """Return the names of all sessions, also of those that are not runward's, none when tmux does not run."""
    return _query(socket, "list-sessions", "-F", "#{session_name}") or []


def close_session(session: str, *, socket: str) -> None:
    """Close a session, unless a person is attached to it."""
    condition = ["-F", "-t", f"={session}:", "#{?session_attached,0,1}"]
    _query(socket, "if-shell", *condition, f"kill-session -t ={session}")


def capture_pane(session: str, *, socket: str, history: bool) -> list[str]:
    """Return the lines that a person attached to ``session`` sees, wrapped lines joined.

    ``history`` adds the lines that have scrolled away, as far as tmux keeps them.

    Raises:
        ScreenNotFound: there is no session of exactly this name.
    """
    output = _query(socket, *capture_command(session, history=history))
    return read_capture(output, session, history=history)


def become_client(session: str, socket: str) -> NoReturn:
    """Replace this process by tmux, attached to ``session``. Inside that tmux server, switch its client instead."""
    outer_socket = Path(os.environ.pop("TMUX", "").partition(",")[0]).name
    verb = "switch-client" if outer_socket == socket else "attach-session"
    if verb == "attach-session" and outer_socket:
        print("You are inside another tmux: its prefix key goes to it; press it twice for this one.", file=sys.stderr)
    os.execvp("tmux", ["tmux", "-L", socket, verb, "-t", f"={session}"])


def read_version() -> str:
    """Return tmux's name and version, e.g. ``tmux 3.3a``."""
    import libtmux.common  # noqa: PLC0415 - 48 ms, as in _query

    return f"tmux {libtmux.common.get_version_str()}"


def read_global_environment(socket: str) -> list[str]:
    """Return the ``NAME=value`` lines that every session of this server inherits, none when it does not run."""
    return _query(socket, "show-environment", "-g") or []


async def query_in_thread(query: Callable[[], T]) -> T:
    """Return ``query()`` from a thread; ScreenNotAnswering after 10 s, since a stopped tmux server never answers."""
    # A limiter of its own: threads that a stopped server blocks are not taken from other work.
    limiter = _LIMITER.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_MOST_THREADS)
        _LIMITER.set(limiter)
    with anyio.move_on_after(_ANSWER_WITHIN_S):
        return await anyio.to_thread.run_sync(query, abandon_on_cancel=True, limiter=limiter)
    raise ScreenNotAnswering(
        f"tmux does not answer (waited {_ANSWER_WITHIN_S:g} s).", "Runs go on without it;", "read_log works."
    )


def _query(socket: str, command: str, *args: str) -> list[str] | None:
    """Return the lines that a tmux command prints, or None when tmux refuses it or does not run."""
    import libtmux.exc  # noqa: PLC0415 - 48 ms of a server's start

    try:
        result = libtmux.Server(socket_name=socket).cmd(command, *args)
    except libtmux.exc.LibTmuxException as error:
        raise TmuxMissing from error
    return result.stdout if result.returncode == 0 else None
