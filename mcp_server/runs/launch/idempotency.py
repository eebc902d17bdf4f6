"""Idempotency keys: one key starts one run, across servers and after servers that died during a launch."""

import contextlib
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from mcp_server.backends.base import backend_of
from mcp_server.errors import HostUnreachable, LaunchFailed, LaunchUnanswered, RunNotFound, RunwardError, StateUnusable
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.runs.wait.client_calls import current_call, keep_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import open_private, read_regular_file
from mcp_server.system.lock_files import may_be_locked, try_lock
from mcp_server.threads import run_in_thread

_LONGEST_LAUNCH_S = 30.0
_RETRY_S = 0.02
_UNUSABLE = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES)


@dataclass(frozen=True)
class IdempotencyKey:
    """A key that this launch has locked. ``file`` holds the id of the run that has the key.

    None: the key is the present call of a client, which is repeated where its server dies.
    """

    file: Path | None

    async def find_run(self, store: RunStore, file_watch: FileWatch) -> Run | None:
        """Return the first run with this key, unless its launch was cut off. LaunchUnanswered: only its host knows."""
        try:
            directory = await run_in_thread(lambda: store.run_directory(self.read()))
        except RunNotFound:
            return None
        run_id = directory.run_id
        # A supervisor that holds the lock is about to start the command, or to refuse.
        with file_watch.subscribe([directory.path]) as subscription, anyio.move_on_after(_LONGEST_LAUNCH_S / 2):
            while await run_in_thread(_is_starting, store, directory):
                await subscription.next_change()
        run = await run_in_thread(store.observe, run_id)
        if _was_accepted(run) or run.state == "running":
            return run
        if run.events:
            return None  # refused
        # Nothing is started twice: the former launch never starts from now on, or it is the run.
        try:
            if await backend_of(run.spec).settle_launch(directory, run.spec):
                return run
        except HostUnreachable as error:
            raise LaunchUnanswered(error.host, run_id, error.why) from error
        with contextlib.suppress(OSError, RunwardError):
            await backend_of(run.spec).discard(directory, run.spec)
        return None

    def read(self) -> str:
        """Return the id that this key has, or empty where it has none."""
        return _read_run_id(self.file) if self.file is not None else _run_of_call()

    def remember(self, run_id: str) -> None:
        """Write which run has this key. The file is not replaced: its lock belongs to the inode."""
        if self.file is not None:
            self.file.write_text(run_id + "\n")
        else:
            keep_run(run_id)


def find_run_of_key(store: RunStore, key: str | None) -> Run | None:
    """Return the run that was started with this key, or by the present call, if there is one. Changes nothing."""
    with contextlib.suppress(OSError, RunNotFound):
        run = store.observe(_run_of_call() if key is None else _read_run_id(_key_file(store, key)))
        return run if _was_accepted(run) else None
    return None


def find_owner_of_key(store: RunStore, key: str) -> str | None:
    """Return the owner of the run or sweep that was started with this key, None where there is none."""
    for name in (key, f"sweep {key}"):
        with contextlib.suppress(OSError, RunNotFound):
            return store.observe_any(_read_run_id(_key_file(store, name))).spec.owner
    return None


def has_key(store: RunStore, key: str | None) -> bool:
    """Return whether a launch with this key has begun at any time."""
    return key is not None and _key_file(store, key).exists()


@contextlib.asynccontextmanager
async def hold_key(store: RunStore, key: str | None) -> AsyncIterator[IdempotencyKey | None]:
    """Hold the key's lock during a launch. LaunchFailed: another has it for 30 s. StateUnusable: it cannot be kept."""
    if key is None:
        yield IdempotencyKey(None) if current_call() is not None else None
        return
    path = _key_file(store, key)
    try:
        fd = await run_in_thread(open_private, str(path), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in _UNUSABLE:
            raise StateUnusable(store.home.path, str(error.strerror)) from error
        raise
    try:
        with anyio.move_on_after(_LONGEST_LAUNCH_S) as waiting:
            while not try_lock(fd):  # noqa: ASYNC110 - the kernel gives no news of a lock
                await anyio.sleep(_RETRY_S)
        if waiting.cancelled_caught:
            cause = f"Another launch with this key has been under way for {_LONGEST_LAUNCH_S:g} s."
            raise LaunchFailed(cause, remedy="Call list_runs.")
        yield IdempotencyKey(path)
    finally:
        os.close(fd)


def _is_starting(store: RunStore, directory: RunDir) -> bool:
    return may_be_locked(directory.lock) and not store.observe(directory.run_id).events


def _was_accepted(run: Run) -> bool:
    """Return whether the launch was answered with a run: its command has started, or it is in the queue."""
    return any(event["kind"] in ("queued", "started") for event in run.events)


def _key_file(store: RunStore, key: str) -> Path:
    return store.home.keys / hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]


def _run_of_call() -> str:
    call = current_call()
    return call.run_id if call is not None else ""


def _read_run_id(file: Path) -> str:
    return read_regular_file(file).decode(errors="replace").strip()
