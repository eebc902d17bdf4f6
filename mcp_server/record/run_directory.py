"""The files of a run directory: one writer each, everything else only reads.

``spec.json`` and ``handover`` are the launcher's, ``stop.json`` is the requester's of a stop,
``run.sh``, ``events.jsonl``, ``supervisor.lock`` and ``attempts/`` are the supervisor's.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mcp_server.system.files import is_absent, read_regular_file, write_atomic
from mcp_server.text.formatting import format_time

LAYOUT = 3
CODE_STATE = (
    "code.json"  # of a run or a sweep: its source files at the launch, see ``record/code/code_state``; the launcher's
)
Facts = dict[str, Any]


@dataclass(frozen=True)
class RunDir:
    """Names every file of one run. The names that each look at a run needs are made once."""

    path: Path

    @property
    def run_id(self) -> str:
        """The directory's name is the run's id."""
        return self.path.name

    @functools.cached_property
    def spec(self) -> Path:
        """The launch request. Secrets by name only."""
        return self.path / "spec.json"

    @property
    def script(self) -> Path:
        """The command, as bash runs it. An attempt with other variables or arguments has a script of its own."""
        return self.path / "run.sh"

    @property
    def handover(self) -> Path:
        """A FIFO: the environment passes through it in memory. Gone once the command has started.

        For a scheduler's job a file, which only its user can read, until the run has ended.
        """
        return self.path / "handover"

    @functools.cached_property
    def events(self) -> Path:
        """Append-only facts, one JSON object a line, numbered by ``seq`` from 1."""
        return self.path / "events.jsonl"

    @functools.cached_property
    def lock(self) -> Path:
        """Held with ``flock`` as long as the supervisor lives."""
        return self.path / "supervisor.lock"

    @functools.cached_property
    def stop(self) -> Path:
        """A request to stop the run: who asked, and why."""
        return self.path / "stop.json"

    @property
    def job(self) -> Path:
        """The job that a scheduler made of the run: its id, and when it was handed in. The launcher's."""
        return self.path / "job.json"

    @property
    def job_end(self) -> Path:
        """How a scheduler says that the job ended, kept by the server that heard it first: schedulers forget."""
        return self.path / "job_end.json"

    def attempt(self, number: int) -> Path:
        """Directory of one attempt, counted from 1."""
        return self.path / f"attempts/{number}"

    def log(self, attempt: int) -> Path:
        """Everything that the attempt printed, byte for byte but for masked secrets."""
        return self.path / f"attempts/{attempt}/output.log"

    def progress(self, attempt: int) -> Path:
        """How far the attempt is: the newest step and numbers. Appears atomically, every few seconds."""
        return self.path / f"attempts/{attempt}/progress.json"

    def outputs(self, attempt: int) -> Path:
        """Files that the attempt wrote. Appears atomically, see ``record/written_files``."""
        return self.path / f"attempts/{attempt}/outputs.json"

    @property
    def attribution(self) -> Path:
        """The files that a person calls the run's, see ``store/attribution/claims``. The servers write it."""
        return self.path / "attribution.json"

    @property
    def finding(self) -> Path:
        """The conclusion of an agent about the run, and the place of its results document. The servers write it."""
        return self.path / "finding.json"

    @property
    def account(self) -> Path:
        """For people: every attempt of a run that was retried, why it ended, and what was done."""
        return self.path / "attempts.md"

    def code(self, attempt: int) -> Path:
        """Directory of what ran: configuration files, commit, uncommitted changes, versions, as at the start."""
        return self.attempt(attempt) / "code"

    def exit(self, attempt: int) -> Path:
        """How the attempt ended. Appears atomically."""
        return self.path / f"attempts/{attempt}/exit.json"

    def guard_exit(self, attempt: int) -> Path:
        """How the command ended, by its guard: only where its supervisor was gone by then. Appears atomically."""
        return self.path / f"attempts/{attempt}/guard_exit.json"


def now() -> str:
    """Return the time in ISO 8601 UTC with milliseconds, e.g. ``2026-11-21T15:30:45.123Z``."""
    return format_time(datetime.now(timezone.utc))


def boot_id() -> str:
    """Return the kernel's id of this boot, or an empty string where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def load_json(path: Path) -> Facts | None:
    """Return the JSON object in ``path``, or None when it is missing or not an object.

    Raises:
        OSError: its content is unknown now.
    """
    try:
        value = json.loads(read_regular_file(path))
    except OSError as error:
        if is_absent(error):
            return None
        raise
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_json(path: Path) -> Facts | None:
    """Return the JSON object in ``path``, or None when it is missing, unreadable or not an object."""
    try:
        return load_json(path)
    except OSError:
        return None


def write_json(path: Path, value: Facts) -> None:
    """Replace ``path`` by one JSON line, atomically.

    Raises:
        OSError: nothing was changed.
    """
    write_atomic(path, json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n")
