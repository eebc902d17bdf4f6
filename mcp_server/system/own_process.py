"""Titles of runward's own processes in `ps`, no core dump of their secrets, and access to what they make.

Trainers and their scripts clean a machine up with `pkill -f python`, `pkill -f train` or `killall python`. A supervisor
that such a pattern matches dies with its run, or with the runs of others. So the command line and the short name hold
neither an interpreter, nor a path, nor the name of a run.
Their command keeps its own limits.
"""

from __future__ import annotations

import _signal
import os
import resource

TYPE_CHECKING = False  # without the modules below, which take 1.5 MB: guards of commands have this one loaded
if TYPE_CHECKING:
    from collections.abc import Sequence

SUPERVISOR = "runward-supervisor"
STARTER = "runward-starter"
GPU_SAMPLER = "runward-gpu"
RELAY = "runward-relay"
CONDUCTOR = "runward-conductor"
_NOTIFIER = "runward-notifier"
_LEASE_KEEPER = "runward-lease"
_NAME = "runward"  # at most 15 bytes
# The command line of a supervisor that could not change it, and of former versions: this, and then the directory.
_FORMER_SUPERVISOR = "mcp_server/supervisor "
_ARG_START = 45  # fields 48 and 49 of /proc/PID/stat, counted from the state
# Not 0: Linux ignores the limit for a program that takes dumps by a pipe, but for 1, which also allows no file.
_NO_CORE = 1
_PR_SET_DUMPABLE = 4
_former_limits: list[tuple[int, int]] = []
_OWNER_BITS = 0o700
_SHELL_SIGNAL_BASE = 128
_withheld = [0]  # bits of the umask


def supervisor_title(run_id: str) -> list[str]:
    """Return the words that a supervisor shows: its name, and the run id with a dot between any two characters.

    A person can read the id, and no pattern matches a word in it: a run is mostly named after its script.
    """
    return [SUPERVISOR, ".".join(run_id)]


def conductor_title(sweep_id: str) -> list[str]:
    """Return the words that the process shows which advances a sweep."""
    return [CONDUCTOR, ".".join(sweep_id)]


def notifier_title(run_id: str) -> list[str]:
    """Return the words that the process shows which sends the notices of a run."""
    return [_NOTIFIER, ".".join(run_id)]


def lease_keeper_title(run_id: str) -> list[str]:
    """Return the words that the process shows which keeps the leases of a run's unkillable processes."""
    return [_LEASE_KEEPER, ".".join(run_id)]


def supervised_run(words: Sequence[str]) -> str | None:
    """Return the id of the run that a process with this command line supervises, or empty where it shows none.

    None: it is not a supervisor. Any user can choose such words.
    """
    if words[:1] == [SUPERVISOR]:
        return words[1][::2] if len(words) > 1 else ""
    _, former, directory = " ".join(words).partition(_FORMER_SUPERVISOR)
    return os.path.basename(directory.rstrip("/")) if former else None


def set_title(words: Sequence[str]) -> None:
    """Show ``words`` as the command line of this process, as far as they fit in the memory of the former one.

    Words that do not fit are left out. Its environment and ``sys.argv`` remain. Where the kernel does not allow it,
    nothing changes.
    """
    try:
        _write("/proc/self/comm", _NAME.encode())
    except OSError:
        pass
    # The memory that the kernel shows is this process's own. Moving it (PR_SET_MM) would need a privilege, writing
    # into it needs none.
    try:
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        title = b""
        for word in words:
            following = title + os.fsencode(word) + b"\0"
            if len(following) > end - start:
                break
            title = following
        if start and title:
            _write("/proc/self/mem", title.ljust(end - start, b"\0"), start)
    except (OSError, ValueError, IndexError):
        pass


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _write(path: str, data: bytes, at: int = 0) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.lseek(fd, at, os.SEEK_SET)
        os.write(fd, data)
    finally:
        os.close(fd)


# --- memory and files


def forbid_core_dumps() -> None:
    """Set the soft limit of this process and its children so that none leaves a core."""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, limits[1]))
        _former_limits.append(limits)
    except (OSError, ValueError):  # a hard limit of 0 allows none anyhow
        pass


def restore_limit() -> None:
    """Set the limit of this process, a child, to the one before ``forbid_core_dumps``."""
    if _former_limits:
        resource.setrlimit(resource.RLIMIT_CORE, _former_limits[0])


def close_memory() -> None:
    """Forbid core dumps of this process, and the reading of its memory by others of its user. Linux only.

    A program that it executes is not affected. The files of the process in `/proc` belong to root from then on.
    """
    import ctypes  # noqa: PLC0415 - 2 ms and 0.3 MB of a guard

    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def take_umask(umask: int | None = None) -> None:
    """Set the umask, None for the present one, without bits that would keep this process from what it makes.

    Such a umask, 777 or 177, is the command's all the same: ``complete_umask`` says it.
    """
    before = os.umask(0o077)
    umask = before if umask is None else umask
    _withheld[0] = umask & _OWNER_BITS
    os.umask(umask & ~_OWNER_BITS)


def complete_umask(present: int) -> int:
    """Return the umask that ``take_umask`` was given, where it is ``present`` now."""
    return present | _withheld[0]


# --- raw wait statuses


def read_status(status: int) -> tuple[int | None, str | None]:
    """Return the exit code, or the signal that ended it."""
    code = os.waitstatus_to_exitcode(status)
    return (None, name_signal(-code)) if code < 0 else (code, None)


def name_shell_signal(exit_code: int | None) -> str | None:
    """Return the signal that an exit code stands for where a shell reports a child's end: 128 + n for signal n.

    Whether it does is not known by the code: a program may choose that code itself.
    """
    return name_signal((exit_code or 0) - _SHELL_SIGNAL_BASE)


def name_signal(number: int) -> str | None:
    """Return the name of a signal, or None where there is none of that number, e.g. for exit code 255."""
    if number not in _signal.valid_signals():
        return None
    if number > _signal.SIGRTMIN:
        return f"SIGRTMIN+{number - _signal.SIGRTMIN}"
    return min(str(name) for name, value in vars(_signal).items() if value == number and _is_signal(name))


def _is_signal(name: str) -> bool:
    return name.startswith("SIG") and not name.startswith("SIG_")
