"""Processes of this machine: finding all that belong to a run, measuring them, signalling one, stopping a set.

Functions that find processes raise OSError where no descriptor or memory is left to find out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.system.files import is_shortage
from mcp_server.system.own_process import complete_umask

PR_SET_CHILD_SUBREAPER = 36
_RESET = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGINT, signal.SIGQUIT)
_TMUX_SERVER = "tmux: server"
_READ_BYTES = 65536
_FOREGROUND_FIELD = 5  # of /proc/PID/stat, counted behind the name
_EXIT_FIELD = 49  # of /proc/PID/stat, counted behind the name: the wait status
_MOST_THREADS = 100  # reading the children of more takes longer than listing a few hundred processes


@dataclass(frozen=True)
class Process:
    """One process. Its start time distinguishes it from a later process with the same number.

    ``started`` is in clock ticks since boot (field 22 of ``/proc/PID/stat``).
    """

    pid: int
    started: int
    parent: int = field(compare=False)  # changes when the parent dies
    session: int = field(compare=False)
    name: str = field(compare=False, default="")

    @property
    def command(self) -> str:
        """Its command line, or empty when it has exited."""
        return " ".join(command_words(self.pid)).strip()


def read_umask() -> int:
    """Return the umask for commands without setting it, which files of another thread would show."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        mask = int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration, ValueError):  # not Linux
        mask = os.umask(0o077)
        os.umask(mask)
    return complete_umask(mask)


def up_s() -> float:
    """Return for how long this machine has been up, in seconds: nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_up_s(started: int) -> float:
    """Return how long this machine had been up when a process started, given its ``Process.started``."""
    return started / os.sysconf("SC_CLK_TCK")


def started_at_s(process: Process) -> float:
    """Return when a process of this boot started, in POSIX time by the present clock."""
    return time.time() - (up_s() - started_up_s(process.started))


def become_subreaper() -> None:
    """Make this process the parent of orphaned descendants, so that a double fork hides nothing."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def leave_parent(kept: Collection[int], *, ignored: Collection[signal.Signals] = (), is_orphan: bool = True) -> None:
    """Become a process of its own that has nothing of the one that forked it but the descriptors ``kept``.

    ``is_orphan``: it is left to init, and the process that was forked exits.
    """
    signal.set_wakeup_fd(-1)  # the parent's
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    if is_orphan and os.fork() > 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for above, below in zip((2, *sorted(kept)), (*sorted(kept), 65536)):  # above all, the lock of the run is closed
        os.closerange(above + 1, below)


def find_process(pid: int) -> Process | None:
    """Return the living process ``pid``, or None when it has exited or is a zombie."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    name, _, rest = stat.partition(b"(")[2].rpartition(b") ")
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(
        pid, started=int(fields[19]), parent=int(fields[1]), session=int(fields[3]), name=name.decode(errors="replace")
    )


def zombie_exit_code(pid: int, parent: int) -> int | None:
    """Return the exit code of a process that has ended and that ``parent`` has not waited for yet, else None.

    None as well where a signal ended it, and where the kernel does not show it to this user.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    if len(fields) <= _EXIT_FIELD or fields[0] != b"Z" or int(fields[1]) != parent:
        return None
    status = int(fields[_EXIT_FIELD])
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def foreground_commands(pid: int) -> list[list[str]]:
    """Return the words of the processes, ``pid`` and below, in the foreground of its terminal; empty where unknown."""
    _, foreground = _groups(pid)
    members = [pid, *(process.pid for process in descendants(pid))] if foreground > 0 else []
    return [words for one in members if _groups(one)[0] == foreground and (words := command_words(one))]


def _groups(pid: int) -> tuple[int, int]:
    """Return a process's group, and that in the foreground of its terminal; 0 and -1 where unknown."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    return (int(fields[2]), int(fields[5])) if len(fields) > _FOREGROUND_FIELD else (0, -1)


def _read(path: str) -> bytes:
    """Return a file of a process; nothing when the process has exited, or is hidden from this user."""
    try:
        return _read_whole(path)
    except OSError as error:
        if is_shortage(error):
            raise
        return b""


def _read_whole(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a third of the time of Path.read_bytes: it is read of all
    try:
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b""))
    finally:
        os.close(fd)


def command_words(pid: int) -> list[str]:
    """Return the words of a process's command line, or empty when it has exited."""
    try:
        line = _read_whole(f"/proc/{pid}/cmdline").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return []
    return line.split("\0") if line else []


def list_processes() -> list[Process]:
    """Return every living process that this user may see."""
    processes = (find_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - hot path
    return [p for p in processes if p is not None]


def list_numbers() -> list[tuple[int, int]]:
    """Return the pid of every process, with the inode of its directory: a later process of that pid has another.

    That reads no process: with a hundred of them it takes a twentieth of the time of ``list_processes``. The kernel may
    forget an inode, and give the same process another.
    """
    with os.scandir("/proc") as entries:
        return [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]


def children(pid: int) -> list[int]:
    """Return the pids of the direct children of a process with one thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # a kernel built without it
        return [p.pid for p in list_processes() if p.parent == pid]


def has_children() -> bool:
    """Return whether any descendant lives: a subreaper is the parent of every orphan. Reaps zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def children_of_threads(pid: int) -> list[int]:
    """Return the pids of the direct children of all threads of a process, also of those that nobody has waited for."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # a kernel built without it, or too many threads
        return [int(number) for number in _read_children(pid)]
    return []


def reap_children(without: Collection[int]) -> None:
    """Collect the children of this process that have ended, but for those ``without``, which others wait for."""
    for pid in {*children_of_threads(os.getpid())} - set(without):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def descendants(root: int, without: Collection[int | None] = ()) -> list[Process]:
    """Return the living descendants of ``root``, without itself, tmux servers, and ``without`` with what it started.

    A tmux server that a run happened to start holds the sessions of others: it does not belong to the run.
    """
    children: dict[int, list[Process]] = {}
    for p in list_processes():
        children.setdefault(p.parent, []).append(p)
    living: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid in without or is_tmux_server(child):
                continue
            living.append(child)
            queue.append(child.pid)
    return living


def is_tmux_server(process: Process) -> bool:
    """Return whether a process is a tmux server: by its program, since any process can take the name of one."""
    if process.name != _TMUX_SERVER:
        return False
    try:
        program = os.readlink(f"/proc/{process.pid}/exe")  # noqa: PTH115 - a text, not a path
    except OSError:  # another user's; its words are all that is left, and they can be chosen
        program = (command_words(process.pid) or ["tmux"])[0]
    return "tmux" in program.rpartition("/")[2]


def descendants_of_threads(root: int, without: Collection[int | None] = ()) -> list[Process]:
    """Return what ``descendants`` does, by the children of each thread: cheaper where many other processes live.

    ``without``: processes that are left out with all below them.
    """
    living: list[Process] = []
    queue = [root]
    try:
        while queue:
            pid = queue.pop()
            for number in _read_children(pid):
                child = find_process(int(number))
                if child is not None and child.pid not in without and not is_tmux_server(child):
                    living.append(child)
                    queue.append(child.pid)
    except (FileNotFoundError, ValueError):  # a kernel built without it, or too many threads
        return descendants(root, without)
    return living


def _read_children(pid: int) -> list[bytes]:
    """Return the pids of the children of all threads of a process; none of one that has exited.

    Raises:
        FileNotFoundError: the kernel was built without such files.
        ValueError: the process has more threads than are worth reading.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - hot path
    except OSError:
        return []
    if len(threads) > _MOST_THREADS:
        raise ValueError(f"{len(threads)} threads")
    children: list[bytes] = []
    for thread in threads:
        directory = f"/proc/{pid}/task/{thread}"
        try:
            children += _read_whole(f"{directory}/children").split()
        except FileNotFoundError:
            if Path(directory).exists():
                raise
        except OSError:
            continue
    return children


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, Ctrl-Z)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"T")
    return False


def resume_process(pid: int) -> None:
    """Continue a process that is stopped (SIGSTOP, Ctrl-Z)."""
    with contextlib.suppress(OSError):
        if is_stopped(pid):
            os.kill(pid, signal.SIGCONT)


def cpu_s(root: int) -> float:
    """Return the processor time, in seconds, that the descendants of ``root`` have used.

    Reads only their files, so it is cheap. Misses children that a thread other than the first has started.
    """
    total_s = 0.0
    queue = children(root)
    while queue:
        pid = queue.pop()
        queue += children(pid)
        total_s += cpu_used_s(pid)
    return total_s


def cpu_used_s(pid: int) -> float:
    """Return the processor time, in seconds, that a process and its reaped children have used, or 0 after its exit."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def wait_channel(pid: int) -> str:
    """Return a process's state and, if readable, the kernel function it sleeps in, e.g. ``S futex_wait_queue``."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
        with contextlib.suppress(OSError):
            state += f" {Path(f'/proc/{pid}/wchan').read_text()}"
        return state
    return ""


def oom_kills() -> int:
    """Return how many OOM kills the kernel counts in this process's control group. 0 where it does not count them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0].lstrip("/")
        for path in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            with contextlib.suppress(OSError):
                counts = dict(line.split(maxsplit=1) for line in (path / "memory.events").read_text().splitlines())
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
    return 0


def ancestors(pid: int) -> list[int]:
    """Return ``pid`` and the pids of its ancestors."""
    pids = []
    while pid > 1 and (p := find_process(pid)) is not None:
        pids.append(pid)
        pid = p.parent
    return pids


def find_by_variable(name: str, value: str) -> list[Process]:
    """Return this user's processes whose environment holds ``name=value``."""
    needle = f"{name}={value}".encode()
    return [p for p in list_processes() if needle in _read(f"/proc/{p.pid}/environ").split(b"\0")]


def send_signal(target: Process, number: signal.Signals) -> bool:
    """Send a signal to exactly this process and return whether it was sent.

    False: the process has exited, its number was reused, or this user may not signal it.

    A pid file descriptor rules out that the number is reused in between. Kernels before 5.3 (RHEL 8 has 4.18) have
    none and answer ENOSYS, old sandboxes answer EPERM, and descriptors can run out: then the start time is compared
    right before ``kill``.
    """
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # a Python built on an old kernel lacks the function
        return _is_alive(target) and _signalled(lambda: os.kill(target.pid, number))
    try:
        return _is_alive(target) and _signalled(lambda: signal.pidfd_send_signal(handle, number))
    finally:
        os.close(handle)


def _is_alive(target: Process) -> bool:
    return find_process(target.pid) == target


def _signalled(send: Callable[[], None]) -> bool:
    try:
        send()
    except (ProcessLookupError, PermissionError):
        return False
    return True


def program_name(process: Process) -> str:
    """Return a process's program and script without further arguments, which may hold secrets."""
    words = process.command.split()
    names = words[:1] + [w for w in words[1:3] if w.endswith((".py", ".sh")) or w == "-m"]
    return " ".join(names)


_MOST_FDS = 4_096  # of one process
_NOT_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")


def list_written_files(pid: int) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield path, status and whether it only appends, of each regular file that a process has open for writing.

    Nothing for a process that has exited or belongs to another user. A deleted file is left out.
    """
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - hot path
    except OSError:
        return
    for name in names[:_MOST_FDS]:
        link = f"{directory}/{name}"
        try:
            target = os.readlink(link)  # noqa: PTH115 - hot path
            # A link in /proc has the owner's write bit if the file was opened for writing.
            if not target.startswith("/") or target.startswith(_NOT_FILES) or target.endswith(" (deleted)"):
                continue
            if not os.lstat(link).st_mode & stat.S_IWUSR:
                continue
            status = os.stat(link)  # noqa: PTH116 - hot path
            if stat.S_ISREG(status.st_mode):
                yield target, status, _appends(pid, name)
        except OSError:
            continue


def _appends(pid: int, name: str) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        facts = Path(f"/proc/{pid}/fdinfo/{name}").read_bytes()
        return bool(int(facts.partition(b"flags:")[2].split()[0], 8) & os.O_APPEND)
    return False


_KILL_GRACE_S = 5.0
_DYING_S = 25.0  # beyond the last stage: a killed process that waits for no disk only waits for its turn to end


@dataclass(frozen=True)
class Stage:
    """One signal, and how many seconds its receivers have to exit."""

    number: signal.Signals
    grace_s: float


def stop_stages(grace_s: float) -> tuple[Stage, ...]:
    """Return the usual stages to stop a training run: SIGINT, SIGTERM, SIGKILL."""
    return (Stage(signal.SIGINT, grace_s), Stage(signal.SIGTERM, grace_s), Stage(signal.SIGKILL, _KILL_GRACE_S))


class StopSequence:
    """Stops a set of processes. Call ``step`` repeatedly until it returns True.

    Processes that appear during a stage get its signal as well.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = list(stages)
        self._until_s: float | None = None
        self._signalled: set[Process] = set()
        self.sent: list[str] = []

    def step(self, living: list[Process], now_s: float) -> bool:
        """Send what is due to ``living`` at ``now_s`` (monotonic); return True when no process or no stage is left."""
        if not living:
            return True
        if self._until_s is None:
            self._until_s = now_s + self._stages[0].grace_s
        elif now_s >= self._until_s:
            if len(self._stages) == 1 and now_s < self._until_s + _DYING_S and self._are_dying(living):
                return False
            self._stages.pop(0)
            self._signalled.clear()
            if not self._stages:
                return True
            self._until_s = now_s + self._stages[0].grace_s
        number = self._stages[0].number
        for p in living:
            if p not in self._signalled and send_signal(p, number):
                self._signalled.add(p)
                if number.name not in self.sent:
                    self.sent.append(number.name)
                if number is not signal.SIGKILL:
                    send_signal(p, signal.SIGCONT)  # a suspended process handles no other signal
        return False

    def _are_dying(self, living: list[Process]) -> bool:
        """Return whether one has SIGKILL and ends as soon as it gets a processor: not one that waits for a disk."""
        is_kill = self._stages[0].number is signal.SIGKILL
        return is_kill and any(p in self._signalled and wait_channel(p.pid)[:1] not in ("D", "") for p in living)
