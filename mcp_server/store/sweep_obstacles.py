"""Obstacles of a sweep that its record does not show: a stopped conductor, a home without space."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.system.files import is_shortage
from mcp_server.system.own_process import conductor_title
from mcp_server.system.processes import command_words, is_stopped


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
