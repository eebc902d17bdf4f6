"""News from run directories: waits that end when a file changes, not when somebody asks again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio

# The kernel tells nothing of what another host writes.
_SHARED_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "9p", "fuse")
_POLL_S = 1.0


class Changes:
    """One inotify descriptor for all waits of this process.

    Whoever waits first reads it for the others, so that no task has to run in the background.
    """

    def __init__(self) -> None:
        self._inotify: Any = None  # opened with the first wait, so that a server starts sooner
        self._watches: dict[Path, tuple[int, int]] = {}  # directory -> watch descriptor, number of users
        self._tickets: list[_Ticket] = []
        self._reading = False

    def close(self) -> None:
        """Give the descriptor back; the next wait opens another."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    @contextlib.contextmanager
    def of(self, directories: Iterable[Path]) -> Iterator[_Ticket]:
        """Watch ``directories`` from now on; nothing that happens inside the block is missed."""
        paths = list(directories)
        self._inotify = self._inotify or _open()
        ticket = _Ticket(self, polled=self._inotify is None or any(is_shared(path.parent) for path in paths))
        self._tickets.append(ticket)
        for path in paths:
            self._add(path, ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)
            for path in paths:
                self._remove(path)

    def _add(self, path: Path, ticket: _Ticket) -> None:
        if self._inotify is None:
            return
        from inotify_simple import flags  # noqa: PLC0415 - see _open

        # CLOSE_WRITE: the kernel closes a killed supervisor's lock file.
        mask = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE
        try:
            number, users = self._watches.get(path) or (self._inotify.add_watch(path, mask), 0)
        except OSError:
            ticket.polled = True  # the user's inotify limit is reached, or the directory is gone
            return
        self._watches[path] = (number, users + 1)
        ticket.numbers.add(number)

    def _remove(self, path: Path) -> None:
        if path in self._watches:
            number, users = self._watches[path]
            if users > 1:
                self._watches[path] = (number, users - 1)
                return
            del self._watches[path]
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(number)

    async def _wait(self, ticket: _Ticket) -> None:
        """Return when something changed for ``ticket``."""
        ticket.waiting = True
        try:
            while not ticket.changed:
                if ticket.polled:
                    await anyio.sleep(_POLL_S)
                    ticket.changed = True
                elif self._reading:
                    await ticket.turn.wait()
                    ticket.turn = anyio.Event()
                else:
                    await self._read()
            ticket.changed = False
        finally:
            ticket.waiting = False
            if not self._reading:  # somebody else must read now
                next((other for other in self._tickets if other.waiting and not other.polled), ticket).turn.set()

    async def _read(self) -> None:
        self._reading = True
        try:
            await anyio.wait_readable(self._inotify)
            numbers = {event.wd for event in self._inotify.read(timeout=0)}
        finally:
            self._reading = False
        for ticket in self._tickets:
            if not ticket.numbers.isdisjoint(numbers) or -1 in numbers:  # -1: the queue overflowed
                ticket.changed = True
                ticket.turn.set()


class _Ticket:
    """One wait's claim to news."""

    def __init__(self, changes: Changes, *, polled: bool) -> None:
        self._changes = changes
        self.polled = polled
        self.numbers: set[int] = set()
        self.changed = self.waiting = False
        self.turn = anyio.Event()

    async def news(self) -> None:
        """Return at the next change, which may have come since the last call."""
        await self._changes._wait(self)  # noqa: SLF001 - one class in two parts


def _open() -> Any:
    """Return an inotify object, or None where the kernel has none to give."""
    try:
        from inotify_simple import INotify  # noqa: PLC0415 - Linux only, and not needed to start a server

        return INotify(nonblocking=True)
    except (ImportError, OSError, AttributeError):
        return None


def news_of_files() -> bool:
    """Tell whether this kernel tells of changed files."""
    inotify = _open()
    if inotify is None:
        return False
    inotify.close()
    return True


@functools.lru_cache(maxsize=64)
def is_shared(path: Path) -> bool:
    """Tell whether ``path`` lies on a filesystem that other hosts write to."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return True
    target = str(path.resolve())
    inside = [(len(at), kind) for at, kind in mounts if target == at or target.startswith(at.rstrip("/") + "/")]
    return max(inside, default=(0, ""))[1].startswith(_SHARED_FILESYSTEMS)
