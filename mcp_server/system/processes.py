"""The processes of a run: finding all of them, and stopping them without touching a stranger."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TMUX_SERVER = "tmux: server"


@dataclass(frozen=True)
class Process:
    """One process, told apart from a later one with the same number by its start.

    ``started`` is in clock ticks since boot (field 22 of ``/proc/PID/stat``).
    """

    pid: int
    started: int
    parent: int = field(compare=False)  # changes when the parent dies
    session: int = field(compare=False)
    name: str = field(compare=False, default="")

    @property
    def command(self) -> str:
        """Its command line; empty when it is gone."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        return b" ".join(words).decode(errors="replace").strip()


def become_subreaper() -> None:
    """Let orphaned descendants come back to this process, so that a double fork hides nothing."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def process(pid: int) -> Process | None:
    """Return the living process ``pid``; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    name, _, rest = stat.partition(b"(")[2].rpartition(b") ")
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(
        pid,
        started=int(fields[19]),
        parent=int(fields[1]),
        session=int(fields[3]),
        name=name.decode(errors="replace"),
    )


def all_processes() -> list[Process]:
    """Return every living process that this user may see."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - hot path
    return [p for p in found if p is not None]


def children(pid: int) -> list[int]:
    """Return the numbers of the direct children of a process with one thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # a kernel built without it
        return [p.pid for p in all_processes() if p.parent == pid]


def has_children() -> bool:
    """Whether any descendant lives: as subreaper this process is the parent of every orphan."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def descendants(root: int) -> list[Process]:
    """Return the living descendants of ``root``, without itself, and without what they started for others.

    A tmux server that a run happened to start holds everybody's sessions; it is nobody's left-over.
    """
    children: dict[int, list[Process]] = {}
    for p in all_processes():
        children.setdefault(p.parent, []).append(p)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.name == _TMUX_SERVER:
                continue
            found.append(child)
            queue.append(child.pid)
    return found


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"T"):
            os.kill(pid, signal.SIGCONT)


def cpu_s(root: int) -> float:
    """Return the processor time, in seconds, that the descendants of ``root`` have used.

    Cheap enough to be asked now and then: looks only at them, and misses what a thread but the first has started.
    """
    total_s = 0.0
    queue = children(root)
    while queue:
        pid = queue.pop()
        queue += children(pid)
        total_s += used_s(pid)
    return total_s


def used_s(pid: int) -> float:
    """Return the processor time, in seconds, that a process and its reaped children have used; 0 when it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def waits_in(pid: int) -> str:
    """Return a process's state and the kernel function it sleeps in, e.g. ``S futex_wait_queue``; as far as told."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
        with contextlib.suppress(OSError):
            state += f" {Path(f'/proc/{pid}/wchan').read_text()}"
        return state
    return ""


def oom_kills() -> int:
    """Return how often the kernel killed for want of memory in this process's control group; 0 where it is not told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0].lstrip("/")
        for path in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            with contextlib.suppress(OSError):
                for line in (path / "memory.events").read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
    return 0


def ancestors(pid: int) -> list[int]:
    """Return ``pid`` and the numbers of the processes above it."""
    found = []
    while pid > 1 and (p := process(pid)) is not None:
        found.append(pid)
        pid = p.parent
    return found


def with_variable(name: str, value: str) -> list[Process]:
    """Return this user's processes whose environment holds ``name=value``."""
    needle = f"{name}={value}".encode()
    found = []
    for p in all_processes():
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0"):
                found.append(p)
    return found


def send(target: Process, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False when it is gone or its number was reused."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        same = process(target.pid)
        if same is None or same.started != target.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


@dataclass(frozen=True)
class Stage:
    """One signal, and how long its receivers have to go, in seconds."""

    number: signal.Signals
    grace_s: float


def stages(grace_s: float) -> tuple[Stage, ...]:
    """Return the polite way to stop a training: interrupt, terminate, kill."""
    return (
        Stage(signal.SIGINT, grace_s),
        Stage(signal.SIGTERM, grace_s),
        Stage(signal.SIGKILL, 5.0),
    )


class Stopping:
    """Stops a set of processes stage by stage. ``step`` is called again and again until it says done.

    Processes that appear meanwhile get the stage's signal as well.
    """

    def __init__(self, plan: Iterable[Stage]) -> None:
        self._plan = list(plan)
        self._until: float | None = None
        self._told: set[Process] = set()
        self.sent: list[str] = []

    def step(self, living: list[Process], now_s: float) -> bool:
        """Send what is due to ``living`` at ``now_s`` (monotonic); True when none is left or no stage is."""
        if not living:
            return True
        if self._until is None:
            self._until = now_s + self._plan[0].grace_s
        elif now_s >= self._until:
            self._plan.pop(0)
            self._told.clear()
            if not self._plan:
                return True
            self._until = now_s + self._plan[0].grace_s
        number = self._plan[0].number
        for p in living:
            if p not in self._told and send(p, number):
                self._told.add(p)
                if number.name not in self.sent:
                    self.sent.append(number.name)
                if number is not signal.SIGKILL:
                    send(p, signal.SIGCONT)  # a stopped process hears nothing else
        return False


def program(process: Process) -> str:
    """Return a process's program and script without further arguments, which may hold secrets."""
    words = process.command.split()
    shown = words[:1] + [w for w in words[1:3] if w.endswith((".py", ".sh")) or w == "-m"]
    return " ".join(shown)
