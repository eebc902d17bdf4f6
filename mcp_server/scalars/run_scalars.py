"""The scalars of runs: where a run writes them, what they are now, and when a condition on them is met."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome

if TYPE_CHECKING:
    from mcp_server.scalars.formats.detect import SourceReader
    from mcp_server.scalars.locate import LookupCache, MetricLocation
    from mcp_server.scalars.series import Series
    from mcp_server.scalars.tensorboard.reader import EventReader

LATEST = "latest"

_LATEST_OF = 50  # runs, newest first, among which one with scalars is looked for
_MOST_PLACES = 16  # of one run
_AGAIN_S = 10.0  # until what a live run writes is looked for again
_LOOKING_S = 10.0  # for the newest run that has scalars
_MOST_REMEMBERED = 500


class NoScalars(RunwardError):
    """There is nothing to read where it was looked for."""


@dataclass(frozen=True, eq=False)
class ScalarReading:
    """What was read of one run: its series by tag, and what a reader of the numbers should know."""

    name: str
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()


class Scalars:
    """Finds and reads scalars, and remembers what it has read: may be shared by threads."""

    def __init__(self, home: StateHome) -> None:
        self._cache = home.path / "scalars"
        self._reader: EventReader | None = None
        self._others: SourceReader | None = None
        self._lookups: LookupCache | None = None
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, bool], tuple[float, list[MetricLocation]]] = {}

    def locations_of(self, run: Run) -> list[MetricLocation]:
        """Return where a run writes its scalars, newest first; empty while nothing is known."""
        from mcp_server.scalars.locate import LookupCache, locate_run_scalars  # noqa: PLC0415 - brings numpy, which takes a while

        key = run.run_id, run.attempt, run.ended
        begun_s = time.monotonic()
        with self._lock:
            until_s, known = self._found.get(key, (begun_s, []))
            if begun_s < until_s:
                return known
            self._lookups = self._lookups or LookupCache()
        locations = locate_run_scalars(run, self._lookups)[:_MOST_PLACES] or known
        if locations:
            with self._lock:
                while len(self._found) >= _MOST_REMEMBERED:
                    del self._found[next(iter(self._found))]
                # A live run may begin another directory, e.g. for its evaluation.
                self._found[key] = math.inf if run.ended else begun_s + _AGAIN_S, locations
        return locations

    def read(self, locations: Sequence[MetricLocation], name: str) -> ScalarReading:
        """Return everything at ``locations`` as one: of several, tags begin with the location's name.

        Raises:
            NoScalars: nothing there can be read; says why.
        """
        from mcp_server.scalars.tensorboard.reader import ScalarsUnreadable  # noqa: PLC0415 - as above

        reader, others = self._readers()
        notes: dict[str, None] = {}
        failed: list[str] = []
        series: dict[str, Series] = {}
        names = label_locations(locations)
        for location, label in zip(locations, names, strict=True):
            try:
                part = reader.read(location) if isinstance(location, Path) else others.read(location)
            except (ScalarsUnreadable, OSError) as error:
                failed.append(str(error))
                continue
            notes |= dict.fromkeys(part.notes)
            for tag, one in part.series.items():
                series.setdefault(f"{label}/{tag}" if label else tag, one)
        if not locations or len(failed) == len(locations):
            why = "; ".join(one.rstrip(".") for one in failed[:3])
            raise NoScalars(f"No scalars of {name} can be read: {why}. Pass another logdir.")
        return ScalarReading(name, series, (*notes, *failed))

    def _readers(self) -> tuple[EventReader, SourceReader]:
        from mcp_server.scalars.formats.detect import SourceReader  # noqa: PLC0415
        from mcp_server.scalars.tensorboard.reader import EventReader  # noqa: PLC0415 - numpy takes a while

        with self._lock:
            self._reader = self._reader or EventReader(self._cache)
            self._others = self._others or SourceReader()
            return self._reader, self._others


@dataclass(frozen=True)
class Target:
    """What a name or a path means: the locations to read as one run, or the runs among which to choose.

    ``choices``: of each location its name and the POSIX time of its newest change.
    """

    name: str
    locations: Sequence[MetricLocation]
    run_id: str | None = None
    choices: Sequence[tuple[str, float]] = ()

    @property
    def path(self) -> Path:
        """Where the first of its locations is."""
        return location_path(self.locations[0])


def resolve_target(target: str, scalars: Scalars, store: RunStore) -> Target:
    """Return what ``target`` means: ``latest``, a run_id, or a path, whose last part may be ``latest``.

    Raises:
        BadArgument: a path is not absolute, or not there.
        NoScalars: nothing is found there; says where was looked.
        RunNotFound: there is no such run.
    """
    if target == LATEST:
        begun_s = time.monotonic()
        for run in store.runs()[:_LATEST_OF]:
            if locations := scalars.locations_of(run):
                return Target(run.run_id, locations, run.run_id)
            if time.monotonic() - begun_s > _LOOKING_S:
                break
        raise NoScalars("None of the newest runs has written scalars. Pass logdir=/absolute/path.")
    if "/" not in target and not target.startswith("~"):
        run = store.observe(target)
        if locations := scalars.locations_of(run):
            return Target(run.run_id, locations, run.run_id)
        raise NoScalars(
            f"No scalars of {run.run_id} ({run.state}): no process of it has an event file, and none was written "
            f"since its start beneath {run.spec.cwd}. Pass logdir=…, or launch with tensorboard=…."
        )
    try:
        return _at(Path(target).expanduser())
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a NUL, no such user
        raise BadArgument(
            "logdir", f"{target[:200]!r} cannot be looked into: {getattr(error, 'strerror', None) or error}."
        ) from error


def _at(path: Path) -> Target:
    from mcp_server.scalars.locate import find_scalars  # noqa: PLC0415 - as above

    if not path.is_absolute():
        raise BadArgument("logdir", f"is not absolute: {str(path)!r}.")
    newest = path.name == LATEST and not path.exists()
    root = path.parent if newest else path
    there = next((above for above in (root, *root.parents) if above.exists()), root)
    if there != root and not there.is_file():
        raise BadArgument("logdir", f"there is no {root}, only {there}.")
    dated = find_scalars(there)
    if there != root:  # a run of several in one file
        dated = [one for one in dated if f"{there}/{run_name_in(one.location)}" == str(root)]
    if not dated:
        raise NoScalars(
            f"No scalars under {root}: looked for event files, and for CSV, JSON lines, trainer_state, Trackio, "
            "MLflow and wandb files. Pass another logdir, or a run_id of list_runs."
        )
    locations = [one.location for one in dated]
    if newest or len(locations) == 1:
        return Target(f"{dated[0].path}/{run_name_in(locations[0])}".rstrip("/"), locations[:1])
    if root in locations:
        return Target(str(root), locations[:_MOST_PLACES])
    names = label_locations(locations)
    return Target(str(root), locations, choices=[(name, one.newest_s) for name, one in zip(names, dated, strict=True)])


def label_locations(locations: Sequence[MetricLocation]) -> list[str]:
    """Return how each of several locations is called below what they have in common; empty for one alone."""
    if len(locations) == 1:
        return [""]
    paths = [location_path(location) for location in locations]
    root = os.path.commonpath(paths)
    below = [os.path.relpath(path, root) for path in paths]
    named = ["" if name == "." else name for name in below]
    # One database or table may hold several runs.
    return [
        name if named.count(name) == 1 else f"{name}/{run_name_in(location)}".strip("/")
        for location, name in zip(locations, named, strict=True)
    ]


def location_path(location: MetricLocation) -> Path:
    """Return where a location is."""
    return location if isinstance(location, Path) else location.path


def run_name_in(location: MetricLocation) -> str:
    """Return which run of several in one file a location is; empty where the path is one run."""
    return "" if isinstance(location, Path) else location.name
