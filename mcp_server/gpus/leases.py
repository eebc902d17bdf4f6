"""GPU leases and their queue: lock files that the kernel releases when their holder dies.

A lease is a file named by the GPU's UUID. The supervisor of the run locks it for as long as the run lives; the guard of
its command holds the lock as well, so that a command that outlives its supervisor keeps its GPU or cpu slot. A queue
ticket is a file as well: its number gives the order, its lock shows that its holder lives. Taking a lease or a queue
ticket requires the allocation mutex (``.door``), so the two are atomic. Files of leases are never removed by runward.

Who made a lease's file owns it, and can remove it under a living run of another user. Such a run therefore locks a
file of its own as well, ``UUID~`` and eight digits, which nobody else can remove.

Taking raises LeaseError where a file cannot be used or written, or another process holds the mutex for too long.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_server.gpus.placement import Unavailable, choose_devices
from mcp_server.gpus.request import GpuRequest, Requirements, may_compete
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.run_directory import now
from mcp_server.system import lock_files, processes
from mcp_server.system.lock_files import LeaseError
from mcp_server.system.own_process import supervised_run
from mcp_server.text.regex import compile_lazily

_SYSTEM, _OTHERWISE = Path("/run/lock"), Path("/tmp/runward-leases")  # noqa: S108 - made and checked with care
_MUTEX, _QUEUE = ".door", "queue"
_MUTEX_TIMEOUT_S = 10.0  # it is held for milliseconds
_TICKET_NAME = compile_lazily(r"([0-9]{12,18})-[A-Za-z0-9._-]{0,100}")
_LARGEST_NUMBER = 10**18 - 1  # any user can take it: then the time of the ticket decides
_COMPANION = compile_lazily(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})~[0-9a-f]{8}")
QueueKey = tuple[int, int, str]  # number, time (ns) and name of a ticket


def lease_directory(environ: Mapping[str, str]) -> Path:
    """Return the lease directory of this machine: ``RUNWARD_LEASES``, else the same for all users."""
    if path := environ.get("RUNWARD_LEASES"):
        return Path(path).absolute()
    shared = stat.S_ISVTX | stat.S_IWOTH
    with contextlib.suppress(OSError):
        mode = _SYSTEM.lstat().st_mode
        if stat.S_ISDIR(mode) and mode & shared == shared:
            return _SYSTEM / "runward"
    return _OTHERWISE


# Names of leases and runs. Any user may have written them.
NAME = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The words that a file is quoted for to agents of other users: one word each, which cannot say much.
_WORDS = {
    "run_id": NAME,
    "owner": compile_lazily(r"[\w][\w.@+-]{0,63}"),
    "user": compile_lazily(r"[\w][\w.@+-]{0,63}"),
    "since": compile_lazily(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?Z"),
}
_LARGEST_PID, _MOST_GPUS = 2**22, 1024


@dataclass(frozen=True)
class LeaseHolder:
    """A process that holds a lease or waits for one. ``since`` in ISO 8601 UTC. Unknown values are empty.

    ``index``: of the leased GPU, as the driver numbered it when the lease was taken.
    """

    run_id: str = ""
    owner: str = ""
    user: str = ""
    pid: int | None = None
    since: str = ""
    index: int | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The holder for people: ``cfm-7kqz (mz) since 14:02 UTC``, with the date unless it is today's."""
        name = self.run_id or ("a process not visible here" if self.pid is None else f"process {self.pid}")
        owner = self.owner or self.user
        date, _, time = self.since[:16].partition("T")
        since = f" since {time if now().startswith(date) else f'{date} {time}'} UTC" if time else ""
        return f"{name} ({owner}){since}" if owner else f"{name}{since}"

    def to_json(self, **more: object) -> str:
        """Return the JSON text of a lease's or a ticket's file, with ``more`` facts."""
        facts = {**asdict(self), "since": self.since or now(), "host": os.uname().nodename, **more}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> LeaseHolder:
        """Return the holder that a file names. Any user may have written it: only words of the right shape count."""
        words = {name: facts.get(name) for name in _WORDS}
        clean = {name: w for name, w in words.items() if isinstance(w, str) and _WORDS[name].fullmatch(w)}
        pid, index = facts.get("pid"), facts.get("index")
        return cls(
            **clean,
            pid=pid if isinstance(pid, int) and 0 < pid <= _LARGEST_PID else None,
            index=index if type(index) is int and 0 <= index < _MOST_GPUS else None,
        )

    @classmethod
    def of_process(cls, pid: int | None) -> LeaseHolder:
        """Return what is visible of a process: its user, and of a supervisor also the run, which its arguments name."""
        if pid is None:
            return cls()
        run_id = user = ""
        if (uid := _user_of(pid)) is not None:
            user = lock_files.user_name(uid)
        words = processes.command_words(pid)
        run_id = supervised_run(words) or ""
        for program, run_dir in zip(words, words[1:]):
            if Path(program).name == "supervisor" or program.endswith(".pyz"):
                run_id = Path(run_dir).name
        return cls(run_id if NAME.fullmatch(run_id) else "", user=user, pid=pid)

    @classmethod
    def of_lock(cls, fd: int, pids: Mapping[lock_files.LockKey, int]) -> LeaseHolder:
        """Return the holder of an open lock file. ``pids``: the process that holds a lock, as the kernel lists them.

        The text of the file is its last writer's, who may be dead or hostile, so the kernel's list counts first: the
        text is believed where the holder's user alone can have written it. The list still names a process that has
        ended, where a child has inherited the lock.
        """
        pid, writer = pids.get(lock_files.lock_key(fd)), lock_files.writer_of(fd)
        if writer is None:
            return cls.of_process(pid)
        holder = cls.from_json(lock_files.read_facts(fd))
        # Of another process namespace, or of one that has ended: what the owner of the file says.
        if pid is None or (pid == holder.pid and _has_ended(pid)):
            return holder
        return holder if pid == holder.pid and _user_of(pid) == writer else cls.of_process(pid)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _user_of(pid: int) -> int | None:
    """Return the user of a process. The owner of its directory is root where its memory is closed to the user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace").partition("\nUid:")[2]
        return int(status.split()[1])
    return None


@dataclass(frozen=True)
class Waiter:
    """A living process in the queue, with the key of its ticket, which gives the order."""

    key: QueueKey
    holder: LeaseHolder
    request: GpuRequest


class HeldLeases:
    """Leases of this process, until it releases them, or dies and all that inherited ``fds`` with it.

    ``indices``: in the order of ``uuids``.
    ``companions``: the path and the descriptor of a further lock of some leases, by UUID.
    """

    def __init__(
        self,
        fds: Mapping[str, int],
        indices: Sequence[int] = (),
        companions: Mapping[str, tuple[Path, int]] | None = None,
    ) -> None:
        self._fds, self._companions = dict(fds), dict(companions or {})
        self._indices = dict(zip(fds, indices))

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the leases that are still held."""
        return tuple(self._fds)

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the leases that are still held, as far as they were given."""
        return tuple(self._indices[uuid] for uuid in self._fds if uuid in self._indices)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the locked files."""
        return (*self._fds.values(), *(fd for _, fd in self._companions.values()))

    def hand_over(self) -> None:
        """Close the files, whose locks a child holds from now on."""
        for fd in self.fds:
            os.close(fd)
        self._fds.clear()
        self._companions.clear()

    def release(self, uuids: Sequence[str] | None = None) -> None:
        """Release the leases of ``uuids``. None: all."""
        for uuid in self.uuids if uuids is None else uuids:
            if (fd := self._fds.pop(uuid, None)) is not None:
                lock_files.write_text(fd, "")
                lock_files.release_lock(fd)
            if (companion := self._companions.pop(uuid, None)) is not None:
                with contextlib.suppress(OSError):
                    companion[0].unlink()
                lock_files.release_lock(companion[1])


class Leases:
    """The leases of one machine. Reading creates nothing, and does not need ``prepare``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = path / _QUEUE

    def prepare(self) -> None:
        """Create the directories, or check existing ones."""
        if not self.path.parent.is_dir():
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True)
        lock_files.make_shared_directory(self.path)
        lock_files.make_shared_directory(self.queue)

    def find_warning(self) -> str | None:
        """Return a warning where another user can take the leases of living runs away."""
        return lock_files.warn_of_owner(self.path) or lock_files.warn_of_owner(self.queue)

    def list_locks(self) -> list[list[bytes]]:
        """Return the kernel's list of the locks of leases and queue: cheaper to read than these."""
        return lock_files.list_locks(_list_inodes(self.path) | _list_inodes(self.queue))

    def holders(self) -> dict[str, LeaseHolder]:
        """Return the holder of each lease by UUID, also of a removed file, if its process can be inspected."""
        holders: dict[str, LeaseHolder] = {}
        if not self.path.is_dir():
            return holders
        pids = lock_files.lock_holders()
        device, inodes = lock_files.device_numbers(self.path), _list_inodes(self.path) | _list_inodes(self.queue)
        for pid in {pid for (*where, inode), pid in pids.items() if tuple(where) == device and inode not in inodes}:
            names = lock_files.removed_files(self.path, pid)
            holders |= {name: LeaseHolder.of_process(pid) for name in names if NAME.fullmatch(name)}
        for name in _list_names(self.path):
            companion = _COMPANION.fullmatch(name)
            if companion or NAME.fullmatch(name):
                with contextlib.suppress(OSError), _open_lock(self.path / name) as fd:
                    uuid = companion[1] if companion else name
                    if lock_files.is_fd_locked(fd) and (uuid not in holders or not holders[uuid].run_id):
                        holders[uuid] = LeaseHolder.of_lock(fd, pids)
        return holders

    def waiters(self, before: QueueKey | None = None) -> list[Waiter]:
        """Return the queue in its order, only what is ahead of the key ``before``."""
        waiters = []
        names = _list_names(self.queue)
        pids = lock_files.lock_holders() if names else {}
        for name in names:
            if (match := _TICKET_NAME.fullmatch(name)) and (before is None or int(match[1]) <= before[0]):
                with contextlib.suppress(OSError), _open_lock(self.queue / name) as fd:
                    facts = lock_files.read_facts(fd) if lock_files.is_fd_locked(fd) else {}
                    if (request := GpuRequest.from_json(facts.get("wanted"))) is not None:
                        key = (int(match[1]), lock_files.changed_at_ns(fd), name)
                        waiters.append(Waiter(key, LeaseHolder.of_lock(fd, pids), request))
        ahead = [waiter for waiter in waiters if before is None or waiter.key < before]
        return sorted(ahead, key=lambda waiter: waiter.key)

    def take(self, uuids: Sequence[str], holder: LeaseHolder, indices: Sequence[int] = ()) -> HeldLeases | Unavailable:
        """Take all of these leases or none. ``Unavailable`` names one that is held, and its holder.

        Does not respect the queue and does not see a lease whose file was removed: see ``acquire_leases``.
        """
        if odd := next((uuid for uuid in uuids if not NAME.fullmatch(uuid)), None):
            raise LeaseError(f"{odd[:100]!r} cannot be leased: it is not a UUID.")
        fds: dict[str, int] = {}
        companions: dict[str, tuple[Path, int]] = {}
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: HeldLeases(fds, (), companions).release())
            for uuid in dict.fromkeys(uuids):
                if (fd := lock_files.take_shared_lock(self.path / uuid)) is None:
                    return Unavailable(f"{uuid} is leased by {self.holders().get(uuid, LeaseHolder()).text}.")
                fds[uuid] = fd
                if not lock_files.is_own_or_roots(fd) and (companion := self._make_companion(uuid)) is not None:
                    companions[uuid] = companion
            undo.pop_all()
        by_uuid = dict(zip(fds, indices))
        for uuid, fd in (*fds.items(), *((uuid, fd) for uuid, (_, fd) in companions.items())):
            lock_files.write_text(fd, replace(holder, index=by_uuid.get(uuid)).to_json())
        return HeldLeases(fds, indices, companions)

    def _make_companion(self, uuid: str) -> tuple[Path, int] | None:
        """Lock a file of this user's own for a lease whose file another user can remove. Remove those of the dead.

        None: the disk is full, say. The lease is as good as its own file then.
        """
        for name in _list_names(self.path):
            if (match := _COMPANION.fullmatch(name)) and match[1] == uuid:
                with contextlib.suppress(OSError), _open_lock(self.path / name) as fd:
                    if not lock_files.is_fd_locked(fd):
                        (self.path / name).unlink()  # fails for another user's
        path = self.path / f"{uuid}~{secrets.token_hex(4)}"
        try:
            fd_or_none = lock_files.take_shared_lock(path)
        except LeaseError:
            return None
        return None if fd_or_none is None else (path, fd_or_none)

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Hold the allocation mutex, without which no process takes leases or tickets."""
        fd = lock_files.take_shared_lock(self.path / _MUTEX, _MUTEX_TIMEOUT_S)
        if fd is None:
            with _open_lock(self.path / _MUTEX) as mutex:
                holder = LeaseHolder.of_process(lock_files.lock_holders().get(lock_files.lock_key(mutex))).text
            held = f"{self.path / _MUTEX} has been held for {_MUTEX_TIMEOUT_S:g} s by {holder}"
            raise LeaseError(f"{held}.", remedy="Perhaps it is suspended: a person should resume or end it.")
        try:
            yield
        finally:
            os.close(fd)


class QueueTicket:
    """The ticket of this process in the queue, until it withdraws or dies."""

    def __init__(self, leases: Leases, holder: LeaseHolder, request: GpuRequest) -> None:
        self._leases, self.request = leases, request
        name = holder.run_id if NAME.fullmatch(holder.run_id) else f"run-{os.getpid()}"
        with leases.mutex():
            self.number = min(max([0, *_clear_dead_tickets(leases.queue)]) + 1, _LARGEST_NUMBER)
            self._path = leases.queue / f"{self.number:012d}-{name}"
            self._fd: int | None = lock_files.take_shared_lock(self._path)
            if self._fd is None or not lock_files.write_text(self._fd, holder.to_json(wanted=asdict(request))):
                self.withdraw()
                raise LeaseError(f"{self._path} cannot be written.", remedy="Perhaps the disk is full.")

    def waiters_ahead(self) -> list[Waiter]:
        """Return the living waiters ahead that may compete for the same GPUs."""
        return [w for w in self._leases.waiters(self._key) if may_compete(w.request, self.request)]

    @property
    def _key(self) -> QueueKey:
        changed_at_ns = lock_files.changed_at_ns(self._fd) if self._fd is not None else 0
        return self.number, changed_at_ns, self._path.name

    @property
    def position(self) -> int:
        """The position in the queue. 1 is next."""
        return len(self.waiters_ahead()) + 1

    def withdraw(self) -> None:
        """Leave the queue. Does nothing the second time."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = None


def acquire_leases(
    leases: Leases,
    snapshot: Snapshot,
    slots: int,
    request: GpuRequest,
    requirements: Requirements,
    holder: LeaseHolder,
    ticket: QueueTicket | None = None,
) -> HeldLeases | Unavailable:
    """Lease GPUs of ``snapshot``, or of ``slots`` cpu slots, unless they are taken or others are ahead in the queue.

    All waiters that may compete are ahead of a process without a ``ticket``. A ticket whose
    request is met is withdrawn. A lease whose file was removed still counts, unless its holder is a process of another
    user, which cannot be inspected: then only the snapshot shows that its GPU is in use, once it computes.
    """
    with leases.mutex():
        holders = {uuid: lease_holder.text for uuid, lease_holder in leases.holders().items()}
        placement = choose_devices(snapshot, slots, holders, request, requirements, holder.run_id)
        if isinstance(placement, Unavailable):
            return placement
        ahead = ticket.waiters_ahead() if ticket else [w for w in leases.waiters() if may_compete(w.request, request)]
        if ahead:
            others = f" and {len(ahead) - 1} more wait" if len(ahead) > 1 else " waits"
            return Unavailable(f"{ahead[0].holder.text}{others} ahead in the queue.")
        held = leases.take(placement.uuids, holder, placement.indices)
        if ticket and isinstance(held, HeldLeases):
            ticket.withdraw()
        return held


def _list_names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - only names
    except OSError:
        return []


def _list_inodes(directory: Path) -> set[int]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return {entry.inode() for entry in entries}
    return set()


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    fd = lock_files.open_lock_file(path)
    try:
        yield fd
    finally:
        os.close(fd)


def _clear_dead_tickets(queue: Path) -> list[int]:
    """Delete queue tickets whose holder has exited; return every ticket number. The caller must hold the mutex."""
    numbers = []
    for name in _list_names(queue):
        if match := _TICKET_NAME.fullmatch(name):
            numbers.append(int(match[1]))
            with contextlib.suppress(OSError), _open_lock(queue / name) as fd:
                if not lock_files.is_fd_locked(fd):
                    (queue / name).unlink()
    return numbers
