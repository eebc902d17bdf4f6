"""tmux sessions: create, list, close, capture and attach. tmux is never the source of a run's state."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mcp_server.errors import LaunchFailed, ScreenNotAnswering, ScreenNotFound, TmuxMissing

T = TypeVar("T")

# Wide enough for the tables that trainers print. An attached terminal replaces the size by its own.
_COLUMNS, _ROWS = 200, 50
_ANSWER_WITHIN_S = 10.0
_MOST_THREADS = 8
_LIMITER: RunVar[anyio.CapacityLimiter | None] = RunVar("tmux")
# All that a tmux server may inherit: the environment of the process that starts it becomes every session's.
_INHERITED = (
    "HOME",
    "PATH",
    "SHELL",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMUX_TMPDIR",
    "XDG_RUNTIME_DIR",
)


def check_installed() -> None:
    """Check that tmux is installed.

    Raises:
        TmuxMissing: it is not.
    """
    if shutil.which("tmux") is None:
        raise TmuxMissing


def new_session(name: str, argv: Sequence[str], *, socket: str) -> None:
    """Start a detached session whose pane runs ``argv`` and stays readable after it has ended.

    Raises:
        LaunchFailed: tmux refused, with its error message, or does not answer.
    """
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "PATH": os.defpath, **env}
    # One invocation, and so not libtmux: as two, a pane that ends at once is gone before the option is set.
    target = f"={name}:"
    command = ["-L", socket, "new-session", "-d", "-s", name, "-x", str(_COLUMNS), "-y", str(_ROWS), "--", *argv]
    command += [";", "set-option", "-p", "-t", target, "remain-on-exit", "on"]
    command += [";", "set-option", "-t", target, "destroy-unattached", "off"]
    # tmux 3.2a makes 80 columns of -x 200 until a client is attached. Resizing sets the window to a fixed size, which
    # the second command takes back.
    command += [";", "resize-window", "-t", target, "-x", str(_COLUMNS), "-y", str(_ROWS)]
    command += [";", "set-option", "-w", "-u", "-t", target, "window-size"]
    # A server that exits when its last session is closed looks like one that died. A run survives tmux's death, but
    # not the closing of its session. A command of its own: the tmux server keeps the command line of the client that
    # started it, and `pkill -f python` shall not find the name of a program there.
    _change(["-L", socket, "start-server", ";", "set-option", "-s", "exit-empty", "off"], env)
    result = _change(command, env)
    if result.returncode != 0:
        raise LaunchFailed(f"tmux could not start the session: {result.stderr.strip()}.", "Nothing was started.")


def _change(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run tmux and return its result.

    Raises:
        LaunchFailed: it does not answer.
    """
    try:
        return subprocess.run(
            ["tmux", *command],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchFailed(f"tmux does not answer (waited {_ANSWER_WITHIN_S:g} s).", "Nothing was started.") from error


def list_sessions(socket: str) -> list[str]:
    """Return the names of all sessions, also of those that are not runward's; none when tmux does not run."""
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
    target = ["-t", f"={session}:"]
    state = ["display-message", "-p", *target, "#{pane_dead} #{history_size}", ";"]
    # One line more than is visible: tmux scrolls a pane that dies by one, for its own last line.
    output = _query(socket, *state, "capture-pane", "-p", "-J", *target, "-S", "-" if history else "-1")
    if not output:
        raise ScreenNotFound(f"There is no tmux session {session!r} on this host.")
    dead, scrolled = output[0].split()
    lines = output[1:] if history or dead == "1" or scrolled == "0" else output[2:]
    return [line.rstrip() for line in lines]


def attach_command(session: str, socket: str) -> str:
    """Return the shell command that shows a person the session."""
    server = [] if socket == "default" else ["-L", socket]
    # Quoted: zsh expands a word that begins with `=` to a command's path.
    return f"{shlex.join(['tmux', *server, 'attach', '-t'])} '={session}'"


def become_client(session: str, socket: str) -> NoReturn:
    """Replace this process by tmux, attached to ``session``; inside that tmux server, switch its client instead."""
    outer_socket = Path(os.environ.pop("TMUX", "").partition(",")[0]).name
    verb = "switch-client" if outer_socket == socket else "attach-session"
    if verb == "attach-session" and outer_socket:
        print("You are inside another tmux: its prefix key goes to it; press it twice for this one.", file=sys.stderr)
    os.execvp("tmux", ["tmux", "-L", socket, verb, "-t", f"={session}"])


def read_version() -> str:
    """Return tmux's name and version, e.g. ``tmux 3.3a``."""
    from libtmux.common import get_version_str  # noqa: PLC0415 - as in _query

    return f"tmux {get_version_str()}"


def read_global_environment(socket: str) -> list[str]:
    """Return the ``NAME=value`` lines that every session of this server inherits; none when it does not run."""
    return _query(socket, "show-environment", "-g") or []


async def query_in_thread(query: Callable[[], T]) -> T:
    """Return ``query()``, run in a thread for at most 10 s: a tmux server that is stopped never answers.

    Raises:
        ScreenNotAnswering: tmux did not answer in time.
    """
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
    from libtmux import Server  # noqa: PLC0415 - importing it takes 70 ms of a server's start
    from libtmux.exc import LibTmuxException  # noqa: PLC0415

    try:
        result = Server(socket_name=socket).cmd(command, *args)
    except LibTmuxException as error:
        raise TmuxMissing from error
    return result.stdout if result.returncode == 0 else None
