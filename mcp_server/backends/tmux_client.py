"""tmux: where the runs' supervisors live and where people look. Never a source of a run's state."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mcp_server.errors import LaunchFailed, ScreenNotFound, TmuxMissing

T = TypeVar("T")

# Wide enough for the tables that trainers print; an attached terminal brings its own size.
_COLUMNS, _ROWS = 200, 50
_PATIENCE_S = 10.0
_AT_ONCE = 8
_LIMITER: RunVar[anyio.CapacityLimiter | None] = RunVar("tmux")
# All that a tmux server may inherit: whatever starts it becomes every later session's environment.
_BARE = (
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


def require() -> None:
    """Raise TmuxMissing where there is no tmux."""
    if shutil.which("tmux") is None:
        raise TmuxMissing


def new_session(name: str, argv: Sequence[str], *, socket: str) -> None:
    """Start a detached session whose pane runs ``argv`` and stays readable after it has ended.

    Raises:
        LaunchFailed: tmux refused; carries its words.
    """
    env = {name: os.environ[name] for name in _BARE if name in os.environ}
    env = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "PATH": os.defpath, **env}
    # One invocation: as two, a pane that ends at once is gone before the option is set.
    target = f"={name}:"
    command = ["-L", socket, "new-session", "-d", "-s", name, "-x", str(_COLUMNS), "-y", str(_ROWS), "--", *argv]
    command += [";", "set-option", "-p", "-t", target, "remain-on-exit", "on"]
    command += [";", "set-option", "-t", target, "destroy-unattached", "off"]
    # A server that goes when its last session is closed looks like one that died, and a run survives
    # tmux's death but not the closing of its session.
    command += [";", "set-option", "-s", "exit-empty", "off"]
    try:
        done = subprocess.run(
            ["tmux", *command],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchFailed(f"tmux does not answer (waited {_PATIENCE_S:g} s). Nothing was started.") from error
    if done.returncode != 0:
        raise LaunchFailed(f"tmux could not start the session: {done.stderr.strip()}. Nothing was started.")


def sessions(socket: str) -> list[str]:
    """Return the names of all sessions, others' included; none when tmux does not run."""
    return _ask(socket, "list-sessions", "-F", "#{session_name}") or []


def close(session: str, *, socket: str) -> None:
    """Close a session, unless somebody is attached to it."""
    condition = ["-F", "-t", f"={session}:", "#{?session_attached,0,1}"]
    _ask(socket, "if-shell", *condition, f"kill-session -t ={session}")


def capture(session: str, *, socket: str, history: bool) -> list[str]:
    """Return the lines that a person attached to ``session`` sees, wrapped lines joined.

    ``history``: with what has scrolled away, as far as tmux keeps it.

    Raises:
        ScreenNotFound: there is no session of exactly this name.
    """
    target = ["-t", f"={session}:"]
    state = ["display-message", "-p", *target, "#{pane_dead} #{history_size}", ";"]
    # One line more than is seen: a pane that dies is scrolled up by one for tmux's own last line.
    answer = _ask(socket, *state, "capture-pane", "-p", "-J", *target, "-S", "-" if history else "-1")
    if not answer:
        raise ScreenNotFound(f"There is no tmux session {session!r} on this host.")
    dead, scrolled = answer[0].split()
    lines = answer[1:] if history or dead == "1" or scrolled == "0" else answer[2:]
    return [line.rstrip() for line in lines]


def attach_command(session: str, socket: str) -> str:
    """Return the line that a person types to see the session."""
    server = [] if socket == "default" else ["-L", socket]
    # Quoted: zsh would take a word that begins with `=` for a command's path.
    return f"{shlex.join(['tmux', *server, 'attach', '-t'])} '={session}'"


def supervisor_argv(python: str, run_dir: Path) -> list[str]:
    """Return how the supervisor of ``run_dir`` is started: isolated, and without site-packages."""
    return [python, "-I", "-S", str(Path(__file__).parents[1] / "supervisor"), str(run_dir)]


def version() -> str:
    """Return what tmux calls itself, e.g. ``tmux 3.3a``."""
    return subprocess.run(["tmux", "-V"], capture_output=True, text=True, check=False).stdout.strip()


def global_environment(socket: str) -> list[str]:
    """Return the ``NAME=value`` lines that every session of this server inherits; none when it does not run."""
    return _ask(socket, "show-environment", "-g") or []


async def patiently(ask: Callable[[], T]) -> T:
    """Ask tmux in a thread, and not for ever: a server that is stopped answers nobody.

    Raises:
        ScreenNotFound: it did not answer within 10 s.
    """
    # Threads that a stopped server holds must not be missed elsewhere.
    limiter = _LIMITER.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        _LIMITER.set(limiter)
    with anyio.move_on_after(_PATIENCE_S):
        return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)
    raise ScreenNotFound(f"tmux does not answer (waited {_PATIENCE_S:g} s). Runs go on without it; read_log works.")


def _ask(socket: str, command: str, *args: str) -> list[str] | None:
    """Return the answer of the tmux server, or None when it refuses or does not run."""
    from libtmux import Server  # noqa: PLC0415 - 70 ms that a server's start need not pay
    from libtmux.exc import LibTmuxException  # noqa: PLC0415

    try:
        answer = Server(socket_name=socket).cmd(command, *args)
    except LibTmuxException as error:
        raise TmuxMissing from error
    return answer.stdout if answer.returncode == 0 else None
