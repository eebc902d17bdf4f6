"""The files that a run left in its directories, found by a bounded scan."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.state import Run
from mcp_server.system.directory_scan import DirectoryScan

# Whole environments and downloads are stored next to the code; none of them holds results.
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})


@dataclass(frozen=True)
class Entry:
    """A file or a directory. ``changed_s`` is POSIX time."""

    path: Path
    is_dir: bool
    size_bytes: int
    changed_s: float


def limited_scan(*, max_depth: int = 5, max_directories: int = 2_000, max_entries: int = 20_000) -> DirectoryScan:
    """Return the limits for one run's directories: 2 s, so that a slow file server does not block a tool."""
    return DirectoryScan(max_depth, max_directories=max_directories, max_entries=max_entries, max_s=2.0)


def list_tree(
    scan: DirectoryScan, root: Path, *, enter: Callable[[Path], bool] = lambda _: True
) -> Iterator[tuple[Path, list[Entry]]]:
    """Yield ``root`` and each directory below it with its regular files and directories. Hidden ones are skipped."""
    return scan.walk(root, _entry, skip=lambda name: name[0] == "." or name in _FOREIGN, enter=enter)


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    status = entry.stat(follow_symlinks=False)
    is_dir = stat.S_ISDIR(status.st_mode)
    if not is_dir and not stat.S_ISREG(status.st_mode):
        return None
    return Entry(Path(entry.path), is_dir, status.st_size, status.st_mtime)


def result_roots(run: Run, result_dir: Path | None = None) -> list[Path]:
    """Return where a run leaves files: ``result_dir`` if given, its own result directory, its working directory.

    A home directory and ``/`` are left out: too many other files are stored there.
    """
    paths = [Path(path) for path in (result_dir, getattr(run.spec, "result_dir", None), run.spec.cwd) if path]
    return [path for path in dict.fromkeys(paths) if path not in (Path("/"), Path.home())]
