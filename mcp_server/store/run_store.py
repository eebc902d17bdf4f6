"""Read access to all runs on disk. Any number of servers may read at the same time."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mcp_server.backends.base import backend_of
from mcp_server.command.outputs import list_redirected
from mcp_server.errors import BackendUnknown, NotOfSweeps, RunNameAmbiguous, RunNotFound, RunUnreadable, SweepNotFound
from mcp_server.record.event_reader import EventsRead, read_new_events
from mcp_server.record.events import Event, is_time, read_record, read_stop
from mcp_server.record.run_directory import RunDir, load_json, read_json
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Evidence, Liveness, Run, attempt_of, fold, posix
from mcp_server.store.state_home import StateHome
from mcp_server.store.sweep_store import SweepRun, SweepStore

_MOST_READ = 256  # live runs whose events are kept in memory
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class RunStore:
    """Returns runs as their directories prove them.

    A spec, and a run that has ended, never change: they are read once, and dropped when their directory is removed.
    """

    def __init__(self, home: StateHome) -> None:
        self.home = home
        self.sweeps = SweepStore(home.sweeps)
        self._directories: dict[str, RunDir] = {}
        self._specs: dict[str, RunSpec] = {}
        self._ended: dict[str, Run] = {}
        self._events: dict[str, EventsRead] = {}
        self.unreadable: list[str] = []  # ids of the runs whose state was unknown in the last ``list_runs``

    def run_directory(self, run_id: str) -> RunDir:
        """Return the directory of a run.

        Raises:
            RunNotFound: no run has this id; names similar ids.
            NotOfSweeps: it is a sweep's id.
        """
        directory = self._directories.get(run_id) or RunDir(self.home.runs / run_id)
        if not _RUN_ID.fullmatch(run_id) or not _is_run(directory):
            for mirror in self.home.list_mirrors() if _RUN_ID.fullmatch(run_id) else ():
                directory = RunDir(mirror / "runs" / run_id)
                if directory.spec.is_file():
                    self._directories[run_id] = directory
                    return directory
            if run_id in self.sweeps.list_ids():
                raise NotOfSweeps(run_id)
            raise RunNotFound(run_id, difflib.get_close_matches(run_id, self._list_ids(), n=3, cutoff=0.7))
        self._directories[run_id] = directory
        return directory

    def observe(self, run_id: str) -> Run:
        """Return the run as it is now.

        Raises:
            RunNotFound: no run has this id.
            RunUnreadable: its state is unknown now.
        """
        try:
            directory = self.run_directory(run_id)
            if (ended := self._ended.get(run_id)) is not None:
                return ended
            evidence = self._read_evidence(directory)
            run = fold(evidence)
        except (OSError, BackendUnknown) as error:
            raise RunUnreadable(run_id, error) from error
        # An abandoned run may still be stopped, and then is killed. An end that its supervisor outlives is doubted.
        if run.ended and not run.abandoned and not run.may_go_on and evidence.supervisor.liveness is not Liveness.ALIVE:
            self._ended[run_id] = run
            self._events.pop(run_id, None)
        return run

    def observe_all(self, run_ids: Iterable[str]) -> tuple[Run, ...]:
        """Return these runs, and sweeps in the form of runs, as they are now.

        Raises:
            RunNotFound: a run is gone.
            RunUnreadable: the state of a run is unknown now.
        """
        return tuple(self.observe_any(run_id) for run_id in run_ids)

    def observe_any(self, run_id: str) -> Run:
        """Return the run, or the sweep in the form of a run, as it is now.

        Raises:
            RunNotFound: neither has this id.
            RunUnreadable: its state is unknown now.
        """
        try:
            return self.observe(run_id)
        except NotOfSweeps:
            return SweepRun.of(self.sweeps.observe(run_id))

    def find_any(self, name: str) -> Run:
        """Return the run, or the sweep in the form of a run, with this id or name: see ``find`` of both stores.

        Raises:
            RunNotFound: no run and no sweep has this id or name; names similar ids.
            RunNameAmbiguous: several runs have this name; names their ids.
        """
        try:
            return self.find(name)
        except NotOfSweeps:
            return SweepRun.of(self.sweeps.observe(name))
        except RunNameAmbiguous:
            raise
        except RunNotFound:
            with contextlib.suppress(SweepNotFound):
                return SweepRun.of(self.sweeps.find(name))
            raise

    def directory_of(self, run_id: str) -> Path:
        """Return the directory in which a run, or a sweep, announces its changes; it may be missing."""
        places = (self.home.runs, *(mirror / "runs" for mirror in self.home.list_mirrors()))
        return next((runs / run_id for runs in places if (runs / run_id).is_dir()), self.sweeps.path / run_id)

    def resolve(self, names: Iterable[str]) -> list[Run]:
        """Return the runs that ``names`` mean (see ``find``), in their order and each once.

        Raises:
            RunNotFound: a name means no run, or several.
        """
        runs = (self.find(name) for name in names)
        return list({run.run_id: run for run in runs}.values())

    def find(self, name: str) -> Run:
        """Return the run with this id, else the only run with this name, else that of the blueprint with this name.

        Raises:
            RunNotFound: no run has this id or name; names similar ids.
            RunNameAmbiguous: several runs have this name; names their ids.
        """
        try:
            return self.observe(name)
        except RunNotFound:
            ids = self._list_ids_named(name)
            if not ids:
                raise
            if len(ids) > 1:
                raise RunNameAmbiguous(name, ids) from None
            return self.observe(ids[0])

    def list_runs(self) -> list[Run]:
        """Return all runs, newest first, but for those in ``unreadable``."""
        ids = self._list_ids()
        for removed in self._specs.keys() - set(ids):
            self._directories.pop(removed, None)
            self._specs.pop(removed, None)
            self._ended.pop(removed, None)
            self._events.pop(removed, None)
        runs = []
        self.unreadable = []
        for run_id in ids:
            run = self._ended.get(run_id)
            if run is None:
                try:
                    run = self.observe(run_id)
                except RunNotFound:  # removed meanwhile, or not a run's directory
                    continue
                except RunUnreadable:
                    self.unreadable.append(run_id)
            if run is not None:
                runs.append(run)
        runs.sort(key=lambda run: (run.spec.created_at, run.run_id), reverse=True)
        return runs

    def is_cut_off_launch(self, run: Run) -> bool:
        """Return whether nothing ever ran: its server died during the launch, and no supervisor took what it left."""
        return run.state == "lost" and not run.events and self.run_directory(run.run_id).handover.is_fifo()

    def find_known_directory(self, name: str) -> str:
        """Return where the run with this id or name works, as far as it is known without a look; else empty."""
        if (spec := self._specs.get(name)) is None:
            spec = next((each for each in list(self._specs.values()) if each.name == name), None)
        return spec.cwd or "" if spec is not None else ""

    def list_ids_tagged(self, tags: Iterable[str]) -> list[str]:
        """Return the ids of the runs that have one of ``tags``, the oldest first."""
        required = set(tags)
        return [spec.run_id for spec in self._list_specs() if not required.isdisjoint(spec.tags)]

    def list_tags(self) -> list[str]:
        """Return the tags of all runs, those of the newest run first."""
        return list(dict.fromkeys(tag for spec in reversed(self._list_specs()) for tag in spec.tags))

    def list_names(self) -> list[str]:
        """Return the names of all runs, that of the newest run first."""
        return list(dict.fromkeys(spec.name for spec in reversed(self._list_specs())))

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
        if not run.spec.mirror:
            return self._explain_empty_log(run, attempt or run.attempt)
        from mcp_server.backends.far_files import explain_old_log  # noqa: PLC0415 - most runs are of this host

        return explain_old_log(self.record_of(run), attempt or run.attempt)

    def _explain_empty_log(self, run: Run, attempt: int) -> str:
        file = next(list_redirected(run.command), None)
        with contextlib.suppress(OSError):
            if file is not None and not self.record_of(run).log(attempt).stat().st_size:
                return f"Its command redirects output: read_log(path={str(Path(run.spec.cwd) / file)!r})."
        return ""

    def fetch_record(self, run: Run) -> RunDir:
        """Return the record of a run; of a far one its log, kept code and use of GPUs are brought up to date."""
        directory = self.record_of(run)
        if run.spec.mirror:
            from mcp_server.backends.far_files import fetch_record_files  # noqa: PLC0415 - most runs are of this host

            self.fetch_log(run)
            fetch_record_files(directory, run.attempt)
        return directory

    def now_s(self, run: Run) -> float:
        """Return the time at the host of the run, in POSIX time, to compare with times that its record holds."""
        return time.time() + (self._clock_offset_s(Path(run.spec.mirror)) if run.spec.mirror else 0.0)

    def _list_ids_named(self, name: str) -> list[str]:
        """Return the ids of the runs with this name, else of those of this blueprint, newest first.

        A blueprint is named by its path, by its file's name, or by that without the end.
        """
        specs = list(reversed(self._list_specs()))
        named = [spec.run_id for spec in specs if spec.name == name]
        if name.endswith(".md"):
            of_file = [spec.run_id for spec in specs if f"/{spec.blueprint or ''}".endswith(f"/{name.lstrip('/')}")]
            if name.startswith("/"):
                of_file = [spec.run_id for spec in specs if spec.blueprint == name]
            return named or of_file
        return named or [spec.run_id for spec in specs if f"blueprint:{name}" in spec.tags]

    def _list_specs(self) -> list[RunSpec]:
        """Return the specs of all runs, the oldest first."""
        specs: list[RunSpec] = []
        for run_id in self._list_ids():
            with contextlib.suppress(RunNotFound, OSError):  # removed meanwhile, or not a run's directory
                specs.append(self._specs.get(run_id) or self._read_spec(self.run_directory(run_id)))
        return sorted(specs, key=lambda spec: (spec.created_at, spec.run_id))

    def _list_ids(self) -> list[str]:
        ids: dict[str, None] = {}
        for runs in (self.home.runs, *(mirror / "runs" for mirror in self.home.list_mirrors())):
            with contextlib.suppress(FileNotFoundError):
                ids.update((entry.name, None) for entry in runs.iterdir() if not entry.name.startswith("."))
        return list(ids)

    def _clock_offset_s(self, mirror: Path) -> float:
        offset_s = (read_json(mirror / "host.json") or {}).get("clock_offset_s")
        return float(offset_s) if isinstance(offset_s, int | float) else 0.0

    def _read_spec(self, directory: RunDir) -> RunSpec:
        if (spec := self._specs.get(directory.run_id)) is not None:
            return spec
        spec = RunSpec.from_facts(load_json(directory.spec) or {})  # without a readable spec it is still a run
        mirror = directory.path.parents[1]
        if mirror.parent == self.home.hosts:  # the far host's own name is of no use here
            spec = replace(spec, host=mirror.name, mirror=str(mirror))
        spec = replace(
            spec,
            run_id=directory.run_id,
            name=spec.name or directory.run_id,
            session=spec.session or ("" if spec.mirror else directory.run_id),  # a far host may have no tmux
            run_dir=str(directory.path),
            created_at=spec.created_at if is_time(spec.created_at) else _modified_at(directory),
        )
        self._specs[directory.run_id] = spec
        return spec

    def _read_events(self, directory: RunDir) -> tuple[Event, ...]:
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
        attempt = attempt_of(events)
        return Evidence(
            spec=spec,
            events=events,
            exit=read_record(directory.exit(attempt)),
            progress=read_record(directory.progress(attempt)),
            stop=read_stop(directory.stop),
            supervisor=supervisor,
            age_s=time.time() - posix(spec.created_at),
            guard_exit=read_record(directory.guard_exit(attempt)),
        )


def _is_run(directory: RunDir) -> bool:
    """Return whether a directory is a run's: by its spec, or where that was removed, by the events of its supervisor.

    Such a command may go on for days, and only a run can be listed and stopped.
    """
    return directory.spec.is_file() or directory.events.is_file()


def _modified_at(directory: RunDir) -> str:
    path = directory.spec if directory.spec.exists() else directory.events
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")
