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
    from mcp_server.scalars.formats.detect import OtherReader
    from mcp_server.scalars.locate import Lately, Place
    from mcp_server.scalars.series import Series
    from mcp_server.scalars.tensorboard.reader import Reader

LATEST = "latest"

_LATEST_OF = 50  # runs, newest first, among which one with scalars is looked for
_MOST_PLACES = 16  # of one run
_AGAIN_S = 10.0  # until what a live run writes is looked for again
_LOOKING_S = 10.0  # for the newest run that has scalars
_MOST_REMEMBERED = 500


class NoScalars(RunwardError):
    """There is nothing to read where it was looked for."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What was read of one run: its series by tag, and what a reader of the numbers should know."""

    name: str
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()


class Scalars:
    """Finds and reads scalars, and remembers what it has read: may be shared by threads."""

    def __init__(self, home: StateHome) -> None:
        self._cache = home.path / "scalars"
        self._reader: Reader | None = None
        self._others: OtherReader | None = None
        self._lately: Lately | None = None
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, bool], tuple[float, list[Place]]] = {}

    def of_run(self, run: Run) -> list[Place]:
        """Return where a run writes its scalars, newest first; empty while nothing is known."""
        from mcp_server.scalars.locate import Lately, places_of  # noqa: PLC0415 - brings numpy, which takes a while

        key = run.run_id, run.attempt, run.ended
        begun_s = time.monotonic()
        with self._lock:
            until_s, known = self._found.get(key, (begun_s, []))
            if begun_s < until_s:
                return known
            self._lately = self._lately or Lately()
        places = places_of(run, self._lately)[:_MOST_PLACES] or known
        if places:
            with self._lock:
                while len(self._found) >= _MOST_REMEMBERED:
                    del self._found[next(iter(self._found))]
                # A live run may begin another directory, e.g. for its evaluation.
                self._found[key] = math.inf if run.ended else begun_s + _AGAIN_S, places
        return places

    def read(self, places: Sequence[Place], name: str) -> Reading:
        """Return everything at ``places`` as one: of several, tags begin with the place's name.

        Raises:
            NoScalars: nothing there can be read; says why.
        """
        from mcp_server.scalars.tensorboard.reader import ScalarsUnreadable  # noqa: PLC0415 - as above

        reader, others = self._readers()
        notes: dict[str, None] = {}
        failed: list[str] = []
        series: dict[str, Series] = {}
        names = labels(places)
        for place, label in zip(places, names, strict=True):
            try:
                part = reader.read(place) if isinstance(place, Path) else others.read(place)
            except (ScalarsUnreadable, OSError) as error:
                failed.append(str(error))
                continue
            notes |= dict.fromkeys(part.notes)
            for tag, one in part.series.items():
                series.setdefault(f"{label}/{tag}" if label else tag, one)
        if not places or len(failed) == len(places):
            why = "; ".join(one.rstrip(".") for one in failed[:3])
            raise NoScalars(f"No scalars of {name} can be read: {why}. Pass another logdir.")
        return Reading(name, series, (*notes, *failed))

    def _readers(self) -> tuple[Reader, OtherReader]:
        from mcp_server.scalars.formats.detect import OtherReader  # noqa: PLC0415
        from mcp_server.scalars.tensorboard.reader import Reader  # noqa: PLC0415 - numpy takes a while

        with self._lock:
            self._reader = self._reader or Reader(self._cache)
            self._others = self._others or OtherReader()
            return self._reader, self._others


@dataclass(frozen=True)
class Target:
    """What a name or a path means: the places to read as one run, or the runs among which to choose.

    ``choices``: of each place its name and the POSIX time of its newest change.
    """

    name: str
    places: Sequence[Place]
    run_id: str | None = None
    choices: Sequence[tuple[str, float]] = ()

    @property
    def path(self) -> Path:
        """Where the first of its places is."""
        return path_of(self.places[0])


def find(target: str, scalars: Scalars, store: RunStore) -> Target:
    """Return what ``target`` means: ``latest``, a run_id, or a path, whose last part may be ``latest``.

    Raises:
        BadArgument: a path is not absolute, or not there.
        NoScalars: nothing is found there; says where was looked.
        RunNotFound: there is no such run.
    """
    if target == LATEST:
        begun_s = time.monotonic()
        for run in store.runs()[:_LATEST_OF]:
            if places := scalars.of_run(run):
                return Target(run.run_id, places, run.run_id)
            if time.monotonic() - begun_s > _LOOKING_S:
                break
        raise NoScalars("None of the newest runs has written scalars. Pass logdir=/absolute/path.")
    if "/" not in target and not target.startswith("~"):
        run = store.observe(target)
        if places := scalars.of_run(run):
            return Target(run.run_id, places, run.run_id)
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
    from mcp_server.scalars.locate import beneath  # noqa: PLC0415 - as above

    if not path.is_absolute():
        raise BadArgument("logdir", f"is not absolute: {str(path)!r}.")
    newest = path.name == LATEST and not path.exists()
    root = path.parent if newest else path
    there = next((above for above in (root, *root.parents) if above.exists()), root)
    if there != root and not there.is_file():
        raise BadArgument("logdir", f"there is no {root}, only {there}.")
    spots = beneath(there)
    if there != root:  # a run of several in one file
        spots = [spot for spot in spots if f"{there}/{name_of(spot.place)}" == str(root)]
    if not spots:
        raise NoScalars(
            f"No scalars under {root}: looked for event files, and for CSV, JSON lines, trainer_state, Trackio, "
            "MLflow and wandb files. Pass another logdir, or a run_id of list_runs."
        )
    places = [spot.place for spot in spots]
    if newest or len(places) == 1:
        return Target(f"{spots[0].path}/{name_of(places[0])}".rstrip("/"), places[:1])
    if root in places:
        return Target(str(root), places[:_MOST_PLACES])
    names = labels(places)
    return Target(str(root), places, choices=[(name, spot.newest_s) for name, spot in zip(names, spots, strict=True)])


def labels(places: Sequence[Place]) -> list[str]:
    """Return how each of several places is called below what they have in common; empty for one alone."""
    if len(places) == 1:
        return [""]
    paths = [path_of(place) for place in places]
    root = os.path.commonpath(paths)
    below = [os.path.relpath(path, root) for path in paths]
    named = ["" if name == "." else name for name in below]
    # One database or table may hold several runs.
    return [
        name if named.count(name) == 1 else f"{name}/{name_of(place)}".strip("/")
        for place, name in zip(places, named, strict=True)
    ]


def path_of(place: Place) -> Path:
    """Return where a place is."""
    return place if isinstance(place, Path) else place.path


def name_of(place: Place) -> str:
    """Return which run of several in one file a place is; empty where the path is one run."""
    return "" if isinstance(place, Path) else place.name
