"""Read access to all runs on disk. Any number of servers may read at the same time."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mcp_server.backends.base import backend_of
from mcp_server.errors import BackendUnknown, NotOfSweeps, RunNameAmbiguous, RunNotFound, RunUnreadable, SweepNotFound
from mcp_server.record.codec import decode
from mcp_server.record.events import EventsRead, RecordEvent, is_time, read_new_events
from mcp_server.record.run_directory import RunDir, load_json, read_json
from mcp_server.record.run_processes import describe_unrecorded, find_unrecorded, read_evidence
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Evidence, Liveness, Run, fold
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.store.catalogue import CLOCK_OF_FILES, Catalogue, Heed, is_settled
from mcp_server.store.run_index import Row, RunIndex, RunQuery, split_tags
from mcp_server.store.state_home import StateHome
from mcp_server.store.sweep_store import SweepStore
from mcp_server.system.files import is_shared_filesystem
from mcp_server.system.lock_files import is_locked
from mcp_server.text.near_names import find_near_ids, find_near_names

_MOST_NEAR = 3
_MOST_READ = 256  # live runs whose events are kept in memory
_MOST_KEPT = 512  # runs whose specs and ends are
_ALL = RunQuery()
_CHECKED = ("run_id", "state", "name", "owner", "tags", "created_at")  # of a row against the record, where it is shown
Kept = TypeVar("Kept")
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class _Look(NamedTuple):
    """A live run of this host, and what its record looked like when it was read: a write shows there, and nothing else.

    A look at 200 live runs takes 4 ms of a core, and reading them 60.
    """

    run: Run
    lock: Path
    paths: tuple[Path, ...]
    marks: tuple[tuple[int, int, int], ...]

    @classmethod
    def at(cls, directory: RunDir, run: Run, begun_ns: int) -> _Look | None:
        """Return the look of a run that was read from ``begun_ns`` on; None where that may be older than a write."""
        places = (directory.path, directory.events, directory.attempt(run.attempt))
        paths = tuple(place for place in places if place.exists())
        marks = tuple(map(_mark, paths))
        is_known = is_locked(directory.lock) and all(is_settled(changed_ns, begun_ns) for *_, changed_ns in marks)
        return cls(run, directory.lock, paths, marks) if is_known else None

    def still_holds(self) -> bool:
        """Return whether the run is what it was."""
        try:
            return is_locked(self.lock) and tuple(map(_mark, self.paths)) == self.marks
        except OSError:
            return False


def _mark(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_ctime_ns


class RunStore:
    """Returns runs as their directories prove them.

    A spec, and a run that has ended, never change: they are read once, and dropped when their directory is removed.
    Which runs are meant is asked of an index; what is said of one comes from its record.
    ``share``: number and count, where processes make the index together, each of its share of the runs.

    Raises:
        RunNotFound: no run, or sweep, has this id or name; names similar ids.
        RunNameAmbiguous: several runs have this name; names their ids.
        RunUnreadable: the state of a run is unknown now.
    """

    def __init__(self, home: StateHome, share: tuple[int, int] = (0, 1)) -> None:
        self.home = home
        self.sweeps = SweepStore(home.sweeps)
        self._directories: dict[str, RunDir] = {}
        self._specs: dict[str, RunSpec] = {}
        self._ended: dict[str, Run] = {}
        self._events: dict[str, EventsRead] = {}
        self._looks: dict[str, _Look] = {}
        self._catalogue = Catalogue(self, share)
        self.is_shared_out = self._catalogue.is_shared_out

    def run_directory(self, run_id: str) -> RunDir:
        """Return the directory of a run.

        Raises:
            RunNotFound: no run has this id; names similar ids.
            NotOfSweeps: it is a sweep's id.
        """
        if (directory := self._find_directory(run_id)) is not None:
            return directory
        if run_id in self.sweeps.list_ids():
            raise NotOfSweeps(run_id)
        raise RunNotFound(run_id, list(find_near_ids(run_id, self._catalogue.list_inodes())) if run_id else [])

    def _find_directory(self, run_id: str) -> RunDir | None:
        if not _RUN_ID.fullmatch(run_id):
            return None
        directory = self._directories.get(run_id) or RunDir(self.home.runs / run_id)
        # A command whose record lost its spec may go on for days, and only a run can be listed and stopped.
        if not (directory.spec.is_file() or directory.events.is_file()):
            mirrored = (RunDir(mirror / "runs" / run_id) for mirror in self.home.list_mirrors())
            if (found := next((each for each in mirrored if each.spec.is_file()), None)) is None:
                return None
            directory = found
        _keep(self._directories, run_id, directory)
        return directory

    def observe(self, run_id: str) -> Run:
        """Return the run as it is now."""
        if (look := self._looks.get(run_id)) is not None and look.still_holds():
            return look.run
        self._looks.pop(run_id, None)
        begun_ns = time.clock_gettime_ns(CLOCK_OF_FILES)
        try:
            directory = self.run_directory(run_id)
            if (ended := self._ended.get(run_id)) is not None:
                return ended
            evidence = self._read_evidence(directory)
            run = fold(evidence)
            if self._is_read_whole(run) and (look := _Look.at(directory, run, begun_ns)) is not None:
                _keep(self._looks, run_id, look)
        except (OSError, BackendUnknown) as error:
            raise RunUnreadable(run_id, error) from error
        # An abandoned run may still be stopped, and then is killed. An end that its supervisor outlives is doubted.
        if run.ended and not run.abandoned and not run.may_go_on and evidence.supervisor.liveness is not Liveness.ALIVE:
            _keep(self._ended, run_id, run)
            self._events.pop(run_id, None)
        return run

    def _is_read_whole(self, run: Run) -> bool:
        """Return whether all that is known of a live run is in its directory, where only this host writes.

        A reason of a live run is a doubt, which passes with time.
        """
        is_here = run.spec.backend == "tmux" and not run.spec.mirror and not is_shared_filesystem(self.home.path)
        return is_here and bool(run.events) and not run.ended and run.reason is None

    def is_final(self, run: Run) -> bool:
        """Return whether a run that was just observed never changes any more."""
        return self._ended.get(run.run_id) is run

    def forget(self, run_ids: Iterable[str]) -> None:
        """Read these runs anew: their directories were removed or replaced."""
        for run_id in run_ids:
            for kept in (self._directories, self._specs, self._ended, self._events, self._looks):
                kept.pop(run_id, None)

    def list_remembered(self) -> set[str]:
        """Return the ids of runs of which something is kept in memory."""
        return {*self._directories, *self._specs}

    def list_present(self) -> set[str]:
        """Return the ids of all directories that may be a run's; reads none of them."""
        return set(self._catalogue.list_inodes())

    def observe_all(self, run_ids: Iterable[str]) -> tuple[Watched, ...]:
        """Return these runs and sweeps as they are now."""
        return tuple(self.observe_any(run_id) for run_id in run_ids)

    def observe_any(self, run_id: str) -> Watched:
        """Return the run, or the sweep, as it is now."""
        try:
            return self.observe(run_id)
        except NotOfSweeps:
            return self.sweeps.observe(run_id)

    def find_any(self, name: str) -> Watched:
        """Return the run, or the sweep, with this id or name: see ``find`` of both stores.

        Also a run of this id that lives although its record was removed, as far as its processes say what it is.
        """
        try:
            return self.find(name)
        except NotOfSweeps:
            return self.sweeps.observe(name)
        except RunNameAmbiguous:
            raise
        except RunNotFound as error:
            try:
                return self.sweeps.find(name)
            except SweepNotFound as no_sweep:
                for run_id, supervisor in find_unrecorded(self.home.runs):
                    if run_id == name:
                        return describe_unrecorded(run_id, supervisor, self.home.runs)
                near = [*no_sweep.near, *error.near]
                nearest = dict.fromkeys([*find_near_names(name, near), *near])
                raise RunNotFound(name, [*nearest][:_MOST_NEAR]) from None

    def directory_of(self, run_id: str) -> Path:
        """Return the directory in which a run, or a sweep, announces its changes; it may be missing."""
        places = (self.home.runs, *(mirror / "runs" for mirror in self.home.list_mirrors()))
        return next((runs / run_id for runs in places if (runs / run_id).is_dir()), self.sweeps.path / run_id)

    def resolve(self, names: Iterable[str]) -> list[Run]:
        """Return the runs that ``names`` mean (see ``find``), in their order and each once."""
        runs = (self.find(name) for name in names)
        return list({run.run_id: run for run in runs}.values())

    def find(self, name: str) -> Run:
        """Return the run with this id, else the only run with this name, else that of the blueprint with this name."""
        if self._find_directory(name) is not None or name in self.sweeps.list_ids():
            return self.observe(name)
        ids = self._list_ids_named(name)
        if len(ids) > 1:
            raise RunNameAmbiguous(name, ids)
        return self.observe(ids[0] if ids else name)

    @property
    def unreadable(self) -> list[str]:
        """The ids of the runs whose state was unknown at the last question about many."""
        return self._catalogue.unreadable

    def list_runs(self, query: RunQuery = _ALL, most: int | None = None) -> list[Run]:
        """Return the newest ``most`` of the runs that are asked for, newest first, but for those in ``unreadable``."""
        while True:
            rows, live = self._catalogue.ask(lambda index: (index.select(query, _CHECKED, most), self._catalogue.live))
            runs, is_right = [], True
            for known in rows:
                run_id = known[0]
                with contextlib.suppress(RunNotFound, RunUnreadable):  # removed, or its disk does not answer any more
                    runs.append(live.get(run_id) or self.observe(run_id))
                    if run_id not in live and known != itemgetter(*_CHECKED)(Row.of(runs[-1], 0)._asdict()):
                        self._catalogue.doubt(run_id)
                        is_right = False
            if is_right:
                return runs

    def list_specs(self, query: RunQuery, most: int | None = None) -> list[RunSpec]:
        """Return the specs of these runs; their other records are not read."""
        specs = []
        for run_id in self.list_ids(query, most):
            with contextlib.suppress(OSError):
                if (directory := self._find_directory(run_id)) is not None:  # else removed meanwhile
                    specs.append(self._read_spec(directory))
        return specs

    def ask(
        self, question: Callable[[RunIndex], Kept], heed: Heed | None = None, most_unread: float = math.inf
    ) -> Kept:
        """Return the answer of the index once it says what the directories say: see ``Catalogue.ask``."""
        return self._catalogue.ask(question, heed, most_unread)

    def one_look(self) -> contextlib.AbstractContextManager[None]:
        """Answer all questions about many runs that this thread asks in the block as of one moment."""
        return self._catalogue.one_look()

    def list_ids(self, query: RunQuery = _ALL, most: int | None = None) -> list[str]:
        """Return the ids of these runs."""
        return [run_id for (run_id,) in self._select(query, "run_id", most=most)]

    def count_states(self, query: RunQuery = _ALL) -> dict[str, int]:
        """Return how many of these runs are in each state, the most frequent first."""
        return self._catalogue.ask(lambda index: index.count_states(query))

    def is_cut_off_launch(self, run: Run) -> bool:
        """Return whether nothing ever ran: its server died during the launch, and no supervisor took what it left."""
        return run.state == "lost" and not run.events and self.run_directory(run.run_id).handover.is_fifo()

    def find_known_directory(self, name: str) -> str:
        """Return where the run with this id or name works, as far as it is known without a look; else empty."""
        if (spec := self._specs.get(name)) is None:
            spec = next((each for each in list(self._specs.values()) if each.name == name), None)
        return spec.cwd or "" if spec is not None else ""

    def list_tags(self) -> list[str]:
        """Return the tags of all runs, those of the newest run first."""
        return list(dict.fromkeys(tag for (text,) in self._select(_ALL, "tags") for tag in split_tags(text)))

    def list_names(self) -> list[str]:
        """Return the names of all runs, that of the newest run first."""
        return list(dict.fromkeys(name for (name,) in self._select(_ALL, "name")))

    def list_blueprints(self) -> list[str]:
        """Return the paths of the blueprints of all runs, that of the newest run first."""
        return list(dict.fromkeys(path for (path,) in self._select(_ALL, "blueprint") if path))

    def list_directories(self, owner: str | None = None) -> list[str]:
        """Return the directories of this host in which runs, or those of ``owner``, work or leave results."""
        rows = self._select(RunQuery(owner=owner, mirror=""), "cwd", "result_dir", "tensorboard")
        return list(dict.fromkeys(path for row in rows for path in row if path))

    def output_at_s(self, run: Run) -> float | None:
        """Return when the newest attempt last wrote output, in POSIX time; None without a log, as for a sweep."""
        try:
            return self.run_directory(run.run_id).log(run.attempt).stat().st_mtime
        except (OSError, RunNotFound, NotOfSweeps):
            return None

    def record_of(self, run: Run) -> RunDir:
        """Return where the record of ``run`` is or was, on this host or mirrored."""
        return RunDir((Path(run.spec.mirror) / "runs" if run.spec.mirror else self.home.runs) / run.run_id)

    def fetch_log(self, run: Run, attempt: int | None = None) -> Path:
        """Return the path of a log, of the newest attempt without ``attempt``; a far log is brought up to date."""
        return backend_of(run.spec).fetch_log(self.record_of(run), run.spec, attempt or run.attempt)

    def explain_old_log(self, run: Run, attempt: int | None = None) -> str:
        """Return why a log that was just fetched may not be all that its attempt wrote, empty where it is."""
        return backend_of(run.spec).explain_old_log(self.record_of(run), run, attempt or run.attempt)

    def fetch_record(self, run: Run) -> RunDir:
        """Return the record of a run; of a far one its log, kept code and use of GPUs are brought up to date."""
        directory = self.record_of(run)
        if run.spec.mirror:
            backend_of(run.spec).fetch_record(directory, run)
        return directory

    def now_s(self, run: Run) -> float:
        """Return the time at the host of the run, in POSIX time, to compare with times that its record holds."""
        offset_s = (
            (read_json(Path(run.spec.mirror) / "host.json") or {}).get("clock_offset_s") if run.spec.mirror else 0.0
        )
        return time.time() + (offset_s if isinstance(offset_s, int | float) else 0.0)

    def list_sessions(self, among: Sequence[str]) -> set[str]:
        """Return those ``among`` these tmux sessions that are, or were, a run's."""
        return {session for (session,) in self._select(RunQuery(sessions=among, cut_off=None), "session")}

    def _list_ids_named(self, name: str) -> list[str]:
        """Return the ids of the runs with this name, else of those of this blueprint, newest first.

        A blueprint is named by its path, by its file's name, or by that without the end.
        """
        if named := self.list_ids(RunQuery(name=name)) or self.list_ids(RunQuery(name=name, cut_off=True)):
            return named
        if not name.endswith(".md"):
            return self.list_ids(RunQuery(tags=(f"blueprint:{name}",)))
        files = self._select(RunQuery(blueprint=name.lstrip("/")), "run_id", "blueprint")
        return [run_id for run_id, path in files if path == name or not name.startswith("/")]

    def _select(self, query: RunQuery, *columns: str, most: int | None = None) -> list[tuple[Any, ...]]:
        return self._catalogue.ask(lambda index: index.select(query, columns, most))

    def _read_spec(self, directory: RunDir) -> RunSpec:
        if (spec := self._specs.get(directory.run_id)) is not None:
            return spec
        facts, run_id = load_json(directory.spec) or {}, directory.run_id  # without a readable spec it is still a run
        text = {name: value for name, value in facts.items() if isinstance(value, str) and value}
        known = {"run_id": run_id, "run_dir": str(directory.path), "mirror": "", "name": text.get("name", run_id)}
        mirror = directory.path.parents[1]
        if mirror.parent == self.home.hosts:  # the far host's own name is of no use here
            known |= {"host": mirror.name, "mirror": str(mirror)}
        known["session"] = text.get("session", "" if known["mirror"] else run_id)  # a far host may have no tmux
        at = text.get("created_at", "")
        known["created_at"] = at if is_time(at) else _modified_at(directory)
        spec = decode(RunSpec, {**facts, **known})
        _keep(self._specs, run_id, spec)
        return spec

    def _read_events(self, directory: RunDir) -> tuple[RecordEvent, ...]:
        record = read_new_events(directory.events, self._events.get(directory.run_id))
        self._events[directory.run_id] = record
        for oldest in list(self._events)[:-_MOST_READ]:
            self._events.pop(oldest, None)
        return record.events

    def _read_evidence(self, directory: RunDir) -> Evidence:
        spec = self._read_spec(directory)
        backend = backend_of(spec)
        directory = backend.open_record(directory).directory
        # Liveness first: once the supervisor is dead, the events hold its last word. A supervisor that started
        # between the two reads has begun its events since.
        while True:
            begun = directory.events.exists()
            supervisor = backend.liveness(directory, spec)
            events = self._read_events(directory)
            if supervisor.liveness is Liveness.ALIVE or begun or not events:
                break
        return read_evidence(directory, spec, events, supervisor)


def _keep(kept: dict[str, Kept], run_id: str, value: Kept) -> None:
    """Keep what was read of a run; the oldest give way."""
    kept[run_id] = value
    if len(kept) > _MOST_KEPT:
        kept.pop(next(iter(kept)), None)


def _modified_at(directory: RunDir) -> str:
    path = directory.spec if directory.spec.exists() else directory.events
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")
