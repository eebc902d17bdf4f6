"""Finds where a run writes its scalars, and which scalars are stored below a directory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.run_directory import boot_id
from mcp_server.record.state import Run, posix
from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.tensorboard.find import find_event_directories
from mcp_server.system import processes
from mcp_server.system.directory_scan import DirectoryScan

MetricLocation = Path | ScalarSource  # a directory with event files, or a file or database in another format

# The names that tensorboardX and TensorFlow 1 give hold no process id.
_EVENT_FILE = re.compile(r"tfevents\.(?P<begun_s>\d{1,12})\.(?:(?:.*\.)?(?P<pid>\d+)\.\d+(?:\D.*)?$)?")
_MOST_ROOTS = 4
# Limits of the search for tables; a data set may be stored next to them.
_DEEPEST, _MOST_DIRECTORIES, _MOST_ENTRIES = 4, 1000, 20_000
_FOREIGN = {"node_modules", "site-packages"}
_SLOW_S, _REUSED_TIMES, _MOST_LOOKUPS = 0.1, 20, 200
# File names hold whole seconds, a file is created a moment after the run has started, a file server's clock may differ.
_SLACK_S = 2.0


@dataclass(frozen=True)
class DatedLocation:
    """A location and the POSIX time of its newest change, which is good enough for sorting."""

    location: MetricLocation
    newest_s: float

    @property
    def path(self) -> Path:
        """The directory, file or database."""
        return self.location if isinstance(self.location, Path) else self.location.path


def find_scalars(path: Path) -> list[DatedLocation]:
    """Return the scalar files at or below ``path``, newest first: event files, else the other formats."""
    if path.is_file() and "tfevents" in path.name:
        path = path.parent
    return find_event_locations(path) or find_tables(path)


def find_event_locations(path: Path) -> list[DatedLocation]:
    """Return the directories with event files at or below ``path``, newest first."""
    directories = find_event_directories(path) if path.is_dir() else []
    return [DatedLocation(directory.path, directory.newest_s) for directory in directories]


def find_tables(path: Path) -> list[DatedLocation]:
    """Return tables and databases at or below ``path``, newest first."""
    scan = DirectoryScan(_DEEPEST, max_directories=_MOST_DIRECTORIES, max_entries_each=_MOST_ENTRIES)
    tree: Iterator[tuple[Path, list[None]]] = scan.walk(
        path, _select_nothing, skip=lambda name: name[0] in "._" or name in _FOREIGN
    )
    tables = []
    for directory in (directory for directory, _ in tree) if path.is_dir() else [path]:
        for source in find_sources(directory):
            with contextlib.suppress(OSError):
                if source.kind != "events":
                    tables.append(DatedLocation(source, source.path.stat().st_mtime))
    return sorted({table.location: table for table in tables}.values(), key=lambda table: -table.newest_s)


def _select_nothing(_: os.DirEntry[str]) -> None:
    """Ignore all entries: find_sources lists each directory itself."""


class LookupCache:
    """Reuses the results of slow directory searches for a while, since several runs share a directory."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[Callable[[Path], list[DatedLocation]], Path], tuple[float, list[DatedLocation]]] = {}

    def get(self, look: Callable[[Path], list[DatedLocation]], root: Path) -> list[DatedLocation]:
        """Return ``look(root)``, cached: a lookup that took t ≥ 0.1 s is reused for 20 t."""
        begun_s = time.monotonic()
        until_s, cached = self._lookups.get((look, root), (begun_s, []))
        if begun_s < until_s:
            return cached
        locations = look(root)
        now_s = time.monotonic()
        if now_s - begun_s < _SLOW_S:
            return locations
        if len(self._lookups) >= _MOST_LOOKUPS:
            self._lookups.clear()
        self._lookups[look, root] = now_s + _REUSED_TIMES * (now_s - begun_s), locations
        return locations


def locate_run_scalars(run: Run, lookups: LookupCache) -> list[MetricLocation]:
    """Return where ``run`` writes its scalars, newest first, or nothing while none is known.

    First match wins: its own ``tensorboard`` directory; the event files that a process of the run holds open, or whose
    names contain the id of one; event files begun while the run ran, below its working directory and the
    directories that its command names; tables written while the run ran.
    """
    cwd = Path(run.spec.cwd or "/")
    live_pids = _live_pids(run) if run.spec.boot_id in ("", boot_id()) else []
    command_pid = run.at_start.get("pid")  # of the newest attempt, also when it has ended
    pids = frozenset([*live_pids, *([command_pid] if isinstance(command_pid, int) else [])])
    if run.spec.tensorboard:
        directory = cwd / Path(run.spec.tensorboard).expanduser()
        own = _locate_by_time(run, [directory], lookups, pids=pids, accept_only_one=True)
        if own or (own := _locate_tables(run, directory, lookups)):
            return own
    open_files = _list_open_event_directories(live_pids)
    # torch closes its file between two writes; then the process id in its name identifies it.
    named = _locate_by_time(run, _roots(run, cwd), lookups, pids=pids, require_pid=bool(open_files))
    return list(dict.fromkeys([*open_files, *named])) or _locate_tables(run, cwd, lookups)


def _live_pids(run: Run) -> list[int]:
    supervisor = run.at_start.get("supervisor_pid")
    if run.ended or not isinstance(supervisor, int):
        return []
    return [process.pid for process in processes.descendants(supervisor)]


def _list_open_event_directories(pids: Sequence[int]) -> list[MetricLocation]:
    """Return the directories of the event files that these processes hold open for writing."""
    directories: dict[Path, None] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115 - hot path
                    # A link in /proc has the owner's write bit if the file was opened for writing.
                    if "tfevents" in target and entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                        directories[Path(target).parent] = None
    return list(directories)


def _roots(run: Run, cwd: Path) -> list[Path]:
    """Return the working directory, and the existing directories elsewhere that the command names."""
    command = run.spec.command
    words = re.split(r"[\s='\",;]+", command) if isinstance(command, str) else [w.rpartition("=")[2] for w in command]
    named = [Path(word) for word in words if word.startswith("/") and word.strip("/")]
    roots = [cwd, *(path for path in named if not path.is_relative_to(cwd))]
    return [path for path in dict.fromkeys(roots) if path != Path("/") and _is_dir(path)][:_MOST_ROOTS]


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _locate_by_time(
    run: Run,
    roots: Sequence[Path],
    lookups: LookupCache,
    *,
    pids: frozenset[int] = frozenset(),
    require_pid: bool = False,
    accept_only_one: bool = False,
) -> list[MetricLocation]:
    """Return the directories with event files begun by ``pids``, or without any, those begun while the run ran.

    ``require_pid``: only those begun by ``pids``. ``accept_only_one``: a directory that is the only one counts,
    whenever its files were begun.
    """
    begun_s, ended_s = run_span(run)
    directories = [directory for root in roots for directory in lookups.get(find_event_locations, root)]
    directories.sort(key=lambda directory: -directory.newest_s)
    fresh = [directory.path for directory in directories if directory.newest_s >= begun_s]
    writers = {path: [pid for at_s, pid in _read_file_names(path) if begun_s <= at_s <= ended_s] for path in fresh}
    by_time = [path for path in fresh if writers[path]]
    roots_of_pids = [path for path in fresh if pids.intersection(writers[path])]
    # Directories below were begun by child processes that have exited, such as evaluations.
    by_pid = [path for path in by_time if any(path.is_relative_to(root) for root in roots_of_pids)]
    if require_pid:
        return [*by_pid]
    only_one = [directory.path for directory in directories] if accept_only_one and len(directories) == 1 else []
    return [*(by_pid or by_time or only_one)]


def _read_file_names(directory: Path) -> list[tuple[int, int | None]]:
    """Return for each event file of a directory its start (POSIX s) and, if its name holds one, the process id."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
    return [
        (int(m["begun_s"]), int(m["pid"]) if m["pid"] else None) for name in names if (m := _EVENT_FILE.search(name))
    ]


def run_span(run: Run) -> tuple[float, float]:
    """Return the interval (POSIX time) in which a run wrote its files. Its end is infinite while the run lives."""
    begun_s = posix(run.started_at or run.spec.created_at) if run.started_at or run.spec.created_at else 0.0
    return begun_s - _SLACK_S, posix(run.ended_at) + _SLACK_S if run.ended_at else float("inf")


def _locate_tables(run: Run, root: Path, lookups: LookupCache) -> list[MetricLocation]:
    """Return the tables and databases below ``root`` that were written while the run ran."""
    begun_s, ended_s = run_span(run)
    return [table.location for table in lookups.get(find_tables, root) if begun_s <= table.newest_s <= ended_s]
