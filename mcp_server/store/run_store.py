"""The runs on disk, read only: any number of servers may look at once."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mcp_server.backends.base import backend_of
from mcp_server.errors import RunNotFound
from mcp_server.record.events import is_time, read_events, read_record, read_stop
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Evidence, Liveness, Run, attempt_of, fold, posix
from mcp_server.store.state_home import StateHome

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class RunStore:
    """Answers what is known of every run.

    Specs, and runs that have ended, never change: they are read once. What a directory no longer holds
    is forgotten.
    """

    def __init__(self, home: StateHome) -> None:
        self.home = home
        self._specs: dict[str, RunSpec] = {}
        self._ended: dict[str, Run] = {}

    def rundir(self, run_id: str) -> RunDir:
        """Return the directory of a run.

        Raises:
            RunNotFound: there is none; names the ids that come near.
        """
        rundir = RunDir(self.home.runs / run_id)
        if not _RUN_ID.fullmatch(run_id) or not rundir.spec.is_file():
            raise RunNotFound(run_id, difflib.get_close_matches(run_id, self._ids(), n=3, cutoff=0.7))
        return rundir

    def observe(self, run_id: str) -> Run:
        """Return the run as the disk tells it now.

        Raises:
            RunNotFound: there is no such run.
        """
        rundir = self.rundir(run_id)
        if (known := self._ended.get(run_id)) is not None:
            return known
        run = fold(self._evidence(rundir))
        if run.ended and not run.abandoned:  # what its supervisor did not finish may yet be stopped
            self._ended[run_id] = run
        return run

    def runs(self) -> list[Run]:
        """Return all runs, newest first."""
        ids = self._ids()
        for gone in self._specs.keys() - set(ids):
            self._specs.pop(gone, None)
            self._ended.pop(gone, None)
        found = []
        for run_id in ids:
            known = self._ended.get(run_id)
            if known is None:
                with contextlib.suppress(RunNotFound, OSError):  # removed meanwhile, or no run's directory
                    known = self.observe(run_id)
            if known is not None:
                found.append(known)
        found.sort(key=lambda run: run.spec.created_at, reverse=True)
        return found

    def output_at_s(self, run: Run) -> float | None:
        """Return when the newest attempt last wrote output, in POSIX time; None if it has no log."""
        try:
            return RunDir(self.home.runs / run.run_id).log(run.attempt).stat().st_mtime
        except OSError:
            return None

    def _ids(self) -> list[str]:
        try:
            return [entry.name for entry in self.home.runs.iterdir() if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    def _spec(self, rundir: RunDir) -> RunSpec:
        if (known := self._specs.get(rundir.run_id)) is not None:
            return known
        spec = RunSpec.from_facts(read_json(rundir.spec) or {})  # of a former or foreign layout: still a run
        spec = replace(
            spec,
            run_id=rundir.run_id,
            name=spec.name or rundir.run_id,
            session=spec.session or rundir.run_id,
            created_at=spec.created_at if is_time(spec.created_at) else _created(rundir.spec),
        )
        self._specs[rundir.run_id] = spec
        return spec

    def _evidence(self, rundir: RunDir) -> Evidence:
        spec = self._spec(rundir)
        backend = backend_of(spec)
        rundir = backend.open_record(rundir).directory
        # Liveness first: once the supervisor is dead, the events hold its last word. A supervisor that started
        # between the two reads has begun its events since.
        while True:
            begun = rundir.events.exists()
            supervisor = backend.liveness(rundir, spec)
            events = read_events(rundir.events)
            if supervisor.liveness is Liveness.ALIVE or begun or not events:
                break
        attempt = attempt_of(events)
        return Evidence(
            spec=spec,
            events=tuple(events),
            exit=read_record(rundir.exit(attempt)),
            progress=read_record(rundir.progress(attempt)),
            stop=read_stop(rundir.stop),
            supervisor=supervisor,
            age_s=time.time() - posix(spec.created_at),
        )


def _created(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")
