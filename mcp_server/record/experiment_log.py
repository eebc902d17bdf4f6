"""The account of an experiment in its result directory: ``experiment_log.md``, which only ever grows."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mcp_server.errors import RunwardError
from mcp_server.record.result_directory import FLAG, clear_flag
from mcp_server.record.script import render
from mcp_server.record.spec import RunSpec
from mcp_server.text.durations import told

LOG_NAME = "experiment_log.md"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ResultDirUnusable(RunwardError):
    """The result directory of a blueprint cannot be written."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"Result directory not usable: {path}: {cause}. Nothing was started. Name another one.")
        self.path = path


def begin_log(result_dir: Path, spec: RunSpec) -> None:
    """Append the launch of ``spec`` to the log in ``result_dir``, which is made if it is not there.

    An older run's flag goes; nothing else that stands there is touched. Of a refused launch no entry is left.

    Raises:
        ResultDirUnusable: it cannot be made or written, the log is no regular file, or a flag stays.
    """
    entry = _entry(spec)
    log = result_dir / LOG_NAME
    try:
        result_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(log, _OPEN, 0o644)
        try:
            size = _append(fd, log, entry)
            try:
                clear_flag(result_dir)
            except OSError:
                _cut(fd, log, size)
                raise
        finally:
            os.close(fd)
    except OSError as error:
        causes = {errno.ELOOP: f"{LOG_NAME} is a symbolic link", errno.EINVAL: f"{LOG_NAME} is no regular file"}
        cause = causes.get(error.errno or 0) or error.strerror or "it cannot be written"
        if str(error.filename or "").endswith(f"/{FLAG}"):
            cause = f"an old {FLAG} cannot be taken away: {cause}"
        raise ResultDirUnusable(result_dir, cause) from error


def _append(fd: int, log: Path, entry: str) -> int:
    """Write ``entry`` in one piece at the end, or nothing of it; return how long the log was, in bytes.

    Raises:
        OSError: it was not written.
    """
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    head = "# Experiment log\n"
    if facts.st_size:
        head = "" if os.pread(fd, 1, facts.st_size - 1) == b"\n" else "\n"
    data = f"{head}\n{entry}".encode(errors="replace")
    whole = False
    try:
        whole = os.write(fd, data) == len(data)
        os.fsync(fd)
    finally:
        if not whole:
            _cut(fd, log, facts.st_size)
    if not whole:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return facts.st_size


def _cut(fd: int, log: Path, size: int) -> None:
    """Make the log as long as it was, in bytes; none if it was empty."""
    os.ftruncate(fd, size)
    if not size:
        log.unlink(missing_ok=True)


def _entry(spec: RunSpec) -> str:
    """Return what is told of a launch: where, when, and exactly what runs."""
    facts = {
        "run": spec.run_id,
        "started": spec.created_at,
        "host": spec.host,
        "directory": spec.cwd,
        "blueprint": spec.blueprint or "",
        "time limit": told(spec.time_limit_s) if spec.time_limit_s else "none",
        "owner": spec.owner,
    }
    lines = [f"- {name}: {' '.join(value.split())}" for name, value in facts.items() if value]
    # The script has the exact command with its variables and parameters; secrets are in it by name only.
    script = render(spec).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in _ticks(script)), default=0))
    return f"## Launch of {spec.run_id}\n\n" + "\n".join(lines) + f"\n\n{fence}bash\n{script}\n{fence}\n"


def _ticks(text: str) -> list[str]:
    return ["`" * len(run) for run in "".join(c if c == "`" else " " for c in text).split()]
