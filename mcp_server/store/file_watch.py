"""Changes of run directories by inotify: a wait ends when a file changes, not when it is polled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from inotify_simple import INotify, flags

from mcp_server.system.files import is_shared_filesystem
from mcp_server.threads import run_in_thread

_POLL_S = 1.0


@dataclass
class _Watch:
    """A watched directory. ``number``: of its watch, None until it is set up."""

    users: int = 0
    number: int | None = None
    is_shared: bool = False  # what other hosts change is not announced


class FileWatch:
    """One inotify descriptor for all waits of this process.

    The wait that comes first reads the descriptor for all others, so that no background task is needed.
    """

    def __init__(self) -> None:
        self._inotify: Any = None  # opened by the first wait: a server starts sooner
        self._watches: dict[Path, _Watch] = {}
        self._subscriptions: list[Subscription] = []
        self._reading = False

    def close(self) -> None:
        """Close the descriptor. The next wait opens another."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    @contextlib.contextmanager
    def subscribe(self, directories: Iterable[Path]) -> Iterator[Subscription]:
        """Announce changes in ``directories``. Looks nothing up: that is left to the first ``next_change``."""
        self._inotify = self._inotify or _open_inotify()
        subscription = Subscription(self, polled=self._inotify is None)
        self._subscriptions.append(subscription)
        self.extend(subscription, directories)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            for path in subscription.directories:
                self._leave(path)

    def extend(self, subscription: Subscription, directories: Iterable[Path]) -> None:
        """Announce changes in further ``directories``."""
        for path in directories:
            if path not in subscription.directories:
                subscription.directories[path] = None
                watch = self._watches.setdefault(path, _Watch())
                watch.users += 1
                if not self._use(subscription, watch):
                    subscription.pending.append(path)

    def number_of(self, path: Path) -> int | None:
        """Return the number of the watch of a directory, None where it has none."""
        return self._watches[path].number

    async def wait_for_change(self, subscription: Subscription) -> None:
        """Return when something has changed for ``subscription`` since the last call."""
        subscription.waiting = True
        try:
            await self.set_up(subscription)
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

    async def set_up(self, subscription: Subscription) -> None:
        """Watch the directories that are pending, in a thread: a look at a silent disk does not come back.

        Earlier changes in them count as changes now. A wait that is cancelled meanwhile is polled from then on.
        """
        if subscription.polled or not subscription.pending:
            return
        paths, subscription.pending = subscription.pending, []
        subscription.polled = True
        watches = await run_in_thread(_add_watches, self._inotify, paths)
        subscription.polled, subscription.changed = False, True
        for path in paths:
            watch = self._watches[path]
            watch.number, watch.is_shared = watches.get(path, (watch.number, watch.is_shared))
            if not self._use(subscription, watch):
                subscription.polled = True
            elif watch.number is not None:
                subscription.numbers.add(watch.number)

    @staticmethod
    def _use(subscription: Subscription, watch: _Watch) -> bool:
        """Let ``subscription`` hear of a directory; return False if it has no watch."""
        if watch.number is None:
            return False
        subscription.watch_numbers.add(watch.number)
        subscription.polled = subscription.polled or watch.is_shared
        return True

    def leave(self, subscription: Subscription, directories: Iterable[Path]) -> None:
        """Announce changes in ``directories`` no more."""
        for path in directories:
            if path not in subscription.directories:
                continue
            del subscription.directories[path]
            if path in subscription.pending:
                subscription.pending.remove(path)
            if (number := self._watches[path].number) is not None:
                subscription.watch_numbers.discard(number)
            self._leave(path)

    def _leave(self, path: Path) -> None:
        watch = self._watches[path]
        watch.users -= 1
        if not watch.users:
            del self._watches[path]
            if watch.number is not None and self._inotify is not None:
                with contextlib.suppress(OSError):
                    self._inotify.rm_watch(watch.number)

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
                subscription.numbers |= subscription.watch_numbers if overflowed else numbers
                subscription.wake_up.set()


class Subscription:
    """The directories of one wait. ``polled``: inotify cannot watch all of them."""

    def __init__(self, watch: FileWatch, *, polled: bool) -> None:
        self._watch = watch
        self.polled = polled
        self.directories: dict[Path, None] = {}
        self.pending: list[Path] = []  # not looked at yet
        self.watch_numbers: set[int] = set()
        self.numbers: set[int] = set()  # of watches with changes since ``take_changed``
        self.changed = self.waiting = False
        self.wake_up = anyio.Event()

    def extend(self, directories: Iterable[Path]) -> None:
        """Watch further directories. Earlier changes in those that are new count as changes now."""
        before = len(self.directories)
        self._watch.extend(self, directories)
        self.changed = self.changed or len(self.directories) > before

    def leave(self, directories: Iterable[Path]) -> None:
        """Watch these directories no more."""
        self._watch.leave(self, directories)

    def take_changed(self) -> list[Path]:
        """Return the directories with changes since the last call: all of them where nobody can tell."""
        numbers, self.numbers = self.numbers, set()
        return [path for path in self.directories if self.polled or self._watch.number_of(path) in numbers]

    async def set_up(self) -> None:
        """Begin to watch directories that are new, before a short wait: if this is cancelled, all are polled."""
        await self._watch.set_up(self)

    async def next_change(self) -> None:
        """Return at the next change, or at once where one came since the last call, or may have come unseen.

        The first call returns at once where no other wait watches these directories: look at them again then.
        """
        await self._watch.wait_for_change(self)


def _add_watches(inotify: Any, paths: Iterable[Path]) -> dict[Path, tuple[int, bool]]:
    """Return the watch of each directory, and whether it is shared. Blocks.

    Those are left out that are gone, or for which the user's inotify limit leaves none.
    """
    # CLOSE_WRITE: the kernel closes a killed supervisor's lock file.
    mask = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE
    watches: dict[Path, tuple[int, bool]] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            watches[path] = (inotify.add_watch(path, mask), is_shared_filesystem(path.parent))
    return watches


def _open_inotify() -> Any:
    """Return an inotify object, or None where the kernel has none left."""
    try:
        return INotify(nonblocking=True)
    except OSError:
        return None


def is_inotify_available() -> bool:
    """Return whether inotify is available."""
    inotify = _open_inotify()
    if inotify is None:
        return False
    inotify.close()
    return True
