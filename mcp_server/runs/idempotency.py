"""One run for one idempotency key, whichever servers are asked, and however often they die on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from mcp_server.errors import LaunchFailed, RunNotFound
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import Run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.system.lock_files import is_locked, take_lock, try_lock

_PROBES_S = 0.1  # longer than readers hold a lock
_PATIENCE_S = 30.0  # longer than a launch takes


@dataclass(frozen=True)
class Key:
    """An idempotency key, locked against other launchers."""

    file: Path

    async def run(self, store: RunStore, file_watch: FileWatch) -> Run | None:
        """Return the first run with this key, unless its launch was cut off before the command started."""
        run_id = self.file.read_text().strip()
        if not run_id or not (store.home.runs / run_id / "spec.json").exists():
            return None
        rundir = store.run_directory(run_id)
        # A supervisor that holds the lock is about to start the command, or to refuse.
        with file_watch.subscribe([rundir.path]) as subscription, anyio.move_on_after(_PATIENCE_S / 2):
            while is_locked(rundir.lock) and not store.observe(run_id).events:
                await subscription.next_change()
        run = store.observe(run_id)
        if _was_accepted(run) or run.state == "running":
            return run
        if run.events:
            return None  # refused
        lock = take_lock(rundir.lock, _PROBES_S)
        if lock is None:
            return run
        # Nobody supervises it, and nobody will: a supervisor that comes late finds the request to stop.
        stop = {"by": "launch_run", "reason": "launched again with the same key", "at": now()}
        write_json(rundir.stop, stop)
        os.close(lock)
        return None

    def remember(self, run_id: str) -> None:
        """Note which run has this key."""
        self.file.write_text(run_id + "\n")


def known_run(store: RunStore, key: str | None) -> Run | None:
    """Return the run that was started with this key, if there is one; touches nothing."""
    if key is None:
        return None
    with contextlib.suppress(OSError, RunNotFound):
        run = store.observe(_file(store, key).read_text().strip())
        return run if _was_accepted(run) else None
    return None


def _was_accepted(run: Run) -> bool:
    """Whether its launch was answered with a run: its command has started, or it was let into the queue."""
    return any(event["kind"] in ("queued", "started") for event in run.events)


def _file(store: RunStore, key: str) -> Path:
    return store.home.keys / hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]


@contextlib.asynccontextmanager
async def held_key(store: RunStore, key: str | None) -> AsyncIterator[Key | None]:
    """Hold the key's lock while a launch is under way."""
    if key is None:
        yield None
        return
    path = _file(store, key)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with anyio.move_on_after(_PATIENCE_S) as waiting:
            while not try_lock(fd):  # noqa: ASYNC110 - the kernel gives no news of a lock
                await anyio.sleep(0.02)
        if waiting.cancelled_caught:
            raise LaunchFailed("Another launch with this key has been under way for 30 s. Call list_runs.")
        yield Key(path)
    finally:
        os.close(fd)
