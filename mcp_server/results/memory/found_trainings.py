"""Finds trainings that runward did not start below a directory: their curves, logs and configurations, run by run."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.diagnosis.log_file import Examination, examine_log
from mcp_server.record.claims import SLACK_S
from mcp_server.record.scalar_files import TRAINER_STATE, parse_event_name
from mcp_server.results.configuration import WRITTEN_CONFIGS
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.locate import EventFiles, MetricLocation, find_event_locations, find_tables
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.run_scalars import location_path
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.system.directory_scan import DirectoryScan

MOST_TRAININGS = 5_000
_DEEPEST, _MOST_DIRECTORIES, _MOST_LOGS, _LEVELS = 8, 20_000, 500, 3
_LOG_ENDINGS = (".log", ".out", ".txt")
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})
# Parts of a training, as loggers name their directories and files.
_PARTS = re.compile(
    r"train(?:ing)?|val(?:id(?:ation)?)?|test|eval(?:uation)?|tb|tensorboard|events|summar(?:y|ies)|metrics|csv"
    r"|(?:tb_|csv_|tensorboard_)logs?|plots|files",
    re.IGNORECASE,
)
_COMMON_LOGS = re.compile(r"train(?:ing)?|output|out|stdout|log|run|main|console|progress|nohup", re.IGNORECASE)
_CHECKPOINT = re.compile(r"checkpoint-\d+")
# Programs write these into the directory of one training; a `config.yaml` may be that of a whole project.
_OF_ONE = (TRAINER_STATE, ".hydra/config.yaml", "hparams.yaml", "params/agent.yaml", "params/env.yaml", "args.json")
_OF_TRACKERS = frozenset({"wandb", "swanlab", "mlflow", "trackio"})
_ALIKE = 0.5  # of the tags of two tables in one directory: these are two trainings


@dataclass(frozen=True)
class Training:
    """One training. ``key``: its directory, file or run of a database. ``series``: what was read at each location."""

    key: str
    home: Path
    name: str
    locations: Sequence[MetricLocation] = ()
    log: Path | None = None
    examined: Examination | None = None
    configs: Sequence[Path] = ()
    series: Sequence[RunScalars] = ()


@dataclass
class _Group:
    key: str
    home: Path
    locations: list[MetricLocation] = field(default_factory=list)
    logs: list[tuple[Path, Examination]] = field(default_factory=list)

    @property
    def is_of_tracker(self) -> bool:
        return any(isinstance(one, ScalarSource) and one.kind in _OF_TRACKERS for one in self.locations)


def find_trainings(root: Path, read: ScalarReader) -> tuple[list[Training], bool]:
    """Return the trainings at or below a directory or file, the outermost first, and whether the search was cut."""
    groups: dict[str, _Group] = {}
    for location in _find_locations(root):
        key, home = _find_home(location, root)
        groups.setdefault(key, _Group(key, home)).locations.append(location)
    for group in [*groups.values()]:
        for number, table in enumerate(_find_further_runs(group, read)):
            groups[f"{group.key}/{number}"] = _Group(str(table.path), group.home, [table])
            group.locations.remove(table)
    _join_parts(groups)
    is_cut = _add_logs(groups, root)
    found = sorted(groups.values(), key=lambda one: (len(one.home.parts), one.key))
    trainings = (
        _describe(group, root, read, sum(one.home == group.home for one in found) > 1)
        for group in found[:MOST_TRAININGS]
    )
    return [one for one in trainings if one.series or one.log], is_cut or len(found) > MOST_TRAININGS


def _find_locations(root: Path) -> Iterator[MetricLocation]:
    for one in find_event_locations(root):
        with contextlib.suppress(OSError):
            yield EventFiles(one.path, {path.name: 0 for path in list_event_files(one.path)})
    for one in find_tables(root):
        yield one.location


def _find_home(location: MetricLocation, root: Path) -> tuple[str, Path]:
    """Return what a location is grouped by, and the directory of its training: its own, or one above."""
    assert not isinstance(location, Path)  # noqa: S101 - see `_find_locations`
    path = location.path
    if isinstance(location, ScalarSource) and location.kind in _OF_TRACKERS:
        home = path if path.is_dir() else path.parent
        return (f"{path}/{location.name}" if location.name else str(home)), home
    home = path if isinstance(location, EventFiles) else path.parent
    if _CHECKPOINT.fullmatch(home.name):
        home = home.parent
    return str(home := _climb(home, root)), home


def _climb(home: Path, root: Path) -> Path:
    for _ in range(_LEVELS):
        above = home.parent
        if home == root or root not in (above, *above.parents):
            break
        if _PARTS.fullmatch(home.name) or _is_of_one(above):
            home = above
        elif above != root and _is_of_one(above.parent):
            home = above.parent
        else:
            break
    return home


def _is_of_one(directory: Path) -> bool:
    return any((directory / name).is_file() for name in _OF_ONE)


def _find_further_runs(group: _Group, read: ScalarReader) -> list[ScalarSource]:
    """Return the tables of a directory that repeat the tags of another one there: each is a training of its own."""
    tables = [one for one in group.locations if isinstance(one, ScalarSource) and one.kind not in _OF_TRACKERS]
    kept: list[set[str]] = []
    further = []
    for table in sorted(tables, key=lambda one: str(one.path)):
        with contextlib.suppress(ScalarsUnreadable, OSError):
            tags = set(read.read(table).series)
            is_beside = table.path.parent == group.home and not _PARTS.fullmatch(table.path.stem)
            if is_beside and any(len(tags & one) > _ALIKE * len(tags | one) for one in kept):
                further.append(table)
            elif tags:
                kept.append(tags)
    return further


def _join_parts(groups: dict[str, _Group]) -> None:
    """Join what a training wrote below its own directory while it wrote there, such as the values of its trial."""
    spans = {key: span for key, group in groups.items() if (span := _find_span(group))}
    for key in sorted(spans, reverse=True):
        above = next((str(path) for path in Path(key).parents if str(path) in spans), None)
        if above is not None and spans[above][0] - SLACK_S <= spans[key][0] <= spans[above][1] + SLACK_S:
            groups[above].locations += groups.pop(key).locations


def _find_span(group: _Group) -> tuple[float, float] | None:
    """Return when a training began its event files, and when it changed them last; None without any."""
    begun, changed = [], []
    for one in group.locations:
        for name in one.attempts if isinstance(one, EventFiles) else ():
            if (facts := parse_event_name(name)) is not None:
                begun.append(float(facts.begun_s))
                with contextlib.suppress(OSError):
                    changed.append((location_path(one) / name).stat().st_mtime)
    return (min(begun), max(changed)) if begun and changed else None


def _add_logs(groups: dict[str, _Group], root: Path) -> bool:
    """Add the logs in which a training step stands to the trainings of their directories; else each is a training."""
    known = {location_path(one) for group in groups.values() for one in group.locations}
    scan = DirectoryScan(_DEEPEST, max_directories=_MOST_DIRECTORIES)
    tree: Iterable[tuple[Path, list[str]]] = (
        [(root.parent, [root.name])]
        if root.is_file()
        else scan.walk(
            root, lambda entry: entry.name if _may_be_log(entry) else None, skip=lambda name: name in _FOREIGN
        )
    )
    homes: Mapping[Path, _Group] = {group.home: group for group in groups.values()}
    logs = [directory / name for directory, names in tree for name in sorted(names)]
    for path in [path for path in logs if path not in known][:_MOST_LOGS]:
        with contextlib.suppress(OSError):
            examined = examine_log(path)
            group = next((homes[above] for above in path.parents if above in homes), None)
            if group is not None and (group.home == path.parent or group.home != root):
                if not (examined.first_step_seen or _COMMON_LOGS.fullmatch(path.stem)):
                    continue
                group.logs.append((path, examined))
            elif examined.first_step_seen:
                groups[str(path)] = _Group(str(path), path.parent, logs=[(path, examined)])
    return scan.cut or len(logs) > _MOST_LOGS


def _may_be_log(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_LOG_ENDINGS) and entry.is_file(follow_symlinks=False) and entry.stat().st_size > 0


def _describe(group: _Group, root: Path, read: ScalarReader, is_shared: bool) -> Training:
    series = []
    for location in group.locations:
        with contextlib.suppress(ScalarsUnreadable, OSError):
            series.append(read.read(location))
    series = [one for one in series if one.series]
    logs = sorted(group.logs, key=_rank_log)
    log, examined = logs[0] if logs else (None, None)
    names = [] if is_shared or group.is_of_tracker else WRITTEN_CONFIGS
    configs = [path for name in names if (path := group.home / name).is_file()]
    training = Training(group.key, group.home, _name(group.home, root), tuple(group.locations), log, examined)
    training = replace(training, configs=tuple(configs), series=tuple(series))
    stem = Path(group.key).stem
    if is_shared and stem != training.home.stem and not _COMMON_LOGS.fullmatch(stem):
        training = replace(training, name=stem)
    return training


def _rank_log(log: tuple[Path, Examination]) -> tuple[bool, bool, str]:
    return not log[1].first_step_seen, not _COMMON_LOGS.fullmatch(log[0].stem), str(log[0])


def _name(home: Path, root: Path) -> str:
    parts = home.relative_to(root).parts if home != root and root in home.parents else ()
    return "-".join(parts) or home.name or "training"
