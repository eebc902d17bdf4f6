"""Processes as /proc tells them: what they used, and which of them carry a word."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pids() -> list[int]:
    """Return every process number there is."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def argv(pid: int) -> list[bytes]:
    """Return the arguments of a process; none when it is gone, a zombie, or the kernel's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def with_argument(word: str) -> list[int]:
    """Return the living processes that have exactly ``word`` among their arguments."""
    return [pid for pid in pids() if word.encode() in argv(pid)]


def children(parent: int) -> list[int]:
    """Return the children of ``parent``, zombies left out."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            fields = _fields(pid)
            if int(fields[1]) == parent and fields[0] != b"Z":
                found.append(pid)
    return found


def starters(tmux_server: int) -> list[int]:
    """Return the processes that fork the supervisors in the panes of a tmux server."""
    return [pid for pid in children(tmux_server) if argv(pid)[:1] == [b"runward-starter"]]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, to the nanosecond, and of its reaped children, to the tick.

    ``utime`` and ``stime`` of /proc/PID/stat are whole ticks of 10 ms: 20 supervisors that each use 9 ms show none.
    """
    clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of that process, as clock_getcpuclockid(3) makes it
    fields = _fields(pid)
    return time.clock_gettime(clock) + (int(fields[13]) + int(fields[14])) / _TICKS_PER_S


def memory_mib(pid: int) -> tuple[float, float]:
    """Return resident memory (VmRSS), and the share of it that is this process's own (PSS)."""
    rss = _kib(Path(f"/proc/{pid}/status"), "VmRSS:")
    return rss / 1024, _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") / 1024


def _kib(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))


def _fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on: 0 state, 1 parent, 13 cutime, 14 cstime."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()


def carrying(token: str) -> list[int]:
    """Return the processes with ``token`` in their arguments or environment, but this one."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            known = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            if pid != os.getpid() and token.encode() in known:
                found.append(pid)
    return found


def end_all(token: str, within_s: float = 5.0) -> list[int]:
    """Kill the processes that carry ``token``; return those that are still there."""
    until_s = time.monotonic() + within_s
    while (found := carrying(token)) and time.monotonic() < until_s:
        for pid in found:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)  # holds the number while it is looked at again
                try:
                    if pid in carrying(token):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        time.sleep(0.02)
    return found
