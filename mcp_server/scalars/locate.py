"""Where a run writes its scalars, and what lies beneath a directory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.state import Run, posix
from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.tensorboard.find import find_event_directories
from mcp_server.system import processes

MetricLocation = Path | ScalarSource  # a directory with event files, or something else that holds scalars

# tensorboardX and TensorFlow 1 name no process.
_EVENT_FILE = re.compile(r"tfevents\.(?P<begun_s>\d{1,12})\.(?:(?:.*\.)?(?P<pid>\d+)\.\d+(?:\D.*)?$)?")
_MOST_ROOTS = 4
# Where tables are looked for; a data set may lie beside them.
_DEEPEST, _MOST_DIRECTORIES, _MOST_ENTRIES = 4, 1000, 20_000
_FOREIGN = {"node_modules", "site-packages"}
_LONG_S, _KNOWN_TIMES, _MOST_KNOWN = 0.1, 20, 200
_SLACK_S = 2.0  # names hold whole seconds, and a file is made a moment after the run has started


@dataclass(frozen=True)
class DatedLocation:
    """A location, and when it was last written: POSIX time, good for sorting."""

    location: MetricLocation
    newest_s: float

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.location if isinstance(self.location, Path) else self.location.path


def find_scalars(path: Path) -> list[DatedLocation]:
    """Return what holds scalars at or below ``path``, newest first: event files, or without any the other kinds."""
    if path.is_file() and "tfevents" in path.name:
        path = path.parent
    return find_event_locations(path) or find_tables(path)


def find_event_locations(path: Path) -> list[DatedLocation]:
    """Return the directories with event files at or below ``path``, newest first."""
    return [DatedLocation(one.path, one.newest_s) for one in find_event_directories(path)] if path.is_dir() else []


def find_tables(path: Path) -> list[DatedLocation]:
    """Return tables and databases at or below ``path``, newest first."""
    found = []
    for directory in _directories(path) if path.is_dir() else [path]:
        for source in find_sources(directory):
            with contextlib.suppress(OSError):
                if source.kind != "events":
                    found.append(DatedLocation(source, source.path.stat().st_mtime))
    return sorted({one.location: one for one in found}.values(), key=lambda one: -one.newest_s)


class LookupCache:
    """Looks below directories, and remembers for a while what took long to find: several runs share a directory."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable[[Path], list[DatedLocation]], Path], tuple[float, list[DatedLocation]]] = {}

    def get(self, look: Callable[[Path], list[DatedLocation]], root: Path) -> list[DatedLocation]:
        """Return what ``look`` finds at ``root``, or found 20 times as long ago as it took, if that was 0.1 s."""
        begun_s = time.monotonic()
        until_s, known = self._known.get((look, root), (begun_s, []))
        if begun_s < until_s:
            return known
        found = look(root)
        now_s = time.monotonic()
        if now_s - begun_s < _LONG_S:
            return found
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[look, root] = now_s + _KNOWN_TIMES * (now_s - begun_s), found
        return found


def locate_run_scalars(run: Run, lookups: LookupCache) -> list[MetricLocation]:
    """Return where ``run`` writes its scalars, newest first; empty while nothing is known.

    Its own ``tensorboard`` directory; else the event files that a process of the run holds open, or whose names
    carry the number of one; else those that were begun while the run ran, beneath its working directory and
    the directories that its command names; else tables that were written meanwhile.
    """
    cwd = Path(run.spec.cwd or "/")
    living = _pids(run) if run.here else []
    command = run.at_start.get("pid")  # of the newest attempt, also when it has ended
    pids = frozenset([*living, *([command] if isinstance(command, int) else [])])
    if run.spec.tensorboard:
        location = cwd / Path(run.spec.tensorboard).expanduser()
        if found := _of_time(run, [location], lookups, pids=pids, alone=True) or _tables(run, location, lookups):
            return found
    held = _held_open(living)
    # torch opens its file for each write, and closes it: then its name tells.
    named = _of_time(run, _roots(run, cwd), lookups, pids=pids, named=bool(held))
    return list(dict.fromkeys([*held, *named])) or _tables(run, cwd, lookups)


def _pids(run: Run) -> list[int]:
    supervisor = run.at_start.get("supervisor_pid")
    if run.ended or not isinstance(supervisor, int):
        return []
    return [p.pid for p in processes.descendants(supervisor)]


def _held_open(pids: Sequence[int]) -> list[MetricLocation]:
    """Return the directories of the event files that these processes hold open for writing."""
    found: dict[Path, None] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115 - hot path
                    # A link of /proc is writable for its owner as the file was opened.
                    if "tfevents" in target and entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                        found[Path(target).parent] = None
    return list(found)


def _roots(run: Run, cwd: Path) -> list[Path]:
    """Return the working directory, and the existing directories elsewhere that the command names."""
    command = run.spec.command
    words = re.split(r"[\s='\",;]+", command) if isinstance(command, str) else [w.rpartition("=")[2] for w in command]
    named = [Path(word) for word in words if word.startswith("/") and word.strip("/")]
    roots = [cwd, *(p for p in named if not p.is_relative_to(cwd))]
    return [p for p in dict.fromkeys(roots) if p != Path("/") and _is_dir(p)][:_MOST_ROOTS]


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _of_time(
    run: Run,
    roots: Sequence[Path],
    lookups: LookupCache,
    *,
    pids: frozenset[int] = frozenset(),
    named: bool = False,
    alone: bool = False,
) -> list[MetricLocation]:
    """Return the directories with event files that were begun by ``pids`` or, if none was, while the run ran.

    ``named``: only those begun by ``pids``. ``alone``: the only directory there is counts whenever its files were
    begun.
    """
    begun_s, ended_s = _span(run)
    found = [one for root in roots for one in lookups.get(find_event_locations, root)]
    found.sort(key=lambda one: -one.newest_s)
    fresh = [one for one in found if one.newest_s >= begun_s]
    marks = {one.path: _marks(one.path) for one in fresh}
    of_run = {path: [pid for at_s, pid in told if begun_s <= at_s <= ended_s] for path, told in marks.items()}
    by_time = [path for path, writers in of_run.items() if writers]
    roots_of_pids = [path for path, writers in of_run.items() if pids.intersection(writers)]
    # What lies find_scalars was begun by children that are no more, e.g. to evaluate.
    by_pid = [path for path in by_time if any(path.is_relative_to(root) for root in roots_of_pids)]
    if named:
        return [*by_pid]
    return [*(by_pid or by_time or [one.path for one in found if alone and len(found) == 1])]


def _marks(directory: Path) -> list[tuple[int, int | None]]:
    """Return when each event file of a directory was begun (POSIX s), and by which process if their names say so."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
    return [
        (int(m["begun_s"]), int(m["pid"]) if m["pid"] else None) for name in names if (m := _EVENT_FILE.search(name))
    ]


def _span(run: Run) -> tuple[float, float]:
    begun_s = posix(run.started_at or run.spec.created_at) if run.started_at or run.spec.created_at else 0.0
    return begun_s - _SLACK_S, posix(run.ended_at) + _SLACK_S if run.ended_at else float("inf")


def _tables(run: Run, cwd: Path, lookups: LookupCache) -> list[MetricLocation]:
    """Return the tables and databases beneath the working directory that were written while the run ran."""
    begun_s, ended_s = _span(run)
    return [one.location for one in lookups.get(find_tables, cwd) if begun_s <= one.newest_s <= ended_s]


def _directories(root: Path) -> Iterator[Path]:
    """Yield ``root`` and what lies below, level by level; no links, nothing hidden, and not without end."""
    level, left = [root], _MOST_DIRECTORIES
    for _ in range(_DEEPEST + 1):
        below: list[Path] = []
        for directory in level[:left]:
            yield directory
            with contextlib.suppress(OSError), os.scandir(directory) as entries:
                for entry, _number in zip(entries, range(_MOST_ENTRIES), strict=False):
                    if entry.name[0] not in "._" and entry.name not in _FOREIGN and entry.is_dir(follow_symlinks=False):
                        below.append(directory / entry.name)
        left -= len(level)
        if left <= 0:
            return
        level = sorted(below)
