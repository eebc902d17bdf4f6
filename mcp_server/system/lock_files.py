"""Lock files: locks of one user's processes, and locks that all users of a machine share.

A lock is an ``flock`` on an open file. The kernel releases it when its holder dies, however it dies. Files of the
second kind may have been made, damaged or locked by another user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.system.files import is_absent

_UNTRUSTED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Every user may lock, which needs no right to write, and only the owner may write: others could neither change the text
# nor make a hard link. Sticky: systemd-tmpfiles clears such files from no directory, however old they are.
_FILE_MODE, _DIRECTORY_MODE = 0o1644, 0o1777
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UMASK_LOCK = threading.Lock()
_TRIES = 100  # of what another process may undo in the same moment
_PROBES_S = 2.0  # a probe holds a shared lock for microseconds, longer on a busy machine
_RETRY_S = 0.001
_LONGEST_TEXT = 65_536

LockKey = tuple[int, int, int]  # major and minor number of the device, inode


class LeaseError(RunwardError):
    """Leases cannot be taken or kept in this directory. The remedy is a command for a person."""


# --- locks of one user


def take_lock(path: Path, patience_s: float = 0.0) -> int | None:
    """Lock a file, created if missing, for this process, and return its descriptor. None if another process holds it.

    ``patience_s`` outlasts probes (``is_locked``), which hold the lock for a few microseconds.

    Raises:
        OSError: the file cannot be opened, or its filesystem has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + patience_s
    try:
        while not try_lock(fd):
            if time.monotonic() >= until_s:
                os.close(fd)
                return None
            time.sleep(_RETRY_S)
    except OSError:
        os.close(fd)
        raise
    return fd


def release_lock(fd: int) -> None:
    """Release a lock, also where a child has inherited its descriptor. Closing that wakes up who watches the file."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@contextlib.contextmanager
def hold_lock(path: Path, *, create: bool = True) -> Iterator[None]:
    """Hold the lock of a file for a ``with`` block. Waits as long as another process holds it.

    Raises:
        OSError: the file cannot be opened; without ``create``, also where it is missing or a symbolic link.
    """
    fd = os.open(path, os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY | os.O_NOFOLLOW), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file and return False if another process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_lock(fd: int) -> None:
    """Share the lock of an open file. Waits as long as another process holds it alone."""
    fcntl.flock(fd, fcntl.LOCK_SH)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock. The probe is a shared lock, so that two readers never see each other.

    Raises:
        OSError: that is unknown now, e.g. because no descriptor is left.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if is_absent(error):
            return False
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(fd)
    return False


def may_be_locked(path: Path) -> bool:
    """Return whether a process holds the lock, also when that is unknown now."""
    try:
        return is_locked(path)
    except OSError:
        return True


# --- locks that all users share


def make_shared_directory(path: Path) -> None:
    """Make a directory, unless it is there, where users remove only their own files, or raise LeaseError."""
    remedy = f"sudo mkdir -m 1777 {path}"
    try:
        with contextlib.suppress(FileExistsError), _no_umask():
            path.mkdir(_DIRECTORY_MODE)
        status = path.lstat()
    except OSError as error:
        raise _lease_error(f"The lease directory {path} cannot be made ({error.strerror})", remedy) from error
    if not stat.S_ISDIR(status.st_mode):
        raise _lease_error(f"{path} is not a directory", f"{remedy}, once it is out of the way")
    if status.st_mode & stat.S_ISVTX:
        return
    if status.st_uid not in (0, os.geteuid()):
        raise _lease_error(f"The lease directory {path} belongs to {user_name(status.st_uid)} alone", _share(path))
    if status.st_mode & stat.S_IWOTH:
        raise _lease_error(f"Every user can remove every user's leases in {path}", _share(path))


def warn_of_owner(path: Path) -> str | None:
    """Return a warning where a shared directory belongs to another user than root, who can remove every file in it."""
    with contextlib.suppress(OSError):
        owner = path.lstat().st_uid
        if owner not in (0, os.geteuid()):
            return (
                f"The lease directory {path} belongs to {user_name(owner)}, who can take leases away from living runs. "
                f"A person should run: sudo chown root {path}"
            )
    return None


def take_shared_lock(path: Path, patience_s: float = 0.0) -> int | None:
    """Lock a file, created if missing, for this process, and return its descriptor. None if another process holds it.

    Another user's file that is only readable can be locked as well.

    Raises:
        LeaseError: it is not a regular file, or cannot be opened or made.
    """
    for _ in range(_TRIES):
        try:
            fd = _open_or_make(path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            if not _lock(fd, patience_s):
                os.close(fd)
                return None
            if _is_at(fd, path):
                return fd
        except OSError as error:
            os.close(fd)
            raise LeaseError(
                f"{path} cannot be locked ({error.strerror}).",
                remedy="Set RUNWARD_LEASES to a directory on a local disk.",
            ) from error
        os.close(fd)  # it was removed before it was locked
    raise LeaseError(f"{path} is removed again and again.")


def open_lock_file(path: Path) -> int:
    """Return a descriptor to read and probe a lock file. Creates nothing."""
    return _checked(os.open(path, os.O_RDONLY | _UNTRUSTED))


def is_fd_locked(fd: int) -> bool:
    """Return whether a process holds the lock of an open file, by another descriptor than ``fd``."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def read_text(fd: int) -> str:
    """Return what the last holder wrote into a lock file."""
    return os.pread(fd, _LONGEST_TEXT, 0).decode(errors="replace")


def read_facts(fd: int) -> dict[str, Any]:
    """Return the JSON object in a lock file, or empty if it holds none."""
    try:
        value = json.loads(read_text(fd))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_text(fd: int, text: str) -> bool:
    """Replace the content of a lock file and return False if it is only readable, or the disk is full."""
    try:
        os.ftruncate(fd, 0)
        return os.pwrite(fd, text.encode(), 0) == len(text.encode())
    except OSError:
        return False


def writer_of(fd: int) -> int | None:
    """Return the user who wrote the text of a lock file, or None where others than its owner may have."""
    status = os.fstat(fd)
    return None if status.st_mode & _OTHERS_WRITE else status.st_uid


def is_own_or_roots(fd: int) -> bool:
    """Return whether nobody but root and this user can remove a lock file from a shared directory."""
    return os.fstat(fd).st_uid in (0, os.geteuid())


def changed_at_ns(fd: int) -> int:
    """Return when a lock file was last written or linked. Nobody can set that time."""
    return os.fstat(fd).st_ctime_ns


def lock_key(fd: int) -> LockKey:
    """Return the key of an open file in ``lock_holders``."""
    status = os.fstat(fd)
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino


def device_numbers(path: Path) -> tuple[int, int]:
    """Return the first two parts of the ``lock_key`` of a directory's files, or zeros if it is missing."""
    with contextlib.suppress(OSError):
        device = path.stat().st_dev
        return os.major(device), os.minor(device)
    return 0, 0


def list_locks(inodes: Collection[int]) -> list[list[bytes]]:
    """Return the kernel's list of locks of these files: where it is the same, none of this process namespace changed.

    Without such a list, something that is never the same.
    """
    try:
        lines = [line.split()[1:] for line in Path("/proc/locks").read_bytes().splitlines()]  # but for their numbers
    except OSError:
        return [[str(time.monotonic_ns()).encode()]]
    return [words for words in lines if int(words[-3].rpartition(b":")[2]) in inodes]


def lock_holders() -> dict[LockKey, int]:
    """Return the process that took each exclusive lock, as far as the kernel lists it, none of other pid namespaces.

    Takes the kernel 5 to 20 ms: it stops all locking for that.
    """
    pids: dict[LockKey, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK ADVISORY WRITE 4711 00:19:1234 0 EOF; a waiter has an arrow after the number
            words = line.split()
            if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"]:
                major, minor, inode = words[5].split(":")
                pids[int(major, 16), int(minor, 16), int(inode)] = int(words[4])
    return pids


def removed_files(directory: Path, pid: int) -> list[str]:
    """Return the names of removed files of ``directory`` that a process has open, none of another user's process."""
    names = []
    prefix, suffix = f"{os.path.realpath(directory)}/", " (deleted)"
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - only names
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115 - a text, not a path
                if target.startswith(prefix) and target.endswith(suffix):
                    names.append(target[len(prefix) : -len(suffix)])
    return names


def user_name(uid: int) -> str:
    """Return a user's name. The number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def _no_umask() -> Iterator[None]:
    """Create files with their final mode: a process killed before a chmod would shut other users out."""
    with _UMASK_LOCK:  # of two threads, the second would read the first one's 0 and restore that
        umask = os.umask(0)
        try:
            yield
        finally:
            os.umask(umask)


def _open_or_make(path: Path) -> int:
    # Never O_CREAT on an existing file: where fs.protected_regular is set, that is refused for another user's.
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            try:
                return _closed_to_others(_checked(os.open(path, os.O_RDWR | _UNTRUSTED)))
            except PermissionError:
                return _checked(os.open(path, os.O_RDONLY | _UNTRUSTED))
        with contextlib.suppress(FileExistsError), _no_umask():
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _UNTRUSTED, _FILE_MODE)
    raise FileNotFoundError(errno.ENOENT, "it is removed again and again", str(path))


def _closed_to_others(fd: int) -> int:
    """Return ``fd``, whose file only its owner can write from now on: former versions made files for all to write."""
    status = os.fstat(fd)
    if status.st_mode & _OTHERS_WRITE and status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            os.fchmod(fd, _FILE_MODE)
    return fd


def _checked(fd: int) -> int:
    """Return ``fd`` if it is a regular file with exactly one name."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return fd
    os.close(fd)
    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
        raise FileNotFoundError(errno.ENOENT, "just removed")
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EMLINK, "it has other names as well")
    raise OSError(errno.EINVAL, "it is not a regular file")


def _lock(fd: int, patience_s: float) -> bool:
    """Lock an open file; return False if it is held for longer than ``patience_s``, or probed without end."""
    began_s = time.monotonic()
    while not try_lock(fd):
        if time.monotonic() - began_s >= (patience_s if is_fd_locked(fd) else max(patience_s, _PROBES_S)):
            return False
        time.sleep(_RETRY_S)
    return True


def _is_at(fd: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False


def _unusable(path: Path, error: OSError) -> LeaseError:
    if error.errno in (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EMLINK, errno.ENXIO):
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        return _lease_error(f"{path} cannot be a lock ({why})", f"sudo rm -r {path}")
    if isinstance(error, PermissionError):
        remedy = f"sudo chmod 1644 {path}" if os.path.lexists(path) else _share(path.parent)
        return _lease_error(f"{path} cannot be opened ({error.strerror})", remedy)
    return LeaseError(f"{path} cannot be opened ({error.strerror}).")


def _lease_error(cause: str, command: str) -> LeaseError:
    return LeaseError(f"{cause}.", remedy=f"A person should run: {command}")


def _share(path: Path) -> str:
    return f"sudo chmod 1777 {path}"


LOCK_NAME = "in_use.lock"


def hold_program_lock(program: Path) -> None:
    """Share the lock of ``program`` until this process exits. Does nothing where it has none."""
    with contextlib.suppress(OSError):
        path = program if program.is_file() else program / LOCK_NAME
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)


def remove_unused_files(used: Path, unused_s: float) -> None:
    """Remove the programs beside ``used``, each one file, that nobody holds and that nobody began for so long."""
    with contextlib.suppress(OSError):
        os.utime(used)
        for path in used.parent.glob(f"*{used.suffix}*"):
            if path != used and time.time() - path.stat().st_mtime > unused_s:
                _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)
