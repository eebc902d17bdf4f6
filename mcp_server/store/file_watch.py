"""Changes of run directories by inotify: a wait ends when a file changes, not when it is polled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio

# On these, inotify reports nothing of what another host writes.
_SHARED_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "9p", "fuse")
_POLL_S = 1.0


class FileWatch:
    """One inotify descriptor for all waits of this process.

    The wait that comes first reads the descriptor for all others, so that no background task is needed.
    """

    def __init__(self) -> None:
        self._inotify: Any = None  # opened by the first wait: a server starts sooner
        self._watches: dict[Path, tuple[int, int]] = {}  # directory -> watch descriptor, number of subscriptions
        self._subscriptions: list[Subscription] = []
        self._reading = False

    def close(self) -> None:
        """Close the descriptor; the next wait opens another."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    @contextlib.contextmanager
    def subscribe(self, directories: Iterable[Path]) -> Iterator[Subscription]:
        """Watch ``directories`` from now on; no change inside the block is missed."""
        self._inotify = self._inotify or _open_inotify()
        subscription = Subscription(self, polled=self._inotify is None)
        self._subscriptions.append(subscription)
        self.extend(subscription, directories)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            for path in subscription.directories:
                self._remove_watch(path)

    def extend(self, subscription: Subscription, directories: Iterable[Path]) -> None:
        """Watch further ``directories`` for ``subscription``: what changed in them before is not announced."""
        for path in directories:
            if path not in subscription.directories:
                subscription.directories.append(path)
                subscription.polled = subscription.polled or is_shared_filesystem(path.parent)
                self._add_watch(path, subscription)

    async def wait_for_change(self, subscription: Subscription) -> None:
        """Return when something has changed for ``subscription`` since the last call."""
        subscription.waiting = True
        try:
            while not subscription.changed:
                if subscription.polled:
                    await anyio.sleep(_POLL_S)
                    subscription.changed = True
                elif self._reading:
                    await subscription.wake_up.wait()
                    subscription.wake_up = anyio.Event()
                else:
                    await self._read_changes()
            subscription.changed = False
        finally:
            subscription.waiting = False
            if not self._reading:  # another wait must read now
                waiting = (other for other in self._subscriptions if other.waiting and not other.polled)
                next(waiting, subscription).wake_up.set()

    def _add_watch(self, path: Path, subscription: Subscription) -> None:
        if self._inotify is None:
            return
        from inotify_simple import flags  # noqa: PLC0415 - see _open_inotify

        # CLOSE_WRITE: the kernel closes a killed supervisor's lock file.
        mask = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE
        try:
            number, users = self._watches.get(path) or (self._inotify.add_watch(path, mask), 0)
        except OSError:
            subscription.polled = True  # the user's inotify limit is reached, or the directory is gone
            return
        self._watches[path] = (number, users + 1)
        subscription.watch_numbers.add(number)

    def _remove_watch(self, path: Path) -> None:
        if path in self._watches:
            number, users = self._watches[path]
            if users > 1:
                self._watches[path] = (number, users - 1)
                return
            del self._watches[path]
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(number)

    async def _read_changes(self) -> None:
        self._reading = True
        try:
            await anyio.wait_readable(self._inotify)
            numbers = {event.wd for event in self._inotify.read(timeout=0)}
        finally:
            self._reading = False
        for subscription in self._subscriptions:
            overflowed = -1 in numbers
            if overflowed or not subscription.watch_numbers.isdisjoint(numbers):
                subscription.changed = True
                subscription.wake_up.set()


class Subscription:
    """The directories of one wait. ``polled``: inotify cannot watch all of them."""

    def __init__(self, watch: FileWatch, *, polled: bool) -> None:
        self._watch = watch
        self.polled = polled
        self.directories: list[Path] = []
        self.watch_numbers: set[int] = set()
        self.changed = self.waiting = False
        self.wake_up = anyio.Event()

    def extend(self, directories: Iterable[Path]) -> None:
        """Watch further directories. What changed in those that are new counts as a change now."""
        before = len(self.directories)
        self._watch.extend(self, directories)
        self.changed = self.changed or len(self.directories) > before

    async def next_change(self) -> None:
        """Return at the next change, or at once where one came since the last call."""
        await self._watch.wait_for_change(self)


def _open_inotify() -> Any:
    """Return an inotify object, or None where the kernel has none left."""
    try:
        from inotify_simple import INotify  # noqa: PLC0415 - Linux only, and not needed to start a server

        return INotify(nonblocking=True)
    except (ImportError, OSError, AttributeError):
        return None


def is_inotify_available() -> bool:
    """Return whether inotify is available."""
    inotify = _open_inotify()
    if inotify is None:
        return False
    inotify.close()
    return True


def is_shared_filesystem(path: Path) -> bool:
    """Return whether ``path`` is on a filesystem that other hosts write to, or that is unknown now."""
    try:
        return _find_shared_filesystem(path)
    except OSError:
        return True


@functools.lru_cache(maxsize=64)
def _find_shared_filesystem(path: Path) -> bool:
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    target = str(path.resolve())
    matches = [(len(at), kind) for at, kind in mounts if target == at or target.startswith(at.rstrip("/") + "/")]
    return max(matches, default=(0, ""))[1].startswith(_SHARED_FILESYSTEMS)
