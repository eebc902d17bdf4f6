"""`runward attach`: see a run's terminal."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mcp_server.backends import tmux_client
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome

_LINES = "10000"


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by tmux, attached to the run's session.

    Where the session was closed, or tmux died, a new session of the same name follows the log.
    """
    store = RunStore(StateHome.of(os.environ))
    run = store.observe(arguments.run_id)
    tmux_client.require()
    session, socket = run.spec.session, run.spec.tmux_socket
    if session not in tmux_client.sessions(socket):
        log = store.rundir(run.run_id).log(run.attempt)
        tmux_client.new_session(session, ["tail", "-n", _LINES, "-F", str(log)], socket=socket)
    outer_socket = Path(os.environ.pop("TMUX", "").partition(",")[0]).name
    verb = "switch-client" if outer_socket == socket else "attach-session"
    if verb == "attach-session" and outer_socket:
        print("You are inside another tmux: its prefix key goes to it; press it twice for this one.", file=sys.stderr)
    os.execvp("tmux", ["tmux", "-L", socket, verb, "-t", f"={session}"])
