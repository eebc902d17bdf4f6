"""Stopping a sweep by one confirmation: what kill_run does with the id of a sweep."""

from __future__ import annotations

from mcp_server.errors import NotOfSweeps, RunNotFound
from mcp_server.store.sweep_store import SweepRun
from mcp_server.tools.context import ServerContext


def find_sweep(server: ServerContext, name: str) -> SweepRun | None:
    """Return the sweep that ``name`` means, or None where it means a run, or nothing. Blocks."""
    try:
        server.store.find(name)
    except (NotOfSweeps, RunNotFound) as error:
        if isinstance(error, NotOfSweeps) or server.store.sweeps.list_named(name):
            run = server.store.find_any(name)
            return run if isinstance(run, SweepRun) else None
    return None
