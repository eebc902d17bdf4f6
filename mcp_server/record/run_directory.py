"""The files of a run directory: one writer each, everything else only reads.

``spec.json`` and ``handover`` are the launcher's, ``stop.json`` is the requester's of a stop,
``run.sh``, ``events.jsonl``, ``supervisor.lock`` and ``attempts/`` are the supervisor's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.system.files import is_absent, read_regular_file, write_atomic
from mcp_server.text.formatting import format_posix

LAYOUT = 3
CODE_STATE = "code.json"  # source files at the launch of a run or sweep, see ``record/code/code_state``; the launcher's
Facts = dict[str, Any]
_ESCAPE, _ESCAPES = b"\\u", (b"\\ud", b"\\uD", b"\\u0000")  # of what no file name holds, in JSON


def path_below(name: str) -> functools.cached_property[Path]:
    """Return an attribute of a directory's class: the path ``name`` below its ``path``, made once."""
    return functools.cached_property(lambda self: self.path / name)


@dataclass(frozen=True)
class RunDir:
    """Names every file of one run, and the files of an attempt, which are counted from 1."""

    path: Path

    spec = path_below("spec.json")  # the launch request; secrets by name only
    script = path_below("run.sh")  # of the first attempt; one with other variables or arguments has its own
    # A FIFO: the environment passes through it in memory. Gone once the command has started. For a scheduler's job a
    # file, which only its user can read, until the run has ended.
    handover = path_below("handover")
    events = path_below("events.jsonl")  # append-only facts, one JSON object a line, numbered by ``seq`` from 1
    lock = path_below("supervisor.lock")  # held with ``flock`` as long as the supervisor lives
    stop = path_below("stop.json")  # who asked for a stop, and why
    job = path_below("job.json")  # the job that a scheduler made of the run; the launcher's
    job_end = path_below("job_end.json")  # its end, kept by the server that heard it first: schedulers forget
    attribution = path_below("attribution.json")  # files that a person calls the run's; the servers write it
    finding = path_below("finding.json")  # the conclusion of an agent, and where its document is; the servers write it
    account = path_below("attempts.md")  # for people: why each attempt of a run that was retried ended

    @property
    def run_id(self) -> str:
        """The directory's name is the run's id."""
        return self.path.name

    def attempt(self, number: int) -> Path:
        """Directory of one attempt."""
        return self.path / f"attempts/{number}"

    def newest_attempt(self) -> int:
        """Return the number of the newest attempt that has a directory; 0 without any, or where none can be read."""
        with contextlib.suppress(OSError):
            names = [path.name for path in (self.path / "attempts").iterdir()]
            return max((int(name) for name in names if name.isdigit()), default=0)
        return 0

    def log(self, attempt: int) -> Path:
        """Everything that the attempt printed, byte for byte but for masked secrets."""
        return self.path / f"attempts/{attempt}/output.log"

    def progress(self, attempt: int) -> Path:
        """How far the attempt is: the newest step and numbers. Appears atomically, every few seconds."""
        return self.path / f"attempts/{attempt}/progress.json"

    def outputs(self, attempt: int) -> Path:
        """Files that the attempt wrote. Appears atomically, see ``record/written_files``."""
        return self.path / f"attempts/{attempt}/outputs.json"

    def code(self, attempt: int) -> Path:
        """Directory of what ran: configuration files, commit, uncommitted changes, versions, as at the start."""
        return self.path / f"attempts/{attempt}/code"

    def exit(self, attempt: int) -> Path:
        """How the attempt ended. Appears atomically."""
        return self.path / f"attempts/{attempt}/exit.json"

    def guard_exit(self, attempt: int) -> Path:
        """How the command ended, by its guard: only where its supervisor was gone by then. Appears atomically."""
        return self.path / f"attempts/{attempt}/guard_exit.json"


def now() -> str:
    """Return the time in ISO 8601 UTC with milliseconds, e.g. ``2026-11-21T15:30:45.123Z``."""
    return format_posix(time.time())


def boot_id() -> str:
    """Return the kernel's id of this boot, or an empty string where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def load_json(path: Path) -> Facts | None:
    """Return the JSON object in ``path``, or None when it is missing or not an object.

    In a text that no file name can be, as half an emoji or a NUL in a damaged record, those are escaped.

    Raises:
        OSError: its content is unknown now.
    """
    try:
        data = read_regular_file(path)
        value = json.loads(data)
        if _ESCAPE in data and any(escape in data for escape in _ESCAPES):
            value = _make_nameable(value)
    except OSError as error:
        if is_absent(error):
            return None
        raise
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _make_nameable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_make_nameable(name): _make_nameable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_make_nameable(each) for each in value]
    if not isinstance(value, str):
        return value
    text = value.replace("\0", "\\x00")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def read_json(path: Path) -> Facts | None:
    """Return the JSON object in ``path``, or None when it is missing, unreadable or not an object."""
    try:
        return load_json(path)
    except OSError:
        return None


def write_json(path: Path, value: Facts) -> None:
    """Replace ``path`` by one JSON line, atomically."""
    write_atomic(path, json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n")


LAUNCHED_AGAIN = "launched again with the same key"


def put_stop_request(directory: RunDir, request: Mapping[str, Any] | None) -> None:
    """Write ``stop.json``, or remove it."""
    if request is None:
        directory.stop.unlink(missing_ok=True)
    else:
        write_json(directory.stop, dict(request))


def forbid_launch(directory: RunDir, reason: str) -> None:
    """Leave a stop request for a supervisor that starts late: it does not start its command."""
    write_json(directory.stop, {"by": "launch_run", "reason": reason, "at": now()})


def expiry(within_s: float) -> Facts:
    """Return the fields of a stop request that expires in ``within_s``: by the clock, and by the time since this boot.

    That is a clock that nobody can set, as far as writer and reader share it.
    """
    fields: Facts = {"expires_at": time.time() + within_s}
    up_s = _up_s()
    return fields if up_s is None else {**fields, "expires_up_s": up_s + within_s, "boot_id": boot_id()}


def has_expired(request: Facts) -> bool:
    """Return whether a stop request has expired. One without such fields, as of former versions, never does.

    The clock decides only where the time since the boot cannot: on another host, or after a restart of this one.
    """
    up_s, due_up_s, due_s = _up_s(), _number(request.get("expires_up_s")), _number(request.get("expires_at"))
    if up_s is not None and due_up_s is not None and request.get("boot_id") == boot_id():
        return up_s > due_up_s
    return due_s is not None and time.time() > due_s


def _up_s() -> float | None:
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only
    return None if clock is None else time.clock_gettime(clock)


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
