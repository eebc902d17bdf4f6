"""tmux by its program alone, for processes without libraries: start a session, and capture one.

tmux is never the source of a run's state. Changes raise LaunchFailed where tmux refuses, with its message, or does not
answer; questions raise ScreenNotAnswering then.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from mcp_server.errors import LaunchFailed, ScreenNotAnswering, ScreenNotFound, TmuxMissing

_ANSWER_WITHIN_S = 10.0
# Wide enough for the tables that trainers print. An attached terminal replaces the size by its own.
_COLUMNS, _ROWS = 200, 50
_MOST_WORDS = 500  # characters of its errors
# All that a tmux server may inherit: the environment of the process that starts it becomes every session's.
_INHERITED = "HOME PATH SHELL USER LOGNAME LANG LC_ALL LC_CTYPE TMUX_TMPDIR XDG_RUNTIME_DIR".split()  # noqa: SIM905


def check_installed() -> None:
    """Check that tmux is installed."""
    if shutil.which("tmux") is None:
        raise TmuxMissing


def new_session(name: str, argv: Sequence[str], *, socket: str, starts_server: bool = True) -> str:
    """Start a detached session whose pane runs ``argv`` and stays readable after it has ended; return the pane's pid.

    ``starts_server``: False saves a process where a tmux server was heard of a moment ago.
    """
    # One invocation, and so not libtmux: as two, a pane that ends at once is gone before the option is set.
    target = f"={name}:"
    command = ["new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", name, "-x", str(_COLUMNS), "-y", str(_ROWS)]
    command += ["--", *argv]
    command += [";", "set-option", "-p", "-t", target, "remain-on-exit", "on"]
    command += [";", "set-option", "-t", target, "destroy-unattached", "off"]
    # tmux 3.2a makes 80 columns of -x 200 until a client is attached. Resizing sets the window to a fixed size, which
    # the second command takes back.
    command += [";", "resize-window", "-t", target, "-x", str(_COLUMNS), "-y", str(_ROWS)]
    command += [";", "set-option", "-w", "-u", "-t", target, "window-size"]
    if starts_server:
        start_server(socket)
    return _check(_change(command, socket))


def restart_session(name: str, argv: Sequence[str], *, socket: str) -> None:
    """Replace the process of a session's pane by ``argv``."""
    _check(_change(["respawn-pane", "-k", "-t", f"={name}:", "--", *argv], socket))


def start_server(socket: str) -> None:
    """Start a tmux server where there is none.

    A server that exits when its last session is closed looks like one that died. A run survives tmux's death, but not
    the closing of its session. A command of its own: the tmux server keeps the command line of the client that started
    it, and `pkill -f python` shall not find the name of a program there.
    """
    _change(["start-server", ";", "set-option", "-s", "exit-empty", "off"], socket)


def run_in_background(command: str, *, socket: str) -> None:
    """Have the tmux server run a shell command."""
    _check(_change(["run-shell", "-b", command], socket))


def _check(result: subprocess.CompletedProcess[str]) -> str:
    if result.returncode != 0:
        words = result.stderr.strip()[:_MOST_WORDS] or f"it ended without a word ({_describe_end(result.returncode)})"
        raise LaunchFailed(f"tmux could not start the session: {words}.", "Nothing was started.")
    return result.stdout.strip()


def _describe_end(returncode: int) -> str:
    """Return how tmux ended: killed by a signal, or with an exit status."""
    return f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"


def _change(command: list[str], socket: str) -> subprocess.CompletedProcess[str]:
    """Run tmux and return its result."""
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "PATH": os.defpath, **env}
    try:
        return subprocess.run(
            ["tmux", "-L", socket, *command],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchFailed(f"tmux does not answer (waited {_ANSWER_WITHIN_S:g} s).", "Nothing was started.") from error


def attach_command(session: str, socket: str) -> str:
    """Return the shell command that shows a person the session."""
    server = [] if socket == "default" else ["-L", socket]
    # Quoted: zsh expands a word that begins with `=` to a command's path.
    return f"{shlex.join(['tmux', *server, 'attach', '-t'])} '={session}'"


def capture_command(session: str, *, history: bool) -> list[str]:
    """Return tmux's arguments that print a pane's state in one line, and then its lines. See ``read_capture``."""
    target = ["-t", f"={session}:"]
    state = ["display-message", "-p", *target, "#{pane_dead} #{history_size}", ";"]
    # One line more than is visible: tmux scrolls a pane that dies by one, for its own last line.
    return [*state, "capture-pane", "-p", "-J", *target, "-S", "-" if history else "-1"]


def read_capture(output: Sequence[str] | None, session: str, *, history: bool) -> list[str]:
    """Return the lines that a person attached to ``session`` sees; where tmux printed nothing, raise ScreenNotFound."""
    if not output:
        raise ScreenNotFound(f"There is no tmux session {session!r} on this host.")
    dead, scrolled = output[0].split()
    lines = output[1:] if history or dead == "1" or scrolled == "0" else output[2:]
    return [line.rstrip() for line in lines]


def query(socket: str, arguments: Sequence[str]) -> list[str] | None:
    """Return the lines that a tmux command prints, or None when tmux refuses it, does not run, or is not installed."""
    try:
        result = subprocess.run(
            ["tmux", "-L", socket, *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ScreenNotAnswering(f"tmux does not answer (waited {_ANSWER_WITHIN_S:g} s).") from error
    except OSError:
        return None
    return result.stdout.decode(errors="replace").splitlines() if result.returncode == 0 else None
