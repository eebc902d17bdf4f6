"""`runward watch`: print what appears in a tmux session that runward did not start, until its program has ended.

Launched as a run, it gives such a session what runs have: a log, steps, stalls, a diagnosis, a wait for its end.
The session is only looked at.
"""

import argparse
import os
import re
import time
from collections.abc import Sequence

from mcp_server.backends.local import tmux_socket
from mcp_server.errors import ScreenNotAnswering, ScreenNotFound
from mcp_server.system import processes, tmux

UNKNOWN_END = 255  # as ssh exits when it lost its session
_EVERY_S = 2.0
_STATUS_EVERY_S, _STATUS_LOOKS = 0.2, 10  # for the exit code of a pane that is dead
_STATE = "#{pane_dead}|#{pane_dead_status}|#{pane_pid}|#{pid}|#{pane_current_command}"
_RUNS = re.compile(r"-[a-z]*[cs][a-z]*")  # options by which a shell takes its commands from elsewhere
_SHELLS = frozenset({"bash", "sh", "zsh", "fish", "dash", "ksh", "tcsh"})


def run(arguments: argparse.Namespace) -> int:
    """Print new lines until the pane is dead, its shell waits for a command, or the session is gone.

    Returns the program's exit code where tmux knows it, else 255: then the last line says that it is unknown, and the
    run is `lost`, unless its output proves a failure.
    """
    session, socket = arguments.session, tmux_socket(os.environ)
    lines: list[str] = []
    program, was_at_prompt = "", False
    while True:
        try:
            state, screen = _look(socket, session)
        except ScreenNotAnswering:
            time.sleep(_EVERY_S)
            continue
        except ScreenNotFound:
            if not program:
                raise
            return _end_unknown(session)
        while screen and not screen[-1]:
            screen.pop()
        for line in find_new_lines(lines, screen):
            print(line, flush=True)
        lines = screen
        dead, status, pid, _, current = state.split("|", 4)
        if dead == "1":
            if not status.isdecimal():
                return _end_unknown(session)
            print(f"[the program of session {session} ended: exit code {status}]", flush=True)
            return int(status)
        is_at_prompt = _is_at_prompt(int(pid), program, current)
        if is_at_prompt and was_at_prompt:  # twice: a command that was typed a moment ago has not begun
            return _end_unknown(session)
        program, was_at_prompt = program if is_at_prompt else current, is_at_prompt
        time.sleep(_EVERY_S)


def _look(socket: str, session: str) -> tuple[str, list[str]]:
    """Return the state of the session's pane and its lines, or raise ScreenNotAnswering or ScreenNotFound."""
    words = ["display-message", "-p", "-t", f"={session}:", _STATE]
    state = tmux.query(socket, words)
    for _ in range(_STATUS_LOOKS):
        if not state or not state[0].startswith("1||"):
            break
        pid, server = state[0].split("|")[2:4]
        # tmux removes the pane's login record as soon as its output ends, and misses a SIGCHLD of that moment.
        if (code := processes.zombie_exit_code(int(pid), int(server))) is not None:
            state[0] = state[0].replace("1||", f"1|{code}|", 1)
            break
        time.sleep(_STATUS_EVERY_S)
        state = tmux.query(socket, words)
    if not state:
        raise ScreenNotFound(f"There is no tmux session {session!r} on this host.")
    capture = tmux.query(socket, tmux.capture_command(session, history=True))
    return state[0], list(tmux.read_capture(capture, session, history=True))


def _end_unknown(session: str) -> int:
    print(f"runward watch: session {session}: how its program ended is unknown", flush=True)
    return UNKNOWN_END


def _is_at_prompt(pid: int, program: str, current: str) -> bool:
    """Return whether the pane of ``pid`` waits for a command; ``program``: what ran in it before."""
    if foreground := processes.foreground_commands(pid):
        return is_prompt(foreground)
    return program not in ("", *_SHELLS) and current in _SHELLS  # another user's, or not Linux


def is_prompt(foreground: Sequence[Sequence[str]]) -> bool:
    """Return whether the foreground processes are one shell at its prompt: without a script, or a child."""
    if len(foreground) != 1:
        return False
    name, *arguments = foreground[0]
    is_shell = name.rpartition("/")[2].lstrip("-") in _SHELLS
    return is_shell and all(word.startswith("-") and not _RUNS.fullmatch(word) for word in arguments)


def find_new_lines(before: Sequence[str], screen: Sequence[str]) -> Sequence[str]:
    """Return the lines of ``screen`` that were not there ``before``. A last line that has changed counts again."""
    if list(screen[: len(before)]) == list(before):
        return screen[len(before) :]
    for known in range(min(len(before) - 1, len(screen)), 0, -1):  # the first lines may have scrolled away
        if list(screen[:known]) == list(before[-1 - known : -1]):
            after = screen[known:]
            return after[1:] if after[:1] == before[-1:] else after
    return screen
