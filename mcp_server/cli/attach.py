"""`runward attach`: see a run's terminal, or the table of a sweep."""

import argparse
import contextlib
import os
from typing import NoReturn

import anyio

from mcp_server.backends import tmux_client
from mcp_server.backends.base import backend_of
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conducting import ensure_conductor
from mcp_server.system import tmux


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by one that shows the run's screen, or its log where it has no screen any more."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find_any(arguments.run_id)
    if isinstance(run, Sweep):
        _attach_sweep(run, store)
    backend_of(run.spec).attach(store.run_directory(run.run_id), run)


def _attach_sweep(sweep: Sweep, store: RunStore) -> NoReturn:
    """Become a client of the conductor's session; of an ended sweep, of a new one that shows its log."""
    tmux.check_installed()
    with contextlib.closing(FileWatch()) as file_watch:
        anyio.run(ensure_conductor, sweep, store, file_watch, os.environ)
    sweep = store.sweeps.observe(sweep.sweep_id)
    socket = sweep.spec.tmux_socket
    if sweep.session not in tmux_client.list_sessions(socket):
        follow = ["tail", "-n", "10000", "-F", str(store.sweeps.files_of(sweep).log)]
        tmux.new_session(sweep.session, follow, socket=socket)
    tmux_client.become_client(sweep.session, socket)
