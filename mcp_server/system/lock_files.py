"""Lock files that all users of a machine share: another may have made them, tampered with them, or hold them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Everybody may lock and write. Sticky: systemd-tmpfiles clears such files from no directory, however old they are.
_FILE_MODE, _DIRECTORY_MODE = 0o1666, 0o1777
_TRIES = 100  # of what somebody else may undo in the same moment
_READERS_S = 2.0  # who only looks holds a shared lock for microseconds; a busy machine makes it longer
_NAP_S = 0.001
_LONGEST_TEXT = 65_536

Key = tuple[int, int, int]  # device, as major and minor number, and inode


class LeaseError(Exception):
    """Leases cannot be had or kept in this directory; the message says why, and what a person should type."""


def make_directory(path: Path) -> None:
    """Make a directory in which every user may make files, and remove only their own, unless there is one.

    Raises:
        LeaseError: it cannot be made, or what is there cannot be trusted.
    """
    remedy = f"a person should type: sudo mkdir -m 1777 {path}"
    try:
        with contextlib.suppress(FileExistsError), _no_umask():
            path.mkdir(_DIRECTORY_MODE)
        found = path.lstat()
    except OSError as error:
        raise LeaseError(f"The lease directory {path} cannot be made ({error.strerror}): {remedy}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise LeaseError(f"{path} is no directory: {remedy}, once it is out of the way")
    if found.st_mode & stat.S_ISVTX:
        return
    if found.st_uid not in (0, os.geteuid()):
        raise LeaseError(f"The lease directory {path} belongs to {user_name(found.st_uid)} alone: {_shared(path)}")
    if found.st_mode & stat.S_IWOTH:
        raise LeaseError(f"Anybody can remove anybody's leases in {path}: {_shared(path)}")


def take(path: Path, patience_s: float = 0.0) -> int | None:
    """Lock a file for this process alone, made where there is none; return its descriptor, or None: it is held.

    Another user's file that may only be read can be locked as well.

    Raises:
        LeaseError: it is no plain file, or cannot be opened or made.
    """
    for _ in range(_TRIES):
        try:
            fd = _open_or_make(path)
        except OSError as error:
            raise _no_lock_file(path, error) from error
        try:
            if not _lock(fd, patience_s):
                os.close(fd)
                return None
            if _is_at(fd, path):
                return fd
        except OSError as error:
            os.close(fd)
            raise LeaseError(
                f"{path} cannot be locked ({error.strerror}): set RUNWARD_LEASES to a local disk"
            ) from error
        os.close(fd)  # somebody removed it before it was locked
    raise LeaseError(f"{path} is removed again and again")


def look(path: Path) -> int:
    """Open a lock file to look at it; makes nothing.

    Raises:
        OSError: there is none, or it is no plain file.
    """
    return _checked(os.open(path, os.O_RDONLY | _CAREFUL))


def is_held(fd: int) -> bool:
    """Tell whether somebody holds an open lock file. Probes shared, so that two readers never see each other."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def read(fd: int) -> str:
    """Return what its holder wrote into a lock file."""
    return os.pread(fd, _LONGEST_TEXT, 0).decode(errors="replace")


def facts(fd: int) -> dict[str, Any]:
    """Return the JSON object in a lock file; empty where there is none."""
    try:
        found = json.loads(read(fd))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(fd: int, text: str) -> bool:
    """Write into a lock file; False where it may only be read, or the disk is full."""
    try:
        os.ftruncate(fd, 0)
        return os.pwrite(fd, text.encode(), 0) == len(text.encode())
    except OSError:
        return False


def key(fd: int) -> Key:
    """Return by what the kernel's list of locks names an open file."""
    found = os.fstat(fd)
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def device(path: Path) -> tuple[int, int]:
    """Return the first two parts of the keys of a directory's files; zeros where there is none."""
    with contextlib.suppress(OSError):
        found = path.stat().st_dev
        return os.major(found), os.minor(found)
    return 0, 0


def holders() -> dict[Key, int]:
    """Return which process took which exclusive lock, as far as the kernel tells; none of other pid namespaces."""
    found: dict[Key, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = (
                line.split()
            )  # 1: FLOCK ADVISORY WRITE 4711 00:19:1234 0 EOF; a waiter has an arrow behind the number
            if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"]:
                major, minor, inode = words[5].split(":")
                found[int(major, 16), int(minor, 16), int(inode)] = int(words[4])
    return found


def removed(directory: Path, pid: int) -> list[str]:
    """Return the names of removed files of ``directory`` that a process has open; none of another user's process."""
    names = []
    with contextlib.suppress(OSError):
        beginning = f"{os.path.realpath(directory)}/"
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - only names
            with contextlib.suppress(OSError):
                target = str(Path(f"/proc/{pid}/fd/{fd}").readlink())
                if target.startswith(beginning) and target.endswith(" (deleted)"):
                    names.append(target.removeprefix(beginning).removesuffix(" (deleted)"))
    return names


def user_name(uid: int) -> str:
    """Return a user's name; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def _no_umask() -> Iterator[None]:
    """Make files with all their rights at once: whoever is killed before a chmod would shut the others out."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _open_or_make(path: Path) -> int:
    # Never O_CREAT on a file that is there: where fs.protected_regular is set that is refused for another user's.
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            try:
                return _checked(os.open(path, os.O_RDWR | _CAREFUL))
            except PermissionError:
                return _checked(os.open(path, os.O_RDONLY | _CAREFUL))
        with contextlib.suppress(FileExistsError), _no_umask():
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFUL, _FILE_MODE)
    raise FileNotFoundError(errno.ENOENT, "it is removed again and again", str(path))


def _checked(fd: int) -> int:
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return fd
    os.close(fd)
    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
        raise FileNotFoundError(errno.ENOENT, "just removed")
    if stat.S_ISREG(found.st_mode):
        raise OSError(errno.EMLINK, "it has other names as well")
    raise OSError(errno.EINVAL, "it is no plain file")


def _lock(fd: int, patience_s: float) -> bool:
    """Lock an open file; False when somebody holds it for longer than ``patience_s``, or looks at it for ever."""
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() - began_s >= (patience_s if is_held(fd) else max(patience_s, _READERS_S)):
            return False
        time.sleep(_NAP_S)


def _is_at(fd: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False


def _no_lock_file(path: Path, error: OSError) -> LeaseError:
    if error.errno in (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EMLINK, errno.ENXIO):
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        return LeaseError(f"{path} cannot be a lock ({why}): a person should type: sudo rm -r {path}")
    if isinstance(error, PermissionError):
        remedy = f"sudo chmod 1666 {path}" if os.path.lexists(path) else _shared(path.parent)
        return LeaseError(f"{path} cannot be opened ({error.strerror}): a person should type: {remedy}")
    return LeaseError(f"{path} cannot be opened ({error.strerror}).")


def _shared(path: Path) -> str:
    return f"a person should type: sudo chmod 1777 {path}"
