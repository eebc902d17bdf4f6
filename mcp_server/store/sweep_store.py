"""Read access to all sweeps on disk, and obstacles that their records do not show: a stopped conductor, no space."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mcp_server.errors import RunUnreadable, SweepNotFound
from mcp_server.record.codec import decode
from mcp_server.record.events import EventsRead, read_new_events
from mcp_server.record.run_directory import load_json
from mcp_server.record.state import Liveness
from mcp_server.record.sweeps.sweep_spec import SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.system.files import is_shortage
from mcp_server.system.lock_files import is_locked
from mcp_server.system.own_process import conductor_title
from mcp_server.system.processes import command_words, is_stopped
from mcp_server.text.near_names import find_near_ids

_SWEEP_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_END_BYTES = 2**27  # a sweep without its middle would start cells twice, so all of it is read
_MOST_READ = 64  # sweeps whose events are kept in memory


class SweepStore:
    """Returns sweeps as their directories prove them. A spec is read again where a call has changed it.

    Raises:
        SweepNotFound: no sweep has this id or name; names similar ones.
        RunUnreadable: its state is unknown now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._specs: dict[str, tuple[int, SweepSpec]] = {}  # with the time of its file
        self._events: dict[str, EventsRead] = {}
        # As their newest events prove them: to fold all events of 1,000 cells takes 20 ms, one more 20 µs.
        self._folded: dict[str, tuple[SweepSpec, Sweep]] = {}  # with the spec as it is on disk

    def directory(self, sweep_id: str) -> SweepDir:
        """Return the directory of a sweep."""
        directory = SweepDir(self.path / sweep_id)
        if not _SWEEP_ID.fullmatch(sweep_id) or not directory.spec.is_file():
            others = [each for each in self.list_ids() if each != sweep_id]
            raise SweepNotFound(sweep_id, list(find_near_ids(sweep_id, others)))
        return directory

    def files_of(self, sweep: Sweep) -> SweepDir:
        """Return the names of the files of a sweep that was observed; looks at none of them."""
        return SweepDir(self.path / sweep.sweep_id)

    def observe(self, sweep_id: str) -> Sweep:
        """Return the sweep as it is now."""
        directory = self.directory(sweep_id)
        try:
            spec = self._read_spec(directory)
            # Liveness first: once the conductor is dead, the events hold its last word.
            liveness = Liveness.ALIVE if is_locked(directory.lock) else Liveness.DEAD
            record = read_new_events(directory.events, self._events.get(sweep_id), end_bytes=_END_BYTES)
            stop = load_json(directory.stop)
        except (OSError, ValueError, TypeError) as error:
            cause = error if isinstance(error, OSError) else OSError(0, f"its spec.json is damaged ({error})")
            raise RunUnreadable(sweep_id, cause) from error
        known, former = self._folded.get(sweep_id, (None, None))
        former = former if known is spec else None
        is_conducted = liveness is Liveness.ALIVE
        if former and self._events.get(sweep_id) is record and (former.conducted, former.stop) == (is_conducted, stop):
            return former
        self._events[sweep_id] = record
        for oldest in list(self._events)[:-_MOST_READ]:
            self._events.pop(oldest, None)
            self._folded.pop(oldest, None)
        sweep = fold_sweep(spec, record.events, liveness, stop, former)
        self._folded[sweep_id] = spec, sweep
        return sweep

    def find(self, name: str) -> Sweep:
        """Return the sweep with this id, else the newest with this name."""
        try:
            return self.observe(name)
        except SweepNotFound:
            named = self.list_named(name)
            if not named:
                raise
            return self.observe(named[0])

    def list_named(self, name: str) -> list[str]:
        """Return the ids of the sweeps with this name, newest first."""
        specs = [spec for spec in self._list_specs() if spec.name == name]
        return [spec.sweep_id for spec in sorted(specs, key=lambda spec: spec.created_at, reverse=True)]

    def list_ids(self) -> list[str]:
        """Return the ids of all sweeps."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        return []

    def list_sweeps(self, most: int | None = None) -> list[Sweep]:
        """Return the newest ``most`` sweeps, or all, that can be read now, newest first."""
        specs = sorted(self._list_specs(), key=lambda spec: (spec.created_at, spec.sweep_id), reverse=True)
        sweeps = []
        for spec in specs[:most]:
            with contextlib.suppress(SweepNotFound, RunUnreadable):
                sweeps.append(self.observe(spec.sweep_id))
        return sweeps

    def _list_specs(self) -> list[SweepSpec]:
        specs = []
        for sweep_id in self.list_ids():
            with contextlib.suppress(SweepNotFound, OSError, ValueError, TypeError):
                specs.append(self._read_spec(self.directory(sweep_id)))
        return specs

    def _read_spec(self, directory: SweepDir) -> SweepSpec:
        written_ns = directory.spec.stat().st_mtime_ns
        known_ns, spec = self._specs.get(directory.sweep_id, (None, None))
        if spec is None or known_ns != written_ns:
            if (facts := load_json(directory.spec)) is None:
                raise ValueError("not a JSON object")
            spec = decode(SweepSpec, {**facts, "sweep_id": directory.sweep_id}, strict=True)
            self._specs[directory.sweep_id] = (written_ns, spec)
        return spec


class Obstacle(NamedTuple):
    """Why a sweep does not go on now, and what that means."""

    cause: str
    consequence: str


def find_obstacle(sweep: Sweep, directory: SweepDir) -> Obstacle | None:
    """Return what keeps a sweep that has not ended from going on, None where that is nothing or unknown. Writes a file.

    A conductor that somebody has stopped (SIGSTOP) is not continued by a look: whoever did that may have meant it.
    """
    if sweep.ended:
        return None
    home = directory.path.parents[1]
    if (error := find_write_error(home)) is not None:
        return Obstacle(
            f"{home} takes no writes ({error}).",
            "Until it does, no cell is launched and no end is noted; then the sweep goes on. Its live runs go on.",
        )
    pid = find_conductor(sweep)
    if pid is None or not is_stopped(pid):
        return None
    return Obstacle(
        f"Its conductor (process {pid}) was stopped (SIGSTOP) after {_last_sign(directory)}; by whom is unknown.",
        f'It launches nothing until a person runs kill -CONT {pid}, or launch_sweep(name="{sweep.sweep_id}") continues '
        "it. Its live runs go on.",
    )


def find_conductor(sweep: Sweep) -> int | None:
    """Return the process that advances a sweep, None where it is not known here."""
    pid = next((event.get("pid") for event in reversed(sweep.events) if event["kind"] == "conducting"), None)
    return pid if pid is not None and command_words(pid) == conductor_title(sweep.sweep_id) else None


def _last_sign(directory: SweepDir) -> str:
    """Return when the conductor last wrote anything, in UTC."""
    written_s = []
    for path in (directory.events, directory.log):
        try:
            written_s.append(path.stat().st_mtime)
        except OSError:
            continue
    return f"{datetime.fromtimestamp(max(written_s, default=0.0), UTC):%Y-%m-%dT%H:%M:%SZ}"


_BYTES = 4096
_PATIENCE_S = 1.0
_probes: dict[Path, _Probe] = {}


class _Probe(threading.Thread):
    """Writes a file and removes it. A thread that waits for a silent disk cannot be ended, so there is only one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._file = directory / f".probe-{os.getpid()}"
        self.until_s = time.monotonic() + _PATIENCE_S
        self.error: str | None = None

    def run(self) -> None:
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, os.urandom(_BYTES))  # which no file system compresses
            finally:
                os.close(fd)
        except OSError as error:
            self.error = None if is_shortage(error) else error.strerror
        with contextlib.suppress(OSError):
            self._file.unlink()


def find_write_error(directory: Path) -> str | None:
    """Return why nothing can be written to ``directory`` now, None where something can. Blocks for a second at most."""
    probe = _probes.get(directory)
    if probe is None or not probe.is_alive():
        probe = _probes[directory] = _Probe(directory)
        probe.start()
    probe.join(max(0.0, probe.until_s - time.monotonic()))
    return "it does not answer" if probe.is_alive() else probe.error
