"""No core dump of a process with secrets, and access to what it makes; its command keeps its own limits."""

from __future__ import annotations

import os
import resource

# Not 0: Linux ignores the limit for a program that takes dumps by a pipe, but for 1, which also allows no file.
_NO_CORE = 1
_PR_SET_DUMPABLE = 4
_former_limits: list[tuple[int, int]] = []
_OWNER_BITS = 0o700
_withheld = [0]  # bits of the umask


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
