"""Filesystems that other hosts write to."""

from __future__ import annotations

import functools
from pathlib import Path

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
    matches = [(len(at), kind) for at, kind in mounts if target == at or target.startswith(at.rstrip("/") + "/")]
    return max(matches, default=(0, ""))[1].startswith(_SHARED_FILESYSTEMS)
