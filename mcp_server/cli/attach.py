"""`runward attach`: see a run's terminal."""

from __future__ import annotations

import argparse
import os

from mcp_server.backends.base import backend_of
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by one that shows the run's screen, or its log where it has no screen any more."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find(arguments.run_id)
    backend_of(run.spec).attach(store.run_directory(run.run_id), run)
