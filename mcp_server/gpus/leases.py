"""Who has which GPU, and who waits for one: locks that the kernel gives back when their holder dies.

A lease is a file named by the GPU's UUID, locked by the supervisor for as long as its run lives. A place in the queue
is a file as well: its number says who came first, its lock that its owner still lives. Whoever takes a lease, or draws
a number, holds the door meanwhile, so that nobody comes in between. Files of leases are never removed.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mcp_server.gpus.lease_holder import NAME, Holder
from mcp_server.gpus.placement import NoRoom, offer
from mcp_server.gpus.request import Require, Wanted, compete
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.system import lock_files
from mcp_server.system.lock_files import LeaseError

__all__ = ["Held", "Holder", "LeaseError", "Leases", "Place", "Refusal", "Ticket", "acquire", "lease_directory"]

_SYSTEM, _OTHERWISE = Path("/run/lock"), Path("/tmp/runward-leases")  # noqa: S108 - made and checked with care
_DOOR, _QUEUE = ".door", "queue"
_DOOR_PATIENCE_S = 10.0  # it is held for milliseconds
_TICKET = re.compile(r"([0-9]{12,18})-[A-Za-z0-9._-]{0,100}")


def lease_directory(environ: Mapping[str, str]) -> Path:
    """Return where the leases of this machine are kept: for all users the same, unless ``RUNWARD_LEASES`` is set."""
    if given := environ.get("RUNWARD_LEASES"):
        return Path(given).absolute()
    shared = stat.S_ISVTX | stat.S_IWOTH
    with contextlib.suppress(OSError):
        mode = _SYSTEM.lstat().st_mode
        if stat.S_ISDIR(mode) and mode & shared == shared:
            return _SYSTEM / "runward"
    return _OTHERWISE


@dataclass(frozen=True)
class Ticket:
    """A living place in the queue."""

    number: int
    holder: Holder
    wanted: Wanted


@dataclass(frozen=True)
class Refusal:
    """Why the GPUs cannot be had now; ``never``: waiting cannot help."""

    text: str
    never: bool = False


class Held:
    """Leases that this process has, until it gives them back or dies. ``indices`` in the order of ``uuids``."""

    def __init__(self, fds: Mapping[str, int], indices: Sequence[int] = ()) -> None:
        self._fds = dict(fds)
        self._indices = dict(zip(fds, indices, strict=False))

    @property
    def uuids(self) -> tuple[str, ...]:
        """What is still held."""
        return tuple(self._fds)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of what is still held, as far as they were told."""
        return tuple(self._indices[uuid] for uuid in self._fds if uuid in self._indices)

    def release(self, uuids: Sequence[str] | None = None) -> None:
        """Give back ``uuids``, or all."""
        for uuid in self.uuids if uuids is None else uuids:
            if (fd := self._fds.pop(uuid, None)) is not None:
                lock_files.write_text(fd, "")
                os.close(fd)


class Leases:
    """The leases of one machine. Reading makes nothing, and needs no ``prepare``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = path / _QUEUE

    def prepare(self) -> None:
        """Make the directories, or check those that are there.

        Raises:
            LeaseError: they cannot be used.
        """
        if not self.path.parent.is_dir():
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True)
        lock_files.make_shared_directory(self.path)
        lock_files.make_shared_directory(self.queue)

    def holders(self) -> dict[str, Holder]:
        """Return who holds which UUID now; a removed file counts where its process can be looked into."""
        found: dict[str, Holder] = {}
        pids = lock_files.lock_holders()
        device, known = lock_files.device_numbers(self.path), _inodes(self.path) | _inodes(self.queue)
        for pid in {pid for (*where, inode), pid in pids.items() if tuple(where) == device and inode not in known}:
            removed = lock_files.removed_files(self.path, pid)
            found |= {name: Holder.process(pid) for name in removed if NAME.fullmatch(name)}
        for name in _names(self.path):
            if NAME.fullmatch(name):
                with contextlib.suppress(OSError), _looked_at(self.path / name) as fd:
                    if lock_files.is_fd_locked(fd):
                        found[name] = Holder.locking(fd, pids)
        return found

    def waiting(self, before: float = math.inf) -> list[Ticket]:
        """Return who waits, first come first; of numbers ``before`` a certain one."""
        found = []
        for name in _names(self.queue):
            if (named := _TICKET.fullmatch(name)) and int(named[1]) < before:
                with contextlib.suppress(OSError), _looked_at(self.queue / name) as fd:
                    facts = lock_files.read_facts(fd) if lock_files.is_fd_locked(fd) else {}
                    if (wanted := Wanted.of(facts.get("wanted"))) is not None:
                        found.append(Ticket(int(named[1]), Holder.of(facts), wanted))
        return sorted(found, key=lambda ticket: ticket.number)

    def take(self, uuids: Sequence[str], holder: Holder, indices: Sequence[int] = ()) -> Held | str:
        """Take all of these leases or none; a text says which of them is held, and by whom.

        Nobody in the queue is asked, and a lease whose file was removed is not seen: see ``acquire``.

        Raises:
            LeaseError: a UUID cannot name a file, or its file cannot be used.
        """
        if odd := next((uuid for uuid in uuids if not NAME.fullmatch(uuid)), None):
            raise LeaseError(f"{odd[:100]!r} cannot be leased: it is not a UUID.")
        fds: dict[str, int] = {}
        with contextlib.ExitStack() as undone:
            undone.callback(lambda: Held(fds).release())
            for uuid in dict.fromkeys(uuids):
                if (fd := lock_files.take_shared_lock(self.path / uuid)) is None:
                    return f"{uuid} is leased by {self.holders().get(uuid, Holder()).text}."
                fds[uuid] = fd
            undone.pop_all()
        for fd in fds.values():
            lock_files.write_text(fd, holder.written())
        return Held(fds, indices)

    @contextlib.contextmanager
    def door(self) -> Iterator[int]:
        """Keep everybody else from taking leases or numbers; yields the door's descriptor. For moments only.

        Raises:
            LeaseError: somebody holds it for too long, or it cannot be used.
        """
        fd = lock_files.take_shared_lock(self.path / _DOOR, _DOOR_PATIENCE_S)
        if fd is None:
            with _looked_at(self.path / _DOOR) as door:
                who = Holder.process(lock_files.lock_holders().get(lock_files.lock_key(door))).text
            held = f"{self.path / _DOOR} has been held for {_DOOR_PATIENCE_S:g} s by {who}"
            raise LeaseError(f"{held}.", remedy="Perhaps it is suspended: a person should resume or end it.")
        try:
            yield fd
        finally:
            os.close(fd)


class Place:
    """A place of this process in the queue, until it leaves or dies.

    Raises:
        LeaseError: it cannot be drawn.
    """

    def __init__(self, leases: Leases, holder: Holder, wanted: Wanted) -> None:
        self._leases, self.wanted = leases, wanted
        name = holder.run_id if NAME.fullmatch(holder.run_id) else "run"
        with leases.door() as door:
            last = lock_files.read_text(door)
            numbers = [int(last) if last.isdecimal() else 0, *_clear(leases.queue)]
            self.number = max(numbers) + 1
            lock_files.write_text(door, str(self.number))
            self._path = leases.queue / f"{self.number:012d}-{name}"
            self._fd: int | None = lock_files.take_shared_lock(self._path)
            if self._fd is None or not lock_files.write_text(self._fd, holder.written(wanted=asdict(wanted))):
                self.leave()
                raise LeaseError(f"{self._path} cannot be written.", remedy="Perhaps the disk is full.")

    def ahead(self) -> list[Ticket]:
        """Return the living who came before and could want the same."""
        return [t for t in self._leases.waiting(self.number) if compete(t.wanted, self.wanted)]

    @property
    def position(self) -> int:
        """1: our turn."""
        return len(self.ahead()) + 1

    def leave(self) -> None:
        """Give the place up; does nothing the second time."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = None


def acquire(
    leases: Leases,
    snapshot: Snapshot,
    slots: int,
    wanted: Wanted,
    require: Require,
    holder: Holder,
    place: Place | None = None,
) -> Held | Refusal:
    """Take what is wanted, of the GPUs of ``snapshot`` or of ``slots`` cpu slots, if it is free and our turn.

    Without a ``place`` nobody is overtaken either: whoever waits for the same comes first. A place that has served is
    left. A lease whose file was removed still counts, unless its holder is another user's process that this one may
    not look into: that one's GPU is told by the snapshot alone, once it computes.

    Raises:
        LeaseError: the leases cannot be used.
    """
    with leases.door():
        held = {uuid: who.text for uuid, who in leases.holders().items()}
        found = offer(snapshot, slots, held, wanted, require, holder.run_id)
        if isinstance(found, NoRoom):
            return Refusal(found.text, found.never)
        before = place.ahead() if place else [t for t in leases.waiting() if compete(t.wanted, wanted)]
        if before:
            others = f" and {len(before) - 1} more" if len(before) > 1 else ""
            return Refusal(f"{before[0].holder.text}{others} came first and waits.")
        got = leases.take(found.uuids, holder, found.indices)
        if isinstance(got, str):
            return Refusal(got)
        if place:
            place.leave()
        return got


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - only names
    except OSError:
        return []


def _inodes(directory: Path) -> set[int]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return {entry.inode() for entry in entries}
    return set()


@contextlib.contextmanager
def _looked_at(path: Path) -> Iterator[int]:
    fd = lock_files.open_lock_file(path)
    try:
        yield fd
    finally:
        os.close(fd)


def _clear(queue: Path) -> list[int]:
    """Remove the tickets of the dead, as far as they may be removed; return all numbers. Only behind the door."""
    numbers = []
    for name in _names(queue):
        if named := _TICKET.fullmatch(name):
            numbers.append(int(named[1]))
            with contextlib.suppress(OSError), _looked_at(queue / name) as fd:
                if not lock_files.is_fd_locked(fd):
                    (queue / name).unlink()
    return numbers
