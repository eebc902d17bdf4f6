"""Notes about cells of a sweep, such as keep or discard. They reach its log whether or not its conductor lives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import find_distinct_secrets
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.runs.launch.arguments import check_no_secret
from mcp_server.store.cell_notes import LONGEST_NOTE, append_note
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.log import SweepLog
from mcp_server.system.lock_files import release_lock, take_lock
from mcp_server.text.near_names import find_near_names

_PATIENCE_S = 2.0  # the conductor of a sweep that has just ended is about to exit


def note_cells(sweep: Sweep, store: RunStore, notes: Mapping[str, str], by: str, environ: Mapping[str, str]) -> None:
    """Add a note to each of these cells. The newest one of a cell counts. Reads and writes files.

    The conductor brings the log up to date. That of an ended sweep has exited, so this does.

    Raises:
        BadArgument: there is no such cell, or a note is too long or holds the value of a secret; nothing was noted.
        OSError: a note was not written.
    """
    names = [cell.cell.name for cell in sweep.cells]
    for cell, text in notes.items():
        if cell not in names:
            near = ", ".join(find_near_names(cell, names))
            raise BadArgument(
                "notes", f"{sweep.sweep_id} has no cell {cell[:80]!r}.", f"Did you mean {near}?" if near else ""
            )
        if len(text) > LONGEST_NOTE:
            raise BadArgument("notes", f"that of {cell} has {len(text)} characters; at most {LONGEST_NOTE}.")
    check_no_secret({"notes": notes}, find_distinct_secrets(environ, store.home.secrets))
    directory = store.sweeps.files_of(sweep)
    for cell, text in notes.items():
        append_note(directory, cell, text, by)
    if not sweep.ended or (lock := take_lock(directory.lock, _PATIENCE_S)) is None:
        return
    try:
        with contextlib.suppress(OSError):
            SweepLog(directory).write(store.sweeps.observe(sweep.sweep_id), {})
    finally:
        release_lock(lock)
