"""Finds where a run writes its scalars, and which scalars are stored below a directory."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.record.claims import SLACK_S, FileFacts, Rank, Verdict
from mcp_server.record.run_directory import RunDir
from mcp_server.record.scalar_files import find_scalar_file
from mcp_server.record.state import Run, posix
from mcp_server.scalars.formats.appended_file import file_size
from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.tensorboard.find import find_event_directories, list_event_files
from mcp_server.store.attribution.attribution import OwnFiles, is_root
from mcp_server.system.directory_scan import DirectoryScan

_MOST_ROOTS, _MOST_BESIDE = 8, 64
# Limits of the search for tables; a data set may be stored next to them.
_DEEPEST, _MOST_DIRECTORIES, _MOST_ENTRIES = 8, 1000, 20_000
_FOREIGN = {"node_modules", "site-packages"}
_FEWEST_BYTES = 512  # of an event file with a few points
_SLOW_S, _REUSED_TIMES, _MOST_LOOKUPS = 0.1, 20, 200


@dataclass(frozen=True)
class EventFiles:
    """The event files of one run in a directory of several. ``attempts``: by file name, the attempt, 0 if unknown."""

    path: Path
    attempts: Mapping[str, int] = field(compare=False)
    name: str = ""  # it holds one run


# A directory with event files, those of one run in it, or a file or database in another format.
MetricLocation = Path | EventFiles | ScalarSource


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
    return [DatedLocation(*directory) for directory in find_event_directories(path)] if path.is_dir() else []


def find_tables(path: Path) -> list[DatedLocation]:
    """Return tables and databases at or below ``path``, newest first."""
    tables = []
    for directory in (directory for directory, _ in _walk(path, lambda _: None)) if path.is_dir() else [path]:
        for source in find_sources(directory):
            with contextlib.suppress(OSError):
                tables.append(DatedLocation(source, source.path.stat().st_mtime))
    return sorted({table.location: table for table in tables}.values(), key=lambda table: -table.newest_s)


def list_files(path: Path) -> Iterator[Path]:
    """Yield the files at or below a directory, as far as tables are looked for there."""
    for directory, names in _walk(path, lambda entry: entry.name if entry.is_file() else None):
        yield from (directory / name for name in names)


def _walk(path: Path, select: Callable[[os.DirEntry[str]], str | None]) -> Iterator[tuple[Path, list[str]]]:
    def is_no_record(path: Path) -> bool:  # of a run, whose files a project may have below its own
        return not RunDir(path).lock.exists()

    scan = DirectoryScan(_DEEPEST, max_directories=_MOST_DIRECTORIES, max_entries_each=_MOST_ENTRIES)
    return scan.walk(path, select, skip=lambda name: name[0] in "._" or name in _FOREIGN, enter=is_no_record)


class LookupCache:
    """Reuses the results of slow directory searches for a while, since several runs share a directory."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[Callable[[Path], list[DatedLocation]], Path], tuple[float, list[DatedLocation]]] = {}

    def get(self, lookup: Callable[[Path], list[DatedLocation]], root: Path) -> list[DatedLocation]:
        """Return ``lookup(root)``, cached: a lookup that took t ≥ 0.1 s is reused for 20 t."""
        begun_s = time.monotonic()
        until_s, cached = self._lookups.get((lookup, root), (begun_s, []))
        if begun_s < until_s:
            return cached
        locations = lookup(root)
        now_s = time.monotonic()
        if now_s - begun_s < _SLOW_S:
            return locations
        if len(self._lookups) >= _MOST_LOOKUPS:
            self._lookups.clear()
        self._lookups[lookup, root] = now_s + _REUSED_TIMES * (now_s - begun_s), locations
        return locations


def locate_run_scalars(run: Run, lookups: LookupCache, own: OwnFiles) -> list[MetricLocation]:
    """Return where ``run`` writes its scalars, newest first: event files, or else tables and databases of its ``own``.

    They are looked for in its ``tensorboard`` directory, below its working directory and those that it names, and
    wherever it had one open. The newest attempt that wrote event files counts, with what earlier ones wrote beside.
    """
    least = _find_least(own)
    for roots in _roots(run, own):
        events = _locate_event_files(roots, lookups, own, least)
        # Writers keep their first points for minutes, and one file of hyperparameters says nothing.
        has_points = any(file_size(one.path / name) >= _FEWEST_BYTES for one in events for name in one.attempts)
        if locations := [*events, *([] if has_points else _locate_tables(roots, lookups, own, least))]:
            return locations
    return []


def _find_least(own: OwnFiles) -> Rank:
    return Rank.STATED if own.claims.tensorboard else Rank.BELOW if own.claims.has_step else Rank.BESIDE


def find_run_files(directory: Path, runs: Iterable[Run], find_own: Callable[[Run], OwnFiles]) -> dict[str, EventFiles]:
    """Return the event files in ``directory`` that are known to be those of runs, by run id; none of one process."""
    facts: list[FileFacts] = []
    for path in list_event_files(directory):
        with contextlib.suppress(OSError):
            facts.append(FileFacts.of(path, path.stat()))
    found: dict[str, EventFiles] = {}
    for run in runs if len({one.writers or one.path for one in facts}) > 1 else ():
        own = find_own(run)
        least = _find_least(own)
        files = {
            Path(one.path).name: own.claims.attempt_of(one) for one in facts if own.judge(one, least)[0] is Verdict.OWN
        }
        if files:
            found[run.run_id] = EventFiles(directory, files)
    return found


def _roots(run: Run, own: OwnFiles) -> list[list[Path]]:
    """Return the directories that are searched; the next ones only where the first have no scalars."""
    claims = own.claims
    if claims.tensorboard:
        return [[Path(path) for path in claims.tensorboard]]
    named = [Path(claims.cwd) / Path(run.spec.tensorboard).expanduser()] if run.spec.tensorboard else []
    cwd = Path(claims.cwd)
    roots = [*([cwd] if is_root(claims.cwd) or cwd == Path.home() else []), *own.roots()[:_MOST_ROOTS]]
    # Where its processes had a file with scalars open, or changed one, nothing need be searched.
    known = [path.rpartition("/") for path in (*claims.written, *(claims.listed or ()))]
    held = [one for one in known if "tfevents" in one[2] or find_scalar_file(one[2]) is not None]
    # Below /tmp and its like are the files of all: there the file itself alone.
    places = [place if is_root(place) else f"{place}/{name}" for place, _, name in reversed(held)]
    beside = [Path(place) for place in [*dict.fromkeys(places)][:_MOST_BESIDE]]
    return [[path for path in dict.fromkeys(paths) if os.path.exists(path)] for paths in (named, [*roots, *beside])]  # noqa: PTH110 - does not raise


def _locate_event_files(roots: Sequence[Path], lookups: LookupCache, own: OwnFiles, least: Rank) -> list[EventFiles]:
    begun_s = own.claims.begun_s - SLACK_S if least < Rank.STATED else 0.0
    directories = {one.path: one for root in roots for one in lookups.get(find_event_locations, root)}
    facts: list[FileFacts] = []
    for directory in sorted(directories.values(), key=lambda one: -one.newest_s):
        with contextlib.suppress(OSError):
            if directory.newest_s >= begun_s:
                facts += [FileFacts.of(path, path.stat()) for path in list_event_files(directory.path)]
    own.learn(facts)
    files: dict[Path, dict[str, int]] = {}  # by directory and name, the attempt
    for one in facts:
        if own.judge(one, least)[0] is Verdict.OWN:
            path = Path(one.path)
            files.setdefault(path.parent, {})[path.name] = own.claims.attempt_of(one)
    last = max((attempt for names in files.values() for attempt in names.values()), default=1)
    return [EventFiles(path, names) for path, names in files.items() if last in names.values()]


def _locate_tables(roots: Sequence[Path], lookups: LookupCache, own: OwnFiles, least: Rank) -> list[MetricLocation]:
    tables = []
    for table in dict.fromkeys(table for root in roots for table in lookups.get(find_tables, root)):
        with contextlib.suppress(OSError):
            if own.judge(FileFacts.of(table.path, table.path.stat()), least)[0] is Verdict.OWN:
                tables.append(table.location)
    return tables


def read_imported(imported: Mapping[str, Any]) -> tuple[MetricLocation, ...]:
    """Return the locations that the specification of an imported run names."""
    return tuple(
        EventFiles(Path(one["path"]), dict.fromkeys(one["files"], 1))
        if one["kind"] == "events"
        else ScalarSource(one["kind"], Path(one["path"]), one["name"])
        for one in imported["locations"]
    )


def run_span(run: Run) -> tuple[float, float]:
    """Return the interval (POSIX time) in which a run wrote its files. Its end is infinite while the run lives."""
    begun_s = posix(run.started_at or run.spec.created_at) if run.started_at or run.spec.created_at else 0.0
    return begun_s - SLACK_S, posix(run.ended_at) + SLACK_S if run.ended_at else float("inf")
