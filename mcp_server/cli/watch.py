"""`runward watch`: print what appears in a tmux session that runward did not start, until its program has ended.

Launched as a run, it gives such a session what runs have: a log, steps, stalls, a diagnosis, a wait for its end.
The session is only looked at.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from mcp_server.backends.local import tmux_socket
from mcp_server.errors import ScreenNotAnswering, ScreenNotFound
from mcp_server.system import tmux

_EVERY_S = 2.0
_SHELLS = frozenset({"bash", "sh", "zsh", "fish", "dash", "ksh", "tcsh"})


def run(arguments: argparse.Namespace) -> int:
    """Print new lines until the pane is dead, its shell waits again, or the session is gone.

    Returns the program's exit code where tmux knows it, else 0: then the last line says that it is unknown.
    """
    session, socket = arguments.session, tmux_socket(os.environ)
    lines: list[str] = []
    program = ""
    while True:
        try:
            state = tmux.query(
                socket,
                [
                    "display-message",
                    "-p",
                    "-t",
                    f"={session}:",
                    "#{pane_dead}|#{pane_dead_status}|#{pane_current_command}",
                ],
            )
            screen = tmux.read_capture(
                tmux.query(socket, tmux.capture_command(session, history=True)), session, history=True
            )
        except ScreenNotAnswering:
            time.sleep(_EVERY_S)
            continue
        except ScreenNotFound:
            if not program:
                raise
            state = screen = None
        if not state or screen is None:
            print(f"[session {session} was closed; the exit code of its program is unknown]", flush=True)
            return 0
        while screen and not screen[-1]:
            screen.pop()
        for line in find_new_lines(lines, screen):
            print(line, flush=True)
        lines = screen
        dead, status, current = state[0].split("|", 2)
        if dead == "1":
            print(f"[the program of session {session} ended: exit code {status or 'unknown'}]", flush=True)
            return int(status) if status.isdecimal() else 0
        if program and program not in _SHELLS and current in _SHELLS:
            print(f"[{program} of session {session} ended; its exit code is unknown]", flush=True)
            return 0
        program = current
        time.sleep(_EVERY_S)


def find_new_lines(before: Sequence[str], screen: Sequence[str]) -> Sequence[str]:
    """Return the lines of ``screen`` that were not there ``before``. A last line that has changed counts again."""
    if list(screen[: len(before)]) == list(before):
        return screen[len(before) :]
    for known in range(min(len(before) - 1, len(screen)), 0, -1):  # the first lines may have scrolled away
        if list(screen[:known]) == list(before[-1 - known : -1]):
            after = screen[known:]
            return after[1:] if after[:1] == before[-1:] else after
    return screen
