"""The scalars of runs: where a run writes them, and their series as they are now."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcp_server.backends.ssh.far_files import fetch_scalar_files
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.claims import FileFacts
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.scalars.formats.detect import explain_no_curves
from mcp_server.scalars.locate import (
    EventFiles,
    LookupCache,
    MetricLocation,
    find_run_files,
    find_scalars,
    list_files,
    locate_run_scalars,
    read_imported,
    run_span,
)
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.reading_process import ReadingProcess
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, Series
from mcp_server.scalars.tensorboard.find import has_event_files, list_event_files
from mcp_server.store.attribution.attribution import Attribution, describe_uncertain
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome

LATEST = "latest"

_LATEST_OF = 50  # the newest runs, among which `latest` is the first with scalars
_LATEST_WITHIN_S = 10.0  # for that search
_MOST_LOCATIONS = 16  # of one run
_LOCATE_AGAIN_S = 10.0  # for a live run
_MOST_REMEMBERED = 500
_ROUNDING = 1e-3  # of the numbers in a table, beside those of event files


class NoScalars(RunwardError):
    """No scalars were found or could be read."""


@dataclass(frozen=True, eq=False)
class ScalarReading:
    """The series of one run by tag, with ``notes`` for readers. ``source``: where they are from, if not its own."""

    name: str
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, eq=False)
class ScalarPart:
    """The series at one of a run's locations by tag. ``names``: of each tag, behind the label of one of several."""

    location: MetricLocation
    series: Mapping[str, Series]
    notes: tuple[str, ...]
    names: Mapping[str, str]


@dataclass(frozen=True)
class RunLocations:
    """Where a run writes its scalars, newest first. ``uncertain``: the paths that may be another run's.

    ``places``: where they were looked for, in words.
    """

    locations: tuple[MetricLocation, ...] = ()
    uncertain: tuple[str, ...] = ()
    remark: str = ""
    places: str = "looked at what its host sent"

    @property
    def note(self) -> str | None:
        """The parts left out, as a sentence."""
        return " ".join(filter(None, (describe_uncertain(self.uncertain), self.remark))) or None


def list_located_events(locations: Iterable[MetricLocation]) -> list[FileFacts]:
    """Return the event files among ``locations`` that exist."""
    facts = []
    for path in (one.path / name for one in locations if isinstance(one, EventFiles) for name in one.attempts):
        with contextlib.suppress(OSError):
            facts.append(FileFacts.of(path, path.stat()))
    return facts


def _locate_far(run: Run) -> RunLocations:
    """Return the copies of what a far run wrote, as its supervisor saw it, brought up to date."""
    directory = RunDir(Path(run.spec.mirror) / "runs" / run.run_id)
    roots = [path for path in (run.spec.tensorboard, run.spec.cwd) if path]
    root, remark = fetch_scalar_files(directory, run.attempt, roots, run_span(run)[0])
    # The copies stand below their absolute paths, deeper than a search goes.
    directories = sorted({path.parent for path in root.rglob("*") if path.is_file()})
    tops = [path for path in directories if not any(one in path.parents for one in directories)]
    dated = sorted((one for top in tops for one in find_scalars(top)), key=lambda one: -one.newest_s)
    events = [one for one in dated if isinstance(one.location, Path)]  # else tables, as of a run here
    return RunLocations(tuple(one.location for one in (events or dated)[:_MOST_LOCATIONS]), remark=remark)


class Scalars:
    """Finds and reads scalars. May be shared by threads. ``apart``: large files are read in another process."""

    def __init__(self, home: StateHome, store: RunStore | None = None, *, apart: bool = False) -> None:
        self.attribution = Attribution(store or RunStore(home))
        self._reader = ScalarReader(home.path / "scalars", ReadingProcess() if apart else None)
        self._lookups = LookupCache()
        self._lock = threading.Lock()
        self._locations: dict[str, tuple[object, float, RunLocations]] = {}

    def locate(self, run: Run) -> RunLocations:
        """Return where a run writes its scalars, and what was left out because it may be another run's."""
        if run.spec.mirror:
            return _locate_far(run)
        if run.spec.imported is not None:
            return RunLocations(read_imported(run.spec.imported), places="looked where it was imported from")
        key = run.attempt, run.ended, self.attribution.stamp(run)
        begun_s = time.monotonic()
        with self._lock:
            earlier, until_s, run_locations = self._locations.get(run.run_id, (None, 0.0, RunLocations()))
        if earlier == (key, _stamp_directories(run_locations.locations)) and begun_s < until_s:
            return run_locations
        own = self.attribution.of(run)
        locations = locate_run_scalars(run, self._lookups, own)[:_MOST_LOCATIONS]
        remark = "" if locations else explain_no_curves(Path(path) for path in own.claims.written)
        run_locations = RunLocations(tuple(locations), own.uncertain, remark, own.describe_places())
        stamp = key, _stamp_directories(run_locations.locations)  # not under the lock: a directory may not answer
        with self._lock:
            while len(self._locations) >= _MOST_REMEMBERED:
                del self._locations[next(iter(self._locations))]
            # A live run may begin another directory, such as for its evaluation; another run may claim a file.
            reuse_s = math.inf if own.is_settled else _LOCATE_AGAIN_S if locations else 0.0
            self._locations[run.run_id] = stamp, begun_s + reuse_s, run_locations
        return run_locations

    def read(self, locations: Sequence[MetricLocation], name: str) -> ScalarReading:
        """Return everything at ``locations``, each tag behind the label of one of several. Raises NoScalars."""
        parts, failures = self.read_parts(locations)
        if not parts:
            why = "; ".join(failure.rstrip(".") for failure in failures[:3])
            raise NoScalars(f"No scalars of {name} can be read: {why}.", remedy="Pass another logdir.")
        notes = dict.fromkeys(note for part in parts for note in part.notes)
        series: dict[str, Series] = {}
        for part in parts:
            for tag, one in part.series.items():
                series.setdefault(part.names[tag], one)
        return ScalarReading(name, series, (*notes, *failures))

    def read_parts(self, locations: Sequence[MetricLocation]) -> tuple[list[ScalarPart], list[str]]:
        """Return what is at each location that can be read, and why others cannot.

        Where several say the same, such as a table and the event files beside it, only the longest is returned.
        """
        read: dict[MetricLocation, RunScalars] = {}
        failures: list[str] = []
        for location in locations:
            try:
                read[location] = self._reader.read(location)
            except (ScalarsUnreadable, OSError) as error:
                failures.append(str(error))
        kept = _drop_repeated(read)
        labels = label_locations(kept)
        parts = [
            ScalarPart(one, read[one].series, read[one].notes, _name_tags(one, label, read[one].series))
            for one, label in zip(kept, labels, strict=True)
        ]
        return parts, failures

    def find_programs(self, directory: Path, runs: Iterable[Run]) -> dict[str, EventFiles]:
        """Return the event files in ``directory`` by program: a run id, or its first file. Raises ScalarsUnreadable."""
        found = find_run_files(directory, (run for run in runs if not run.spec.mirror), self.attribution.of)
        known = {name for files in found.values() for name in files.attempts}
        rest = dict.fromkeys((path.name for path in list_event_files(directory) if path.name not in known), 0)
        if rest:
            programs = self._reader.read(EventFiles(directory, rest) if found else directory).programs or (tuple(rest),)
            found |= {str(directory / names[0]): EventFiles(directory, dict.fromkeys(names, 0)) for names in programs}
        return found


@dataclass(frozen=True)
class ScalarTarget:
    """The places of a name or a path: the locations of one run, or several runs to choose from.

    ``choices``: for each location its path below ``name`` and the POSIX time of its newest change. ``left_out``:
    further directories below a directory that has scalars itself. ``note``: what may be another run's.
    """

    name: str
    locations: Sequence[MetricLocation]
    run_id: str | None = None
    choices: Sequence[tuple[str, float]] = ()
    left_out: int = 0
    note: str | None = None

    @property
    def path(self) -> Path:
        """The path of the first location."""
        return location_path(self.locations[0])


def resolve_target(target: str, scalars: Scalars, store: RunStore) -> ScalarTarget:
    """Return the target of ``latest``, a run id, a unique name, or a path, whose last part may be ``latest``.

    Raises BadArgument for a bad path, NoScalars, which says where they were searched for, or RunNotFound.
    """
    if target == LATEST:
        begun_s = time.monotonic()
        for run in store.list_runs(most=_LATEST_OF):
            if (run_locations := scalars.locate(run)).locations:
                return ScalarTarget(run.run_id, run_locations.locations, run.run_id, note=run_locations.note)
            if time.monotonic() - begun_s > _LATEST_WITHIN_S:
                break
        raise NoScalars(
            f"No scalars seen of the newest runs: looked at {_LATEST_OF} at most.", remedy="Pass logdir=/absolute/path."
        )
    if "/" not in target and not target.startswith("~"):
        run = store.find(target)
        run_locations = scalars.locate(run)
        if run_locations.locations:
            return ScalarTarget(run.run_id, run_locations.locations, run.run_id, note=run_locations.note)
        raise NoScalars(
            f"No scalars seen that are those of {run.run_id} ({run.state}):",
            run_locations.note or f"{run_locations.places}.",
            "Pass logdir=…, or launch with tensorboard=….",
        )
    try:
        return _resolve_path(Path(target).expanduser())
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, a NUL, an unknown user
        raise BadArgument(
            "logdir", f"{target[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error


def _resolve_path(path: Path) -> ScalarTarget:
    if not path.is_absolute():
        raise BadArgument("logdir", f"is not absolute: {str(path)!r}.")
    if "tfevents" in path.name and path.is_file():
        return ScalarTarget(str(path), [path.parent])
    newest = path.name == LATEST and not path.exists()
    root = path.parent if newest else path
    existing = next((above for above in (root, *root.parents) if above.exists()), root)
    if existing != root and not existing.is_file():
        raise BadArgument("logdir", f"there is no {root}, only {existing}.")
    dated = find_scalars(existing)
    if existing != root:  # one of several runs in a file
        dated = [one for one in dated if existing / run_name_in(one.location) == root]
    if not dated:
        raise NoScalars(
            f"No scalars seen under {root}:",
            explain_no_curves(list_files(existing) if existing.is_dir() else [existing])
            or "looked for event files, CSV, JSON lines, trainer_state, Trackio, MLflow and wandb files.",
            "Pass another logdir, or a run_id of list_runs.",
        )
    locations = [one.location for one in dated]
    if newest or len(locations) == 1:
        return ScalarTarget(f"{dated[0].path}/{run_name_in(locations[0])}".rstrip("/"), locations[:1])
    if root in locations or has_event_files(root):  # its own come first, whatever is stored below it
        locations = [root, *(location for location in locations if location != root)]
        return ScalarTarget(str(root), locations[:_MOST_LOCATIONS], left_out=max(0, len(locations) - _MOST_LOCATIONS))
    choices = [(_path_below(root, one.location), one.newest_s) for one in dated]
    return ScalarTarget(str(root), locations, choices=choices)


def _path_below(root: Path, location: MetricLocation) -> str:
    path = os.path.relpath(location_path(location), root)
    return "/".join(part for part in (path, run_name_in(location)) if part not in ("", "."))


def _stamp_directories(locations: Sequence[MetricLocation]) -> tuple[int, ...]:
    """Return a value that changes when another file appears where a run has event files."""
    stamps = []
    for location in locations:
        with contextlib.suppress(OSError):
            stamps.append(location_path(location).stat().st_mtime_ns if location_path(location).is_dir() else 0)
    return tuple(stamps)


def _drop_repeated(read: Mapping[MetricLocation, RunScalars]) -> list[MetricLocation]:
    """Return the locations without those that are empty, or whose every series is the beginning of another's there."""
    sizes = {one: sum(len(series.steps) for series in scalars.series.values()) for one, scalars in read.items()}
    kept: list[MetricLocation] = []
    for one in sorted(filter(sizes.get, read), key=lambda one: -sizes[one]):
        if not any(_are_two_logs(one, other) and _repeats(read[one].series, read[other].series) for other in kept):
            kept.append(one)
    return [one for one in read if one in kept] or list(read)[:1]


def _are_two_logs(one: MetricLocation, other: MetricLocation) -> bool:
    """Return whether a program may have written two places as two formats, or two files of one directory, at once."""
    kinds = [getattr(each, "kind", "events") for each in (one, other)]
    return kinds[0] != kinds[1] or (kinds[0] != "events" and location_path(one).parent == location_path(other).parent)


def _repeats(series: Mapping[str, Series], others: Mapping[str, Series]) -> bool:
    """Return whether ``others`` begin with the same values, as far as they are written, under all of these tags."""
    return series.keys() <= others.keys() and all(
        np.allclose(one.values, others[tag].values[: len(one.values)], rtol=_ROUNDING, equal_nan=True)
        for tag, one in series.items()
        if len(one.values) <= len(others[tag].values)
    )


def _name_tags(location: MetricLocation, label: str, tags: Iterable[str]) -> dict[str, str]:
    """Return each tag behind the label of its location. The table of one metric, `train/loss.tsv`, is `train/loss`."""
    path = location_path(location)
    names = {tag: f"{label}/{tag}" if label else tag for tag in tags}
    if label and list(names) == [path.stem]:
        return {path.stem: label.removesuffix(path.suffix)}
    return names


def label_locations(locations: Sequence[MetricLocation]) -> list[str]:
    """Return the path of each location below their common directory. A single location has an empty label."""
    if len(locations) < 2:  # noqa: PLR2004 - several
        return [""] * len(locations)
    paths = [location_path(location) for location in locations]
    root = os.path.commonpath(paths)
    below = [os.path.relpath(path, root) for path in paths]
    labels = ["" if name == "." else name for name in below]
    # One database or table may hold several runs.
    return [
        label if labels.count(label) == 1 else f"{label}/{run_name_in(location)}".strip("/")
        for location, label in zip(locations, labels, strict=True)
    ]


def location_path(location: MetricLocation) -> Path:
    """Return the path of a location."""
    return location if isinstance(location, Path) else location.path


def run_name_in(location: MetricLocation) -> str:
    """Return the name of the run within a file that holds several, or "" where the path is one run."""
    return "" if isinstance(location, Path) else location.name
