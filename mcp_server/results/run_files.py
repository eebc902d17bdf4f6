"""The files that a run left in its directories, found by a bounded scan, and which of them are its own."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.claims import FileFacts, Rank, Verdict
from mcp_server.record.state import Run
from mcp_server.store.attribution.attribution import OwnFiles, is_root
from mcp_server.system.directory_scan import DirectoryScan

_DEEPEST_OF_ONE, _MOST_FILES_OF_ONE = 5, 1_000  # of a directory that is one result
# Whole environments and downloads are stored next to the code; none of them holds results.
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})


@dataclass(frozen=True)
class FileEntry:
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
) -> Iterator[tuple[Path, list[FileEntry]]]:
    """Yield ``root`` and each directory below it with its regular files and directories. Hidden ones are skipped."""
    return scan.walk(root, _entry, skip=lambda name: name[0] == "." or name in _FOREIGN, enter=enter)


def _entry(entry: os.DirEntry[str]) -> FileEntry | None:
    status = entry.stat(follow_symlinks=False)
    is_dir = stat.S_ISDIR(status.st_mode)
    if not is_dir and not stat.S_ISREG(status.st_mode):
        return None
    return FileEntry(Path(entry.path), is_dir, status.st_size, status.st_mtime)


def result_roots(run: Run, own: OwnFiles) -> list[Path]:
    """Return where a run leaves files: its result directory, its working directory, others that it wrote or names.

    A home directory, /tmp and ``/`` are left out, since too many other files are stored there, but not the directories
    in them that the run names or wrote into, nor what a person stated.
    """
    paths = [path for path in (own.claims.result_dir, run.spec.cwd) if path and is_root(path)]
    stated = [path if path.is_dir() else path.parent for path in map(Path, own.claims.results)]
    return list(dict.fromkeys([*map(Path, paths), *own.roots(), *stated]))


def select_own(paths: Iterable[Path], own: OwnFiles) -> list[Path]:
    """Return the files, and directories as one result, that are the run's; where a person stated some, only those."""
    ranks = rank_own(paths, own)
    least = Rank.STATED if Rank.STATED in ranks.values() else Rank.NONE
    return [path for path, rank in ranks.items() if rank >= least]


def rank_own(paths: Iterable[Path], own: OwnFiles) -> dict[Path, Rank]:
    """Return those that are the run's, with the evidence."""
    ranks: dict[Path, Rank] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            files = [FileFacts.of(one, status) for one, status in _list_files(path)]
            ownership, rank = own.judge_all(files)
            if ownership is Verdict.OWN:
                ranks[path] = rank
    return ranks


def _list_files(path: Path) -> list[tuple[Path, os.stat_result]]:
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return [(path, status)]
    scan = DirectoryScan(_DEEPEST_OF_ONE, max_entries=_MOST_FILES_OF_ONE)
    return [(directory / name, status) for directory, files in scan.walk(path, _named_status) for name, status in files]


def _named_status(entry: os.DirEntry[str]) -> tuple[str, os.stat_result] | None:
    status = entry.stat(follow_symlinks=False)
    return (entry.name, status) if stat.S_ISREG(status.st_mode) else None
