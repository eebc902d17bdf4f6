"""One safe read of files that may be anything, and one atomic write; and which filesystems are shared.

Only three things are renamed elsewhere: a directory, which appears or goes as a whole; `exit.json`, whose space on the
disk is reserved before it is written; and a document that gets another name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

# A file that certainly is not there: missing, or something else than a file at its path. Any other error, such as no
# descriptor left or a server that does not answer, says nothing about the file.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO})

# What this process, or the machine, has run out of for now.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_MOST_BYTES, _CHUNK_BYTES = 16 * 2**20, 2**16
_MOST_CONFIGURATION_BYTES = 2**20


def parents_of(path: str) -> list[str]:
    """Return the directories above ``path``, the nearest first."""
    parents = []
    while (parent := os.path.dirname(path)) != path:  # noqa: PTH120 - hot path
        parents.append(parent)
        path = parent
    return parents


def name_below(path: str, directory: str) -> str:
    """Return the path of a file below ``directory``, the whole path of one elsewhere."""
    inside = os.path.relpath(path, directory) if directory.startswith("/") and path.startswith("/") else path
    return path if inside.startswith("..") else inside


def is_within(path: str, directory: str) -> bool:
    """Return whether ``path`` is ``directory`` or below it. Both are absolute and normalised."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_absent(error: OSError) -> bool:
    """Return whether ``error`` proves that there is no regular file. If not, its content is unknown now."""
    return error.errno in _ABSENT


def is_shortage(error: BaseException) -> bool:
    """Return whether ``error`` is a want of descriptors or memory, which says nothing about the file."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def open_regular_file(path: Path, *, follow_links: bool = True) -> int:
    """Return a descriptor to read a regular file. Opening a FIFO or a device never blocks.

    Raises:
        OSError: the file is missing, unreadable, not regular, or a link where ``follow_links`` is false.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Return a regular file, open to be read."""
    return os.fdopen(open_regular_file(path, follow_links=follow_links), "rb")


def read_regular_file(path: Path, *, max_bytes: int | None = None, follow_links: bool = True) -> bytes:
    """Return the content of a regular file, at most its first ``max_bytes``. Without a limit, whole.

    Raises:
        OSError: also of a file with more than 16 MiB, without a limit.
    """
    most, fd = _MOST_BYTES + 1 if max_bytes is None else max_bytes, open_regular_file(path, follow_links=follow_links)
    try:
        data = os.read(fd, min(most, _CHUNK_BYTES))  # a file object would take 20 us more
        while len(data) < most and (more := os.read(fd, min(most - len(data), max(len(data), _CHUNK_BYTES)))):
            data += more
    finally:
        os.close(fd)
    if max_bytes is None and len(data) == most:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES >> 20} MiB", str(path))
    return data


def read_end(path: Path, count: int, *, after: int = 0) -> bytes:
    """Return the last ``count`` bytes of a regular file, without its first ``after``."""
    with open_regular(path) as file:
        file.seek(max(after, file.seek(0, os.SEEK_END) - count))
        return file.read(count)


def read_configuration(path: Path) -> bytes:
    """Return the content of a file that a person wrote by hand: a regular one, of at most 1 MiB.

    Raises:
        OSError: also of a larger file. Its text says which, as a sentence's end.
    """
    data = read_regular_file(path, max_bytes=_MOST_CONFIGURATION_BYTES + 1)
    if len(data) > _MOST_CONFIGURATION_BYTES:
        raise OSError(errno.EFBIG, "it has more than 1 MiB, too much for a configuration")
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` so that a reader sees all of ``data`` or the former content. Survives a power cut.

    A symbolic link at ``path`` is replaced, not followed. The file has exactly ``mode``, whatever the umask is.
    ``durable``: False for what is written again every few seconds, and may be lost in a power cut.

    Raises:
        OSError: nothing was changed.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(fd)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


@contextlib.contextmanager
def whole_directory(path: Path, *, anew: bool = False) -> Iterator[Path]:
    """Yield a private directory that appears as ``path`` once the block has filled it.

    ``anew``: what an earlier call left unfinished, whose process has died, is removed first.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    import shutil  # noqa: PLC0415 - 2 ms and 0.2 MB of each supervisor

    new = path.with_name(f".new-{path.name}")
    if anew:
        shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        yield new
        new.rename(path)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise


def open_private(path: str, flags: int) -> int:
    """Open a file that no other user may read and no child inherits: an ``opener`` for ``open``."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def append_whole(fd: int, data: bytes) -> bool:
    """Append all of ``data`` to an open file, or nothing, as on a full disk; return whether it was appended."""
    size, written = os.fstat(fd).st_size, 0
    try:
        written = os.write(fd, data)
    finally:
        if written < len(data):
            os.ftruncate(fd, size)
    return written == len(data)


def sync_directory(path: Path) -> None:
    """Make renames in ``path`` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# On these, inotify reports nothing of what another host writes.
_SHARED_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "9p", "fuse")


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
    matches = [(len(at), kind) for at, kind in mounts if is_within(target, at)]
    return max(matches, default=(0, ""))[1].startswith(_SHARED_FILESYSTEMS)


def find_archive() -> Path | None:
    """Return the zip file that this module was imported from, or None where it is an ordinary file."""
    archive = getattr(globals().get("__loader__"), "archive", None)
    return Path(archive) if isinstance(archive, str) else None


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return ``$RUNWARD_HOME``, else ``$XDG_STATE_HOME/runward``, else ``~/.local/state/runward``.

    Raises:
        RuntimeError: this user has no home directory.
    """
    if home := environ.get("RUNWARD_HOME"):
        return Path(home).expanduser().absolute()
    state = Path(environ.get("XDG_STATE_HOME") or "")
    if not state.is_absolute():  # the XDG specification says to ignore a relative path
        state = Path.home() / ".local" / "state"
    return state / "runward"
