"""The state directory of a far host."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import RunNotFound
from mcp_server.record.run_directory import RunDir, path_below


@dataclass(frozen=True)
class State:
    """The state directory."""

    path: Path

    runs = path_below("runs")  # one directory per run
    launch_lock = path_below("launch.lock")  # held while it is decided whether a run is launched or withdrawn
    withdrawn = path_below("withdrawn")  # one empty file for each run that is never started

    def create(self) -> None:
        """Create the directories, with access for their owner alone."""
        for path in (self.path, self.runs, self.withdrawn):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def read_id(self) -> str:
        """Return what distinguishes this directory from every other, also from one at its path; empty if unknown."""
        file, part = self.path / "id", self.path / f".id.{os.getpid()}"
        with contextlib.suppress(OSError):
            if not file.exists():
                part.write_text(os.urandom(8).hex())
                with contextlib.suppress(FileExistsError):  # another relay was faster
                    os.link(part, file)
        with contextlib.suppress(OSError):
            part.unlink()
        with contextlib.suppress(OSError, ValueError):
            return file.read_text(encoding="ascii")[:32]
        return ""

    def directory(self, run_id: str) -> RunDir:
        """Return the directory of a run.

        Raises:
            RunNotFound: this host has no such run.
        """
        directory = RunDir(self.runs / run_id)
        if "/" in run_id or not directory.spec.is_file():
            raise RunNotFound(run_id, [])
        return directory
